"""Fifteen faults over all subjects that the tests of `make test` must see: -m tests.mutants.planted [NAME ...]

Prints a table with the test that turned red, and ends with 1 where none did.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

from tests.mutants.fixed import FIXED, Fixed
from tests.mutants.forks import ONE_THREAD, Forks, with_tests
from tests.mutants.mutation import apply


def fault(name: str, where: str, original: str, mutated: str, *files: str) -> Fixed:
    """`files` below tests hold the tests that have to see it."""
    path, function = where.split()
    return Fixed(name, f"{path}.py", function, original, mutated, tuple(f"tests/{file}.py" for file in files))


def known(name: str, *files: str) -> Fixed:
    """One of the fixed mutants."""
    (found,) = (mutant for mutant in FIXED if mutant.name == name)
    return replace(found, tests=tuple(f"tests/{file}.py" for file in files))


PLANTED = (
    known("the margin's sign", "unit/math/test_exploration", "unit/math/test_objectives"),
    known("the projection left out", "unit/math/test_dual"),
    fault(
        "a certificate one draw early",
        "pddpo_ray/theory/certificates/certificate _first_at_least",
        "return int(reached[0]) + 1 if",
        "return int(reached[0]) if",
        "unit/math/test_certificate",
    ),
    fault(
        "a failed score is a number",
        "pddpo_ray/limits/sources Source._number",
        "if not math.isfinite(number):",
        "if math.isinf(number):",
        "unit/limits/test_sources",
    ),
    fault(
        "a judge's two orders are not turned back",
        "pddpo_ray/scoring/judges/judge _judged_pair",
        "(swapped[1], swapped[0])",
        "(swapped[0], swapped[1])",
        "unit/scoring/test_judge",
    ),
    fault(
        "a label counted twice",
        "pddpo_ray/annotation/queue/answers Answers._answer",
        'if lease_row.state == "answered":',
        'if lease_row.state == "cancelled":',
        "unit/annotation/test_queue",
    ),
    fault(
        "who signed out is let in",
        "pddpo_ray/annotation/people/accounts People.by_cookie",
        "login.c.revoked_ms.is_(None),",
        "",
        "unit/annotation/test_queue",
        "unit/annotation/test_api",
        "unit/annotation/test_access",
    ),
    fault(
        "chances of being shown to people left out",
        "pddpo_ray/limits/sources asked_first",
        "len(drawn) / max(len(pool), 1)",
        "1.0",
        "unit/annotation/test_estimates",
    ),
    fault(
        "labels a round later than the bound",
        "pddpo_ray/parts/due_labels DueLabels._choose_due_rounds",
        "number > now - self._rounds_late",
        "number > now - self._rounds_late - 1",
        "unit/loop/test_late_labels",
    ),
    fault(
        "a resumed run computes a finished phase again",
        "pddpo_ray/journal/journal Journal.once",
        "if stored is not None:",
        "if stored is not None and False:",
        "unit/loop/test_journal",
    ),
    fault(
        "a policy without a certificate is released",
        "pddpo_ray/certificates/release settle",
        'if line.state == "certified":',
        'if line.state != "undecided":',
        "runs/test_certify",
    ),
    fault(
        "altered weights are read",
        "pddpo_ray/storage/artifacts _verify_hash",
        "if actual != sha256:",
        "if not actual:",
        "unit/loop/test_artifacts",
    ),
    fault(
        "a delivery without its canaries",
        "pddpo_ray/rollout/delivery_check check_canaries",
        "if not difference <= tolerance:",
        "if difference > 1e9:",
        "unit/loop/test_delivery_check",
    ),
    fault(
        "a key is taken without its scope",
        "deploy/serving/app_state EntranceState.demand",
        "if not key.scope.covers(scope):",
        "if not scope:",
        "unit/serving/test_app",
    ),
    fault(
        "a stream is cut without an error",
        "deploy/serving/exchange Exchange.events",
        "yield _error_event(failure.status, failure.detail)",
        "yield failure.detail[:0]",
        "unit/serving/test_app",
    ),
)


def main(names: list[str]) -> int:
    chosen = [one for one in PLANTED if not names or one.name in names]
    seen: dict[str, str | None] = {}

    def work(forks: Forks) -> None:
        def tests_of(one: Fixed) -> list[str]:
            return [test for test in forks.tests if test.split("::")[0] in one.tests]

        every = sorted({test for one in chosen for test in tests_of(one)})
        sound = forks.run(every, cpu_s=900)
        if sound.red:
            raise RuntimeError(f"without a fault {sound.red} is red")
        forks.warm(sound)
        for one in chosen:
            quick = sorted(tests_of(one), key=lambda test: sound.seconds.get(test, 0.0))
            seen[one.name] = forks.run(quick, partial(apply, one.path, one.source)).red

    with_tests(sorted({file for one in chosen for file in one.tests}), work)
    print("| fault | function | seen by |\n|---|---|---|")
    for one in chosen:
        print(f"| {one.name} | `{one.path}` `{one.function}` | {seen[one.name] or '**nothing**'} |")
    return int(None in seen.values())


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        command = [sys.executable, "-m", "tests.mutants.planted", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env={**os.environ, **ONE_THREAD}).returncode)
    sys.exit(main(sys.argv[1:]))
