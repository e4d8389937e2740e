"""A card that computes nothing: meta tensors, and a mode that plays what crosses between it and the host.

with SimulatedCard() as card:
    scorer.log_probs(texts)[0].sum().backward()
assert card.reads == 0
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
COPIES = (aten._to_copy.default, aten.copy_.default)
VIEWS = (
    "view",
    "_unsafe_view",
    "reshape",
    "expand",
    "transpose",
    "permute",
    "slice",
    "select",
    "squeeze",
    "unsqueeze",
    "t",
    "detach",
)


class SimulatedCard(TorchDispatchMode):
    """Counts what the host asks of the card: kernels, reads (the host waits), writes (from the host's memory).

    An operation on tensors of both sides raises, as on a real card; what is read is zeros, and 1 where it is a number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.writes = self.bytes_read = 0
        self.kernels: Counter[str] = Counter()
        self.casts: Counter[tuple[torch.dtype, torch.dtype]] = Counter()

    @property
    def launches(self) -> int:
        return self.kernels.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        there = any(tensor.is_meta for tensor in tensors)
        if not there:
            return self._from_host(func, args, kwargs)
        if func is aten._local_scalar_dense.default:
            self.reads += 1
            return 1.0 if args[0].is_floating_point() else 1
        if func in COPIES:
            return self._copy(func, args, kwargs)
        mixed = [tensor for tensor in tensors if not tensor.is_meta and tensor.dim()]
        assert not mixed, f"{func} takes tensors of the host and of the card"
        name = func.overloadpacket.__name__
        if name.removesuffix("_copy") not in VIEWS:
            self.kernels[name] += 1
        return func(*args, **kwargs)

    def _from_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is aten._to_copy.default and str(kwargs.get("device")) == "meta":
            self.writes += 1
        return func(*args, **kwargs)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        source = args[-1] if func is aten.copy_.default else args[0]
        target = args[0].device if func is aten.copy_.default else kwargs.get("device") or source.device
        if source.is_meta and torch.device(target).type == "cpu":
            self.reads += 1
            self.bytes_read += source.nbytes
            if func is aten.copy_.default:
                return args[0].zero_()
            return torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        if not source.is_meta:
            self.writes += 1
        else:
            made = args[0].dtype if func is aten.copy_.default else kwargs.get("dtype") or source.dtype
            self.kernels[func.overloadpacket.__name__] += 1
            if made != source.dtype:
                self.casts[source.dtype, made] += 1
        return func(*args, **kwargs)
