"""Scorers and judges of an evaluation: any stored scorer by its folder or name, any endpoint by its URL."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pddpo_ray.config import EndpointConfig, ScorerConfig
from pddpo_ray.evaluate.command import Judge, Score, Scorers
from pddpo_ray.records import Message, Verdict
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint, key_of
from pddpo_ray.scoring.judges.judge import Judge as EndpointJudge
from pddpo_ray.storage.checkpoints import files_now

if TYPE_CHECKING:
    from pddpo_ray.scoring.judges.judge import Axis

KEY = "PDDPO_JUDGE_KEY"
OUTCOMES = {Verdict.FIRST: 1.0, Verdict.SECOND: 0.0, Verdict.ABSTAIN: 0.5, Verdict.FAILED: None}


def scorers_of(
    reward: str | None, cost: str | None, judge: str | None = None, judge_model: str = "", dtype: str = "float32"
) -> Scorers:
    """Scorers by path, loaded when they are first asked, and a judge by URL."""
    return Scorers(
        reward=lazy_scorer(reward, dtype) if reward else None,
        cost=lazy_scorer(cost, dtype) if cost else None,
        judges=judges_at(judge, judge_model) if judge else (),
        fingerprint=fingerprint((reward, cost), judge, judge_model, dtype),
    )


def lazy_scorer(path: str, dtype: str = "float32") -> Score:
    """Scores of answers to questions; the model is in memory only while it works."""

    def score(texts: Sequence[tuple[Sequence[Message], str]]) -> Sequence[float]:
        from pddpo_ray.scoring.stored_scorers import load_scorer

        scorer = load_scorer(path, ScorerConfig(), dtype)
        return [float(value) for value in scorer.score_texts(texts)]

    return score


def fingerprint(models: Sequence[str | None], *further: str | None) -> str:
    """Identifies scorers by path and file state: changed files are another scorer."""
    return json.dumps([*([model, files_now(model)] for model in models if model), *further])


def judges_at(url: str, model: str) -> tuple[tuple[str, Judge], ...]:
    """A judge of helpfulness and one of harmlessness; every pair is asked in both orders, unreadable replies excluded.

    The endpoint's key, if it wants one, is in the environment variable PDDPO_JUDGE_KEY.
    """
    key = key_of("--judge", KEY if os.environ.get(KEY) else None, os.environ)
    judge = EndpointJudge(ChatEndpoint(EndpointConfig(endpoint=url, model=model), key))

    def on(axis: Axis) -> Judge:
        def outcomes(triples: Sequence[tuple[str, str, str]]) -> Sequence[float | None]:
            return [OUTCOMES[pair.winner] for pair in judge.compare(triples, axis, 0)]

        return outcomes

    return ("helpfulness", on("helpfulness")), ("harmlessness", on("harmlessness"))
