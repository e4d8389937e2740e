"""Limits inside verl: its custom reward function, of a helpfulness of yours and all limits.

    # reward.py, named by reward.custom_reward_function.path=reward.py
    from actors.limit_controller import SharedLimits
    from pddpo_ray.integrations.verl import limited

    def helpful(data_source, solution_str, ground_truth, extra_info): ...

    compute_score = limited(helpful, SharedLimits("limits.yaml", journal="out/limits.jsonl", answers_a_step=1024))

verl calls it for one answer at a time and by keyword, in its reward workers (its batch manager with a list of each);
`helpful` is called for one answer, with those of the arguments that it takes. It is told neither the prompt's text nor
the trainer's group: the prompt is what the column `extra_info` has under "question", the group its "index" (both as in
verl's own data sets).

There is no advantage estimator here, which could weigh whole groups: under a name of its own verl (0.9.1) hands one the
summed rewards and the groups, and neither the answers nor the figures that the reward function gave. Its estimator
`gdpo` gets those, but the weights of its parts stand in the configuration and cannot move.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.answer_scores import Scorer, asked_for, demand_plain
from pddpo_ray.integrations.turns import prompt_text

PROMPT = "question"
GROUP = "index"
GIVEN = ("data_source", "solution_str", "ground_truth", "extra_info")
LISTS = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
"""What verl's batch manager hands over in their place."""


def limited(
    helpful: Callable[..., Any], limits: Scorer, *, prompt: str | None = PROMPT, files: Sequence[str | Path] = ()
) -> Callable[..., Any]:
    """verl's `compute_score`. `helpful` takes any of verl's arguments by name and gives a number, or a dictionary
    with its `score`; `prompt` is the key of `extra_info` that holds the prompt's text, None where no limit reads it.
    `files` are the data set's (Parquet), which are looked at now; without them a missing prompt is found at the first
    answer.

    The dictionary that it gives has, beside `score` and the figures of `helpful`, `helpful`, and for each limit
    `limit/NAME`, `missing/NAME` and `multiplier/NAME`; what has no number is NaN. Raises UserError for a coroutine
    function, for one that verl's arguments cannot be handed to, and for data without a prompt or, where none is read, a
    group.
    """
    for file in files:
        _demand_question(_extra_info(Path(file)), prompt, str(file))
    demand_plain(helpful)

    names = _argument_names(helpful)

    def compute_score(*values: Any, **fields: Any) -> Any:
        if LISTS[1] not in fields:
            return score_one(*values, **fields)
        lists = [fields.pop(name) for name in LISTS]
        return [score_one(*row, **fields) for row in zip(*lists, strict=True)]

    def score_one(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        row = dict(extra_info or {})
        _demand_question([key for key in row if row[key] not in (None, "")], prompt, "the data set")
        kwargs = {**more, **dict(zip(GIVEN, (data_source, solution_str, ground_truth, row), strict=True))}
        output = helpful(**(kwargs if names is None else {name: kwargs[name] for name in names if name in kwargs}))
        figures = dict(output) if isinstance(output, Mapping) else {"score": output}
        if "score" not in figures:
            raise UserError(f"the helpful function gave {sorted(figures)} without `score`")
        reward, text = figures.pop("score"), "" if prompt is None else prompt_text(row[prompt])
        group = f"{data_source} {row.get(GROUP, text)}"
        request = asked_for([text], [solution_str], [reward], [row], [group])
        scored = limits.score(request)
        limit_figures = {name: figure[0] for name, figure in scored.figures.items()}
        return {**figures, "score": scored.scores[0], "helpful": _plain(request.rewards[0]), **limit_figures}

    return compute_score


def _argument_names(helpful: Callable[..., Any]) -> tuple[str, ...] | None:
    """The arguments that a function takes by name; None: any. Raises UserError where it cannot be called so."""
    try:
        parameters = inspect.signature(helpful).parameters.values()
    except (TypeError, ValueError):  # written in C
        return None
    named_params = [param for param in parameters if param.kind in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY)]
    needed = [param.name for param in named_params if param.default is param.empty and param.name not in GIVEN]
    any_name = any(param.kind is param.VAR_KEYWORD for param in parameters)
    by_place = any(param.kind is param.POSITIONAL_ONLY and param.default is param.empty for param in parameters)
    if needed or by_place or not (named_params or any_name):
        reason = f"needs `{needed[0]}`, which verl does not give: give it a default" if needed else "takes none by name"
        raise UserError(f"verl hands {', '.join(GIVEN)} to the helpful function by name, and it {reason}")
    return None if any_name else tuple(param.name for param in named_params)


def _demand_question(keys: Sequence[str], prompt: str | None, where: str) -> None:
    """Raises UserError where `extra_info` has neither the prompt's text nor, if none is wanted, the group."""
    key = GROUP if prompt is None else prompt
    if key not in keys:
        raise UserError(
            f"{where}: extra_info has no `{key}` (it has: {', '.join(keys) or 'nothing'}), so that limits do not"
            " know what was asked, or which answers belong together; write it there, or name the key that holds the"
            " question: limited(..., prompt=KEY)"
        )


def _extra_info(file: Path) -> list[str]:
    """The keys of a Parquet file's column `extra_info`."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(file)
    column = schema.field("extra_info").type if "extra_info" in schema.names else None
    return [field.name for field in column] if isinstance(column, pyarrow.StructType) else []


def _plain(value: float | None) -> float:
    """verl takes means of these: NaN says that there is none, where None would end them."""
    return math.nan if value is None else value
