"""A dry run reads what the recipe's files hold and renders a sample of it with the model's own chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.errors import UserError
from tests.support.tiny_language_model import save_policy, word_tokenizer

TURNS = "{% for m in messages %}{{ m.content }}{{ '<eos>' if m.role == 'assistant' else '' }}{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + TURNS
NO_REPLIES = (
    "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('Only users speak here') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
ONE_TURN = "{% if messages[0].content != 'x' %}{{ raise_exception('say x and nothing else') }}{% endif %}" + TURNS
PAIR = {"prompt": "how do i light the stove ?", "chosen": "use a long match .", "rejected": "wait ."}
ASKED = {"prompt": "how do i light the stove ?"}


def written(path: Path, *rows: Mapping[str, object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def model(folder: Path, template: str) -> str:
    save_policy(folder, 0, context=512)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


def chat_pair(*asked: tuple[str, str]) -> dict[str, object]:
    return {
        "prompt": [{"role": role, "content": content} for role, content in asked],
        "chosen": [{"role": "assistant", "content": "so ."}],
        "rejected": [{"role": "assistant", "content": "no ."}],
    }


def planned(*words: str) -> str:
    done = CliRunner().invoke(app, ["train", "real-text", *words, "--dry-run"], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def refused(*words: str) -> str:
    with pytest.raises(UserError) as raised:
        CliRunner().invoke(app, ["train", "real-text", *words, "--dry-run"], catch_exceptions=False)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def with_sets(tmp_path: Path, **files: Sequence[str]) -> list[str]:
    """Overrides for prompt sets of equal shares, each named by a limit."""
    share = 1 / len(files)
    sets = {name: {"share": share, "files": list(given)} for name, given in files.items()}
    limits = {f"short-{name}": {"rate": {"rule": "empty"}, "at_most": "50 %", "over": name} for name in files}
    pairs = written(tmp_path / "pairs.jsonl", PAIR)
    return [
        f"model.reference={model(tmp_path / 'model', TURNS)}",
        f"data.helpful=[{pairs}]",
        f"prompts={json.dumps(sets)}",
        f"limits={json.dumps({'cost': None, **limits})}",
    ]


def test_files_of_prompt_sets_are_read(tmp_path: Path) -> None:
    good = written(tmp_path / "kitchen.jsonl", ASKED, {**ASKED, "category": ""})
    out = planned(*with_sets(tmp_path, kitchen=[good]))
    assert f"{good}  prompts: 1 of 2 rows are good; 1 wrong-type" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds a prompt (1 empty-file)"),
        ('{"text": "how ?"}\n', "holds a prompt (its fields: text; a prompt stands in `prompt`,"),
        ('{"prompt": "  "}\n', "holds a prompt (1 "),
    ],
)
def test_a_prompt_set_without_a_prompt_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    bad = tmp_path / "kitchen.jsonl"
    bad.write_text(text)
    line = refused(*with_sets(tmp_path, kitchen=[str(bad)]))
    assert line.startswith("prompts.kitchen.files: none of the ")
    assert says in line
    assert f"`pddpo data check {bad}` says what it holds" in line


def test_a_prompt_set_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    line = refused(*with_sets(tmp_path, kitchen=["/nowhere/kitchen.jsonl"]))
    assert "prompts.kitchen.files: there is no file /nowhere/kitchen.jsonl; give the path" in line


def test_a_file_of_harmless_requests_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    line = refused("scorecard.benign_files=[/nowhere/benign.jsonl]")
    assert "scorecard.benign_files: there is no file /nowhere/benign.jsonl; give the path" in line


def test_files_of_harmless_requests_are_read(tmp_path: Path) -> None:
    bad = written(tmp_path / "benign.jsonl", {"text": "how ?"})
    assert refused(f"scorecard.benign_files=[{bad}]").startswith("scorecard.benign_files: none of the first 1 rows of")


@pytest.mark.slow
def test_a_column_that_no_file_has_is_one_line(tmp_path: Path) -> None:
    pairs = written(tmp_path / "pairs.jsonl", {"query": "how ?", "chosen": "so .", "rejected": "no ."})
    line = refused(f"data.helpful=[{pairs}]", "data.columns={prompt: question}")
    assert line.startswith(f"data.columns: none of the first 1,000 rows of {pairs} ")
    assert "has the field question, which is to be read as prompt; the fields are chosen, query, rejected" in line
    assert "1 of 1 rows are good" in planned(f"data.helpful=[{pairs}]", "data.columns={prompt: query}")
    planned(f"data.helpful=[{pairs}, 'hf:somebody/pairs']", "data.columns={prompt: query, system: rules}")


def test_a_template_that_refuses_system_turns_is_one_line(tmp_path: Path) -> None:
    rows = chat_pair(("user", "how ?")), chat_pair(("system", "be brief"), ("user", "how ?"))
    pairs = written(tmp_path / "pairs.jsonl", *rows)
    line = refused(f"model.reference={model(tmp_path / 'model', NO_SYSTEM)}", f"data.helpful=[{pairs}]")
    assert line.startswith(f"data.helpful: {pairs}: the data has system turns and the chat template drops or refuses")
    out = planned(f"model.reference={tmp_path / 'model'}", f"data.helpful=[{pairs}]", "data.template=hh")
    assert f"{pairs}  trl-chat: 2 of 2 rows are good\n" in out


@pytest.mark.parametrize(
    ("template", "says"), [(ONE_TURN, "say x and nothing else"), (NO_REPLIES, "Only users speak here")]
)
def test_a_template_that_refuses_every_row_says_why(template: str, says: str, tmp_path: Path) -> None:
    pairs = written(tmp_path / "pairs.jsonl", PAIR)
    line = refused(f"model.reference={model(tmp_path / 'model', template)}", f"data.helpful=[{pairs}]")
    assert line.startswith("no pair has a prompt of at most 96 and answers of at most 96 tokens")
    assert f"the template says: {says}" in line


def test_texts_that_are_too_long_are_counted_and_refused_where_none_is_left(tmp_path: Path) -> None:
    pairs = written(tmp_path / "pairs.jsonl", PAIR, {**PAIR, "prompt": "how do i do it ? " * 40})
    reference = f"model.reference={model(tmp_path / 'model', TURNS)}"
    out = planned(reference, f"data.helpful=[{pairs}]")
    assert "2 of 2 rows are good; fitting data.prompt_tokens=96 and data.answer_tokens=96: 1" in out
    line = refused(reference, f"data.helpful=[{pairs}]", "data.prompt_tokens=4")
    assert "no pair has a prompt of at most 4 and answers of at most 96 tokens" in line
    asked = written(tmp_path / "asked.jsonl", {"prompt": "how do i do it ? " * 40})
    line = refused(reference, f"data.helpful=[{pairs}]", f"data.prompts=[{asked}]")
    assert line.startswith(f"data.prompts: no prompt of {asked} has at most 96 tokens: raise data.prompt_tokens")


def test_the_template_of_a_model_is_refused_where_the_recipe_trains_one_from_nothing(tmp_path: Path) -> None:
    line = refused(f"data.helpful=[{written(tmp_path / 'pairs.jsonl', PAIR)}]", "data.template=tokenizer")
    assert "this template comes with a model" in line


def test_a_share_without_a_prompt_is_one_line(tmp_path: Path) -> None:
    names = [written(tmp_path / f"{name}.jsonl", ASKED) for name in ("kitchen", "garden")]
    line = refused(*with_sets(tmp_path, kitchen=names[:1], garden=names[1:]), "data.prompt_count=1")
    assert line.startswith("prompts.garden: its share of data.prompt_count=1 is 0 prompts: raise ")


def test_files_stand_in_the_json_plan(tmp_path: Path) -> None:
    pairs = written(tmp_path / "pairs.jsonl", PAIR)
    done = json.loads(planned(f"data.helpful=[{pairs}]", "--json"))
    assert done["files"] == [{"file": pairs, "holds": "trl: 1 of 1 rows are good"}]
