"""The recipes for GPUs on nodes that declare some: Ray finds a place for every process, and the right device."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.placement import check_cluster, reserve
from actors.trainer_group import TrainerGroup, TrainerSettings
from pddpo_ray.config import load
from pddpo_ray.plan.resources import bundles
from tests.local_cluster import LocalCluster, local_cluster
from tests.summing_backend import SummingBackend, command

pytestmark = [pytest.mark.ray, pytest.mark.slow]
GPUS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    yield from local_cluster(nodes=1, cpus=32, gpus=GPUS)


def make_seeing(folder: Path, rank: int, ranks: int) -> SummingBackend:
    """A backend that leaves behind which device Ray gave its process."""
    (folder / f"device-{rank}").write_text(",".join(map(str, ray.get_gpu_ids())))
    return SummingBackend(rank, ranks, folder)


@ray.remote
class Seeing:
    def devices(self) -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize("recipe", ["gpu/pd-dpo-4", "gpu/o-pd-dpo-4"])
def test_every_gpu_of_a_time_shared_run_holds_one_rank_and_one_engine(
    cluster: LocalCluster, recipe: str, tmp_path: Path
) -> None:
    parts = {bundle.part: bundle for bundle in bundles(load(recipe), "cuda")}
    check_cluster(list(parts.values()))
    trainer, engines = parts["trainer"], parts["rollout"]
    group = reserve(engines, strategy="pack", deadline_s=60)
    handles = [
        Seeing.options(  # type: ignore[attr-defined]
            num_cpus=engines.cpus,
            num_gpus=engines.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        ).remote()
        for index in range(engines.count)
    ]
    each = {str(gpu): 1 for gpu in range(GPUS)}
    assert Counter(ray.get([handle.devices.remote() for handle in handles])) == each

    settings = TrainerSettings(workers=trainer.count, threads=1, gpus=trainer.gpus, start_deadline_s=120)
    ranks = TrainerGroup(partial(make_seeing, tmp_path), name="gpus", storage=tmp_path / "ray", settings=settings)
    try:
        ranks.execute(command(1))
        assert Counter((tmp_path / f"device-{rank}").read_text() for rank in range(trainer.count)) == each
    finally:
        ranks.close()
        for handle in handles:
            ray.kill(handle)
        ray.util.remove_placement_group(group)
