"""Attention over segments as a GPU's kernels do it, in plain loops: for CPUs, which have no such kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def varlen_attn(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    *, scale: float | None = None, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """torch.nn.attention.varlen's: a segment's last query sees its last key. What no segment covers is NaN, in the
    result and in the gradients of keys and values, where a kernel leaves what the memory held."""
    assert window_size == (-1, 0)
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert enable_gqa or query.shape[1] == key.shape[1]
    covered = torch.arange(len(key)) < cu_seq_k[-1]
    for states in (key, value):
        if states.requires_grad:
            states.register_hook(lambda slope: torch.where(covered[:, None, None], slope, torch.nan))
    heads = query.shape[1] // key.shape[1]
    parts = []
    for number in range(len(cu_seq_q) - 1):
        of_queries = slice(*cu_seq_q[number : number + 2].tolist())
        of_keys = slice(*cu_seq_k[number : number + 2].tolist())
        own, keys, values = query[of_queries], key[of_keys], value[of_keys]
        assert len(own) <= min(max_q, len(keys))
        assert len(keys) <= max_k
        if not len(own):
            continue
        keys, values = (states.repeat_interleave(heads, dim=1).transpose(0, 1) for states in (keys, values))
        weights = own.transpose(0, 1) @ keys.transpose(1, 2) * (own.shape[-1] ** -0.5 if scale is None else scale)
        late = torch.ones(weights.shape[1:], dtype=torch.bool).triu(keys.shape[1] - len(own) + 1)
        parts.append((weights.masked_fill(late, -torch.inf).softmax(dim=-1) @ values).transpose(0, 1))
    rest = query.new_full((len(query) - int(cu_seq_q[-1]), *query.shape[1:]), torch.nan)
    return torch.cat([*parts, rest])
