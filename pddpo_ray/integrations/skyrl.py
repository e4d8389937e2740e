"""Limits inside SkyRL: a text environment of yours whose last reward is the score under all limits.

    # environment.py
    from actors.limit_controller import SharedLimits
    from pddpo_ray.integrations.skyrl import limited

    class Mine(BaseTextEnv): ...

    Limited = limited(Mine, SharedLimits("limits.yaml", journal="out/limits.jsonl", answers_a_step=1024))
    register(id="limited", entry_point=Limited)

SkyRL makes an environment for each answer. The model's last turn is the measured answer; earlier turns
get the reward 0, and what they earned is added to the reward that is scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pddpo_ray.integrations.answer_scores import Scored, Scorer, asked_for
from pddpo_ray.integrations.turns import prompt_text


def limited(environment: type[Any], limits: Scorer) -> type[Any]:
    """A class like `environment`, a subclass of skyrl_gym's BaseTextEnv, whose episodes are scored under the limits.

    Its `extras`, the columns of the data set, are the row of limits (`set`, `reference`, and a `split` other than
    "train" for what moves no multiplier). `get_metrics` has `helpful`, `limit/NAME`, `missing/NAME` and
    `multiplier/NAME` too; what has no number is left out.
    """

    class Limited(environment):  # type: ignore[misc]
        def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
            row = dict(extras or {})
            super().__init__(env_config, row)
            self._row, self._prompt, self._group, self._reward_so_far = row, "", "", 0.0
            self._figures: dict[str, float] = {}

        def init(self, prompt: Sequence[Mapping[str, str]]) -> Any:
            result = super().init(prompt)
            self._group = prompt_text(prompt)
            # an environment may ask more than its row does
            self._prompt = prompt_text(result[0]) if isinstance(result, tuple) else self._group
            return result

        def step(self, action: str) -> Any:
            out = super().step(action)
            self._reward_so_far += float(out["reward"])
            if not out["done"]:
                return {**out, "reward": 0.0}
            request = asked_for([self._prompt], [action], [self._reward_so_far], [self._row], [self._group])
            scored = limits.score(request)
            self._figures = _figures(self._reward_so_far, scored)
            return {**out, "reward": scored.scores[0]}

        def get_metrics(self) -> dict[str, Any]:
            return {**super().get_metrics(), **self._figures}

    Limited.__name__ = Limited.__qualname__ = f"Limited{environment.__name__}"
    return Limited


def _figures(earned: float, scored: Scored) -> dict[str, float]:
    figures = {"helpful": earned, **{name: column[0] for name, column in scored.figures.items()}}
    return {name: value for name, value in figures.items() if math.isfinite(value)}
