"""Phrases that read translated are refused in pages, messages and docstrings, with what to write in their place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.unit.report.test_docs import PAGES, STUDIES

ROOT = Path(__file__).parents[3]
ROOMS = ("pddpo_ray", "actors", "deploy", "lab")
"""Rooms whose texts are read: messages, help, docstrings and the pages' words."""
DIALECT = {
    r"\b(?:go(?:es|ing|ne)?|went) on\b": "continue, resume",
    r"\bbelongs? into\b": "belongs in",
    r"\bbe had\b": "is available",
    r"\blies? beside\b": "is next to, is in the folder of",
    r"\b(?:what|that|who) lacks?\b": "without",
    r"\bmade of code\b": "simulated",
    r"\bmend(?:s|ed|ing)?\b": "fix, correct",
    r"\bheld against\b|\bholds? (?:[\w-]+ ){1,4}against\b": "compared with, checked against",
    r"\bsaid again\b|\bis said (?:about|in|below|once)\b": "repeated, reported",
    r"\bso many\b": "a number, or `at most N`",
    r"\bin good order\b": "cleanly",
    r"\bwhoever\b": "anyone who, a person who",
    r"\bthe whole way\b": "every step",
    r"\bcomes? (?:to rest|near(?:er)?)\b": "converges, is closer",
    r"\b(?:everybody|anybody)(?:'s)?\b": "all, any",
    r"\baloud\b": "with a message",
    r"\bfor ever\b": "without end",
}
"""What is refused, and what to write."""


def prose(text: str) -> str:
    """On one line, without names in code and addresses; comments of examples are read too."""
    return re.sub(r"[\s#]+", " ", re.sub(r"(?<!`)`[^`\n]+`(?!`)|\]\([^)\s]*\)", " ", text))


def dialect(text: str) -> list[str]:
    """Each refused phrase with what to write, in the text's order."""
    found = [
        (hit.start(), f"{hit[0]!r}: {better}") for at, better in DIALECT.items() for hit in re.finditer(at, text, re.I)
    ]
    return [said for _, said in sorted(found)]


OTHERS = [ROOT / "Makefile", *sorted((ROOT / "lab").rglob("*.md"))]


@pytest.mark.parametrize("page", [*PAGES, *sorted({*STUDIES, *OTHERS})], ids=lambda page: page.as_posix()[-40:])
def test_no_page_speaks_the_old_dialect(page: Path) -> None:
    assert dialect(prose(page.read_text(encoding="utf-8"))) == []


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """A file's texts with the line of each: of Python its strings, a value in one written as a dash, else all lines."""
    source = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    parts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts.update(id(part) for part in node.values)
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "–" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def spoken(files: Iterable[Path]) -> list[str]:
    """Refused phrases in the texts of these files, each with its place."""
    return [
        f"{file.relative_to(ROOT)}:{line}: {found}"
        for file in files
        for line, text in texts(file)
        for found in dialect(prose(text))
    ]


@pytest.mark.parametrize(
    "room",
    [one for room in ROOMS for one in sorted((ROOT / room).iterdir()) if one.is_dir()],
    ids=lambda room: room.name,
)
def test_no_message_page_text_or_docstring_speaks_the_old_dialect(room: Path) -> None:
    assert spoken(one for end in ("py", "js", "html", "yaml") for one in room.rglob(f"*.{end}")) == []


def test_no_module_beside_the_rooms_folders_speaks_the_old_dialect() -> None:
    assert spoken(one for room in ROOMS for one in (ROOT / room).glob("*.py")) == []


def test_texts_of_python_are_its_strings_with_values_left_out(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text('"""It goes on."""\nmend = f"{run} goes " f"on"  # mend\n')
    assert list(texts(file)) == [(1, "It goes on."), (2, "– goes on")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The run goes on, and keys belong into a file.", ["goes on", "belong into"]),
        ("At most so many rows can be had.", ["so many", "be had"]),
        ("It holds every answer against a limit. Mend it.", ["holds every answer against", "Mend"]),
        ("The lead amends a recommendation; the monitor depends on it.", []),
        ("Give `--go-on`: the run continues.", []),
        ("Later the run goes\non.", ["goes on"]),
    ],
)
def test_what_is_refused(text: str, words: list[str]) -> None:
    assert [said.split("'")[1] for said in dialect(prose(text))] == words


PRONOUNS = {
    "one", "said", "given", "stated", "kept", "own", "known", "asked", "about", "named", "wanted", "mine", "theirs",
    "told", "there", "here", "found", "seen", "taken", "held", "made", "what", "who", "rest", "compared",
}  # fmt: skip
"""Say nothing about the type of what they hold; `limit`, `row`, `path` do."""


def bindings(source: str) -> list[tuple[int, str]]:
    """Parameters and local variables with their lines: of assignments, loops and comprehensions; no fields."""
    tree = ast.parse(source)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(line.target) for node in classes for line in node.body if isinstance(line, ast.AnnAssign)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    parameters = [(node.lineno, node.arg) for node in ast.walk(tree) if isinstance(node, ast.arg)]
    return parameters + [(name.lineno, name.id) for name in names if id(name) not in fields]


def private_names(source: str) -> list[tuple[int, str]]:
    """Private functions, classes and attributes of `self`, without their underscore."""
    nodes = list(ast.walk(ast.parse(source)))
    defined = [(node.lineno, node.name) for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    stored = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    names = defined + [(node.lineno, node.attr) for node in stored]
    return [(line, name.removeprefix("_")) for line, name in names if name.startswith("_")]


@pytest.mark.parametrize("room", ["pddpo_ray", "actors", "deploy"])
def test_a_name_says_what_it_holds(room: str) -> None:
    hits = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in (ROOT / room).rglob("*.py")
        for read in (bindings, private_names)
        for line, name in read(file.read_text(encoding="utf-8"))
        if name in PRONOUNS
    ]
    assert hits == []


def test_bindings_are_parameters_and_local_variables() -> None:
    source = "class A:\n    one: int\n    def _told(self, said):\n        self._own = [known for known in said]\n"
    assert bindings(source) == [(3, "self"), (3, "said"), (4, "known")]
    assert sorted(private_names(source)) == [(3, "told"), (4, "own")]
