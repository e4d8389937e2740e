"""Who scores the answers of a scorecard: the run's own reward and cost, and scorers that it does not learn from.

A held-out scorer is named by the recipe, or trained here on pairs that the run keeps from itself, from another seed.
Its accuracy on labels that it did not learn from is measured before round 1 and shown beside its scores.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config, StoredScorerConfig
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import Journal
from pddpo_ray.limits.source_kinds import FREE_SOURCES
from pddpo_ray.limits.sources import Answer
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.parts.rewards import ComputedReward
from pddpo_ray.records import Array, LabelledPair, Prompt, Response
from pddpo_ray.scorecard.cards import HELD_OUT, SCORERS, trials_of
from pddpo_ray.scorers.fits import ScorerOrder, given_scorer, stored_scorer
from pddpo_ray.scorers.labellers import judging_models
from pddpo_ray.scoring.held_out import KINDS, REPORT, Kind, Trials, compared_answers
from pddpo_ray.scoring.interface import AnswerScorer
from pddpo_ray.scoring.learned_prompts import hashes_of, learned_by, opening_of
from pddpo_ray.theory.seeds import seed_of

logger = logging.getLogger(__name__)

COMPARED = 400
"""Most comparisons with labels, for a scorer without a report of its own."""
NOBODY = (
    "no held-out scorer judges the answers, so wins are not counted: name some under scorecard.scorers (`pddpo"
    " scorer train` on other prompts and another seed), or set scorecard.train=true with data.held_out=0.2"
)
Score = Callable[[Sequence[Response]], Array]


def own_scores(config: Config, feedback: FeedbackController, reward: ComputedReward | None) -> dict[str, Score]:
    """By `reward` and `cost`, what the run learns from where that is a score: models, or a computed reward."""
    if (models := judging_models(config, feedback)) is not None:
        scores = {"reward": models.rewards, "cost": models.costs}
        return {kind: scores[kind] for kind in models.kinds}
    source = None if reward is None or reward.stated.source.kind not in FREE_SOURCES else reward.source
    if source is None:
        return {}

    def rewards(answers: Sequence[Response]) -> Array:
        inputs = [Answer(item.prompt.text, item.text, turns=item.prompt.messages, where=item.id) for item in answers]
        return np.array([value if isinstance(value, float) else np.nan for value in source.values(inputs)])

    return {"reward": rewards}


def held_out_scores(
    config: Config, journal: Journal, backends: Backends, prompts: Sequence[Prompt]
) -> dict[str, Score]:
    """By `reward` and `cost`, the held-out scorers. A model is in memory only while it scores."""
    kinds = [kind for kind in KINDS if kind in config.scorecard.scorers or config.scorecard.train]
    if not kinds:
        logger.warning("scorecard: %s", NOBODY)
        return {}
    payload = journal.once(
        SCORERS, lambda: {kind: _find_or_train_scorer(kind, config, journal, backends, prompts) for kind in kinds}
    )
    for kind, trials in trials_of(payload).items():
        logger.info("scorecard: held-out %s model, %s", kind, trials)
    return {kind: partial(_score_answers, _maker(kind, config, backends, payload[kind])) for kind in kinds}


def _find_or_train_scorer(
    kind: Kind, config: Config, journal: Journal, backends: Backends, prompts: Sequence[Prompt]
) -> dict[str, Any]:
    """Where the scorer is, and its trials."""
    settings = config.scorecard.scorers.get(kind)
    if settings is None:
        return _train_scorer(kind, config, backends, prompts)
    report = Path(settings.path) / REPORT
    if report.is_file():
        _demand_others(kind, settings.path, config, journal, backends, prompts)
        return {"scorer": settings.path, HELD_OUT: json.loads(report.read_text(encoding="utf-8"))[HELD_OUT]}
    labelled = list(backends.held_out) or [entry.labelled for entry in journal.pairs(0)]
    trials = _test_scorer(kind, partial(given_scorer, settings, config.model.dtype), labelled, backends, config)
    return {"scorer": settings.path, HELD_OUT: trials.as_metrics()}


def _demand_others(
    kind: Kind, path: str, config: Config, journal: Journal, backends: Backends, prompts: Sequence[Prompt]
) -> None:
    """Raises UserError where the scorer learned from prompts of the run or of the run's own scorer."""
    learned = learned_by(path)
    if learned is None:
        logger.warning("scorecard: %s does not say which prompts its %s model learned from", path, kind)
        return
    offline = [entry.labelled.pair.prompt for entry in journal.pairs(0)]
    used_hashes = {
        "that the scorecard asks": hashes_of(map(opening_of, prompts)),
        "of the run": hashes_of(map(opening_of, (*backends.prompts, *offline))),
    }
    own_scorer: StoredScorerConfig | None = getattr(config.feedback, kind, None)
    if own_scorer is not None:
        used_hashes[f"that the run's own {kind} model learned from"] = sorted(learned_by(own_scorer.path) or ())
    for whose, hashes in used_hashes.items():
        if shared := learned.intersection(hashes):
            raise UserError(
                f"scorecard.scorers.{kind}: {path} learned from {len(shared)} of the {len(hashes)} prompts {whose}, so"
                " it is no held-out scorer: train it on other prompts (`pddpo scorer train` with other files)"
            )


def _train_scorer(kind: Kind, config: Config, backends: Backends, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """On held-out pairs of prompts that the scorecard does not ask; a share of those prompts judges it."""
    prompt_ids = {prompt.id for prompt in prompts}
    labelled = [item for item in backends.held_out if item.pair.prompt.id not in prompt_ids]
    seed = seed_of(config.seed, "scorecard", kind)
    order = ScorerOrder.of(kind, backends.reference, config.scorers, seed, len(labelled), by_prompt=True)
    recall = backends.recall or (lambda key, compute: compute())
    result = order.trained(labelled, backends.offline_unsafe, backends.store, recall)
    right = {name: result["metrics"][f"held_out_{name}"] for name in ("right", "trials")}
    stored = {"path": result["path"], "sha256": result["sha256"]}
    return {"scorer": "trained by the run", **stored, HELD_OUT: Trials.of(right).as_metrics()}


def _test_scorer(
    kind: Kind, make: Callable[[], AnswerScorer], labelled: Sequence[LabelledPair], backends: Backends, config: Config
) -> Trials:
    """Tests a scorer made elsewhere against the labels of these pairs."""
    seed, by_prompt = seed_of(config.seed, "scorecard", kind), backends.world is None
    score = partial(_score_answers, make)
    return compared_answers(
        labelled, kind, backends.offline_unsafe, score, by_prompt=by_prompt, seed=seed, most=COMPARED
    )


def _maker(kind: Kind, config: Config, backends: Backends, stored: Mapping[str, Any]) -> Callable[[], AnswerScorer]:
    settings = config.scorecard.scorers.get(kind)
    if settings is not None:
        return partial(given_scorer, settings, config.model.dtype)
    return partial(stored_scorer, str(backends.store.root), stored["path"], stored["sha256"])


def _score_answers(make: Callable[[], AnswerScorer], answers: Sequence[Response]) -> Array:
    """Raises RunError for a score that is no number."""
    scorer = make()
    scores = scorer.score(answers)
    if len(scores) != len(answers) or not np.isfinite(scores).all():
        raise RunError(f"scorecard: {scorer.name} gave no number for some of {len(answers)} answers")
    return scores
