"""Limits in OpenRLHF: the function itself by hand, and through OpenRLHF's own code where it is installed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.answer_scores import AnswerScores
from pddpo_ray.integrations.openrlhf import answer_of, ends_of, limited
from tests.support.tiny_language_model import word_tokenizer

LIMITS: dict[str, Any] = {"length": {"mean": {"rule": "words"}, "at_most": 3, "bounds": [0, 10]}}
PROMPT = "<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\n"


def helpful(prompts: Sequence[str], answers: Sequence[str], labels: Sequence[Any]) -> list[float]:
    return [float(label) for label in labels]


def owner(folder: Path, answers_a_step: int = 2) -> AnswerScores:
    return AnswerScores(LIMITS, journal=folder / "limits.jsonl", answers_a_step=answers_a_step)


@pytest.mark.parametrize(
    ("query", "prompt", "answer"),
    [
        (PROMPT + "Soak it.<|im_end|>", PROMPT, "Soak it."),
        ("<s>How?Soak it.</s></s>", "How?", "Soak it."),
        ("x" * 64 + "Soak it.", "cut" + "x" * 70, "Soak it."),
        ("How?How? you ask", "How?", "How? you ask"),
    ],
)
def test_an_answer_is_what_follows_its_prompt(query: str, prompt: str, answer: str) -> None:
    assert answer_of(query, prompt) == answer


@pytest.mark.parametrize(
    "end",
    ["<|end|>", "<|eom_id|>", "<|im_end|>\n", "<pad><pad>", "<|eot_id|> <|end_of_text|>\n", "</s>", "<end_of_turn>\n",
     "<\uff5cend\u2581of\u2581sentence\uff5c>", "[PAD][PAD]", "<|return|>", ""],
)  # fmt: skip
def test_an_answer_loses_whatever_token_ends_it(end: str) -> None:
    assert answer_of("How?Soak it." + end, "How?") == "Soak it."


def test_what_an_answer_says_is_kept() -> None:
    for said in ("Soak it. \n", "Use <b>salt</b>", "a < b |> c", "<|x|> is a token", "a <|two words|>"):
        assert answer_of("How?" + said, "How?") == said
    assert answer_of("How?a<|end|>", "How?", ["<|stop|>"]) == "a<|end|>"
    assert answer_of("How?a<|end|>", "How?", []) == "a<|end|>"
    assert answer_of("How?a(end)(end) ", "How?", ["(end)"]) == "a"


def test_the_ends_of_a_tokenizer_are_its_own(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["(over)"]})
    tokenizer.save_pretrained(tmp_path)
    assert {"<eos>", "(over)"} <= set(ends_of(tmp_path))
    assert answer_of("How?word1(over)<eos>", "How?", ends_of(tmp_path)) == "word1"


def test_a_function_may_give_openrlhfs_dictionary(tmp_path: Path) -> None:
    def telling(prompts: Sequence[str], answers: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
        return {
            "rewards": torch.tensor([[1.0], [3.0]]), "scores": torch.tensor([0.0, 1.0]),
            "extra_logs": {"seen": torch.tensor([2.0, 2.0]), "limit/length": torch.tensor([0.0, 0.0])},
        }  # fmt: skip

    found = limited(telling, owner(tmp_path))(["a one two", "a one"], ["a", "a"], ["", ""])
    assert found["rewards"].tolist() == [1.0, 3.0]
    assert found["scores"].tolist() == [0.0, 1.0], "what OpenRLHF filters by stays what the function says"
    assert found["extra_logs"]["seen"].tolist() == [2.0, 2.0]
    assert found["extra_logs"]["limit/length"].tolist() == [2.0, 1.0]
    with pytest.raises(UserError, match=r"gave \['score'\] without `rewards`"):
        limited(lambda *told: {"score": [1.0]}, owner(tmp_path))(["a b"], ["a"], [""])
    with pytest.raises(UserError, match="one of each belongs to every answer"):
        limited(lambda *told: torch.tensor([1.0, 2.0]), owner(tmp_path))(["a b"], ["a"], [""])
    one = limited(lambda *told: torch.tensor(1.0), owner(tmp_path))(["a b"], ["a"], [""])
    assert one["scores"].tolist() == [1.0]


def test_a_prompt_that_was_cut_is_no_part_of_the_answer_however_often_its_end_stands_in_it() -> None:
    line = "Think step by step, then write the number alone in a last line, please.\n"
    assert answer_of(line * 3 + "7", "Cut away. " + line * 3) == "7"
    assert answer_of(line * 2 + "It said: " + line + "7", "Cut away. " + line * 2) == "It said: " + line + "7"


def test_a_text_without_its_prompt_is_refused() -> None:
    with pytest.raises(UserError, match=r"the prompt that ends in 'How\?' is not in the text"):
        answer_of("Why? Soak it.", "How?")


def test_rewards_are_scores_and_scores_are_what_was_helpful(tmp_path: Path) -> None:
    """Words 8 and 2, rewards 1 and 3: means 5 and 2, spreads 3 and 1."""
    limits = owner(tmp_path)
    reward_func = limited(helpful, limits)
    long, short = "one two three four five six seven eight", "one two"
    first = reward_func(queries=["a" + long, "a" + short], prompts=["a", "a"], labels=["1", "3"])
    assert first["rewards"].tolist() == first["scores"].tolist() == [1.0, 3.0]
    assert first["extra_logs"]["limit/length"].tolist() == [8.0, 2.0]
    weight = limits.multipliers["length"]
    second = reward_func(["a" + long], ["a"], ["4"])
    assert second["rewards"].tolist() == pytest.approx([(4 - 2) / 1 - weight * (8 - 5) / 3])
    assert second["scores"].tolist() == [4.0]
    assert second["extra_logs"]["multiplier/length"].tolist() == pytest.approx([weight])


def test_a_label_says_which_set_an_answer_is_of_and_whether_it_counts(tmp_path: Path) -> None:
    over = {"length": {**LIMITS["length"], "over": "benign"}}
    limits = AnswerScores(over, journal=tmp_path / "limits.jsonl", answers_a_step=1)
    reward_func = limited(lambda prompts, answers, labels: [None] * len(answers), limits, row=dict)
    found = reward_func(["ab"], ["a"], [{"set": "benign", "split": "test"}])
    assert (found["extra_logs"]["limit/length"].tolist(), limits.step) == ([1.0], 0)
    found = reward_func(["ab"], ["a"], [{"set": "other"}])
    assert math.isnan(found["extra_logs"]["limit/length"].item())
    assert limits.step == 1


FILE = """
from pathlib import Path

from pddpo_ray.integrations.answer_scores import AnswerScores
from pddpo_ray.integrations.openrlhf import limited
from tests.unit.integrations.test_openrlhf import LIMITS, helpful

reward_func = limited(helpful, AnswerScores(LIMITS, journal=Path({journal!r}), answers_a_step=2))
"""


class Letters:
    """A tokenizer of one token a letter."""

    def __call__(self, text: str, **settings: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[ord(letter) for letter in text]])}

    def decode(self, tokens: Sequence[int], **settings: Any) -> str:
        return "".join(chr(token) for token in tokens)


class Engine:
    """Answers what it was told to, in vLLM's form."""

    def __init__(self, answer: str) -> None:
        self._tokens = [ord(letter) for letter in answer]

    async def generate(self, tokens: Sequence[int], settings: Any, **more: Any) -> SimpleNamespace:
        output = SimpleNamespace(token_ids=self._tokens, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


@pytest.mark.filterwarnings("default")
def test_openrlhf_itself_loads_the_file_and_calls_it(tmp_path: Path) -> None:
    agent = pytest.importorskip("openrlhf.utils.agent", reason="OpenRLHF is not installed")
    generator = pytest.importorskip("openrlhf.trainer.ppo_utils.samples_generator").SamplesGenerator
    file = tmp_path / "reward.py"
    file.write_text(FILE.format(journal=str(tmp_path / "limits.jsonl")))
    executor = agent.SingleTurnAgentExecutor([str(file)])
    sampling = SimpleNamespace(max_tokens=200, logprobs=None)

    def drawn(answer: str, label: str) -> dict[str, Any]:
        done: dict[str, Any] = asyncio.run(
            executor.execute(PROMPT, label, sampling, 400, Letters(), Engine(answer + "<|im_end|>"))
        )
        return done

    long, short = drawn("one two three four five six seven eight", "1"), drawn("one two", "3")
    # what the trainer makes of it; it looks at nothing of its own for that
    experience = generator._process_response_into_experience(None, short, max_len=400)
    assert (experience.rewards.tolist(), experience.scores.tolist()) == ([3.0], [3.0])
    assert experience.info["limit/length"].tolist() == [2.0]
    assert (long["reward"].item(), short["reward"].item(), short["scores"].item()) == (1.0, 3.0, 3.0)
    assert long["extra_logs"]["limit/length"].item() == 8.0
    later = drawn("one two three four five six seven eight", "4")
    weight = later["extra_logs"]["multiplier/length"].item()
    assert weight > 0
    assert later["reward"].item() == pytest.approx((4 - 2) / 1 - weight * (8 - 5) / 3)
