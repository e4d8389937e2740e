"""The base install: what works without torch, ray and the servers, and what says which extra it needs.

Everything that the base's own requirements do not bring is made impossible to import, in a process of its own.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pddpo_ray.errors import EXTRAS, missing_extra

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HIDE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, {root!r})
"""


def closure() -> set[str]:
    """Distributions that the base's requirements bring on this machine, they themselves included."""
    found, pending = set[str](), [Requirement(text) for text in PROJECT["dependencies"]]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        pending += [Requirement(text) for text in distribution(name).requires or ()]
    return found


def hidden() -> set[str]:
    """Installed modules that an install of the base would not have."""
    kept = closure()
    return {
        module
        for module, names in packages_distributions().items()
        if not {canonicalize_name(name) for name in names} & kept
        and module not in ("pddpo_ray", "actors", "deploy", "pddpo_lab")
    } - set(sys.stdlib_module_names)


def in_base(program: str, *arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    text = HIDE.format(hidden=hidden(), root=str(ROOT)) + program
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=120)


def pddpo(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    program = "from pddpo_ray.cli.main import main\nmain(sys.argv[1:])"
    return in_base(program, *arguments, folder=folder)


@pytest.mark.slow
def test_the_base_is_small() -> None:
    assert len(PROJECT["dependencies"]) <= 8
    assert len(closure()) + 1 <= 25
    assert {"torch", "ray", "transformers", "sqlalchemy", "httpx"} <= hidden()


@pytest.mark.run
def test_formulas_dual_estimates_and_certificates_work_in_the_base() -> None:
    program = """
import pddpo_ray
from pddpo_ray.theory import intervals
from pddpo_ray.theory.certificates import certificate, power
from pddpo_ray.theory.estimates import cost_estimate
from pddpo_ray.theory.losses import value_stage
from pddpo_ray.theory.multipliers import dual, matrix_dual, price
assert pddpo_ray.first_certified([0.0] * 1000, 0.05, 0.05) < 100
assert pddpo_ray.upper_bound([0.0] * 1000, 0.05, 0.05) < 0.01
state = dual.limit_state("cost", rho=1.0, rule=dual.ProjectedFixed(rounds=4, first=1.0, cost_max=2.0))
assert state.multiplier == 1.0
print(sorted({"torch", "ray", "pandas"} & set(sys.modules)))
"""
    done = in_base(program)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.run
def test_limits_are_checked_in_the_base(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text("limits: {length: {mean: {rule: words}, at_most: 3, bounds: [0, 9]}}\n")
    (tmp_path / "answers.jsonl").write_text('{"prompt": "a", "response": "one two"}\n' * 3)
    done = pddpo("limits", "check", "limits.yaml", "--on", "answers.jsonl", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 words" in done.stdout


@pytest.mark.run
def test_in_memory_limits_are_checked_in_the_base() -> None:
    program = """
import pddpo_ray
rows = [{"prompt": f"{n}", "response": "one"} for n in range(200)]
found = pddpo_ray.check_limits({"short": {"rate": {"rule": "empty"}, "at_most": "5 %"}}, rows)
assert found["short"].kept is True
"""
    done = in_base(program)
    assert done.returncode == 0, done.stderr


@pytest.mark.run
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("train", "text-world", "--dry-run"), "train"),
        (("verify",), "train"),
        (("annotate", "--run", "nothing"), "train"),
        (("certify", "nothing"), "train"),
    ],
)
def test_what_an_extra_brings_is_named_in_one_line(arguments: tuple[str, ...], extra: str) -> None:
    done = pddpo(*arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"in a checkout: pip install '.[{extra}]'" in line


@pytest.mark.run
def test_a_judge_names_its_extra(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(
        "judge: {model: m, endpoint: 'http://127.0.0.1:1/v1'}\n"
        "limits: {brand: {rate: {judge: {question: 'Is it so?'}}, at_most: 3 %}}\n"
    )
    (tmp_path / "answers.jsonl").write_text('{"prompt": "a", "response": "one two"}\n')
    done = pddpo("limits", "check", "limits.yaml", "--on", "answers.jsonl", folder=tmp_path)
    assert done.returncode == 2
    assert "pip install '.[judge]'" in done.stderr


@pytest.mark.full
@pytest.mark.slow
def test_every_module_that_the_product_imports_is_the_bases_or_an_extras() -> None:
    """So that none can be missing without a line that says what brings it."""
    base = {
        module for module, names in packages_distributions().items() if set(map(canonicalize_name, names)) & closure()
    }
    known = base | {module for modules in EXTRAS.values() for module in modules} | set(sys.stdlib_module_names)
    optional = {"huggingface_hub", "opentelemetry", "profanity_check", "py3langid"}
    found = set()
    for room in ("pddpo_ray", "actors", "deploy"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                    found.add(node.module.partition(".")[0])
    assert found - known - optional - {"pddpo_ray", "actors", "deploy", "__future__"} == set()
    assert (
        missing_extra("torch.nn") == "this needs torch, which is not installed; in a checkout: pip install '.[train]'"
    )
    assert missing_extra("nowhere") is None
