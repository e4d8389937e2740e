"""`pddpo score`: any checkpoint measured exactly against a text world's truth. Nothing is sampled.

Every answer of every prompt is scored by the model itself; f, g, gap and KL are sums over all of them and the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddpo_lab.worlds.token_tree import score_tree
from pddpo_lab.worlds.tokenised_world import WorldTexts, reads_the_worlds_words, tokenised
from pddpo_ray.errors import UserError
from pddpo_ray.evaluate.checkpoint_loading import Checkpoint
from pddpo_ray.evaluate.world import exact_values
from pddpo_ray.rollout.policy_temperature import divide_logits
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.worlds.exact_evaluation import covered_best
from pddpo_ray.worlds.text.prepared_world import PreparedTextWorld
from pddpo_ray.worlds.text.scoring import score_answers
from pddpo_ray.worlds.text.world import with_rest

Array = NDArray[np.float64]

EXCESS = 1e-3
"""By how much the probabilities of a prompt's answers may exceed 1 through rounding."""


def score(
    checkpoint: Checkpoint,
    prepared: PreparedTextWorld,
    threshold: float,
    template: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """What a checkpoint is worth on a world: gap, violation, KL to the reference and what stands behind them.

    `points` holds the same numbers of the reference, of the oracle on covered answers and of the optimum. UserError
    where the model cannot be measured on this world.
    """
    if checkpoint.temperature not in (None, prepared.temperature):
        raise UserError(
            f"{checkpoint.name} is a policy at temperature {checkpoint.temperature:g}, the world's is"
            f" {prepared.temperature:g}: add policy.temperature={checkpoint.temperature:g}"
        )
    # no stored version is read: the folder is only there to be named
    oracle = replace(prepared.world.oracle, threshold=threshold)
    view = prepared.view(ArtifactStore(prepared.reference_folder), oracle, stages_of_costs=True)
    log_probs, tokens = answer_scores(checkpoint, prepared, template, tell)
    covered = covered_best(view)
    points = {
        "reference": oracle.reference,
        **({} if covered is None else {"covered_only": covered.policy}),
        "optimum": oracle.optimum.policy,
    }
    measured = exact_values(view, with_rest(log_probs))
    return {
        "checkpoint": checkpoint.name,
        **_named(measured),
        "limit": threshold,
        "beta": oracle.beta,
        "multiplier_optimum": oracle.optimum.multiplier,
        "temperature": prepared.temperature,
        "tokens": tokens,
        "points": {name: _named(exact_values(view, table)) for name, table in points.items()},
    }


def answer_scores(
    checkpoint: Checkpoint,
    prepared: PreparedTextWorld,
    template: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Array, str]:
    """log-probability of every answer to every prompt [X, Y], and whose tokens they are sums over: world or own."""
    grammar, model = prepared.world.grammar, checkpoint.model
    rows = len(model.get_input_embeddings().weight)
    divide_logits(model, prepared.temperature)
    if reads_the_worlds_words(checkpoint.name, checkpoint.tokenizer, rows, grammar.vocabulary):
        if template is not None:
            raise UserError(f"--template {template}: {checkpoint.name} reads the world's own words, which need none")
        _demand_room(checkpoint, grammar.longest)
        return _checked(checkpoint.name, score_answers(model, grammar)), "world"
    texts = WorldTexts(grammar.prompt_texts, grammar.answer_texts)
    table = np.empty((len(texts.prompts), len(texts.answers)))
    asked = tokenised(checkpoint.name, checkpoint.tokenizer, checkpoint.tokenizer_folder, texts, template)
    for index, (prompt, answers) in enumerate(asked):
        _demand_room(checkpoint, len(prompt) + max(map(len, answers)))
        if max(prompt + tuple(token for answer in answers for token in answer)) >= rows:
            raise UserError(f"{checkpoint.name} has {rows} embeddings and a tokenizer with larger ids: another model's")
        tell(f"prompt {index + 1} of {len(texts.prompts)}")
        table[index] = score_tree(model, prompt, answers)
    return _checked(checkpoint.name, table), "own"


def _demand_room(checkpoint: Checkpoint, tokens: int) -> None:
    room = getattr(checkpoint.model.config.get_text_config(), "max_position_embeddings", None)
    if room is not None and tokens > room:
        raise UserError(f"{checkpoint.name} reads at most {room} tokens; prompt and answer take {tokens}")


def _checked(name: str, log_probs: Array) -> Array:
    """The scores; UserError where they are no log-probabilities of different texts."""
    total = np.exp(log_probs).sum(axis=1)
    if not np.isfinite(log_probs).all():
        raise UserError(f"{name} gives answers no probability (NaN or infinite): its weights are damaged")
    if (total > 1.0 + EXCESS).any():
        raise UserError(f"{name} gives a prompt's answers {total.max():.4f} of probability in all, more than 1")
    return log_probs


def _named(values: dict[str, float]) -> dict[str, float]:
    """gap, violation and kl first; violation is g, above 0 where the limit is broken."""
    order = ("f", "g", "helpfulness", "harmlessness", "unsafe_rate")
    return {
        "gap": values["gap"],
        "violation": values["g"],
        "kl": values["kl"],
        **{key: values[key] for key in order},
        "off_grammar": values["off_support"],
    }
