"""Runs the chosen mutants in forked children and writes which test saw each: -m tests.mutants.run_fixed FILE."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from tests.mutants.fixed import FIXED
from tests.mutants.forks import Forks, with_tests
from tests.mutants.mutation import ROOT, apply
from tests.mutants.planted import PLANTED

CHOSEN = (*FIXED, *PLANTED)


def files_with(tests: set[str]) -> list[str]:
    """Test files that define these functions. Raises ValueError where one is defined nowhere."""
    paths = sorted(path for room in ("unit", "runs") for path in (ROOT / "tests" / room).rglob("test_*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    found = {name: [path for path, text in texts.items() if f"def {name}(" in text] for name in tests}
    if missing := sorted(name for name, paths in found.items() if not paths):
        raise ValueError(f"no test file defines {', '.join(missing)}")
    return sorted({str(path.relative_to(ROOT)) for paths in found.values() for path in paths})


def main(answer: Path) -> None:
    names = {name for mutant in CHOSEN for name in mutant.tests}
    reds: dict[str, str | None] = {}

    def work(forks: Forks) -> None:
        by_name = {name: forks.named(name) for name in names}
        every = [test for name in sorted(names) for test in by_name[name]]
        outcome = forks.run(every)
        skipped = set(every) - set(outcome.passed)
        reds[""] = outcome.red or next(iter(sorted(skipped)), None)
        forks.warm(outcome)
        for mutant in CHOSEN:
            try:
                source = mutant.source
            except ValueError:  # its own test says so
                reds[mutant.name] = None
                continue
            tests = [test for name in mutant.tests for test in by_name[name]]
            tests.sort(key=lambda test: outcome.seconds.get(test, 0.0))
            reds[mutant.name] = forks.run(tests, partial(apply, mutant.path, source)).red

    with_tests(files_with(names), work)
    answer.write_text(json.dumps(reds, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
