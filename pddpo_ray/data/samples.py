"""The pairs that ship with the project (HH-RLHF, MIT; see NOTICE), for trying things out without a download."""

from __future__ import annotations

from pathlib import Path

from pddpo_ray.data.example import Dimension

FOLDER = Path(__file__).parents[1] / "sample_data"


def sample_file(dimension: Dimension) -> Path:
    """100 pairs of HH transcripts in which `chosen` is the more helpful, or the less harmful, reply."""
    return FOLDER / f"hh_{dimension}.jsonl.gz"


def benign_file() -> Path:
    """16 harmless requests that only sound alarming."""
    return FOLDER / "limits" / "benign.jsonl"
