"""`pddpo chat`: answers of a run's policy in the terminal, and nothing in them that steers a terminal."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from pddpo_ray.cli.main import app, main
from pddpo_ray.cli.runs.recipe_of_run import find_run
from pddpo_ray.records import Message
from pddpo_ray.report.text import visible
from pddpo_ray.serving.commands.chat import spread
from tests.support.served_run import SAFE, UNSAFE, ServedRun, make_run
from tests.support.tiny_language_model import WORDS, tiny_llama, word_tokenizer

HOSTILE = tuple(
    {0: "\x1b[2J", 1: "\u202eevil", 2: "\x9b31m", 3: "a\rb"}.get(number % 8, word) for number, word in enumerate(WORDS)
)
HOSTILE_WORDS = tuple(f"{word}{number}" for number, word in enumerate(HOSTILE))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRun]:
    made = make_run(tmp_path_factory.mktemp("runs") / "demo", (SAFE, UNSAFE), tokenizer=word_tokenizer(HOSTILE_WORDS))
    yield made
    made.close()


def chat(run: ServedRun, *options: str, typed: str = "") -> Result:
    result = CliRunner().invoke(app, ["chat", str(run.folder), "--max-tokens", "12", *options], input=typed)
    assert result.exit_code == 0, result.output
    return result


def test_questions_that_are_shown_are_about_different_subjects() -> None:
    asked = [f"how to {what} {where} ?" for what in ("bake", "cut", "dig", "mow") for where in ("now", "here", "today")]
    assert spread([*asked, *asked]) == [f"how to {what} here ?" for what in ("bake", "cut", "dig", "mow")]
    assert spread(["one ?"]) == ["one ?"]
    assert spread([]) == []


@pytest.mark.slow
def test_one_answer_follows_from_its_seed_and_is_the_policys(run: ServedRun) -> None:
    asked = ("--prompt", f"{HOSTILE_WORDS[4]} {HOSTILE_WORDS[5]}")
    answer = chat(run, *asked).stdout
    assert answer == chat(run, *asked).stdout
    assert answer != chat(run, *asked, "--seed", "1").stdout
    torch.manual_seed(0)
    ids = torch.tensor([[1, 8, 9]])
    made = tiny_llama(101).generate(
        ids, do_sample=True, top_k=0, max_new_tokens=12, attention_mask=torch.ones_like(ids), pad_token_id=2
    )
    said = word_tokenizer(HOSTILE_WORDS).decode(made[0, 3:], skip_special_tokens=True)
    assert answer == f"{visible(said)}\n"
    assert chat(run, *asked, "--round", "2").stdout != answer


@pytest.mark.slow
def test_no_control_character_of_an_answer_reaches_the_terminal(run: ServedRun) -> None:
    said = "".join(chat(run, "--prompt", HOSTILE_WORDS[4], "--seed", str(seed)).stdout for seed in range(4))
    assert "\N{REPLACEMENT CHARACTER}" in said  # the model did write some
    steering = {character for character in said if unicodedata.category(character) in ("Cc", "Cf")}
    assert steering <= {"\n", "\t"}


def test_a_conversation_keeps_its_turns_and_ends_with_the_input(
    run: ServedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pddpo_ray.text.renderer import Renderer

    seen: list[list[Message]] = []
    prompt_ids = Renderer.prompt_ids

    def watched(self: Renderer, messages: list[Message]) -> tuple[int, ...]:
        seen.append(list(messages))
        return prompt_ids(self, messages)

    monkeypatch.setattr(Renderer, "prompt_ids", watched)
    first, second, third = HOSTILE_WORDS[4:7]
    result = chat(run, typed=f"{first}\n{second}\n\n{third}\n")
    assert "round 1 (released)" in result.stderr
    assert [[message.role for message in turns] for turns in seen] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user"],
    ]
    assert [turns[-1].content for turns in seen] == [first, second, third]


def test_a_text_that_leaves_no_room_for_an_answer_is_refused(
    run: ServedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["chat", str(run.folder), "--prompt", " ".join(HOSTILE_WORDS * 2), "--max-tokens", "12"])
    assert "tokens, the model has room for 116" in capsys.readouterr().err


@pytest.mark.slow
def test_the_references_own_settings_bend_no_answer(run: ServedRun, tmp_path: Path) -> None:
    bent = make_run(tmp_path / "bent", (SAFE,), tokenizer=word_tokenizer(HOSTILE_WORDS))
    bent.close()
    settings = {"repetition_penalty": 9.0, "min_length": 12, "suppress_tokens": [8], "no_repeat_ngram_size": 1}
    for version in (bent.folder / "artifacts").iterdir():
        (version / "generation_config.json").write_text(json.dumps(settings))
        config = json.loads((version / "config.json").read_text())
        (version / "config.json").write_text(json.dumps({**config, **settings}))
    asked = ("--prompt", f"{HOSTILE_WORDS[4]} {HOSTILE_WORDS[5]}", "--round", "1")
    assert chat(bent, *asked).stdout == chat(run, *asked).stdout


@pytest.mark.slow
def test_without_settings_an_answer_is_as_long_as_in_the_run_and_longer_than_the_context_is_refused(
    run: ServedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["chat", str(run.folder), "--prompt", HOSTILE_WORDS[4]]
    longest = str(find_run(run.folder, None).config.rollout.max_tokens)
    said = [CliRunner().invoke(app, [*asked, *more]) for more in ([], ["--max-tokens", longest])]
    assert said[0].exit_code == 0
    assert said[0].stdout == said[1].stdout
    with pytest.raises(SystemExit, match="2"):
        main([*asked, "--max-tokens", "256"])
    assert "--max-tokens 256: prompt and answer together have room for 128 tokens" in capsys.readouterr().err
