"""The arrows between the rooms, read from the source: who imports whom, and who may see true scores."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tools.rooms import (
    BANDS,
    PICTURE,
    arrows,
    between_rooms,
    floors,
    modules,
    name_of,
    picture,
    room_of,
    sources,
    tree_of,
)

ROOT = Path(__file__).parents[3]
ROOMS = ("pddpo_ray", "actors", "deploy")
HEAVY_ENGINES = ("ray", "vllm", "deepspeed")
BEHIND_DOORS = ("pddpo_ray.annotation", "pddpo_ray.serving", "deploy", "pddpo_lab")
"""Rooms that the core does not import: they come in through names of `registry.SHIPPED`, as installed packages do."""
MOST_ROOMS = 36

LOADERS = ("pddpo_ray/__init__.py", "pddpo_ray/limits/function_worker.py")
"""The package's public names, each loaded when it is used; and functions of users, named in a limit."""

TRUTH = tuple(
    f"pddpo_ray.worlds.{name}" for name in ("oracle", "text.world", "text.drawn_world", "limit_truth", "truth_labeller")
)
"""Modules that hold true scores."""
SEES_TRUTH = (
    "pddpo_ray/worlds/",
    "pddpo_ray/evaluate/world.py",
    # assemble the parts and hand the world's labeller and evaluation to them
    "pddpo_ray/backends/in_process",
    "pddpo_ray/driver/result.py",
    "actors/launch.py",
    "actors/workers.py",
    # what simulated annotators know; the queue and the run never see it
    "pddpo_ray/worlds/truth_by_text.py",
)
TRUTH_BEARERS = {"Oracle", "TextWorld", "TabularWorld", "WorldLabeller"}
BLIND = (
    "theory",
    "algorithms",
    "annotation",
    "parts",
    "scorers",
    "certificates",
    "driver",
    "exploration",
    "training",
    "rollout",
    "config",
)
"""Rooms of the library whose functions are never handed a world or its oracle."""


def rooms_of(*rooms: str) -> list[str]:
    """Folders and loose files directly below the rooms; tests go room by room and name the files that break a rule."""
    below = {"/".join(name_of(path).split("/")[:2]) for path in sources(*rooms)}
    return sorted(below)


def files_of(room: str) -> list[Path]:
    return [ROOT / room] if room.endswith(".py") else sources(room)


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


def circle(between: set[tuple[str, str]]) -> list[str]:
    """Names that import each other in a ring; empty where there is none."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for here, there in sorted(between):
        order.add(here, there)
    try:
        order.prepare()
    except CycleError as error:
        ring: list[str] = error.args[1]
        return ring
    return []


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


def offenders(room: str, forbidden: Callable[[Path], Iterator[str]]) -> list[str]:
    return [f"{name_of(path)}: {found}" for path in files_of(room) for found in forbidden(path)]


@pytest.mark.parametrize("room", rooms_of("pddpo_ray"))
def test_the_library_imports_without_ray_vllm_and_deepspeed(room: str) -> None:
    def heavy(path: Path) -> Iterator[str]:
        return (module for module in at_import_time(tree_of(path)) if within(module, HEAVY_ENGINES))

    assert offenders(room, heavy) == []


def may_not_import(name: str) -> tuple[str, ...]:
    """What a file of the product imports nowhere, not in a function either."""
    if name.startswith("deploy/"):
        return ("pddpo_lab",)
    if name.startswith("actors/"):
        return (*BEHIND_DOORS, "pddpo_ray.cli")
    if within(name.replace("/", "."), BEHIND_DOORS):
        return ("actors", "deploy", "pddpo_lab")
    if name.startswith(("pddpo_ray/cli/", "pddpo_ray/__main__.py")):
        return BEHIND_DOORS
    return (*BEHIND_DOORS, "actors", "pddpo_ray.cli")


@pytest.mark.parametrize("room", rooms_of(*ROOMS))
def test_imports_never_point_back_nor_past_a_door(room: str) -> None:
    def past_a_door(path: Path) -> Iterator[str]:
        forbidden = may_not_import(name_of(path))
        return (module for module, _ in imported(tree_of(path)) if within(module, forbidden))

    assert offenders(room, past_a_door) == []


@pytest.mark.parametrize("room", rooms_of(*ROOMS))
def test_no_module_is_imported_by_a_string(room: str) -> None:
    def loads(path: Path) -> Iterator[str]:
        if name_of(path) in LOADERS:
            return
        for node in ast.walk(tree_of(path)):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in ("import_module", "__import__"):
                yield name

    assert offenders(room, loads) == []


@pytest.mark.slow
def test_files_import_each_other_in_no_circle() -> None:
    assert circle(arrows()) == []


@pytest.mark.slow
def test_rooms_import_each_other_in_no_circle_and_are_few() -> None:
    assert circle(between_rooms()) == []
    rooms = {room_of(module) for module in modules()} - {"pddpo_ray", "deploy"}
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)


@pytest.mark.slow
def test_the_picture_of_the_rooms_has_them_all_and_no_arrow_points_up() -> None:
    band = {room: number for number, (_, _, rooms) in enumerate(BANDS) for room in rooms}
    shown = {room: number for room in floors() if (number := band.get(room.removeprefix("pddpo_ray."))) is not None}
    # the package's public names, the version and deploy's own `__init__` are no rooms
    assert {room for room in floors() if room not in shown} == {"pddpo_ray", "pddpo_ray.version", "deploy"}
    assert [one for one in between_rooms() if shown.get(one[0], 0) > shown.get(one[1], len(BANDS))] == []
    assert PICTURE.read_text(encoding="utf-8") == picture(), "python -m tools.rooms picture"


@pytest.mark.slow
def test_ray_is_used_by_the_shell_alone() -> None:
    users = [
        name_of(path)
        for path in sources("pddpo_ray")
        if any(within(module, ("ray",)) for module, _ in imported(tree_of(path)))
    ]
    assert users == []


@pytest.mark.parametrize("room", rooms_of(*ROOMS))
def test_only_worlds_their_feedback_and_evaluation_see_true_scores(room: str) -> None:
    def truth(path: Path) -> Iterator[str]:
        if not name_of(path).startswith(SEES_TRUTH):
            yield from (module for module, _ in imported(tree_of(path)) if within(module, TRUTH))

    assert offenders(room, truth) == []


@pytest.mark.parametrize("room", BLIND)
def test_no_part_is_handed_a_world_or_its_oracle(room: str) -> None:
    def handed(path: Path) -> Iterator[str]:
        if name_of(path).startswith(SEES_TRUTH):
            return
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from (
                    f"{node.name}({argument.arg})"
                    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                    if bears_truth(argument)
                )

    assert offenders(f"pddpo_ray/{room}", handed) == []


def bears_truth(argument: ast.arg) -> bool:
    stated = ast.unparse(argument.annotation) if argument.annotation else ""
    words = {part.id for part in ast.walk(argument) if isinstance(part, ast.Name)} | {stated.strip("'\"")}
    return argument.arg in ("world", "oracle", "truth") or bool(words & TRUTH_BEARERS)


@pytest.mark.run
def test_the_library_imports_where_the_engines_are_not_installed() -> None:
    """Every module of the library, in a process in which importing an engine fails."""
    modules = [
        name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for path in sources("pddpo_ray")
        # what the callbacks of trainers are made of looks for the engines itself, and takes "not there" for an
        # answer, but no error
        if path.name not in ("__main__.py", "trl.py", "watching.py") and "migrations" not in path.parts
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


@pytest.mark.run
def test_an_actor_starts_without_what_only_some_of_them_need() -> None:
    """Torch and scipy.stats were half of the start of a labeller and of a table's engine."""
    program = (
        "import sys, actors.workers, actors.labeller, actors.dual_variable, actors.engine_group\n"
        "print([name for name in ('torch', 'scipy.stats', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


MOST_LINES, FEW_LINES, MOST_SMALL = 450, 30, 25
"""A file has one subject and fits a head; a module of a few lines belongs to what it serves."""


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_file_is_long_and_few_are_short() -> None:
    files = [path for path in sources(*ROOMS, "lab", "bench", "tools") if not path.name.startswith("test_")]
    assert [name_of(path) for path in files if lines_of(path) > MOST_LINES] == []
    # a room's `__init__` and a step of the database's history stay as short as they are
    short = [
        name_of(path)
        for path in sources(*ROOMS, "lab/pddpo_lab")
        if path.name != "__init__.py" and "migrations" not in path.parts and lines_of(path) < FEW_LINES
    ]
    assert len(short) <= MOST_SMALL, short


MOST_FILES = 20


def test_no_folder_holds_more_files_than_a_head() -> None:
    folders: dict[Path, int] = {}
    for path in sources(*ROOMS, "lab/pddpo_lab"):
        folders[path.parent] = folders.get(path.parent, 0) + (path.name != "__init__.py")
    assert [name_of(folder) for folder, files in folders.items() if files > MOST_FILES] == []
