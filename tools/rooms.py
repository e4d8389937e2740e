"""The product's rooms and the arrows between them, read from its import statements: numbers, and the picture of
docs/architecture.md.

    python -m tools.rooms              # rooms, floors, arrows, files of the largest folder, lines
    python -m tools.rooms picture      # writes docs/rooms.svg

A room is a package directly below `pddpo_ray` or `deploy`, or `actors`. Its floor is one above the highest room that
it imports.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("pddpo_ray", "actors", "deploy")
PICTURE = ROOT / "docs" / "rooms.svg"
BANDS = (
    ("behind doors", "people, endpoint, cluster",
     ("deploy.annotation", "deploy.serving", "deploy.jobs", "deploy.web", "annotation", "serving")),
    ("who starts and reads a run", "commands, Ray, dry runs, pages",
     ("cli", "actors", "plan", "evaluate", "report")),
    ("a run", "rounds, results, certificates, releases",
     ("driver", "certificates", "scorecard", "integrations")),
    ("what a run is made of", "what a method calls, and who does its work",
     ("parts", "backends", "scorers", "worlds")),
    ("how a model learns and answers", "pairs to weights, prompts to scores",
     ("algorithms", "training", "rollout", "scoring", "data")),
    ("what is stated and kept", "recipes, limits, the journal",
     ("config", "contracts", "limits", "journal", "exploration")),
    ("formulas and files", "numpy, records, stored weights, texts",
     ("theory", "records", "storage", "text", "registry", "errors")),
)  # fmt: skip
"""From the top: title, what is there, rooms. Imports go down, or stay within a band."""
WIDTH, HIGH, LEFT, GAP = 900, 62, 236, 8
STYLE = """
  rect { fill: #ffffff; stroke: #5f6b76; stroke-width: 1.2; } .band { fill: #eef1f4; stroke: none; }
  .door { stroke: #c2620c; stroke-dasharray: 6 4; stroke-width: 1.6; }
  text { font: 13px system-ui, sans-serif; fill: #1c2126; text-anchor: middle; }
  .title { font-weight: 650; text-anchor: start; } .soft { font-size: 11px; fill: #4d5861; text-anchor: start; }
  @media (prefers-color-scheme: dark) {
    rect { fill: #1d2226; stroke: #a3afba; } .band { fill: #22282d; } .door { stroke: #f39a4a; }
    text { fill: #e6e9ec; } .soft { fill: #b6c0c9; }
  }
"""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def sources(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules() -> dict[str, Path]:
    """Every file of the product by the name that imports it."""
    return {
        name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path
        for path in sources(*PRODUCT)
    }


def arrows() -> set[tuple[str, str]]:
    """Who imports whom among the product's files, inside functions and under TYPE_CHECKING too."""
    known = modules()
    return {(module, name) for module, path in known.items() for name in _imported(path, known) if name != module}


def _imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            # a name that is no file is something inside the package's own
            named = [name if name in known else node.module for name in below]
        yield from (name for name in named if name in known)


def room_of(module: str) -> str:
    """actors, or the package or loose module directly below pddpo_ray and deploy; `__main__` belongs to `cli`."""
    if module == "pddpo_ray.__main__":
        return "pddpo_ray.cli"
    return ".".join(module.split(".")[: 1 if module.startswith("actors") else 2])


def between_rooms() -> set[tuple[str, str]]:
    rooms = {(room_of(here), room_of(there)) for here, there in arrows()}
    return {(here, there) for here, there in rooms if here != there}


def floors() -> dict[str, int]:
    """The floor of every room; 1 imports none. Raises graphlib.CycleError where rooms import each other in a ring."""
    below: dict[str, set[str]] = {room_of(module): set() for module in modules()}
    for here, there in between_rooms():
        below[here].add(there)
    floor: dict[str, int] = {}
    for room in TopologicalSorter(below).static_order():
        floor[room] = 1 + max((floor[one] for one in below[room]), default=0)
    return floor


def picture() -> str:
    """The bands as SVG."""
    high = len(BANDS) * (HIGH + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" role="img" aria-labelledby="t d">',
        '<title id="t">Rooms of the product</title>',
        '<desc id="d">Imports go down, or stay within a band; the top band is behind doors.</desc>',
        f"<style>{STYLE}</style>",
    ]
    for number, (title, what, rooms) in enumerate(BANDS):
        top = GAP + number * (HIGH + GAP)
        parts.append(f'<rect class="band" x="{GAP}" y="{top}" width="{WIDTH - 2 * GAP}" height="{HIGH}" rx="8"/>')
        parts.append(f'<text class="title" x="20" y="{top + 27}">{title}</text>')
        parts.append(f'<text class="soft" x="20" y="{top + 45}">{what}</text>')
        wide = (WIDTH - LEFT - 60 - GAP * len(rooms)) / len(rooms)
        for index, room in enumerate(rooms):
            left = LEFT + 48 + index * (wide + GAP)
            parts.append(f'<rect x="{left:.0f}" y="{top + 14}" width="{wide:.0f}" height="34" rx="7"/>')
            size = ' style="font-size: 10.5px"' if 7.4 * len(room) > wide else ""
            parts.append(f'<text x="{left + wide / 2:.0f}" y="{top + 35}"{size}>{room}</text>')
    line = GAP + HIGH + GAP / 2
    parts.append(f'<path class="door" d="M{GAP} {line} H{WIDTH - GAP}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def numbers() -> str:
    folders = Counter(path.parent for path in sources(*PRODUCT) if path.name != "__init__.py")
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources(*PRODUCT))
    floor = floors()
    return (
        f"{len(floor)} rooms on {max(floor.values())} floors, {len(between_rooms())} arrows, no circle;"
        f" {len(modules())} files, at most {max(folders.values())} in a folder; {lines:,} lines"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["picture"]:
        PICTURE.write_text(picture(), encoding="utf-8")
    else:
        print(numbers())
