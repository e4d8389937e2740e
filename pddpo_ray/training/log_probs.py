"""Log-probabilities of responses, and what the reference supports.

A sum runs over the response tokens including end-of-sequence, in float32 or better, without length normalisation
(algorithms.md 0.1). The vocabulary matrix is made for response positions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pddpo_ray.training.batches import Text, TextBatch, collate


@dataclass(frozen=True)
class Support:
    """Words that the reference finds plausible at each response position of one text (probability >= a floor).

    counts [T]; words [sum(counts)], position after position.
    """

    counts: np.ndarray
    words: np.ndarray


class ResponseScorer(nn.Module):
    """A causal language model that returns log-probabilities of responses instead of logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.vocabulary_size = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]

    def forward(self, batch: TextBatch, support: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """-> ([n] log pi(y|x), [T] log of the policy's mass on the supported words, or None)

        support: [T, V] bool.
        """
        logits = self.response_logits(batch).float()
        normaliser = torch.logsumexp(logits, dim=-1)
        token_log_probs = logits.gather(-1, batch.target[:, None])[:, 0] - normaliser
        total = token_log_probs.new_zeros(len(batch)).index_add(0, batch.row, token_log_probs)
        if support is None:
            return total, None
        supported = torch.logsumexp(logits.masked_fill(~support, -torch.inf), dim=-1) - normaliser
        return total, supported

    def hidden(self, batch: TextBatch) -> Tensor:
        """Final-norm hidden states at the positions that predict the response tokens. -> [T, h]"""
        return self._decoder()(input_ids=batch.ids, use_cache=False).last_hidden_state[batch.row, batch.column]

    def response_logits(self, batch: TextBatch) -> Tensor:
        """-> [T, V]"""
        head: nn.Module = self._causal_lm().get_output_embeddings()  # type: ignore[operator]
        logits: Tensor = head(self.hidden(batch))
        return logits

    def _causal_lm(self) -> nn.Module:
        # A LoRA model wraps the language model once more; adapters are applied inside its layers.
        unwrap = getattr(self.model, "get_base_model", None)
        return unwrap() if unwrap is not None else self.model

    def _decoder(self) -> nn.Module:
        decoder: nn.Module = self._causal_lm().base_model  # type: ignore[assignment]
        return decoder


@torch.no_grad()
def score_texts(scorer: ResponseScorer, texts: Sequence[Text], batch_size: int = 128) -> np.ndarray:
    """log pi(y|x) of every text, in the given order. -> [n] float64"""
    result = np.empty(len(texts))
    for indices in _length_batches(texts, batch_size):
        batch = collate([texts[i] for i in indices]).to(device_of(scorer))
        result[indices] = scorer(batch)[0].double().cpu().numpy()
    return result


@torch.no_grad()
def support_of_texts(
    scorer: ResponseScorer, texts: Sequence[Text], floor: float, batch_size: int = 128
) -> tuple[np.ndarray, list[Support]]:
    """Log-probabilities and supports under the reference, in one pass. -> [n], n supports"""
    log_probs = np.empty(len(texts))
    supports: list[Support | None] = [None] * len(texts)
    for indices in _length_batches(texts, batch_size):
        batch = collate([texts[i] for i in indices]).to(device_of(scorer))
        logits = scorer.response_logits(batch).float()
        log_softmax = torch.log_softmax(logits, dim=-1)
        tokens = log_softmax.gather(-1, batch.target[:, None])[:, 0].double()
        log_probs[indices] = tokens.new_zeros(len(batch)).index_add(0, batch.row, tokens).cpu().numpy()
        plausible = (log_softmax >= np.log(floor)).cpu().numpy()
        row = batch.row.cpu().numpy()
        for position, index in enumerate(indices):
            own = plausible[row == position]
            supports[index] = Support(own.sum(axis=1), np.nonzero(own)[1].astype(np.int32))
    return log_probs, [support for support in supports if support is not None]


@torch.no_grad()
def mean_hidden(scorer: ResponseScorer, texts: Sequence[Text], batch_size: int = 128) -> np.ndarray:
    """Final hidden states averaged over the response tokens. -> [n, h] float64

    The state *at* a response token has read that token, so it is taken one position after the one that predicts it.
    """
    result: np.ndarray | None = None
    for indices in _length_batches(texts, batch_size):
        batch = collate([texts[i] for i in indices]).to(device_of(scorer))
        read = TextBatch(batch.ids, batch.row, batch.column + 1, batch.target)
        hidden = scorer.hidden(read).double()
        total = hidden.new_zeros((len(batch), hidden.shape[1])).index_add(0, batch.row, hidden)
        count = torch.bincount(batch.row, minlength=len(batch)).to(hidden)[:, None]
        if result is None:
            result = np.empty((len(texts), hidden.shape[1]))
        result[indices] = (total / count).cpu().numpy()
    return result if result is not None else np.empty((0, 0))


def support_mask(supports: Sequence[Support], vocabulary: int) -> Tensor:
    """Supports of consecutive texts as one mask. -> [T, V] bool"""
    counts = np.concatenate([support.counts for support in supports])
    words = np.concatenate([support.words for support in supports])
    mask = np.zeros((len(counts), vocabulary), dtype=bool)
    mask[np.repeat(np.arange(len(counts)), counts), words] = True
    return torch.from_numpy(mask)


def device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _length_batches(texts: Sequence[Text], size: int) -> list[np.ndarray]:
    """Indices in batches of similar length."""
    order = np.argsort([len(prompt) + len(response) for prompt, response in texts], kind="stable")
    return [order[begin : begin + size] for begin in range(0, len(order), size)]
