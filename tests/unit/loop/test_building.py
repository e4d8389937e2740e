"""A constructor only constructs: the parts of a run are built without a model, a tokenizer or a scorer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import load
from pddpo_ray.driver.build import build_parts
from pddpo_ray.driver.prepare import prepare
from pddpo_ray.journal import Journal
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.records import Decoding, PolicyVersion, Prompt
from pddpo_ray.storage.artifacts import ArtifactStore

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32}


class Untouched(Exception):
    """Somebody used what the test may not use."""


class Forbidden:
    """In the place of an engine, a trainer or a labeller of 7B: no attribute of it may be read."""

    def __getattr__(self, name: str) -> Any:
        raise Untouched(name)


@pytest.fixture
def backends(tmp_path: Path) -> Backends:
    """Of a model that is a folder with its configuration alone: no weights, no tokenizer."""
    store = ArtifactStore(tmp_path / "artifacts")
    reference = PolicyVersion(0, "reference", "0" * 64, "reference")
    folder = tmp_path / "artifacts" / reference.path
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    config = load("gpu/o-pd-dpo-1", check_files=False)
    nothing: Any = Forbidden()
    return Backends(
        store=store,
        trainer=nothing,
        engines=[nothing],
        labeller=nothing,
        prompts=[Prompt(f"p{n}", (n,), f"question {n}") for n in range(200)],
        reference=reference,
        baseline=(reference, Decoding()),
        canaries=(),
        tokenizer="tokenizer",
        offline=lambda seed: nothing.pairs,
        own_scorer=lambda name, make: nothing.scorer,
        held_limits=[HeldLimit(one, 1.0, {}) for one in config.stated],
    )


@pytest.mark.parametrize("scorecard", [0, 16])
def test_the_parts_of_a_run_of_seven_billion_weights_are_built_without_its_model(
    tmp_path: Path, backends: Backends, scorecard: int
) -> None:
    config = load("gpu/o-pd-dpo-1", [f"scorecard.prompts={scorecard}"], check_files=False)
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as journal:
        parts = build_parts(config, journal, backends, rounds=config.rounds, online=config.online)
        assert parts.explorer is not None
        assert (parts.scorecard is None) == (scorecard == 0)
        assert (journal.phases(), journal.versions()) == ([], [])
        with pytest.raises(Untouched):
            prepare(config, journal, backends, parts, online=config.online)
        assert [version.version.name for version in journal.versions()] == ["reference"]
