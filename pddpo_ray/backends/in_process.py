"""Backends in this process, for notebooks, tests and small worlds; the same numbers as on Ray."""

from __future__ import annotations

from pathlib import Path

from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.preflight import given_by_users
from pddpo_ray.config import Config
from pddpo_ray.registry import code_of
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import ARTIFACTS


def make_backends(config: Config, run_dir: Path) -> Backends:
    """Backends of the recipe's files or world. Raises UserError for a world file that is not one."""
    store = ArtifactStore(run_dir / ARTIFACTS)
    if config.world is not None:
        return backends_of_world(config, store)
    # Imported here: a world's run may need neither transformers nor an inference engine.
    from pddpo_ray.backends.in_process_text import text_backends

    return text_backends(config, store, given_by_users(config, run_dir))


def backends_of_world(config: Config, store: ArtifactStore) -> Backends:
    """Backends of the recipe's world, looked up by name in the registry."""
    assert config.world is not None
    backends: Backends = code_of("worlds", config.world.kind)(config, store)
    return backends
