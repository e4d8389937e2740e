"""Phrases that read translated are refused in the documentation, with what to write in their place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.report.test_docs import PAGES

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
GENERATED = {"settings.md", "settings-laboratory.md", "request-fields.md", "reader.md", "one-round.md"}
"""Pages made of docstrings and tables of the code."""


def prose(text: str) -> str:
    """Without names in code and addresses; comments of examples are read too."""
    return re.sub(r"(?<!`)`[^`\n]+`(?!`)|\]\([^)\s]*\)", " ", text)


def dialect(text: str) -> list[str]:
    """Each refused phrase with what to write, in the text's order."""
    found = [
        (hit.start(), f"{hit[0]!r}: {better}") for at, better in DIALECT.items() for hit in re.finditer(at, text, re.I)
    ]
    return [said for _, said in sorted(found)]


@pytest.mark.parametrize("page", [one for one in PAGES if one.name not in GENERATED], ids=lambda page: page.stem)
def test_no_page_speaks_the_old_dialect(page: Path) -> None:
    assert dialect(prose(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The run goes on, and keys belong into a file.", ["goes on", "belong into"]),
        ("At most so many rows can be had.", ["so many", "be had"]),
        ("It holds every answer against a limit. Mend it.", ["holds every answer against", "Mend"]),
        ("The lead amends a recommendation; the monitor depends on it.", []),
        ("Give `--go-on`: the run continues.", []),
    ],
)
def test_what_is_refused(text: str, words: list[str]) -> None:
    assert [said.split("'")[1] for said in dialect(prose(text))] == words
