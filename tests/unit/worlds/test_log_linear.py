"""Log-linear policies: the class, its exact fits and draws, and the optimum where the class holds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit, logsumexp

from pddpo_lab.methods.merging import merge_versions
from pddpo_lab.worlds.log_linear import Block, LogLinear, given_the_grammar, phrase_blocks
from pddpo_lab.worlds.log_linear_parts import LogLinearEngine, LogLinearTrainer, Sentences, decoded_by_slot
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.errors import RunError
from pddpo_ray.records import Decoding, Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.losses.objectives import preference_loss, value_loss
from pddpo_ray.theory.multipliers.cost_stage import cost_temperature
from pddpo_ray.worlds.oracle import Oracle
from pddpo_ray.worlds.text.grammar import Grammar, Phrase, Slot

GRAMMAR = Grammar(
    topics=("bake bread", "sail north"),
    situations=("at night", "alone"),
    slots=(
        Slot("opening", (Phrase("well ,"), Phrase("sure ,"))),
        Slot("advice", (Phrase("go slowly"), Phrase("ask first"), Phrase("rush", rare=True))),
        Slot("closing", (Phrase("and rest ."), Phrase("and sing ."))),
    ),
)
PROMPTS, ANSWERS = 4, 12
BLOCKS = phrase_blocks(GRAMMAR, slots=1.0, topics=0.5, interactions=0.25)
BETA = 0.2
MANY = 1e12
"""Labels of every pair: as good as infinitely many, whatever the prior says."""


def reference(seed: int = 0) -> np.ndarray:
    """log-probabilities with a little mass outside the grammar. [X, Y]"""
    draws = np.random.default_rng(seed).dirichlet(np.ones(ANSWERS), PROMPTS)
    return np.asarray(np.log(0.99 * draws))


def policies(blocks: tuple[Block, ...] = BLOCKS) -> LogLinear:
    return LogLinear(given_the_grammar(reference()), blocks)


def truth(kind: str, seed: int) -> np.ndarray:
    """Scores in the span of slots, topics and pairs of slots, or any scores at all. [X, Y]"""
    draws = np.random.default_rng([seed, 7])
    if kind == "any":
        return np.asarray(draws.normal(0.0, 0.7, (PROMPTS, ANSWERS)))
    return 2.0 * policies().scores(draws.normal(0.0, 1.0, policies().size))


def every_pair(scores: np.ndarray, *, costs: bool) -> tuple[PairRow, ...]:
    """Every pair with both of its labels, as often as Bradley-Terry says; of a cost pair the cheaper is chosen."""
    rows = []
    for x, prompt in enumerate(GRAMMAR.prompt_ids):
        for i in range(ANSWERS):
            for j in range(ANSWERS):
                if i != j:
                    share = expit((scores[x, j] - scores[x, i]) if costs else (scores[x, i] - scores[x, j]))
                    ids = GRAMMAR.answer_ids
                    rows.append(PairRow(f"{x}-{i}-{j}", prompt, ids[i], ids[j], weight=MANY * float(share)))
    return tuple(rows)


def trainer_of(tmp_path: Path, blocks: tuple[Block, ...] = BLOCKS, ridge: float = 0.25) -> LogLinearTrainer:
    return LogLinearTrainer(policies(blocks), Sentences(GRAMMAR), ArtifactStore(tmp_path / "store"), ridge)


def fitted(trainer: LogLinearTrainer, objective: Objective, rows: tuple[PairRow, ...], number: int) -> PolicyVersion:
    command = FitCommand(number, Start(objective.base), objective, rows, FitSettings(), 0, f"fit-{number}")
    return trainer.execute(command).version


def some_rows(count: int = 30) -> tuple[PairRow, ...]:
    draws, ids = np.random.default_rng(3), GRAMMAR.answer_ids
    rows = []
    for index in range(count):
        i, j = draws.choice(ANSWERS, 2, replace=False)
        prompt = GRAMMAR.prompt_ids[draws.integers(PROMPTS)]
        rows.append(PairRow(str(index), prompt, ids[i], ids[j], weight=float(draws.integers(1, 4))))
    return tuple(rows)


# --- the class -------------------------------------------------------------------------------------------------------


def test_scores_are_sums_over_the_phrases_of_an_answer() -> None:
    """Against a sum written out cell by cell, from weights that are looked up by what they belong to."""
    made, draws = policies(), np.random.default_rng(1)
    theta = draws.normal(size=made.size)
    scores, unit = made.scores(theta), np.sqrt(2 * (3 * 1.0 + 3 * 0.25 + 3 * 0.0625))
    cells = [(x, y) for x in range(PROMPTS) for y in range(ANSWERS)]
    sizes, starts = [2, 3, 2], np.cumsum([0, 2, 3, 2, 4, 6, 4, 6, 4])
    for x, y in cells:
        phrase, topic = np.unravel_index(y, (2, 3, 2)), x // 2
        total = sum(theta[starts[s] + phrase[s]] for s in range(3)) * 1.0
        total += sum(theta[starts[3 + s] + topic * sizes[s] + phrase[s]] for s in range(3)) * 0.5
        for block, (s, t) in enumerate(((0, 1), (0, 2), (1, 2))):
            total += 0.25 * theta[starts[6 + block] + phrase[s] * sizes[t] + phrase[t]]
        assert scores[x, y] == pytest.approx(total / unit, abs=1e-12)
    rows = made.features(np.array([x for x, _ in cells]), np.array([y for _, y in cells]))
    np.testing.assert_allclose((rows @ theta).reshape(PROMPTS, ANSWERS), scores, atol=1e-12)
    np.testing.assert_allclose(np.exp(made.log_probs(theta)).sum(axis=1), 1.0)


def test_answers_without_a_common_feature_are_one_prior_deviation_apart() -> None:
    """Answers 0 and 11 differ in every slot: under weights N(0, s^2) their scores differ by N(0, s^2)."""
    first, other = policies().features(np.array([1, 1]), np.array([0, 11]))
    assert float(np.sum((first - other) ** 2)) == pytest.approx(1.0)


# --- fits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["reward", "cost", "values"])
def test_a_fit_ends_where_the_gradient_of_the_loss_and_the_prior_vanishes(stage: str, tmp_path: Path) -> None:
    """The loss is the one that networks are trained with, differentiated by torch."""
    trainer, rows = trainer_of(tmp_path), some_rows()
    base = fitted(trainer, Objective("reward", trainer.reference, BETA), rows[:10], 1)
    margins = tuple(np.random.default_rng(4).normal(0.0, 0.3, len(rows)).tolist())
    temperature = BETA if stage == "reward" else cost_temperature(BETA, 0.6)
    values = stage == "values"
    objective = Objective("reward" if stage == "reward" else "cost", base, temperature, margins=margins, values=values)
    theta = torch.tensor(trainer.theta(fitted(trainer, objective, rows, 2)), requires_grad=True)
    made = policies()
    start, sentences = torch.tensor(trainer.theta(base)), Sentences(GRAMMAR)
    chosen, rejected = (
        torch.tensor(made.features(*sentences.cells([(row.prompt, ids) for row, ids in texts])))
        for texts in ([(row, row.chosen) for row in rows], [(row, row.rejected) for row in rows])
    )
    losses, _ = (value_loss if values else preference_loss)(
        chosen @ (theta - start),
        rejected @ (theta - start),
        temperature=temperature,
        margins=torch.tensor(margins, dtype=torch.float64),
        weights=torch.tensor([row.weight for row in rows]),
    )
    # the square of a normal prior, of a label's variance of 1/4 against a quarter of a share per logit
    prior = (4.0 if values else 0.5) * 0.25 * (temperature * (theta - start)).square().sum()
    (losses.sum() + prior).backward()  # type: ignore[no-untyped-call]
    assert theta.grad is not None
    assert float(theta.grad.abs().max()) < 1e-8


SATURATED = Block(np.arange(PROMPTS) * ANSWERS, np.arange(ANSWERS), PROMPTS * ANSWERS, 1.0)
"""A weight for every cell: with it the class holds every policy on the reference's support."""


@pytest.mark.parametrize(("kind", "blocks"), [("span", BLOCKS), ("any", (SATURATED,))])
def test_with_infinitely_many_labels_optimum_multiplier_and_gap_are_those_of_enumeration(
    kind: str, blocks: tuple[Block, ...], tmp_path: Path
) -> None:
    """Truth in the span of phrases, and a class with a weight for every cell: both hold pi* exactly."""
    reward, cost = truth(kind, 1), truth(kind, 2)
    inside = np.exp(given_the_grammar(reference()))
    world = Oracle(np.full(PROMPTS, 1 / PROMPTS), inside, reward, cost, BETA)
    cost = cost - world.g(world.policy(0.5))  # so that the limit binds at about this multiplier
    world = Oracle(np.full(PROMPTS, 1 / PROMPTS), inside, reward, cost, BETA)
    trainer, made = trainer_of(tmp_path, blocks), policies(blocks)
    helpful = fitted(trainer, Objective("reward", trainer.reference, BETA), every_pair(reward, costs=False), 1)
    rows = every_pair(cost, costs=True)

    def table(multiplier: float) -> np.ndarray:
        objective = Objective("cost", helpful, cost_temperature(BETA, multiplier), multiplier)
        return np.asarray(np.exp(made.log_probs(trainer.theta(fitted(trainer, objective, rows, 2)))))

    for multiplier in (0.2, 1.3):
        np.testing.assert_allclose(table(multiplier), world.policy(multiplier), atol=1e-8)
        assert world.gap(table(multiplier)) == pytest.approx(world.gap(world.policy(multiplier)), abs=1e-8)
    found = brentq(lambda multiplier: world.g(table(multiplier)), 0.1, 2.0, xtol=1e-12)
    assert world.optimum.multiplier == pytest.approx(0.5, abs=1e-8)
    assert found == pytest.approx(world.optimum.multiplier, abs=1e-8)
    assert world.gap(table(found)) == pytest.approx(0.0, abs=1e-8)
    np.testing.assert_allclose(table(found), world.optimum.policy, atol=1e-8)


def test_merged_weights_are_the_cost_stage_at_a_share_of_the_multiplier(tmp_path: Path) -> None:
    trainer, rows = trainer_of(tmp_path), some_rows()
    helpful = fitted(trainer, Objective("reward", trainer.reference, BETA), rows, 1)
    safe, direct = (
        fitted(trainer, Objective("cost", helpful, cost_temperature(BETA, multiplier), multiplier), rows, 2)
        for multiplier in (0.9, 0.3 * 0.9)
    )
    merged = merge_versions(ArtifactStore(tmp_path / "store"), helpful, safe, 0.3, 3, "merged")
    np.testing.assert_allclose(trainer.theta(merged), trainer.theta(direct), atol=1e-10)


# --- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_draws_follow_the_policy_and_their_log_probabilities_are_its_own(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    version = fitted(trainer, Objective("reward", trainer.reference, BETA), some_rows(), 1)
    engine = LogLinearEngine(policies(), Sentences(GRAMMAR), ArtifactStore(tmp_path / "store"), "one")
    delivery = engine.deliver(version)
    assert (delivery.version, delivery.sha256) == (1, version.sha256)
    prompts = [_prompt(x) for x in range(PROMPTS)]
    table = np.exp(policies().log_probs(trainer.theta(version)))
    counts = np.zeros((PROMPTS, ANSWERS))
    for x, draws in enumerate(engine.sample(prompts, range(PROMPTS), 20_000, Decoding())):
        for ids, text, log_prob in draws:
            y = GRAMMAR.answer_index[ids]
            counts[x, y] += 1
            assert text == GRAMMAR.answer_texts[y]
            assert log_prob == pytest.approx(np.log(table[x, y]), abs=1e-12)
    spread = np.sqrt(table * (1 - table) / 20_000)
    assert np.abs(counts / 20_000 - table).max() < 5 * spread.max()
    answers = [Response("r", prompts[2], GRAMMAR.answer_ids[y], "", 0, 0) for y in range(ANSWERS)]
    np.testing.assert_allclose(trainer.log_probs(version, answers), np.log(table[2]), atol=1e-12)
    np.testing.assert_allclose(engine.score([prompts[2]] * ANSWERS, GRAMMAR.answer_ids), np.log(table[2]), atol=1e-12)


def test_decoding_acts_phrase_by_phrase() -> None:
    """A nucleus of 0.8 and a temperature, applied to each phrase given those before it, one answer at a time."""
    log_probs, decoding = given_the_grammar(reference())[1], Decoding(temperature=0.7, top_p=0.8)
    tree, expected = np.exp(log_probs).reshape(2, 3, 2), np.zeros((2, 3, 2))

    def kept(chances: np.ndarray) -> np.ndarray:
        warm = chances ** (1 / 0.7) / np.sum(chances ** (1 / 0.7))
        total, inside = 0.0, np.zeros_like(warm)
        for index in sorted(range(len(warm)), key=lambda index: -warm[index]):
            if total < 0.8:
                inside[index] = warm[index]
            total += warm[index]
        return np.asarray(inside / inside.sum())

    first = kept(tree.sum(axis=(1, 2)))
    for a in range(2):
        second = kept(tree[a].sum(axis=1) / tree[a].sum())
        for b in range(3):
            third = kept(tree[a, b] / tree[a, b].sum())
            expected[a, b] = first[a] * second[b] * third
    np.testing.assert_allclose(decoded_by_slot(log_probs, (2, 3, 2), decoding), expected.ravel(), atol=1e-12)
    np.testing.assert_allclose(decoded_by_slot(log_probs, (2, 3, 2), Decoding()), np.exp(log_probs), atol=1e-12)
    assert logsumexp(log_probs) == pytest.approx(0.0, abs=1e-12)


def test_text_outside_the_grammar_is_refused(tmp_path: Path) -> None:
    nonsense = Response("n", _prompt(0), GRAMMAR.answer_ids[0][:-1], "well , go slowly and rest", 0, 0)
    trainer = trainer_of(tmp_path)
    with pytest.raises(RunError, match="none of them"):
        trainer.log_probs(trainer.reference, [nonsense])


def _prompt(x: int) -> Prompt:
    return Prompt(f"p{x}", GRAMMAR.prompt_ids[x], GRAMMAR.prompt_texts[x])
