"""Steps of a fit against arithmetic by hand, on a model whose log-probabilities are its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pddpo_ray.config import FitConfig
from pddpo_ray.contracts import FitSettings
from pddpo_ray.errors import RunError
from pddpo_ray.records import LossOptimism, Objective, PairRow, PolicyVersion
from pddpo_ray.training.batches import Limit, Text, kept_apart, minibatches
from pddpo_ray.training.fit import FrozenColumns, PairLoss, PairPass, Shard, micro_batch_limit, run_fit, schedule_factor
from pddpo_ray.training.fit_watch import FitCurve, last_fifth
from pddpo_ray.training.passes.log_probs import Support
from pddpo_ray.training.passes.memory import Sizes, layer_bytes

ALONE = Shard()
BASE = PolicyVersion(0, "reference", "0" * 64, "reference")
ROWS = [
    PairRow(f"r{i}", (i % 2,), tuple(range(5, 6 + i)), (3, 2), weight=weight)
    for i, weight in enumerate((1.0, 2.5, 0.5, 1.0, 3.0))
]
TEXTS: list[Text] = [(row.prompt, answer) for row in ROWS for answer in (row.chosen, row.rejected)]
KNOWN = list(dict.fromkeys(TEXTS))
SUPPORTS = {text: Support(np.ones(len(text[1]), dtype=np.int64), np.zeros(len(text[1]))) for text in KNOWN}


@dataclass(frozen=True)
class Chosen:
    """Places of texts in KNOWN."""

    places: Tensor
    supported: bool


class Words(nn.Module):
    """log pi of each known text, and the log mass on its support at each of its tokens, are parameters."""

    def __init__(self) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(3)
        self.log_pi = nn.Parameter(-10.0 - 5.0 * torch.rand(len(KNOWN), generator=draws, dtype=torch.float64))
        self.mass = nn.Parameter(-torch.rand(len(KNOWN), generator=draws, dtype=torch.float64))
        self.passes: list[int] = []
        self.again = -1

    number_type = torch.float64

    def to_read(self, texts: Sequence[Text], supports: Sequence[Support] | None = None) -> Chosen:
        self.passes.append(len(texts))
        assert supports is None or list(supports) == [SUPPORTS[text] for text in texts]
        return Chosen(torch.tensor([KNOWN.index(text) for text in texts]), supports is not None)

    def log_probs_of(self, given: Chosen) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if not given.supported:
            return self.log_pi[given.places], None, None
        masses = torch.cat([self.mass[index].expand(len(KNOWN[index][1])) for index in given.places.tolist()])
        return self.log_pi[given.places], masses, torch.ones_like(masses)

    def log_probs(self, texts: Sequence[Text]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        return self.log_probs_of(self.to_read(texts))

    def sizes(self, texts: Sequence[Text], tokens: int) -> Sizes:
        return Sizes(layers=3, width=4, layer=544.0, input=32.0)

    def recompute(self, layers: int) -> None:
        self.again = layers


class Plain:
    """Plain gradient steps; keeps the gradients and the rates that it was given."""

    def __init__(self, shard: Shard = ALONE, *, moves: bool = True, broken: int = -1) -> None:
        self.scorer, self.shard, self._moves, self._broken = Words(), shard, moves, broken
        self.gradients: list[tuple[Tensor, Tensor]] = []
        self.rates: list[float] = []

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def accumulate(self, loss: PairLoss, given: PairPass) -> Tensor:
        value, said = loss(given)
        self.backward(value)
        return said

    def update(self, learning_rate: float) -> float:
        self.rates.append(learning_rate)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.scorer.parameters()]
        self.gradients.append((parts[0], parts[1]))
        with torch.no_grad():
            for parameter, gradient in zip(self.scorer.parameters(), parts, strict=True):
                parameter.sub_((learning_rate if self._moves else 0.0) * gradient)
                parameter.grad = None
        if len(self.rates) - 1 == self._broken:
            return math.inf
        return float(torch.cat(parts).norm())

    def reduce_sum(self, values: Tensor) -> Tensor:
        return values


def columns() -> FrozenColumns:
    return FrozenColumns({text: -12.0 - 0.25 * index for index, text in enumerate(KNOWN)}, SUPPORTS)


def settings(**fields: object) -> FitSettings:
    plain = {"steps": 6, "batch_pairs": 3, "learning_rate": 0.5, "support": 0.0}
    return FitSettings(**(plain | fields))  # type: ignore[arg-type]


def fit(
    engine: Plain, objective: Objective, chosen: FitSettings, optimism: LossOptimism | None = None
) -> dict[str, float]:
    return run_fit(engine, objective, ROWS, columns(), chosen, 4, optimism).as_metrics()  # type: ignore[arg-type]


def by_hand(
    objective: Objective, chosen: FitSettings, alpha: float = 0.0, baseline: Sequence[Text] = ()
) -> tuple[list[float], list[float], list[float], list[np.ndarray], list[float], list[float], list[float]]:
    """Losses, accuracies, norms, gradients, mass off the support and log ratios of better and of worse answers of every
    step, in numpy, row by row."""
    words, base = Words(), columns().base_log_probs
    log_pi, mass = (parameter.detach().numpy().copy() for parameter in words.parameters())
    scale = 1.0 if objective.multiplier is None else objective.multiplier
    rate = 1.0 if objective.multiplier is None else min(1.0, objective.multiplier)
    mean_weight = np.mean([row.weight for row in ROWS])
    answers = list(minibatches(len(baseline), chosen.steps, chosen.batch_pairs, 4)) if baseline else []
    losses, accuracies, norms, gradients, off, better, worse = [], [], [], [], [], [], []
    groups = [row.prompt for row in ROWS] if objective.values else None
    for step, batch in enumerate(minibatches(len(ROWS), chosen.steps, chosen.batch_pairs, 4, groups)):
        slope, slope_of_mass = np.zeros(len(KNOWN)), np.zeros(len(KNOWN))
        loss = accuracy = outside = up = down = 0.0
        pairs = len(batch) * mean_weight
        tokens = sum(len(ROWS[i].chosen) + len(ROWS[i].rejected) for i in batch)
        for i in batch:
            row, margin = ROWS[i], objective.margins[i] if objective.margins else 0.0
            a, b = KNOWN.index((row.prompt, row.chosen)), KNOWN.index((row.prompt, row.rejected))
            ratios = [log_pi[a] - base[KNOWN[a]], log_pi[b] - base[KNOWN[b]]]
            difference = ratios[0] - ratios[1]
            if objective.values and margin > 0:
                ratios.reverse()
            up, down = up + row.weight * ratios[0] / pairs, down + row.weight * ratios[1] / pairs
            u = objective.temperature * difference + margin
            if objective.values:
                loss += row.weight * u**2 / pairs
                accuracy += row.weight * ((difference > 0) == (margin < 0)) / pairs
                pull = -scale * row.weight * 2 * u * objective.temperature / pairs
            else:
                loss += row.weight * math.log1p(math.exp(-u)) / pairs
                accuracy += row.weight * (difference > 0) / pairs
                pull = scale * row.weight * objective.temperature / (1.0 + math.exp(u)) / pairs
            slope[a] -= pull
            slope[b] += pull
            for text in (a, b):
                outside += len(KNOWN[text][1]) * (1.0 - math.exp(mass[text])) / tokens
                slope_of_mass[text] -= chosen.support * len(KNOWN[text][1]) / tokens
        for index in answers[step] if baseline else []:
            slope[KNOWN.index(baseline[index])] += scale * alpha / len(answers[step])
        if chosen.support == 0:
            slope_of_mass[:] = outside = 0.0
        losses.append(loss)
        accuracies.append(accuracy)
        off.append(outside)
        better.append(up)
        worse.append(down)
        gradients.append(np.concatenate([slope, slope_of_mass]))
        norms.append(float(np.linalg.norm(gradients[-1])))
        step_size = chosen.learning_rate * rate * schedule_factor(chosen, step)
        log_pi -= step_size * slope
        mass -= step_size * slope_of_mass
    return losses, accuracies, norms, gradients, off, better, worse


OBJECTIVES = {
    "reward": Objective("reward", BASE, 0.3),
    "margins": Objective("reward", BASE, 0.3, margins=(0.5, -1.0, 2.0, 0.0, -0.25)),
    "cost": Objective("cost", BASE, 0.4, multiplier=0.5),
    "large multiplier": Objective("cost", BASE, 0.1, multiplier=3.0),
    "values": Objective("cost", BASE, 0.2, multiplier=0.5, margins=(0.5, -0.9, 0.2, 0.1, -0.25), values=True),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("support", [0.0, 0.7])
def test_every_step_of_a_fit_is_that_of_the_sum_over_its_rows(name: str, support: float) -> None:
    objective, chosen = OBJECTIVES[name], settings(support=support)
    engine = Plain()
    found = fit(engine, objective, chosen)
    losses, accuracies, norms, gradients, off, better, worse = by_hand(objective, chosen)
    for one, other in zip(engine.gradients, gradients, strict=True):
        np.testing.assert_allclose(np.concatenate(one), other, atol=1e-12)
    assert found == pytest.approx(
        {
            "fit/loss": losses[-1],
            "fit/loss_at_start": losses[0],
            "fit/accuracy": np.mean(accuracies),
            "fit/gradient_norm": np.mean(norms),
            "fit/off_support_per_token": np.mean(off),
            "fit/steps": 6.0,
            "fit/rows": 5.0,
            "fit/better": better[-1],
            "fit/worse": worse[-1],
        },
        rel=1e-12,
    )
    assert 0.0 < found["fit/accuracy"] < 1.2
    assert (found["fit/off_support_per_token"] > 0.1) is (support > 0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_cost_fits_rate_falls_with_a_multiplier_below_1(name: str) -> None:
    engine, chosen = Plain(moves=False), settings(warmup=0.5, learning_rate=0.2)
    fit(engine, OBJECTIVES[name], chosen)
    factor = 0.5 if name in ("cost", "values") else 1.0
    assert engine.rates == pytest.approx([factor * 0.2 * f for f in (1 / 3, 2 / 3, 1.0, 1.0, 2 / 3, 1 / 3)])


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("micro_pairs", [1, 2, None])
def test_passes_and_ranks_add_up_to_the_step_of_the_whole_batch(ranks: int, micro_pairs: int | None) -> None:
    """Four ranks on three pairs: one rank has nothing and repeats a row with weight zero."""
    objective = OBJECTIVES["margins"]
    chosen = settings(steps=1, support=0.7, micro_pairs=micro_pairs)
    baseline = tuple(KNOWN[:3])
    gradient, sums = torch.zeros(2 * len(KNOWN), dtype=torch.float64), np.zeros(2)
    for rank in range(ranks):
        engine = Plain(Shard(rank, ranks), moves=False)
        found = fit(engine, objective, chosen, LossOptimism(0.3, baseline))
        gradient += torch.cat(engine.gradients[0])
        sums += [found["fit/loss"], found["fit/off_support_per_token"]]
        if micro_pairs is not None:
            assert max(engine.scorer.passes) <= 2 * micro_pairs
    losses, _, _, gradients, off, *_ = by_hand(objective, chosen, 0.3, baseline)
    np.testing.assert_allclose(gradient, gradients[0], atol=1e-12)
    assert sums == pytest.approx([losses[0], off[0]], rel=1e-12)


def test_the_baselines_answers_are_pushed_down_by_alpha_times_the_multiplier() -> None:
    """Four answers, three a step: every step's gradient has the share of its own three."""
    objective, chosen, baseline = OBJECTIVES["cost"], settings(), tuple(KNOWN[:4])
    engine = Plain()
    fit(engine, objective, chosen, LossOptimism(0.3, baseline))
    gradients = by_hand(objective, chosen, 0.3, baseline)[3]
    for one, other in zip(engine.gradients, gradients, strict=True):
        np.testing.assert_allclose(np.concatenate(one), other, atol=1e-12)


def test_answers_of_the_baseline_go_through_in_passes_of_the_asked_size() -> None:
    """Three pairs in passes of two texts a pair, then three answers: two and one; without a size all at once."""
    for micro_pairs, passes in ((2, [4, 2, 2, 1]), (None, [6, 3]), (3, [6, 3])):
        engine = Plain()
        chosen = settings(steps=1, micro_pairs=micro_pairs)
        fit(engine, OBJECTIVES["cost"], chosen, LossOptimism(0.3, tuple(KNOWN[:4])))
        assert engine.scorer.passes == passes


def test_a_gradient_that_is_no_number_names_its_step_and_stage() -> None:
    with pytest.raises(RunError, match="the gradient of step 3 of the cost stage is not finite"):
        fit(Plain(broken=2), OBJECTIVES["cost"], settings())


def test_the_loss_of_a_fit_is_the_mean_of_its_last_fifth() -> None:
    assert last_fifth([9.0]) == 9.0
    assert last_fifth([9.0, 8.0, 7.0, 6.0]) == 6.0
    assert last_fifth(list(range(10))) == 8.5
    assert last_fifth(list(range(14))) == 12.5


def prompts_of(count: int) -> list[PairRow]:
    return [PairRow(f"r{i}", (i % count,), (5, i), (3, i)) for i in range(3 * count)]


def test_whole_prompts_are_kept_apart_where_there_are_enough_of_them() -> None:
    """A quarter of 16 prompts are four, of 14 are 3.5, rounded four, of 12 three: too few to say anything."""
    for count, kept in ((16, 4), (14, 4), (12, 0)):
        rows = prompts_of(count)
        teach, apart = kept_apart(rows, 0.25, seed=3)
        assert sorted([*teach, *apart]) == list(range(len(rows)))
        assert len({rows[i].prompt for i in apart}) == kept
        assert not {rows[i].prompt for i in apart} & {rows[i].prompt for i in teach}
    assert len(kept_apart(prompts_of(16), 0.0, seed=3)[1]) == 0
    assert kept_apart(prompts_of(16), 0.25, 3)[1].tolist() == kept_apart(prompts_of(16), 0.25, 3)[1].tolist()
    assert kept_apart(prompts_of(16), 0.25, 3)[1].tolist() != kept_apart(prompts_of(16), 0.25, 4)[1].tolist()


class OneNumber:
    """A model whose only parameter is by how much every chosen answer became likelier: learning it too far is possible
    where the pairs that teach want more of it than those kept apart."""

    def __init__(self) -> None:
        self.scorer, self.shard = self, ALONE
        self.gain = torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.trace: list[float] = []

    number_type = torch.float64

    def to_read(self, texts: Sequence[Text], supports: object = None) -> Tensor:
        return torch.tensor([1.0 if answer[0] == 5 else 0.0 for _, answer in texts], dtype=torch.float64)

    def log_probs_of(self, given: Tensor) -> tuple[Tensor, None, None]:
        return self.gain * given, None, None

    def accumulate(self, loss: PairLoss, given: PairPass) -> Tensor:
        value, said = loss(given)
        self.backward(value)
        return said

    def look(self, loss: PairLoss, given: PairPass) -> Tensor:
        return loss(given)[1]

    def recompute(self, layers: int) -> None:
        return

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def update(self, learning_rate: float) -> float:
        gradient = self.gain.grad
        assert gradient is not None
        with torch.no_grad():
            self.gain -= learning_rate * gradient
        self.gain.grad = None
        self.trace.append(float(self.gain.detach()))
        return 1.0

    def reduce_sum(self, values: Tensor) -> Tensor:
        return values

    def each_weight(self) -> Iterator[tuple[str, Tensor]]:
        yield "gain", self.gain.detach()

    def load(self, weights: dict[str, Tensor]) -> None:
        with torch.no_grad():
            self.gain.copy_(weights["gain"])


def test_a_fit_ends_with_the_weights_that_were_best_on_the_pairs_kept_apart() -> None:
    """Squared losses: the pairs that teach want a gain of 3, the others one of 1, so the best look is the first whose
    gain is nearest to 1, and not the last. A mean over the pairs kept apart is (gain - 1)^2."""
    rows = prompts_of(16)
    teach, apart = kept_apart(rows, 0.25, seed=4)
    margins = [0.0] * len(rows)
    for places, wanted in ((teach, 3.0), (apart, 1.0)):
        for index in places:
            margins[index] = -wanted
    objective = Objective("cost", BASE, 1.0, multiplier=1.0, margins=tuple(margins), values=True)
    known = FrozenColumns({(row.prompt, answer): 0.0 for row in rows for answer in (row.chosen, row.rejected)}, {})
    engine = OneNumber()
    chosen = settings(steps=8, batch_pairs=36, learning_rate=0.1, warmup=0.0, schedule="constant", held_out=0.25)
    curve = run_fit(engine, objective, rows, known, chosen, 4)  # type: ignore[arg-type]
    gains = [3.0 * (1.0 - 0.8**step) for step in range(9)]
    assert engine.trace == pytest.approx(gains[1:])
    assert curve.held_out_step == [0, 2, 4, 6, 8]
    assert curve.held_out_loss == pytest.approx([(gains[step] - 1.0) ** 2 for step in (0, 2, 4, 6, 8)])
    assert curve.held_out_accuracy == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0])
    assert curve.best == 2
    assert float(engine.gain.detach()) == pytest.approx(gains[2])
    assert curve.better == pytest.approx(gains[:8])
    assert curve.worse == pytest.approx([0.0] * 8)
    metrics = curve.as_metrics()
    assert metrics["fit/held_out_start"] == pytest.approx(1.0)
    assert metrics["fit/held_out_loss"] == pytest.approx((gains[2] - 1.0) ** 2)
    assert metrics["fit/best_step"] == 2.0
    assert curve.as_json()["best"] == 2


def test_a_long_fit_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("pddpo_ray.training.fit_watch.PROGRESS.listener", lines.append)
    monkeypatch.setattr("pddpo_ray.training.progress.TELL_EVERY_S", 0.0)
    curve = FitCurve("policy-1", steps=60, rows=8)
    curve.add(loss=0.64251, accuracy=0.584, better=0.314, worse=-1.2, norm=1.0, off_support=0.0)
    assert lines == ["policy-1: step 1 of 60, loss 0.643, right 58 %, better answers +0.31 nats, worse -1.20"]


def test_a_budget_of_activations_is_turned_into_tokens_of_a_pass() -> None:
    """The longest pair has 8 tokens. 20 tokens fit: no layer is made again. 4 fit: all three are, and 8 must go in."""
    words = Words()
    sizes = words.sizes([], 0)
    for tokens, again in ((20, 0), (8, 0), (4, None), (0.5, 3)):
        chosen = settings(micro_pairs=7, activation_gib=layer_bytes(tokens, sizes) / 2**30)
        limit = micro_batch_limit(words, ROWS, chosen)  # type: ignore[arg-type]
        if again is None:
            assert 0 < words.again <= 3
            assert layer_bytes(8, sizes, words.again) <= layer_bytes(4, sizes) or words.again == 3
            assert limit == Limit(7, max(8, math.floor(layer_bytes(4, sizes) / layer_bytes(1.0, sizes, words.again))))
        else:
            assert words.again == again
            assert limit == Limit(7, max(8, int(tokens)))
    assert micro_batch_limit(words, ROWS, settings(micro_pairs=7)) == Limit(7, None)  # type: ignore[arg-type]
    assert words.again == 0
    assert micro_batch_limit(words, ROWS, settings()) == Limit(None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("linear", [1 / 3, 2 / 3, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [1 / 3, 2 / 3, 1.0, 1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)]),
        ("constant", [1 / 3, 2 / 3, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_learning_rates_rise_and_fall_step_by_step(schedule: str, factors: list[float]) -> None:
    chosen = FitConfig(steps=7, warmup=0.4, schedule=schedule)  # type: ignore[arg-type]
    assert [schedule_factor(chosen, step) for step in range(7)] == pytest.approx(factors)
    alone = FitConfig(steps=1, warmup=0.0, schedule=schedule)  # type: ignore[arg-type]
    assert schedule_factor(alone, 0) == 1.0
    without = FitConfig(steps=5, warmup=0.0, schedule=schedule)  # type: ignore[arg-type]
    assert [schedule_factor(without, step) for step in (0, 1)] == [1.0, 1.0]
