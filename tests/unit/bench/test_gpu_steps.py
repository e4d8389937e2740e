"""`make gpu` where there is no GPU: one line, and its steps on CPUs beside GPUs that Ray is only told of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench import gpu
from pddpo_ray.config import load
from pddpo_ray.plan.resources import bundles

HARDWARE = [gpu.Hardware(1), gpu.Hardware(4), gpu.Hardware(8), gpu.Hardware(8, nodes=2, address="auto")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_gpus_it_says_what_is_missing_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--gpus", "8", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.err == (
        "make gpu: this needs 8 CUDA devices on each node, and torch sees 0 here: run it where they are\n"
    )
    assert said.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("hardware", HARDWARE, ids=lambda one: f"{one.nodes}x{one.gpus}")
def test_every_step_has_a_recipe_that_fits_the_gpus(hardware: gpu.Hardware) -> None:
    for stage in gpu.STAGES:
        config = load("text-world", [*gpu.SMALL, *hardware.overrides(), f"trainer.engine={stage}"])
        parts = {bundle.part: bundle for bundle in bundles(config, "cuda")}
        taken = sum(parts[part].count * parts[part].gpus for part in ("trainer", "rollout"))
        assert 0 < taken <= hardware.gpus * hardware.nodes
    load("text-world", [*gpu.SMALL, *hardware.overrides(), "rollout.engine=transformers"])
    load("text-world", [*gpu.SMALL, *hardware.overrides(), "rollout.delivery=native"])


def test_a_step_that_fails_is_a_row_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise RuntimeError("no memory\nand more")

    monkeypatch.setattr(gpu, "steps", lambda *_: {"first": broken, "second": lambda: "well"})
    assert gpu.main(["--rehearse", "--out", str(tmp_path)]) == 1
    table = (tmp_path / "table.md").read_text()
    assert "REHEARSAL" in table
    assert "| first | NOT | 0 | RuntimeError: no memory |" in table
    assert "| second | passed | 0 | well |" in table


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.deepspeed
@pytest.mark.timeout(3600)
def test_all_steps_pass_on_cpus_beside_declared_gpus(tmp_path: Path) -> None:
    ended = gpu.main(["--gpus", "4", "--rehearse", "--out", str(tmp_path)])
    assert ended == 0, (tmp_path / "table.md").read_text()
