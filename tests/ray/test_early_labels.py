"""A labeller in an actor begins before anybody waits; when it is lost meanwhile, it is asked once more."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from actors.labeller import FeedbackHandle
from pddpo_ray.contracts import EarlyLabeller
from pddpo_ray.records import LabelledPair, Pair, Prompt, Response, SafetyLabels, Verdict
from tests.support.tiers import in_full

pytestmark = pytest.mark.ray

ITEMS = [Response(f"r{number}", Prompt("p", (1,), "text"), (2,), "answer", 0, 0) for number in range(3)]


@dataclass
class Counting:
    """Counts its calls in a file; in the first one it dies if it is mortal."""

    file: Path
    mortal: bool

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        with self.file.open("a") as file:
            file.write(f"{seed} ")
        if self.mortal and len(self.file.read_text().split()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        verdict = Verdict.UNSAFE if seed % 2 else Verdict.SAFE
        return [SafetyLabels(item, (verdict,) * labels_each) for item in items]

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        return []


@pytest.mark.parametrize(("mortal", "asked"), [*in_full((False, "3 4 ")), (True, "3 3 4 ")])
def test_an_early_answer_is_taken_and_asked_for_again_only_if_it_was_lost(
    ray_running: None, tmp_path: Path, mortal: bool, asked: str
) -> None:
    handle = FeedbackHandle("early", partial(Counting, tmp_path / "calls", mortal), deadline_s=60)
    handle.wait_ready()
    assert isinstance(handle, EarlyLabeller)
    handle.open_safety(ITEMS, 2, 3)
    assert handle.compare([], 0) == []
    assert [item.labels for item in handle.safety(ITEMS, 2, 3)] == [(Verdict.UNSAFE, Verdict.UNSAFE)] * 3
    # An early answer to another question is not this question's.
    handle.open_safety(ITEMS[:1], 2, 4)
    assert [item.labels for item in handle.safety(ITEMS, 1, 4)] == [(Verdict.SAFE,)] * 3
    assert (tmp_path / "calls").read_text() == f"{asked}4 "
    handle.close()
