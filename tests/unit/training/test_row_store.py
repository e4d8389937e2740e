"""The row store: computed once, read back by a new process, never wrong about whose number it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.records import Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training import local
from pddpo_ray.training.batches import Text
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.passes.log_probs import ResponseScorer, Support
from pddpo_ray.training.row_store import RowStore, text_key
from tests.support.tiny_language_model import save_policy, tiny_llama

TEXTS: list[Text] = [((1, 9, 4), (7, 8, 2)), ((1, 9), (4, 7, 8, 2)), ((1, 9, 4), (2,))]
PROMPT = (1, 9, 4)
ROWS = tuple(PairRow(f"r{i}", PROMPT, (7 + i, 8, 2), (6, 2)) for i in range(4))


def test_prompt_and_answer_are_told_apart() -> None:
    assert len({text_key(text) for text in TEXTS}) == 3


def test_numbers_vectors_and_supports_come_back_in_a_new_process(tmp_path: Path) -> None:
    rows = RowStore(ArtifactStore(tmp_path), "float32")
    supports = [Support(np.array([2, 0, 1]), np.array([4, 5, 9])), Support(np.array([1]), np.array([3]))]
    rows.column("log_probs", "v1").add(TEXTS[:2], np.array([-1.5, -2.5]))
    rows.column("log_probs", "v1").add(TEXTS[2:], np.array([-3.5]))
    rows.column("features", "v1").add(TEXTS[:2], np.array([[1.0, 2.0], [3.0, 4.0]]))
    rows.column("supports", "v1", "-0.001").add(TEXTS[:2], supports)
    again = RowStore(ArtifactStore(tmp_path), "float32")
    assert again.column("log_probs", "v1").of(TEXTS) == [-1.5, -2.5, -3.5]
    assert again.column("features", "v1").missing(TEXTS) == TEXTS[2:]
    np.testing.assert_array_equal(again.column("features", "v1").of(TEXTS[:2]), [[1.0, 2.0], [3.0, 4.0]])
    for one, other in zip(again.column("supports", "v1", "-0.001").of(TEXTS[:2]), supports, strict=True):
        np.testing.assert_array_equal(one.counts, other.counts)
        np.testing.assert_array_equal(one.words, other.words)


def test_another_version_number_type_or_floor_is_another_column(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    RowStore(store, "float32").column("log_probs", "v1").add(TEXTS, np.zeros(3))
    assert RowStore(store, "float32").column("log_probs", "v2").missing(TEXTS) == TEXTS
    assert RowStore(store, "bfloat16").column("log_probs", "v1").missing(TEXTS) == TEXTS
    assert RowStore(store, "float32").column("log_probs", "v1", "-0.1").missing(TEXTS) == TEXTS


def test_a_damaged_shard_is_computed_again_and_not_believed(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    RowStore(store, "float32").column("log_probs", "v1").add(TEXTS, np.array([1.0, 2.0, 3.0]))
    (file,) = tmp_path.rglob("*.safetensors")
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    assert RowStore(store, "float32").column("log_probs", "v1").missing(TEXTS) == TEXTS
    file.write_bytes(b"short")
    assert RowStore(store, "float32").column("log_probs", "v1").missing(TEXTS) == TEXTS


@pytest.fixture
def reference(tmp_path: Path) -> tuple[ArtifactStore, PolicyVersion]:
    store = ArtifactStore(tmp_path / "artifacts")
    return store, store_reference(store, save_policy(tmp_path / "model", seed=3))


@pytest.mark.run
def test_a_restarted_trainer_scores_nothing_twice(
    reference: tuple[ArtifactStore, PolicyVersion], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, version = reference
    settings = FitSettings(steps=2, batch_pairs=4, support=0.5)
    command = FitCommand(1, Start(version), Objective("reward", version, 0.5), ROWS, settings, 7, "reward-1")
    answers = [Response(f"a{i}", Prompt("p", PROMPT, ""), row.chosen, "", 0, i) for i, row in enumerate(ROWS)]

    def trainer() -> LocalTrainer:
        return LocalTrainer(TorchEngine(ResponseScorer(tiny_llama(0))), store, version)

    first = trainer()
    features, scores, made = first.features(answers), first.log_probs(version, answers), first.execute(command)
    cost = replace(command, sequence=2, objective=Objective("cost", made.version, 0.5, 1.0), result="policy-1")
    policy = first.execute(cost)
    after = first.log_probs(version, answers)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("scored again")

    for name in ("score_texts", "support_of_texts", "mean_hidden"):
        monkeypatch.setattr(local, name, refuse)
    second = trainer()
    np.testing.assert_array_equal(second.features(answers), features)
    np.testing.assert_array_equal(second.log_probs(version, answers), scores)
    np.testing.assert_array_equal(after, scores)
    assert second.execute(command).version == made.version
    assert second.execute(cost).version == policy.version
