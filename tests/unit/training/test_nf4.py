"""Adapters over a base of four bits: one model for trainer and engines, and what it takes in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.config import load
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import RunError
from pddpo_ray.journal import read_journal
from pddpo_ray.records import Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.rollout.checkpoint import tokenizer_fingerprint
from pddpo_ray.rollout.delivery_check import FLOAT32_TOLERANCE, verify
from pddpo_ray.rollout.transformers_engine import TransformersEngine
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import JOURNAL
from pddpo_ray.training.local import store_reference
from pddpo_ray.training.models.lora import LoraTrainer, load_lora_trainer
from pddpo_ray.training.passes.log_probs import kept_bytes
from pddpo_ray.training.passes.memory import NF4_BYTES
from tests.support.small_real_text import SMALL_REAL_TEXT
from tests.support.tiny_language_model import save_policy

bitsandbytes = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install '.[qlora]'")

NF4 = "{kind: lora, rank: 4, quantise: nf4}"
ROWS = tuple(PairRow(f"r{i}", (1, 5 + i, 9), (10 + i, 11, 12 + i, 2), (60 + i, 61, 62, 63 + i, 2)) for i in range(8))
ANSWERS = [Response(row.id, Prompt("p", row.prompt, ""), row.chosen, "", 0, 0) for row in ROWS]
BELOW = (-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0)
ABOVE = (0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0)
CODE = torch.tensor([*BELOW, *ABOVE])
"""NF4's values (QLoRA, appendix E)."""


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def stored(store: ArtifactStore, tmp_path: Path, dtype: str = "float32", *, tied: bool = False) -> PolicyVersion:
    checkpoint = save_policy(tmp_path / "checkpoint", seed=4, tied=tied)
    return store_reference(store, checkpoint, dtype=dtype, in_nf4=True)


def trainer_of(store: ArtifactStore, reference: PolicyVersion, dtype: str = "float32") -> LoraTrainer:
    return load_lora_trainer(store.folder(reference.path), store, reference, rank=4, alpha=8.0, dtype=dtype)


def command(reference: PolicyVersion) -> FitCommand:
    settings = FitSettings(steps=8, learning_rate=5e-3, batch_pairs=8, support=0.0)
    return FitCommand(1, Start(reference), Objective("reward", reference, 0.1), ROWS, settings, 3, "reward-1")


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_the_reference_holds_the_numbers_that_four_bits_hold(tied: bool, store: ArtifactStore, tmp_path: Path) -> None:
    """By hand: in blocks of 64 the nearest of 16 values, times the block's largest number, itself kept in 8 bits."""
    reference = stored(store, tmp_path, tied=tied)
    before, after = (
        load_file(tmp_path / "checkpoint" / "model.safetensors"),
        store.read_torch(reference.path, reference.sha256),
    )
    assert set(after) == set(before)
    for name, weight in before.items():
        if weight.ndim < 2 or "embed" in name or "lm_head" in name:
            assert torch.equal(after[name], weight), name
            continue
        blocks = weight.reshape(-1, 64)
        scales = blocks.abs().amax(dim=1, keepdim=True)
        nearest = CODE[(blocks / scales).unsqueeze(-1).sub(CODE).abs().argmin(dim=-1)]
        found = after[name].reshape(-1, 64)
        kept = found.abs().amax(dim=1, keepdim=True)
        torch.testing.assert_close(found, nearest * kept, atol=1e-5, rtol=1e-4)
        assert ((kept - scales).abs() <= 0.05 * scales.amax()).all(), "8 bits for each scale"


@pytest.mark.run
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", FLOAT32_TOLERANCE), ("bfloat16", 0.2)])
def test_engines_hold_the_model_that_is_trained(
    dtype: str, tolerance: float, store: ArtifactStore, tmp_path: Path
) -> None:
    """The run's own check of a delivery, for the reference and for a trained version, whose weights are merged."""
    reference = stored(store, tmp_path, dtype)
    trainer = trainer_of(store, reference, dtype)
    base = [p for p in trainer.engine.scorer.parameters() if isinstance(p, bitsandbytes.nn.Params4bit)]
    assert len(base) == 2 * 7
    trained = trainer.execute(command(reference))
    assert trained.metrics["fit/loss"] < 0.5
    engine = TransformersEngine("transformers", store.folder(reference.path), store, dtype=dtype)
    moved = []
    for version in (reference, trained.version):
        own = trainer.log_probs(version, ANSWERS)
        words = tokenizer_fingerprint(store.folder(reference.path))
        check = verify(engine, engine.deliver(version), version, ANSWERS, own, tolerance, words)
        assert check.canary_difference < tolerance
        moved.append(own)
    assert np.abs(moved[1] - moved[0]).max() > 0.1
    checkpoint = tmp_path / "checkpoint"
    plain = load_lora_trainer(checkpoint, store, store_reference(store, checkpoint), rank=4, alpha=8.0)
    assert np.abs(plain.log_probs(plain.reference, ANSWERS) - moved[0]).max() > 0.1, "four bits are another model"


@pytest.mark.run
def test_a_fit_is_that_over_whole_weights_of_the_same_numbers(store: ArtifactStore, tmp_path: Path) -> None:
    """Also its gradients: some processors' layers of bitsandbytes give none in a model that is not in training mode."""
    reference = stored(store, tmp_path)
    narrow = trainer_of(store, reference)
    (store.folder(reference.path) / "nf4_base.json").unlink()
    whole = trainer_of(store, reference)
    fits = [trainer.execute(command(reference)) for trainer in (narrow, whole)]
    for name in ("fit/loss", "fit/gradient_norm"):
        assert fits[0].metrics[name] == pytest.approx(fits[1].metrics[name], rel=1e-5)
    for name, tensor in narrow.engine.each_weight():
        torch.testing.assert_close(tensor, dict(whole.engine.each_weight())[name], atol=1e-5, rtol=1e-4)


@pytest.mark.run
def test_a_pass_keeps_and_weights_take_what_the_plan_counts(store: ArtifactStore, tmp_path: Path) -> None:
    """A pass over four bits keeps what one over whole frozen weights does; a layer comes out of NF4 for a moment."""
    trainer = trainer_of(store, stored(store, tmp_path))
    texts = [((1, 5, 9), (10, 11, 2)), ((1, 5, 9), (20, 21, 22, 2))]
    checkpoint = tmp_path / "checkpoint"
    plain = load_lora_trainer(checkpoint, store, store_reference(store, checkpoint), rank=4, alpha=8.0)
    assert kept_bytes(trainer.engine.scorer, texts) == kept_bytes(plain.engine.scorer, texts)
    packed, state = bitsandbytes.functional.quantize_4bit(
        torch.randn(1024, 512), blocksize=64, quant_type="nf4", compress_statistics=True
    )
    held = sum(tensor.numel() * tensor.element_size() for tensor in (packed, state.absmax, state.state2.absmax))
    assert held == 1024 * 512 * NF4_BYTES


@pytest.mark.slow
def test_adapters_have_the_models_type_and_the_base_is_frozen(store: ArtifactStore, tmp_path: Path) -> None:
    trainer = trainer_of(store, stored(store, tmp_path, "bfloat16"), "bfloat16")
    trained = [parameter for parameter in trainer.engine.scorer.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in trained} == {torch.bfloat16}
    assert len(trained) == 2 * 2 * 7


@pytest.mark.slow
def test_a_resumed_run_takes_the_base_that_is_there_and_refuses_a_changed_one(
    store: ArtifactStore, tmp_path: Path
) -> None:
    reference = stored(store, tmp_path)
    (file,) = Path(store.root).glob("nf4-*/model.safetensors")
    written = file.stat().st_mtime_ns
    assert store_reference(store, tmp_path / "checkpoint", in_nf4=True) == reference
    assert file.stat().st_mtime_ns == written
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    save_file(tensors | {name: tensors[name] ^ 1}, file, metadata={"format": "pt"})
    with pytest.raises(RunError, match=r"artifact nf4-\w+ has hash"):
        trainer_of(store, reference)


@pytest.mark.run
def test_a_run_over_four_bits_serves_and_exports_the_model_that_it_trained(tmp_path: Path) -> None:
    run_recipe(load("real-text", [*SMALL_REAL_TEXT, "rounds=1", f"model.parameters={NF4}"]), tmp_path / "run")
    with read_journal(tmp_path / "run" / JOURNAL) as journal:
        deliveries, last = journal.deliveries(), journal.policies[-1]
    assert {entry.delivery.version for entry in deliveries} == {0, last.number}
    assert all(entry.verified and (entry.canary_difference or 0.0) < FLOAT32_TOLERANCE for entry in deliveries)
    for name, options in (("whole", []), ("alone", ["--adapter"])):
        told = ["export", str(tmp_path / "run"), "--to", str(tmp_path / name), "--round", "1", *options]
        assert CliRunner().invoke(app, told).exit_code == 0
    assert not list(tmp_path.glob("*/nf4_base.json"))
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "alone" / "base")
    alone = PeftModel.from_pretrained(base, tmp_path / "alone").merge_and_unload()
    for name, tensor in whole.named_parameters():
        torch.testing.assert_close(tensor, alone.get_parameter(name), atol=1e-6, rtol=0)
    card = (tmp_path / "alone" / "README.md").read_text()
    assert "made by the run, rounded to 4 bits (NF4)" in card
    assert 'from_pretrained("DIR/base")' in card
