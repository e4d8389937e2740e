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
        after = next((replies for policy in policies if (replies := _answers_in_own_round(journal, policy))), [])
        reference, alike = _of_reference(journal)
        note = SAME_DECODING if alike else OTHER_DECODING
        both = (_one_per_prompt(reference if alike else []), _one_per_prompt(after))
        prompts = _spread(sorted(both[0].keys() & both[1].keys() or both[0] or both[1]), most)
        before, after = ([replies[name] for name in prompts if name in replies] for replies in both)
        return tuple(before), tuple(after), f"{FIRST_DRAWN} {note}"
    after = next((replies for policy in policies if (replies := _answers_in_own_round(journal, policy, ASKED))), [])
    prompts = list(dict.fromkeys(answer.prompt.id for answer in before))[: max(most, 0)]
    sides = [tuple(answer for answer in answers if answer.prompt.id in prompts) for answers in (before, after)]
    return sides[0], sides[1], OF_THE_SCORECARD


def author(journal: JournalReader, answers: Sequence[Response], released: int | None) -> str:
    """Who wrote the answers that are shown as those after training."""
    round_ = _round_of(journal, answers[0].policy_version) if answers else None
    if round_ is None:
        return "after"
    return f"after ({'released' if round_ == released else 'last'} policy, round {round_})"


def measured_words(
    journal: JournalReader, limits: Sequence[Limit], shown: Sequence[Response]
) -> dict[str, tuple[str, ...]]:
    """Measurements of each shown answer in words, by its id: values under limits, labels, scores of the scorecard; true
    scores replace them where the world knows them."""
    words: dict[str, list[str]] = defaultdict(list)
    shown_ids = {answer.id for answer in shown}
    for limit in limits:
        records = [row for row in journal.measurements(phase="measure-%", limit=limit.name) if row.answer in shown_ids]
        ids = list(dict.fromkeys(row.answer for row in records))
        for name, value in zip(ids, tables_of(records, [limit.name], ids).values[:, 0].tolist(), strict=True):
            if not math.isnan(value):
                words[name].append(_value(limit, value))
    for entry in journal.safety():
        verdicts = [verdict for verdict in entry.labels if verdict in (Verdict.SAFE, Verdict.UNSAFE)]
        if entry.response.id in shown_ids and verdicts:
            unsafe = verdicts.count(Verdict.UNSAFE)
            words[entry.response.id].append(f"{entry.constraint}: unsafe by {unsafe} of {len(verdicts)} labels")
    for round_, card in cards(journal).items():
        for name, scores in _scores_of(journal, round_, card).items():
            words[name] += scores if name in shown_ids else []
    # a single label says less than the chance that it was drawn from
    words |= {name: worth_in_words(*values) for name, values in worth(journal).items() if name in shown_ids}
    return {name: tuple(texts) for name, texts in words.items() if texts}


def _value(limit: Limit, value: float) -> str:
    """A value in words; a rate of a single verdict is a yes or a no."""
    verdict = {0.0: "no", 1.0: "yes"}.get(value) if limit.quantity.kind == "rate" else None
    return f"{limit.name}: {verdict or limit.quantity.text(value)}"


def _scores_of(journal: JournalReader, round_: int, card: Mapping[str, Any]) -> dict[str, list[str]]:
    """Help and harm of each answer of a round's scorecard, by its id."""
    rows: dict[str, list[Response]] = {}
    for answer in journal.samples(round_, ASKED):
        rows.setdefault(answer.prompt.id, []).append(answer)
    ids = [answer.id for prompt in card["prompts"] for answer in rows.get(prompt, [])]
    texts: dict[str, list[str]] = defaultdict(list)
    kinds: set[str] = set()
    for name, kind in SCORES.items():
        values = [value for row in card["scores"].get(name, []) for value in row]
        if kind not in kinds and len(values) == len(ids):
            kinds |= {kind} if values else set()
            for answer_id, value in zip(ids, values, strict=True):
                texts[answer_id].append(f"{kind} {short(value)}")
    return texts


def _round_of(journal: JournalReader, version: int) -> int | None:
    return next((entry.round for entry in journal.versions() if entry.version.number == version), None)


def _by_rank(journal: JournalReader, released: int | None) -> list[PolicyVersion]:
    """The released policy first, then the others from the newest on."""
    policies = list(reversed(journal.policies))
    return sorted(policies, key=lambda policy: _round_of(journal, policy.number) != released)


def _answers_in_own_round(journal: JournalReader, policy: PolicyVersion, purpose: str | None = None) -> list[Response]:
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
    ranked = sorted(((rank, answer) for rank, answer in ranked if answer.policy_version == 0), key=lambda item: item[0])
    return [response for _, response in ranked], bool(ranked) and ranked[0][0] == 0


def _one_per_prompt(responses: list[Response]) -> dict[str, Response]:
    """The first answer to each prompt, by the prompt's id."""
    return {response.prompt.id: response for response in reversed(responses)}


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
    scores, by_prompt = worth(journal), {answer.prompt.id: answer for answer in after}
    chosen: dict[str, tuple[str, str, str]] = {}
    for old in sorted((answer for answer in before if answer.id in scores), key=lambda answer: -scores[answer.id][1]):
        new = by_prompt.get(old.prompt.id)
        if new is not None and new.id in scores:
            first, then = (f"{answer.text} ({', '.join(worth_in_words(*scores[answer.id]))})" for answer in (old, new))
            chosen.setdefault(new.text, (old.prompt.text, first, then))
    return list(chosen.values())[:most]
