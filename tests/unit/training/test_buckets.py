"""Passes that are filled up to shared shapes, and records that travel as one tensor per type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.training.batches import flat_of, over, texts_of
from pddpo_ray.training.fit import PairLoss, PairPass
from pddpo_ray.training.passes.buckets import WASTE, PassSizes, filled
from pddpo_ray.training.passes.log_probs import ResponseScorer, Support
from tests.support.segment_attention import varlen_attn
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


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("supports", [True, False])
def test_filling_changes_neither_loss_nor_gradient(
    supports: bool, ragged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    monkeypatch.setattr("pddpo_ray.training.passes.log_probs.attends_ragged", lambda device, dtype: ragged)
    scorer = ResponseScorer(tiny_llama(3).double(), "packed")
    given = pass_of(scorer, rows(5, seed=1), supports)
    sizes = PassSizes.of(given).covering([])
    assert sizes > PassSizes.of(given)
    found = []
    for one in (given, filled(given, sizes)):
        scorer.zero_grad()
        loss, said = PairLoss(scorer, OBJECTIVE, support_weight=0.5)(one)
        loss.backward()  # type: ignore[no-untyped-call]
        found.append([loss.detach(), said, *(parameter.grad for parameter in scorer.parameters())])
    for before, after in zip(*found, strict=True):
        torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_passes_of_about_one_size_need_few_sizes_that_waste_little() -> None:
    scorer = ResponseScorer(tiny_llama(3), "packed")
    own = [PassSizes.of(pass_of(scorer, rows(count, seed))) for seed in range(30) for count in (10, 40)]
    assert len(set(own)) == 60
    made: list[PassSizes] = []
    for needed in own:
        suited = [sizes for sizes in made if sizes.suits(needed)]
        sizes = min(suited) if suited else needed.covering(made)
        assert all(had >= wanted for had, wanted in zip(sizes, needed, strict=True))
        assert sizes.tokens <= WASTE * 1.25 * max(needed.tokens, 256)
        assert sizes.texts == needed.texts
        made += [] if suited else [sizes]
    assert len(made) <= 12


def test_a_pass_computes_the_same_on_tensors_that_others_were_copied_into() -> None:
    """What a recorded pass relies on: all that it reads is in its flat tensors."""
    scorer = ResponseScorer(tiny_llama(3), "packed")
    both = [pass_of(scorer, rows(40, seed)) for seed in (0, 1)]
    sizes = PassSizes.of(both[0]).covering([PassSizes.of(both[1])])
    first, second = (filled(given, sizes) for given in both)
    loss = PairLoss(scorer, OBJECTIVE, support_weight=0.5)
    expected = [tensor.detach() for tensor in loss(second)]
    flats = flat_of(first, torch.device("cpu"))
    view = over(first, flats)
    for dtype, flat in flat_of(second, torch.device("cpu")).items():
        flats[dtype].copy_(flat)
    for found, wanted in zip(loss(view), expected, strict=True):
        torch.testing.assert_close(found.detach(), wanted)
