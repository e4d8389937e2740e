"""Words of the documentation: symbols and abbreviations are explained, messages are real, commands accounted for."""

from __future__ import annotations

import ast
import fnmatch
import re
from pathlib import Path

import pytest

from tests.unit.report.test_docs import PAGES, commands

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
WHAT_IS_RUN = ROOT / "lab" / "studies" / "what-is-run.md"
EVERYDAY = "–—·−→×²³⁵…§’“”"
"""Signs that need no explanation: punctuation, arithmetic, powers of ten."""
SYMBOLS = re.compile(rf"[\u0370-\u03ff]|[^\x00-\x7f\w\s{EVERYDAY}]")
LETTER = re.compile(r"(?<![\w'`-])(?<!\d )(?<!\d\n)(?!A\b|I\b|a\b)([A-Za-z])(?![\w'-]|\.[a-z])")
"""A single letter that stands for something: no article, no unit after a number."""
OWN_LETTERS = {"settings.md", "settings-laboratory.md", "paper.md"}
"""Each key explains its letter; the letters are the paper's."""
ABBREVIATION = re.compile(r"(?<![\w-])[A-Z][A-Z0-9]{1,}(?:-[A-Z]{2,})?(?!\w)")
"""Two capitals or more in a row; names in mixed case, as of programs, are not abbreviations."""
TERMS = (
    *(
        "limit",
        "multiplier",
        "gap",
        "policy",
        "reference",
        "reward",
        "cost",
        "violation",
        "pair",
        "bonus",
    ),
    *(
        "baseline",
        "mixture",
        "tail",
        "ledger",
        "certificate",
        "candidate",
        "release",
        "alarm",
        "delivery check",
        "canary",
    ),
    *("run", "recipe", "journal", "phase", "engine", "backend", "labeller", "outcome", "parked", "annotator", "twin"),
    *("reward stage", "cost stage", "dual step", "safety label", "cost estimate", "off-grammar mass", "quality gate"),
    *("prompt set", "draw", "audit", "scorecard", "floor", "price"),
)
"""Words that mean something particular here."""
WRITTEN_BY_PROGRAMS = {"settings.md", "settings-laboratory.md"}
"""Pages that programs write; on the site their symbols explain themselves as on all pages."""
GENERATED = WRITTEN_BY_PROGRAMS | {"request-fields.md", "reader.md", "one-round.md", "recipes.md"}
"""Pages made from the code, whose words nobody writes by hand."""
MOST_WORDS, MOST_WORDS_OF_A_GUIDE = 45_000, 1_500
OWN_WORDS = {"README", "CONTRIBUTING", "LICENSE", "NOTICE", "ENGINE", "E0N", "NOT", "OF", "RUN", "ARGS", "FILES"}
OWN_WORDS |= {"NAME", "TOKEN", "PORT", "FOLDER"}
"""Emphasis, and what a reader puts in the place of."""


def prose(page: Path) -> str:
    """What a page says in words: no code, no addresses."""
    text = re.sub(r"^```.*?^```|^ {4,}.*$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`|\]\([^)\s]*\)|https?://\S+|^::: .*$", " ", text, flags=re.M)


def glossary() -> set[str]:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    first = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    return {name for cell in first for name in re.findall(r"\*\*([^*]+)\*\*", cell)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_symbol_letter_or_abbreviation_is_unknown_to_the_glossary(page: Path) -> None:
    known, text = glossary(), prose(page)
    used = set(SYMBOLS.findall(text)) | (set(ABBREVIATION.findall(text)) - OWN_WORDS)
    used |= set() if page.name in OWN_LETTERS else set(LETTER.findall(text))
    assert {one for one in used - known if not re.fullmatch(r"E\d\d|[A-Z]\d+", one)} == set()


def test_every_term_of_the_project_is_in_the_glossary() -> None:
    known = {name.lower() for name in glossary()}
    assert [term for term in TERMS if term not in known] == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_a_page_with_symbols_leads_to_the_glossary(page: Path) -> None:
    if SYMBOLS.search(prose(page)) and page.name not in WRITTEN_BY_PROGRAMS:
        assert page.name == "glossary.md" or "glossary.md" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_a_page_begins_with_what_it_says_and_not_with_a_link_to_the_glossary(page: Path) -> None:
    first = page.read_text(encoding="utf-8").partition("\n\n")[2].partition("\n\n")[0]
    assert not first.startswith("Symbols and words:")


def templates() -> list[str]:
    """Every text of the program, a hole where a value goes."""
    found = []
    for room in ("pddpo_ray", "actors", "deploy", "lab/pddpo_lab"):
        for file in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return [text.replace("`", "") for text in found]


@pytest.mark.slow
def test_every_message_of_the_troubleshooting_page_is_one_that_the_program_prints() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`|]+)` \|", page, re.M)
    assert len(messages) > 40
    texts = templates()
    for message in messages:
        parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
        assert any(re.search(".*".join(parts), text, re.S) for text in texts), message


def rows() -> list[tuple[str, str, str]]:
    """(pattern, executed by, reason) of lab/studies/what-is-run.md."""
    text = WHAT_IS_RUN.read_text(encoding="utf-8").partition("\n## Commands\n")[2]
    found = re.findall(r"^\| `([^`]+)` \| (?:`([^`]+)` )?\| ([^|]*)\|$", text, re.M)
    return [(pattern, test, reason.strip()) for pattern, test, reason in found]


def test_every_command_is_executed_by_a_test_or_has_a_reason_why_not() -> None:
    table, used = rows(), set()
    assert len(table) > 20
    for page, words in commands():
        line = " ".join(words) + " "
        fits = [row for row in table if fnmatch.fnmatchcase(line, row[0].rstrip("*") + "*")]
        assert fits, (page, line)
        used.add(fits[0][0])
    assert {row[0] for row in table} - used == set()
    for pattern, test, reason in table:
        assert test or reason, pattern
        assert not test or (ROOT / test).exists(), test


def test_every_other_block_has_a_row_that_says_what_happens_to_it() -> None:
    text = WHAT_IS_RUN.read_text(encoding="utf-8").partition("\n## Commands\n")[0]
    table = re.findall(r"^\| `(\w+)` \| (?:`([\w./-]+)`|any) \| (.*) \|$", text, re.M)
    assert all(re.search(r"`tests/[\w/.]+`|not run|output", said) for _, _, said in table)
    found = set()
    for page in PAGES:
        name = page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name
        for mark in re.findall(r"^```(\w+)\n.*?^```", page.read_text(encoding="utf-8"), re.S | re.M):
            if mark != "bash":
                found.add((mark, "" if (mark, "") in {row[:2] for row in table} else name))
    assert found == {row[:2] for row in table}


def words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


def test_the_documentation_written_by_hand_has_at_most_45000_words() -> None:
    written = {page: words(page) for page in DOCS.rglob("*.md") if page.name not in GENERATED}
    assert sum(written.values()) <= MOST_WORDS, "shorten, or move studies and histories to lab/studies"


def test_each_how_to_guide_has_at_most_1500_words() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    guides = re.findall(r"\]\(([\w/-]+\.md)\)", index.partition("\n## How-to guides\n")[2].partition("\n## ")[0])
    assert len(guides) > 15
    counts = {name: words(DOCS / name) for name in guides if name not in GENERATED}
    assert {name: count for name, count in counts.items() if count > MOST_WORDS_OF_A_GUIDE} == {}


def test_pages_are_read() -> None:
    assert len(PAGES) > 40
