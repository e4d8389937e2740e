"""bfloat16 training keeps float32 masters: small steps add up, within a fit and from one fit to the next."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.errors import RunError
from pddpo_ray.parts.fitting import _warn_of_doubtful_fit
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.masters import MASTERS, forget_older, write_beside
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import Shard
from pddpo_ray.training.local import LocalTrainer, moved_share, sampled, store_reference
from pddpo_ray.training.models.lora import load_lora_trainer
from pddpo_ray.training.passes.log_probs import ResponseScorer
from tests.support.tiny_language_model import save_policy, tiny_llama

pytestmark = pytest.mark.run

ROWS = tuple(PairRow(f"r{i}", (1, 5 + i, 9), (10 + i, 11, 12 + i, 2), (60 + i, 61, 62, 63 + i, 2)) for i in range(8))
GENTLE = FitSettings(steps=6, learning_rate=1e-6, batch_pairs=8, support=0.0)
"""A learning rate that is usual for a large model; weights of .25 are .001 apart in bfloat16."""


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def reference(store: ArtifactStore, tmp_path: Path) -> PolicyVersion:
    return store_reference(store, save_policy(tmp_path / "model", seed=3))


def trainer_of(store: ArtifactStore, reference: PolicyVersion, dtype: torch.dtype = torch.bfloat16) -> LocalTrainer:
    return LocalTrainer(TorchEngine(ResponseScorer(tiny_llama(0).to(dtype))), store, reference)


def command(
    reference: PolicyVersion, start: PolicyVersion | None = None, number: int = 1, **changes: float
) -> FitCommand:
    settings = GENTLE.model_copy(update=changes)
    objective = Objective("reward", reference, 0.5)
    return FitCommand(number, Start(start or reference), objective, ROWS, settings, 7, f"reward-{number}")


def share_that_differs(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    same = sum(int((one[name] == other[name]).sum()) for name in one)
    return 1 - same / sum(tensor.numel() for tensor in one.values())


def test_at_a_small_learning_rate_nearly_every_weight_moves(store: ArtifactStore, reference: PolicyVersion) -> None:
    """Without masters 0.2 % of them do. Rows of the embedding whose word is in no pair have no gradient."""
    trainer = trainer_of(store, reference)
    trainer.load(reference)
    before = trainer.engine.weights()
    trainer.execute(command(reference))
    after = trainer.engine.weights()
    inside = [name for name in before if "embed_tokens" not in name]
    assert share_that_differs({name: before[name] for name in inside}, {name: after[name] for name in inside}) > 0.98


def test_a_version_is_the_rounding_of_its_masters_and_the_model_computes_with_it(
    store: ArtifactStore, reference: PolicyVersion
) -> None:
    trainer = trainer_of(store, reference)
    version = trainer.execute(command(reference, learning_rate=1e-4)).version
    weights = store.read_torch(version.path, version.sha256)
    masters = load_file(store.stored(version.path) / "masters" / "model.safetensors")
    resident = dict(trainer.engine.scorer.model.named_parameters())
    for name, weight in weights.items():
        assert (weight.dtype, masters[name].dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(weight, masters[name].bfloat16())
        assert torch.equal(weight, resident[name])


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_steps_are_adamw_s_on_float32_weights(momentum: float) -> None:
    """The same gradients by plain autograd, two steps of torch's own AdamW on float32 copies."""
    model = tiny_llama(5).bfloat16()
    engine = TorchEngine(ResponseScorer(model, "plain"))
    engine.begin(FitSettings(learning_rate=1e-5, max_grad_norm=1e9, momentum=momentum))
    expected = {name: p.detach().float().requires_grad_() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(expected.values(), lr=1e-5, betas=(momentum, 0.99), weight_decay=0.0)
    for text in ([((1, 7), (9, 12, 2))], [((1, 9), (3, 14, 2))]):
        loss = -engine.scorer.log_probs(text)[0].sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        for copy, gradient in zip(expected.values(), gradients, strict=True):
            copy.grad = gradient.float()
        optimizer.step()
        engine.backward(loss)
        engine.update(1e-5)
    for name, weight in engine.weights().items():
        torch.testing.assert_close(weight, expected[name].detach(), rtol=1e-6, atol=1e-9)


def test_gradients_of_passes_are_added_up_in_float32() -> None:
    """A thousand equal gradients: a bfloat16 sum stops growing at 256 of them."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    module = torch.nn.Module()
    module.weight = weight
    engine = TorchEngine(module)  # type: ignore[arg-type]
    engine.begin(FitSettings(max_grad_norm=1e9))
    for _ in range(1000):
        engine.backward(weight.sum())
    assert engine.update(0.0) == 1000.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_step_of_a_rank_is_taken_with_the_gradient_of_that_step(dtype: torch.dtype, tmp_path: Path) -> None:
    """The other one of two ranks has no part of the loss and is left out: sums over the group are this rank's own."""
    text = [((1, 7), (9, 12, 2))]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        norms = []
        for shard in (Shard(), Shard(0, 2)):
            engine = TorchEngine(ResponseScorer(tiny_llama(5).to(dtype), "packed"), shard)
            engine.begin(FitSettings(max_grad_norm=1e9))
            own = []
            for passes in (1, 2, 1):
                for _ in range(passes):
                    engine.backward(-engine.scorer.log_probs(text)[0].sum())
                own.append(engine.update(0.0))
            norms.append(own)
    finally:
        dist.destroy_process_group()
    one, two, three = norms[0]
    assert two == pytest.approx(2 * one, rel=1e-3)
    assert three == one > 0
    assert norms[1] == pytest.approx(norms[0])


def test_the_next_fit_goes_on_from_the_masters_in_this_process_and_in_another(
    store: ArtifactStore, reference: PolicyVersion
) -> None:
    trainer = trainer_of(store, reference)
    first = trainer.execute(command(reference)).version
    second = trainer.execute(command(reference, first, 2)).version
    here = trainer.engine.weights()
    another = trainer_of(store, reference)
    assert another.execute(command(reference, first, 2)).version == second
    assert share_that_differs(here, another.engine.weights()) == 0.0


def test_steps_too_small_to_see_add_up_over_fits(store: ArtifactStore, reference: PolicyVersion) -> None:
    """Ten fits from one to the next publish about what one fit of ten times the learning rate does."""
    trainer = trainer_of(store, reference)
    started = store.read_torch(reference.path, reference.sha256)
    version, moved = reference, []
    for number in range(1, 11):
        version = trainer.execute(command(reference, version, number)).version
        weights = store.read_torch(version.path, version.sha256)
        moved.append(share_that_differs({n: w.bfloat16() for n, w in started.items()}, weights))
    assert moved[-1] > 5 * moved[0]


def test_versions_that_round_alike_are_not_taken_for_each_other(store: ArtifactStore, reference: PolicyVersion) -> None:
    trainer = trainer_of(store, reference)
    one = trainer.execute(command(reference, learning_rate=1e-12)).version
    two = trainer.execute(command(reference, one, 2, learning_rate=1e-12)).version
    assert one.sha256 == two.sha256
    trainer.load(one)
    of_one = trainer.engine.weights()
    trainer.load(two)
    assert share_that_differs(of_one, trainer.engine.weights()) > 0


def test_changed_masters_stop_the_fit(store: ArtifactStore, reference: PolicyVersion) -> None:
    trainer = trainer_of(store, reference)
    version = trainer.execute(command(reference)).version
    file = store.stored(version.path) / "masters" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
    with pytest.raises(RunError, match="do not round to its weights"):
        trainer_of(store, reference).execute(command(reference, version, 2))


def test_masters_are_kept_for_the_round_before_and_no_longer(store: ArtifactStore, reference: PolicyVersion) -> None:
    trainer = trainer_of(store, reference)
    versions = [reference]
    texts, said = [(row.prompt, row.chosen) for row in ROWS], []
    for number in range(1, 5):
        versions.append(trainer.execute(command(reference, versions[-1], number, learning_rate=1e-4)).version)
        said.append(trainer.score(versions[-1], texts))
    kept = [(store.stored(one.path) / "masters" / "model.safetensors").is_file() for one in versions]
    assert kept == [False, False, False, True, True]
    np.testing.assert_array_equal(trainer_of(store, reference).score(versions[1], texts), said[0])
    with pytest.raises(RunError, match="the float32 masters of reward-1 were removed"):
        trainer_of(store, reference).execute(command(reference, versions[1], 5))


def test_a_stage_leaves_the_masters_of_another_alone(tmp_path: Path) -> None:
    names = ("reward-1", "policy-1", "policy-3", "policy-4", "policy-1-1", "policy-5")
    folders = {name: tmp_path / f"{name}-0123456789ab" for name in names}
    for folder in folders.values():
        folder.mkdir()
        write_beside(folder, MASTERS, {"a": torch.zeros(1)})
    forget_older(folders["policy-5"])
    left = {name for name, folder in folders.items() if (folder / "masters" / "model.safetensors").exists()}
    assert left == {"reward-1", "policy-4", "policy-1-1", "policy-5"}


def test_a_float32_version_has_no_masters(store: ArtifactStore, reference: PolicyVersion) -> None:
    version = trainer_of(store, reference, torch.float32).execute(command(reference)).version
    assert not (store.stored(version.path) / "masters").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_moved_share_counts_what_is_published(
    store: ArtifactStore, reference: PolicyVersion, dtype: torch.dtype
) -> None:
    """Held against the stored files: the reference's weights in the model's type, and the version's."""
    trainer = trainer_of(store, reference, dtype)
    result = trainer.execute(command(reference, learning_rate=1e-5))
    start = {name: w.to(dtype) for name, w in store.read_torch(reference.path, reference.sha256).items()}
    weights = store.read_torch(result.version.path, result.version.sha256)
    assert result.metrics["fit/moved"] == pytest.approx(share_that_differs(start, weights), abs=1e-12)
    assert (result.metrics["fit/moved"] > 0.5) == (dtype == torch.float32)


def test_a_large_model_is_sampled_evenly() -> None:
    weights = {"a": torch.arange(3 * 2**20, dtype=torch.float32), "b": torch.zeros(2**20)}
    before = sampled(weights.items(), 2**22, torch.float32)
    assert len(before) == 2**20
    weights["a"][: 3 * 2**19] += 1
    assert moved_share(before, sampled(weights.items(), 2**22, torch.float32)) == pytest.approx(3 / 8, abs=1e-3)


def test_adapters_of_a_bfloat16_model_are_float32_and_move(store: ArtifactStore, reference: PolicyVersion) -> None:
    folder = store.folder(reference.path)
    trainer = load_lora_trainer(folder, store, reference, rank=4, alpha=8.0, dtype="bfloat16")
    result = trainer.execute(command(reference))
    assert {tensor.dtype for tensor in trainer.engine.weights().values()} == {torch.float32}
    again = load_lora_trainer(folder, store, reference, rank=4, alpha=8.0, dtype="bfloat16")
    texts = [(row.prompt, row.chosen) for row in ROWS]
    np.testing.assert_array_equal(trainer.score(result.version, texts), again.score(result.version, texts))


def test_one_line_names_the_learning_rate_of_a_fit_that_hardly_moves(
    reference: PolicyVersion, caplog: pytest.LogCaptureFixture
) -> None:
    asked = replace(command(reference), result="reward-4")
    with caplog.at_level(logging.WARNING):
        _warn_of_doubtful_fit(asked, {"fit/moved": 0.2})
        assert not caplog.records
        _warn_of_doubtful_fit(asked, {"fit/moved": 0.0022})
    (line,) = caplog.messages
    assert line.startswith("reward-4: the fit changed 0.22 % of the policy's numbers as they are published")
    assert "learning rate 1e-06" in line


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_fits_with_carried_moments_are_one_fit_of_as_many_steps(
    dtype: torch.dtype, store: ArtifactStore, tmp_path: Path
) -> None:
    """Six steps at once, and three after three: the same weights; a fresh optimiser ends elsewhere."""
    reference = store_reference(store, save_policy(tmp_path / "model", seed=3), dtype=str(dtype).split(".")[1])
    trainer = trainer_of(store, reference, dtype)
    settings = GENTLE.model_copy(update={"learning_rate": 1e-3, "schedule": "constant", "warmup": 0.0})
    whole = replace(command(reference), settings=settings)
    half = replace(whole, settings=settings.model_copy(update={"steps": 3}), keeps_moments=True)
    both = [trainer.execute(whole).version]
    first = trainer.execute(half).version
    for number, moments in ((3, first), (4, None)):
        start = Start(first, moments=moments)
        both.append(trainer.execute(replace(half, sequence=number, result="reward-2", start=start)).version)
    one, two, fresh = (store.read_torch(version.path, version.sha256) for version in both)
    assert share_that_differs(one, two) < share_that_differs(one, fresh)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight)


def test_a_fit_without_the_moments_that_it_goes_on_with_is_refused(
    store: ArtifactStore, reference: PolicyVersion
) -> None:
    trainer = trainer_of(store, reference)
    first = trainer.execute(command(reference)).version
    with pytest.raises(RunError, match="the moments of reward-1 are not there"):
        trainer.execute(replace(command(reference, first, 2), start=Start(first, moments=first)))


def test_adapters_carry_their_moments_too_and_only_the_last_two_rounds_keep_them(
    store: ArtifactStore, tmp_path: Path
) -> None:
    folder = save_policy(tmp_path / "model", seed=3)
    reference = store_reference(store, folder)
    trainer = load_lora_trainer(folder, store, reference, rank=4, alpha=4.0)
    settings = GENTLE.model_copy(update={"learning_rate": 1e-3, "schedule": "constant", "warmup": 0.0})
    whole = replace(command(reference), settings=settings)
    part = replace(whole, settings=settings.model_copy(update={"steps": 2}), keeps_moments=True)
    expected = trainer.execute(whole).version
    made = [trainer.execute(part).version]
    for number in (2, 3):
        start = Start(made[-1], moments=made[-1])
        made.append(trainer.execute(replace(part, sequence=number, result=f"reward-{number}", start=start)).version)
    one, three = (store.read_torch(version.path, version.sha256) for version in (expected, made[-1]))
    for name, weight in one.items():
        torch.testing.assert_close(three[name], weight)
    kept = [(store.stored(one.path) / "moments" / "model.safetensors").is_file() for one in made]
    assert kept == [False, True, True]


def test_a_store_of_several_runs_keeps_the_moments_that_a_later_run_starts_from(tmp_path: Path) -> None:
    """Two runs with one first fit: the second reads it back when the first is in its third round."""
    store = ArtifactStore(tmp_path / "shared", shared=True)
    trainer = trainer_of(store, store_reference(store, save_policy(tmp_path / "model", seed=3)))
    part = replace(command(trainer.reference), keeps_moments=True)
    made = [trainer.execute(part).version]
    for number in (2, 3):
        start = Start(made[-1], moments=made[-1])
        made.append(trainer.execute(replace(part, sequence=number, result=f"reward-{number}", start=start)).version)
    second = replace(part, sequence=2, result="reward-2", seed=8, start=Start(made[0], moments=made[0]))
    assert trainer.execute(second).version.name == "reward-2"
