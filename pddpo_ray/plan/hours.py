"""About how long a recipe takes: its plan's own counts, at the speed of one usual core. Nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pddpo_ray.config import Config
from pddpo_ray.plan.cost_model import work

PASSES, DRAWS = 1.1e11, 1.6e10
"""Operations a second of one core with AVX-512, of whole texts and of tokens drawn one by one (SmolLM2 in float32,
docs/real-model.md); a core without AVX-512 takes about twice as long."""
START_S, HANDED_S = 20.0, 4.0
"""Seconds until the parts are up, and to hand one version to another part."""


@dataclass(frozen=True)
class Texts:
    """A model's size, and the tokens of a usual text."""

    parameters: int
    prompt: float
    answer: float
    """Of the model's own answers."""
    pair: float
    """Of both texts of a pair, prompts included."""

    def draw_s(self, cores: int) -> float:
        """Seconds of one answer."""
        return 2.0 * self.parameters * self.answer / (DRAWS * cores)

    def seconds_of_one(self, cores: int) -> dict[str, float]:
        """Of one item, by the names of a plan's counts: 2 operations a weight and token, 6 with the gradient."""
        token = 2.0 * self.parameters / (PASSES * cores)
        passes = dict.fromkeys(("features", "log_probs", "prepared", "scored"), token * (self.prompt + self.answer))
        handed = dict.fromkeys(("fits", "loads", "scorers", "deliveries"), HANDED_S)
        pairs = {"fitted_pairs": 3.0 * token * self.pair, "scorer_pairs": token * self.pair}
        return {"answers": self.draw_s(cores), **passes, **handed, **pairs}


def run_seconds(config: Config, texts: Texts, cores: int) -> float:
    """Of the whole run with its certificate, counted with all the draws that it may take."""
    each_s, stretches = texts.seconds_of_one(cores), work(config)
    drawn = config.certificate.draws if config.certificate.certify == "end" else 0
    rounds = seconds_of(stretches["first_round"], each_s) + (config.rounds - 1) * seconds_of(stretches["round"], each_s)
    return START_S + seconds_of(stretches["before"], each_s) + rounds + drawn * each_s["answers"]


def seconds_of(stretch: Mapping[str, Any], phase: Mapping[str, float]) -> float:
    """Seconds of one stretch of a plan's `work`. People's and judges' labels come on top."""
    counts = {**stretch, "answers": sum(stretch["answers"].values())}
    return sum(counts[name] * seconds for name, seconds in phase.items() if name in counts)
