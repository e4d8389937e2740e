"""The artifact store: whole or absent, and read only if its hash is right."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import tensors_sha256
from pddpo_ray.storage.whole_files import WEIGHTS


def test_the_hash_of_tensors_by_hand() -> None:
    """Sorted by name; name, dtype and shape as text between zero bytes, then little-endian bytes."""
    tensors = [("b", np.array([[1.0, 2.0]])), ("a", np.array([3], dtype=np.int32))]
    expected = hashlib.sha256(
        b"a\0int32\x001\0" + (3).to_bytes(4, "little") + b"b\0float64\x001,2\0" + np.array([1.0, 2.0], "<f8").tobytes()
    )
    assert tensors_sha256(tensors) == expected.hexdigest()


def test_torch_numpy_and_byte_order_do_not_change_the_hash() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    name = tensors_sha256([("w", values)])
    assert tensors_sha256([("w", torch.from_numpy(values))]) == name
    assert tensors_sha256([("w", torch.from_numpy(values.T.copy()).T)]) == name
    assert tensors_sha256([("w", values.astype(">f4"))]) != tensors_sha256([("w", values * 1.01)])
    assert tensors_sha256([("w", values.astype(">f4"))]) == name
    assert tensors_sha256([("w", torch.zeros(2, dtype=torch.bfloat16))]) != tensors_sha256([("w", torch.zeros(2))])


def test_what_was_stored_is_read_back_and_named_by_its_content(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    table = np.random.default_rng([1]).normal(size=(3, 4))
    path, sha256 = store.write_tensors("policy-1", {"log_probs": table}, fill=lambda at: (at / "note").touch())
    assert path == f"policy-1-{sha256[:12]}"
    assert (store.folder(path) / "note").exists()
    np.testing.assert_array_equal(store.read_tensors(path, sha256)["log_probs"], table)
    assert store.write_tensors("policy-1", {"log_probs": table}) == (path, sha256)


def test_tied_and_half_precision_torch_weights_survive(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    weight = torch.arange(4, dtype=torch.bfloat16)
    path, sha256 = store.write_tensors("policy-1", {"a": weight, "b": weight})
    assert torch.equal(store.read_torch(path, sha256)["b"], weight)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    path, sha256 = store.write_tensors("policy-1", {"log_probs": np.zeros((2, 2))})
    file = tmp_path / path / WEIGHTS
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(RunError, match="its file was changed"):
        store.read_tensors(path, sha256)


def test_a_folder_that_fails_half_way_is_not_there(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError("disk full")

    store = ArtifactStore(tmp_path)
    with pytest.raises(OSError, match="disk full"):
        store.write_folder("pairs/round-1", fill)
    with pytest.raises(RunError, match="missing from the store"):
        store.folder("pairs/round-1")
    assert list((tmp_path / "pairs").iterdir()) == []


def test_paths_stay_inside_the_store(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    for path in ("../elsewhere", "/etc"):
        with pytest.raises(UserError, match="stay inside the store"):
            store.folder(path)


def test_a_remote_store_gives_the_same_tensors_to_another_machine(tmp_path: Path) -> None:
    url = "memory://bucket/run"
    here = ArtifactStore(url, cache=tmp_path / "here")
    path, sha256 = here.write_tensors("policy-1", {"log_probs": np.ones((2, 2))})
    there = ArtifactStore(url, cache=tmp_path / "there")
    np.testing.assert_array_equal(there.read_tensors(path, sha256)["log_probs"], np.ones((2, 2)))
