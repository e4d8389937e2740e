"""Every kind of damage: one clear report with file, line and reason, no traceback, and the good rows are kept."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pddpo_ray.cli.main import main
from tests.support.data_rows import chat, hh, lines, pku, trl

GOOD = [pku(number) for number in range(6)]


@dataclass(frozen=True)
class Damage:
    """A file, and what is to be said about it: kind and line of the report, words of its reason, rows that survive."""

    kind: str
    content: bytes
    line: int
    words: str
    good: int
    name: str = "data.jsonl"
    form: str = "pku"
    options: tuple[str, ...] = ()
    set_aside: int = 1


def jsonl(kind: str, bad: Any, words: str, **more: Any) -> Damage:
    """Good PKU rows with a bad one as the fourth line."""
    return Damage(kind, lines(*GOOD[:3], bad, *GOOD[3:]), 4, words, 6, **more)


def of(make: Callable[..., dict[str, Any]], form: str, kind: str, bad: dict[str, Any], words: str) -> Damage:
    """As `jsonl`, with rows of another format."""
    good = [make(number) for number in range(6)]
    return Damage(kind, lines(*good[:3], bad, *good[3:]), 4, words, 6, form=form)


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def csv(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in ("prompt,better,worse", *rows)).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def arrow(rows: list[dict[str, Any]], batch: int) -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return sink.getvalue()


def broken_utf8_column() -> bytes:
    rows = [without(row, "id") for row in GOOD]
    table = pa.Table.from_pylist(rows)
    prompts = [row["prompt"].encode() for row in rows]
    prompts[3] = b"caf\xe9 near here?"
    column = pa.Array.from_buffers(pa.string(), len(prompts), pa.array(prompts, pa.binary()).buffers())
    sink = io.BytesIO()
    pq.write_table(table.set_column(0, "prompt", column), sink)
    return sink.getvalue()


def cut(content: bytes) -> bytes:
    return content[: len(content) * 3 // 4]


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def archive() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        file.writestr("data.jsonl", lines(*GOOD))
    return sink.getvalue()


PAIRS = ("q one,yes one,no one", "q two,yes two,no two", "q three,yes three,no three")
MANY = [pku(number) for number in range(400)]
LATIN = json.dumps(pku(9, prompt="caf\u00e9?"), ensure_ascii=False).encode("latin-1")
TRL_ROW = trl(9)

DAMAGE = {
    # the file
    "UTF-16 file": Damage("wrong-encoding", lines(*GOOD).decode().encode("utf-16"), 0, "UTF-16", 0, set_aside=1),
    "empty file": Damage("empty-file", b"", 0, "empty", 0),
    "blank file": Damage("empty-file", b"\n\n", 0, "no rows", 0),
    "truncated gzip": Damage(
        "broken-compression", cut(gzip.compress(lines(*MANY))), -1, "ends in the middle", -1, name="data.jsonl.gz"
    ),
    "truncated xz": Damage(
        "broken-compression", cut(lzma.compress(lines(*MANY))), -1, "ends in the middle", -1, name="data.jsonl.xz"
    ),
    "damaged gzip": Damage(
        "broken-compression", flipped(gzip.compress(lines(*GOOD)), -6), 7, "is damaged", 6, name="data.jsonl.gz"
    ),
    "not gzip": Damage("broken-compression", b"\x00\x01\x02\x03" * 9, 0, "not compressed", 0, name="data.jsonl.gz"),
    "zip archive": Damage("unreadable", archive(), 0, "unpack", 0),
    "no known fields": Damage("unknown-format", lines({"alpha": 1, "beta": 2}), 0, "alpha, beta", 0),
    "truncated Parquet": Damage("unreadable", parquet(GOOD)[:-40], 0, "Parquet stops", 0, name="data.parquet"),
    "truncated Arrow": Damage(
        "unreadable", arrow(MANY, 100)[:-9000], 0, "Arrow stops after row 300", 300, name="data.arrow"
    ),
    "CSV header names a column twice": Damage("bad-header", b"a,a\n1,2\n", 0, "names a column twice", 0, "data.csv"),
    "pointer of Git LFS": Damage(
        "unreadable", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 7\n", 0, "git lfs pull", 0
    ),
    # the line
    "wrong encoding": jsonl("wrong-encoding", LATIN, "byte 0xe9"),
    "not JSON": jsonl("bad-json", b'{"prompt": "q", "response_0": ', "not JSON"),
    "file ends inside a row": Damage(
        "bad-json", lines(*GOOD) + b'{"prompt": "q", "resp', 7, "the file ends inside this row", 6
    ),
    "a list in place of an object": jsonl("not-an-object", ["a", "b"], "is a list"),
    "a field given twice": jsonl("bad-json", b'{"prompt": "a", "prompt": "b"}', "`prompt` is given twice"),
    "not a number": jsonl("bad-json", b'{"prompt": "a", "better_response_id": NaN}', "NaN is not JSON"),
    "a number without end": jsonl("bad-json", b'{"id": ' + b"9" * 5000 + b"}", "too many digits"),
    "nested too deeply": jsonl("bad-json", b'{"a":' * 100_000, "nested too deeply"),
    "10 MB line": jsonl("too-long", pku(9, response_0="x" * 10_000_000), "bytes; the limit is 8,388,608"),
    "10 MB text in a column": Damage(
        "too-long", parquet([*GOOD[:3], pku(9, response_0="x" * 10_000_000), *GOOD[3:]]), 4, "10,000,000 characters", 6,
        name="data.parquet",
    ),
    "wrong encoding in a column": Damage(
        "wrong-encoding", broken_utf8_column(), 4, "not UTF-8: byte 0xe9", 5, name="data.parquet"
    ),
    "broken JSON array": Damage(
        "bad-json", b"[" + b",".join(json.dumps(row).encode() for row in GOOD) + b', {"prompt" 3}]', 7, "element 7", 6,
        name="data.json",
    ),
    "CSV row with a cell too many": Damage(
        "wrong-cells", csv(*PAIRS, "q four,yes,no,more", "q five,yes five,no five"), 5, "4 cells, the header has 3", 4,
        name="data.csv", form="pairs",
    ),
    "CSV quote that is never closed": Damage(
        "bad-csv", csv(*PAIRS, '"q four,yes,no', "q five,yes five,no five"), 5, "never closed", 4,
        name="data.csv", form="pairs",
    ),
    # the fields
    "missing field": jsonl("missing-field", without(pku(9), "response_1"), "no field `response_1`"),
    "null field": jsonl("null-field", pku(9, response_0=None), "`response_0` is null"),
    "null field in a column": Damage(
        "null-field", parquet([*GOOD[:3], pku(9, prompt=None), *GOOD[3:]]), 4, "`prompt` is null", 6, "data.parquet"
    ),
    "empty text": jsonl("empty-text", pku(9, response_0="  \n"), "`response_0` is empty"),
    "number in place of text": jsonl("wrong-type", pku(9, prompt=17), "`prompt` is a int, not text"),
    "NUL character": jsonl("broken-text", pku(9, response_0="a\x00b"), "NUL"),
    "half a surrogate pair": jsonl("broken-text", pku(9, response_0="a\ud83d"), "surrogate"),
    "equal responses": jsonl("equal-responses", pku(9, response_0="Same.", response_1="Same. "), "the same text"),
    "label 2": jsonl("label-out-of-range", pku(9, better_response_id=2), "`better_response_id` is 2"),
    "label -1": jsonl("label-out-of-range", pku(9, safer_response_id=-1), "`safer_response_id` is -1"),
    "label 0.5": jsonl("wrong-type", pku(9, better_response_id=0.5), "not a whole number"),
    "safety flag in words": jsonl("wrong-type", pku(9, is_response_0_safe="perhaps"), "`is_response_0_safe`"),
    "severity 7": jsonl("label-out-of-range", pku(9, response_1_severity_level=7), "must be 0, 1, 2 or 3"),
    "the unsafe answer called safer": jsonl("labels-disagree", pku(9, safer_response_id=0), "only the other one"),
    "safe and severe": jsonl("labels-disagree", pku(9, response_1_severity_level=3), "is true and"),
    "text changed after its checksum": jsonl("wrong-checksum", pku(9, response_0_sha256="0" * 64), "SHA-256"),
    "id that is a list": jsonl("wrong-type", pku(9, id=["a"]), "`id` is a list"),
    "row of another format": jsonl("mixed-formats", TRL_ROW, "TRL preference, standard"),
    "transcripts of two dialogues": of(
        hh, "hh", "different-prompts", hh(9, rejected=hh(8)["rejected"]), "differ before the last reply"
    ),
    "transcript with two human turns": of(
        hh, "hh", "bad-transcript", hh(9, chosen="\n\nHuman: a\n\nHuman: b\n\nAssistant: c"), "do not alternate"
    ),
    "transcript without a human turn": of(
        hh, "hh", "bad-transcript", hh(9, chosen="Assistant: c"), "does not begin with a Human turn"
    ),
    "transcript without a reply": of(
        hh, "hh", "bad-transcript", hh(9, rejected="\n\nHuman: a"), "does not end with an Assistant turn"
    ),
    "unknown role": of(
        chat, "trl-chat", "unknown-role", chat(9, chosen=[{"role": "robot", "content": "a"}]), "`chosen[0].role`"
    ),
    "message without content": of(
        chat, "trl-chat", "null-field", chat(9, chosen=[{"role": "assistant"}]), "`chosen[0].content` is null"
    ),
    "prompt that ends with the assistant": of(
        chat, "trl-chat", "wrong-turns",
        chat(9, prompt=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]), "end with the user",
    ),
    "text in place of messages": of(chat, "trl-chat", "mixed-formats", trl(9), "TRL preference, standard"),
    # between rows
    "the same row again": jsonl("duplicate", GOOD[1], "as {file}:2"),
    "the same row with its answers exchanged": jsonl(
        "duplicate",
        pku(1, id="other", response_0=pku(1)["response_1"], response_1=pku(1)["response_0"],
            is_response_0_safe=True, is_response_1_safe=False, better_response_id=0, safer_response_id=0),
        "as {file}:2",
    ),
    "the same id again": jsonl("duplicate-id", pku(9, id="row-1"), "the same id as {file}:2"),
    "opposite labels": Damage(
        "contradiction", lines(*GOOD[:3], pku(9), *GOOD[3:], pku(9, id="b", better_response_id=0)), 4,
        "the opposite label for the same responses in {file}:8", 6, set_aside=2,
    ),
    "prompt of the other split": jsonl(
        "leakage", pku(9, prompt="  HELD OUT question? "), "also in the held-out {held}:1",
        options=("--held-out", "{held}"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_reported_once_and_good_rows_are_kept(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage = DAMAGE[name]
    file, held, out = tmp_path / damage.name, tmp_path / "held.jsonl", tmp_path / "out.jsonl"
    file.write_bytes(damage.content)
    held.write_bytes(lines(pku(77, prompt="Held out  question?")))
    options = [option.format(held=held) for option in damage.options]
    code = run("convert", str(file), "--out", str(out), "--to", damage.form, *options)
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    told = [line for line in printed.out.splitlines() if line.startswith(f"{file}:") and f": {damage.kind}: " in line]
    assert len(told) == damage.set_aside, printed.out
    assert damage.words.format(file=file, held=held) in told[0]
    if damage.line >= 0:
        assert told[0].startswith(f"{file}:{damage.line}: " if damage.line else f"{file}: ")
    aside = [json.loads(line) for line in (tmp_path / "out.jsonl.quarantine.jsonl").read_text().splitlines()]
    assert [entry["kind"] for entry in aside] == [damage.kind] * damage.set_aside
    written = out.read_text().splitlines() if out.exists() else []
    if damage.good >= 0:
        assert len(written) == damage.good
        assert code == (0 if damage.good else 1)
    else:
        assert 0 < len(written) < len(MANY)
        assert [json.loads(line)["id"] for line in written] == [row["id"] for row in MANY[: len(written)]]


def test_damage_comes_in_at_least_thirty_kinds() -> None:
    assert len(DAMAGE) >= 30
    assert len({damage.kind for damage in DAMAGE.values()}) >= 25


def test_a_damaged_file_does_not_stop_the_next_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, whole = tmp_path / "broken.jsonl.gz", tmp_path / "whole.jsonl"
    broken.write_bytes(cut(gzip.compress(lines(*MANY))))
    whole.write_bytes(lines(*(pku(1000 + number) for number in range(5))))
    assert run("convert", str(broken), str(whole), "--out", str(tmp_path / "out.jsonl")) == 0
    ids = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert ids[-5:] == [f"row-{1000 + number}" for number in range(5)]
    capsys.readouterr()


def test_strict_stops_at_the_first_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "data.jsonl"
    file.write_bytes(lines(GOOD[0], b"{", GOOD[1]))
    assert run("convert", str(file), "--out", str(tmp_path / "out.jsonl"), "--strict") == 1
    assert capsys.readouterr().err.startswith(f"pddpo: {file}:2: bad-json: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl"]


def test_quarantine_holds_the_row_to_be_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, aside = tmp_path / "data.jsonl", tmp_path / "aside.jsonl"
    bad = pku(9, better_response_id=2)
    file.write_bytes(lines(GOOD[0], bad, LATIN))
    assert run("check", str(file), "--quarantine", str(aside)) == 1
    capsys.readouterr()
    first, second = (json.loads(line) for line in aside.read_text().splitlines())
    assert (first["row"], first["line"]) == (bad, 2)
    assert "caf\\xe9" in second["text"]


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["data", *words])
    return int(ended.value.code or 0)
