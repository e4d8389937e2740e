"""D1: what `pddpo data check`, `convert` and `stats` take for a million rows, against ten thousand.

Every command runs in a process of its own, which tells its largest resident set (`VmHWM`, Linux) and its processor
seconds when it ends. One row in a thousand is a repeat, so that every command also finds, sets aside and writes down.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ratio import Ratio, of_pairs

COMMANDS = ("check", "convert", "stats")
SIZES = (10_000, 100_000, 1_000_000)
REPEATED = 1000
"""One row in so many is there twice."""
COMMAND = """
import sys, time
from pddpo_ray.cli.main import main
began = time.monotonic()
try:
    main()
except SystemExit as end:
    code = end.code or 0
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(f"code={code} kib={peak.split()[1]} cpu={time.process_time()} wall={time.monotonic() - began}", file=sys.stderr)
"""


@dataclass(frozen=True)
class Taken:
    """What one command took: bytes of its largest resident set, and seconds of the processor and of the clock."""

    peak: float
    cpu: float
    wall: float


def run(form: str, name: str = "D1", *, sizes: Sequence[int] = SIZES) -> list[Ratio]:
    """Peak memory of each command with the fewest rows over that with the most: 1 says that the number does not matter.

    Once: a peak hardly moves, and a million rows take minutes. RuntimeError where a command does not count right.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = {size: Path(folder) / f"{size}.{form}" for size in sizes}
        for size, file in files.items():
            WRITERS[form](rows(size), file)
        return [
            _ratio(
                f"{name}-{command}",
                f"pddpo data {command}, {form}",
                {size: _measured(command, file, size, Path(folder)) for size, file in files.items()},
            )
            for command in COMMANDS
        ]


def _ratio(name: str, what: str, taken: dict[int, Taken]) -> Ratio:
    few, many = min(taken), max(taken)
    details: dict[str, float] = {}
    for size, one in taken.items():
        details |= {
            f"MiB with {size:,}": one.peak / 2**20,
            f"CPU-s with {size:,}": one.cpu,
            f"s with {size:,}": one.wall,
        }
    details["bytes per row"] = (taken[many].peak - taken[few].peak) / (many - few)
    what = f"{what}: peak memory with {few:,} rows / with {many:,}"
    return of_pairs(name, what, [(taken[few].peak, taken[many].peak)], details=details)


def _measured(command: str, file: Path, size: int, folder: Path) -> Taken:
    out = folder / f"out.{'parquet' if file.suffix == '.parquet' else 'jsonl.gz'}"
    further = ["--to", "trl", "--out", str(out)] if command == "convert" else []
    arguments = [sys.executable, "-c", COMMAND, "data", command, str(file), "--json", *further]
    # the index lies in the temporary folder, so that it goes even if the command is killed
    ended = subprocess.run(arguments, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(folder)})
    told = dict(word.split("=") for word in ended.stderr.splitlines()[-1].split())
    if int(told["code"]) != (command == "check"):  # repeats are something wrong, which `check` says by its exit code
        raise RuntimeError(f"{' '.join(arguments[3:])} failed: {ended.stderr}")
    counted = json.loads(ended.stdout)
    if (counted["rows"], counted["bad"]) != (size, {"duplicate": size // REPEATED}):
        raise RuntimeError(f"{' '.join(arguments[3:])} counts {counted['rows']:,} rows and {counted['bad']}")
    return Taken(1024.0 * int(told["kib"]), float(told["cpu"]), float(told["wall"]))


# --- rows -------------------------------------------------------------------------------------------------------------


def rows(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Preference rows in the form of PKU-SafeRLHF with some 300 bytes of text, every 1,000th a repeat of its neighbour.

    An id per row, except for the repeats: those are found by what they say.
    """
    rng = random.Random(seed)
    words = [f"{rng.getrandbits(20):05x}" for _ in range(5000)]
    row: dict[str, Any] = {}
    for number in range(1, count + 1):
        if number % REPEATED:
            said = [" ".join(rng.choices(words, k=length)) for length in (10, 20, 20)]
            row = {
                "id": f"row-{number}",
                "prompt": said[0],
                "response_0": said[1],
                "response_1": said[2],
                "is_response_0_safe": number % 2 == 0,
                "is_response_1_safe": True,
                "better_response_id": number % 2,
                "safer_response_id": 1,
            }
            yield row
        else:
            yield row | {"id": f"row-{number}"}


def _json_lines(values: Iterator[dict[str, Any]], path: Path) -> None:
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in values)


def _parquet(values: Iterator[dict[str, Any]], path: Path) -> None:
    """One row group, as pandas and `datasets` write: the hardest to read in parts."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    columns: dict[str, list[Any]] = {}
    for row in values:
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    table = pa.table(columns)
    pq.write_table(table, path, row_group_size=len(table))


WRITERS: dict[str, Callable[[Iterator[dict[str, Any]], Path], None]] = {"jsonl.gz": _json_lines, "parquet": _parquet}
