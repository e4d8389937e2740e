"""The plain torch engine: one model, in one process or in several with summed gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pddpo_ray.config import FitConfig
from pddpo_ray.training import device
from pddpo_ray.training.batches import moved
from pddpo_ray.training.fit import PairLoss, PairPass, Shard, Tensors
from pddpo_ray.training.passes.graphs import PassGraphs
from pddpo_ray.training.passes.log_probs import ResponseScorer, device_of

MOMENTS, STEPS = ("exp_avg", "exp_avg_sq"), "steps"
"""What torch calls AdamW's moments, and the number of steps behind them."""
FUSED_FROM = 50_000
"""Trained parameters from which on the optimiser's fused step is used."""


def adam_betas(settings: FitConfig) -> tuple[float, float]:
    """The betas of every fit's AdamW."""
    return settings.momentum, 0.99


class TorchEngine:
    """AdamW on one model.

    With several ranks the gradients are summed in one flat all-reduce; losses arrive divided by global counts, so the
    sum is the gradient of the whole batch and every rank takes the same step.

    A trained parameter in bfloat16 has a float32 master: gradients are added up beside it, the optimiser moves it, and
    the parameter is its rounding. Steps that are smaller than bfloat16 can show would be lost otherwise. All masters
    are one tensor: an optimiser's step is a few launches, whatever the number of matrices.
    """

    def __init__(self, scorer: ResponseScorer, shard: Shard | None = None) -> None:
        self.scorer = scorer.eval()
        self.shard = shard or Shard()
        parameters = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
        narrow = [parameter for parameter in parameters if parameter.dtype == torch.bfloat16]
        self._all_masters = torch.cat([p.detach().float().reshape(-1) for p in narrow]) if narrow else None
        self._masters: dict[Tensor, Tensor] = {}
        if self._all_masters is not None:
            self._masters = dict(zip(narrow, _parts(self._all_masters, narrow), strict=True))
        self._trainable: list[Tensor] = [p for p in parameters if p not in self._masters]
        self._trainable += [] if self._all_masters is None else [self._all_masters]
        self._gradients: dict[Tensor, Tensor] = {}
        for parameter in self._masters:
            parameter.register_post_accumulate_grad_hook(self._give_to_master)
        self._device = device_of(scorer)
        self._optimizer: torch.optim.AdamW | None = None
        self._graphs: PassGraphs | None = None
        self._max_grad_norm = 1.0

    def load(self, weights: Tensors) -> None:
        with torch.no_grad():
            for tensor, value in matched(self._named_weights(), weights):
                tensor.copy_(value)
                if tensor in self._masters:
                    self._masters[tensor].copy_(value)

    def begin(self, settings: FitConfig, moments: Tensors | None = None) -> None:
        self._max_grad_norm = settings.max_grad_norm
        # One pass over memory per step instead of ten; for a very small model the difference is only in rounding.
        fused = sum(parameter.numel() for parameter in self._trainable) >= FUSED_FROM
        self._optimizer = torch.optim.AdamW(
            self._trainable,
            lr=settings.learning_rate,
            betas=adam_betas(settings),
            weight_decay=settings.weight_decay,
            fused=fused,
        )
        if moments is not None:
            self._take_moments(moments)
        self._graphs = PassGraphs(self._device) if self._records_passes() else None
        self._forget_gradients()

    def end(self) -> None:
        self._optimizer = self._graphs = None
        self._gradients = {}
        for parameter in self._trainable:
            parameter.grad = None

    def moments(self) -> dict[str, Tensor]:
        if self._optimizer is None:
            raise RuntimeError("begin() comes before moments()")
        state = self._optimizer.state
        steps = max((float(entry["step"]) for entry in state.values()), default=0.0)
        moments = {STEPS: torch.tensor(steps)} if self.shard.rank == 0 else {}
        return moments | copied(self._each_moment(), self.shard)

    def _take_moments(self, moments: Tensors) -> None:
        """A state of the optimiser for every trained tensor, then each weight's own numbers in it."""
        assert self._optimizer is not None
        for tensor in self._trainable:
            step = torch.tensor(float(moments[STEPS]), dtype=torch.float32, device=tensor.device)
            zeros = {name: torch.zeros_like(tensor) for name in MOMENTS}
            self._optimizer.state[tensor] = {"step": step, **zeros}
        for name, tensor in self._each_moment():
            if name in moments:  # a weight without a gradient had no step
                tensor.copy_(moments[name])

    def _each_moment(self) -> Iterator[tuple[str, Tensor]]:
        """Both moments of every trained weight that has had a step, by name."""
        assert self._optimizer is not None
        state = self._optimizer.state
        flat = state.get(self._all_masters) if self._all_masters is not None else None
        for moment in MOMENTS:
            parts = {} if flat is None else dict(zip(self._masters, _parts(flat[moment], self._masters), strict=True))
            for name, tensor in self._named_weights().items():
                if tensor in parts:
                    yield f"{moment}.{name}", parts[tensor]
                elif tensor in state:
                    yield f"{moment}.{name}", state[tensor][moment]

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def accumulate(self, loss: PairLoss, pair_pass: PairPass) -> Tensor:
        def run(moved_pass: PairPass) -> Tensor:
            value, metrics = loss(moved_pass)
            self.backward(value)
            return metrics

        return run(moved(pair_pass, self._device)) if self._graphs is None else self._graphs(run, pair_pass)

    def look(self, loss: PairLoss, pair_pass: PairPass) -> Tensor:
        return loss(moved(pair_pass, self._device))[1]

    def update(self, learning_rate: float) -> float:
        if self._optimizer is None:
            raise RuntimeError("begin() comes before update()")
        self._sum_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self._trainable, self._max_grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._forget_gradients()
        if self._masters:
            with torch.no_grad():
                torch._foreach_copy_(list(self._masters), list(self._masters.values()))
        return float(norm)

    def reduce_sum(self, values: Tensor) -> Tensor:
        if self.shard.ranks > 1:
            dist.all_reduce(values)
        return values

    def gather(self, part: np.ndarray) -> list[np.ndarray]:
        if self.shard.ranks == 1:
            return [part]
        parts: list[np.ndarray] = [part] * self.shard.ranks
        dist.all_gather_object(parts, part)
        return parts

    def each_weight(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._named_weights().items():
            yield name, self._masters.get(tensor, tensor).detach()

    def weights(self) -> dict[str, Tensor]:
        return copied(self.each_weight(), self.shard)

    def _records_passes(self) -> bool:
        """Whether passes are recorded: on a GPU, for a model whose step the host would hold up. No recording was tried
        with weights of 4 bits, which torch keeps as integers."""
        parameters = list(self.scorer.parameters())
        packed = isinstance(self.scorer, ResponseScorer) and self.scorer.layout == "packed"
        packed = packed and all(map(torch.is_floating_point, parameters))
        return packed and device.records_passes(self._device.type, sum(parameter.numel() for parameter in parameters))

    def _named_weights(self) -> Mapping[str, Tensor]:
        # named_parameters names a tied tensor once; buffers of language models follow from their configuration. Of a
        # model that carries adapters these alone are trained.
        return {name: parameter for name, parameter in self.scorer.model.named_parameters() if parameter.requires_grad}

    def _forget_gradients(self) -> None:
        """Zeroes those of masters, which share a tensor, and of recorded passes; drops the others."""
        for parameter in self._trainable:
            if self._graphs is None and parameter is not self._all_masters:
                parameter.grad = None
            else:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()
        if self._all_masters is not None and self._all_masters.grad is not None:
            self._gradients = dict(zip(self._masters, _parts(self._all_masters.grad, self._masters), strict=True))

    def _give_to_master(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._gradients[parameter].add_(parameter.grad)
            parameter.grad = None

    def _sum_gradients(self) -> None:
        """In place, for later passes add to the same tensors."""
        if self.shard.ranks == 1:
            return
        for parameter in self._trainable:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self._trainable if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        torch._foreach_copy_(gradients, _parts(flat, gradients))


def _parts(flat: Tensor, shapes: Iterable[Tensor]) -> list[Tensor]:
    """Views of one tensor with the shapes of others."""
    sizes = [tensor.numel() for tensor in shapes]
    return [part.view_as(tensor) for part, tensor in zip(flat.split(sizes), shapes, strict=True)]


def copied(weights: Iterator[tuple[str, Tensor]], shard: Shard) -> dict[str, Tensor]:
    """Copies on the CPU, on the first rank; the others take part and keep none."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in weights if shard.rank == 0}


def matched(tensors: Mapping[str, Tensor], weights: Tensors) -> Iterator[tuple[Tensor, Tensor]]:
    """Each tensor with its new value, one at a time. Raises ValueError unless both have the same names and shapes."""
    different = sorted(tensors.keys() ^ weights.keys())
    if different:
        raise ValueError(f"weights do not fit the model: {len(different)} names differ, the first is {different[0]}")
    for name, tensor in tensors.items():
        value = weights[name]
        if tensor.shape != value.shape:
            raise ValueError(f"weights do not fit the model: {name} is {tuple(value.shape)}, not {tuple(tensor.shape)}")
        yield tensor, value
