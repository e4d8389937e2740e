"""The recipes for GPUs on nodes that declare some: Ray finds a place for every process, and the right device.

The head is this file's own: its nodes declare GPUs, which those of the shared session do not have.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.labeller import ScorerHandle
from actors.placement import check_cluster, reserve
from actors.trainer_group import TrainerGroup, TrainerSettings
from pddpo_ray.config import load, recipe_names
from pddpo_ray.plan.resources import Bundle, bundles
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.summing_backend import SummingBackend, command

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.full]
GPUS = 4


@pytest.fixture(scope="module")
def head() -> Iterator[LocalCluster]:
    """No node is there yet that could hold anything."""
    yield from local_cluster(nodes=0, cpus=0)


@contextmanager
def one_node(head: LocalCluster, gpus: int) -> Iterator[LocalCluster]:
    node = head.add(cpus=32, gpus=gpus)
    try:
        yield head
    finally:
        head.remove(node)
        deadline = time.monotonic() + 60
        while ray.cluster_resources().get("GPU") and time.monotonic() < deadline:
            time.sleep(0.5)


@pytest.fixture
def cluster(head: LocalCluster) -> Iterator[LocalCluster]:
    with one_node(head, GPUS) as cluster:
        yield cluster


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_every_recipe_finds_all_its_places_on_a_node_with_as_many_gpus_as_its_name_says(
    head: LocalCluster, gpus: int
) -> None:
    """Engines, ranks and scoring models at the same time, in the order in which a run starts them."""
    names = [name for name in recipe_names() if name.startswith("gpu/") and name.endswith(f"-{gpus}")]
    assert len(names) == (10 if gpus == 1 else 9)
    with one_node(head, gpus):
        for name in names:
            parts = {bundle.part: bundle for bundle in bundles(load(name, check_files=False), "cuda")}
            check_cluster(list(parts.values()))
            wanted = [parts["rollout"], parts["trainer"]]
            wanted += [replace(parts["feedback"], count=1)] * 2 if parts["feedback"].gpus else []
            groups = [reserve(bundle, strategy="pack", deadline_s=60) for bundle in wanted]
            for group in groups:
                ray.util.remove_placement_group(group)


def make_seeing(folder: Path, rank: int, ranks: int) -> SummingBackend:
    """A backend that leaves behind which device Ray gave its process."""
    (folder / f"device-{rank}").write_text(",".join(map(str, ray.get_gpu_ids())))
    return SummingBackend(rank, ranks, folder)


@ray.remote
class Seeing:
    def devices(self) -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def seeing_in(bundle: Bundle) -> tuple[Any, list[Any]]:
    """An actor in each place of a part. -> the places, the actors"""
    group = reserve(bundle, strategy="pack", deadline_s=60)
    handles = [
        Seeing.options(  # type: ignore[attr-defined]
            num_cpus=bundle.cpus,
            num_gpus=bundle.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        ).remote()
        for index in range(bundle.count)
    ]
    return group, handles


def what_is_seen() -> Any:
    """A scorer that says which GPUs its process sees."""
    return SimpleNamespace(score_texts=lambda texts: os.environ.get("CUDA_VISIBLE_DEVICES"))


def test_every_gpu_of_a_time_shared_run_holds_one_rank_and_one_engine_and_its_scorers_are_on_two(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    parts = {bundle.part: bundle for bundle in bundles(load("gpu/o-pd-dpo-4", check_files=False), "cuda")}
    check_cluster(list(parts.values()))
    trainer, engines = parts["trainer"], parts["rollout"]
    group, handles = seeing_in(engines)
    each = {str(gpu): 1 for gpu in range(GPUS)}
    assert Counter(ray.get([handle.devices.remote() for handle in handles])) == each

    settings = TrainerSettings(workers=trainer.count, threads=1, gpus=trainer.gpus, start_deadline_s=120)
    ranks = TrainerGroup(partial(make_seeing, tmp_path), name="gpus", storage=tmp_path / "ray", settings=settings)
    shares = {"reward-model": parts["feedback"].gpus, "cost-model": parts["feedback"].gpus, "without": 0.0}
    scorers = []
    try:
        ranks.execute(command(1))
        assert Counter((tmp_path / f"device-{rank}").read_text() for rank in range(trainer.count)) == each
        for name, share in shares.items():
            scorers.append(ScorerHandle(name, what_is_seen, deadline_s=60, start_deadline_s=120, gpus=share))
        reward, cost, without = (scorer.score_texts([]) for scorer in scorers)
        assert without == ""
        assert {reward, cost} < set(each)
        assert reward != cost, "weights of both would be on one GPU"
    finally:
        ranks.close()
        for scorer in scorers:
            scorer.close()
        for handle in handles:
            ray.kill(handle)
        ray.util.remove_placement_group(group)


@pytest.mark.full
def test_engines_ranks_and_scorers_of_a_split_run_share_no_gpu_of_eight(head: LocalCluster, tmp_path: Path) -> None:
    """Two scoring models have the eighth; they are placed without a group, as a run places them."""
    parts = {bundle.part: bundle for bundle in bundles(load("gpu/o-pd-dpo-8", check_files=False), "cuda")}
    trainer, engines, scorers = parts["trainer"], parts["rollout"], parts["feedback"]
    with one_node(head, 8):
        check_cluster(list(parts.values()))
        group, handles = seeing_in(engines)
        taken = Counter(ray.get([handle.devices.remote() for handle in handles]))
        settings = TrainerSettings(workers=trainer.count, threads=1, gpus=trainer.gpus, start_deadline_s=180)
        ranks = TrainerGroup(partial(make_seeing, tmp_path), name="split", storage=tmp_path / "ray", settings=settings)
        try:
            ranks.execute(command(1))
            taken += Counter((tmp_path / f"device-{rank}").read_text() for rank in range(trainer.count))
            options = {"num_cpus": scorers.cpus, "num_gpus": scorers.gpus}
            handles += [Seeing.options(**options).remote() for _ in range(scorers.count)]  # type: ignore[attr-defined]
            taken += Counter(ray.get([handle.devices.remote() for handle in handles[engines.count :]]))
            assert set(taken) == {str(gpu) for gpu in range(8)}
            assert sorted(taken.values()) == [1] * 7 + [2]
        finally:
            ranks.close()
            for handle in handles:
                ray.kill(handle)
            ray.util.remove_placement_group(group)
