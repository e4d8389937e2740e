"""Which prompts a scorer learned from, as hashes beside the model: so a held-out scorer can be shown to be one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from pddpo_ray.data.formats.example import folded
from pddpo_ray.records import Prompt
from pddpo_ray.scoring.held_out import REPORT

LEARNED = "learned_prompts"
"""In scorer.json: hashes of the opening questions of the rows that were fitted and calibrated on."""


def hashes_of(openings: Iterable[str]) -> list[str]:
    """One for each different opening question, whatever its case and white space; sorted."""
    different = {folded(text) for text in openings}
    return sorted(hashlib.sha256(text.encode()).hexdigest()[:16] for text in different)


def opening_of(prompt: Prompt) -> str:
    """The first user message, else the prompt's text."""
    return next((message.content for message in prompt.turns if message.role == "user"), prompt.text)


def learned_by(folder: str | Path) -> frozenset[str] | None:
    """Hashes of what the scorer in this folder learned from; None where it does not say."""
    report = Path(folder) / REPORT
    hashes = json.loads(report.read_text(encoding="utf-8")).get(LEARNED) if report.is_file() else None
    return None if hashes is None else frozenset(hashes)
