"""Limits inside verl: its custom reward function, of a helpfulness of yours and all limits.

    # reward.py, named by reward.custom_reward_function.path=reward.py
    from actors.limit_controller import SharedLimits
    from pddpo_ray.integrations.verl import limited

    def helpful(data_source, solution_str, ground_truth, extra_info): ...

    compute_score = limited(helpful, SharedLimits("limits.yaml", journal="out/limits.jsonl", answers_a_step=1024))

verl calls it for one answer at a time, in its reward workers. It is told neither the prompt's text nor the trainer's
group: the prompt is what the column `extra_info` has under "question", the group its "index" (both as in verl's own
data sets).

There is no advantage estimator here, which could weigh whole groups: under a name of its own verl (0.9.1) hands one the
summed rewards and the groups, and neither the answers nor the figures that the reward function gave. Its estimator
`gdpo` gets those, but the weights of its parts stand in the configuration and cannot move.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.answer_scores import Scorer, asked_for

PROMPT = "question"
GROUP = "index"


def limited(helpful: Callable[..., Any], limits: Scorer, *, prompt: str = PROMPT) -> Callable[..., dict[str, Any]]:
    """verl's `compute_score`. `helpful` has verl's form and gives a number, or a dictionary with its `score`; `prompt`
    is the key of `extra_info` that holds the prompt's text.

    The dictionary that it gives has, beside `score` and the figures of `helpful`, `helpful`, and for each limit
    `limit/NAME` and `multiplier/NAME`; what could not be measured is NaN. Raises UserError for a coroutine function.
    """
    if inspect.iscoroutinefunction(helpful):
        raise UserError("the helpful function is `async`; give a plain one: verl calls it in a thread of its own")

    def compute_score(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        row = dict(extra_info or {})
        given = helpful(data_source, solution_str, ground_truth, row, **more)
        figures = dict(given) if isinstance(given, Mapping) else {"score": given}
        if "score" not in figures:
            raise UserError(f"the helpful function gave {sorted(figures)} without `score`")
        reward, text = figures.pop("score"), str(row.get(prompt, ""))
        group = f"{data_source} {row.get(GROUP, text)}"
        asked = asked_for([text], [solution_str], [reward], [row], [group])
        scored = limits.score(asked)
        values = {f"limit/{name}": _plain(own[0]) for name, own in scored.values.items()}
        weights = {f"multiplier/{name}": one for name, one in scored.multipliers.items()}
        return {**figures, "score": scored.scores[0], "helpful": _plain(asked.rewards[0]), **values, **weights}

    return compute_score


def _plain(value: float | None) -> float:
    """verl takes means of these: NaN says that there is none, where None would end them."""
    return math.nan if value is None else value
