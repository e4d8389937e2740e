"""Passes of a few sizes: rows, lines and tables are filled up, so that a pass is as large as one that came before.

Filling is computed but never read: it belongs to no given text, so it has no loss and no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pddpo_ray.training.fit import PairPass
from pddpo_ray.training.passes.log_probs import TextPass
from pddpo_ray.training.passes.packing import Lines, PackedBatch, Segments
from pddpo_ray.training.passes.response_head import SupportTable

WASTE = 1.5
"""Tokens of a filled pass per token of the given one, at most."""


class PassSizes(NamedTuple):
    """How large a packed pass is; passes of other numbers of texts have nothing in common."""

    texts: int
    tokens: int
    responses: int
    longest: int
    """Tokens of a line."""
    words: int
    """Supported words of a response token, of the one with the most."""
    places: int
    """Lines, or segments' keys, that a token of the row is in, of the one with the most."""
    keys: int
    """Keys of all segments, where there are no lines."""

    @classmethod
    def of(cls, pair_pass: PairPass) -> PassSizes:
        batch, support = pair_pass.texts.batch, pair_pass.texts.support
        assert isinstance(batch, PackedBatch)
        words = 0 if support is None else support.word.shape[1]
        lines = batch.lines
        keys = len(lines.source) if isinstance(lines, Segments) else 0
        tokens, places = lines.places.shape
        return cls(len(batch), tokens, len(batch.target), lines.longest, words, places, keys)

    def suits(self, other: PassSizes) -> bool:
        """Whether the other's texts fit in, without much filling."""
        return self._is_near(other) and all(size >= needed for size, needed in zip(self, other, strict=True))

    def covering(self, others: Iterable[PassSizes]) -> PassSizes:
        """Sizes, somewhat rounded up, that hold this pass and those of the others that are about as large."""
        near = [self, *(other for other in others if other._is_near(self))]
        tokens, responses, longest, words, places, keys = (max(column) for column in list(zip(*near, strict=True))[1:])
        filled_words, filled_keys = _up(words, 16) if words else 0, _up(keys, 256) if keys else 0
        places = max(places, 2)
        return PassSizes(
            self.texts, _up(tokens, 256), _up(responses, 128), _up(longest, 32), filled_words, places, filled_keys
        )

    def _is_near(self, other: PassSizes) -> bool:
        return self.texts == other.texts and other.tokens <= self.tokens * WASTE and self.tokens <= other.tokens * WASTE


def _up(size: int, smallest: int) -> int:
    """The next multiple of `smallest`, or of an eighth of the power of two below, if that is more."""
    step = max(smallest, (1 << (size - 1).bit_length() - 1) // 8) if size > 1 else smallest
    return -(-size // step) * step


def filled(pair_pass: PairPass, sizes: PassSizes) -> PairPass:
    """The pass with its packed texts filled up to these sizes."""
    batch, support = pair_pass.texts.batch, pair_pass.texts.support
    assert isinstance(batch, PackedBatch)
    table = None if support is None else _filled_table(support, sizes)
    return replace(pair_pass, texts=TextPass(_filled_row(batch, sizes), table))


def _filled_row(batch: PackedBatch, sizes: PassSizes) -> PackedBatch:
    """As many lines as texts were given, and a text more, to which the filling among the responses belongs."""

    def row(column: Tensor) -> Tensor:
        return pad(column, (0, sizes.tokens - column.shape[-1]))

    def response(column: Tensor, value: int = 0) -> Tensor:
        return pad(column, (0, sizes.responses - len(column)), value=value)

    lines = batch.lines
    return PackedBatch(
        ids=row(batch.ids),
        positions=row(batch.positions),
        lines=_filled_segments(lines, sizes) if isinstance(lines, Segments) else _filled_lines(lines, sizes),
        slot=response(batch.slot),
        predictor=response(batch.predictor),
        text=response(batch.text, sizes.texts),
        target=response(batch.target),
        times=response(batch.times),
        copies=batch.copies,
        texts=sizes.texts + 1,
    )


def _filled_lines(lines: Lines, sizes: PassSizes) -> Lines:
    def place(column: Tensor) -> Tensor:
        # counted in longer lines
        return torch.where(
            column < 0, -1, column.div(lines.longest, rounding_mode="floor") * sizes.longest + column % lines.longest
        )

    own_places = pad(place(lines.own), (0, sizes.tokens - len(lines.own)))
    gather = pad(lines.gather, (0, sizes.longest - lines.longest, 0, sizes.texts - len(lines.gather)))
    return Lines(gather, own_places, _filled_places(place(lines.places), sizes))


def _filled_segments(segments: Segments, sizes: PassSizes) -> Segments:
    """The filling gets segments of its own: a kernel leaves what no segment covers as the memory was, perhaps NaN."""
    tokens, keys = len(segments.places), len(segments.source)
    filling = sizes.tokens - tokens
    # a prompt and an answer a text, and as many as a row of nothing but filling would need
    more = 2 * sizes.texts + -(-sizes.tokens // sizes.longest) - (len(segments.queries) - 1)
    ends = (torch.arange(1, more + 1) * sizes.longest).clamp_max(filling)
    source = torch.cat([segments.source, torch.arange(tokens, sizes.tokens)])
    return Segments(
        torch.cat([segments.queries, tokens + ends]),
        torch.cat([segments.keys, keys + ends]),
        pad(source, (0, sizes.keys + sizes.tokens - len(source))),
        _filled_places(segments.places, sizes),
        sizes.longest,
    )


def _filled_places(places: Tensor, sizes: PassSizes) -> Tensor:
    return pad(places, (0, sizes.places - places.shape[1], 0, sizes.tokens - len(places)), value=-1)


def _filled_table(support: SupportTable, sizes: PassSizes) -> SupportTable:
    more = sizes.responses - len(support.count)
    words = pad(support.word, (0, sizes.words - support.word.shape[1], 0, more))
    return SupportTable(words, pad(support.count, (0, more), value=1))
