"""Tensors by name: their hash, and mappings whose tensors are read or made when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

    Tensor = np.ndarray[Any, Any] | torch.Tensor

T = TypeVar("T", bound="np.ndarray[Any, Any] | torch.Tensor")


def tensors_sha256(tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> str:
    """Name of a set of tensors: a hash over name, dtype, shape and raw little-endian bytes, in order of names.

    numpy arrays and torch tensors of the same values give the same hash. The device does not enter. A mapping is asked
    for one tensor at a time.
    """
    by_name = tensors if isinstance(tensors, Mapping) else dict(tensors)
    stream = TensorStream()
    for name in sorted(by_name):
        stream.add(name, by_name[name])
    return stream.sha256()


class MadeTensors(Mapping[str, T]):
    """Tensors that are made each time they are asked for, so that a whole model of them need not exist."""

    def __init__(self, names: Iterable[str], make: Callable[[str], T]) -> None:
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def stored_mapping(file: Path) -> Mapping[str, torch.Tensor]:
    """Tensors of a safetensors file, read when they are asked for."""
    from safetensors import safe_open

    reader = safe_open(file, framework="pt")
    return MadeTensors(reader.keys(), reader.get_tensor)


class TensorStream:
    """The same hash over tensors that come one by one in order of their names, so that none has to be kept."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._last = ""
        self.count = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Raises ValueError for a name that does not come after the one before: the hash would mean nothing."""
        if name <= self._last:
            raise ValueError(f"tensors come in order of their names: {name} came after {self._last}")
        dtype = tensor.dtype.name if isinstance(tensor, np.ndarray) else str(tensor.dtype).removeprefix("torch.")
        self._digest.update(f"{name}\0{dtype}\0{','.join(str(size) for size in tensor.shape)}\0".encode())
        self._digest.update(_raw_bytes(tensor))
        self._last = name
        self.count += 1

    def sha256(self) -> str:
        return self._digest.hexdigest()


def _raw_bytes(tensor: Tensor) -> bytes | memoryview:
    if isinstance(tensor, np.ndarray):
        plain = np.ascontiguousarray(tensor)
        if plain.dtype.byteorder == ">":
            plain = plain.astype(plain.dtype.newbyteorder("<"))
        return plain.reshape(-1).view(np.uint8).data
    import torch

    # bfloat16 has no numpy type, hence the detour over bytes.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
