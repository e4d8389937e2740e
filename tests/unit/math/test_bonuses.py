"""Bonuses, weights and features of exploration, and a table's engine: edges, each with its value by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_lab.bonuses import ThompsonBonus
from pddpo_lab.methods.linear_scores import with_constant
from pddpo_lab.verify.formulas import theory_amplitude
from pddpo_lab.worlds.tabular.engine import decoded
from pddpo_lab.worlds.tabular.parts import TabularEngine
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.errors import RunError
from pddpo_ray.exploration.alternatives import EllipticalBonus, NoBonus
from pddpo_ray.exploration.explorer import OptimisticExplorer
from pddpo_ray.exploration.features import fit_whitening
from pddpo_ray.exploration.resampling import bonus_only_base, temper
from pddpo_ray.records import CandidateSet, Decoding, Response
from pddpo_ray.storage.artifacts import ArtifactStore

WORLD = trap_world()


def test_the_theorys_amplitude_by_hand() -> None:
    """zeta = 4 + ... at z = 0 is exactly 4: 4 sqrt(16 (6 + log(2 * 5 * 4 / .1))); the second term is N gamma z^2."""
    at_zero = theory_amplitude(score_max=0.0, cells=6, rounds=5, pairs_per_round=3, gamma=2.0, delta=0.1)
    assert at_zero == pytest.approx(16.0 * math.sqrt(6 + math.log(400.0)))
    zeta = math.exp(1.0) + math.exp(-1.0) + 2.0
    at_one = theory_amplitude(score_max=1.0, cells=6, rounds=5, pairs_per_round=3, gamma=2.0, delta=0.1)
    assert at_one == pytest.approx(4.0 * math.sqrt(zeta**2 * (6 + math.log(400.0)) + 6.0))


def test_equal_weights_at_exactly_the_floor_keep_the_whole_bonus() -> None:
    assert temper(np.zeros(2), np.zeros(2), ess_floor=2.0) == 1.0
    base = bonus_only_base(np.array([True, False]), 0.25)
    assert np.exp(base).tolist() == pytest.approx([1.0, 0.25])


def test_picks_and_distances_use_the_difference_of_a_pair() -> None:
    """Lambda = I/s0^2 + w v v' with v = chosen - other, for reward and cost; max_info adds both inverses."""
    chosen, other, probe = np.array([[1.0, 0.5], [0.2, -1.0], [0.7, 0.7]])
    for model in (EllipticalBonus(2, k=1.3, s0=1.7, weight=0.2), ThompsonBonus(2, k=1.3, s0=1.7, weight=0.2)):
        assert (model.k, model.s0, model.weight) == (1.3, 1.7, 0.2)
        model.start_batch(np.random.default_rng(0))
        model.picked("x", chosen, other)
        matrix = np.eye(2) / 1.7**2 + 0.2 * np.outer(chosen - other, chosen - other)
        expected = math.sqrt(2.0 * probe @ np.linalg.inv(matrix) @ probe)
        assert model.distances(probe[None]) == pytest.approx([expected])
    none = NoBonus()
    assert [values.tolist() for values in none.bonuses("x", np.ones((3, 2)))] == [[0.0] * 3, [0.0] * 3]
    assert none.distances(np.array([[3.0, 4.0]])).tolist() == [5.0]
    assert none.information == 0.0


def explorer(kind: str, weight: float = 0.25) -> OptimisticExplorer:
    def features(responses: object) -> np.ndarray:
        return np.array([[float(r.token_ids[0] == y) for y in range(8)] for r in responses])  # type: ignore[attr-defined]

    return OptimisticExplorer(
        features=features, baseline=WORLD.baseline_pool(4), beta=0.1, multiplier=lambda: 0.5, seed=1, bonus=kind,  # type: ignore[arg-type]
        k=1.1, s0=1.9, weight=weight,
    )  # fmt: skip


def test_an_explorer_reports_its_five_means_and_what_it_skipped() -> None:
    prompt = WORLD.prompts[0]
    responses = tuple(Response(f"r{y}", prompt, (y,), f"{y}", 1, 0) for y in range(8))
    log = tuple(np.log(WORLD.oracle.reference[0]).tolist())
    one = explorer("elliptical")
    one.choose([CandidateSet(prompt, responses, log, log)])
    names = {"mean_bonus_reward", "mean_bonus_cost", "saturation", "tau", "ess", "pairs", "skipped", "logdet"}
    assert set(one.metrics) == {f"explore/{name}" for name in names}
    assert (one.metrics["explore/pairs"], one.metrics["explore/skipped"]) == (1.0, 0.0)
    assert one.metrics["explore/saturation"] == 1.0
    for kind in ("elliptical", "thompson"):
        model = explorer(kind, weight=0.125)._uncertainty
        assert (model.k, model.s0, model.weight) == (1.1, 1.9, 0.125)  # type: ignore[attr-defined]


def test_whitening_is_done_in_double_precision_around_the_mean() -> None:
    """Unit covariance over q even of 32-bit rows far from zero."""
    rows: Any = (np.random.default_rng(2).normal(size=(400, 3)) * [1.0, 2.0, 5.0] + 100.0).astype(np.float32)
    whitening = fit_whitening(rows, 3, seed=0, norm_clip=100.0)
    assert whitening.mean.dtype == whitening.projection.dtype == np.float64
    np.testing.assert_allclose(np.cov(whitening.apply(rows).T) * 3, np.eye(3), atol=1e-9)
    pool = next(iter(WORLD.baseline_pool(4).values()))[:3]
    extended = with_constant(lambda responses: np.zeros((len(responses), 2)))(pool)
    assert extended.tolist() == [[0.0, 0.0, 1.0]] * 3


def test_an_engine_without_a_version_says_so(tmp_path: Path) -> None:
    engine = TabularEngine(WORLD, ArtifactStore(tmp_path / "store"))
    assert (engine.name, engine.version) == ("tabular-0", -1)
    with pytest.raises(RunError, match="engine tabular-0: no version was delivered"):
        engine.sample(WORLD.prompts[:1], [1], 2, Decoding())
    everything = decoded(np.log([0.5, 0.25, 0.25]), Decoding(temperature=1.0, top_p=1.0))
    assert everything.tolist() == pytest.approx([0.5, 0.25, 0.25])
