"""The fallback engine: plain transformers, for machines without vLLM.

The same distribution as vLLM's, from other noise: one generator per answer and one exponential variate per word and
position. Prompts are read in groups of similar length, each once for all of its answers; the answers of a batch are
written together, and those that have ended leave it. Slower than vLLM, which puts new prompts in their place.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pddpo_ray.contracts import Count, Draw
from pddpo_ray.errors import RunError
from pddpo_ray.records import Array, Decoding, Delivery, PolicyVersion, Prompt
from pddpo_ray.rollout.checkpoint import (
    check_version,
    fingerprint,
    load_tokenizer,
    model_tensors,
    stored_tensors,
)
from pddpo_ray.rollout.policy_temperature import divide_logits
from pddpo_ray.rollout.vllm_engine import NO_VERSION
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import TensorStream
from pddpo_ray.text.renderer import stop_ids
from pddpo_ray.theory.seeds import counts, draw_seeds
from pddpo_ray.training.progress import PROGRESS, LinePace

if TYPE_CHECKING:
    import torch


GROUP = 8
"""Texts read in one pass: few enough to be of similar length, enough to be worth reading the weights."""


class TransformersEngine:
    """Satisfies `pddpo_ray.contracts.RolloutEngine`; see `VllmEngine` for the meaning of the arguments."""

    def __init__(
        self,
        name: str,
        model: Path,
        store: ArtifactStore,
        *,
        dtype: str = "float32",
        batch_size: int = 128,
        temperature: float = 1.0,
        device: str = "auto",
    ) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        from pddpo_ray.training.device import device_for

        self.name = name
        self._store = store
        self._batch_size = batch_size
        self._model_tensors = model_tensors(Path(model))
        self._tokenizer = load_tokenizer(Path(model))
        self.tokenizer = fingerprint(self._tokenizer)
        self._version = NO_VERSION
        config = AutoConfig.from_pretrained(Path(model))
        self._model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
        self._model = self._model.to(device_for(device))
        divide_logits(self._model, temperature)
        self._stop_ids = stop_ids(self._tokenizer, Path(model))

    @property
    def version(self) -> int:
        return self._version

    def deliver(self, policy: PolicyVersion) -> Delivery:
        """Check the stored tensors against the model, copy them in place and state what was copied."""
        import torch

        begin = time.monotonic()
        folder = self._store.folder(policy.path)
        self._version = NO_VERSION
        check_version(self._model_tensors, self.tokenizer, folder, engine=self.name, version=policy.number)
        weights = self._model.state_dict()
        consumed = TensorStream()
        with torch.no_grad():
            for name, tensor in stored_tensors(folder):
                weights[name].copy_(tensor)
                consumed.add(name, tensor)
        self._version = policy.number
        seconds = time.monotonic() - begin
        return Delivery(self.name, self._version, consumed.sha256(), consumed.count, seconds, self.tokenizer)

    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding) -> list[list[Draw]]:
        """n answers per prompt; a draw follows from weights, prompt, seed and decoding, not from its neighbours."""
        self._demand_version()
        each = counts(n, len(prompts))
        requests = [
            (prompt.token_ids, draw_seed)
            for prompt, seed, count in zip(prompts, seeds, each, strict=True)
            for draw_seed in draw_seeds(seed, count)
        ]
        draws: list[Draw | None] = [None] * len(requests)
        for indices in _batches([prompt for prompt, _ in requests], self._batch_size):
            for index, draw in zip(indices, self._generate([requests[i] for i in indices], decoding), strict=True):
                draws[index] = draw
        complete = iter([draw for draw in draws if draw is not None])
        return [[next(complete) for _ in range(count)] for count in each]

    def score(self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]) -> Array:
        """Sum log-probability of each answer under the loaded version. -> [n]"""
        self._demand_version()
        texts = [(*prompt.token_ids, *answer) for prompt, answer in zip(prompts, answers, strict=True)]
        result = np.zeros(len(texts))
        for indices in _batches(texts, min(self._batch_size, GROUP)):
            longest = max(len(answers[i]) for i in indices)
            batch = _Batch(self._model, [texts[i] for i in indices])
            logits = batch.read(batch.ids, keep=longest + 1)
            for row, index in enumerate(indices):
                begin = longest - len(answers[index])
                tokens = batch.ids[row, batch.ids.shape[1] - len(answers[index]) :]
                result[index] = float(_log_probs(logits[row, begin:-1].float(), tokens).double().sum())
        return result

    def close(self) -> None:
        self._version = NO_VERSION
        del self._model

    def _demand_version(self) -> None:
        if self._version == NO_VERSION:
            raise RunError(f"engine {self.name} holds no policy: deliver a version before sampling from it")

    def _generate(self, requests: Sequence[tuple[tuple[int, ...], int]], decoding: Decoding) -> Iterator[Draw]:
        """One answer for each (prompt, seed), drawn with a generator of its own."""
        import torch

        generators = [torch.Generator().manual_seed(seed) for _, seed in requests]
        answers: list[list[int]] = [[] for _ in requests]
        totals = np.zeros(len(requests))
        line = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompt for prompt, _ in requests))}
        rows = [line[prompt] for prompt, _ in requests]
        batch, logits = _read_texts(self._model, list(line))
        batch.choose(rows)
        logits = logits[rows].float().cpu()
        going, pace = list(range(len(requests))), LinePace()
        for left in reversed(range(decoding.max_tokens)):
            if pace.due():
                done = decoding.max_tokens - left - 1
                PROGRESS.tell(f"{self.name}: {len(going)} of {len(requests)} answers go beyond token {done}")
            drawn = _draw_tokens(logits, decoding, [generators[answer] for answer in going])
            for answer, token, log_prob in zip(going, drawn.tolist(), _log_probs(logits, drawn).tolist(), strict=True):
                answers[answer].append(token)
                totals[answer] += log_prob
            rows = [row for row, answer in enumerate(going) if answers[answer][-1] not in self._stop_ids]
            if not rows or not left:
                break
            batch.choose(rows)
            going = [going[row] for row in rows]
            logits = batch.read(drawn[rows, None].to(batch.ids.device))[:, -1].float().cpu()
        for ids, total in zip(answers, totals, strict=True):
            yield tuple(ids), self._tokenizer.decode(ids, skip_special_tokens=True), float(total)


class _Batch:
    """Texts that a model reads together: padded on the left, so that all end at the same place.

    Positions are counted from each text's own first token, and padding is masked: what the model says of a text is
    what it says of it alone, up to rounding. Texts of one length have neither.
    """

    def __init__(self, model: Any, texts: Sequence[Sequence[int]]) -> None:
        import torch

        self._model = model
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        longest = max(map(len, texts))
        self.ids = torch.tensor([[0] * (longest - len(text)) + list(text) for text in texts], device=model.device)
        self.cache: Any = None
        self.mask: torch.Tensor | None = None
        """1 where a text has a token; None where nothing is padded. [B, T]"""
        if any(len(text) < longest for text in texts):
            lengths = torch.tensor([[len(text)] for text in texts], device=model.device)
            self.mask = (torch.arange(longest, device=model.device) >= longest - lengths).long()

    def read(self, ids: torch.Tensor, keep: int = 1) -> torch.Tensor:
        """Logits after each of the last `keep` tokens, when these ids follow what was read before. -> [B, keep, V]"""
        import torch

        if self.mask is not None and self.cache is not None:
            self.mask = torch.cat([self.mask, torch.ones_like(ids)], dim=1)
        options: dict[str, Any] = {} if self.mask is None else {"attention_mask": self.mask}
        if self.mask is not None and self._takes_positions:
            options["position_ids"] = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        with torch.no_grad():
            output = self._model(
                input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=keep, **options
            )
        self.cache = output.past_key_values
        logits: torch.Tensor = output.logits
        return logits

    def choose(self, rows: Sequence[int]) -> None:
        """Continue with these texts, in this order; one that is named several times continues as several."""
        import torch

        if list(rows) == list(range(len(self.ids))):
            return
        chosen = torch.tensor(rows, device=self.ids.device)
        self.ids = self.ids[chosen]
        self.cache.reorder_cache(chosen)
        if self.mask is not None:
            self.mask = self.mask[chosen]


def _read_texts(model: Any, texts: Sequence[tuple[int, ...]]) -> tuple[_Batch, torch.Tensor]:
    """Texts in order of length, as one batch to continue, and the logits after each. -> batch, [B, V]

    They are read in groups, so that a short text is not padded to the longest, if the model's cache keeps every token;
    a model that forgets (sliding windows, states) reads them together.
    """
    import torch
    from torch.nn.functional import pad
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    whole = _Batch(model, texts)
    layers = DynamicCache(config=model.config).layers
    if whole.mask is None or any(type(layer) is not DynamicLayer for layer in layers):
        return whole, whole.read(whole.ids)[:, -1]
    groups = [_Batch(model, texts[begin : begin + GROUP]) for begin in range(0, len(texts), GROUP)]
    logits = torch.cat([group.read(group.ids)[:, -1] for group in groups])

    def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([pad(tensor, (0, 0, whole.ids.shape[1] - tensor.shape[-2], 0)) for tensor in tensors])

    caches = [group.cache.layers for group in groups]
    whole.cache = DynamicCache(
        [
            (joined([cache.keys for cache in layer]), joined([cache.values for cache in layer]))
            for layer in zip(*caches, strict=True)
        ]
    )
    return whole, logits


def _log_probs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probability of one token per row. [B, V], [B] -> [B]"""
    return logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1)


def _draw_tokens(logits: torch.Tensor, decoding: Decoding, generators: Sequence[torch.Generator]) -> torch.Tensor:
    """One token per row by the exponential race: argmax of probability / exponential noise. [B, V] -> [B]"""
    import torch

    if decoding.temperature == 0.0:
        return logits.argmax(dim=-1)
    probabilities = torch.softmax(_nucleus(logits / decoding.temperature, decoding.top_p), dim=-1)
    noise = torch.empty_like(probabilities)
    for row, generator in zip(noise, generators, strict=True):
        row.exponential_(generator=generator)
    return probabilities.div_(noise).argmax(dim=-1)


def _nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of words whose probability reaches top_p. [B, V] -> [B, V]"""
    import torch

    if top_p >= 1.0:
        return logits
    ordered, indices = logits.sort(dim=-1)
    below = torch.softmax(ordered, dim=-1).cumsum(dim=-1) <= 1.0 - top_p
    below[..., -1] = False
    return torch.empty_like(logits).scatter_(-1, indices, ordered.masked_fill(below, -torch.inf))


def _batches(texts: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Indices of texts of similar length: little padding."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for begin in range(0, len(order), size):
        yield order[begin : begin + size]
