"""What frozen models say about texts: computed once, named by content, shared by D^r and D^c, kept beside the run.

A column belongs to (kind, model version, number type): log-probabilities under the reference or a reward policy,
supports and features of the reference. A text's entry is found by a hash of its token ids, so it does not matter which
data set, round or process asks. New entries go to disk as one shard, whole or not at all, named by a hash of its
content; a process that starts again reads them instead of computing them, and a damaged shard is computed again.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pddpo_ray.errors import RunError
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import tensors_sha256
from pddpo_ray.storage.whole_files import WEIGHTS
from pddpo_ray.training.batches import Text
from pddpo_ray.training.passes.log_probs import Support

Kind = Literal["log_probs", "features", "supports"]
RESIDENT = 6
"""Columns kept in memory; the ones asked for longest ago are forgotten first (they stay on disk)."""


def text_key(text: Text) -> bytes:
    """16 bytes that name a text by its token ids. The prompt's length keeps prompt and answer apart."""
    prompt, response = text
    words = np.array([len(prompt), *prompt, *response], dtype="<i8")
    return hashlib.blake2b(words.tobytes(), digest_size=16).digest()


class RowStore:
    """Columns by (kind, version). With several ranks one of them writes (`writes`)."""

    def __init__(self, store: ArtifactStore, dtype: str, *, writes: bool = True) -> None:
        self._store = store
        self._dtype = dtype
        self._writes = writes
        self._columns: OrderedDict[tuple[str, str], Column] = OrderedDict()

    def column(self, kind: Kind, version: str, detail: str = "") -> Column:
        """The column of a model version (its sha256); `detail` names a setting that enters, e.g. a support's floor."""
        name = (f"{kind}{detail}", version)
        if name not in self._columns:
            path = f"columns/{kind}{detail}-{version[:12]}-{self._dtype}"
            self._columns[name] = Column(self._store, path, ragged=kind == "supports", writes=self._writes)
            while len(self._columns) > RESIDENT:
                self._columns.popitem(last=False)
        self._columns.move_to_end(name)
        return self._columns[name]


class Column:
    """Entries of one column by text: a number, a vector, or a support."""

    def __init__(self, store: ArtifactStore, path: str, *, ragged: bool, writes: bool) -> None:
        self._store = store
        self._path = path
        self._is_ragged = ragged
        self._writes = writes
        self._entries: dict[bytes, Any] = {}
        for shard in self._shards():
            self._take_shard(shard)

    def missing(self, texts: Sequence[Text]) -> list[Text]:
        """The different texts that have no entry, in order."""
        return [text for text in dict.fromkeys(texts) if text_key(text) not in self._entries]

    def add(self, texts: Sequence[Text], values: Sequence[Any] | NDArray[np.float64]) -> None:
        """Entries of different texts, on disk when this returns."""
        if not texts:
            return
        keys = np.frombuffer(b"".join(map(text_key, texts)), dtype=np.uint8).reshape(-1, 16)
        shard = {
            "keys": keys,
            **(_flat_supports(values) if self._is_ragged else {"values": np.asarray(values, np.float64)}),
        }
        self._take_shard(shard)
        if self._writes:
            self._store.write_tensors(f"{self._path}/shard", shard)

    def of(self, texts: Sequence[Text]) -> list[Any]:
        """Entries of texts that all have one."""
        return [self._entries[text_key(text)] for text in texts]

    def mapping(self, texts: Sequence[Text]) -> dict[Text, Any]:
        return dict(zip(texts, self.of(texts), strict=True))

    def _take_shard(self, shard: Mapping[str, NDArray[Any]]) -> None:
        values = _supports_of(shard) if self._is_ragged else shard["values"]
        self._entries.update(zip(map(bytes, shard["keys"]), values, strict=True))

    def _shards(self) -> list[dict[str, NDArray[Any]]]:
        """Shards on disk whose content is what their name says."""
        from safetensors.numpy import load_file

        try:
            folders = sorted(self._store.folder(self._path).glob("shard-*"))
        except RunError:
            return []
        shards = []
        for folder in folders:
            shard = _read_shard(folder, load_file)
            if shard is not None and folder.name == f"shard-{tensors_sha256(shard.items())[:12]}":
                shards.append(shard)
        return shards


def _read_shard(folder: Path, load: Any) -> dict[str, NDArray[Any]] | None:
    from safetensors import SafetensorError

    try:
        shard: dict[str, NDArray[Any]] = load(folder / WEIGHTS)
    except (OSError, SafetensorError):
        return None
    return shard


def _flat_supports(supports: Sequence[Support] | NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """Supports as flat arrays: tokens per text, words per token, words."""
    return {
        "tokens": np.array([len(support.counts) for support in supports], dtype=np.int64),
        "counts": np.concatenate([support.counts for support in supports]).astype(np.int32),
        "words": np.concatenate([support.words for support in supports]).astype(np.int32),
    }


def _supports_of(shard: Mapping[str, NDArray[Any]]) -> list[Support]:
    token_ends = np.concatenate([[0], np.cumsum(shard["tokens"])])
    word_ends = np.concatenate([[0], np.cumsum(shard["counts"])])
    return [
        Support(shard["counts"][first:last], shard["words"][word_ends[first] : word_ends[last]])
        for first, last in pairwise(token_ends)
    ]
