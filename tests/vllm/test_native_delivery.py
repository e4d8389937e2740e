"""Adapters as files in a real vLLM engine, and a stored version as the source of vLLM's own weight transfer.

The engine is this file's own: it is started for adapters of this rank, and weights come to it as files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.errors import RunError
from pddpo_ray.records import Decoding, Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.rollout.checkpoint import tokenizer_fingerprint
from pddpo_ray.rollout.delivery_check import verify
from pddpo_ray.rollout.vllm_internals import weight_source
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import tensors_sha256
from pddpo_ray.training.local import store_reference
from pddpo_ray.training.models.lora import LoraTrainer, load_lora_trainer
from tests.support.engine_process import adapters_process
from tests.support.tiny_language_model import save_policy

pytestmark = [pytest.mark.vllm, pytest.mark.full]

RANK, ALPHA = 8, 16.0
ROWS = tuple(PairRow(f"r{i}", (1, 5 + i, 9), (10 + i, 11, 12 + i, 2), (60 + i, 61, 62, 63 + i, 2)) for i in range(8))
ANSWERS = [Response(row.id, Prompt(row.id, row.prompt, ""), row.chosen, "", 0, 0) for row in ROWS]


@dataclass
class Bench:
    """A trainer of adapters, an engine that takes them, and two versions."""

    trainer: LoraTrainer
    engine: Any
    store: ArtifactStore
    versions: list[PolicyVersion]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("adapters")
    folder = save_policy(root / "reference", seed=4)
    store = ArtifactStore(root / "artifacts")
    reference = store_reference(store, folder)
    trainer = load_lora_trainer(folder, store, reference, rank=RANK, alpha=ALPHA)
    settings = FitSettings(steps=8, learning_rate=5e-3, batch_pairs=8, support=0.0)
    fits = [
        FitCommand(number, Start(reference), Objective("reward", reference, 0.1), ROWS, settings, number, f"p-{number}")
        for number in (1, 2)
    ]
    versions = [reference, *(trainer.execute(fit).version for fit in fits)]
    with adapters_process("rollout-0", folder, store, rank=RANK, alpha=ALPHA) as engine:
        yield Bench(trainer, engine, store, versions)


def test_every_adapter_is_verified_like_whole_weights(bench: Bench) -> None:
    tokenizer = tokenizer_fingerprint(bench.store.folder(bench.versions[0].path))
    for policy in (bench.versions[0], bench.versions[1], bench.versions[2], bench.versions[0]):
        delivery = bench.engine.deliver(policy)
        assert (delivery.version, delivery.sha256) == (policy.number, policy.sha256)
        expected = bench.trainer.log_probs(policy, ANSWERS)
        check = verify(bench.engine, delivery, policy, ANSWERS, expected, tolerance=1e-4, tokenizer=tokenizer)
        assert check.canary_difference < 1e-4


def test_answers_come_from_the_adapter_that_was_delivered_last(bench: Bench) -> None:
    draws = {}
    for policy in bench.versions:
        bench.engine.deliver(policy)
        answers = bench.engine.sample([a.prompt for a in ANSWERS], range(8), 1, Decoding(max_tokens=12))
        draws[policy.number] = [ids for ((ids, _, _),) in answers]
        responses = [replace(a, token_ids=ids) for a, ids in zip(ANSWERS, draws[policy.number], strict=True)]
        log_probs = [log_prob for ((_, _, log_prob),) in answers]
        np.testing.assert_allclose(log_probs, bench.trainer.log_probs(policy, responses), atol=1e-3)
    assert draws[0] != draws[1]


def test_a_version_without_an_adapter_is_refused(bench: Bench, tmp_path: Path) -> None:
    bare = replace(bench.versions[0], number=7, name="policy-7")
    with pytest.raises(RunError, match="rollout-0 takes adapters, but policy-7 has none"):
        bench.engine.deliver(bare)


def test_a_stored_version_is_a_source_for_vllms_transfer(bench: Bench) -> None:
    policy = bench.versions[1]
    source = weight_source(bench.store.read_torch(policy.path, policy.sha256), torch.device("cpu"))
    sent = list(source)
    assert [name for name, _ in sent] == sorted(name for name, _ in sent)
    assert tensors_sha256(sent) == policy.sha256
    described = [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    assert described == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in sent]
    assert all(torch.equal(one, two) for (_, one), (_, two) in zip(sent, source, strict=True)), "it can be sent again"
