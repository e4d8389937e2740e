"""About how long a recipe takes before anything is measured: its plan's own counts, at the speed of one usual core.

`--calibrate` measures the machine itself; this says beforehand which sizes are worth writing into a recipe.
"""

from __future__ import annotations

from dataclasses import dataclass

from pddpo_ray.config import Config
from pddpo_ray.plan.calibration import Costs, seconds_of_run
from pddpo_ray.plan.cost_model import work

PASSES, DRAWS = 1.1e11, 1.6e10
"""Operations a second of one core with AVX-512, of whole texts and of tokens drawn one by one (SmolLM2 in float32,
docs/real-model.md); a core without AVX-512 takes about twice as long."""
START_S, HANDED_S = 20.0, 4.0


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

    def costs(self, cores: int) -> Costs:
        """Seconds of what a plan counts: two operations a weight and token, three times that with the gradient."""
        token = 2.0 * self.parameters / (PASSES * cores)
        text = token * (self.prompt + self.answer)
        return Costs(
            answers=self.draw_s(cores),
            features=text,
            log_probs=text,
            prepared=text,
            fits=HANDED_S,
            fitted_pairs=3.0 * token * self.pair,
            loads=HANDED_S,
            scorers=HANDED_S,
            scorer_pairs=token * self.pair,
            scored=text,
            deliveries=HANDED_S,
            start=START_S,
        )


def run_seconds(config: Config, texts: Texts, cores: int) -> float:
    """Of the whole run with its certificate, whose draws are counted to the last that it may take."""
    costs = texts.costs(cores)
    drawn = config.certificate.draws if config.certificate.certify == "end" else 0
    return seconds_of_run(work(config), costs, config.rounds)["run"] + drawn * costs.answers
