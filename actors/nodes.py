"""What every node must have before a run starts on it: paths, the shared run folder, secrets by name.

A missing model folder or a run folder that is another one on another machine would show up hours later, in the middle
of a round; here it takes seconds and the message names the node.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import ray

from pddpo_ray.config import Config
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.storage.checkpoints import is_hub_name

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
        seen = Path(marker).read_text(encoding="utf-8")
    except OSError:
        seen = ""
    if seen != content:
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
        found = {node["NodeManagerAddress"]: _ask(node, config, marker, content, names) for node in nodes}
        answers = {address: _answer(address, reference, deadline_s) for address, reference in found.items()}
    finally:
        marker.unlink(missing_ok=True)
    lacking = [f"node {address}: {'; '.join(problems)}" for address, problems in answers.items() if problems]
    if lacking:
        raise UserError(". ".join(lacking))


def _ask(node: dict[str, object], config: Config, marker: Path, content: str, names: list[str]) -> ray.ObjectRef:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray.remote(problems_here).options(num_cpus=0, scheduling_strategy=here, max_retries=0)
    return task.remote(needed_paths(config), str(marker), content, names)


def _answer(address: str, reference: ray.ObjectRef, deadline_s: float) -> list[str]:
    try:
        problems: list[str] = ray.get(reference, timeout=deadline_s)
    except ray.exceptions.RayError as error:
        raise RunError(f"node {address} did not answer within {deadline_s:.0f} s ({type(error).__name__})") from None
    return problems
