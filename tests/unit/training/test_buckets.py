"""Passes that are filled up to shared shapes, and records that travel as one tensor per type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.training.batches import texts_of
from pddpo_ray.training.buckets import bucket, filled
from pddpo_ray.training.log_probs import ResponseScorer, Support
from pddpo_ray.training.pair_pass import PairLoss, PairPass
from pddpo_ray.training.transfer import flat_of, over, shape_of
from tests.support.tiny_language_model import tiny_llama

OBJECTIVE = Objective("reward", PolicyVersion(0, "reference", "", ""), 0.1)


def rows(count: int, seed: int) -> list[PairRow]:
    """Pairs of random words; the second has the first one's prompt, the last one's answers are the same text."""
    rng = np.random.default_rng(seed)
    words = [tuple(rng.integers(3, 30, size).tolist()) for size in rng.integers(3, 40, 3 * count)]
    made = [PairRow(f"r{i}", words[3 * i], words[3 * i + 1], words[3 * i + 2], weight=0.5 + i) for i in range(count)]
    made[1] = PairRow("r1", made[0].prompt, words[4], words[5])
    made[-1] = PairRow("last", words[-3], words[-1], words[-1])
    return made


def pass_of(scorer: ResponseScorer, given: list[PairRow], supports: bool = True) -> PairPass:
    texts = texts_of(given)
    rng = np.random.default_rng(len(texts))
    own = []
    for _, answer in texts:
        counts = rng.integers(1, 21, len(answer))
        own.append(Support(counts, np.concatenate([rng.permutation(30)[:count] for count in counts])))
    return PairPass.of(
        scorer,
        given,
        base=(-10.0 - rng.random(len(texts))).tolist(),
        margins=None,
        # of equal texts the first one's, as a fit gives them
        supports=[own[texts.index(text)] for text in texts] if supports else None,
        whole=(7.0, 300.0, 1.0),
    )


@pytest.mark.parametrize("supports", [True, False])
def test_filling_changes_neither_loss_nor_gradient(supports: bool) -> None:
    scorer = ResponseScorer(tiny_llama(3).double(), "packed")
    given = pass_of(scorer, rows(5, seed=1), supports)
    found = []
    for one in (given, filled(given)):
        scorer.zero_grad()
        loss, said = PairLoss(scorer, OBJECTIVE, support_weight=0.5)(one)
        loss.backward()  # type: ignore[no-untyped-call]
        found.append([loss.detach(), said, *(parameter.grad for parameter in scorer.parameters())])
    assert shape_of(given) != shape_of(filled(given))
    for before, after in zip(*found, strict=True):
        torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)


def test_passes_of_about_one_size_share_a_shape() -> None:
    scorer = ResponseScorer(tiny_llama(3), "packed")
    own = [pass_of(scorer, rows(40, seed)) for seed in range(30)]
    assert len({shape_of(given) for given in own}) == 30
    assert len({shape_of(filled(given)) for given in own}) <= 6


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_bucket_holds_its_sizes_and_wastes_little(parts: int) -> None:
    sizes = np.arange(1, 5000)
    buckets = np.array([bucket(int(size), 16, parts) for size in sizes])
    assert (buckets >= sizes).all()
    assert (buckets[sizes > 16] < (1 + 1 / parts) * sizes[sizes > 16]).all()
    assert len(set(buckets.tolist())) <= 1 + parts * 9
    np.testing.assert_array_equal([bucket(int(size), 16, parts) for size in buckets], buckets)


def test_a_pass_computes_the_same_on_tensors_that_others_were_copied_into() -> None:
    """What a recorded pass relies on: all that it reads is in its flat tensors."""
    scorer = ResponseScorer(tiny_llama(3), "packed")
    first, second = (filled(pass_of(scorer, rows(40, seed))) for seed in (0, 0))
    assert shape_of(first) == shape_of(second)
    second = over(second, {dtype: flat.clone() for dtype, flat in flat_of(second, torch.device("cpu")).items()})
    second.weights.mul_(3.0)
    second.texts.batch.ids.copy_((second.texts.batch.ids + 1) % 30)
    loss = PairLoss(scorer, OBJECTIVE, support_weight=0.5)
    expected = [tensor.detach() for tensor in loss(second)]
    flats = flat_of(first, torch.device("cpu"))
    view = over(first, flats)
    for dtype, flat in flat_of(second, torch.device("cpu")).items():
        flats[dtype].copy_(flat)
    for found, wanted in zip(loss(view), expected, strict=True):
        torch.testing.assert_close(found.detach(), wanted)
