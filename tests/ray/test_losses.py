"""How often an engine may be lost, what a lost trainer group leaves behind, what a new dual variable knows."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray

from actors.dual_variable import DualVariableHandle
from actors.engine_group import RolloutHandle, RolloutSettings
from actors.trainer_group import TrainerGroup, TrainerSettings
from pddpo_ray.contracts import Count, Draw, RolloutEngine
from pddpo_ray.errors import RunError
from pddpo_ray.parts.dual_step import Estimates
from pddpo_ray.records import Array, CostEstimate, Decoding, Delivery, PolicyVersion, Prompt
from pddpo_ray.rollout.delivery_check import VerifiedDelivery
from pddpo_ray.theory.multipliers.dual import DualState, ProjectedFixed, limit_state
from pddpo_ray.theory.seeds import counts
from tests.support.ray_session import living_actors, session
from tests.support.summing_backend import command, make

pytestmark = [pytest.mark.ray, pytest.mark.full]

POLICY = PolicyVersion(7, "round-3", "0" * 64, "nowhere")
PROMPTS = [Prompt("p0", (3, 5), "hello")]


class FrailEngine:
    """Its process dies in the middle of a batch, as often as a file holds bytes; then it answers."""

    name = "frail"

    def __init__(self, deaths: Path) -> None:
        self._deaths = deaths
        self.version = 0

    def deliver(self, policy: PolicyVersion) -> Delivery:
        self.version = policy.number
        return Delivery(self.name, policy.number, policy.sha256, tensors=1, seconds=0.0)

    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding) -> list[list[Draw]]:
        left = self._deaths.read_bytes()
        if left:
            self._deaths.write_bytes(left[1:])
            os._exit(1)
        each = counts(n, len(prompts))
        return [[((seed,), f"answer {seed}", 0.0)] * count for seed, count in zip(seeds, each, strict=True)]

    def score(self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]) -> Array:
        return np.zeros(len(answers))

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def two_places() -> Iterator[None]:
    """A session of its own: a group that waits for places finds none of the two free."""
    yield from session(cpus=2)


def test_losses_are_counted_by_question_and_every_new_process_is_verified(two_places: None, tmp_path: Path) -> None:
    deaths, verified = tmp_path / "deaths", []
    deaths.touch()
    engine = RolloutHandle("frail", lambda: FrailEngine(deaths), RolloutSettings(restarts=1))

    def verify(engine: RolloutEngine, delivery: Delivery, policy: PolicyVersion) -> VerifiedDelivery:
        verified.append(delivery.version)
        return VerifiedDelivery(engine.name, delivery.version, delivery.sha256, delivery.tensors, 0, 0.0)

    engine.verify_with(verify)
    try:
        engine.deliver(POLICY)
        for seed in (1, 2):
            deaths.write_bytes(b"x")
            assert engine.sample(PROMPTS, [seed], 1, Decoding()) == [[((seed,), f"answer {seed}", 0.0)]]
        assert (engine.restarts, verified) == (2, [7, 7])
        deaths.write_bytes(b"xx")
        with pytest.raises(RunError, match=r"rollout engine frail was lost 2 times during sampling 1 answer\(s\)"):
            engine.sample(PROMPTS, [3], 1, Decoding())
    finally:
        engine.close()


def test_a_controller_lost_with_its_cleaner_leaves_no_reserved_place_behind(two_places: None, tmp_path: Path) -> None:
    """There is room for one group, so the next one cannot start before the places of the lost one are given back."""
    settings = TrainerSettings(workers=2, start_deadline_s=120, deadline_s=200)
    group = TrainerGroup(partial(make, tmp_path), name="lost", storage=tmp_path / "ray", settings=settings)
    try:
        before = group.execute(command(1))
        for kind in ("PlacementGroupCleaner", "TrainController"):
            [victim] = living_actors(kind)
            os.kill(victim.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while any(psutil.pid_exists(pid) for pid in before.workers):  # ranks follow their controller
            assert time.monotonic() < deadline
            time.sleep(0.1)
        after = group.execute(command(2))
    finally:
        group.close()
    assert after.version.sha256 == before.version.sha256
    assert not set(after.workers) & set(before.workers)


def test_places_that_ray_train_forgot_are_given_back_once_the_next_group_waits(
    two_places: None, tmp_path: Path
) -> None:
    forgotten = ray.util.placement_group([{"CPU": 1}] * 2)
    ray.get(forgotten.ready(), timeout=60)
    settings = TrainerSettings(workers=2, start_deadline_s=120, deadline_s=200)
    group = TrainerGroup(partial(make, tmp_path), name="next", storage=tmp_path / "ray", settings=settings)
    try:
        assert len(set(group.execute(command(1)).workers)) == 2
    finally:
        group.close()


def test_a_dual_variable_that_ray_started_again_between_two_calls_does_not_begin_anew(two_places: None) -> None:
    def process() -> int:
        alive = living_actors("DualVariableActor")
        return alive[0].pid if alive else 0

    state = DualState((limit_state("cost", rho=1.0, rule=ProjectedFixed(4, 0.5, cost_max=2.0), first=0.5, limit=0.0),))
    owner = DualVariableHandle("lost", state)
    try:
        owner.restore([])
        (step,) = owner.step(Estimates(1, (CostEstimate(0.5, 0.1, 8, 8),))).steps
        assert step.multiplier_after != step.multiplier_before
        before = process()
        os.kill(before, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while process() in (0, before):  # nobody asks it anything meanwhile
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert owner.multipliers(2) == {"cost": step.multiplier_after}
    finally:
        owner.close()
