"""`make mutants`: mutants of the theory and of what runs call from it, drawn by a seed; the score and the survivors.

mutmut says which mutants there are. Each that is drawn runs, in a forked child, the fast tests that reach its lines,
quickest first, up to the first that fails. What is known is kept in `.cache/mutants/`: a run that broke off goes on,
and after a new test only the survivors are tried again.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pddpo_ray.theory.intervals import rate_interval
from tests.mutants.forks import ONE_THREAD, Forks, Outcome, files_of, with_tests
from tests.mutants.mutation import ROOT, apply, changed_functions, functions_of

SCOPE = (
    "pddpo_ray/theory/**/*.py",
    "pddpo_ray/algorithms/*.py",
    "lab/pddpo_lab/methods/*.py",
    "pddpo_ray/exploration/*.py",
    "pddpo_ray/parts/exploring.py",
    "pddpo_ray/parts/fitting.py",
    "pddpo_ray/parts/dual_step.py",
    "pddpo_ray/parts/limits.py",
    "pddpo_ray/limits/drawn.py",
    "pddpo_ray/limits/estimate.py",
    "lab/pddpo_lab/worlds/tabular/parts.py",
    "pddpo_ray/training/fit.py",
)
TESTS = (
    *(f"tests/unit/{folder}" for folder in ("math", "methods", "loop", "training", "worlds", "limits", "scoring")),
    "tests/runs",
    "tests/unit/annotation/test_active_choice.py",
    "tests/unit/annotation/test_estimates.py",
    "tests/unit/annotation/test_quality.py",
    "tests/unit/integrations/test_controller.py",
    "tests/unit/serving/test_measured_traffic.py",
    "tests/unit/evaluate/test_statistics.py",
    "tests/unit/report/test_theory.py",
    "--ignore=tests/runs/test_resume.py",  # compares runs with themselves
)
SECONDS_EACH = 25.0
"""Processor seconds of tests, as measured without a mutant, after which a mutant counts as a survivor."""
STATE = ROOT / ".cache" / "mutants"
REASONS = Path(__file__).parent / "reasons.json"
PAGE = ROOT / "lab" / "studies" / "mutants.md"


@dataclass(frozen=True)
class Drawn:
    """One mutant: the file with one change in it. `first` and `last` are the lines of the changed statement."""

    path: str
    function: str
    before: str
    after: str
    source: str
    first: int
    last: int
    formula: bool
    """An operator, number or name changed; else a call lost an argument or an assignment its value."""

    @property
    def key(self) -> str:
        """Names the mutant as long as its function stays as it is."""
        text = f"{self.path}\0{self.function}\0{ast.dump(functions_of(self.source)[self.function])}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Source:
    """A file of the scope and its mutants inside functions, in mutmut's order; texts for people stay as they are."""

    def __init__(self, path: str) -> None:
        import libcst
        from libcst.metadata import MetadataWrapper, PositionProvider
        from mutmut.mutation.file_mutation import create_mutations

        self.path = path
        self.text = (ROOT / path).read_text(encoding="utf-8")
        self._module, mutations, _, _ = create_mutations(path, self.text)
        positions = MetadataWrapper(self._module, unsafe_skip_copy=True).resolve(PositionProvider)
        statements = [node for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.stmt)]
        self.mutations: list[tuple[Any, ast.stmt]] = []
        for mutation in mutations:
            node = mutation.original_node
            if mutation.contained_by_top_level_function is None or node not in positions:
                continue
            line = positions[node].start.line
            around = [statement for statement in statements if statement.lineno <= line <= (statement.end_lineno or 0)]
            prose = isinstance(node, libcst.SimpleString) and " " in node.value
            if not prose and not any(isinstance(statement, ast.Raise) for statement in around):
                self.mutations.append((mutation, max(around, key=lambda statement: statement.lineno)))

    def names(self) -> list[str]:
        """What each mutant changes; the same change of the same statement a second time has a number."""
        counts: Counter[str] = Counter()
        lines, names = self.text.splitlines(), []
        for mutation, statement in self.mutations:
            changed = [self._module.code_for_node(node) for node in (mutation.original_node, mutation.mutated_node)]
            name = "\0".join([*lines[statement.lineno - 1 : statement.end_lineno], *changed])
            counts[name] += 1
            names.append(f"{name}\0{counts[name]}")
        return names

    def mutant(self, index: int) -> Drawn | None:
        """One of the mutants; None where the change is outside what runs (an annotation)."""
        mutation, statement = self.mutations[index]
        mutated = self._module.deep_replace(mutation.original_node, mutation.mutated_node).code
        names = changed_functions(self.text, mutated)
        if len(names) != 1:
            return None
        before, after = _lines_that_differ(self.text, mutated)
        last = statement.end_lineno or statement.lineno
        formula = type(mutation.original_node).__name__ not in ("Call", "Assign", "AnnAssign", "Lambda")
        return Drawn(self.path, names[0], before, after, mutated, statement.lineno, last, formula)


def draw(number: int, seed: int) -> tuple[list[Drawn], int]:
    """So many mutants, evenly among all, and how many there are.

    Each has a rank that follows from the seed, its file, its statement and its change alone; the lowest are drawn. So a
    formula that is rewritten changes its own mutants in the draw and leaves the others.
    """
    sources = [Source(path) for path in files_of(*SCOPE, root=ROOT)]
    ranked = sorted(
        (_digest(str(seed), source.path, name), number, index)
        for number, source in enumerate(sources)
        for index, name in enumerate(source.names())
    )
    drawn: list[Drawn] = []
    for _, source_number, index in ranked:
        if len(drawn) == number:
            break
        if mutant := sources[source_number].mutant(index):
            drawn.append(mutant)
    return drawn, len(ranked)


def run(mutants: Sequence[Drawn], *, again: bool) -> dict[str, dict[str, Any]]:
    """Key -> {"red": the test that failed or None, "tests": how many reach it}; survivors are tried `again`."""
    results: dict[str, dict[str, Any]] = _read("results.json")

    def work(forks: Forks) -> None:
        reach, seconds = _reach_of(forks)
        for number, mutant in enumerate(mutants, 1):
            known = results.get(mutant.key)
            tests = _tests_that_reach(mutant, reach, seconds)
            if known and (known["red"] or (not again and known["of"] == _digest(*tests))):
                continue
            outcome = forks.run(tests, partial(apply, mutant.path, mutant.source)) if tests else Outcome()
            results[mutant.key] = {"red": outcome.red, "tests": len(tests), "of": _digest(*tests)}
            _write("results.json", results)
            said = outcome.red or f"SURVIVED {len(tests)} tests"
            print(f"{number:4} {mutant.path}:{mutant.first} {mutant.function}  {said}", file=sys.stderr, flush=True)

    with_tests(TESTS, work)
    return {mutant.key: results[mutant.key] for mutant in mutants}


def _reach_of(forks: Forks) -> tuple[dict[str, dict[str, list[int]]], dict[str, float]]:
    """Which lines of the scope every test executes, and its processor seconds; traced anew for files that changed."""
    files = [str(ROOT / path) for path in files_of(*SCOPE, root=ROOT)]
    versions = {file: _digest(Path(file).read_text(encoding="utf-8")) for file in files}
    kept: dict[str, Any] = _read("reach.json")
    reach: dict[str, dict[str, list[int]]] = {}
    seconds: dict[str, float] = {}
    by_file: dict[str, list[str]] = {}
    for test in forks.tests:
        by_file.setdefault(test.split("::")[0], []).append(test)
    for file, tests in by_file.items():
        version, known = _digest((ROOT / file).read_text(encoding="utf-8")), kept.get(file)
        if known is None or known["version"] != version or known["code"].items() - versions.items():
            outcome = forks.run(tests, reach_of=files, cpu_s=900)
            forks.warm(outcome)
            if outcome.red:
                # a test that fails without any mutant shows nothing
                print(f"left out, fails unchanged: {outcome.red}", file=sys.stderr, flush=True)
            passed = set(outcome.passed)
            kept[file] = {
                "version": version,
                "code": {name: versions[name] for lines in outcome.reach.values() for name in lines},
                "reach": {test: lines for test, lines in outcome.reach.items() if test in passed},
                "seconds": {test: spent for test, spent in outcome.seconds.items() if test in passed},
            }
            _write("reach.json", kept)
            print(f"reach of {file}: {len(passed)} tests", file=sys.stderr, flush=True)
        reach |= kept[file]["reach"]
        seconds |= kept[file]["seconds"]
    return reach, seconds


def _tests_that_reach(
    mutant: Drawn, reach: Mapping[str, Mapping[str, Sequence[int]]], seconds: Mapping[str, float]
) -> list[str]:
    """Tests that execute the changed statement, quickest first, as many as fit into SECONDS_EACH."""
    file, lines = str(ROOT / mutant.path), range(mutant.first, mutant.last + 1)
    able = [test for test, files in reach.items() if any(line in lines for line in files.get(file, ()))]
    kept: list[str] = []
    spent = 0.0
    for test in sorted(able, key=lambda test: seconds[test]):
        spent += seconds[test]
        if kept and spent > SECONDS_EACH:
            break
        kept.append(test)
    return kept


def page(mutants: Sequence[Drawn], results: Mapping[str, Mapping[str, Any]], total: int, seed: int) -> tuple[str, int]:
    """The table of lab/studies/mutants.md, and how many survivors have no reason yet."""
    reasons = json.loads(REASONS.read_text(encoding="utf-8")) if REASONS.is_file() else {}
    survivors = [mutant for mutant in mutants if not results[mutant.key]["red"]]
    rows, without = [], 0
    for mutant in sorted(survivors, key=lambda mutant: (mutant.path, mutant.first)):
        reason = reasons.get(_reason_key(mutant))
        without += reason is None
        change = f"`{_cell(mutant.before)}` → `{_cell(mutant.after)}`"
        rows.append(f"| `{mutant.path}` `{mutant.function}` | {change} | {reason or '**no reason given yet**'} |")
    equivalent = [mutant for mutant in survivors if reasons.get(_reason_key(mutant), "").startswith("equivalent")]
    different = [mutant for mutant in mutants if mutant not in equivalent]
    formulas = [mutant for mutant in mutants if mutant.formula]

    def score(some: Sequence[Drawn]) -> str:
        killed = rate_interval(sum(bool(results[mutant.key]["red"]) for mutant in some), len(some))
        return "-" if killed is None else f"{killed.value:.3f}, 95 % interval {killed.low:.3f} to {killed.high:.3f}"

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    lines = [
        f"| mutants | {len(mutants)} of {total}, drawn with seed {seed} |",
        "|---|---|",
        f"| killed | {len(mutants) - len(survivors)} |",
        f"| score | {score(mutants)} |",
        f"| score without the {len(equivalent)} equivalent ones | {score(different)} |",
        f"| score of the {len(formulas)} that change an operator, number or name | {score(formulas)} |",
        f"| date and commit | {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {commit.strip()} |",
        "",
        "| survivor | change | reason |",
        "|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n", without


def _reason_key(mutant: Drawn) -> str:
    return f"{mutant.path} {mutant.function}: {mutant.before} -> {mutant.after}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


def _lines_that_differ(before: str, after: str) -> tuple[str, str]:
    """The changed lines of both, without what they share at the beginning and the end of the file."""
    old, new = before.splitlines(), after.splitlines()
    start = next(index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    end = 0
    while end < min(len(old), len(new)) - start - 1 and old[-1 - end] == new[-1 - end]:
        end += 1
    return tuple(" ".join(line.strip() for line in lines[start : len(lines) - end]) for lines in (old, new))  # type: ignore[return-value]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _read(name: str) -> dict[str, Any]:
    path = STATE / name
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return known


def _write(name: str, value: object) -> None:
    STATE.mkdir(parents=True, exist_ok=True)
    aside = STATE / f"{name}.new"
    aside.write_text(json.dumps(value), encoding="utf-8")
    aside.replace(STATE / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--again", action="store_true", help="try all survivors again")
    asked = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, "-m", "tests.mutants.drawn", *sys.argv[1:]], os.environ | ONE_THREAD)
    mutants, total = draw(asked.number, asked.seed)
    text, without = page(mutants, run(mutants, again=asked.again), total, asked.seed)
    head = PAGE.read_text(encoding="utf-8").split("<!-- numbers -->")[0]
    PAGE.write_text(f"{head}<!-- numbers -->\n\n{text}", encoding="utf-8")
    print(text)
    if without:
        print(
            f"{without} survivors have no reason yet: kill them with a test or name why in {REASONS.relative_to(ROOT)}"
        )
    return int(without > 0)


if __name__ == "__main__":
    sys.exit(main())
