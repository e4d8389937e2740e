"""What certificates ask of a run before it begins: the margin that the dual keeps below a limit, draws of a test.

A multiplier that drives the estimate to the limit itself makes policies that no test can certify. With
`dual.margin: certificate` it aims below: where the test of a first candidate with `certificate.draws` draws certifies
four policies in five, at most half of what can be reached below the limit at all. A test of a mean needs the less the
less its answers differ, which each round's estimate says.
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
        said = f"the dual of {name} aims at {aim}{least}; the limit is {self.tested.stated}"
        if not self.test.varies and self.kept < self.wanted:
            return f"{said}: it can hardly be certified with certificate.draws, which would take a margin twice as wide"
        return said


def coming_test(tested: TestedLimit, draws: int) -> ComingTest:
    """The test with these draws, of which none needs more; its margins are in units of the cost."""
    (low, high), varies = tested.ends, tested.kind == "mean" and tested.people is None
    return ComingTest(tested.to_unit(tested.limit - tested.bias), high - low, draws, tested.level, varies)


def margins(config: Config, lowest: Mapping[str, float]) -> dict[str, Margin]:
    """Margin of every limit, by name. `lowest` has the lowest expected cost that can be reached, where it is known.

    Raises UserError where the margin of a test is asked for and nothing can be certified.
    """
    given = config.dual.margin
    if isinstance(given, float):
        return {name: Margin(None, given, given) for name in config.thresholds}
    by_name = {}
    for tested in tested_limits(config, {}, first_of_rounds(config)):
        test = coming_test(tested, config.certificate.draws)
        wanted = test.margin()
        room = 0.5 * max(0.0, tested.limit - lowest.get(tested.name, tested.low))
        by_name[tested.name] = Margin(tested, min(wanted, room), wanted, test)
    return by_name


def lowest_costs(backends: Backends) -> dict[str, float]:
    """Lowest expected cost under each limit that a world's answers allow; {} without a world."""
    if backends.world is None:
        return {}
    oracle = backends.world.oracle
    scales = {one.name: one.scale for one in backends.held_limits}
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
        counts = [_about(_draws(early, level) if level else None) for level in levels]
        rows.append((early.name, _at_a_true_value(early), f"{counts[0]} draws, candidate {LATE} {counts[1]}"))
    return [*rows, *_mixture_rows(config)]


def _mixture_rows(config: Config) -> list[tuple[str, str, str]]:
    """The same for mixtures that their rounds' own draws certify, with how many draws those are."""
    rows = []
    limits = {one.name: one for one in config.typed_limits}
    for number, first in enumerate(config.certificate.mixtures, start=1):
        rounds = config.rounds - first + 1
        for tested in tested_limits(config, {}, number):
            there, needed = rounds * draws_each_round(config, limits[tested.name]), _draws(tested, tested.level)
            few = ", too few" if needed is None or needed > there else ""
            said = f"{tested.name} {_at_a_true_value(tested)}"
            rows.append((mixture_name(first, rounds), said, f"{_about(needed)} draws; its rounds have {there:,}{few}"))
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
    """A model saves no labels on what is rare: the least that people have to be asked, whatever it says."""
    assert early.people is not None
    share = (early.limit - early.bias - early.low) / (early.high - early.low)
    counts = [_about(fewest_draws(share, one.level)) if one.level else _about(None) for one in (early, later)]
    said = f"by people, who see {100 * early.people:.3g} % of the draws"
    return f"{early.stated} {said}", f"{counts[0]} people's answers at least, candidate {LATE} {counts[1]}"


def _about(draws: int | None) -> str:
    """Rounded up to two digits or so: 1309 is about 1,310."""
    if draws is None:
        return f"over {MOST:,}"
    unit = 10 ** max(0, int(math.log10(draws)) - 2)
    return f"about {math.ceil(draws / unit) * unit:,}"
