"""Rows of text files (JSON lines, a JSON array, CSV), one at a time. A damaged row never hides the next ones."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from pddpo_ray.data.checks.problems import Fault, Limits, Row

CHUNK = 1 << 16
BOM = b"\xef\xbb\xbf"
RECORD_LINES = 1000
"""Most lines of a CSV record; a longer one has a quote that was never closed."""


def json_lines(file: BinaryIO, limits: Limits) -> Iterator[Row | Fault]:
    """One object per line. Blank lines are skipped; so is a byte order mark."""
    for number, line, ended in _lines(file, limits):
        if isinstance(line, Fault):
            yield line
        elif line.strip():
            yield _object(number, line, ended, limits)


def json_array(file: BinaryIO, limits: Limits) -> Iterator[Row | Fault]:
    """Objects of one JSON array; `line` counts them. Nothing after a broken object is read."""
    decoder = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
    text, number, started = "", 0, False
    decode = _incremental_utf8()
    while True:
        chunk = file.read(CHUNK)
        try:
            text = (text + decode(chunk, not chunk)).lstrip()
        except UnicodeDecodeError as error:
            yield Fault(number + 1, "wrong-encoding", _not_utf8(error.object, error.start))
            return
        while text:
            if not started or text[0] in ",]":
                started, text = True, text[1:].lstrip()
                continue
            try:
                value, end = decoder.raw_decode(text)
            except ValueError as error:
                if chunk and isinstance(error, json.JSONDecodeError) and len(text) <= limits.line_bytes:
                    break
                reason = f"element {number + 1} of the array: {_json_reason(error)}; what follows it is not read"
                yield Fault(number + 1, "bad-json", reason, text[: limits.quarantined_characters])
                return
            number, text = number + 1, text[end:].lstrip()
            if isinstance(value, dict):
                yield Row(number, value)
            else:
                yield Fault(number, "not-an-object", f"an element is a {type(value).__name__}, not an object")
        if not chunk:
            return


def delimiter_of(file: BinaryIO) -> str:
    """Comma or semicolon, whichever the header has more of outside of quotes."""
    header = file.readline(1 << 16).decode("utf-8", "replace")
    file.seek(0)
    bare = "".join(header.split('"')[::2])
    return ";" if bare.count(";") > bare.count(",") else ","


def delimited(file: BinaryIO, limits: Limits, delimiter: str) -> Iterator[Row | Fault]:
    """Rows of a CSV file with a header. Empty cells are null."""
    header: list[str] | None = None
    for record in _records(file, limits, delimiter):
        if isinstance(record, Fault):
            if header is None:
                yield Fault(0, "bad-header", f"the first line is no header: {record.reason}")
                return
            yield record
            continue
        line, cells = record
        if header is None:
            # pandas writes its index under no name
            header = [cell.strip() or f"column {number}" for number, cell in enumerate(cells, 1)]
            if len(set(header)) < len(header):
                yield Fault(0, "bad-header", "the header names a column twice")
                return
        elif len(cells) != len(header):
            reason = f"{len(cells)} cells, the header has {len(header)}"
            yield Fault(line, "wrong-cells", reason, delimiter.join(cells)[: limits.quarantined_characters])
        else:
            yield Row(line, {name: cell or None for name, cell in zip(header, cells, strict=True)})


# --- JSON ------------------------------------------------------------------------------------------------------------


def _object(number: int, line: bytes, ended: bool, limits: Limits) -> Row | Fault:
    def fault(kind: str, reason: str) -> Fault:
        return Fault(number, kind, reason, line[: limits.quarantined_characters].decode("utf-8", "backslashreplace"))

    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return fault("wrong-encoding", _not_utf8(line, error.start))
    except RecursionError:
        return fault("bad-json", "nested too deeply")
    except ValueError as error:
        cut = "" if ended else "; the file ends inside this row"
        return fault("bad-json", _json_reason(error) + cut)
    if not isinstance(value, dict):
        return fault("not-an-object", f"the line is a {type(value).__name__}, not an object with fields")
    return Row(number, value)


class _Twice(ValueError):
    """A field that occurs twice, or a constant that is not JSON."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(f"field `{next(name for name in names if names.count(name) > 1)}` is given twice")
    return fields


def _no_constant(name: str) -> None:
    raise _Twice(f"{name} is not JSON")


def _json_reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at character {error.pos + 1}"
    return str(error) if isinstance(error, _Twice) else "a number has too many digits"


# --- bytes to lines --------------------------------------------------------------------------------------------------


def _lines(file: BinaryIO, limits: Limits) -> Iterator[tuple[int, bytes | Fault, bool]]:
    """(number, line, whether it ended in a line break); an over-long line is passed over without being held."""
    number = 0
    while line := file.readline(limits.line_bytes + 1):
        number += 1
        if number == 1 and line.startswith(BOM):
            line = line[len(BOM) :]
        if len(line) <= limits.line_bytes or line.endswith(b"\n"):
            yield number, line, line.endswith(b"\n")
            continue
        head, size = line[: limits.quarantined_characters].decode("utf-8", "backslashreplace"), len(line)
        while not line.endswith(b"\n") and (line := file.readline(CHUNK)):
            size += len(line)
        reason = f"a line of {size:,} bytes; the limit is {limits.line_bytes:,} (--max-line-mb)"
        yield number, Fault(number, "too-long", reason, head), True


def _not_utf8(line: bytes, at: int) -> str:
    return f"not UTF-8: byte 0x{line[at]:02x} at byte {at + 1}; save the file as UTF-8"


def _incremental_utf8() -> Any:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    return decoder.decode


# --- CSV -------------------------------------------------------------------------------------------------------------


def _records(file: BinaryIO, limits: Limits, delimiter: str) -> Iterator[tuple[int, list[str]] | Fault]:
    """(line, cells) of each record. Of a record that never becomes whole only the first line is lost: the lines after
    it are read again."""
    csv.field_size_limit(limits.line_bytes)
    source = _lines(file, limits)
    backlog: list[tuple[int, bytes | Fault, bool]] = []
    lines: list[tuple[int, bytes]] = []
    while True:
        following = backlog.pop() if backlog else next(source, None)
        if following is None and not lines:
            return
        if following is not None and isinstance(following[1], bytes):
            if not lines and not following[1].strip():
                continue
            lines.append((following[0], following[1]))
            outcome = _cells(lines, delimiter)
            size = sum(len(line) for _, line in lines)
            if outcome == "open" and len(lines) < RECORD_LINES and size <= limits.line_bytes:
                continue
        else:
            outcome = "open" if lines else ""
            if following is not None and isinstance(following[1], Fault):
                if lines:
                    backlog.append(following)
                else:
                    yield following[1]
                    continue
        line, text = lines[0]
        if isinstance(outcome, list):
            yield line, outcome
        else:
            reason = "a quoted cell is never closed" if outcome == "open" else outcome
            kind = "wrong-encoding" if reason.startswith("not UTF-8") else "bad-csv"
            yield Fault(line, kind, reason, text[: limits.quarantined_characters].decode("utf-8", "backslashreplace"))
            backlog += [(number, content, True) for number, content in reversed(lines[1:])]
        lines = []


def _cells(lines: list[tuple[int, bytes]], delimiter: str) -> list[str] | str:
    """Cells of one record, `open` while a quote is open, or what is wrong."""
    whole = b"".join(line for _, line in lines)
    if len(lines) > 1 and whole.count(b'"') % 2:
        return "open"
    try:
        rows = list(csv.reader([whole.decode("utf-8")], delimiter=delimiter, strict=True))
    except UnicodeDecodeError as error:
        return _not_utf8(whole, error.start)
    except csv.Error as error:
        return "open" if "unexpected end" in str(error) else f"not CSV: {error}"
    return rows[0] if len(rows) == 1 else f"{len(rows)} records where one should be"
