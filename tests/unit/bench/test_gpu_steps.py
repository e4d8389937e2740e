"""`make gpu` where there is no GPU: one line, and its steps on CPUs beside GPUs that Ray is only told of."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from actors.placement import misfit, shortfall
from bench import gpu, gpu_results, gpu_runs
from bench.gpu_runs import SMALL
from pddpo_ray.config import RayCluster, load
from pddpo_ray.errors import UserError
from pddpo_ray.plan.resources import bundles
from tests.support.local_cluster import local_cluster
from tests.support.mounts import mounted

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


def test_the_page_says_what_was_run_on_which_card_and_what_never_was() -> None:
    page = gpu_results.PAGE.read_text(encoding="utf-8")
    made = gpu_results.table(gpu_results.committed())
    assert gpu_results.page_with(page, made) == page, "give: python -m bench.gpu_results"
    steps = {step for gpus in (1, 4, 8) for step in gpu.steps(gpu.Hardware(gpus), Path(), "MODEL")}
    assert all(f"| {step} |" in made for step in steps)
    assert gpu_results.table([]).count(gpu_results.NEVER) == len(steps)


@pytest.mark.parametrize("hardware", HARDWARE, ids=lambda one: f"{one.nodes}x{one.gpus}")
def test_every_step_has_a_recipe_that_fits_the_gpus(hardware: gpu.Hardware) -> None:
    for stage in gpu.STAGES:
        config = load("text-world", [*SMALL, *hardware.overrides(), f"trainer.engine={stage}"])
        parts = {bundle.part: bundle for bundle in bundles(config, "cuda")}
        taken = sum(parts[part].count * parts[part].gpus for part in ("trainer", "rollout"))
        assert 0 < taken <= hardware.gpus * hardware.nodes
    load("text-world", [*SMALL, *hardware.overrides(), "rollout.engine=transformers"])
    load("text-world", [*SMALL, *hardware.overrides(), "rollout.delivery=native"])


@pytest.mark.parametrize("gpus", [1, 4, 8])
@pytest.mark.parametrize("method", ["pd-dpo", "pd-dpo-adalag", "o-pd-dpo"])
def test_a_recipe_for_the_gpus_of_a_node_fits_on_two_nodes_and_needs_both(method: str, gpus: int) -> None:
    name = f"gpu/{method}-{gpus}"
    config = load(name, gpu.Hardware(gpus, nodes=2, address="auto").of_recipe(name), check_files=False)
    parts = bundles(config, "cuda")
    assert shortfall(parts, {"CPU": 2 * gpu.CPUS, "GPU": 2 * gpus}) is None
    assert misfit(parts, [{"CPU": gpu.CPUS, "GPU": gpus}] * 2) is None
    assert sum(bundle.count * bundle.gpus for bundle in parts) > gpus
    assert isinstance(config.cluster, RayCluster)
    assert (config.cluster.placement, config.cluster.address) == ("spread", "auto")


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_first_round_is_of_the_model_that_was_given_on_all_nodes(
    nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: dict[str, Any] = {}

    def run(name: str, folder: Path, overrides: list[str], deadline_s: float) -> str:
        ran.update(name=name, config=load(name, overrides, check_files=False), deadline_s=deadline_s)
        return "1 round"

    monkeypatch.setattr(gpu, "run", run)
    journal = "postgresql://pddpo@db.example/pddpo"
    hardware = gpu.Hardware(8, nodes=nodes, address="auto", journal=journal)
    assert not any("gpu/" in name for name in gpu.steps(hardware, tmp_path, None))
    assert gpu.steps(hardware, tmp_path, "/mnt/models/alpaca-7b")["gpu/o-pd-dpo-8, first round"].work(60.0) == "1 round"
    config = ran["config"]
    assert (config.model.reference, config.rounds, config.journal) == ("/mnt/models/alpaca-7b", 1, journal)
    assert (config.trainer.workers, config.rollout.engines, ran["deadline_s"]) == (4 * nodes, 3 * nodes, 60.0)
    recipe = load("gpu/o-pd-dpo-8", check_files=False)
    assert config.trainer.of_stage("first_reward") == recipe.trainer.of_stage("first_reward")


def test_two_nodes_without_a_cluster_or_with_sqlite_on_their_share_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--nodes", "2", "--out", str(tmp_path)]) == 2
    mounted(monkeypatch, (str(tmp_path), "nfs4"))
    assert gpu.main(["--nodes", "2", "--address", "auto", "--out", str(tmp_path / "out")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "make gpu: 2 nodes need a Ray cluster that is up: start it, then add --address auto"
    assert "a network file system (nfs4)" in second
    assert not (tmp_path / "out").exists()


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_with_too_few_gpus_is_one_line(tmp_path: Path) -> None:
    """Seen from a head without GPUs, which is no lack."""
    for _ in local_cluster(nodes=1, cpus=1, gpus=4):
        address = ray.get_runtime_context().gcs_address
        for gpus, nodes, lacks in ((4, 2, "4 GPUs on each of 2 nodes"), (8, 1, "8 GPUs on one node")):
            words = ["--gpus", str(gpus), "--nodes", str(nodes), "--address", address, "--out", str(tmp_path / "out")]
            done = subprocess.run(
                [sys.executable, "-m", "bench.gpu", *words], capture_output=True, text=True, check=False, timeout=180
            )
            said = f"make gpu: this needs {lacks}; the nodes of the cluster have 4, 0\n"
            assert (done.returncode, done.stderr, done.stdout) == (2, said, "")


@pytest.mark.run
def test_a_step_that_fails_is_a_row_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(most: float) -> str:
        raise RuntimeError("no memory\nand more")

    todo = {"first": gpu.Step(1.0, broken), "second": gpu.Step(1.0, lambda most: "well")}
    monkeypatch.setattr(gpu, "steps", lambda *_: todo)
    assert gpu.main(["--rehearse", "--out", str(tmp_path)]) == 1
    table = (tmp_path / "table.md").read_text()
    assert "REHEARSAL" in table
    assert "| first | NOT | 0 | RuntimeError: no memory |" in table
    assert "| second | passed | 0 | well |" in table


def test_no_step_goes_on_when_the_minutes_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten on one card; the step that is running gets what is left, later ones are named and not begun."""
    given: dict[str, float] = {}

    def long(name: str, most: float) -> str:
        given[name] = most
        if name == "second":
            monkeypatch.setattr(time, "monotonic", lambda: began + 600.1)
        return "well"

    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began)
    todo = {
        name: gpu.Step(limit, partial(long, name)) for name, limit in (("first", 5.0), ("second", 9e9), ("third", 5.0))
    }
    monkeypatch.setattr(gpu, "steps", lambda *_: todo)
    monkeypatch.setattr(gpu, "lacking", lambda *_: None)
    monkeypatch.setattr(gpu, "devices", lambda: "a card")
    assert gpu.main(["--out", str(tmp_path)]) == 1
    assert given == {"first": 5.0, "second": 600.0}
    assert "| third | NOT | 0 | UserError: not begun: the minutes are over |" in (tmp_path / "table.md").read_text()
    assert gpu.Hardware(4).minutes == gpu.Hardware(1, rehearse=True).minutes == math.inf


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.deepspeed
@pytest.mark.timeout(3600)
def test_a_killed_run_and_the_machines_checks_pass_on_cpus_beside_declared_gpus(tmp_path: Path) -> None:
    """`make gpu ARGS=--rehearse` has every engine and figure, and SmolLM2's first round, which take ten minutes
    more."""
    only = ["machine", "killed and resumed, zero2", "doctor"]
    ended = gpu.main(["--gpus", "4", "--rehearse", "--only", *only, "--out", str(tmp_path)])
    assert ended == 0, (tmp_path / "table.md").read_text()


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.deepspeed
@pytest.mark.timeout(3600)
def test_recipes_are_placed_and_run_on_two_declared_nodes(tmp_path: Path) -> None:
    only = ["placement", "gpu/o-pd-dpo-4, first round"]
    ended = gpu.main(["--gpus", "4", "--nodes", "2", "--rehearse", "--only", *only, "--out", str(tmp_path)])
    table = (tmp_path / "table.md").read_text()
    assert ended == 0, table
    assert "4 GPUs on each of 2 nodes" in table
    assert "nodes taken: 2" in table


@pytest.mark.full
@pytest.mark.run
@pytest.mark.slow
def test_figures_of_a_card_are_rehearsed_with_the_same_code(tmp_path: Path) -> None:
    """TRL and ours end at one loss before anything is said; a program that is late is ended and said so."""
    names = [name for name, (_, rehearsed) in gpu.FIGURES.items() if rehearsed]
    assert gpu.main(["--rehearse", "--only", *names, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["step"] for row in rows] == names
    assert all(word in rows[1]["said"] for word in ("trl: pairs/s", "ours: pairs/s", "ours / trl"))
    with pytest.raises(UserError, match="did not end within 0 s"):
        gpu_runs.printed("bench.gpu_figures", "card", "--device", "cpu", deadline_s=0.2)
