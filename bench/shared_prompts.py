"""G4: a training pass over pairs whose prompt stands once in the packed row, against the same row with it twice.

Twice is made by another first token in the second text: same lengths, same code, nothing to share. Both sides must find
the log-probabilities that a padded batch without packing gives for their own texts before anything is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from bench.device import wall_clock
from bench.ratio import Ratio, interleaved
from bench.workload import Shape
from pddpo_ray.training.batches import Text
from pddpo_ray.training.passes.log_probs import ResponseScorer


def run(
    shape: Shape, lengths: tuple[int, int], repeats: int = 5, name: str = "G4", *, pairs: int = 16, floor: float = 1.1
) -> Ratio:
    """Wall seconds of a forward and backward pass; `lengths` of a prompt and of each of its two answers."""
    scorer = ResponseScorer(shape.build(0), "packed")
    once, twice = (texts(shape.vocabulary, lengths, pairs, shared=shared) for shared in (True, False))
    for own in (once, twice):
        assert_as_padded(scorer, own, shape.tolerance)
    return interleaved(
        name,
        f"training pass, prompts of {lengths[0]} and answers of {lengths[1]} tokens: prompt twice / once",
        partial(training_pass, scorer, twice),
        partial(training_pass, scorer, once),
        repeats,
        floor=floor,
        unit=("pairs", pairs),
        clock=wall_clock(shape.device),
    )


def texts(vocabulary: int, lengths: tuple[int, int], pairs: int, *, shared: bool) -> list[Text]:
    """Both texts of every pair, random words; the second one's prompt is the first one's, or differs in one word."""
    prompt, answer = lengths
    words = np.random.default_rng([4, *lengths]).integers(5, vocabulary, (pairs, prompt + 2 * answer)).tolist()
    made: list[Text] = []
    for line in words:
        first, second = line[prompt : prompt + answer], line[prompt + answer :]
        other = line[:prompt] if shared else [3, *line[1:prompt]]
        made += [(tuple(line[:prompt]), tuple(first)), (tuple(other), tuple(second))]
    return made


def assert_as_padded(scorer: ResponseScorer, own: Sequence[Text], tolerance: float) -> None:
    """Raises RuntimeError if the packed row and a padded batch differ."""
    with torch.no_grad():
        padded, packed = ResponseScorer(scorer.model, "plain").log_probs(own)[0], scorer.log_probs(own)[0]
    if not torch.allclose(padded, packed, rtol=tolerance):
        raise RuntimeError(f"the packed row does not compute the same: {packed} and {padded}")


def training_pass(scorer: ResponseScorer, own: Sequence[Text]) -> None:
    scorer.zero_grad(set_to_none=True)
    scorer.log_probs(own)[0].sum().backward()  # type: ignore[no-untyped-call]
