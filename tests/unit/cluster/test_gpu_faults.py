"""What would end a run on GPUs, held on a CPU: process groups, order and places of processes, memory given back."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray import cloudpickle
from torch.distributed.distributed_c10d import Backend, BackendConfig

from actors import deepspeed_engine, launch
from actors.calls import AnsweringActor
from actors.dual_variable import DualVariableActor
from actors.engine_group import RolloutActor
from actors.labeller import FeedbackActor, ScorerActor
from actors.limit_controller import LimitControllerActor
from actors.rank import Rank, _perform
from actors.trainer_group import TrainerSettings
from pddpo_ray.backends import in_process_text
from pddpo_ray.config import load
from pddpo_ray.errors import RunError
from pddpo_ray.rollout.factory import transfer_of
from pddpo_ray.rollout.vllm_engine import VllmEngine
from pddpo_ray.rollout.vllm_start import prepare_process
from pddpo_ray.training import local
from pddpo_ray.training.device import device_for
from pddpo_ray.training.fit import Shard


class Started(SimpleNamespace):
    """Groups of a launch whose processes are stubs: `events` in the order of the launch, `asked` of the trainer,
    `threads` of the driver."""

    events: list[str]
    asked: list[TrainerSettings]
    threads: list[int]


def started(recipe: str, overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> Started:
    config = load(recipe, overrides, check_files=False)
    record = Started(events=[], asked=[], threads=[])

    def process(name: str) -> SimpleNamespace:
        return SimpleNamespace(wait_ready=lambda: record.events.append(f"{name} ready"), world=None)

    def engine(*_: Any, **__: Any) -> SimpleNamespace:
        record.events.append("engine starts")
        return process("engine")

    def trainer(*_: Any, settings: TrainerSettings, **__: Any) -> SimpleNamespace:
        record.events.append("trainer starts")
        record.asked.append(settings)
        return process("trainer")

    for name, stub in {"RolloutHandle": engine, "TrainerGroup": trainer}.items():
        monkeypatch.setattr(launch, name, stub)
    monkeypatch.setattr(launch, "reserve", lambda *_, **__: None)
    monkeypatch.setattr(launch, "check_cluster", lambda *_, **__: None)
    monkeypatch.setattr(launch, "given_by_users", lambda *_: ())
    monkeypatch.setattr(launch, "ArtifactStore", lambda root: SimpleNamespace(root=root, folder=Path))
    folders = SimpleNamespace(reference_folder=Path(), chat_template=None)
    monkeypatch.setattr(in_process_text, "prepare_texts", lambda *_: folders)
    monkeypatch.setattr(in_process_text, "text_world_backends", lambda *_: process("world"))
    monkeypatch.setattr(local, "store_reference", lambda *_, **__: SimpleNamespace(path="reference"))
    monkeypatch.setattr(torch, "set_num_threads", record.threads.append)
    stack: Any = SimpleNamespace(callback=lambda *_: None)
    groups = launch.Groups(config, config.cluster, Path("run"), stack)  # type: ignore[arg-type]
    launch.text_backends(groups)
    groups.wait_ready()
    return record


@pytest.mark.parametrize("recipe", ["gpu/pd-dpo-1", "gpu/pd-dpo-4", "gpu/o-pd-dpo-8"])
def test_the_ranks_of_a_gpu_run_can_send_what_is_in_the_hosts_memory(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects and sums of a fit are there; a group made with `nccl` alone refuses them in the first step."""
    (settings,) = started(recipe, [], monkeypatch).asked
    sides = BackendConfig(Backend(settings.backend)).get_device_backend_map()
    assert {sides["cpu"], sides["cuda"]} == {"gloo", "nccl"}


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [("gpu/o-pd-dpo-8", [], [7]), ("text-world", ["cluster.mode=ray", "model.device=cpu"], [])],
)
def test_the_driver_of_a_run_on_gpus_has_all_of_its_cpus(
    recipe: str, overrides: list[str], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models that it opens compute there, and Ray gives a driver that is submitted one thread."""
    monkeypatch.setattr(launch, "inspect_machine", lambda: SimpleNamespace(cpus=7))
    assert started(recipe, overrides, monkeypatch).threads == expected


@pytest.mark.parametrize(
    ("recipe", "overrides", "shared"),
    [
        ("gpu/pd-dpo-4", [], True),
        ("gpu/pd-dpo-8", ["cluster.gpu_share=0.5"], True),
        ("gpu/pd-dpo-8", [], False),
        ("text-world", ["cluster.layout=time-shared", "cluster.mode=ray", "model.device=cpu"], False),
    ],
)
def test_a_rank_takes_no_memory_from_a_gpu_whose_engine_measures_it(
    recipe: str, overrides: list[str], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = started(recipe, overrides, monkeypatch).events
    before = events[: events.index("trainer starts")]
    assert before.count("engine ready") == (before.count("engine starts") if shared else 0)
    assert events.count("engine ready") == events.count("engine starts") > 0


def test_a_rank_gives_cached_memory_back_after_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(1))
    rank: Any = Rank(SimpleNamespace(execute=lambda command: command), None)  # type: ignore[arg-type]

    def refused(rank: Rank) -> None:
        raise RunError("refused")

    assert _perform(lambda rank: rank.execute(3), rank, first=True).value == 3  # type: ignore[arg-type]
    assert _perform(refused, rank, first=True).message == "refused"
    assert len(given) == 2


@pytest.mark.parametrize("parameters", ["full", "lora"])
@pytest.mark.parametrize("delivery", ["native", "reload"])
@pytest.mark.parametrize("layout", ["split", "time-shared"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_weights_go_only_by_ways_that_the_devices_allow(
    parameters: str, delivery: str, layout: str, share: float
) -> None:
    """NCCL wants a GPU for each member, CUDA IPC one GPU for both."""
    weights = [f"model.parameters={{kind: {parameters}}}", f"rollout.delivery={delivery}"]
    config = load(
        "gpu/pd-dpo-4", [*weights, f"cluster.layout={layout}", f"cluster.gpu_share={share}"], check_files=False
    )
    expected = "ipc" if layout == "time-shared" else "nccl" if share == 1 else "reload"
    if delivery == "reload":
        expected = "reload"
    elif parameters == "lora":
        expected = "adapter"
    assert transfer_of(config, "cuda") == expected


def test_deepspeed_starts_beside_no_copy_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reached(Exception):
        pass

    def initialize(scorer: torch.nn.Module, *_: Any) -> None:
        raise Reached

    monkeypatch.setattr(deepspeed_engine, "_initialize", initialize)
    engine = object.__new__(deepspeed_engine.DeepSpeedEngine)
    scorer: Any = torch.nn.Module()
    scorer.model = torch.nn.Linear(4, 3)
    with pytest.raises(Reached):
        engine.__init__(scorer, Shard(), stage=3)  # type: ignore[misc]
    assert {name: (shape.shape, shape.device.type) for name, shape in engine._shapes.items()} == {
        "weight": (torch.Size([3, 4]), "meta"),
        "bias": (torch.Size([3]), "meta"),
    }


def test_a_scorer_that_shares_a_gpu_is_there_only_while_it_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[str] = []

    class Model(torch.nn.Module):
        def to(self, device: Any) -> Model:  # type: ignore[override]
            places.append(str(device))
            return self

    def make() -> SimpleNamespace:
        places.append(f"loaded on {device_for()}")
        return SimpleNamespace(model=Model(), score_texts=lambda texts: places.append("scores"))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: places.append("given back"))
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [0])
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    scorer = ScorerActor(make, True)  # type: ignore[arg-type]
    scorer.score_texts([("a", "b")])
    assert places == ["loaded on cpu", "cuda", "scores", "cpu", "given back"]


ACTORS = {
    DualVariableActor: (None,),
    FeedbackActor: (cloudpickle.dumps(dict),),
    LimitControllerActor: (None,),
    RolloutActor: (dict,),
    ScorerActor: (dict, False),
}
"""What each is started with here."""


@pytest.mark.parametrize(("gpus", "sees"), [([], ""), ([2], "2")])
@pytest.mark.parametrize("kind", ACTORS, ids=lambda kind: kind.__name__)
def test_an_actor_that_reserved_no_gpu_sees_none(
    kind: type[AnsweringActor], gpus: list[int], sees: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray leaves all of a node's visible there, and what an actor loads goes to the first."""
    assert set(ACTORS) == set(AnsweringActor.__subclasses__())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.setattr("ray.get_gpu_ids", lambda: gpus)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(was_current_actor_reconstructed=False))
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    kind(*ACTORS[kind])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == sees


@pytest.mark.parametrize("given", [{}, {"VLLM_BATCH_INVARIANT": "1"}])
def test_equal_draws_on_a_gpu_are_promised_only_with_the_mode_that_a_user_sets_for_them(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it vLLM's kernels round by the size of a batch there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(os, "environ", dict(given))
    prepare_process()
    assert {name: value for name, value in os.environ.items() if "INVARIANT" in name} == given
    assert "On GPUs its neighbours in a batch decide" in str(VllmEngine.sample.__doc__)
