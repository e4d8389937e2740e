"""Formats: the published field names are read, every format is written and read back, other libraries agree."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.data import Answer, Dimension, Example, Message, Settings, inspect
from pddpo_ray.data.checks.problems import RowError
from pddpo_ray.data.files.sinks import SUFFIXES, Sink
from pddpo_ray.data.formats.standard import FORMATS, WRITABLE, read_row, recognise, shuffled, write_rows
from pddpo_ray.data.real_text import sample_file
from pddpo_ray.text.templates import TEMPLATES, rendered
from tests.support.data_rows import chat, hh, lines, pku

plain = partial(rendered, TEMPLATES["plain"])


def examples(path: Path | str, **settings: Any) -> list[Example]:
    found = inspect([str(path)], Settings(**settings))
    assert not found.kinds, found.problems
    return [good.example for good in found.examples()]


def only(row: dict[str, Any], means: Any = "helpful") -> tuple[str, Example]:
    form = recognise(row)
    assert form is not None
    return form.name, read_row(row, form, means)


# --- published layouts -----------------------------------------------------------------------------------------------


def test_pku_saferlhf_with_severities_is_read() -> None:
    prompt, texts = "How?", ("Like so.", "Not at all.")
    row = {
        "prompt": prompt,
        "response_0": texts[0],
        "response_1": texts[1],
        "prompt_source": "x",
        "response_0_source": "Alpaca-7B",
        "response_1_source": "Alpaca-7B",
        "is_response_0_safe": False,
        "is_response_1_safe": True,
        "response_0_harm_category": {"Violence": True, "Drugs": False},
        "response_1_harm_category": {"Violence": False, "Drugs": False},
        "response_0_severity_level": 2,
        "response_1_severity_level": 0,
        "better_response_id": 0,
        "safer_response_id": 1,
    }
    name, found = only(row)
    assert name == "pku"
    first = Answer("Like so.", False, 2, ("Violence",))
    assert found == Example((Message("user", prompt),), (first, Answer("Not at all.", True, 0)), 0, 1)


def test_the_single_dimension_file_gives_one_preference_and_no_safety() -> None:
    row = {key: value for key, value in pku(3).items() if "safe" not in key}
    name, found = only(row)
    assert (name, found.better, found.safer, found.answers[0].safe) == ("pku", 1, None, None)


@pytest.mark.parametrize(
    ("row", "safe", "severity", "categories"),
    [
        ({"is_safe": False, "harm_category": {"Drugs": True, "No": False}, "severity_level": 3}, False, 3, ("Drugs",)),
        ({"severity_category": 0, "safety_category": []}, True, 0, ()),
        ({"severity_category": 2, "safety_category": [4]}, False, 2, ("4",)),
        ({"is_safe": True, "category": {"animal_abuse": False}}, True, None, ()),
    ],
)  # fmt: skip
def test_answers_with_safety_labels_are_read_in_all_published_layouts(
    row: dict[str, Any], safe: bool, severity: int | None, categories: tuple[str, ...]
) -> None:
    name, found = only({"prompt": "How?", "response": "So.", **row})
    assert name == "pku-qa"
    assert found.answers == (Answer("So.", safe, severity, categories),)


def test_hh_transcripts_become_turns_and_the_last_replies() -> None:
    name, found = only(hh(1), "harmless")
    assert name == "hh"
    said = [("user", "Question 1?"), ("assistant", "Which one?"), ("user", "The second.")]
    assert [(turn.role, turn.content) for turn in found.prompt] == said
    assert [answer.text for answer in found.answers] == ["Good answer 1.", "Bad answer 1."]
    assert (found.better, found.safer) == (None, 0)


def test_trl_conversations_with_and_without_a_prompt_are_the_same() -> None:
    explicit = only(chat(1))[1]
    shared = chat(1)["prompt"]
    implicit = {name: shared + chat(1)[name] for name in ("chosen", "rejected")}
    with_text = {**implicit, "prompt": "Question 1?"}
    assert only(implicit)[1] == only(with_text)[1] == explicit


@pytest.mark.run
def test_an_implicit_prompt_of_messages_is_the_one_that_trl_finds() -> None:
    from trl.data_utils import extract_prompt

    row = {name: chat(1)["prompt"] + chat(1)[name] for name in ("chosen", "rejected")}
    theirs = extract_prompt(row)
    ours = only(row)[1]
    assert [{"role": turn.role, "content": turn.content} for turn in ours.prompt] == theirs["prompt"]
    assert [answer.text for answer in ours.answers] == [theirs[name][0]["content"] for name in ("chosen", "rejected")]


@pytest.mark.parametrize("ends", [("blue, today.", "green."), ("blue.", "bleak.")])
def test_words_that_two_answers_share_are_no_prompt(ends: tuple[str, str]) -> None:
    """TRL would split there, within a word or within a reply, and the model would learn to go on from it."""
    row = {"chosen": f"The sky is {ends[0]}", "rejected": f"The sky is {ends[1]}"}
    with pytest.raises(RowError, match="words that answers share are none"):
        only(row)


def test_plain_pairs_say_by_their_names_what_they_mean() -> None:
    better = only({"prompt": "q", "better": "a", "worse": "b"}, "harmless")[1]
    cheaper = only({"prompt": "q", "cheaper": "a", "costlier": "b"}, "helpful")[1]
    assert (better.better, better.safer, cheaper.better, cheaper.safer) == (0, None, None, 0)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q"},
        {"instruction": "q"},
        {"Question": "q", "Source": "s"},
        {"messages": [{"role": "user", "content": "q"}]},
    ],
)
def test_prompt_files_are_recognised(row: dict[str, Any]) -> None:
    assert only(row) == ("prompts", Example((Message("user", "q"),)))


def test_a_row_again_in_the_other_order_is_the_same_row_in_pku_form() -> None:
    row = pku(1)
    other = pku(
        1,
        response_0=row["response_1"], response_1=row["response_0"], is_response_0_safe=True, is_response_1_safe=False,
        better_response_id=0, safer_response_id=0,
    )  # fmt: skip
    assert shuffled(only(row)[1]) == shuffled(only(other)[1])


# --- written and read back -------------------------------------------------------------------------------------------

PAIR = Example(
    (Message("user", "Question?"), Message("assistant", "Which?"), Message("user", "This: “é”\n2 < 3.")),
    (Answer("One.\nTwo.", True, 0), Answer("Three, \"four\".", False, 2, ("Drugs",))),
    better=1, safer=0, id="a",
)  # fmt: skip


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("form", WRITABLE)
@pytest.mark.parametrize("dimension", ["helpful", "harmless"])
def test_what_is_written_is_read_back(form: str, suffix: str, dimension: Dimension, tmp_path: Path) -> None:
    path = tmp_path / f"rows{suffix}"
    rows = write_rows(PAIR, form, dimension, plain)
    with Sink(path, form, dimension) as sink:
        for row in rows:
            sink.write(row)
    if form == "answers":  # a pair is no single answer
        assert not path.exists()
        return
    found = examples(path, means=dimension)
    if form == "pku":
        assert [shuffled(example) for example in found] == [shuffled(PAIR)]
        return
    if form == "pku-qa":
        assert [example.answers[0] for example in found] == list(PAIR.answers)
        assert [example.id for example in found] == ["a-0", "a-1"]
    elif form != "prompts":
        label = PAIR.label(dimension)
        assert label is not None
        assert [answer.text for answer in found[0].answers] == [
            PAIR.answers[place].text for place in (label, 1 - label)
        ]
        assert found[0].label(dimension) == 0
        assert found[0].label("harmless" if dimension == "helpful" else "helpful") is None
    assert all(example.prompt == PAIR.prompt for example in found)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_datasets_loads_what_is_written(suffix: str, tmp_path: Path) -> None:
    from datasets import load_dataset

    path = tmp_path / f"rows{suffix}"
    with Sink(path, "pku") as sink:
        for number in range(3):
            for row in write_rows(only(pku(number))[1], "pku", "helpful", plain):
                sink.write(row)
    kind = {".parquet": "parquet", ".arrow": "arrow", ".jsonl": "json"}[suffix]
    loaded = load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert [row["id"] for row in loaded] == ["row-0", "row-1", "row-2"]
    assert loaded[0]["is_response_1_safe"] is not None


def test_data_sets_on_disk_and_by_name_go_through_datasets(tmp_path: Path) -> None:
    """`hf:` names are streamed by `datasets`; a folder stands in for the hub, which tests cannot reach."""
    from datasets import Dataset, DatasetDict

    split = {
        "train": Dataset.from_list([pku(n) for n in range(3)]),
        "test": Dataset.from_list([pku(n) for n in (7, 8)]),
    }
    DatasetDict(split).save_to_disk(str(tmp_path / "saved"))
    assert [example.id for example in examples(tmp_path / "saved")] == ["row-0", "row-1", "row-2", "row-7", "row-8"]
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "train.jsonl").write_bytes(lines(*(pku(n) for n in range(3))))
    (repository / "test.jsonl").write_bytes(lines(pku(7)))
    assert [example.id for example in examples(f"hf:{repository}:test")] == ["row-7"]
    found = inspect([f"hf:{tmp_path / 'nowhere'}"], Settings())
    assert [(problem.kind, problem.line) for problem in found.problems] == [("unreadable", 0)]


def test_json_arrays_folders_and_crlf_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([pku(1), pku(2)], indent=1), encoding="utf-8-sig")
    (tmp_path / "b.jsonl").write_bytes(lines(pku(3)).replace(b"\n", b"\r\n") + b"\r\n" + json.dumps(pku(4)).encode())
    text = 'prompt,better,worse\n"a ""quoted"" word,\nand a line",yes,no\nplain 5" pipe,a,b\n'
    (tmp_path / "c.csv").write_text(text, encoding="utf-8")
    found = examples(tmp_path)
    assert [example.id for example in found] == ["row-1", "row-2", "row-3", "row-4", None, None]
    assert found[4].prompt[0].content == 'a "quoted" word,\nand a line'
    assert found[5].prompt[0].content == 'plain 5" pipe'


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".jsonl.gz"])
def test_an_array_is_read_whatever_its_files_name_says(suffix: str, indent: int | None, tmp_path: Path) -> None:
    content = json.dumps([pku(1), pku(2)], indent=indent).encode()
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    assert [example.id for example in examples(path)] == ["row-1", "row-2"]


def test_a_line_that_is_a_list_hides_no_later_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"[1, 2]\n" + lines(pku(1)))
    found = inspect([str(path)], Settings())
    assert ([problem.kind for problem in found.problems], found.good) == (["not-an-object"], 1)


def test_the_pairs_that_ship_are_whole() -> None:
    for dimension in ("helpful", "harmless"):
        found = inspect([str(sample_file(dimension))], Settings(means=dimension))  # type: ignore[arg-type]
        assert (found.rows, found.good, found.files[0].format) == (100, 100, "hh")


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "plain"])
def test_templates_keep_every_turn_in_order(name: str) -> None:
    text = rendered(TEMPLATES[name], PAIR.prompt)
    places = [text.index(turn.content) for turn in PAIR.prompt]
    assert places == sorted(places)
    assert not any(answer.text in text for answer in PAIR.answers)


def test_templates_by_hand() -> None:
    said = (Message("user", "Hi"), Message("assistant", "Yes?"), Message("user", "Why"))
    assert rendered(TEMPLATES["hh"], said) == "\n\nHuman: Hi\n\nAssistant: Yes?\n\nHuman: Why\n\nAssistant:"
    expected = "BEGINNING OF CONVERSATION: USER: Hi ASSISTANT: Yes?</s> USER: Why ASSISTANT:"
    assert rendered(TEMPLATES["safe-rlhf"], said) == expected
    assert rendered(TEMPLATES["chatml"], said[:1]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert plain(said[:1]) == "Hi"


def test_every_format_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    assert [name for name in FORMATS if f"| `{name}` |" not in text] == []
