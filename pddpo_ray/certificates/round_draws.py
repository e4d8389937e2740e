"""Mixtures that the rounds' own draws certify: the labels that move the multipliers serve here too.

    ledger: mixture, tails ──► round 1: policy, draws, labels ──► round 2 ──► ... ──► looked at after the last round

Every round draws equally many prompts independently of each other, for its policy alone; the policy may depend on all
draws before (theory/certificates/measured_draws.py). A draw is a prompt: its one answer, or the mean of its answers.
Under a limit on a prompt set only the draws from that set count. Of a limit that people audit an answer's number is
f + (xi/q)(y - f), xi for exactly a share q of a round's answers: given which, prod (1 - c Z) over the round is at most
(1 - c E[y])^n on average, for the logarithm is concave; so the looks at ends of rounds are valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pddpo_ray.certificates.ledger import BATCH, Candidate, Entry, Numbers, TestedLimit, enter, mixture_name
from pddpo_ray.certificates.testing import BESIDE_PEOPLE, decoding_of, estimated_only, tested_limits
from pddpo_ray.config import Config
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.parts.due_labels import rounds_labelled_in
from pddpo_ray.parts.held_limit import answers_each
from pddpo_ray.parts.limits import ANSWERS
from pddpo_ray.parts.measuring import labels_of_answers, numbers_of, table_of
from pddpo_ray.theory.estimates.prompt_sets import turns

STATEMENT = "the run's prompts, drawn independently in every round; the policies were trained on them"


def enter_mixtures(config: Config, journal: Journal) -> None:
    """Writes the recipe's mixtures into the ledger, before round 1. Raises UserError where none could be certified."""
    before = journal.round
    shares = {entry.limit.name: share_of_round(config, entry) for entry in config.stated if entry.audited is not None}
    for number, first in enumerate(config.certificate.mixtures, start=1):
        limits = tuple(_of_rounds(limit, shares.get(limit.name)) for limit in tested_limits(config, {}, number))
        enter(
            journal,
            Candidate(
                number=number,
                policy=mixture_name(first, 0),
                versions=(),
                limits=limits,
                decoding=decoding_of(config),
                statement=STATEMENT,
                estimated=estimated_only(config),
                first_round=first,
            ),
        )
    journal.round = before


def add_draws_of_round(config: Config, journal: Journal, number: int) -> None:
    """Adds policy and draws of each round whose labels are complete to its mixtures, in order, as a round closes."""
    for round_ in rounds_labelled_in(journal, number):
        _add_draws(config, journal, round_)
    journal.round = number


def _add_draws(config: Config, journal: Journal, number: int) -> None:
    candidates = [candidate for candidate, first in enumerate(config.certificate.mixtures, start=1) if number >= first]
    if not candidates:
        return
    payload = _of_round(config, journal, number)
    version = journal.policies[number - 1]
    authors = {answer.policy_version for answer in journal.samples(number, "cost")}
    if authors != {version.number}:
        raise RunError(f"round {number}: its answers are those of the versions {sorted(authors)}, not {version.number}")
    payload["version"] = {"name": version.name, "number": version.number, "sha256": version.sha256}
    for candidate in candidates:
        journal.round = -candidate
        journal.once(f"{BATCH}{number}", lambda: payload)


def draws_each_round(config: Config, limit: Limit) -> int:
    """Draws of a round that count for a limit."""
    return len(_positions(config, limit, config.feedback.responses // answers_each(config.stated)))


def share_of_round(config: Config, stated_limit: StatedLimit) -> float:
    """q: the part of a round's answers from the limit's prompt set that an audit shows to people, exactly."""
    assert stated_limit.audited is not None
    return min(1.0, stated_limit.audited / (answers_each(config.stated) * draws_each_round(config, stated_limit.limit)))


def _of_rounds(tested: TestedLimit, share: float | None) -> TestedLimit:
    """The test on draws of rounds: people see exactly a share of them, and no coin is tossed."""
    if share is None or tested.people is None:
        return tested
    machine = tested.source.split(BESIDE_PEOPLE)[-1]
    source = f"people, who saw {100 * share:.3g} % of each round's answers, drawn evenly{BESIDE_PEOPLE}{machine}"
    return replace(tested, people=share, source=source)


def mixtures_of(ledger: Sequence[Entry]) -> list[Entry]:
    """Lines of mixtures that their rounds' own draws certify."""
    return [entry for entry in ledger if entry.candidate.first_round is not None]


@dataclass(frozen=True)
class DrawnAnswer:
    """One answer of a round under one limit, as its measurements have it."""

    answer: str
    """Its id."""
    number: float | None
    """What a test bets on: the unsafe share of its labels, or its cost as people's audit corrects it; None: missing."""
    worst: float | None
    """The same before an audit, with what is missing counted against the limit; None: nobody was asked."""


def drawn_answers(config: Config, journal: JournalReader, number: int, limit: str) -> list[DrawnAnswer]:
    """What was measured of a round's answers under a limit, in the order in which they were drawn."""
    stated_limit = next(entry for entry in config.stated if entry.limit.name == limit)
    if stated_limit.labelled:
        ids = [answer.id for answer in journal.samples(number, "cost")]
        labels = labels_of_answers(journal, [number], limit, ids)
        shares = numbers_of(labels.values[:, 0])
        missing = {row for row, _ in labels.missing}
        return [
            DrawnAnswer(answer_id, share, 1.0 if row in missing else share)
            for row, (answer_id, share) in enumerate(zip(ids, shares, strict=True))
        ]
    ids = [answer_id for entry in journal.phases(number, like=ANSWERS) for answer_id in entry.payload["ids"]]
    records = journal.measurements(number, ANSWERS, limit)
    table = table_of(records, [stated_limit], ids, config.dual.cost_max)
    highest = (stated_limit.limit.cost_range or (None, None))[1]
    columns = numbers_of(table.numbers[:, 0]), numbers_of(table.relative[:, 0]), table.failed[:, 0]
    return [
        DrawnAnswer(answer_id, bet, highest if failed else cost)
        for answer_id, bet, cost, failed in zip(ids, *columns, strict=True)
    ]


def _of_round(config: Config, journal: JournalReader, number: int) -> dict[str, Any]:
    """Draws of a round: prompts with one or more answers each, which the first one's id names."""
    draws: dict[str, list[str]] = {}
    numbers: dict[str, Numbers] = {}
    each = answers_each(config.stated)
    for limit in config.typed_limits:
        answers = drawn_answers(config, journal, number, limit.name)
        by_draw = [answers[start : start + each] for start in range(0, len(answers), each)]
        positions = _positions(config, limit, len(by_draw))
        draws[limit.name] = [by_draw[position][0].answer for position in positions]
        numbers[limit.name] = [_mean([answer.number for answer in by_draw[position]]) for position in positions]
    return {"draws": draws, "numbers": numbers}


def _mean(costs: Numbers) -> float | None:
    """None: an answer of the draw has no number, and so the draw has none."""
    values = [cost for cost in costs if cost is not None]
    return sum(values) / len(values) if len(values) == len(costs) else None


def _positions(config: Config, limit: Limit, count: int) -> list[int]:
    """Which of a round's draws are from a limit's prompt set; the same in every round."""
    sets, over = config.prompt_sets, limit.quantity.over
    if sets is None or over is None:
        return list(range(count))
    return [index for index, turn in enumerate(turns(sets.shares, count)) if sets.names[turn] == over]
