"""Log-probabilities of responses, and what the reference supports.

A sum runs over the response tokens including end-of-sequence, in float32 or better, without length normalisation
(paper.md §2). There are two ways to the same numbers, chosen once per model by its size:

- plain: a padded batch, and the vocabulary matrix of all response positions. Best for a very small model.
- packed: no padding, a prompt that texts share once, the vocabulary in chunks of tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pddpo_ray.errors import UserError, one_line
from pddpo_ray.training.batches import Text, TextBatch, collate, moved, padded_passes
from pddpo_ray.training.device import PASS_TOKENS, attends_ragged, chunk_rows
from pddpo_ray.training.passes.memory import PACKED_FROM, Sizes
from pddpo_ray.training.passes.packing import PackedBatch, Segments, can_pack, pack, switch_attention
from pddpo_ray.training.passes.response_head import SupportTable, response_log_probs
from pddpo_ray.training.progress import PROGRESS

logger = logging.getLogger("pddpo_ray.training")
Layout = Literal["plain", "packed"]
PROBE_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Largest relative difference of hidden states between both ways; other types: 0.05."""


@dataclass(frozen=True)
class Support:
    """Words that the reference finds plausible at each response position of one text (probability >= a floor).

    counts [T]; words [sum(counts)], position after position.
    """

    counts: np.ndarray
    words: np.ndarray


@dataclass(frozen=True)
class TextPass:
    """What one forward pass reads: texts, and the words that the reference supports at their response tokens."""

    batch: TextBatch | PackedBatch
    support: SupportTable | None


class ResponseScorer(nn.Module):
    """A causal language model that returns log-probabilities of responses instead of logits.

    The policy is softmax(logits / temperature).
    """

    def __init__(
        self, model: nn.Module, layout: Layout | None = None, temperature: float = 1.0, device: str | None = None
    ) -> None:
        """device: the kind that passes are made for; None: the model's own."""
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.vocabulary_size = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
        self._recomputed_layers = 0
        self._compiled_forwards: list[Any] = []
        self._attends_ragged = attends_ragged(device or device_of(self).type, next(self.parameters()).dtype)
        self.layout: Layout = self._choose_layout() if layout is None else layout
        if layout == "packed":
            switch_attention(self._causal_lm())

    def log_probs(
        self, texts: Sequence[Text], supports: Sequence[Support] | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """-> ([n] log pi(y|x), [T] log of the policy's mass on the supported words, [T] how often each counts)

        T runs over the response tokens of the different texts; a text that was given twice counts twice.
        """
        return self.log_probs_of(moved(self.to_read(texts, supports), device_of(self)))

    def to_read(self, texts: Sequence[Text], supports: Sequence[Support] | None = None) -> TextPass:
        """Texts as the model's layout wants them, on the host."""
        if self.layout == "plain":
            return TextPass(collate(texts), None if supports is None else support_table(supports))
        batch = self.packed(texts)
        return TextPass(batch, None if supports is None else support_table(_distinct_supports(batch, supports)))

    def packed(self, texts: Sequence[Text]) -> PackedBatch:
        """Texts of the packed layout, on the host."""
        return pack(texts, self._attends_ragged)

    def log_probs_of(self, text_pass: TextPass) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """`log_probs` of texts that are on the model's device."""
        batch, support = text_pass.batch, text_pass.support
        if isinstance(batch, TextBatch):
            total, supported = self(batch, support)
            return total, supported, None if supported is None else torch.ones_like(supported)
        tokens, supported = self._packed_tokens(batch, support)
        total = tokens.new_zeros(batch.texts).index_add(0, batch.text, tokens)[batch.copies]
        return total, supported, None if supported is None else batch.times.to(supported)

    @property
    def number_type(self) -> torch.dtype:
        """Type of log-probabilities: float32, or float64 where a packed model computes in it."""
        wide = self.layout == "packed" and next(self.parameters()).dtype == torch.float64
        return torch.float64 if wide else torch.float32

    def forward(self, batch: TextBatch, support: SupportTable | None = None) -> tuple[Tensor, Tensor | None]:
        """-> ([n] log pi(y|x), [T] log of the policy's mass on the supported words, or None)"""
        logits = self.response_logits(batch).float()
        normaliser = torch.logsumexp(logits, dim=-1)
        token_log_probs = logits.gather(-1, batch.target[:, None])[:, 0] - normaliser
        total = token_log_probs.new_zeros(len(batch)).index_add(0, batch.row, token_log_probs)
        return total, None if support is None else support.log_mass(logits) - normaliser

    def hidden(self, batch: TextBatch) -> Tensor:
        """Final-norm hidden states at the positions that predict the response tokens. -> [T, h]"""
        return self._decoder()(input_ids=batch.ids, use_cache=False).last_hidden_state[batch.row, batch.column]

    def packed_states(self, batch: PackedBatch) -> Tensor:
        """Final-norm hidden states of the whole row. -> [T, h]"""
        lines = batch.lines.narrow() if isinstance(batch.lines, Segments) else batch.lines
        states: Tensor = self._decoder()(
            input_ids=batch.ids, position_ids=batch.positions, use_cache=False, pddpo_lines=lines
        ).last_hidden_state[0]
        return states

    def sizes(self, texts: Sequence[Text], tokens: int) -> Sizes:
        """Sizes that a pass's memory follows from, measured on these texts of `tokens` tokens, shared prompts once."""
        config: Any = self._causal_lm().config
        layers, width = int(config.num_hidden_layers), next(self.parameters()).element_size()
        layer = kept_bytes(self, texts) / tokens / layers
        return Sizes(layers, width, layer, input=float(config.hidden_size * width))

    def recompute(self, layers: int) -> None:
        """The first `layers` layers keep their input alone for the backward pass and are computed again there."""
        if layers != self._recomputed_layers:
            self._recomputed_layers = layers
            self._set_layers()

    def compile_layers(self) -> None:
        """From now on torch compiles each layer, for batches of any size, when it is first used."""
        layers = self._layers()
        for layer in layers:
            layer.__dict__.pop("forward", None)
        self._compiled_forwards = [torch.compile(layer.forward, dynamic=True) for layer in layers]
        self._set_layers()

    def _set_layers(self) -> None:
        """How each layer is called: as the model has it, or compiled, or computed again in the backward pass."""
        for index, layer in enumerate(self._layers()):
            layer.__dict__.pop("forward", None)
            if self._compiled_forwards:
                layer.forward = self._compiled_forwards[index]
            if index < self._recomputed_layers:
                # engines hold a scorer in its evaluating mode, in which nothing is drawn
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)

    def _layers(self) -> list[Any]:
        """The decoder's layers, whatever the model calls them: the list that is as long as its configuration says."""
        count = int(self._causal_lm().config.num_hidden_layers)  # type: ignore[union-attr, arg-type]
        lists = [part for part in self._decoder().modules() if isinstance(part, nn.ModuleList) and len(part) == count]
        if not lists:
            kind = type(self._causal_lm()).__name__
            raise UserError(f"{kind} has no list of {count} layers: leave out trainer.activation_gib and model.compile")
        return list(lists[0])

    def _packed_tokens(self, batch: PackedBatch, support: SupportTable | None) -> tuple[Tensor, Tensor | None]:
        """Log-probability and supported log mass of each response token. -> [R], [R] or None"""
        hidden = self.packed_states(batch).index_select(0, batch.predictor)
        head = self.head
        if type(head) is nn.Linear and head.bias is None and not hasattr(head.weight, "ds_id"):
            return response_log_probs(hidden, head.weight, batch.target, support, self.temperature)
        # a head with a bias, an adapter, or weights that DeepSpeed gathers inside its forward pass
        return _plain_head(self.logits(hidden), batch.target, support)

    def response_logits(self, batch: TextBatch) -> Tensor:
        """-> [T, V]"""
        return self.logits(self.hidden(batch))

    def logits(self, hidden: Tensor) -> Tensor:
        """The policy's: those of the model divided by the temperature, float32 then. [T, h] -> [T, V]"""
        logits: Tensor = self.head(hidden)
        return logits if self.temperature == 1.0 else logits.float() / self.temperature

    @property
    def head(self) -> Any:
        """The map from hidden states to words."""
        return self._causal_lm().get_output_embeddings()  # type: ignore[operator]

    def _choose_layout(self) -> Layout:
        """Packed for a model that is large enough, has layers that allow it, and gives the same numbers both ways."""
        model = self._causal_lm()
        if sum(parameter.numel() for parameter in model.parameters()) < PACKED_FROM or not can_pack(model):
            return "plain"
        before = model.config._attn_implementation  # type: ignore[union-attr]
        switch_attention(model)
        for ragged in dict.fromkeys((self._attends_ragged, False)):
            self._attends_ragged = ragged
            if self._layouts_agree():
                return "packed"
        model.set_attn_implementation(before)  # type: ignore[operator]
        return "plain"

    @torch.no_grad()
    def _layouts_agree(self) -> bool:
        """Hidden states of a few texts are the same from a packed row as from a padded batch."""
        words = [1 + index % (self.vocabulary_size - 1) for index in range(20)]
        prompts = [tuple(words[:5]), tuple(words[5:8])]
        texts = [(prompt, tuple(words[8:end])) for prompt in prompts for end in (10, 14, 19)]
        training, device = self.training, device_of(self)
        self.eval()
        packed = self.packed(texts).to(device)
        expected = self.hidden(collate(texts).to(device))
        try:
            states = self.packed_states(packed)[packed.predictor]
        except (ImportError, RuntimeError, TypeError) as error:
            if not self._attends_ragged:
                raise
            logger.warning("attention gets lines that are filled up, for it takes no segments: %s", one_line(error))
            return False
        finally:
            self.train(training)
        largest = float((states - expected).abs().max() / expected.abs().max())
        agree = largest <= PROBE_TOLERANCE.get(expected.dtype, 0.05)
        if self._attends_ragged and not agree:
            logger.warning("attention gets lines that are filled up, for over segments it differs by %.2g", largest)
        return agree

    def _causal_lm(self) -> nn.Module:
        # A LoRA model wraps the language model once more; adapters are applied inside its layers.
        unwrap = getattr(self.model, "get_base_model", None)
        return unwrap() if unwrap is not None else self.model

    def _decoder(self) -> nn.Module:
        decoder: nn.Module = self._causal_lm().base_model  # type: ignore[assignment]
        return decoder


@torch.no_grad()
def score_texts(scorer: ResponseScorer, texts: Sequence[Text]) -> np.ndarray:
    """log pi(y|x) of every text, in the given order. -> [n] float64"""
    result = np.empty(len(texts))
    for indices in passes(scorer, texts):
        result[indices] = scorer.log_probs([texts[i] for i in indices])[0].double().cpu().numpy()
    return result


@torch.no_grad()
def support_of_texts(scorer: ResponseScorer, texts: Sequence[Text], floor: float) -> tuple[np.ndarray, list[Support]]:
    """Log-probabilities and supports under the reference, in one pass. -> [n], n supports"""
    log_probs = np.empty(len(texts))
    supports: list[Support | None] = [None] * len(texts)
    for indices in passes(scorer, texts):
        hidden, owner, target, copies = _predicting_states(scorer, [texts[i] for i in indices])
        tokens, counts, words = _plausible_words(scorer, hidden, target, np.log(floor))
        sums = np.bincount(owner, weights=tokens)[copies]
        log_probs[indices] = sums
        ends = np.concatenate([[0], np.cumsum(counts)])
        for copy, index in zip(copies, indices, strict=True):
            first, last = np.searchsorted(owner, [copy, copy + 1])
            supports[index] = Support(counts[first:last], words[ends[first] : ends[last]])
    return log_probs, [support for support in supports if support is not None]


@torch.no_grad()
def mean_hidden(scorer: ResponseScorer, texts: Sequence[Text]) -> np.ndarray:
    """Final hidden states averaged over the response tokens. -> [n, h] float64

    The state *at* a response token has read that token, so it is taken one position after the one that predicts it.
    """
    result: np.ndarray | None = None
    for indices in passes(scorer, texts):
        hidden, owner, count, copies = _states_that_read(scorer, [texts[i] for i in indices])
        total = hidden.new_zeros((len(count), hidden.shape[1])).index_add(0, owner, hidden)
        if result is None:
            result = np.empty((len(texts), hidden.shape[1]))
        result[indices] = (total / count[:, None])[copies].cpu().numpy()
    return result if result is not None else np.empty((0, 0))


def support_table(supports: Sequence[Support]) -> SupportTable:
    """Supports of consecutive texts as one table."""
    counts = np.concatenate([support.counts for support in supports])
    return SupportTable.of(counts, np.concatenate([support.words for support in supports]))


def kept_bytes(scorer: ResponseScorer, texts: Sequence[Text]) -> int:
    """Bytes that a pass over the texts keeps for its backward pass, beside parameters and buffers."""

    def place(tensor: Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)

    model_places = {place(tensor) for tensor in (*scorer.parameters(), *scorer.buffers())}
    # references, so that no storage is reused while they are counted
    tensors: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if place(tensor) not in model_places:
            tensors[place(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scorer.log_probs(texts)
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())


def device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _states_that_read(scorer: ResponseScorer, texts: Sequence[Text]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states of the response tokens [T, h] float64, the different text of each, how many tokens each of those
    has, and which one each text is."""
    device = device_of(scorer)
    if scorer.layout == "plain":
        on_host = collate(texts)
        batch = on_host.to(device)
        read = TextBatch(batch.ids, batch.row, batch.column + 1, batch.target)
        counts = torch.bincount(on_host.row).to(device)
        return scorer.hidden(read).double(), batch.row, counts, torch.arange(len(texts), device=device)
    packed_on_host = scorer.packed(texts)
    packed, counts = packed_on_host.to(device), torch.bincount(packed_on_host.text).to(device)
    return scorer.packed_states(packed)[packed.slot].double(), packed.text, counts, packed.copies


def _predicting_states(scorer: ResponseScorer, texts: Sequence[Text]) -> tuple[Tensor, np.ndarray, Tensor, np.ndarray]:
    """States that predict the response tokens [T, h], their different texts, the tokens, and which one each text is."""
    device = device_of(scorer)
    if scorer.layout == "plain":
        padded = collate(texts)
        batch = padded.to(device)
        return scorer.hidden(batch), padded.row.numpy(), batch.target, np.arange(len(texts))
    on_host = scorer.packed(texts)
    packed = on_host.to(device)
    hidden = scorer.packed_states(packed)[packed.predictor]
    return hidden, on_host.text.numpy(), packed.target, on_host.copies.numpy()


def _plausible_words(
    scorer: ResponseScorer, hidden: Tensor, target: Tensor, floor: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probability of each token [T] float64, how many words reach the floor there [T], and those words in order."""
    rows = chunk_rows(scorer.vocabulary_size, target.device.type)
    size = len(target) if scorer.layout == "plain" else rows
    tokens, counts, words = [], [], []
    for begin in range(0, len(target), size):
        log_softmax = torch.log_softmax(scorer.logits(hidden[begin : begin + size]).float(), dim=-1)
        tokens.append(log_softmax.gather(-1, target[begin : begin + size, None])[:, 0].double())
        # Found on the model's device: to read the whole matrix of words would take a hundred times as long.
        plausible = log_softmax >= floor
        counts.append(plausible.sum(dim=1))
        words.append(_columns(plausible).int())
    log_prob, count, word = (torch.cat(parts).cpu().numpy() for parts in (tokens, counts, words))
    return log_prob, count, word


def passes(scorer: ResponseScorer, texts: Sequence[Text]) -> Iterator[np.ndarray]:
    """Indices in passes of similar length that hold as many tokens as suits the device; in a packed row texts with the
    same prompt are side by side and share it, in a padded batch all texts are as long as the longest."""
    budget = PASS_TOKENS[device_of(scorer).type]
    if scorer.layout == "plain":
        lengths = np.array([len(prompt) + len(response) for prompt, response in texts], dtype=np.int64)
        order = np.argsort(lengths, kind="stable")
        cut: Iterable[slice] = padded_passes(lengths[order].tolist(), budget)
    else:
        keys = [(len(prompt), prompt, len(response)) for prompt, response in texts]
        order = np.array(sorted(range(len(texts)), key=keys.__getitem__), dtype=np.int64)
        cut = _packed_passes([texts[index] for index in order], budget)
    for part in cut:
        yield order[part]
        PROGRESS.advance()


def _packed_passes(texts: Sequence[Text], tokens: int) -> Iterator[slice]:
    """Cuts texts in order into passes within a number of tokens, a prompt counted once among those that have it."""
    begin = total = 0
    for index, (prompt, response) in enumerate(texts):
        shared = index > begin and texts[index - 1][0] == prompt
        total += len(response) + (0 if shared else len(prompt))
        if index > begin and total > tokens:
            yield slice(begin, index)
            begin, total = index, len(prompt) + len(response)
    if texts:
        yield slice(begin, len(texts))


def _columns(mask: Tensor) -> Tensor:
    """Columns of the true entries, row after row. [R, V] -> [n]"""
    if mask.device.type != "cpu":
        return mask.nonzero()[:, 1]
    return torch.from_numpy(np.nonzero(mask.numpy())[1])  # twice as fast on the host


def _distinct_supports(batch: PackedBatch, supports: Sequence[Support]) -> list[Support]:
    """One support for each of the different texts. `batch` is on the host."""
    first = {text: position for position, text in reversed(list(enumerate(batch.copies.tolist())))}
    return [supports[first[text]] for text in range(batch.texts)]


def _plain_head(logits: Tensor, target: Tensor, support: SupportTable | None) -> tuple[Tensor, Tensor | None]:
    """The same as `response_log_probs`, from the whole matrix of logits [R, V]."""
    log_softmax = torch.log_softmax(logits.float(), dim=-1)
    tokens = log_softmax.gather(-1, target[:, None])[:, 0]
    return tokens, None if support is None else support.log_mass(log_softmax)
