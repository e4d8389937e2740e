"""Answers to the same prompts before and after training, sampled alike, with what the run measured of each.

Before is the reference; after is the released policy where there is one, else the newest. An answer that was sampled
with another decoding is not shown beside them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pddpo_ray.journal import JournalReader
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.parts.measuring import tables_of
from pddpo_ray.records import PolicyVersion, Response, Verdict
from pddpo_ray.report.text import short
from pddpo_ray.scorecard.cards import ASKED, cards

OF_THE_SCORECARD = (
    "The scorecard's prompts, in its order: both policies answer with the same decoding and the same seeds, so that"
    " what differs is what was learned. None is chosen by hand; marks of chat templates are left out."
)
FIRST_DRAWN = "The first sampled answer to each prompt, stored before it was labelled; none is chosen by hand."
SAME_DECODING = "Both policies were sampled with the same decoding."
OTHER_DECODING = "The reference was never sampled with the policy's decoding, so its answers are left out."
SCORES = {"reward_held_out": "help", "cost_held_out": "harm", "reward_own": "help", "cost_own": "harm"}
"""Scores of the scorecard by what they say of an answer; held-out models before the run's own."""


def from_files(recipe: Mapping[str, Any]) -> bool:
    """Whether a stored recipe reads files of real text: in runs before 0.3 a world of kind none."""
    return recipe.get("data") is not None or (recipe.get("world") or {}).get("kind") == "none"


def before_and_after(
    journal: JournalReader, most: int, released: int | None
) -> tuple[tuple[Response, ...], tuple[Response, ...], str]:
    """Answers of the reference and of the shown policy, and how they were drawn; the scorecard's, where it has any."""
    before = journal.samples(0, ASKED)
    policies = _by_rank(journal, released)
    if not before:
        after = next((own for policy in policies if (own := _own(journal, policy))), [])
        reference, alike = _of_reference(journal)
        said = SAME_DECODING if alike else OTHER_DECODING
        both = (_one_per_prompt(reference if alike else []), _one_per_prompt(after))
        prompts = _spread(sorted(both[0].keys() & both[1].keys() or both[0] or both[1]), most)
        before, after = ([own[name] for name in prompts if name in own] for own in both)
        return tuple(before), tuple(after), f"{FIRST_DRAWN} {said}"
    after = next((own for policy in policies if (own := _own(journal, policy, ASKED))), [])
    prompts = list(dict.fromkeys(one.prompt.id for one in before))[: max(most, 0)]
    kept = [tuple(one for one in answers if one.prompt.id in prompts) for answers in (before, after)]
    return kept[0], kept[1], OF_THE_SCORECARD


def author(journal: JournalReader, answers: Sequence[Response], released: int | None) -> str:
    """Who wrote the answers that are shown as those after training."""
    round_ = _round_of(journal, answers[0].policy_version) if answers else None
    if round_ is None:
        return "after"
    return f"after ({'released' if round_ == released else 'last'} policy, round {round_})"


def measured_words(
    journal: JournalReader, limits: Sequence[Limit], shown: Sequence[Response]
) -> dict[str, tuple[str, ...]]:
    """What was measured of each shown answer, by its id: values under limits, labels, scores of the scorecard; in their
    place the true ones, where the world knows them."""
    words: dict[str, list[str]] = defaultdict(list)
    wanted = {one.id for one in shown}
    for limit in limits:
        records = [one for one in journal.measurements(phase="measure-%", limit=limit.name) if one.answer in wanted]
        ids = list(dict.fromkeys(one.answer for one in records))
        for name, value in zip(ids, tables_of(records, [limit.name], ids).values[:, 0].tolist(), strict=True):
            if not math.isnan(value):
                words[name].append(_value(limit, value))
    for labelled in journal.safety():
        said = [one for one in labelled.labels if one in (Verdict.SAFE, Verdict.UNSAFE)]
        if labelled.response.id in wanted and said:
            unsafe = said.count(Verdict.UNSAFE)
            words[labelled.response.id].append(f"{labelled.constraint}: unsafe by {unsafe} of {len(said)} labels")
    for round_, card in cards(journal).items():
        for name, scores in _scores_of(journal, round_, card).items():
            words[name] += scores if name in wanted else []
    # a single label says less than the chance that it was drawn from
    words |= {name: worth_in_words(*true) for name, true in worth(journal).items() if name in wanted}
    return {name: tuple(said) for name, said in words.items() if said}


def _value(limit: Limit, value: float) -> str:
    """A value in words; a rate of a single verdict is a yes or a no."""
    verdict = {0.0: "no", 1.0: "yes"}.get(value) if limit.quantity.kind == "rate" else None
    return f"{limit.name}: {verdict or limit.quantity.text(value)}"


def _scores_of(journal: JournalReader, round_: int, card: Mapping[str, Any]) -> dict[str, list[str]]:
    """Help and harm of each answer of a round's scorecard, by its id."""
    rows: dict[str, list[Response]] = {}
    for answer in journal.samples(round_, ASKED):
        rows.setdefault(answer.prompt.id, []).append(answer)
    ids = [one.id for prompt in card["prompts"] for one in rows.get(prompt, [])]
    found: dict[str, list[str]] = defaultdict(list)
    told: set[str] = set()
    for name, what in SCORES.items():
        values = [value for row in card["scores"].get(name, []) for value in row]
        if what not in told and len(values) == len(ids):
            told |= {what} if values else set()
            for answer_id, value in zip(ids, values, strict=True):
                found[answer_id].append(f"{what} {short(value)}")
    return found


def _round_of(journal: JournalReader, version: int) -> int | None:
    return next((entry.round for entry in journal.versions() if entry.version.number == version), None)


def _by_rank(journal: JournalReader, released: int | None) -> list[PolicyVersion]:
    """The released policy first, then the others from the newest on."""
    policies = list(reversed(journal.policies))
    return sorted(policies, key=lambda policy: _round_of(journal, policy.number) != released)


def _own(journal: JournalReader, policy: PolicyVersion, purpose: str | None = None) -> list[Response]:
    """The policy's answers in its own round."""
    samples = journal.samples(_round_of(journal, policy.number), purpose)
    return [response for response in samples if response.policy_version == policy.number]


def _of_reference(journal: JournalReader) -> tuple[list[Response], bool]:
    """Answers of the reference, first those drawn as the policies are; whether there are such answers."""
    settings = journal.recipe.get("rollout") or {}
    plain = {"calibration", "proposal"} if settings.get("proposal_temperature", 1.0) == 1.0 else set()
    ranked: list[tuple[int, Response]] = []
    # Without a world the offline answers came from files: the reference did not write them.
    of_files = from_files(journal.recipe)
    for purpose in {phase.phase.removeprefix("pool-") for phase in journal.phases(0)} | plain | {"baseline"}:
        if not (of_files and purpose == "offline"):
            rank = 0 if purpose in plain else 1 if purpose == "baseline" else 2
            ranked += [(rank, response) for response in journal.samples(0, purpose)]
    if not ranked and not of_files:
        ranked = [(2, response) for response in journal.samples(0)]
    ranked = sorted(((rank, one) for rank, one in ranked if one.policy_version == 0), key=lambda item: item[0])
    return [response for _, response in ranked], bool(ranked) and ranked[0][0] == 0


def _one_per_prompt(responses: list[Response]) -> dict[str, Response]:
    """The first answer to each prompt, by the prompt's id."""
    return {one.prompt.id: one for one in reversed(responses)}


def _spread(prompts: Sequence[str], most: int) -> list[str]:
    """At most `most` of them, evenly spaced: neighbours ask alike."""
    return (
        [prompts[index * len(prompts) // most] for index in range(most)]
        if 0 < most < len(prompts)
        else [*prompts[: max(most, 0)]]
    )


def worth(journal: JournalReader) -> dict[str, tuple[float, float]]:
    """True reward, and chance of the label "unsafe", of first answers by id; empty where the truth is not known."""
    stored = [entry.payload.get("worth") or {} for entry in journal.phases(like="evaluate")]
    return {name: (reward, unsafe) for round_ in stored for name, (reward, unsafe) in round_.items()}


def worth_in_words(reward: float, unsafe: float) -> list[str]:
    harm = 100 * unsafe
    return [f"help {reward:+.1f}".replace("-", "−"), f"harm {harm:.0f} %" if harm >= 9.5 else f"harm {harm:.2g} %"]


def most_harmful_before(journal: JournalReader, released: int | None, most: int) -> list[tuple[str, str, str]]:
    """(prompt, answer before, answer after) with harm and help of each: the most harmful before first; no answer after
    is shown twice."""
    before, after, _ = before_and_after(journal, len(journal.prompts()), released)
    known, now = worth(journal), {one.prompt.id: one for one in after}
    chosen: dict[str, tuple[str, str, str]] = {}
    for old in sorted((one for one in before if one.id in known), key=lambda one: -known[one.id][1]):
        new = now.get(old.prompt.id)
        if new is not None and new.id in known:
            first, then = (f"{one.text} ({', '.join(worth_in_words(*known[one.id]))})" for one in (old, new))
            chosen.setdefault(new.text, (old.prompt.text, first, then))
    return list(chosen.values())[:most]
