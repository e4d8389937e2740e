"""Score models in Ray actors: the same scores as here, asked again after a loss, and named when they fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray

from actors.labeller import ScorerHandle
from pddpo_ray.errors import RunError
from pddpo_ray.records import Array, Pair, Prompt, Response
from pddpo_ray.scoring.interface import TextPair
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.scoring.stored_scorers import load_scorer
from tests.unit.scoring.test_loading import TEXTS, beaver

pytestmark = pytest.mark.ray


class Process:
    """Says in which process it lives, as a score."""

    name = "process"

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        return np.full(len(texts), float(os.getpid()))

    def score(self, responses: Sequence[Response]) -> Array:
        return self.score_texts([("", "")] * len(responses))


def broken() -> Process:
    raise RunError("the cost model's folder is empty")


@pytest.mark.full
def test_an_actor_scores_as_the_model_does_here_and_labels_follow(ray_running: None, tmp_path: Path) -> None:
    folder = beaver(tmp_path / "cost", "cost")
    here = load_scorer(folder)
    there = ScorerHandle("cost-model", partial(load_scorer, folder), deadline_s=60)
    there.wait_ready()
    np.testing.assert_allclose(there.score_texts(TEXTS), here.score_texts(TEXTS), atol=1e-5)
    prompt = Prompt("p", (1,), TEXTS[0][0])
    answers = [Response(f"r{place}", prompt, (4,), text, 0, 0) for place, (_, text) in enumerate(TEXTS)]
    pairs = [Pair("pair", answers[0], answers[1])]
    local, remote = ScoredLabeller(here, here), ScoredLabeller(there, there)
    assert remote.safety(answers, 8, 3) == local.safety(answers, 8, 3)
    assert remote.compare(pairs, 3) == local.compare(pairs, 3)
    there.close()


def test_a_lost_scorer_is_asked_again(ray_running: None) -> None:
    handle = ScorerHandle("process", Process, deadline_s=60)
    first = int(handle.score_texts([("", "")])[0])
    os.kill(first, signal.SIGKILL)
    second = int(handle.score_texts([("", "")])[0])
    assert second != first
    handle.close()


@pytest.mark.full
def test_a_scorer_that_cannot_start_says_why(ray_running: None) -> None:
    handle = ScorerHandle("cost-model", broken, deadline_s=60, start_deadline_s=60)
    with pytest.raises(RunError, match="scorer cost-model failed to start"):
        handle.wait_ready()
    assert ray.is_initialized()
