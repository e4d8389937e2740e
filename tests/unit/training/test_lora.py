"""Adapters on one base: what they compute, what is stored, and what a start from them is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.errors import RunError
from pddpo_ray.records import Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.fit import Tensors
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.models import lora
from pddpo_ray.training.models.lora import (
    DOWN,
    UP,
    LoraTrainer,
    carried_adapter,
    load_lora_trainer,
    merged,
    switched_off,
)
from pddpo_ray.training.passes.log_probs import ResponseScorer
from tests.support.tiny_language_model import save_policy, tiny_llama

ROWS = tuple(PairRow(f"r{i}", (1, 5 + i, 9), (10 + i, 11, 12 + i, 2), (60 + i, 61, 62, 63 + i, 2)) for i in range(8))
ANSWERS = [Response(row.id, Prompt("p", row.prompt, ""), row.chosen, "", 0, 0) for row in ROWS]


def lora_trainer(store: ArtifactStore, reference: PolicyVersion) -> LoraTrainer:
    return load_lora_trainer(store.folder(reference.path), store, reference, rank=4, alpha=8.0)


def plain_log_probs(folder: Path, store: ArtifactStore, reference: PolicyVersion, policy: PolicyVersion) -> np.ndarray:
    from pddpo_ray.training.engine import TorchEngine

    model = AutoModelForCausalLM.from_pretrained(folder)
    return LocalTrainer(TorchEngine(ResponseScorer(model)), store, reference).log_probs(policy, ANSWERS)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def reference(store: ArtifactStore, tmp_path: Path) -> PolicyVersion:
    return store_reference(store, save_policy(tmp_path / "reference", seed=4))


def command(reference: PolicyVersion, start: Start | None = None, number: int = 1) -> FitCommand:
    settings = FitSettings(steps=8, learning_rate=5e-3, batch_pairs=8, support=0.0)
    objective = Objective("reward", reference, 0.1)
    return FitCommand(number, start or Start(reference), objective, ROWS, settings, 3, f"reward-{number}")


@pytest.mark.run
def test_the_reference_is_the_base_with_its_adapters_off(
    store: ArtifactStore, reference: PolicyVersion, tmp_path: Path
) -> None:
    trainer = lora_trainer(store, reference)
    trained = trainer.execute(command(reference)).version
    changed = trainer.log_probs(trained, ANSWERS)
    again = trainer.log_probs(reference, ANSWERS)
    np.testing.assert_allclose(again, plain_log_probs(tmp_path / "reference", store, reference, reference), atol=1e-4)
    assert np.abs(changed - again).max() > 0.1


@pytest.mark.run
def test_a_version_loads_like_any_model_and_gives_the_adapters_log_probs(
    store: ArtifactStore, reference: PolicyVersion
) -> None:
    trainer = lora_trainer(store, reference)
    version = trainer.execute(command(reference)).version
    folder = store.folder(version.path)
    expected = trainer.log_probs(version, ANSWERS)
    np.testing.assert_allclose(plain_log_probs(folder, store, reference, version), expected, atol=1e-4)


@pytest.mark.run
def test_the_stored_adapter_is_one_that_peft_loads(
    store: ArtifactStore, reference: PolicyVersion, tmp_path: Path
) -> None:
    from peft import PeftModel

    version = lora_trainer(store, reference).execute(command(reference)).version
    folder = store.folder(version.path)
    wrapped = PeftModel.from_pretrained(tiny_llama(4), folder / "adapter").merge_and_unload()
    ours = store.read_torch(version.path, version.sha256)
    for name, tensor in wrapped.named_parameters():
        torch.testing.assert_close(tensor.detach(), ours[name], atol=1e-6, rtol=0)


@pytest.mark.run
def test_a_fit_repeats_exactly_and_learns(store: ArtifactStore, reference: PolicyVersion) -> None:
    first = lora_trainer(store, reference).execute(command(reference))
    other = lora_trainer(store, reference)
    other.execute(command(reference, Start(first.version), number=2))
    assert other.execute(command(reference)).version.sha256 == first.version.sha256
    assert first.metrics["fit/loss"] < 0.5


@pytest.mark.run
def test_a_policy_is_stored_as_its_adapter_alone_and_read_as_a_whole_model(
    store: ArtifactStore, reference: PolicyVersion
) -> None:
    version = lora_trainer(store, reference).execute(command(reference)).version
    stored = store.stored(version.path)
    sizes = {file.name: file.stat().st_size for file in stored.rglob("*.safetensors")}
    assert list(sizes) == ["adapter_model.safetensors"]
    whole = store.folder(version.path)
    assert whole != stored
    assert (whole / "model.safetensors").stat().st_size > 4 * sizes["adapter_model.safetensors"]
    assert store.folder(version.path) == whole


@pytest.mark.run
def test_old_merged_weights_go_and_come_back(
    store: ArtifactStore, reference: PolicyVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pddpo_ray.storage.adapters.KEPT_WHOLE", 1)
    monkeypatch.setattr("pddpo_ray.storage.adapters.KEPT_S", -1.0)
    trainer = lora_trainer(store, reference)
    one, two = (trainer.execute(command(reference, number=number)).version for number in (1, 2))
    first = store.folder(one.path)
    assert store.folder(two.path).exists()
    assert not (first / "model.safetensors").exists()
    assert (first / "adapter" / "adapter_model.safetensors").exists()
    assert set(store.read_torch(one.path, one.sha256)) == set(store.read_torch(reference.path, reference.sha256))


@pytest.mark.slow
def test_the_base_is_merged_once_for_each_version_that_is_made(
    store: ArtifactStore, reference: PolicyVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was merged and hashed anew at every read: nine times for these three versions."""
    names: list[str] = []

    def counted(base: Tensors, adapter: Tensors, scale: float) -> Tensors:
        names.append("merged")
        return merged(base, adapter, scale)

    monkeypatch.setattr(lora, "merged", counted)
    trainer = lora_trainer(store, reference)
    one = trainer.execute(command(reference)).version
    two = trainer.execute(command(reference, Start(one), 2)).version
    start = Start(two, plus=two, minus=one, scale=0.5)
    three = trainer.execute(command(reference, start, 3)).version
    for version in (one, two, three):
        trainer.log_probs(version, ANSWERS)
    assert len(names) == 3


@pytest.mark.run
def test_an_adapter_that_was_changed_is_refused(store: ArtifactStore, reference: PolicyVersion) -> None:
    from safetensors.torch import load_file, save_file

    trainer = lora_trainer(store, reference)
    version = trainer.execute(command(reference)).version
    file = store.stored(version.path) / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] * 1.01}, file)
    with pytest.raises(RunError, match=r"the adapter of reward-1 does not give its weights"):
        lora_trainer(store, reference).log_probs(version, ANSWERS)


def random_adapter(seed: int, rank: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    stem = "base_model.model.layer"
    down, up = torch.randn(rank, 7, generator=generator), torch.randn(9, rank, generator=generator)
    return {stem + DOWN: down, stem + UP: up}


def change(adapter: dict[str, torch.Tensor]) -> torch.Tensor:
    zero = {"layer.weight": torch.zeros(9, 7)}
    return merged(zero, adapter, 1.0)["layer.weight"]


def test_a_carried_adapter_is_the_best_of_its_rank() -> None:
    """Against the singular values of the whole matrix: the error is exactly what rank 3 must leave out."""
    base, plus, minus = (random_adapter(seed) for seed in (1, 2, 3))
    wanted = change(base) + 0.4 * (change(plus) - change(minus))
    found = change(carried_adapter(base, plus, minus, 0.4))
    left_out = torch.linalg.svdvals(wanted)[3:]
    torch.testing.assert_close(torch.linalg.norm(wanted - found), torch.linalg.norm(left_out), atol=1e-4, rtol=1e-4)


def test_carrying_nothing_over_is_the_base_itself() -> None:
    base, plus = random_adapter(1), random_adapter(2)
    torch.testing.assert_close(change(carried_adapter(base, plus, plus, 0.7)), change(base), atol=1e-5, rtol=0)


def test_switched_off_is_the_same_everywhere_and_changes_nothing() -> None:
    one, two = switched_off(random_adapter(1)), switched_off(random_adapter(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not change(one).any()


@pytest.mark.run
def test_a_carried_start_is_accepted(store: ArtifactStore, reference: PolicyVersion) -> None:
    trainer = lora_trainer(store, reference)
    reward = trainer.execute(command(reference)).version
    cost = trainer.execute(command(reference, Start(reward), number=2)).version
    start = Start(reward, plus=cost, minus=reward, scale=0.5)
    result = trainer.execute(
        replace(command(reference, start, number=3), objective=Objective("cost", reward, 0.2, 0.5))
    )
    assert result.version.number == 3
