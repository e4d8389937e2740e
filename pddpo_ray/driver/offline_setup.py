"""Work before the first round, done once: the reference is recorded, pools are drawn, offline pairs are labelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config
from pddpo_ray.errors import UserError
from pddpo_ray.exploration.explorer import THEOREM
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.limits.source_kinds import FREE_SOURCES
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.parts.preferences import Preferences
from pddpo_ray.parts.sampling import BASELINE_TOP_P, Proposal, RolloutController
from pddpo_ray.records import Decoding, LabelledPair, Pair, Prompt, Response, Verdict, by_prompt
from pddpo_ray.theory.seeds import generator

WHOLE_POOL_ROUNDS = 4
"""Pools of all prompts are drawn before the first round where these rounds ask as many prompts as there are."""
CALIBRATION = "calibration"
LEFT_OUT = "rows-left-out"
OFFLINE_TOP_P = 0.9
"""Worlds draw their offline answers from this nucleus of the reference: it covers the space badly, as real data do."""


def proposal_of(config: Config, prompts: int, served: int = 0, answers: Sequence[Response] = ()) -> Proposal:
    """Half of the candidates from the reference where a bonus explores, none where the policy's own answers do.

    With few prompts the pool of proposals doubles as the calibration set of the features; with many, a round draws
    what its own prompts need. `served` prompts of users, which come later, are never in the pool. `answers` are all
    there are, of a table: the theorem's bonus draws from them.
    """
    if config.explore.bonus == THEOREM:
        return Proposal(share=0.0, listed=by_prompt(answers))
    explores = config.explore.bonus != "off" and not config.traits.optimistic
    candidates = config.rollout.candidates
    proposal = Proposal(candidates, 0.5 if explores else 0.0, config.rollout.proposal_temperature)
    if whole_pools(config, prompts) and not (served and config.production.share):
        return replace(proposal, pool=max(candidates, math.ceil(config.explore.calibration / prompts)))
    settings = config.explore
    return replace(proposal, pool=0, baseline=settings.baseline_answers, baseline_top_p=BASELINE_TOP_P)


def whole_pools(config: Config, prompts: int) -> bool:
    """Whether the reference answers all prompts before round 1; otherwise it answers each round's in that round."""
    return config.policies == "tables" or prompts <= WHOLE_POOL_ROUNDS * config.explore.prompts


def record_reference(journal: Journal, backends: Backends) -> None:
    """Version 0 of the run. Raises UserError where the run was started with another one."""

    def add() -> str:
        journal.add_version(backends.reference, "reference")
        return backends.reference.sha256

    if journal.once("reference", add) != backends.reference.sha256:
        raise UserError(
            f"run {journal.run_id} was started with another reference model: use the same one, or a new run folder"
        )


def record_sources(journal: Journal, backends: Backends) -> None:
    """What measures the limits. Raises UserError where the run was started with another version of a source."""
    stored = journal.once("limit-sources", lambda: dict(backends.measured_by))
    for limit, version in backends.measured_by.items():
        if stored[limit] != version:
            raise UserError(
                f"limit {limit}: run {journal.run_id} was started with the source `{stored[limit]}`, and it is now "
                f"`{version}`: no two meanings are mixed in one run; use the same one, or a new run folder"
            )


def check_reference(journal: Journal, backends: Backends, rollout: RolloutController) -> None:
    """Language models: the engines compute with the reference as the trainer does, known before any long work.

    Training scorers and drawing pools may take hours; an engine that mistakes this model would stop the run after them.
    """
    if backends.features == "hidden" and "publish-reference" not in {entry.phase for entry in journal.phases(0)}:
        rollout.publish(backends.reference)


def draw_pools(config: Config, journal: Journal, backends: Backends, rollout: RolloutController, online: bool) -> None:
    """The baseline's answers and the pool of proposals, or with many prompts the features' calibration set alone."""
    if not online:
        return
    proposal = proposal_of(config, len(backends.prompts))
    wide = Decoding(temperature=proposal.temperature, max_tokens=config.rollout.max_tokens)
    if proposal.baseline == 0:
        _draw_baseline(config, journal, backends, rollout, backends.prompts)
        if proposal.from_reference or backends.features == "hidden":
            rollout.pool("proposal", backends.prompts, backends.reference, proposal.pool, wide)
        return
    order = generator(config.seed, "calibration").permutation(len(backends.prompts))
    prompts = [backends.prompts[index] for index in order]
    if config.explore.loss == "xpo":
        _draw_baseline(config, journal, backends, rollout, prompts[: prompts_of_the_term(config, len(prompts))])
    if backends.features == "hidden":
        prompts = prompts[: config.explore.calibration]
        each = calibration_size(config, len(backends.prompts)) // len(prompts)
        rollout.pool(CALIBRATION, prompts, backends.reference, each, wide)


def prompts_of_the_term(config: Config, prompts: int) -> int:
    """Prompts whose baseline answers the XPO-style term has from the first fit on; later rounds add theirs."""
    return min(prompts, math.ceil(config.explore.calibration / config.explore.baseline_answers))


def calibration_size(config: Config, prompts: int) -> int:
    """How many answers the features are whitened on: the same number for each prompt that is asked for it."""
    pool = proposal_of(config, prompts).pool
    count = prompts if pool else min(prompts, config.explore.calibration)
    return count * (pool or math.ceil(config.explore.calibration / count))


def calibration_answers(journal: JournalReader) -> list[Response]:
    """Answers of the reference on which the features are whitened."""
    return journal.samples(0, CALIBRATION) or journal.samples(0, "proposal")


def _draw_baseline(
    config: Config, journal: Journal, backends: Backends, rollout: RolloutController, prompts: Sequence[Prompt]
) -> None:
    count = config.explore.baseline_answers
    if not callable(backends.baseline):
        version, decoding = backends.baseline
        rollout.pool("baseline", prompts, version, count, decoding)
        return
    baseline = backends.baseline(count)

    def add() -> int:
        answers = [answer for row in baseline.values() for answer in row]
        journal.add_samples("baseline", answers)
        return len(answers)

    journal.once("pool-baseline", add)


def offline_pairs(
    config: Config,
    journal: Journal,
    backends: Backends,
    rollout: RolloutController,
    feedback: FeedbackController,
    preferences: Preferences,
) -> None:
    """D_1: the pairs from before the first round, labelled like all others."""
    make_pairs = backends.offline

    def add() -> int:
        assert make_pairs is not None
        labelled = make_pairs(config.seed)
        answers = {answer.id: answer for item in labelled for answer in (item.pair.first, item.pair.second)}
        journal.add_samples("offline", list(answers.values()))
        journal.add_pairs(labelled, "offline")
        return len(labelled)

    if make_pairs is not None:
        journal.once("offline", add)
        if backends.left_out:
            journal.once(LEFT_OUT, lambda: dict(backends.left_out))
        labelled = [entry.labelled for entry in journal.pairs(0)]
    else:
        per_prompt = offline_answers(config.offline.pairs, len(backends.prompts))
        narrow = Decoding(top_p=OFFLINE_TOP_P, max_tokens=config.rollout.max_tokens)
        answers = rollout.pool("offline", backends.prompts, backends.reference, per_prompt, narrow)
        pairs = neighbours(answers, per_prompt, config.offline.pairs)
        if config.offline.extra:
            per_prompt = offline_answers(config.offline.extra, len(backends.prompts))
            whole = Decoding(max_tokens=config.rollout.max_tokens)
            answers = rollout.pool("extra", backends.prompts, backends.reference, per_prompt, whole)
            pairs += neighbours(answers, per_prompt, config.offline.extra, "0-extra-pair")
        journal.once("offline", lambda: journal.add_pair_questions(pairs))
        labelled = feedback.compare(pairs)
    preferences.extend(with_reward_share(labelled, config.offline.reward_share, config.seed))


def answers_to_measure(config: Config, journal: Journal, backends: Backends, online: bool) -> list[Response]:
    """The answers whose measured values teach before a policy has any: those of the offline pairs, or the reference's
    own where the pairs are other people's texts.

    A policy learns from other people's texts what they would have said, and then from its own answers. Its own
    answers are there already, drawn for the features. Sources that cost something (people, judges, endpoints) keep to
    the pairs.
    """
    pairs = [entry.labelled.pair for entry in journal.pairs(0)]
    of_pairs = [answer for pair in pairs for answer in (pair.first, pair.second)]
    if backends.world is not None or backends.offline is None or not online or not _is_measured_freely(config):
        return of_pairs
    groups = by_prompt(calibration_answers(journal)).values()
    return [answer for answers in groups if len(answers) > 1 for answer in answers] or of_pairs


def own_answers(config: Config, prompts: int) -> int:
    """For a plan: how many of the reference's own answers are measured; 0: the pairs' are."""
    if config.data is None or not config.online or not _is_measured_freely(config):
        return 0
    return calibration_size(config, prompts)


def _is_measured_freely(config: Config) -> bool:
    reward = config.computed_reward
    kinds = {entry.source.kind for entry in (*config.stated, *([] if reward is None else [reward]))}
    return kinds - {"reference"} <= set(FREE_SOURCES)


def offline_answers(pairs: int, prompts: int) -> int:
    """Answers per prompt for a number of pairs: a quarter more, since two equal answers make no pair."""
    return 2 * math.ceil(1.25 * pairs / prompts)


def with_reward_share(labelled: Sequence[LabelledPair], share: float, seed: int) -> list[LabelledPair]:
    """The pairs, all but a share of them without their label for helpfulness; at least one keeps it."""
    if share >= 1.0 or not labelled:
        return list(labelled)
    indices = set(generator(seed, "reward-share").permutation(len(labelled))[: max(1, round(share * len(labelled)))])
    return [item if index in indices else replace(item, helpful=Verdict.ABSTAIN) for index, item in enumerate(labelled)]


def neighbours(answers: Sequence[Response], per_prompt: int, most: int, name: str = "0-pair") -> list[Pair]:
    """At most `most` pairs of answers that were drawn one after the other, prompts in turn, without equal texts."""
    # methods that score the reference's answers themselves may have no pairs at all
    rows = [answers[start : start + per_prompt] for start in range(0, len(answers), max(1, per_prompt))]
    pairs = [
        Pair(f"{name}-{start}-{index}", row[start], row[start + 1])
        for start in range(0, per_prompt - 1, 2)
        for index, row in enumerate(rows)
        if row[start].token_ids != row[start + 1].token_ids
    ]
    return pairs[:most]
