"""The fallback engine: plain transformers, for machines on which vLLM cannot be had.

The same distribution as vLLM's, from other noise: one generator per answer and one exponential variate per word and
position. Slower, because a batch goes on until its longest answer has ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pddpo_ray.contracts import Array, Count, Delivery
from pddpo_ray.errors import RunError
from pddpo_ray.records import Decoding, PolicyVersion, Prompt
from pddpo_ray.rollout.checkpoint import (
    check_version,
    fingerprint,
    load_tokenizer,
    model_tensors,
    stored_tensors,
)
from pddpo_ray.rollout.draws import counts, draw_seeds
from pddpo_ray.rollout.vllm_engine import NO_VERSION, Draw
from pddpo_ray.storage.artifacts import ArtifactStore, tensors_sha256

if TYPE_CHECKING:
    import torch


class TransformersEngine:
    """Satisfies `pddpo_ray.contracts.RolloutEngine`; see `VllmEngine` for the meaning of the arguments."""

    def __init__(
        self, name: str, model: Path, store: ArtifactStore, *, dtype: str = "float32", batch_size: int = 128
    ) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        self.name = name
        self._store = store
        self._batch_size = batch_size
        self._expected = model_tensors(Path(model))
        self._tokenizer = load_tokenizer(Path(model))
        self.tokenizer = fingerprint(self._tokenizer)
        self._version = NO_VERSION
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        config = AutoConfig.from_pretrained(Path(model))
        self._model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval().to(device)
        self._ends = _end_tokens(config, self._tokenizer)

    @property
    def version(self) -> int:
        return self._version

    def deliver(self, policy: PolicyVersion) -> Delivery:
        """Check the stored tensors against the model, copy them in place and state what was copied."""
        import torch

        begin = time.monotonic()
        folder = self._store.folder(policy.path)
        self._version = NO_VERSION
        check_version(self._expected, self.tokenizer, folder, engine=self.name, version=policy.number)
        own = self._model.state_dict()
        consumed = []
        with torch.no_grad():
            for name, tensor in stored_tensors(folder):
                own[name].copy_(tensor)
                consumed.append((name, tensor))
        self._version = policy.number
        return Delivery(
            self.name, self._version, tensors_sha256(consumed), len(consumed), time.monotonic() - begin, self.tokenizer
        )

    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding) -> list[list[Draw]]:
        """n answers per prompt; a draw follows from weights, prompt, seed and decoding, not from its neighbours."""
        self._demand_version()
        each = counts(n, len(prompts))
        wanted = [
            (list(prompt.token_ids), draw_seed)
            for prompt, seed, count in zip(prompts, seeds, each, strict=True)
            for draw_seed in draw_seeds(seed, count)
        ]
        draws: list[Draw | None] = [None] * len(wanted)
        for indices in _equal_length_batches([prompt for prompt, _ in wanted], self._batch_size):
            for index, draw in zip(indices, self._generate([wanted[i] for i in indices], decoding), strict=True):
                draws[index] = draw
        complete = iter([draw for draw in draws if draw is not None])
        return [[next(complete) for _ in range(count)] for count in each]

    def score(self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]) -> Array:
        """Sum log-probability of each answer under the loaded version. -> [n]"""
        import torch

        self._demand_version()
        texts = [[*prompt.token_ids, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        result = np.zeros(len(texts))
        for indices in _equal_length_batches(texts, self._batch_size):
            ids = torch.tensor([texts[i] for i in indices], device=self._model.device)
            with torch.no_grad():
                log_probs = torch.log_softmax(self._model(input_ids=ids).logits.float(), dim=-1)[:, :-1]
            tokens = log_probs.gather(-1, ids[:, 1:, None])[..., 0].double().cpu().numpy()
            for row, index in enumerate(indices):
                result[index] = tokens[row, len(prompts[index].token_ids) - 1 :].sum()
        return result

    def close(self) -> None:
        self._version = NO_VERSION
        del self._model

    def _demand_version(self) -> None:
        if self._version == NO_VERSION:
            raise RunError(f"engine {self.name} holds no policy: deliver a version before sampling from it")

    def _generate(self, wanted: Sequence[tuple[list[int], int]], decoding: Decoding) -> Iterator[Draw]:
        """Answers to prompts of one length, each with its own generator."""
        import torch

        generators = [torch.Generator().manual_seed(seed) for _, seed in wanted]
        answers: list[list[int]] = [[] for _ in wanted]
        totals = np.zeros(len(wanted))
        open_rows = list(range(len(wanted)))
        ids = torch.tensor([prompt for prompt, _ in wanted], device=self._model.device)
        cache = None
        for _ in range(decoding.max_tokens):
            with torch.no_grad():
                output = self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            logits = output.logits[:, -1].float().cpu()
            drawn = _draw_tokens(logits, decoding, {row: generators[row] for row in open_rows})
            log_probs = torch.log_softmax(logits, dim=-1).gather(-1, drawn[:, None])[:, 0].double().numpy()
            for row in open_rows:
                answers[row].append(int(drawn[row]))
                totals[row] += log_probs[row]
            open_rows = [row for row in open_rows if answers[row][-1] not in self._ends]
            if not open_rows:
                break
            ids = drawn[:, None].to(self._model.device)
        for answer, total in zip(answers, totals, strict=True):
            yield tuple(answer), self._tokenizer.decode(answer, skip_special_tokens=True), float(total)


def _draw_tokens(logits: torch.Tensor, decoding: Decoding, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """One token per row by the exponential race: argmax of probability / exponential noise. [B, V] -> [B]

    Rows without a generator have ended; what they draw is ignored.
    """
    import torch

    if decoding.temperature == 0.0:
        return logits.argmax(dim=-1)
    probabilities = torch.softmax(_nucleus(logits / decoding.temperature, decoding.top_p), dim=-1)
    noise = torch.ones_like(probabilities)
    for row, generator in generators.items():
        noise[row].exponential_(generator=generator)
    return (probabilities / noise).argmax(dim=-1)


def _nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of words whose probability reaches top_p. [B, V] -> [B, V]"""
    import torch

    if top_p >= 1.0:
        return logits
    ordered, indices = logits.sort(dim=-1)
    below = torch.softmax(ordered, dim=-1).cumsum(dim=-1) <= 1.0 - top_p
    below[..., -1] = False
    return torch.empty_like(logits).scatter_(-1, indices, ordered.masked_fill(below, -torch.inf))


def _end_tokens(config: Any, tokenizer: Any) -> frozenset[int]:
    declared = config.eos_token_id
    ends = declared if isinstance(declared, list) else [declared]
    return frozenset(token for token in [*ends, tokenizer.eos_token_id] if token is not None)


def _equal_length_batches(texts: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Indices of texts of one length each: no padding, hence no mask that could be wrong."""
    by_length: dict[int, list[int]] = {}
    for index, text in enumerate(texts):
        by_length.setdefault(len(text), []).append(index)
    for indices in by_length.values():
        for begin in range(0, len(indices), size):
            yield indices[begin : begin + size]
