"""What is found between rows agrees with a plain count in memory; memory does not grow; runs are a source of data."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.data import Settings, inspect
from pddpo_ray.data.checks.row_index import Entry, RowIndex, key_of
from pddpo_ray.data.checks.summary import Histogram
from pddpo_ray.data.files import column_files
from pddpo_ray.records import HARM, LabelledPair, Pair, Prompt, Response, Verdict
from tests.support import data_rows
from tests.support.data_rows import lines, pku
from tests.support.tiny_language_model import word_tokenizer


def test_equal_keys_meet_wherever_they_lie(tmp_path: Path) -> None:
    """20,000 entries over 3,000 keys, spilled to disk many times, against a dictionary."""
    rng = random.Random(0)
    index = RowIndex(tmp_path, "x", flush_bytes=1000)
    expected: dict[str, list[tuple[int, int]]] = {}
    for row in range(20_000):
        word, code = f"key {rng.randrange(3000)}", rng.randrange(81)
        index.add(key_of(word), Entry(row, rng.randrange(3), row + 1, code))
        expected.setdefault(word, []).append((row, code))
    found = [[(entry.row, entry.code) for entry in group] for group in index.groups()]
    assert any(path.stat().st_size for path in tmp_path.iterdir())
    assert sorted(found) == sorted(group for group in expected.values() if len(group) > 1)
    assert index.distinct() == len(expected)


def test_repeats_and_contradictions_agree_with_a_count_in_memory(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = []
    for _ in range(400):
        row = {key: value for key, value in pku(rng.randrange(60)).items() if "safe" not in key}
        del row["id"]
        row["better_response_id"] = rng.choice([0, 0, 0, 0, 0, 0, 1, None])
        if rng.random() < 0.5:
            row["response_0"], row["response_1"] = row["response_1"], row["response_0"]
            row["better_response_id"] = {0: 1, 1: 0, None: None}[row["better_response_id"]]
        rows.append(row)
    (tmp_path / "a.jsonl").write_bytes(lines(*rows))
    found = inspect([str(tmp_path / "a.jsonl")], Settings())
    assert found.kinds == _expected(rows)
    kept = [good.example for good in found.examples()]
    assert len(kept) == found.good == 400 - sum(found.kinds.values())
    tolerant = inspect([str(tmp_path / "a.jsonl")], Settings(keep=frozenset({"duplicate", "contradiction"})))
    assert tolerant.good == 400
    assert tolerant.tolerated["contradiction"] == found.kinds["contradiction"]


def _expected(rows: list[dict[str, Any]]) -> Counter[str]:
    preferred = [None if (b := row["better_response_id"]) is None else row[f"response_{b}"] for row in rows]
    by_prompt: dict[str, set[str]] = {}
    for row, text in zip(rows, preferred, strict=True):
        if text is not None:
            by_prompt.setdefault(row["prompt"], set()).add(text)
    kinds, seen = Counter[str](), set()
    for row, text in zip(rows, preferred, strict=True):
        if text is not None and len(by_prompt[row["prompt"]]) > 1:
            kinds["contradiction"] += 1
        elif (row["prompt"], text) in seen:
            kinds["duplicate"] += 1
        seen.add((row["prompt"], text))
    return kinds


def test_histograms_agree_with_numpy() -> None:
    values = np.random.default_rng(0).integers(1, 300, 1000)
    histogram = Histogram()
    for value in values:
        histogram.add(int(value))
    found = histogram.summary()
    assert found["mean"] == pytest.approx(values.mean())
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert found[name] == np.quantile(values, share, method="inverted_cdf")
    assert found["at_most"]["64"] == ((values > 32) & (values <= 64)).sum()
    assert sum(found["at_most"].values()) == 1000


def test_statistics_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        pku(0, prompt="abcd", response_0="xx", response_1="yyyy", better_response_id=0, safer_response_id=1),
        pku(1, prompt="ef", response_0="zzz", response_1="w", better_response_id=0, safer_response_id=1),
    ]
    (tmp_path / "a.jsonl").write_bytes(lines(*rows))
    found = run(capsys, 0, "stats", str(tmp_path / "a.jsonl"), "--json")["statistics"]
    assert found["preferences"]["helpful"] == {"labels": 2, "first_preferred": 1.0, "longer_preferred": 0.5}
    assert found["preferences"]["harmless"]["longer_preferred"] == 0.5
    assert (found["helpful_and_harmless_opposed"], found["answers_safe"]) == (1.0, 0.75)
    assert found["prompt_and_longest_answer"]["max"] == 8
    with pytest.raises(SystemExit):
        main(["data", "stats", str(tmp_path / "a.jsonl")])
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "preferences: helpful labels 2, first preferred 1, longer preferred 0.5" in printed
    assert "answers safe 0.75" in printed
    assert f"to 1 25% {15 * '█'}" in printed
    assert printed[-1] == "2 of 2 rows are good"


def test_lengths_in_tokens_limits_and_special_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    word_tokenizer().save_pretrained(tmp_path / "tokenizer")
    rows = [
        pku(0, prompt="word1 word2 ", response_0="word3", response_1="word4 word5 word6"),
        pku(1, prompt="word1 ", response_0="word3 " * 20, response_1="word4"),
        pku(2, prompt="word2 ", response_0="word3 <eos> word4", response_1="word4"),
    ]
    (tmp_path / "a.jsonl").write_bytes(lines(*rows))
    options = ("--tokenizer", str(tmp_path / "tokenizer"), "--json")
    found = run(capsys, 0, "stats", str(tmp_path / "a.jsonl"), *options)
    assert found["bad"] == {"special-token": 1}
    assert found["statistics"]["length_unit"] == "tokens"
    assert found["statistics"]["prompt_and_longest_answer"]["max"] == 21
    found = run(capsys, 1, "check", str(tmp_path / "a.jsonl"), "--max-tokens", "10", *options)
    assert found["bad"] == {"too-many-tokens": 1, "special-token": 1}


def test_a_tokenizers_own_chat_template_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ m.role }}] {{ m.content }} {% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    said = [{"role": "user", "content": "word1"}]
    bad = [{"role": "system", "content": "word2"}, *said]
    reply = {name: [{"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    (tmp_path / "a.jsonl").write_bytes(lines({"prompt": said, **reply}, {"prompt": bad, **reply}))
    options = ("--to", "trl", "--template", "tokenizer", "--tokenizer", str(tmp_path / "tokenizer"))
    found = run(capsys, 0, "convert", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "b.jsonl"), *options, "--json")
    assert found["bad"] == {"bad-template": 1}
    row = json.loads((tmp_path / "b.jsonl").read_text())
    assert row == {"prompt": "[user] word1 [assistant] ", "chosen": "chosen", "rejected": "rejected"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "nowhere.jsonl"], "there is no file nowhere.jsonl"),
        (["check", "owner/name"], "hf:owner/name"),
        (["check", "{file}", "--format", "word"], "there is no format 'word'"),
        (["check", "{file}", "--keep", "everything"], "--keep everything"),
        (["check", "{file}", "--template", "own"], "no chat template 'own'"),
        (["check", "{file}", "--max-tokens", "3"], "add --tokenizer"),
        (["convert", "{file}", "--out", "{file}"], "one of the files that are read"),
        (["convert", "{file}", "--out", "out.csv"], "CSV is read, not written"),
        (["convert", "{file}", "--out", "out.txt"], "must end with"),
        (["convert", "{file}", "--out", "out.jsonl", "--to", "word"], "--to word is unknown"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_read(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a.jsonl"
    file.write_bytes(lines(pku(1)))
    with pytest.raises(SystemExit) as ended:
        main(["data", *(word.format(file=file) for word in words)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]


@pytest.mark.run
def test_a_run_is_exported_and_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pddpo_ray.driver.run import run_recipe
    from pddpo_ray.journal import read_journal

    small = ["rounds=1", "feedback.responses=8", "limits.cost.labels_each=3", "offline.pairs=16", "report.html=false"]
    run_recipe(load("tabular", small), tmp_path / "run")
    found = run(
        capsys, 0, "convert", str(tmp_path / "run"), "--to", "pku", "--out", str(tmp_path / "p.parquet"), "--json"
    )
    with read_journal(str(tmp_path / "run" / "journal.sqlite"), "run") as journal:
        pairs, safety = journal.pairs(), journal.safety()
    assert found["written"] == len(pairs)
    examples = [good.example for good in inspect([str(tmp_path / "p.parquet")], KEEP).examples()]
    first = pairs[0].labelled
    texts = {first.pair.first.text: 0, first.pair.second.text: 1}
    index = {Verdict.FIRST: 0, Verdict.SECOND: 1}
    assert examples[0].better is not None
    assert examples[0].safer is not None
    assert texts[examples[0].answers[examples[0].better].text] == index[first.helpful]
    assert texts[examples[0].answers[examples[0].safer].text] == 1 - index[first.label(HARM)]
    for name in ("m.jsonl", "m.parquet"):
        out = tmp_path / name
        assert run(capsys, 0, "measurements", str(tmp_path / "run"), "--out", str(out), "--json")["written"] == 8 * 3
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert rows == pq.read_table(tmp_path / "m.parquet").to_pylist()
    verdicts = {item.response.id: [label is Verdict.UNSAFE for label in item.labels] for item in safety}
    assert {name: [row["value"] for row in rows if row["id"] == name] for name in verdicts} == verdicts
    assert {(row["round"], row["limit"], row["source"], row["missing"], row["person"]) for row in rows} == {
        (1, "cost", "world", "", None)
    }
    assert {row["prompt"] for row in rows} == {item.response.prompt.text for item in safety}


KEEP = Settings(keep=frozenset({"duplicate", "duplicate-id", "contradiction"}))


def test_abstained_and_failed_labels_are_exported_as_no_label() -> None:
    from pddpo_ray.data.runs import pair_row

    prompt = Prompt("p", (1,), "q")
    first, second = (Response(name, prompt, (1,), name, 1, 0) for name in ("a", "b"))
    row = pair_row(LabelledPair(Pair("x", first, second), Verdict.ABSTAIN, {HARM: Verdict.FIRST}))
    assert (row["better_response_id"], row["safer_response_id"]) == (None, 1)


@pytest.mark.full
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """Ten times the rows, 60 MB in place of 6: the same memory but for one byte a row."""
    peaks = []
    for rows in (10_000, 100_000):
        path = tmp_path / f"{rows}.jsonl"
        data_rows.generate(rows, path)
        words = ["data", "convert", str(path), "--to", "trl", "--out", str(tmp_path / "out.parquet"), "--show", "0"]
        program = (
            "import resource, sys\nfrom pddpo_ray.cli.main import main\n"
            f"try:\n    main({words!r})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
        assert f"{rows:,} written" in done.stdout
        assert f"{rows // 1000:,} duplicate" in done.stdout
        peaks.append(int(done.stderr))
    assert peaks[1] - peaks[0] < 30, peaks


def run(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> dict[str, Any]:
    """What a `pddpo data` command prints as JSON, after it ended with this code."""
    with pytest.raises(SystemExit) as ended:
        main(["data", *words])
    assert (ended.value.code or 0) == code
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


@pytest.mark.slow
def test_a_parquet_file_in_one_row_group_is_read_in_parts(tmp_path: Path) -> None:
    """Some 30 MB that do not compress; by default Arrow reads whole columns of a row group ahead."""
    rng = random.Random(0)
    path = tmp_path / "one-group.parquet"
    texts = {name: [rng.randbytes(50).hex() for _ in range(100_000)] for name in ("prompt", "chosen", "rejected")}
    pq.write_table(pa.table(texts), path, row_group_size=100_000)
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for _ in column_files.parquet(path):
        most, count = max(most, pa.total_allocated_bytes() - before), count + 1
    assert count == 100_000
    assert most < path.stat().st_size / 2
