"""What was run on which card and what never was: a table of the results in this folder's results/gpu.

make gpu GPUS=1                                      # writes build/gpu/rows.json
cp build/gpu/rows.json bench/results/gpu/h100.json   # to be committed
python -m bench.gpu_results                          # writes the table
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.gpu import Hardware, steps

RESULTS = Path("bench/results/gpu")
PAGE = RESULTS / "README.md"
BEGIN, END = "<!-- python -m bench.gpu_results -->\n", "<!-- end of the table -->\n"
NEVER = "not run"
GPUS = (1, 4, 8)


def table(results: list[dict[str, Any]]) -> str:
    """A row for every step of `make gpu` and for what else was run, a column for every card."""
    said = [{row["step"]: _words(row) for row in result["rows"]} for result in results]
    names = all_steps() | {name: None for column in said for name in column}
    heads = [f"`{result['card']}`, {result['date']}; `{result['software']}`" for result in results] or ["no card"]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name in names:
        cells = [column.get(name, NEVER) for column in said] or [NEVER]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def all_steps() -> dict[str, None]:
    """On one GPU and on several: each has a recipe of its own."""
    return {name: None for gpus in GPUS for name in steps(Hardware(gpus), Path(), "MODEL")}


def _words(row: dict[str, Any]) -> str:
    return f"{'passed' if row['passed'] else 'NOT'}: {row['said']}"


def committed() -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]


def page_with(text: str, made: str) -> str:
    """The page with this table in its place."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + made + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), table(committed())), encoding="utf-8")
