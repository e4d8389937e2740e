"""Limits beside TRL's own DPOTrainer: what a look says, that it changes nothing, and that it can end the training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.watching import Draws, LimitWatch
from tests.support.small_align import CHAT
from tests.support.tiny_language_model import tiny_llama, word_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]

PAGE = Path(__file__).parents[3] / "docs" / "integrations.md"
PROMPTS = [f"word{n}" for n in range(20, 30)]
LENGTH: dict[str, Any] = {"length": {"mean": {"rule": "words"}, "at_most": 100, "bounds": [0, 120]}}


def trained(folder: Path, watch: LimitWatch | None, steps: int, tokenizer: Any = None) -> Any:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    pairs = [{"prompt": f"word{n} ", "chosen": "word1 word2 word3", "rejected": "word4"} for n in range(16)]
    settings = DPOConfig(
        output_dir=str(folder), per_device_train_batch_size=4, max_steps=steps, learning_rate=1e-2, save_strategy="no",
        logging_steps=1, report_to=[], use_cpu=True, bf16=False, disable_tqdm=True,
    )  # fmt: skip
    torch.manual_seed(0)
    trainer = DPOTrainer(
        tiny_llama(0, context=64),
        tiny_llama(0, context=64),
        args=settings,
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer or word_tokenizer(),
    )
    if watch is not None:
        watch.attach(trainer)
    trainer.train()
    return trainer


def test_every_look_is_in_the_log_and_in_the_journal_and_the_training_is_the_same_without_it(tmp_path: Path) -> None:
    journal = tmp_path / "out" / "limits.jsonl"
    watch = LimitWatch(LENGTH, PROMPTS, every=2, draws=Draws(each=3, max_tokens=12, batch=8), journal=journal)
    trainer = trained(tmp_path / "out", watch, steps=5)
    looks = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [look["step"] for look in looks] == [2, 4, 5], "after the last step too"
    logged = [entry for entry in trainer.state.log_history if "limits/length/estimate" in entry]
    assert [entry["step"] for entry in logged] == [2, 4, 5]
    for look, entry in zip(looks, logged, strict=True):
        said = look["limits"]["length"]
        assert (said["n"], said["prompts"], said["kept"]) == (30, 10, True)
        assert entry["limits/length/low"] < entry["limits/length/estimate"] == said["estimate"]
        assert 0 < said["estimate"] <= 12
    assert watch.checked["length"].n == 30
    alone = trained(tmp_path / "alone", None, steps=5)
    for one, other in zip(trainer.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.full
def test_an_interval_beyond_a_limit_ends_the_training_with_a_checkpoint(tmp_path: Path) -> None:
    strict = {"length": {**LENGTH["length"], "at_most": 1, "bounds": [0, 12]}}
    watch = LimitWatch(strict, PROMPTS, every=1, draws=Draws(each=4, max_tokens=12), stop=True)
    trainer = trained(tmp_path / "out", watch, steps=4)
    assert trainer.state.global_step == 1
    assert (tmp_path / "out" / "checkpoint-1").is_dir()
    assert watch.checked["length"].kept is False


@pytest.mark.full
def test_conversations_are_written_by_the_template_and_sets_belong_to_their_limits(tmp_path: Path) -> None:
    limits = {
        "asked": {"rate": {"regex": str(tmp_path / "any.txt")}, "over": "red", "at_most": "90 %"},
        "said": {"rate": {"regex": str(tmp_path / "any.txt")}, "at_most": "90 %"},
    }
    (tmp_path / "any.txt").write_text("word1\\b\n")
    rows = [
        {"prompt": [{"role": "user", "content": text}], "set": "red" if number < 4 else "rest"}
        for number, text in enumerate(PROMPTS)
    ]
    watch = LimitWatch(limits, rows, every=9, draws=Draws(max_tokens=4, temperature=0.0))
    tokenizer = word_tokenizer()
    tokenizer.chat_template = CHAT
    trained(tmp_path / "out", watch, 1, tokenizer)
    assert (watch.checked["asked"].n, watch.checked["said"].n) == (4, 10)


@pytest.mark.full
def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    (example,) = (
        text for text in re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.S | re.M) if "LimitWatch" in text
    )
    on_cpu = 'output_dir="out", use_cpu=True, bf16=False, max_steps=2, report_to=[], disable_tqdm=True'
    monkeypatch.chdir(tmp_path)
    Path("limits.yaml").write_text("limits: {length: {mean: {rule: words}, at_most: 100, bounds: [0, 120]}}\n")
    pairs = Dataset.from_list([{"prompt": "word1 ", "chosen": "word2 word3", "rejected": "word4"}] * 8)
    given = {
        "model": tiny_llama(0, context=128), "ref_model": tiny_llama(0, context=128), "tokenizer": word_tokenizer(),
        "pairs": pairs, "prompts": PROMPTS,
    }  # fmt: skip
    exec(example.replace('output_dir="out"', on_cpu), given)
    (look,) = (json.loads(line) for line in Path("out/limits.jsonl").read_text().splitlines())
    assert (look["step"], look["limits"]["length"]["n"]) == (2, 20)


@pytest.mark.parametrize(
    ("prompts", "every", "said"),
    [
        ([], 1, "there are no prompts"),
        (["word1"], 0, "every=0"),
        (["word1", [{"role": "user", "content": "word2"}]], 1, "some are texts and some conversations"),
        ([{"text": "word1"}], 1, "has no `prompt`"),
    ],
)
def test_what_cannot_be_asked_is_refused(prompts: list[Any], every: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        LimitWatch(LENGTH, prompts, every=every)


def test_a_models_own_settings_bend_no_look(tmp_path: Path) -> None:
    """`generate` fills in what it is not given; the trainer's own settings stay as they were."""
    looks = {}
    bent = {"min_length": 60, "repetition_penalty": 9.0}
    own: dict[str, dict[str, Any]] = {"plain": {}, "bent": bent, "without an end": {"eos_token_id": None}}
    for name, settings in own.items():
        watch = LimitWatch(LENGTH, PROMPTS, every=1, draws=Draws(each=2, max_tokens=12))
        trainer = trained(tmp_path / name, None, steps=1)
        for key, value in settings.items():
            setattr(trainer.model.generation_config, key, value)
        watch.attach(trainer)
        watch._look(1)
        looks[name] = watch.checked["length"].estimate
        assert all(getattr(trainer.model.generation_config, key) == value for key, value in settings.items())
    assert looks["plain"] == looks["bent"] == looks["without an end"]
