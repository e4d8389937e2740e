"""How much a recipe computes and asks before its first round and in each round, as pure functions of the recipe.

Answers are counted exactly for the number of prompts that is given, but for baseline answers to prompts that come again
in a later round, which are fewer. Files of real text may hold fewer prompts than the recipe asks for; their number is
known once they are read. Tokens are at most: an answer counts with its longest length. Two fits are counted in a
round, one too many for methods with a single stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pddpo_ray.config import Config, FitConfig, ModelFeedback, TextWorldConfig
from pddpo_ray.config.sections.scorecard import BENIGN_ASKED, PAIRS_RANKED
from pddpo_ray.config.sections.trainer import Stage
from pddpo_ray.driver.offline_setup import (
    calibration_size,
    offline_answers,
    own_answers,
    prompts_of_the_term,
    proposal_of,
)
from pddpo_ray.parts.fitting import with_steps
from pddpo_ray.registry import code_of
from pddpo_ray.worlds.text.family import grammar_of

STRETCHES = {"before": "before round 1", "first_round": "round 1", "round": "each later round"}


FIRST: tuple[Stage, ...] = ("first_reward", "first_cost")
LATER: tuple[Stage, ...] = ("reward", "cost")


@dataclass(frozen=True)
class Work:
    """One stretch of a run."""

    answers: Mapping[str, int] = field(default_factory=dict)
    """Answers that the engines draw, by purpose."""
    features: int = 0
    """Answers whose features the trainer computes."""
    log_probs: int = 0
    """Answers that the trainer scores outside of fits."""
    prepared: int = 0
    """Texts of fits whose log-probability under the fit's base is computed."""
    fits: int = 0
    """Fits of the policy."""
    fitted_pairs: int = 0
    """Pairs in all optimiser steps of the policy's fits."""
    loads: int = 0
    """Versions that the trainer reads back, to begin a fit with them."""
    scorers: int = 0
    """Reward and cost models that are trained."""
    scorer_pairs: int = 0
    """Pairs in all optimiser steps of reward and cost models."""
    scored: int = 0
    """Answers that reward and cost models score; one that both score counts twice."""
    deliveries: int = 0
    """Versions that are handed to an engine, and verified there."""

    def tokens(self, longest: int) -> int:
        """Tokens that the engines write, at most."""
        return longest * sum(self.answers.values())


def prompts_of(config: Config) -> int:
    """Number of different prompts, of files at most; 0 for a table."""
    data, world = config.data, config.world
    if data is not None:
        return data.prompt_count if data.prompts or config.prompts else min(data.prompt_count, config.offline.pairs)
    return len(grammar_of(world).prompt_ids) if isinstance(world, TextWorldConfig) else 0


def work_before(config: Config, prompts: int) -> Work:
    """What is done once, before the first round, with a number of different prompts."""
    if config.policies != "language models":
        return Work()
    return _with_scorecard(config, _work_before(config, prompts), prompts, first=True)


def _work_before(config: Config, prompts: int) -> Work:
    answers: dict[str, int] = {}
    if isinstance(config.world, TextWorldConfig):
        answers["offline"] = prompts * offline_answers(config.offline.pairs, prompts)
        if config.offline.extra:
            answers["extra"] = prompts * offline_answers(config.offline.extra, prompts)
    models = len(config.trained_scorers)
    if models and isinstance(config.world, TextWorldConfig):
        answers["scorers"] = prompts * 2 * -(-config.scorers.pairs // prompts)
    by_method = config.traits.policy_gradient
    pairs = config.scorers.pairs if "scorers" in answers else config.offline.pairs
    scorer_pairs = models * _scorer_pairs(config, pairs) + 2 * by_method * _scorer_pairs(config, config.offline.pairs)
    frozen = 2 * models * pairs if config.scorers.parameters == "head" else 0
    answers |= _answers_of_the_reference(config, prompts)
    once = Work(answers, prepared=frozen, scorers=models + 2 * by_method, scorer_pairs=scorer_pairs, deliveries=1)
    if not config.online:
        return once
    once = _with_comparison(config, once)
    answers = dict(once.answers)
    proposal = proposal_of(config, prompts)
    whitened = calibration_size(config, prompts)
    if proposal.baseline:
        answers["calibration"] = whitened
        if config.explore.loss == "xpo":
            answers["baseline"] = prompts_of_the_term(config, prompts) * config.explore.baseline_answers
        return replace(once, answers=answers, features=whitened + answers.get("baseline", 0))
    baseline = prompts * config.explore.baseline_answers
    answers |= {"baseline": baseline, "proposal": prompts * proposal.pool}
    return replace(once, answers=answers, features=baseline + whitened)


def _scorer_pairs(config: Config, pairs: int) -> int:
    """Pairs in the steps of a score model; a head alone learns from texts that are read once."""
    if config.scorers.parameters == "head":
        return 0
    return _pairs_of(config.scorers.optimiser, round((1.0 - config.scorers.held_out) * pairs))


def _answers_of_the_reference(config: Config, prompts: int) -> dict[str, int]:
    """What the method draws from the reference before round 1, by what it is for."""
    of_method = code_of("methods", config.algorithm, "reference_answers")
    return {} if of_method is None else of_method(config, prompts)


def _with_comparison(config: Config, once: Work) -> Work:
    """The rounds of offline PD-DPO that an online run on a text world makes first, if any."""
    rounds, pairs = config.offline.compare_rounds, config.offline.pairs
    if not rounds or not isinstance(config.world, TextWorldConfig):
        return once
    trainer = config.trainer.alone
    once_each = sum(_pairs_of(trainer.of_stage(stage), pairs) for stage in FIRST)
    fitted = once_each + (rounds - 1) * _pairs_of(trainer.of_stage("cost"), pairs)
    return replace(
        once,
        answers={**once.answers, "comparison": rounds * config.feedback.responses},
        fits=1 + rounds,
        fitted_pairs=fitted,
        prepared=once.prepared + 2 * pairs * (2 + rounds),
        deliveries=once.deliveries + rounds,
    )


def work_of_a_round(config: Config, prompts: int, first: bool = False) -> Work:
    """What each round does; the first one's fits have settings of their own. Later ones are counted in the middle."""
    if config.policies != "language models":
        return Work()
    return _with_scorecard(config, _work_of_a_round(config, prompts, first), prompts)


def _with_scorecard(config: Config, once: Work, prompts: int, *, first: bool = False) -> Work:
    """Adds the scorecard: its answers (at most), their log-probabilities and scores, the scorers that it trains."""
    card, has_held_out = config.scorecard, config.data is not None and config.data.held_out > 0
    prompt_count = config.scorecard_prompts if has_held_out else min(config.scorecard_prompts, prompts)
    if not prompt_count:
        return once
    answers = prompt_count * card.answers
    drawn = {"scorecard": answers}
    if config.data is not None:
        drawn["scorecard-benign"] = BENIGN_ASKED
    pairs = 2 * PAIRS_RANKED * has_held_out
    trained = card.used.count(None)
    own_scores = 2 if config.compares and isinstance(config.feedback, ModelFeedback) else 0
    return replace(
        once,
        answers={**once.answers, **drawn},
        log_probs=once.log_probs + pairs + (0 if first else 2 * answers),
        scored=once.scored + (own_scores + len(card.used)) * answers,
        scorers=once.scorers + first * trained,
        scorer_pairs=once.scorer_pairs + first * trained * _scorer_pairs(config, _held_out_pairs(config)),
    )


def _held_out_pairs(config: Config) -> int:
    """Pairs that `data.held_out` keeps from the run, estimated from the run's own pairs."""
    assert config.data is not None
    return round(config.offline.pairs * config.data.held_out / (1.0 - config.data.held_out))


def _work_of_a_round(config: Config, prompts: int, first: bool) -> Work:
    answers = {"cost": config.feedback.responses}
    trainer, offline = config.trainer, config.offline.pairs
    stages = FIRST if first else LATER
    own_count = own_answers(config, prompts)
    newest = bool(own_count) and not first and trainer.measured == "newest"
    fitted = _pairs_of(trainer.of_stage(stages[0]), offline)
    if newest:
        fitted += _pairs_of(trainer.of_stage(stages[1]), config.feedback.responses // 2)
    elif own_count:
        fitted += _pairs_of_own_answers(config, own_count, prompts, stages[1])
    else:
        fitted += _pairs_of(trainer.of_stage(stages[1]), offline)
    new = 0 if first or not config.online else config.pairs_asked
    rows = offline if first else offline + round(new * config.rounds / 2)
    models = config.asked_models if isinstance(config.feedback, ModelFeedback) else ()
    # the reference's numbers are kept from round to round; the cost fit's base, the reward policy, is another each time
    measured = (0 if newest else own_count) + (0 if first else config.feedback.responses)
    prepared = 2 * (rows if first else new) + (2 * measured if own_count else 2 * rows)
    own_scores = 2 if config.signal == "cost_model" else 1
    scored = own_scores * config.feedback.responses if "cost" in models else 0
    # the reward fit begins from the last one; the cost fit too, or from three versions whose difference it carries over
    loads = 0 if first else 1 + {"carried": 3, "previous": 1, "reward": 0}[trainer.warm_start]
    once = Work(
        answers,
        prepared=prepared,
        fits=len(stages),
        fitted_pairs=fitted,
        loads=loads,
        scored=scored,
        deliveries=1,
    )
    if not config.online:
        return once
    proposal = proposal_of(config, prompts)
    prompt_count = config.explore.prompts
    answers["candidate"] = prompt_count * (proposal.candidates - proposal.from_reference)
    if proposal.pool == 0 and proposal.from_reference:
        answers["proposal"] = prompt_count * proposal.from_reference
    if proposal.baseline:
        answers["baseline"] = prompt_count * proposal.baseline
    candidates = prompt_count * proposal.candidates
    return replace(
        once,
        features=candidates + answers.get("baseline", 0),
        log_probs=2 * candidates,
        scored=scored + 2 * len(models) * config.pairs_asked,
        deliveries=2 if "proposal" in answers or "baseline" in answers else 1,
    )


def rows_of_own(rows: int, prompts: int) -> int:
    """Pairs of answers to one prompt, all of them, where the own answers are spread over the prompts."""
    return rows * max(1, rows // max(1, prompts) - 1) // 2


def _pairs_of_own_answers(config: Config, own_count: int, prompts: int, stage: Stage) -> int:
    """Pairs of texts in the stage that own answers teach: its steps read every answer of their pairs once."""
    rows = rows_of_own(own_count, prompts)
    return round(_pairs_of(config.trainer.of_stage(stage), rows) * own_count / 2 / rows)


def _pairs_of(fit: FitConfig, rows: int) -> int:
    settings = with_steps(fit, rows)
    return settings.steps * settings.batch_pairs


def work(config: Config, prompts: int | None = None) -> dict[str, dict[str, Any]]:
    """The work as plain values, for `--json`; for the most prompts that the recipe allows where `prompts` is None."""
    longest = config.rollout.max_tokens
    count = prompts_of(config) if prompts is None else prompts
    stretches = {"before": work_before(config, count), "first_round": work_of_a_round(config, count, first=True)}
    stretches["round"] = work_of_a_round(config, count)
    return {name: {**asdict(stretch), "tokens": stretch.tokens(longest)} for name, stretch in stretches.items()}


def work_rows(plan: Mapping[str, Mapping[str, Any]]) -> list[Sequence[str]]:
    """The work for a reader: what is drawn, and below it what is computed."""
    computed = {
        "features": "features",
        "log_probs": "log-probabilities",
        "prepared": "texts of fits under their base",
        "fitted_pairs": "pairs through the policy's fits",
        "scorer_pairs": "pairs through the scorers' fits",
        "scored": "scores of reward and cost models",
        "deliveries": "deliveries to each engine",
    }
    rows: list[Sequence[str]] = []
    for name, title in STRETCHES.items():
        span = plan[name]
        parts = ", ".join(f"{purpose} {count:,}" for purpose, count in span["answers"].items())
        rows.append((title, f"{sum(span['answers'].values()):,} answers", f"at most {span['tokens']:,} tokens", parts))
        rows += [("", f"{span[key]:,}", label, "") for key, label in computed.items() if span[key]]
    return rows
