"""Layers that torch compiled say and learn the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pddpo_ray.config import ModelConfig, load
from pddpo_ray.errors import UserError
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.local import store_reference
from pddpo_ray.training.passes.log_probs import ResponseScorer
from pddpo_ray.training.recipe_trainer import recipe_trainer
from tests.support.tiny_language_model import save_policy, tiny_llama

TEXTS = [((1, 5, 6), (7, 8, 2)), ((1, 5, 6), (9, 2)), ((1, 4), (7, 11, 12, 13, 2)), ((1, 4), (10, 2))]


@pytest.fixture
def compiling() -> Iterator[dict[str, int]]:
    """How many graphs were compiled, from nothing."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield counters["stats"]
    torch._dynamo.reset()


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++, which is not installed")
@pytest.mark.filterwarnings("default")
def test_compiled_layers_give_the_same_log_probs_and_gradients(compiling: dict[str, int]) -> None:
    plain, compiled = (ResponseScorer(tiny_llama(3, layers=1), "packed") for _ in range(2))
    compiled.recompute(1)
    compiled.compile_layers()
    for texts, again in ((TEXTS, 1), (TEXTS[:3], 1), (TEXTS[1:], 0)):
        compiled.recompute(again)
        found = []
        for scorer in (plain, compiled):
            scorer.zero_grad()
            log_probs = scorer.log_probs(texts)[0]
            log_probs.sum().backward()
            found.append((log_probs.detach(), [parameter.grad for parameter in scorer.parameters()]))
        torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(found[1][1], found[0][1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert 0 < compiling["unique_graphs"] <= 4, "compiled, and not once per size of a batch"


@pytest.mark.full
@pytest.mark.run
@pytest.mark.parametrize("chosen", [True, False])
def test_layers_that_torch_cannot_compile_run_as_they_are_where_the_device_chose(
    chosen: bool, compiling: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run on a new machine does not end with a compiler's error; nor is a CPU's model compiled unasked."""
    from torch._inductor import config

    if chosen:
        monkeypatch.setattr("pddpo_ray.training.recipe_trainer.compiles_layers", lambda device, parameters: True)
    store, folder = ArtifactStore(tmp_path / "store"), save_policy(tmp_path / "model", seed=3)
    reference = store_reference(store, folder)
    with torch._dynamo.config.patch(suppress_errors=False), config.patch({"cpp.cxx": ("no-such-compiler",)}):
        asked, plain = (recipe_trainer(ModelConfig(compile=mode), folder, store, reference) for mode in ("auto", False))
        scores = [trainer.engine.scorer.log_probs(TEXTS)[0] for trainer in (asked, plain)]
        torch.testing.assert_close(*scores)
    assert bool(asked.engine.scorer._compiled_forwards) == chosen


def test_without_a_compiler_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, reference = ArtifactStore(tmp_path), PolicyVersion(0, "reference", "", "")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="there is no no-such-compiler: install one"):
        recipe_trainer(ModelConfig(compile=True), tmp_path, store, reference)


def test_deepspeed_and_compiled_layers_are_refused_together() -> None:
    with pytest.raises(UserError, match=r"model\.compile works with trainer\.engine torch, not with zero2"):
        load("text-world", ["model.compile=true", "trainer.engine=zero2"])
    assert load("text-world", ["model.compile=auto", "trainer.engine=zero2"]).model.compile == "auto"
