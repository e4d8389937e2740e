"""Whether a run's reward and cost models can be trusted with its multiplier, looked at before the first round.

Two questions. Are they right more often than a coin about labels that they did not learn from? And do the costs fit in
the box [-C, C] (`dual.cost_max`) to which labels are clipped? A model that fails the first holds the multiplier; scores
that fail the second end the run with the value of C to set.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.config import Config, ModelFeedback
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.loop.scorer_fits import HELD_OUT, KINDS, OF_FEEDBACK, OF_METHOD, Kind
from pddpo_ray.records import Array, LabelledPair, Response
from pddpo_ray.scoring.held_out import REPORT, Text, Trials, compared_on, comparisons, rows_of
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.theory.score_spread import ScoreSpread, spread_of
from pddpo_ray.theory.seeds import seed_of

logger = logging.getLogger(__name__)

PHASE = "scorer-gate"
SPREAD = "spread"
COMPARED, SCORED = 400, 256
"""Pairs on which a model that the recipe names is compared with labels, and answers whose costs are looked at."""
ADVICE = (
    "train it on more pairs or on a larger base (`pddpo scorer train`), give one that is (feedback.reward,"
    " feedback.cost), or hold out more pairs if the interval is wide (scorers.held_out)"
)


def check_scorers(
    config: Config, journal: Journal, models: ScoredLabeller, unsafe: Mapping[str, bool], *, by_prompt: bool
) -> None:
    """Asks both questions once, says the answers in the log and keeps them in the journal.

    `unsafe` are the safety labels of the offline answers. Raises UserError where the costs do not fit in the box, and,
    under `scorers.at_chance: stop`, where a model is at chance.
    """
    assert isinstance(config.feedback, ModelFeedback)
    given = [kind for kind in KINDS if getattr(config.feedback, kind) is not None]
    payload = journal.once(PHASE, lambda: _looked_at(config, journal, models, unsafe, given, by_prompt))
    spread = ScoreSpread(**payload[SPREAD])
    logger.info("costs of %s answers before round 1: %s", payload["answers"], spread)
    for kind, trials in known_trials(journal).items():
        logger.info("%s model: %s", kind, trials)
    if config.feedback.signal == "logit_labels" and spread.at_clip > config.scorers.clip_share:
        raise UserError(
            f"the cost model's scores do not fit in [-{spread.cost_max:g}, {spread.cost_max:g}]: {spread}. Labels of"
            f" such answers all say the same, and each counts as {spread.cost_max:g} or -{spread.cost_max:g}. Begin a"
            f" new run with dual.cost_max={spread.fitting_box:g} and as many labels_each as"
            " its logits need, with a feedback.cost.scale that brings the scores to logits, or with"
            " feedback.signal=cost_model, which takes the scores as they are"
        )
    for line in at_chance(journal).values():
        if config.scorers.at_chance == "stop":
            raise UserError(f"{line}: {ADVICE}")
        logger.warning("%s", line)


def known_trials(journal: JournalReader) -> dict[Kind, Trials]:
    """How often each model was right on held-out labels; those that nothing was held out for have no trials."""
    known: dict[Kind, Trials] = {}
    for phase in (OF_FEEDBACK, PHASE, OF_METHOD):
        for entry in journal.phases(like=phase):
            for kind in KINDS:
                said = (entry.payload.get(kind) or {}).get(HELD_OUT)
                if said is not None:
                    known[kind] = Trials.of(said)
    return known


def scorers_result(journal: JournalReader) -> dict[str, Any] | None:
    """What result.json says about the models; None for a run without any."""
    spread = next((entry.payload[SPREAD] for entry in journal.phases(0, PHASE)), None)
    known = {kind: trials.as_metrics() for kind, trials in known_trials(journal).items()}
    if spread is None and not known:
        return None
    return {"held_out": known, "costs": spread, "at_chance": at_chance(journal)}


def at_chance(journal: JournalReader) -> dict[Kind, str]:
    """By kind, what to say about a model that no held-out label shows to be better than a coin."""
    return {
        kind: f"the {kind} model is not better than chance: {trials}"
        for kind, trials in known_trials(journal).items()
        if not trials.better_than_chance
    }


def held_multiplier(journal: JournalReader, value: float) -> str | None:
    """Why the multiplier stays at this value in this round; None where the cost model is better than chance."""
    said = at_chance(journal).get("cost")
    return said and f"{said}; the multiplier stays at {value:g}: {ADVICE}"


def _looked_at(
    config: Config,
    journal: Journal,
    models: ScoredLabeller,
    unsafe: Mapping[str, bool],
    given: Sequence[Kind],
    by_prompt: bool,
) -> dict[str, Any]:
    """Trials of the models that the recipe names, and the spread of the costs."""
    labelled = [entry.labelled for entry in journal.pairs(0)]
    payload: dict[str, Any] = {}
    for kind in given:
        stated = _of_its_training(getattr(config.feedback, kind).path)
        trials = stated or _compared(
            kind, models, labelled, unsafe, by_prompt, seed_of(config.seed, "scorer-gate", kind)
        )
        if trials.count:
            payload[kind] = {HELD_OUT: trials.as_metrics()}
            journal.add_metrics({f"scorer/{kind}_held_out_{name}": one for name, one in trials.as_metrics().items()})
        else:
            logger.warning("%s model: no pair before round 1 says whether it is any good", kind)
    answers = _answers(journal)
    spread = spread_of(models.costs(answers), config.dual.cost_max)
    journal.add_metrics(spread.as_metrics())
    return {**payload, SPREAD: spread.as_json(), "answers": len(answers)}


def _of_its_training(path: str) -> Trials | None:
    """What `pddpo scorer train` held out: it may have learned from this run's pairs. None for another model."""
    report = Path(path) / REPORT
    return Trials.of(json.loads(report.read_text(encoding="utf-8"))[HELD_OUT]) if report.is_file() else None


def _compared(
    kind: Kind,
    models: ScoredLabeller,
    labelled: Sequence[LabelledPair],
    unsafe: Mapping[str, bool],
    by_prompt: bool,
    seed: int,
) -> Trials:
    """A given model learned from other data: all pairs before round 1 are held out from it."""
    asked = comparisons(rows_of(labelled, kind, unsafe), by_prompt=by_prompt, seed=seed)[:COMPARED]
    answers: dict[Text, Response] = {
        (answer.prompt.token_ids, answer.token_ids): answer
        for item in labelled
        for answer in (item.pair.first, item.pair.second)
    }

    def score(texts: Sequence[Text]) -> Array:
        return (models.rewards if kind == "reward" else models.costs)([answers[text] for text in texts])

    return compared_on(asked, score)


def _answers(journal: Journal) -> list[Response]:
    """Answers from before round 1, spread over all of them: those of pools and those of the pairs."""
    answers = journal.samples(0)
    if len(answers) <= SCORED:
        return answers
    return [answers[i] for i in np.linspace(0, len(answers) - 1, SCORED).round().astype(int)]
