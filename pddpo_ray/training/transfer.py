"""Records of tensors on their way from the host to a device: one copy for each type of number.

A record is a dataclass whose fields are tensors, other such records, or plain values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

R = TypeVar("R")


def moved(record: R, device: torch.device) -> R:
    """The record on the device; the host does not wait for the copies."""
    if device.type == "cpu":
        return record
    return over(record, {dtype: flat.to(device, non_blocking=True) for dtype, flat in flat_of(record, device).items()})


def flat_of(record: Any, device: torch.device) -> dict[torch.dtype, Tensor]:
    """All numbers of a record on the host in one tensor per type; memory that a GPU can copy while the host goes on."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for tensor in _tensors(record):
        by_type.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
    flats = {dtype: torch.cat(parts) for dtype, parts in by_type.items()}
    return {dtype: flat.pin_memory() if device.type == "cuda" else flat for dtype, flat in flats.items()}


def over(record: R, flats: Mapping[torch.dtype, Tensor]) -> R:
    """The record whose tensors are views of these, laid out as in `flat_of`."""
    sizes: dict[torch.dtype, list[int]] = {}
    for tensor in _tensors(record):
        sizes.setdefault(tensor.dtype, []).append(tensor.numel())
    parts = {dtype: iter(flats[dtype].split(numbers)) for dtype, numbers in sizes.items()}
    return _rebuilt(record, parts)


def _values(record: Any) -> list[Any]:
    return [getattr(record, field.name) for field in fields(record)]


def _tensors(record: Any) -> Iterator[Tensor]:
    for value in _values(record):
        if isinstance(value, Tensor):
            yield value
        elif is_dataclass(value):
            yield from _tensors(value)


def _rebuilt(record: Any, parts: Mapping[torch.dtype, Iterator[Tensor]]) -> Any:
    made = {}
    for field, value in zip(fields(record), _values(record), strict=True):
        if isinstance(value, Tensor):
            made[field.name] = next(parts[value.dtype]).view(value.shape)
        elif is_dataclass(value):
            made[field.name] = _rebuilt(value, parts)
    return replace(record, **made)
