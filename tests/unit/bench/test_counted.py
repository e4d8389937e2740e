"""Committed counts of a training step: what it asks of a GPU must not grow, what it holds is what the plan says."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
import torch

from bench import launches, planned_memory, zero_memory
from bench.device import GIB
from bench.planned_memory import RANK, SHAPES

COMMITTED = json.loads(launches.RESULT.read_text(encoding="utf-8"))
SMALLEST = SHAPES["135M (SmolLM2)"]


@pytest.mark.run
@pytest.mark.parametrize(
    ("name", "rank", "supports"),
    [
        ("all weights, without supports", None, False),
        ("adapters of rank 16, with supports", RANK, True),
    ],
)
def test_a_step_asks_no_more_of_a_gpu_than_the_committed_one(name: str, rank: int | None, supports: bool) -> None:
    now = asdict(launches.counted(launches.SHAPE, rank, launches.PAIRS, supports))
    grown = {key: (COMMITTED[name][key], value) for key, value in now.items() if value > COMMITTED[name][key]}
    assert not grown, "committed, now: python -m bench.launches writes the page anew"


def test_the_page_of_launches_is_that_of_its_numbers() -> None:
    found = {name: launches.Asked(**values) for name, values in COMMITTED.items()}
    assert launches.page(found) == launches.PAGE.read_text(encoding="utf-8")
    assert all((one.reads, one.writes, one.step_reads) == (0, 2, 1) for one in found.values())


@pytest.mark.run
@pytest.mark.parametrize(
    ("rank", "dtype"),
    [
        (RANK, torch.bfloat16),
        pytest.param(None, torch.bfloat16, marks=pytest.mark.full),
        pytest.param(None, torch.float32, marks=pytest.mark.full),
        pytest.param(RANK, torch.float32, marks=pytest.mark.full),
    ],
)
def test_a_steps_memory_is_planned_within_a_tenth(rank: int | None, dtype: torch.dtype) -> None:
    """SmolLM2's shape, 30 layers from one and from two: weights, gradients, optimiser, activations and head."""
    seen = planned_memory.tracked(SMALLEST, rank, dtype)
    assert 0.99 * seen <= planned_memory.planned(SMALLEST, rank, dtype) <= 1.1 * seen


@pytest.mark.run
@pytest.mark.parametrize("found", json.loads(planned_memory.ON_RANKS.read_text()), ids=lambda one: one["stage"])
def test_the_plan_holds_what_two_ranks_of_deepspeed_took(found: dict[str, Any]) -> None:
    """Their buffers, and the weights that ZeRO-3 gathers, count."""
    adapters = None if found["trained"] == "all" else RANK
    plan = planned_memory.planned(zero_memory.SHAPE, adapters, stage=found["stage"], ranks=zero_memory.RANKS)
    assert plan == pytest.approx(found["planned"] * GIB, rel=1e-3)
    assert 0.97 * found["tracked"] * GIB <= plan <= 1.12 * found["tracked"] * GIB


@pytest.mark.run
@pytest.mark.full
def test_a_steps_memory_over_a_base_of_four_bits_is_planned_within_a_tenth() -> None:
    """The numbers of a whole layer count, of which the largest matrix alone is there in full."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install '.[qlora]'")
    seen = planned_memory.tracked(SMALLEST, RANK, in_nf4=True)
    assert 0.99 * seen <= planned_memory.planned(SMALLEST, RANK, in_nf4=True) <= 1.1 * seen


def test_the_committed_plan_is_within_a_tenth_of_what_was_tracked() -> None:
    page = planned_memory.PAGE.read_text(encoding="utf-8")
    assert page.endswith(planned_memory.on_ranks())
    lines = page.removesuffix(planned_memory.on_ranks()).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")][1:]
    assert {row[0] for row in rows} == set(SHAPES)
    assert len(rows) == 2 * len(SHAPES) + 3, "from 7B on over a base in NF4 too"
    assert all(0.99 <= float(row[4]) <= 1.1 for row in rows)
