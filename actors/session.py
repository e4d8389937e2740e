"""The connection to Ray: to the cluster whose address is given, or to a session of this machine; and what
every node must have before a run starts on it: paths, the shared run folder, secrets by name.

A missing model folder or a run folder that is another one on another machine would show up hours later, in the middle
of a round; here it takes seconds and the message names the node.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import ray
from ray._private import ray_constants

from pddpo_ray.config import Config
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.storage.checkpoints import is_hub_name
from pddpo_ray.storage.whole_files import kept_secret

STARTS = 3
"""How often a session of this machine is tried."""
SET = (ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, "RAY_worker_niceness")
"""Environment variables that a session of this machine sets while it lasts."""


@contextmanager
def ray_session(
    namespace: str, *, address: str | None = None, cpus: int | None = None, dashboard: bool = False
) -> Iterator[None]:
    """Connect for the duration of a run; a session of this machine is ended afterwards, a cluster is left alone.

    address: `auto`, host:port, or None for $RAY_ADDRESS (a job finds its cluster there), else a session here.
    dashboard: starts Ray's in a session here. Only endpoints need it: it tells Prometheus where the metrics are.
    Raises UserError when there is no cluster at a given address.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():
        yield
        return
    if address:
        try:
            ray.init(address=address, namespace=namespace, logging_level=logging.WARNING, log_to_driver=False)
        except ConnectionError as error:
            raise UserError(f"no Ray cluster answers at {address}: start one, or leave cluster.address out") from error
        try:
            yield
        finally:
            ray.shutdown()
        return
    with _keep_environment(*SET), _on_loopback():
        _start_local(namespace, cpus, dashboard)
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray's processes listen on the loopback address alone, as they do on systems where it builds no clusters.

    Otherwise its servers take every address of the machine.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _keep_environment(*names: str) -> Iterator[None]:
    """Restores these variables afterwards: the address of an ended session would mislead later code."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


TOKEN_FILE = Path(".ray") / "auth_token"
"""In the home folder: who reads it may run anything on this machine's sessions."""


def _make_user_token() -> None:
    """Makes the token that Ray will find; Ray's own would be readable by all users."""
    path = Path.home() / TOKEN_FILE
    with suppress(OSError):  # a home that cannot be written to: Ray says so itself
        kept_secret(path)
        path.chmod(0o600)


def _start_local(namespace: str, cpus: int | None, dashboard: bool) -> None:
    """A session of this machine, reachable from this machine alone.

    Ray gives a node half a minute, too little on a busy machine now and then. Then the start is tried again.
    """
    # It warns at every start that token authentication is on, which is what we want.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    _make_user_token()
    before = _children()
    for _ in range(STARTS):
        try:
            return _start_once(namespace, cpus, dashboard)
        except Exception as error:  # Ray raises bare ones here
            failure = error
            ray.shutdown()
            _end(_children() - before)
    reason = " ".join(str(failure).split())[:160] or type(failure).__name__
    raise RunError(
        f"Ray did not start on this machine, {STARTS} times ({reason}): if it is busy, give the command again"
    ) from failure


def _start_once(namespace: str, cpus: int | None, dashboard: bool) -> None:
    """Workers get the driver's priority; Ray's default would starve them on a shared machine."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        address="local",
        namespace=namespace,
        num_cpus=cpus,
        include_dashboard=dashboard,
        logging_level=logging.WARNING,
        log_to_driver=False,
    )


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _end(processes: Iterable[psutil.Process]) -> None:
    """Kills those that are Ray's: a failed start leaves the processes that it had started."""
    ended = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if any("/ray/" in part for part in process.cmdline()):
                process.kill()
                ended.append(process)
    psutil.wait_procs(ended, timeout=10)


SECRETS = "PDDPO_SECRETS"
"""Environment variable with the names of secrets, as `pddpo submit --secret` sets it."""
SECRET_FILES = Path("/run/secrets")
"""Where containers have secrets as files."""


def needed_paths(config: Config) -> list[str]:
    """Paths in a recipe that every node must see; a model of the hub is fetched by the driver."""
    paths = [config.model.reference, getattr(config.world, "path", None)]
    return [path for path in paths if path is not None and not is_hub_name(path)]


def problems_here(paths: Sequence[str], marker: str, content: str, names: Sequence[str]) -> list[str]:
    """What this node lacks: paths, the driver's run folder (by the marker in it), secrets by name."""
    problems = [f"{path} does not exist" for path in paths if not Path(path).exists()]
    try:
        text = Path(marker).read_text(encoding="utf-8")
    except OSError:
        text = ""
    if text != content:
        problems.append(f"the run folder {Path(marker).parent} is not the driver's: mount shared storage there")
    problems += [
        f"secret {name} is neither in the environment nor in {SECRET_FILES}"
        for name in names
        if name not in os.environ and not (SECRET_FILES / name).is_file()
    ]
    return problems


def check_nodes(config: Config, run_dir: Path, *, deadline_s: float = 60.0) -> None:
    """Ask every node. Raises UserError that names nodes and what they lack. A single node is asked only for secrets."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    names = [name for name in os.environ.get(SECRETS, "").split(",") if name]
    if len(nodes) == 1 and not names:
        return
    marker, content = run_dir / f".nodes-{secrets.token_hex(4)}", secrets.token_hex(16)
    run_dir.mkdir(parents=True, exist_ok=True)
    marker.write_text(content, encoding="utf-8")
    try:
        references = {node["NodeManagerAddress"]: _ask(node, config, marker, content, names) for node in nodes}
        answers = {address: _answer(address, reference, deadline_s) for address, reference in references.items()}
    finally:
        marker.unlink(missing_ok=True)
    lacking = [f"node {address}: {'; '.join(problems)}" for address, problems in answers.items() if problems]
    if lacking:
        raise UserError(". ".join(lacking))


def _ask(node: dict[str, object], config: Config, marker: Path, content: str, names: list[str]) -> ray.ObjectRef:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray.remote(problems_here).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0)
    return task.remote(needed_paths(config), str(marker), content, names)


def _answer(address: str, reference: ray.ObjectRef, deadline_s: float) -> list[str]:
    try:
        problems: list[str] = ray.get(reference, timeout=deadline_s)
    except ray.exceptions.RayError as error:
        raise RunError(f"node {address} did not answer within {deadline_s:.0f} s ({type(error).__name__})") from None
    return problems
