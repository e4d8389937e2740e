"""What a finished run computed, read from its journal by SQL alone, so that journals of any version can be read."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

COLUMNS = {
    "version": "run number name sha256",
    "dual_step": "run round constraint value multiplier_before multiplier_after",
    "safety_label": "run round constraint position source label policy_version",
    "measurement": "run round phase limit position opinion value missing policy_version",
    "pair": "run id round position first second",
    "pair_label": "run pair source helpful harmful further",
    "sample": "run id round policy_version token_ids text prompt",
    "task": "question_round position prompt first second",
    "question_round": "id round purpose",
}
"""Tables and columns by their names of version 0.1."""
LATER: dict[str, Sequence[str]] = {}
"""Table, or table.column (both of version 0.1) -> names that it has had since."""


def numbers_of(journal: Path) -> dict[str, dict[str, str]]:
    """Versions by name, multipliers by dual step (all digits), and hashes over labels and texts of every round.

    Keys begin with `offline` where they belong to the comparison with offline PD-DPO.
    """
    with closing(_opened(journal)) as database:
        versions, steps, pairs, pair_labels, samples = (
            _rows(database, table) for table in ("version", "dual_step", "pair", "pair_label", "sample")
        )
        safety = _safety(database)
    texts = {(row["run"], row["id"]): row["text"] for row in samples}
    pair_of = {(row["run"], row["id"]): row for row in pairs}
    labels: list[tuple[Any, ...]] = [
        (row["run"], row["round"], "safety", *_values(row, "constraint position source policy_version label"))
        for row in safety
    ]
    for row in pair_labels:
        pair = pair_of[row["run"], row["pair"]]
        shown = (texts[row["run"], pair["first"]], texts[row["run"], pair["second"]])
        said = (row["source"], row["helpful"], row["harmful"], _canonical(row["further"]))
        labels.append((row["run"], pair["round"], "pairs", pair["position"], *shown, *said))
    drawn = [
        (row["run"], row["round"], "answers", *_values(row, "policy_version prompt text"), _canonical(row["token_ids"]))
        for row in samples
    ]
    return {
        "versions": {
            f"{_part(row['run'])}{row['name']}": row["sha256"]
            for row in sorted(versions, key=lambda row: (_part(row["run"]), row["number"]))
        },
        "multipliers": {
            f"{_part(row['run'])}round {row['round']} {row['constraint']}": " ".join(
                repr(row[name]) for name in ("value", "multiplier_before", "multiplier_after")
            )
            for row in sorted(steps, key=lambda row: (_part(row["run"]), row["round"], row["constraint"]))
        },
        "labels": _hashes(labels),
        "texts": _hashes(drawn),
    }


def questions_of(journal: Path) -> list[dict[str, Any]]:
    """All questions that people were asked, in the order in which `pddpo annotations import` gives answers to them."""
    with closing(_opened(journal)) as database:
        asked, batches = _rows(database, "task"), {row["id"]: row for row in _rows(database, "question_round")}

    def order(row: dict[str, Any]) -> tuple[Any, ...]:
        batch = batches[row["question_round"]]
        return batch["round"], batch["purpose"], row["position"]

    return sorted(asked, key=order)


def _hashes(rows: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    """A hash over the rows of each (run, round, kind), whatever their order in the table."""
    groups = defaultdict(list)
    for run, number, kind, *content in rows:
        groups[_part(run), number, kind].append(json.dumps(content))
    return {
        f"{part}round {number} {kind}": hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
        for (part, number, kind), lines in sorted(groups.items())
    }


def _safety(database: sqlite3.Connection) -> list[dict[str, Any]]:
    """Safety labels under their names of version 0.1; since 0.3 they are measurements with a value or a reason."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'measurement'").fetchone():
        return _rows(database, "safety_label")
    names = {None: None, 0.0: "safe", 1.0: "unsafe"}
    return [
        {**row, "constraint": row["limit"], "source": row["opinion"], "label": names[row["value"]] or row["missing"]}
        for row in _rows(database, "measurement")
        if row["phase"] == "safety"
    ]


def _part(run: str) -> str:
    return "offline " if run.endswith("-offline") else ""


def _canonical(stored: str) -> str:
    return json.dumps(json.loads(stored), sort_keys=True)


def _values(row: dict[str, Any], names: str) -> list[Any]:
    return [row[name] for name in names.split()]


def _opened(journal: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)


def _rows(database: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    """Rows under the names of version 0.1. Raises LookupError where a table or column has a name unknown to LATER."""
    known = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    held_in = _present(table, table, known)
    known = [column[1] for column in database.execute(f'PRAGMA table_info("{held_in}")')]
    names = COLUMNS[table].split()
    wanted = ", ".join(f'"{_present(f"{table}.{name}", name, known)}"' for name in names)
    return [dict(zip(names, row, strict=True)) for row in database.execute(f'SELECT {wanted} FROM "{held_in}"')]


def _present(key: str, first: str, known: Sequence[str]) -> str:
    for name in (first, *LATER.get(key, ())):
        if name in known:
            return name
    raise LookupError(f"{key} is not among {', '.join(known)}: say in LATER what it is called now")
