"""The words at the end of a demo are those of the run: released policy, limit, certificate, truth, gap."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pddpo_ray.certificates.document import FILE, verified
from pddpo_ray.certificates.outcome import Outcome
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.report.plain_words import known_of, plain_outcome, plain_progress, plain_round

TWIN = ("rounds=3", "explore.bonus=off", "explore.picks=4", "rollout.candidates=4", "explore.calibration=96")


def test_a_round_is_told_without_the_name_of_a_quantity() -> None:
    said = plain_round(2, 6, ["unsafe 4.3 ± 1.9 % (at most 5 %)"], {"exact/gap_policy": 0.606, "dual/multiplier": 1.0})
    assert said == "round 2 of 6: unsafe 4.3 ± 1.9 % (at most 5 %), 0.606 from the best possible model"
    assert plain_round(1, 6, [], {}) == "round 1 of 6: "


@pytest.mark.slow
def test_a_certified_run_is_told_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo's limit with log-linear policies: the same journal, certificate and truth, in seconds."""
    run = tmp_path / "run"
    with plain_progress(None) as progress:
        result = run_recipe(load("text-world-certified-twin", [*TWIN, "report.html=false"]), run, progress=progress)
    rounds = re.findall(r"^round (\d) of 3: unsafe .* from the best possible model$", capsys.readouterr().err, re.M)
    assert rounds == ["1", "2", "3"]
    counts = {name: result[f"labels_{name}"] for name in ("safety", "pairs", "scorers", "certificate")}
    assert result["labels_used"] == sum(counts.values()) + counts["pairs"], "a pair counts twice"
    assert counts["safety"] > counts["pairs"] > 0, "what its limit measures of single answers"
    outcome, certificate = Outcome.from_json(result["outcome"]), verified(run / FILE)
    with open_folder(run) as journal:
        metrics = journal.metrics()
    known = known_of(result, outcome, metrics)
    assert known is not None
    assert outcome.round is not None
    assert known.rate == pytest.approx(0.05 + metrics[outcome.round]["exact/g_policy"])
    assert (known.gap, known.reference_gap) == (metrics[outcome.round]["exact/gap_policy"], result["gap_reference"])
    lines = dict(plain_outcome(result, certificate, known))
    assert list(lines) == ["released", "limit", "certificate", "truth", "gap", "effort"]
    upper = certificate["findings"]["unsafe"]["upper"]
    printed = re.search(r"at most ([\d.]+) % of its answers are unsafe", lines["certificate"])
    assert printed is not None
    assert 100 * upper <= float(printed[1]) * (1 + 1e-9) <= 100 * upper + 0.01
    assert f"exactly {100 * known.rate:.3g} % are unsafe" in lines["truth"]
    assert f"the model of round {outcome.round} of 3" in lines["released"]
    assert not re.search(r"[λβρπ⊥±]|multiplier|policy", " ".join(lines.values())), "symbols and words of the field"
    without = dict(plain_outcome(result | {"outcome": result["outcome"] | {"policy": None}}, None, None))
    assert without["released"].startswith("no model: ")
