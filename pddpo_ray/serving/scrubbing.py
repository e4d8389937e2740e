"""Removes addresses, numbers and keys from a text before it is kept, by the rules of a file.

Rules find forms, not meanings: a name, an address of a house or a story that fits one person stays. They lower what a
kept prompt can give away; consent, caps and withdrawal are for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from pddpo_ray.errors import UserError

RULES = Path(__file__).parent / "scrub.yaml"
FIELDS = {"name", "pattern", "with", "drop"}


@dataclass(frozen=True)
class Rule:
    """One form, and what stands in its place; None: a text that has it is not kept at all."""

    name: str
    pattern: re.Pattern[str]
    replacement: str | None


@dataclass(frozen=True)
class Scrubber:
    """Rules in the order in which they act."""

    rules: Sequence[Rule]

    def __call__(self, text: str) -> str | None:
        """The text without what the rules find; None where a rule says that nothing of it may be kept."""
        for rule in self.rules:
            if rule.replacement is not None:
                text = rule.pattern.sub(rule.replacement, text)
            elif rule.pattern.search(text):
                return None
        return text


def scrubber(file: Path | None = None) -> Scrubber:
    """The rules of a file, those that ship by default. Raises UserError for a file that has none or a wrong one."""
    path = RULES if file is None else file
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: no file of rules ({error}); write it as {RULES.name} of this package") from error
    if not isinstance(content, list) or not content:
        raise UserError(f"{path}: write a list of rules, each with name, pattern and `with`")
    return Scrubber([_rule(path, number, entry) for number, entry in enumerate(content, 1)])


def _rule(path: Path, number: int, entry: object) -> Rule:
    where = f"{path}, rule {number}"
    if not isinstance(entry, dict) or not set(entry) <= FIELDS or not {"name", "pattern"} <= set(entry):
        raise UserError(f"{where}: write name, pattern, and `with` or `drop: true`")
    if ("with" in entry) == (entry.get("drop") is True):
        raise UserError(f"{where} ({entry['name']}): say either what stands in its place (`with`) or `drop: true`")
    try:
        pattern = re.compile(str(entry["pattern"]))
        replacement = None if "with" not in entry else str(entry["with"])
        pattern.sub(replacement or "", "")  # a group that is not there is found here
    except re.error as error:
        raise UserError(f"{where} ({entry['name']}): {error}") from error
    return Rule(str(entry["name"]), pattern, replacement)
