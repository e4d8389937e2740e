"""A run on Ray: the same method over the same parts, with groups of actors behind them.

    driver ── journal, parts, method
      ├─ rollout-0 ... (RolloutActor, one engine per placement bundle)
      ├─ trainer       (Ray Train group: rank 0 ... n-1, alive for the whole run)
      ├─ labeller      (FeedbackActor)
      └─ dual          (DualVariableActor, named)

The rollout actors are created first and the trainer next, so that their imports overlap; where both share a GPU the
trainer starts when the engines are ready. The driver itself imports no engine. Lost processes come back: ranks by Ray
Train, engines and labeller by their handles, the driver by `--resume`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import ray

from actors.dual_variable import DualVariableHandle
from actors.engine_group import MakeEngine, RolloutHandle, RolloutSettings
from actors.labeller import FeedbackHandle, MakeScorer, ScorerHandle
from actors.metrics import RunMetrics
from actors.placement import check_cluster, lack, reserve
from actors.session import check_nodes, ray_session
from actors.trainer_group import MakeBackend, TrainerGroup, TrainerInTurns, TrainerSettings
from actors.weights import SendCommand
from actors.workers import given_labeller, table_engine, table_trainer, text_engine, text_trainer
from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.in_process import backends_of_world
from pddpo_ray.backends.machine import inspect_machine
from pddpo_ray.backends.preflight import given_by_users
from pddpo_ray.config import Config, RayCluster, VllmRollout
from pddpo_ray.contracts import Labeller
from pddpo_ray.driver import run
from pddpo_ray.plan.resources import Bundle, bundles
from pddpo_ray.records import PolicyVersion
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.rollout.factory import Device, transfer_of
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import ARTIFACTS
from pddpo_ray.theory.multipliers.dual import DualState

COLLECTIVES = "cpu:gloo,cuda:nccl"
"""What ranks with GPUs speak: a group made with `nccl` alone refuses every tensor and object of the host."""


def run_recipe(
    config: Config, run_dir: Path, *, resume: bool = False, progress: run.Progress | None = None
) -> dict[str, Any]:
    """Run a recipe on Ray to its end; arguments, result and errors are those of `pddpo_ray.driver.run.run_recipe`."""
    metrics = RunMetrics(config, Path(run_dir).name)

    def tell(event: run.Event) -> None:
        metrics(event)
        if progress is not None:
            progress(event)

    return run.run_recipe(config, run_dir, resume=resume, make_backends=make_backends, progress=tell)


def make_backends(config: Config, run_dir: Path) -> Backends:
    """Connect to Ray and start all groups. Raises UserError when the cluster is too small."""
    cluster = config.cluster if isinstance(config.cluster, RayCluster) else RayCluster()
    with ExitStack() as stack:
        stack.enter_context(ray_session(f"pddpo/{run_dir.name}", address=cluster.address, cpus=cluster.cpus))
        check_nodes(config, run_dir)
        groups = Groups(config, cluster, run_dir, stack)
        backends = table_backends(groups) if config.policies == "tables" else text_backends(groups)
        groups.wait_ready()
        backends = groups.join(backends)
        delivery_check = DeliveryCheck(
            backends.trainer.log_probs, backends.canaries, config.rollout.canary_tolerance, backends.tokenizer
        )
        for engine in groups.engines:
            engine.verify_with(delivery_check)
        groups.stack = stack.pop_all()
        return replace(
            backends, own_dual=groups.start_dual, own_scorer=groups.start_scorer, closers=(groups.stack.close,)
        )


class Groups:
    """The groups of one run while they are being started; `stack` ends whatever was started if one of them fails."""

    def __init__(self, config: Config, cluster: RayCluster, run_dir: Path, stack: ExitStack) -> None:
        device = _device(config)
        # decided once, so that no process picks another
        self.config = config.model_copy(update={"model": config.model.model_copy(update={"device": device})})
        self.run_dir = run_dir
        self.engines: list[RolloutHandle] = []
        self._trainer: TrainerGroup | None = None
        self._duals = 0
        self._cluster = cluster
        self.stack = stack
        self._device = device
        self._bundles: dict[str, Bundle] = {bundle.part: bundle for bundle in bundles(config, device)}
        check_cluster(list(self._bundles.values()), autoscaler_s=cluster.autoscaler_s)
        self._lack = partial(lack, list(self._bundles.values()))
        self._waiting: list[Callable[[], None]] = []

    def start_engines(self, names: str, make: Callable[[str], MakeEngine]) -> list[RolloutHandle]:
        """One engine per bundle of the rollout's placement group."""
        bundle = self._bundles["rollout"]
        group = reserve(bundle, strategy=self._cluster.placement, deadline_s=self._cluster.start_deadline_s)
        self.stack.callback(ray.util.remove_placement_group, group)
        settings = RolloutSettings(
            cpus=bundle.cpus,
            gpus=bundle.gpus,
            start_deadline_s=self._cluster.start_deadline_s,
            deadline_s=self.config.rollout.deadline_s,
            lack=self._lack,
        )
        for index in range(bundle.count):
            name = f"{names}-{index}"
            self.engines.append(RolloutHandle(name, make(name), settings, (group, index)))
        if 0 < bundle.gpus < 1:
            # vLLM gives its cache what it finds free while it starts: nobody may take memory beside it meanwhile.
            for engine in self.engines:
                engine.wait_ready()
        else:
            self._waiting += [engine.wait_ready for engine in self.engines]
        return self.engines

    def start_trainer(self, make: MakeBackend) -> TrainerGroup:
        bundle, trainer = self._bundles["trainer"], self.config.trainer
        settings = TrainerSettings(
            workers=bundle.count,
            threads=trainer.threads,
            gpus=bundle.gpus,
            backend=COLLECTIVES if bundle.gpus else "gloo",
            placement=self._cluster.placement.upper(),
            max_failures=trainer.max_failures,
            start_deadline_s=self._cluster.start_deadline_s,
            deadline_s=trainer.deadline_s,
            lack=self._lack,
        )
        group = TrainerGroup(make, name=self.run_dir.name, storage=self.run_dir / "ray", settings=settings)
        self._waiting.append(group.wait_ready)
        self._trainer = group
        return group

    def start_labeller(self, name: str, labeller: Labeller) -> FeedbackHandle:
        handle = FeedbackHandle(
            name,
            partial(given_labeller, labeller),
            deadline_s=self.config.rollout.deadline_s,
            start_deadline_s=self._cluster.start_deadline_s,
        )
        self._waiting.append(handle.wait_ready)
        self.stack.callback(handle.close)
        return handle

    def start_scorer(self, name: str, make_scorer: MakeScorer) -> ScorerHandle:
        """A reward or cost model in an actor of its own, ready to score."""
        gpus = self._bundles["feedback"].gpus if "feedback" in self._bundles else 0.0
        handle = ScorerHandle(
            name,
            make_scorer,
            deadline_s=self.config.rollout.deadline_s,
            start_deadline_s=self._cluster.start_deadline_s,
            gpus=gpus,
            take_turn=self._engines_asleep if gpus and self._cluster.layout == "time-shared" else None,
        )
        self.stack.callback(handle.close)
        handle.wait_ready()
        return handle

    def _engines_asleep(self) -> None:
        for engine in self.engines:
            engine.sleep()

    def start_dual(self, state: DualState) -> DualVariableHandle:
        """The owner of one journal's multipliers; the offline comparison of a run has its own."""
        self._duals += 1
        name = f"pddpo/{self.run_dir.name}/dual" + (f"-{self._duals}" if self._duals > 1 else "")
        handle = DualVariableHandle(name, state)
        self.stack.callback(handle.close)
        return handle

    def wait_ready(self) -> None:
        for wait in self._waiting:
            wait()

    def join(self, backends: Backends) -> Backends:
        """Trainer and engines that share devices take turns; engines that are sent their weights know by whom."""
        transfer = transfer_of(self.config, self._device)
        if self._trainer is not None and (transfer == "nccl" or transfer == "ipc"):
            send = partial(_send, self._trainer, transfer, str(backends.store.root), self.config)
            for engine in self.engines:
                engine.send_with(send)
        if self._cluster.layout == "time-shared":
            return replace(backends, trainer=TrainerInTurns(backends.trainer, self.engines))
        return backends


def _send(
    trainer: TrainerGroup, by: Literal["nccl", "ipc"], store: str, config: Config, policy: PolicyVersion, engine: Any
) -> None:
    devices = config.rollout.tensor_parallel if isinstance(config.rollout, VllmRollout) else 1
    trainer.send(SendCommand(by, store, policy, engine, devices))


def _device(config: Config) -> Device:
    """Where the model runs; `auto` looks at the cluster, whose devices need not be on this machine."""
    if config.model.device == "auto":
        return "cuda" if ray.cluster_resources().get("GPU", 0) >= 1 else "cpu"
    return config.model.device


def table_backends(groups: Groups) -> Backends:
    """The parts of a world of tables as actors."""
    config = groups.config
    store = ArtifactStore(groups.run_dir / ARTIFACTS)
    backends, root = backends_of_world(config, store), str(store.root)
    engines = groups.start_engines("tabular", lambda name: partial(table_engine, config, name, root))
    trainer = groups.start_trainer(partial(table_trainer, config, root))
    labeller = groups.start_labeller("world", backends.labeller)
    further = {
        name: groups.start_labeller(f"world-{name}", labeller) for name, labeller in backends.further_labellers.items()
    }
    return replace(backends, trainer=trainer, engines=engines, labeller=labeller, further_labellers=further)


def text_backends(groups: Groups) -> Backends:
    """The parts of a run on texts as actors. The driver trains the reference if the cache has none."""
    import torch

    from pddpo_ray.backends.in_process_text import prepare_texts, text_world_backends
    from pddpo_ray.training.local import store_reference

    config = groups.config
    if config.model.device == "cuda":  # else trainer and engines are on these CPUs too
        torch.set_num_threads(inspect_machine().cpus)
    store = ArtifactStore(groups.run_dir / ARTIFACTS)
    texts = prepare_texts(config, given_by_users(config, groups.run_dir))
    template, model = texts.chat_template, config.model
    reference = store_reference(store, texts.reference_folder, template, model.dtype, in_nf4=model.in_nf4)
    folder, root = store.folder(reference.path), str(store.root)
    engines = groups.start_engines(config.rollout.engine, lambda name: partial(text_engine, config, name, folder, root))
    trainer = groups.start_trainer(partial(text_trainer, config, folder, root, reference))
    backends = text_world_backends(config, store, texts, reference, trainer, engines)
    if backends.world is None:
        return backends  # nobody to ask: the recipe names its own feedback
    return replace(backends, labeller=groups.start_labeller("world", backends.labeller))
