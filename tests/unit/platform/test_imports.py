"""The arrows between the rooms, read from the source: who imports whom, and who may see true scores."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY_ENGINES = ("ray", "vllm", "deepspeed")

LAUNCHERS = {f"pddpo_ray/cli/{verb}.py" for verb in ("annotate", "compare", "serve", "submit", "train")}
"""`pddpo train` starts the Ray shell by name, the others what the outside meets; nothing else knows that they exist."""

TRUTH = tuple(f"pddpo_ray.worlds.{name}" for name in ("oracle", "text", "tabular", "truth_labeller", "by_text"))
"""Modules that hold true scores."""
SEES_TRUTH = (
    "pddpo_ray/worlds/",
    "pddpo_ray/verify/",
    "pddpo_ray/evaluate/world.py",
    # assemble the parts and hand the world's labeller and evaluation to them
    "pddpo_ray/loop/in_process",
    "pddpo_ray/loop/result.py",
    "actors/launch.py",
    # what simulated annotators know; the queue and the run never see it
    "pddpo_ray/annotation/world_truth.py",
)
TRUTH_BEARERS = {"Oracle", "TextWorld", "TabularWorld", "WorldLabeller"}
BLIND = ("theory", "algorithms", "annotation", "loop", "exploration", "training", "rollout", "config")
"""Rooms of the library whose functions are never handed a world or its oracle."""


def sources(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Modules named by import statements, `from a import b` as `a` and as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, node
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node


def at_import_time(tree: ast.Module) -> Iterator[str]:
    """Modules that are imported when this one is: not inside functions, not under TYPE_CHECKING."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (module for module, _ in imported(node))
        else:
            pending += ast.iter_child_nodes(node)


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("path", sources("pddpo_ray"), ids=name_of)
def test_the_library_imports_without_ray_vllm_and_deepspeed(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [module for module in at_import_time(tree) if within(module, HEAVY_ENGINES)] == []


@pytest.mark.parametrize("path", sources("pddpo_ray", "actors"), ids=name_of)
def test_imports_never_point_back(path: Path) -> None:
    forbidden = ("actors", "deploy") if name_of(path).startswith("pddpo_ray/") else ("deploy",)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [module for module, _ in imported(tree) if within(module, forbidden)] == []
    named = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and within(node.value, forbidden)
    ]
    assert named == [] or name_of(path) in LAUNCHERS


def test_ray_is_used_by_the_shell_alone() -> None:
    users = [
        name_of(path)
        for path in sources("pddpo_ray")
        if any(within(module, ("ray",)) for module, _ in imported(ast.parse(path.read_text(encoding="utf-8"))))
    ]
    assert users == []


@pytest.mark.parametrize("path", sources("pddpo_ray", "actors", "deploy"), ids=name_of)
def test_only_worlds_their_feedback_and_evaluation_see_true_scores(path: Path) -> None:
    if name_of(path).startswith(SEES_TRUTH):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [module for module, _ in imported(tree) if within(module, TRUTH)] == []


@pytest.mark.parametrize(
    "path",
    [path for room in BLIND for path in sources(f"pddpo_ray/{room}") if not name_of(path).startswith(SEES_TRUTH)],
    ids=name_of,
)
def test_no_part_is_handed_a_world_or_its_oracle(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in arguments:
            stated = ast.unparse(argument.annotation) if argument.annotation else ""
            words = {part.id for part in ast.walk(argument) if isinstance(part, ast.Name)} | {stated.strip("'\"")}
            assert argument.arg not in ("world", "oracle", "truth"), f"{node.name}({argument.arg})"
            assert not words & TRUTH_BEARERS, f"{node.name}({argument.arg}: {stated})"


def test_the_library_imports_where_the_engines_are_not_installed() -> None:
    """Every module of the library, in a process in which importing an engine fails."""
    modules = [
        name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for path in sources("pddpo_ray")
        if path.name != "__main__.py" and "migrations" not in path.parts
    ]
    program = (
        "import importlib, sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {HEAVY_ENGINES!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        f"for module in {modules!r}:\n"
        "    importlib.import_module(module)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
