"""What a recipe leaves to the machine: the type of its numbers, and how close an engine has to be in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pddpo_ray.backends.machine import GIB, Gpu, Machine
from pddpo_ray.backends.settled import MERGED_TOLERANCE, NARROW_TOLERANCE, settled
from pddpo_ray.config import Config, load
from pddpo_ray.errors import UserError
from pddpo_ray.training.device import NARROW_FROM, RECORDED, compiles_layers, records_passes

CPUS = Machine(cpus=2, memory_bytes=24 * GIB)
CARD = Machine(cpus=16, memory_bytes=128 * GIB, gpus=(Gpu("card", 80 * GIB),))


def model_of(folder: Path, parameters: int) -> Path:
    """Files that say how large a model is; the weights are not there."""
    described = {"t": {"dtype": "F32", "shape": [parameters], "data_offsets": [0, 4 * parameters]}}
    header = json.dumps(described).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def recipe(*overrides: str) -> Config:
    return load("text-world", ["model.dtype=auto", *overrides], check_files=False)


@pytest.mark.parametrize("parameters", [NARROW_FROM - 1, NARROW_FROM])
@pytest.mark.parametrize("machine", [CPUS, CARD])
def test_numbers_are_narrow_on_a_gpu_from_100_million_parameters_on(
    parameters: int, machine: Machine, tmp_path: Path
) -> None:
    config = settled(recipe(f"model.reference={model_of(tmp_path / 'm', parameters)}"), machine)
    narrow = machine is CARD and parameters == NARROW_FROM
    assert config.model.dtype == ("bfloat16" if narrow else "float32")
    assert config.rollout.canary_tolerance == (NARROW_TOLERANCE if narrow else 1e-4)
    assert settled(config, CPUS) == config, "what a run has stored holds on any machine"


def test_a_model_that_is_made_for_a_world_and_a_table_are_small() -> None:
    assert settled(recipe(), CARD).model.dtype == "float32"
    assert settled(load("tabular", ["model.dtype=auto"]), CARD).model.dtype == "float32"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], NARROW_TOLERANCE),
        (["model.parameters.kind=lora"], MERGED_TOLERANCE),
        (["model.parameters.kind=lora", "rollout.delivery=native"], NARROW_TOLERANCE),
        (["rollout.canary_tolerance=1e-4"], 1e-4),
    ],
)
def test_a_delivery_in_bfloat16_has_the_tolerance_of_its_way_unless_one_is_given(
    overrides: list[str], expected: float
) -> None:
    config = load("text-world", ["model.dtype=bfloat16", "rollout.engine=vllm", *overrides])
    assert settled(config, CPUS).rollout.canary_tolerance == expected


def test_adapters_that_an_engine_merges_in_bfloat16_are_further_away_than_whole_weights_may_be() -> None:
    """Why there are two tolerances: one matrix, its rounding beside its sum with an adapter that is not rounded."""
    generator = torch.Generator().manual_seed(0)
    base, change = (torch.randn(64, 64, generator=generator) for _ in range(2))
    narrow, update = base.bfloat16(), 1e-3 * change
    merged = (narrow.float() + update).bfloat16().float()
    lost = (merged - narrow.float() - update).norm() / update.norm()
    assert lost > 0.5, "most of a small update is rounded away"


def test_a_model_is_recorded_or_compiled_on_a_gpu_and_neither_on_a_cpu() -> None:
    for parameters in (1, RECORDED, RECORDED + 1):
        assert records_passes("cuda", parameters) != compiles_layers("cuda", parameters)
        assert not records_passes("cpu", parameters)
        assert not compiles_layers("cpu", parameters)


def test_a_model_whose_sizes_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no safetensors at all")
    with pytest.raises(UserError, match="cannot read the model's sizes"):
        settled(recipe(f"model.reference={tmp_path}"), CARD)
