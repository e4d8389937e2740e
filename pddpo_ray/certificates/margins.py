"""What certificates require of a run before it begins: how far below a limit the dual aims, draws of a test.

A multiplier that drives the estimate to the limit itself makes policies that no test can certify. With
`dual.margin: certificate` it aims below: where the test of a first candidate with `certificate.draws` draws certifies
four policies in five, at most half of what can be reached below the limit at all. The margin of a mean
shrinks with the spread of its answers, as each round estimates it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pddpo_ray.backends.backends import Backends
from pddpo_ray.certificates.ledger import TestedLimit, mixture_name
from pddpo_ray.certificates.round_draws import draws_each_round
from pddpo_ray.certificates.testing import first_of_rounds, tested_limits
from pddpo_ray.config import Config
from pddpo_ray.errors import UserError
from pddpo_ray.theory.certificates.power import ComingTest, draws_needed, fewest_draws

LATE = 12
"""A later candidate whose draws a plan states."""
SHARE = 0.25
"""True rate that a plan's draws are for, as a share of the limit."""
MOST = 50_000


@dataclass(frozen=True)
class Margin:
    """How far below a limit the dual aims, in units of its cost."""

    tested: TestedLimit | None
    kept: float
    wanted: float
    """What the coming test asks for; more than `kept` where too little can be reached below the limit."""
    test: ComingTest | None = None
    """Its margin is less where answers differ less than the worst ones could; None: the margin was given."""

    def line(self, name: str, limit: float) -> str:
        if self.tested is None or self.test is None:
            return f"the dual of {name} aims {self.kept:g} below the limit {limit:g}"
        aim = self.tested.amount(self.tested.limit - self.kept)
        least = ", or nearer where answers differ little" if self.test.varies else ""
        text = f"the dual of {name} aims at {aim}{least}; the limit is {self.tested.stated}"
        if not self.test.varies and self.kept < self.wanted:
            return f"{text}: it can hardly be certified with certificate.draws, which would take a margin twice as wide"
        return text


def coming_test(tested: TestedLimit, draws: int) -> ComingTest:
    """The test with this number of draws; its margins are in units of the cost."""
    (low, high), varies = tested.ends, tested.kind == "mean" and tested.people is None
    return ComingTest(tested.to_unit(tested.limit - tested.bias), high - low, draws, tested.level, varies)


def margins(config: Config, lowest: Mapping[str, float]) -> dict[str, Margin]:
    """Margin of every limit, by name. `lowest` has the lowest expected cost that can be reached, where it is known.

    Raises UserError where the margin of a test is asked for and nothing can be certified.
    """
    margin = config.dual.margin
    if isinstance(margin, float):
        return {name: Margin(None, margin, margin) for name in config.thresholds}
    by_name = {}
    for tested in tested_limits(config, {}, first_of_rounds(config)):
        test = coming_test(tested, config.certificate.draws)
        width = test.margin()
        room = 0.5 * max(0.0, tested.limit - lowest.get(tested.name, tested.low))
        by_name[tested.name] = Margin(tested, min(width, room), width, test)
    return by_name


def lowest_costs(backends: Backends) -> dict[str, float]:
    """Lowest expected cost under each limit that a world's answers allow; {} without a world."""
    if backends.world is None:
        return {}
    oracle = backends.world.oracle
    scales = {limit.name: limit.scale for limit in backends.held_limits}
    tables = [oracle.cost, *(limit.cost for limit in oracle.further)]
    least = [np.where(oracle.reference > 0, table, np.inf).min(axis=1) for table in tables]
    return {name: scale * float(oracle.prior @ low) for (name, scale), low in zip(scales.items(), least, strict=True)}


def draws_rows(config: Config) -> list[tuple[str, str, str]]:
    """For a plan: the draws that certify each limit, for the first candidate and a late one, and each mixture; [] where
    none can."""
    try:
        first, late = (tested_limits(config, {}, number) for number in (first_of_rounds(config), LATE))
    except UserError:
        return []
    rows = []
    for early, later in zip(first, late, strict=True):
        if early.people is not None:
            rows.append((early.name, *_with_people(early, later)))
            continue
        levels = (early.level, later.level)
        counts = [_count_text(_draws(early, level) if level else None) for level in levels]
        rows.append((early.name, _at_a_true_value(early), f"{counts[0]} draws, candidate {LATE} {counts[1]}"))
    return [*rows, *_mixture_rows(config)]


def _mixture_rows(config: Config) -> list[tuple[str, str, str]]:
    """The same for mixtures that their rounds' own draws certify, with how many draws those are."""
    rows = []
    limits = {limit.name: limit for limit in config.typed_limits}
    for number, first in enumerate(config.certificate.mixtures, start=1):
        rounds = config.rounds - first + 1
        for tested in tested_limits(config, {}, number):
            count, needed = rounds * draws_each_round(config, limits[tested.name]), _draws(tested, tested.level)
            note = ", too few" if needed is None or needed > count else ""
            text = f"{tested.name} {_at_a_true_value(tested)}"
            rows.append(
                (mixture_name(first, rounds), text, f"{_count_text(needed)} draws; its rounds have {count:,}{note}")
            )
    return rows


def _rate(tested: TestedLimit) -> float:
    """The true value that a plan's draws are for, as a number of a draw."""
    return SHARE * tested.to_unit(tested.limit - tested.bias) if tested.kind == "rate" else 0.0


def _draws(tested: TestedLimit, level: float) -> int | None:
    return draws_needed(tested.to_unit(tested.limit - tested.bias), _rate(tested), level, most=MOST)


def _at_a_true_value(tested: TestedLimit) -> str:
    true = f"at a true value of {tested.amount(tested.from_unit(_rate(tested)))}"
    return f"{tested.stated} {true if tested.kind == 'rate' else 'if every draw is at its best'}"


def _with_people(early: TestedLimit, later: TestedLimit) -> tuple[str, str]:
    """A model saves no labels on rare events: the fewest that people must give, whatever it says."""
    assert early.people is not None
    share = (early.limit - early.bias - early.low) / (early.high - early.low)
    counts = [
        _count_text(fewest_draws(share, limit.level)) if limit.level else _count_text(None) for limit in (early, later)
    ]
    note = f"by people, who see {100 * early.people:.3g} % of the draws"
    return f"{early.stated} {note}", f"{counts[0]} people's answers at least, candidate {LATE} {counts[1]}"


def _count_text(draws: int | None) -> str:
    """Rounded up to two digits or so: 1309 is about 1,310."""
    if draws is None:
        return f"over {MOST:,}"
    unit = 10 ** max(0, int(math.log10(draws)) - 2)
    return f"about {math.ceil(draws / unit) * unit:,}"
