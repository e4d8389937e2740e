"""Fits by the in-process trainer on a tiny language model."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.errors import RunError
from pddpo_ray.records import Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.storage import artifacts
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import MadeTensors, stored_mapping
from pddpo_ray.training import local
from pddpo_ray.training.batches import Text, collate
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import FrozenColumns, Shard, run_fit, schedule_factor
from pddpo_ray.training.local import LocalTrainer, carried, store_reference
from pddpo_ray.training.passes.log_probs import ResponseScorer, score_texts, support_of_texts, support_table
from tests.support.tiny_language_model import save_policy, tiny_llama

PROMPT = (1, 9, 4)
ANSWERS = [(7, 8, 2), (6, 2), (12, 13, 2), (20, 21, 22, 2)]
ROWS = tuple(PairRow(f"r{i}", PROMPT, ANSWERS[i % 3], ANSWERS[i % 3 + 1]) for i in range(12))
SETTINGS = FitSettings(steps=12, learning_rate=2e-3, batch_pairs=6, support=0.0)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def trainer(store: ArtifactStore, tmp_path: Path) -> LocalTrainer:
    reference = store_reference(store, save_policy(tmp_path / "model", seed=3))
    return LocalTrainer(TorchEngine(ResponseScorer(tiny_llama(0))), store, reference)


def reward_command(trainer: LocalTrainer, sequence: int = 1, settings: FitSettings = SETTINGS) -> FitCommand:
    objective = Objective("reward", trainer.reference, temperature=0.5)
    return FitCommand(sequence, Start(trainer.reference), objective, ROWS, settings, 7, f"reward-{sequence}")


def margin(trainer: LocalTrainer, policy: PolicyVersion, base: PolicyVersion) -> float:
    """Mean implicit margin of the rows."""
    texts = [(row.prompt, answer) for row in ROWS for answer in (row.chosen, row.rejected)]
    ratios = (trainer.score(policy, texts) - trainer.score(base, texts)).reshape(-1, 2)
    return float((ratios[:, 0] - ratios[:, 1]).mean())


@pytest.mark.run
def test_a_reward_fit_raises_what_was_preferred(trainer: LocalTrainer) -> None:
    result = trainer.execute(reward_command(trainer))
    assert margin(trainer, result.version, trainer.reference) > 0.5
    assert result.metrics["fit/loss"] < np.log(2)
    assert result.version.number == 1
    assert (trainer.store.folder(result.version.path) / "tokenizer.json").exists()


@pytest.mark.run
def test_the_same_command_twice_gives_the_same_version(trainer: LocalTrainer) -> None:
    first = trainer.execute(reward_command(trainer))
    trainer.execute(replace(reward_command(trainer, 2), seed=8))
    again = trainer.execute(reward_command(trainer))
    assert again.version == first.version


@pytest.mark.run
def test_a_cost_fit_starts_at_the_reward_policy_with_loss_ln_2_and_raises_the_cheaper(trainer: LocalTrainer) -> None:
    reward_policy = trainer.execute(reward_command(trainer)).version
    objective = Objective("cost", reward_policy, temperature=0.5 / 0.8, multiplier=0.8)
    flipped = tuple(replace(row, chosen=row.rejected, rejected=row.chosen) for row in ROWS)
    standing = FitCommand(
        2,
        Start(reward_policy),
        objective,
        flipped,
        SETTINGS.model_copy(update={"steps": 1, "learning_rate": 1e-30}),
        7,
        "policy-1",
    )
    assert trainer.execute(standing).metrics["fit/loss"] == pytest.approx(np.log(2), abs=1e-5)
    policy = trainer.execute(replace(standing, settings=SETTINGS)).version
    assert margin(trainer, policy, reward_policy) < -0.5


@pytest.mark.run
@pytest.mark.parametrize("margin_of_all", [1.5, -0.7])
def test_a_margin_is_part_of_the_logit_of_its_row(trainer: LocalTrainer, margin_of_all: float) -> None:
    """Before the first step the log ratios are equal, and softplus(-margin) is the loss."""
    objective = Objective("reward", trainer.reference, temperature=0.5, margins=(margin_of_all,) * len(ROWS))
    standing = SETTINGS.model_copy(update={"steps": 1, "learning_rate": 1e-30})
    command = replace(reward_command(trainer, settings=standing), objective=objective)
    loss = trainer.execute(command).metrics["fit/loss"]
    assert loss == pytest.approx(np.log1p(np.exp(-margin_of_all)), abs=1e-5)


@pytest.mark.full
@pytest.mark.slow
def test_support_term_keeps_mass_on_the_reference_support(
    trainer: LocalTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long fit at a high rate drives a small model off its language; the term holds it there. A floor of 1 %, since
    the least likely of this model's few tokens have more than 0.1 %."""
    monkeypatch.setattr(local, "SUPPORT_FLOOR", 0.01)
    wild = SETTINGS.model_copy(update={"steps": 40, "learning_rate": 6e-3})
    off = {}
    for weight in (0.0, 2.0):
        version = trainer.execute(reward_command(trainer, settings=wild.model_copy(update={"support": weight}))).version
        trainer.load(trainer.reference)
        texts = [(PROMPT, answer) for answer in ANSWERS]
        supports = support_of_texts(trainer.engine.scorer, texts, 0.01)[1]
        trainer.load(version)
        with torch.no_grad():
            mass = trainer.engine.scorer(collate(texts), support_table(supports))
        off[weight] = float(1 - mass[1].exp().mean())
    assert off[2.0] < 0.5 * off[0.0]


@pytest.mark.run
def test_carried_start_moves_the_cost_part_to_the_new_reward_policy(trainer: LocalTrainer) -> None:
    one, two, three = ({"w": torch.tensor([float(value)])} for value in (1, 5, 3))
    assert carried(one, two, three, 0.5)["w"].item() == 1 + 0.5 * (5 - 3)
    first = trainer.execute(reward_command(trainer)).version
    second = trainer.execute(replace(reward_command(trainer, 2), seed=9)).version
    command = replace(
        reward_command(trainer, 3),
        start=Start(second, plus=first, minus=trainer.reference, scale=0.5),
        settings=SETTINGS.model_copy(update={"steps": 1, "learning_rate": 1e-30}),
    )
    made = trainer.store.read_torch(*_where(trainer.execute(command).version))
    parts = [trainer.store.read_torch(*_where(version)) for version in (second, first, trainer.reference)]
    name = "model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(made[name], parts[0][name] + 0.5 * (parts[1][name] - parts[2][name]))


@pytest.mark.run
def test_micro_batches_change_nothing_but_memory(trainer: LocalTrainer) -> None:
    whole = trainer.execute(reward_command(trainer))
    parts = trainer.execute(reward_command(trainer, settings=SETTINGS.model_copy(update={"micro_pairs": 2})))
    assert parts.metrics["fit/loss"] == pytest.approx(whole.metrics["fit/loss"], abs=1e-4)
    texts = [(PROMPT, answer) for answer in ANSWERS]
    np.testing.assert_allclose(trainer.score(parts.version, texts), trainer.score(whole.version, texts), atol=1e-2)


@pytest.mark.run
def test_one_step_equals_adam_on_the_hand_written_loss(trainer: LocalTrainer) -> None:
    """A second way: the loss written out with log_softmax, one AdamW step of torch."""
    # No answer is both chosen and rejected: its gradient would be rounding, which Adam's first step makes full size.
    rows = (ROWS[0], ROWS[2])
    settings = SETTINGS.model_copy(update={"steps": 1, "batch_pairs": len(rows), "max_grad_norm": 1e9})
    version = trainer.execute(replace(reward_command(trainer, settings=settings), rows=rows)).version
    model = tiny_llama(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)

    def log_prob(response: tuple[int, ...]) -> torch.Tensor:
        logits = model(input_ids=torch.tensor([[*PROMPT, *response]])).logits[0, len(PROMPT) - 1 : -1]
        return torch.log_softmax(logits, dim=-1).gather(-1, torch.tensor(response)[:, None]).sum()

    frozen = {answer: float(log_prob(answer).detach()) for answer in ANSWERS}
    loss = torch.stack(
        [
            -torch.nn.functional.logsigmoid(
                0.5 * ((log_prob(r.chosen) - frozen[r.chosen]) - (log_prob(r.rejected) - frozen[r.rejected]))
            )
            for r in rows
        ]
    ).mean()
    loss.backward()
    optimizer.step()
    texts = [(PROMPT, answer) for answer in ANSWERS]
    expected = score_texts(ResponseScorer(model), texts)
    np.testing.assert_allclose(trainer.score(version, texts), expected, atol=5e-3)
    assert np.abs(expected - trainer.score(trainer.reference, texts)).max() > 0.5


@pytest.mark.run
def test_features_and_log_probs_come_from_the_right_policy(trainer: LocalTrainer) -> None:
    prompt = Prompt("p", PROMPT, "")
    responses = [Response(f"a{i}", prompt, ids, "", 0, i) for i, ids in enumerate(ANSWERS)]
    before = trainer.features(responses)
    policy = trainer.execute(reward_command(trainer)).version
    np.testing.assert_array_equal(trainer.features(responses), before)
    fresh = score_texts(ResponseScorer(tiny_llama(3)), [(PROMPT, ids) for ids in ANSWERS])
    np.testing.assert_allclose(trainer.log_probs(trainer.reference, responses), fresh, atol=1e-5)
    assert np.abs(trainer.log_probs(policy, responses) - fresh).max() > 0.1


@pytest.mark.run
def test_a_gradient_that_is_not_finite_stops_the_fit_with_a_reason(trainer: LocalTrainer) -> None:
    objective = Objective("reward", trainer.reference, temperature=0.5)
    columns = FrozenColumns({(PROMPT, answer): float("nan") for answer in ANSWERS}, {})
    trainer.engine.begin(SETTINGS)
    with pytest.raises(RunError, match="not finite"):
        run_fit(trainer.engine, objective, ROWS, columns, SETTINGS, seed=1)


def test_schedule_by_hand() -> None:
    settings = FitSettings(steps=10, warmup=0.2, schedule="linear")
    assert [schedule_factor(settings, step) for step in (0, 1, 2, 6)] == [0.5, 1.0, 1.0, 0.5]
    assert schedule_factor(settings.model_copy(update={"schedule": "cosine"}), 6) == pytest.approx(0.5)
    assert schedule_factor(settings.model_copy(update={"schedule": "constant"}), 9) == 1.0


def _where(version: PolicyVersion) -> tuple[str, str]:
    return version.path, version.sha256


@pytest.mark.parametrize(("texts", "ranks"), [(257, 2), (515, 4), (1025, 8), (256, 2), (3, 4)])
def test_ranks_that_share_a_scoring_make_as_many_passes_and_put_the_numbers_in_order(texts: int, ranks: int) -> None:
    """A sharded model needs every rank in every pass. Lengths differ, so the passes take texts in another order."""
    asked: list[Text] = [((1,) * (1 + index % 7), (2, index)) for index in range(texts)]
    parts: list[np.ndarray] = []
    counts: list[int] = []

    def trainer_of(rank: int, gather: Callable[[np.ndarray], list[np.ndarray]]) -> LocalTrainer:
        made = object.__new__(LocalTrainer)
        scorer = SimpleNamespace(layout="plain", parameters=lambda: iter([torch.zeros(1)]))
        made.engine = SimpleNamespace(shard=Shard(rank, ranks), scorer=scorer, gather=gather)  # type: ignore[assignment]
        return made

    def compute(part: list[Text]) -> np.ndarray:
        counts[-1] += 1
        return np.array([text[1][1] for text in part])

    def take(part: np.ndarray) -> list[np.ndarray]:
        parts.append(part)
        return [part]

    for rank in range(ranks):
        counts.append(0)
        trainer_of(rank, take)._share_work(compute, asked)
    assert len(set(counts)) == 1
    assert sum(map(len, parts)) == texts
    counts.append(0)
    shared = trainer_of(0, lambda part: parts)._share_work(compute, asked)
    np.testing.assert_array_equal(shared, np.arange(texts))


class Alive:
    """Bytes of the tensors that watched functions gave out and that somebody still holds; `most` of them so far."""

    def __init__(self) -> None:
        self.bytes = self.most = 0

    def watch(self, tensor: torch.Tensor) -> torch.Tensor:
        self.bytes += tensor.nbytes
        self.most = max(self.most, self.bytes)
        weakref.finalize(tensor, self._gone, tensor.nbytes)
        return tensor

    def _gone(self, size: int) -> None:
        self.bytes -= size


@pytest.mark.run
def test_a_carried_start_holds_a_few_tensors_at_a_time_and_a_fit_copies_its_weights_once(
    trainer: LocalTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the model's 47 tensors the embedding is the largest."""
    one = trainer.execute(reward_command(trainer)).version
    two = trainer.execute(replace(reward_command(trainer, 2), seed=9)).version
    largest = max(p.nbytes for p in trainer.engine.scorer.model.parameters())
    copies: list[int] = []
    alive, weights = Alive(), trainer.engine.weights

    def counted() -> dict[str, torch.Tensor]:
        copies.append(1)
        return weights()

    monkeypatch.setattr(trainer.engine, "weights", counted)
    read = stored_mapping
    monkeypatch.setattr(
        artifacts,
        "stored_mapping",
        lambda file: MadeTensors(mapped := read(file), lambda name: alive.watch(mapped[name].clone())),
    )

    def watched(*arguments: Any) -> MadeTensors[torch.Tensor]:
        made = carried(*arguments)
        return MadeTensors(made, lambda name: alive.watch(made[name]))

    monkeypatch.setattr(trainer, "carry", watched)
    trainer.execute(replace(reward_command(trainer, 3), start=Start(two, plus=one, minus=trainer.reference, scale=0.5)))
    assert 0 < alive.most <= 4 * largest
    assert len(copies) == 1


def test_a_version_is_stored_without_a_copy_of_it(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for weights that share memory with others, which the file's format refuses."""
    written: dict[str, torch.Tensor] = {}
    monkeypatch.setattr("safetensors.torch.save_file", lambda tensors, file: written.update(tensors))
    monkeypatch.setattr(store, "write_folder", lambda path, fill: fill(Path(path)))
    one, other = torch.ones(3), torch.zeros(3)
    store.write_tensors("policy", {"a": one, "b": other, "tied": one})
    places = {name: tensor.data_ptr() for name, tensor in written.items()}
    assert (places["a"], places["b"]) == (one.data_ptr(), other.data_ptr())
    assert places["tied"] != one.data_ptr()
