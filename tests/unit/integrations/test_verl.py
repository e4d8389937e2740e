"""Limits in verl: the function itself by hand, and through verl's own reward manager where it is installed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.answer_scores import AnswerScores
from pddpo_ray.integrations.verl import limited

LIMITS: dict[str, Any] = {"length": {"mean": {"rule": "words"}, "at_most": 3, "bounds": [0, 10]}}
LONG, SHORT = "one two three four five six seven eight", "one two"
ROW = {"index": 7, "question": "How?", "split": "train"}


def helpful(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    return float(ground_truth)


def owner(folder: Path, answers_a_step: int = 2) -> AnswerScores:
    return AnswerScores(LIMITS, journal=folder / "limits.jsonl", answers_a_step=answers_a_step)


def test_a_score_carries_the_limits_and_the_figures_say_why(tmp_path: Path) -> None:
    """Words 8 and 2, rewards 1 and 3: means 5 and 2, spreads 3 and 1."""
    limits = owner(tmp_path)
    compute_score = limited(helpful, limits)
    first = compute_score(data_source="pans", solution_str=LONG, ground_truth="1", extra_info=dict(ROW))
    assert first == {"score": 1.0, "helpful": 1.0, "limit/length": 8.0, "missing/length": 0.0, "multiplier/length": 0.0}
    assert compute_score("pans", SHORT, "3", dict(ROW))["score"] == 3.0
    weight = limits.multipliers["length"]
    second = compute_score("pans", LONG, "4", dict(ROW))
    assert second["score"] == pytest.approx((4 - 2) / 1 - weight * (8 - 5) / 3)
    assert (second["helpful"], second["multiplier/length"]) == (4.0, weight)


def test_the_group_is_the_row_of_the_data_set(tmp_path: Path) -> None:
    """Rewards 1 and 3 of row 7, 10 and 14 of row 8: distances 1, 1, 2, 2, of mean square 2.5; mean 7."""
    compute_score = limited(helpful, owner(tmp_path, 4), prompt=None)
    for index, reward in ((7, 1), (8, 10), (7, 3), (8, 14)):
        compute_score("pans", LONG, reward, {"index": index})
    assert compute_score("pans", LONG, 9, {"index": 9})["score"] == pytest.approx((9 - 7) / math.sqrt(2.5))


def test_the_batch_manager_gets_what_one_answer_after_another_gets(tmp_path: Path) -> None:
    alone, together = (limited(helpful, owner(tmp_path / name)) for name in ("alone", "together"))
    answers = [(LONG, "1"), (SHORT, "3"), (LONG, "4")]
    expected = [alone("pans", text, reward, dict(ROW)) for text, reward in answers]
    texts, rewards = zip(*answers, strict=True)
    found = together(
        data_sources=["pans"] * 3, solution_strs=list(texts), ground_truths=list(rewards), extra_infos=[dict(ROW)] * 3
    )
    assert found == expected


def test_figures_of_yours_are_kept_and_what_has_no_number_is_nan(tmp_path: Path) -> None:
    def telling(*told: Any, **more: Any) -> dict[str, Any]:
        return {"score": None, "acc": more["bonus"]}

    limits = AnswerScores(
        {"length": {**LIMITS["length"], "over": "benign"}}, journal=tmp_path / "limits.jsonl", answers_a_step=9
    )
    found = limited(telling, limits)("pans", LONG, None, ROW, bonus=0.5)
    assert (found["score"], found["acc"]) == (0.0, 0.5)
    assert math.isnan(found["helpful"])
    assert math.isnan(found["limit/length"])


def test_answers_of_a_test_split_move_nothing(tmp_path: Path) -> None:
    limits = owner(tmp_path, 1)
    limited(helpful, limits)("pans", LONG, "1", {**ROW, "split": "test"})
    assert limits.step == 0


def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    async def slow(*told: Any) -> float:
        return 0.0

    with pytest.raises(UserError, match="the helpful function is `async`"):
        limited(slow, owner(tmp_path))
    with pytest.raises(UserError, match=r"the helpful function gave \['acc'\] without `score`"):
        limited(lambda **told: {"acc": 1.0}, owner(tmp_path))("pans", LONG, "1", ROW)


def solution_first(solution_str: str, ground_truth: str, how: str = "strict", full: float = 1.0) -> float:
    """As verl's own scores of sums have it."""
    return full if how == "strict" and solution_str.endswith(ground_truth) else 0.0


class Method:
    def score(self, ground_truth: str, solution_str: str) -> float:
        return float(solution_str.endswith(ground_truth))


@pytest.mark.parametrize(
    "function",
    [
        solution_first,
        Method().score,
        partial(solution_first, full=1.0),
        lambda *, ground_truth, solution_str, **more: float(more["extra_info"]["index"] == 7),
        lambda *told, **more: float(more["solution_str"].endswith(more["ground_truth"])),
        lambda extra_info, data_source: float(extra_info["index"] == 7 and data_source == "sums"),
    ],
)
def test_a_function_gets_by_name_what_it_takes(function: Callable[..., Any], tmp_path: Path) -> None:
    compute_score = limited(function, owner(tmp_path))
    found = compute_score(
        data_source="sums", solution_str="=> 11", ground_truth="11", extra_info=ROW, reward_router=None
    )
    assert found["helpful"] == 1.0


def test_a_setting_of_verls_reaches_a_parameter_of_that_name(tmp_path: Path) -> None:
    assert limited(solution_first, owner(tmp_path))("sums", "=> 11", "11", ROW, full=0.5)["helpful"] == 0.5


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda answer, truth: 1.0, "needs `answer`, which verl does not give: give it a default"),
        (lambda solution_str, *, tolerance: 1.0, "needs `tolerance`"),
        (lambda *told: 1.0, "takes none by name"),
        (lambda solution_str, /, ground_truth: 1.0, "takes none by name"),
        (lambda: 1.0, "takes none by name"),
    ],
)
def test_a_function_that_verl_could_not_call_is_refused_at_load(
    function: Callable[..., Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        limited(function, owner(tmp_path))


def test_data_without_a_question_are_refused_and_a_key_or_none_can_be_named(tmp_path: Path) -> None:
    limits = owner(tmp_path, 9)
    for info in ({"split": "train", "index": 3}, {"question": "", "index": 3}, {}, None):
        with pytest.raises(UserError, match=r"the data set: extra_info has no `question`.*prompt=KEY"):
            limited(helpful, limits)("pans", LONG, "1", info)
    with pytest.raises(UserError, match=r"extra_info has no `index`"):
        limited(helpful, limits, prompt=None)("pans", LONG, "1", {"split": "train"})
    turns = [{"role": "user", "content": [{"type": "text", "text": "How?"}]}]
    assert limited(helpful, limits, prompt="asked")("pans", LONG, "1", {"asked": turns})["helpful"] == 1.0


def test_files_without_a_question_are_refused_when_the_function_is_loaded(tmp_path: Path) -> None:
    for name, row in (("good", ROW), ("bad", {"index": 1})):
        table = pyarrow.table({"data_source": ["pans"], "extra_info": [row]})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    limited(helpful, owner(tmp_path), files=[tmp_path / "good.parquet"])
    with pytest.raises(UserError, match=r"bad\.parquet: extra_info has no `question` \(it has: index\)"):
        limited(helpful, owner(tmp_path), files=[tmp_path / "good.parquet", tmp_path / "bad.parquet"])


FILE = """
from pathlib import Path

from pddpo_ray.integrations.answer_scores import AnswerScores
from pddpo_ray.integrations.verl import limited
from tests.unit.integrations.test_verl import LIMITS, helpful

compute_score = limited(helpful, AnswerScores(LIMITS, journal=Path({journal!r}), answers_a_step=2))
"""


class Letters:
    """A tokenizer of one token a letter."""

    def decode(self, tokens: Sequence[int], **settings: Any) -> str:
        return "".join(chr(token) for token in tokens)


def item(answer: str, truth: str) -> Any:
    """One answer as verl's agent loop hands it to a reward manager."""
    tokens = torch.tensor([[ord(letter) for letter in answer]])
    made: Callable[..., Any] = pytest.importorskip("verl").DataProto.from_dict
    return made(
        tensors={"responses": tokens, "attention_mask": torch.ones_like(tokens)},
        non_tensors={
            "data_source": np.array(["pans"], dtype=object),
            "reward_model": np.array([{"ground_truth": truth}], dtype=object),
            "extra_info": np.array([dict(ROW)], dtype=object),
        },
    )


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("manager", ["naive", "dapo"])
def test_verl_itself_loads_the_file_and_calls_it(manager: str, tmp_path: Path) -> None:
    reward = pytest.importorskip("verl.trainer.ppo.reward", reason="verl is not installed")
    file = tmp_path / "reward.py"
    file.write_text(FILE.format(journal=str(tmp_path / "limits.jsonl")))
    config = pytest.importorskip("omegaconf").OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {"path": str(file), "name": "compute_score"},
                "reward_manager": {"source": "register", "name": manager},
                "reward_kwargs": {},
            }
        }
    )

    async def scored() -> list[dict[str, Any]]:
        """In verl's order: the manager is made in the loop that it is asked in."""
        own = reward.load_reward_manager(config, Letters())
        return [await own.run_single(item(answer, truth)) for answer, truth in ((LONG, "1"), (SHORT, "3"), (LONG, "4"))]

    first, second, later = asyncio.run(scored())
    assert (first["reward_score"], second["reward_score"]) == (1.0, 3.0)
    figures = later["reward_extra_info"]
    assert figures["multiplier/length"] > 0
    assert later["reward_score"] == pytest.approx((4 - 2) / 1 - figures["multiplier/length"] * (8 - 5) / 3)
    assert figures["limit/length"] == 8.0


@pytest.mark.filterwarnings("default")
def test_verl_hands_an_estimator_of_its_own_name_no_figures_of_the_reward_function() -> None:
    """Why there is no advantage estimator here: when verl begins to pass them, one can be written."""
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="verl with its trainer is not installed")
    handed: set[str] = set()

    def seen(**given: Any) -> tuple[Any, Any]:
        handed.update(given)
        return given["token_level_rewards"], given["token_level_rewards"]

    trainer.core_algos.register_adv_est("limited-in-a-test")(seen)
    tensors = {"token_level_rewards": torch.zeros(2, 3), "response_mask": torch.ones(2, 3)}
    figures = {"uid": np.array(["a", "a"], dtype=object), "limit/length": np.array([8.0, 2.0])}
    data = pytest.importorskip("verl").DataProto.from_dict(tensors=tensors, non_tensors=figures)
    trainer.compute_advantage(data, adv_estimator="limited-in-a-test")
    assert handed == {"token_level_rewards", "response_mask", "config", "index"}
