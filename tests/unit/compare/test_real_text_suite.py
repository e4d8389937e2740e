"""The suite on real text: no truth, so judges of its own; and what runs of one seed share there."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_lab.compare import tables
from pddpo_lab.compare.command import compare, run_here
from pddpo_lab.compare.page import render
from pddpo_lab.compare.suite import Suite, load_suite
from pddpo_ray.config import load
from pddpo_ray.data.real_text import prepare_real_text
from pddpo_ray.errors import UserError
from pddpo_ray.journal import JournalReader, read_journal
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.method_modules import METHODS
from tests.support.small_real_text import SMALL_REAL_TEXT

SMALL = ["rounds=1", *SMALL_REAL_TEXT, "feedback.responses=16"]  # two of c-grpo's groups


def small(cache: Path, *only: str) -> Suite:
    return load_suite("real-text", seeds=[0], only=only, overrides=[*SMALL, f"data.cache={cache}"])


def judged(helpful: list[float], harmless: list[float]) -> dict[str, Any]:
    return {
        "helpfulness": helpful, "harmlessness": harmless, "kl": [0.1] * len(helpful), "length": [12.0] * len(helpful),
        "agrees_better": [1.0, 0.0, 1.0], "agrees_safer": [0.5],
        "reference": {"helpfulness": [0.2], "harmlessness": [0.1], "length": [11.0]},
        "scorers": {"reward": [1.0, 1.0, 0.0, 1.0], "cost": [0.0, 1.0]},
    }  # fmt: skip


def row(arm: str, seed: int, found: dict[str, Any]) -> dict[str, Any]:
    empty: dict[str, list[float]] = {name: [] for name in ("round", "multiplier", "next", "estimate", "g", "gap")}
    return {
        "arm": arm, "seed": seed, "algorithm": arm, "threshold": 0.0, "judged": found, "peak_mib": None,
        "result": {"gap_last": None, "multiplier_next": 1.0}, "budget": {"pairs": 40, "labels": 100},
        "trace": empty | {"standard_error": []},
    }  # fmt: skip


@pytest.mark.slow
def test_every_method_is_an_arm_of_the_suite() -> None:
    suite = load_suite("real-text")
    configs = [suite.config(name, 0) for name in suite.arms]
    assert {config.algorithm for config in configs} == set(METHODS)
    assert all(config.data is not None for config in configs)
    assert len({str(config.world) for config in configs}) == 1


@pytest.mark.run
def test_held_out_prompts_are_whole_and_in_no_run(tmp_path: Path) -> None:
    def prepared(share: float) -> Any:
        return prepare_real_text(
            load("real-text", [*SMALL, f"data.cache={tmp_path}", f"data.held_out={share}", "offline.pairs=400"])
        )

    whole, split = prepared(0.0), prepared(0.4)
    asked = {item.pair.prompt.id for item in split.held_out}
    own = {item.pair.prompt.id for item in split.pairs}
    assert whole.held_out == ()
    assert asked
    assert not asked & (own | {prompt.id for prompt in split.prompts})
    assert len(split.held_out) + len(split.pairs) == len(whole.pairs)
    assert len(asked) == round(0.4 * len(asked | own))


def test_numbers_of_judges_are_means_over_questions_of_all_seeds_by_hand() -> None:
    """1, 2, 3 over two seeds: standard error 1/sqrt(3)."""
    rows = [row("sacpo", 0, judged([1.0, 2.0], [0.0, 0.0])), row("sacpo", 1, judged([3.0], [0.6]))]
    harmless, helpful, safer, better, *_ = tables.cells(rows, "sacpo", tables.JUDGED_COLUMNS)
    assert helpful is not None
    assert (helpful.value, helpful.count) == (2.0, 3)
    assert helpful.error == pytest.approx(3**-0.5)
    assert harmless is not None
    assert harmless.value == pytest.approx(0.2)
    assert better is not None
    assert better.value == pytest.approx(2 / 3)
    assert better.count == 6
    assert safer == tables.Mean(0.5, 0.0, 2)
    said = tables.judges(rows)
    assert {kind: (mean.value, mean.count) for kind, mean in said.items() if mean is not None} == {
        "reward": (0.75, 8),
        "cost": (0.5, 4),
    }


def test_the_page_says_that_there_is_no_truth_and_how_good_the_judges_are() -> None:
    suite = load_suite("real-text", only=["sacpo", "mocan"])
    rows = [row("sacpo", 0, judged([0.5, 0.7], [0.1, 0.3])), row("mocan", 0, judged([-0.5, -0.7], [0.1, 0.3]))]
    page = render(suite, rows)
    assert "Real text has no truth" in page
    assert "gap of the mixture" not in page
    assert "helpfulness over π_ref" in page
    assert "the reward judge with" in page
    assert page.index("SACPO, λ = 1") < page.index("MoCAN"), "the suite's order: nothing ranks them"
    header = tables.csv_of_runs(suite, rows).splitlines()[0].split(",")
    assert "agrees_safer" in header
    assert "gap_last" not in header


@pytest.mark.run
def test_a_suite_on_real_text_needs_held_out_prompts(tmp_path: Path) -> None:
    suite = load_suite(
        "real-text", seeds=[0], only=["dpo-helpful"], overrides=[*SMALL, f"data.cache={tmp_path}", "data.held_out=0"]
    )
    with pytest.raises(UserError, match=r"set data\.held_out"):
        compare(suite, tmp_path / "runs", run_here, lambda line: None)


@pytest.mark.run
def test_a_judge_that_is_named_for_both_sees_harm_where_it_sees_no_help(tmp_path: Path) -> None:
    suite = small(tmp_path / "cache", "dpo-helpful")
    compare(suite, tmp_path / "first", run_here, lambda line: None)
    judge = str(next((tmp_path / "first/seed-0/shared/artifacts").glob("reward-model-*")))
    held_out = suite.held_out.model_copy(update={"reward_model": judge, "cost_model": judge})
    compare(replace(suite, held_out=held_out), tmp_path / "named", run_here, lambda line: None)
    said = json.loads((tmp_path / "named/seed-0/dpo-helpful/arm.json").read_text())["judged"]
    assert said["helpfulness"] == pytest.approx([-value for value in said["harmlessness"]])
    assert len(said["reference"]["helpfulness"]) == len(said["helpfulness"])
    assert np.ptp(said["reference"]["helpfulness"]) > 0


@pytest.mark.full
@pytest.mark.slow
def test_the_suite_runs_every_method_and_shares_reference_and_scorers(tmp_path: Path) -> None:
    suite, told = small(tmp_path / "cache"), list[str]()
    assert compare(suite, tmp_path / "runs", run_here, told.append) == []
    assert len(told) == len(suite.arms)
    with (tmp_path / "runs" / "compare.csv").open(encoding="utf-8") as file:
        rows = {found["arm"]: found for found in csv.DictReader(file)}
    assert set(rows) == set(suite.arms)
    for name, found in rows.items():
        for key in ("helpfulness", "harmlessness", "agrees_better", "agrees_safer", "kl", "length"):
            assert np.isfinite(float(found[key])), (name, key)
        assert int(found["optimiser_steps"]) > 0, name
    # one reference; reward and cost model of the labels, of the pages' own scores, and of the judges: each made once
    places = {
        json.dumps(entry.payload)
        for name in suite.arms
        for entry in journal_of(tmp_path, name).phases(0)
        if entry.phase in ("score-models", "method-models")
    }
    stored = {path.name.rsplit("-", 1)[0] for path in (tmp_path / "runs/seed-0/shared/artifacts").glob("*-model*")}
    assert len(places) <= 2, places
    assert stored, "score models lie in the seed's store"
    again: list[str] = []
    assert compare(suite, tmp_path / "runs", run_here, again.append) == []
    assert again == told, "finished runs are read back"


def journal_of(folder: Path, arm: str) -> JournalReader:
    run = folder / "runs" / "seed-0" / arm
    return read_journal(run / JOURNAL, run.name)
