"""How much a recipe computes and asks before its first round and in each round, as pure functions of the recipe.

Answers are counted exactly, but for offline ones and those to prompts that come again in a later round, which may be
fewer. Tokens are at most: an answer counts with its longest length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pddpo_ray.config import Config, FitConfig, ModelFeedback, NoWorldConfig, TextWorldConfig
from pddpo_ray.loop.before import calibration_size, offline_answers, prompts_of_the_term, proposal_of
from pddpo_ray.loop.fitting import with_steps
from pddpo_ray.worlds.grammar import FIRST_GRAMMAR

STRETCHES = {"before": "before round 1", "first_round": "round 1", "round": "each later round"}


@dataclass(frozen=True)
class Work:
    """One stretch of a run."""

    answers: Mapping[str, int] = field(default_factory=dict)
    """Answers that the engines draw, by purpose."""
    features: int = 0
    """Answers whose features the trainer computes."""
    log_probs: int = 0
    """Answers that the trainer scores outside of fits."""
    fitted_pairs: int = 0
    """Pairs in all optimiser steps of the policy's fits."""
    scorer_pairs: int = 0
    """Pairs in all optimiser steps of reward and cost models."""

    def tokens(self, longest: int) -> int:
        """Tokens that the engines write, at most."""
        return longest * sum(self.answers.values())


def prompts_of(config: Config) -> int:
    """Number of different prompts, at most; 0 for a table."""
    match config.world:
        case NoWorldConfig(prompt_count=count):
            return count
        case TextWorldConfig():
            return len(FIRST_GRAMMAR.prompt_ids)
        case _:
            return 0


def work_before(config: Config) -> Work:
    """What is done once, before the first round."""
    prompts = prompts_of(config)
    if config.policies != "language models":
        return Work()
    answers: dict[str, int] = {}
    if isinstance(config.world, TextWorldConfig):
        answers["offline"] = prompts * offline_answers(config.offline.pairs, prompts)
        if config.offline.extra:
            answers["extra"] = prompts * offline_answers(config.offline.extra, prompts)
    scorers = 0
    if isinstance(config.feedback, ModelFeedback):
        given = (config.feedback.reward, config.feedback.cost)
        pairs = config.offline.pairs if isinstance(config.world, NoWorldConfig) else config.scorers.pairs
        scorers = given.count(None) * _pairs_of(config.scorers.fit, pairs)
        if None in given and isinstance(config.world, TextWorldConfig):
            answers["scorers"] = prompts * 2 * -(-config.scorers.pairs // prompts)
    if not config.online:
        return Work(answers, scorer_pairs=scorers)
    proposal = proposal_of(config, prompts)
    whitened = calibration_size(config, prompts)
    if proposal.baseline:
        answers["calibration"] = whitened
        if config.explore.loss == "xpo":
            answers["baseline"] = prompts_of_the_term(config, prompts) * config.explore.baseline_answers
        return Work(answers, features=whitened + answers.get("baseline", 0), scorer_pairs=scorers)
    baseline = prompts * config.explore.baseline_answers
    answers |= {"baseline": baseline, "proposal": prompts * proposal.pool}
    return Work(answers, features=baseline + whitened, scorer_pairs=scorers)


def work_of_a_round(config: Config, first: bool = False) -> Work:
    """What each round does; the first one's fits have settings of their own."""
    if config.policies != "language models":
        return Work()
    answers = {"cost": config.feedback.responses}
    trainer, offline = config.trainer, config.offline.pairs
    fits = (trainer.first_reward, trainer.first_cost) if first else (trainer.reward, trainer.cost)
    fitted = sum(_pairs_of(fit, offline) for fit in fits)
    if not config.online:
        return Work(answers, fitted_pairs=fitted)
    proposal = proposal_of(config, prompts_of(config))
    asked = config.explore.prompts
    answers["candidate"] = asked * (proposal.candidates - proposal.from_reference)
    if proposal.pool == 0 and proposal.from_reference:
        answers["proposal"] = asked * proposal.from_reference
    if proposal.baseline:
        answers["baseline"] = asked * proposal.baseline
    candidates = asked * proposal.candidates
    return Work(
        answers,
        features=candidates + answers.get("baseline", 0),
        log_probs=2 * candidates,
        fitted_pairs=fitted,
    )


def _pairs_of(fit: FitConfig, rows: int) -> int:
    settings = with_steps(fit, rows)
    return settings.steps * settings.batch_pairs


def work(config: Config) -> dict[str, dict[str, Any]]:
    """The work as plain values, for `--json`."""
    longest = config.rollout.max_tokens
    stretches = {"before": work_before(config), "first_round": work_of_a_round(config, first=True)}
    stretches["round"] = work_of_a_round(config)
    return {name: {**asdict(one), "tokens": one.tokens(longest)} for name, one in stretches.items()}


def work_rows(plan: Mapping[str, Mapping[str, Any]]) -> list[Sequence[str]]:
    """The work for a reader: what is drawn, and below it what is computed."""
    computed = {
        "features": "features",
        "log_probs": "log-probabilities",
        "fitted_pairs": "pairs through the policy's fits",
        "scorer_pairs": "pairs through the scorers' fits",
    }
    rows: list[Sequence[str]] = []
    for name, title in STRETCHES.items():
        one = plan[name]
        parts = ", ".join(f"{purpose} {count:,}" for purpose, count in one["answers"].items())
        rows.append((title, f"{sum(one['answers'].values()):,} answers", f"at most {one['tokens']:,} tokens", parts))
        rows += [("", f"{one[key]:,}", what, "") for key, what in computed.items() if one[key]]
    return rows


def time_rows(speeds: Mapping[str, float], seconds: Mapping[str, float]) -> list[Sequence[str]]:
    """Measured speeds and what follows from them, for a reader."""
    did = (
        ("answers", "answers"),
        ("features", "features"),
        ("log_probs", "log-probabilities"),
        ("fitted_pairs", "pairs"),
    )
    rows: list[Sequence[str]] = [(f"{speeds[key]:,.3g} {what} a second", "measured") for key, what in did]
    rows += [
        (title, f"{seconds[name] / 60:,.1f} min, without labelling and delivery") for name, title in STRETCHES.items()
    ]
    return rows
