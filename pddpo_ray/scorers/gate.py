"""Whether a run's reward and cost models can be trusted with its multiplier, looked at before the first round.

Two questions. Are they right more often than a coin about labels that they did not learn from? And do the costs fit in
the box [-C, C] (`dual.cost_max`) to which labels are clipped? A model that fails the first holds the multiplier; scores
that fail the second end the run with the value of C to set.

Where sources measure the limits the first question is asked of every score model that measures one, and of the cost
model that compares for a logit limit; each holds the multipliers of its own limits. What C-DPO, MoCAN and CAID fit is
judged by the same fit on half of the pairs, compared with the other half.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pddpo_ray.config import Config, ModelFeedback
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.records import LabelledPair, Response
from pddpo_ray.scorers.fits import FITTED, HELD_OUT, OF_FEEDBACK, OF_METHOD
from pddpo_ray.scoring.held_out import KINDS, REPORT, Kind, Trials, compared_answers
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.theory.estimates.score_spread import ScoreSpread, spread_of
from pddpo_ray.theory.seeds import seed_of

logger = logging.getLogger(__name__)

PHASE = "scorer-gate"
LIMITS = "scorer-gate-limits"
"""The phase in which models that measure limits were looked at; its payload has them by `limit NAME`."""
SPREAD = "spread"
COMPARED, SCORED = 400, 256
"""Pairs on which a model that the recipe names is compared with labels, and answers whose costs are looked at."""
ADVICE = (
    "train it on more pairs or on a larger base (`pddpo scorer train`), give one that is (feedback.reward,"
    " feedback.cost), or hold out more pairs if the interval is wide (scorers.held_out)"
)
ADVICE_OF_LIMIT = (
    "train it on more pairs or on a larger base (`pddpo scorer train`), with more of them held out if the interval is"
    " wide (--held-out), and name the new folder in the limit"
)


def check_scorers(
    config: Config, journal: Journal, models: ScoredLabeller, unsafe: Mapping[str, bool], *, by_prompt: bool
) -> None:
    """Answers both questions once, in the log and in the journal.

    `unsafe` are the safety labels of the offline answers. Raises UserError where the costs do not fit in the box, and,
    under `scorers.at_chance: stop`, where a model is at chance.
    """
    assert isinstance(config.feedback, ModelFeedback)
    named_kinds = [kind for kind in KINDS if getattr(config.feedback, kind) is not None]
    payload = journal.once(PHASE, lambda: _check_models(config, journal, models, unsafe, named_kinds, by_prompt))
    for kind, trials in known_trials(journal).items():
        logger.info("%s model: %s", kind, trials)
    if SPREAD in payload:
        demand_box(config, ScoreSpread(**payload[SPREAD]), payload["answers"])
    stop_or_warn(config.scorers.at_chance, journal)


def demand_box(config: Config, spread: ScoreSpread, answers: int) -> None:
    """UserError where too many answers' costs do not fit in the box to which labels are clipped."""
    logger.info("costs of %s answers before round 1: %s", answers, spread)
    by_logits = any(limit.quantity.kind == "logit" for limit in config.typed_limits)
    if by_logits and spread.at_clip > config.scorers.clip_share:
        raise UserError(
            f"the cost model's scores do not fit in [-{spread.cost_max:g}, {spread.cost_max:g}]: {spread}. Labels of"
            f" such answers all say the same, and each counts as {spread.cost_max:g} or -{spread.cost_max:g}. Begin a"
            f" new run with dual.cost_max={spread.fitting_box:g} and as many labels_each as"
            " its logits need, with a feedback.cost.scale that brings the scores to logits, or with"
            " limits.cost={mean: {model: cost}, at_most: D, learned_from: comparisons}, which takes the scores as"
            " they are"
        )


def check_limits(config: Config, journal: Journal) -> None:
    """Asks the first question about every score model that measures a limit, once. Raises UserError as above."""
    paths = {
        of_limit(limit.limit.name): limit.source.what for limit in config.stated if limit.source.kind == "score_model"
    }
    if not paths:
        return
    journal.once(LIMITS, lambda: _limit_trials(config, journal, paths))
    for name, trials in known_trials(journal).items():
        if name in paths:
            logger.info("score model of %s: %s", name, trials)
    stop_or_warn(config.scorers.at_chance, journal, paths, ADVICE_OF_LIMIT)


def of_limit(name: str) -> str:
    """Name of the model that measures a limit, beside `reward` and `cost`."""
    return f"limit {name}"


def stop_or_warn(
    action: Literal["hold", "stop"], journal: JournalReader, names: Collection[str] = KINDS, advice: str = ADVICE
) -> None:
    """Warns of these models if they are at chance. Raises UserError instead where the recipe says `stop`."""
    for name, line in at_chance(journal).items():
        if name not in names:
            continue
        if action == "stop":
            raise UserError(f"{line}: {advice}")
        logger.warning("%s", line)


def known_trials(journal: JournalReader) -> dict[str, Trials]:
    """How often each model was right on held-out labels; those that nothing was held out for have no trials."""
    trials: dict[str, Trials] = {}
    for phase in (OF_FEEDBACK, PHASE, LIMITS, OF_METHOD, FITTED):
        for entry in journal.phases(like=phase):
            for name, payload in entry.payload.items():
                metrics = payload.get(HELD_OUT) if isinstance(payload, dict) else None
                if metrics is not None:
                    trials[name] = Trials.of(metrics)
    return trials


def scorers_result(journal: JournalReader) -> dict[str, Any] | None:
    """What result.json says about the models; None for a run without any."""
    spread = next((entry.payload.get(SPREAD) for entry in journal.phases(0, PHASE)), None)
    metrics = {kind: trials.as_metrics() for kind, trials in known_trials(journal).items()}
    if spread is None and not metrics:
        return None
    return {"held_out": metrics, "costs": spread, "at_chance": at_chance(journal)}


def at_chance(journal: JournalReader) -> dict[str, str]:
    """By kind or limit, what to say about a model that no held-out label shows to be better than a coin."""
    bad = {name: trials for name, trials in known_trials(journal).items() if not trials.better_than_chance}
    models = {name: f"{name} model" if name in KINDS else f"score model of {name}" for name in bad}
    return {name: f"the {models[name]} is not better than chance: {trials}" for name, trials in bad.items()}


def held_multiplier(journal: JournalReader) -> str | None:
    """Why the multiplier stays where it is; None where the cost model is better than chance."""
    line = at_chance(journal).get("cost")
    return line and _hold_message(line)


def _hold_message(line: str, advice: str = ADVICE) -> str:
    return f"{line}; its multiplier stays where it is: {advice}"


def held_limits(config: Config, journal: JournalReader) -> dict[str, str]:
    """By name, why a limit's multiplier does not move: what measures it, or compares for it, is at chance.

    Where people audit the limit, they correct what the model says.
    """
    lines, messages = at_chance(journal), dict[str, str]()
    for limit in config.stated:
        name = limit.limit.name
        if reason := lines.get(of_limit(name)):
            messages[name] = _hold_message(reason, ADVICE_OF_LIMIT)
        elif "cost" in lines and limit.by_comparisons and limit.audited is None:
            messages[name] = _hold_message(lines["cost"])
    return messages


def _limit_trials(config: Config, journal: Journal, paths: Mapping[str, str]) -> dict[str, Any]:
    """Trials of the score models that measure limits: what their training held out, or what is known of the same model
    as the run's reward or cost model."""
    run_trials = known_trials(journal)
    kinds_by_path = {
        scorer.path: kind
        for kind in KINDS
        if isinstance(config.feedback, ModelFeedback) and (scorer := getattr(config.feedback, kind)) is not None
    }
    payload: dict[str, Any] = {}
    for name, path in paths.items():
        trials = _training_trials(path) or run_trials.get(kinds_by_path.get(path, ""))
        if trials is None:
            logger.warning("%s: nothing says whether its score model is any good (no %s in %s)", name, REPORT, path)
        else:
            payload[name] = {HELD_OUT: trials.as_metrics()}
    return payload


def _check_models(
    config: Config,
    journal: Journal,
    models: ScoredLabeller,
    unsafe: Mapping[str, bool],
    named_kinds: Sequence[Kind],
    by_prompt: bool,
) -> dict[str, Any]:
    """Trials of the models that the recipe names, and the spread of the costs."""
    labelled = [entry.labelled for entry in journal.pairs(0)]
    payload: dict[str, Any] = {}
    for kind in named_kinds:
        own_trials = _training_trials(getattr(config.feedback, kind).path)
        trials = own_trials or _compare_with_labels(
            kind, models, labelled, unsafe, by_prompt, seed_of(config.seed, "scorer-gate", kind)
        )
        if trials.count:
            payload[kind] = {HELD_OUT: trials.as_metrics()}
            journal.add_metrics({f"scorer/{kind}_held_out_{key}": value for key, value in trials.as_metrics().items()})
        else:
            logger.warning("%s model: no pair before round 1 says whether it is any good", kind)
    if "cost" not in models.kinds:
        return payload
    answers = _answers(journal)
    spread = spread_of(models.costs(answers), config.dual.cost_max)
    journal.add_metrics(spread.as_metrics())
    return {**payload, SPREAD: spread.as_json(), "answers": len(answers)}


def _training_trials(path: str) -> Trials | None:
    """What `pddpo scorer train` held out: it may have learned from this run's pairs. None for another model."""
    report = Path(path) / REPORT
    return Trials.of(json.loads(report.read_text(encoding="utf-8"))[HELD_OUT]) if report.is_file() else None


def _compare_with_labels(
    kind: Kind,
    models: ScoredLabeller,
    labelled: Sequence[LabelledPair],
    unsafe: Mapping[str, bool],
    by_prompt: bool,
    seed: int,
) -> Trials:
    """A given model learned from other data: all pairs before round 1 are held out from it."""
    score = models.rewards if kind == "reward" else models.costs
    return compared_answers(labelled, kind, unsafe, score, by_prompt=by_prompt, seed=seed, most=COMPARED)


def _answers(journal: Journal) -> list[Response]:
    """Answers from before round 1, spread over all of them: those of pools and those of the pairs."""
    answers = journal.samples(0)
    if len(answers) <= SCORED:
        return answers
    return [answers[i] for i in np.linspace(0, len(answers) - 1, SCORED).round().astype(int)]
