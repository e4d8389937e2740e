"""Passes of a few shapes: rows, lines and tables are filled up, so that a pass looks like one that came before.

Filling is computed and read by nobody: it is in no text that was given, so it has no loss and no gradient.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.nn.functional import pad

from pddpo_ray.training.log_probs import TextPass
from pddpo_ray.training.packing import Lines, PackedBatch
from pddpo_ray.training.pair_pass import PairPass
from pddpo_ray.training.response_head import SupportTable

TOKENS, RESPONSES, LONGEST, WORDS = 256, 128, 32, 16
"""The smallest sizes of a row, of its response tokens, of a line and of a row of supported words."""


def bucket(size: int, smallest: int, parts: int = 4) -> int:
    """The next size of: smallest, then `parts` sizes from each power of two to the next, in equal steps."""
    if size <= smallest:
        return smallest
    step = max(1, 1 << (size - 1).bit_length() - 1) // parts or 1
    return -(-size // step) * step


def filled(given: PairPass) -> PairPass:
    """The pass with its packed texts filled up to a shape that others share."""
    batch, support = given.texts.batch, given.texts.support
    assert isinstance(batch, PackedBatch)
    responses = bucket(len(batch.target), RESPONSES)
    table = None if support is None else _filled_table(support, responses)
    return replace(given, texts=TextPass(_filled_row(batch, responses), table))


def _filled_row(batch: PackedBatch, responses: int) -> PackedBatch:
    """As many lines as texts were given, and a text more, to which the filling among the responses belongs."""
    lines, given = batch.lines, len(batch.copies)
    tokens = bucket(batch.ids.shape[1], TOKENS)
    count, longest = lines.gather.shape
    gather = pad(lines.gather, (0, bucket(longest, LONGEST, 2) - longest, 0, given - count))

    def row(column: Tensor) -> Tensor:
        return pad(column, (0, tokens - column.shape[-1]))

    def response(column: Tensor, value: int = 0) -> Tensor:
        return pad(column, (0, responses - len(column)), value=value)

    return PackedBatch(
        ids=row(batch.ids),
        positions=row(batch.positions),
        lines=Lines(gather, row(lines.line), row(lines.column)),
        slot=response(batch.slot),
        predictor=response(batch.predictor),
        text=response(batch.text, given),
        target=response(batch.target),
        times=response(batch.times),
        copies=batch.copies,
        texts=given + 1,
    )


def _filled_table(support: SupportTable, responses: int) -> SupportTable:
    more, width = responses - len(support.count), support.word.shape[1]
    words = pad(support.word, (0, bucket(width, WORDS, 1) - width, 0, more))
    return SupportTable(words, pad(support.count, (0, more), value=1))
