"""Whether a change of the code changed a number: every recipe and method at a small size, before and after.

    python -m tools.same_numbers record --tree DIR --out BEFORE.json      # DIR: a checkout; again for the other one
    python -m tools.same_numbers compare BEFORE.json AFTER.json           # exit code 1 if a number differs

A run is an ordinary `pddpo train` in a process of its own, and what it computed is read from its journal, so that both
checkouts may have other files, classes and tables inside. Both recordings belong to one machine: another processor
rounds differently. People are files here: simulated ones answer as their threads happen to be scheduled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.run_numbers import numbers_of, questions_of
from tools.small_runs import LEFT_OUT, MODES, Case, cases

JOURNAL = "journal.sqlite"
PARKED = 3
"""Exit code of a run that waits for people."""
COMPARED = ("versions", "multipliers", "labels", "texts")


# --- one run ---------------------------------------------------------------------------------------------------------


class Checkout:
    """The command line of a checkout."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree.absolute()
        self._lab = self.tree / "lab"
        if (self._lab / "pyproject.toml").exists():  # its names are found by the metadata beside it
            described = [sys.executable, "-c", "import setuptools; setuptools.setup()", "--quiet", "egg_info"]
            subprocess.run(described, cwd=self._lab, capture_output=True, check=True)

    def pddpo(self, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        # One thread, so that sums are taken in one order; the working directory must not hold another copy.
        environment = os.environ | {"PYTHONPATH": f"{self.tree}{os.pathsep}{self._lab}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pddpo_ray", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    def recipes(self, folder: Path) -> list[str]:
        listed = self.pddpo("recipes", "--json", folder=folder)
        if listed.returncode:
            raise SystemExit(f"{self.tree} is no checkout whose `pddpo recipes` works: {listed.stderr[-500:]}")
        return sorted(json.loads(listed.stdout)["recipes"])

    def numbers(self, case: Case, folder: Path) -> dict[str, Any]:
        """Runs the case in `folder`/run and returns what it computed, or {"failed": why}."""
        run, began = folder / "run", time.monotonic()
        command = ["train", case.recipe, *case.overrides, "--run", str(run)]
        done = self.pddpo(*command, folder=folder)
        while done.returncode == PARKED:
            before = (run / JOURNAL).read_bytes()
            self._answer(run, folder)
            if before == (run / JOURNAL).read_bytes():
                break
            done = self.pddpo(*command, "--resume", folder=folder)
        if done.returncode:
            return {"failed": f"exit code {done.returncode}: {(done.stderr.strip() or '-').splitlines()[-1]}"}
        return numbers_of(run / JOURNAL) | {"seconds": round(time.monotonic() - began, 1)}

    def _answer(self, run: Path, folder: Path) -> None:
        """Three people answer all questions of the run; what one says follows from their name and the texts alone."""
        questions = questions_of(run / JOURNAL)
        for who in ("ana", "ben", "cem"):
            files = []
            for pairs in (False, True):  # a file has rows of one format
                lines = [json.dumps(answer(who, one)) for one in questions if (one["second"] is not None) is pairs]
                if lines:
                    files.append(folder / f"{who}-{'pairs' if pairs else 'answers'}.jsonl")
                    files[-1].write_text("\n".join(lines) + "\n")
            taken = self.pddpo(
                "annotations", "import", *map(str, files), "--run", str(run), "--who", who, folder=folder
            )
            if taken.returncode:
                raise SystemExit(f"answers were not taken: {taken.stderr[-500:]}")


def answer(who: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """A row in the format of PKU-SafeRLHF: harm and help of a text are numbers made from its hash."""

    def level(kind: str, text: str) -> int:
        return hashlib.sha256("\0".join([who, kind, question["prompt"], text]).encode()).digest()[0]

    texts = [text for text in (question["first"], question["second"]) if text is not None]
    harm, worth = ([level(kind, text) for text in texts] for kind in ("harm", "worth"))
    if len(texts) == 1:
        return {"prompt": question["prompt"], "response": texts[0], "is_safe": harm[0] < 128}
    row: dict[str, Any] = {"prompt": question["prompt"]}
    for index, text in enumerate(texts):
        row |= {f"response_{index}": text, f"is_response_{index}_safe": harm[index] < 128}
    return row | {"better_response_id": int(worth[1] > worth[0]), "safer_response_id": int(harm[1] < harm[0])}


# --- both commands ---------------------------------------------------------------------------------------------------


def record(tree: Path, out: Path, names: Sequence[str], modes: Sequence[str], runs: Path | None) -> int:
    """Runs the cases and writes what they computed after each; `names` are added to a file that exists already.

    Returns 1 if a run failed.
    """
    checkout, failed = Checkout(tree), 0
    with _folder(runs) as folder:
        chosen = [case for case in cases(checkout.recipes(folder)) if case.mode in modes]
        unknown = set(names) - {case.name for case in chosen}
        if unknown:
            raise SystemExit(
                f"no run is called {', '.join(sorted(unknown))}: {', '.join(case.name for case in chosen)}"
            )
        stored: dict[str, Any] = {"made with": about(tree), "left out": LEFT_OUT, "runs": {}}
        if names and out.exists():
            stored = begun(out, stored["made with"])
        for case in chosen:
            if names and case.name not in names:
                continue
            own = folder / case.key.replace("/", "-").replace(" ", "-")
            own.mkdir(parents=True)
            stored["runs"][case.key] = found = checkout.numbers(case, own)
            failed += "failed" in found
            print(f"{case.key:45s} {found.get('failed') or found['seconds']}", flush=True)
            out.write_text(json.dumps(stored, indent=1) + "\n")
    return min(failed, 1)


def begun(out: Path, made: Mapping[str, str]) -> dict[str, Any]:
    """A recording to add to. Ends the program where it belongs to another commit or machine."""
    stored: dict[str, Any] = json.loads(out.read_text())
    for name in ("commit", "processor", "instructions"):
        if stored["made with"][name] != made[name]:
            raise SystemExit(
                f"{out} was made with {name} {stored['made with'][name]}, not {made[name]}: name a new file"
            )
    return stored


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """Where runs are kept, or a folder that goes away with them."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.absolute()
    else:
        with tempfile.TemporaryDirectory(prefix="same-numbers-") as folder:
            yield Path(folder)


def about(tree: Path) -> dict[str, str]:
    """Commit and machine of a recording."""
    commit = subprocess.run(["git", "-C", tree, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "commit": commit.stdout.strip() or "unknown",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": names[0] if names else platform.machine(),
        "instructions": os.environ.get("ATEN_CPU_CAPABILITY", "all"),
    }


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """-> (lines of a table, differences), over the runs that both recordings have."""
    lines = [f"{'run':45s} " + " ".join(f"{what:11s}" for what in COMPARED)]
    differences = []
    for key, old in before["runs"].items():
        if key not in after["runs"]:
            continue
        new = after["runs"][key]
        if "failed" in old or "failed" in new:
            differences.append(f"{key}: {old.get('failed', 'ran')} before, {new.get('failed', 'ran')} after")
            lines.append(f"{key:45s} failed")
            continue
        unequal = {what: first_difference(old[what], new[what]) for what in COMPARED}
        lines.append(f"{key:45s} " + " ".join(f"{'DIFFER' if unequal[what] else 'equal':11s}" for what in COMPARED))
        differences += [f"{key}: {what}: {unequal[what]}" for what in COMPARED if unequal[what]]
    for name, here, there in (("before", before, after), ("after", after, before)):
        alone = [key for key in here["runs"] if key not in there["runs"]]
        lines += [f"only {name}: {', '.join(alone)}"] if alone else []
    return lines, differences


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The first entry that is not equal, with both values; None if all are."""
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            return f"{name} was {old.get(name)}, is {new.get(name)}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.same_numbers", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run everything with the code of one checkout")
    recording.add_argument("--tree", type=Path, required=True, help="the checkout")
    recording.add_argument("--out", type=Path, required=True, help="file to write")
    recording.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these runs, e.g. table/mocan")
    recording.add_argument("--ray", action=argparse.BooleanOptionalAction, help="only on Ray; only in one process")
    recording.add_argument("--runs", type=Path, help="keep the run folders in this folder")
    comparing = commands.add_parser("compare", help="say what differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "record":
        modes = [mode for mode in MODES if options.ray is None or (mode == "Ray") == options.ray]
        return record(options.tree, options.out, options.only, modes, options.runs)
    before, after = (json.loads(file.read_text()) for file in (options.before, options.after))
    lines, differences = compare(before, after)
    print("\n".join(lines))
    for name in ("processor", "instructions"):
        if before["made with"][name] != after["made with"][name]:
            print(f"not one machine: {before['made with'][name]} before, {after['made with'][name]} after")
    print(f"{len(differences)} differences" + (f", the first: {differences[0]}" if differences else ""))
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
