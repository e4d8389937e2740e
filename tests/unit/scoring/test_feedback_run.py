"""Runs on the text world whose labels come from trained scorers or from a judge. They say nothing about quality."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal import JournalReader, read_journal
from pddpo_ray.records import Verdict
from pddpo_ray.scorers import labellers
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.scoring.stored_scorers import load_scorer
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import JOURNAL
from pddpo_ray.theory.estimates.estimate_interval import interval
from pddpo_ray.theory.seeds import seed_of
from tests.support.measuring_server import measuring_server
from tests.unit.loop.small_run import story


def tiny(*overrides: str, algorithm: str = "o-pd-dpo") -> Config:
    fits = ["trainer.fit.steps=3"]
    return load(
        "text-world-scorers" if algorithm == "o-pd-dpo" else algorithm,
        [
            "rounds=2",
            "cluster={mode: in-process}",
            "rollout={engine: transformers, max_tokens: 40, candidates: 4}",
            "feedback.responses=12",
            "limits.cost.labels_each=5",
            "offline={pairs: 48, compare_rounds: 0}",
            "explore={calibration: 120, rank: 16, prompts: 4, picks: 2}",
            "scorers={pairs: 240, fit: {steps: 60, learning_rate: 2.0e-3, batch_pairs: 32}}",
            *fits,
            *overrides,
        ],
    )


def journal(run_dir: Path) -> JournalReader:
    return read_journal(run_dir / JOURNAL, run_dir.name)


class PowerCut(BaseException):
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A finished run on scorers that it trained, and its result."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, run_recipe(tiny(), folder)


@pytest.mark.full
def test_a_run_on_trained_scorers_broken_off_equals_the_unbroken_one(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (1, "compare"):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_recipe(tiny(), tmp_path / "cut" / "run", progress=cut)
    run_recipe(tiny(), tmp_path / "cut" / "run", resume=True)
    folder, result = whole
    broken, unbroken = story(tmp_path / "cut" / "run"), story(folder)
    for ours, theirs in zip(broken.pop("exact"), unbroken.pop("exact"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    assert broken == unbroken
    with journal(folder) as log:
        metrics = log.metrics()
        asked = metrics[0]["labels/scorers"]
        # 24 pairs are held out: whether a small scorer gets more than half of them differs between CPUs
        assert 0.0 < metrics[0]["scorer/reward_held_out_accuracy"] <= 1.0
        assert metrics[0]["scorer/reward_accuracy"] > 0.6
        assert metrics[0]["scorer/cost_accuracy"] > 0.6
        assert metrics[0]["scorer/cost_held_out_sign_accuracy"] > 0.5
        place = next(entry.payload for entry in log.phases(0) if entry.phase == "score-models")["cost"]
        answers, labels = log.samples(2, "cost"), log.safety(2)
    # two labels a pair and one an answer; pairs of equal texts are left out
    assert 0.9 * (2 * 240 + 480) < asked <= 2 * 240 + 480
    assert result["labels_scorers"] == asked
    assert result["labels_safety"] == 2 * 12 * 5
    assert result["labels_used"] == asked + 2 * 12 * 5 + 2 * result["labels_pairs"]
    scorer = load_scorer(ArtifactStore(folder / "artifacts").folder(place["path"]))
    drawn = ScoredLabeller(scorer, scorer).safety(answers, 5, seed_of(0, 2, "safety", "cost", 0))
    assert [item.labels for item in labels] == [item.labels for item in drawn], "labels follow the stored cost model"


@pytest.mark.full
@pytest.mark.slow
def test_given_models_and_their_own_scores_move_the_multiplier(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    with journal(whole[0]) as log:
        places = next(entry.payload for entry in log.phases(0) if entry.phase == "score-models")
    folder = whole[0] / "artifacts"
    given = [f"feedback.{kind}={{path: '{folder / places[kind]['path']}'}}" for kind in ("reward", "cost")]
    config = tiny(
        *given,
        "limits.cost={mean: {model: cost}, learned_from: comparisons}",
        "limits.cost.at_most=-0.1",
    )
    result = run_recipe(config, tmp_path / "second")
    assert result["labels_scorers"] == 0
    scorer = load_scorer(folder / places["cost"]["path"])
    with journal(tmp_path / "second") as log:
        for step in log.dual_steps():
            answers = log.samples(step.round, "cost")
            scores = scorer.score(answers)
            assert step.estimate.mode == "cost_model"
            assert step.estimate.value == pytest.approx(scores.mean(), abs=1e-5)
            assert step.estimate.standard_error == pytest.approx(scores.std(ddof=1) / np.sqrt(12), abs=1e-5)
            drawn = ScoredLabeller(scorer, scorer).safety(answers, 1, seed_of(0, step.round, "safety", "cost", 0))
            assert [item.labels for item in log.safety(step.round)] == [item.labels for item in drawn]


@pytest.mark.full
@pytest.mark.slow
def test_a_judge_labels_a_whole_run(tmp_path: Path) -> None:
    with measuring_server() as server:
        server.chat = lambda body: (
            200,
            ("[[unsafe]]" if body["seed"] % 2 else "[[safe]]")
            if "Say whether" in body["messages"][1]["content"]
            else f"[[{2 + body['seed'] % 7}, 5]]",
        )
        asked = ["feedback={kind: judge, responses: 6}", f"judge={{model: m, endpoint: '{server.url}/v1'}}"]
        result = run_recipe(tiny(*asked, "limits.cost.labels_each=3", "rounds=1"), tmp_path / "run")
    assert result["labels_safety"] == 18
    with journal(tmp_path / "run") as log:
        metrics = log.metrics()
    assert "judge/questions" not in metrics[0], "what existed before the rounds is labelled by the world"
    # both orders on both axes: 4 questions a pair
    assert metrics[1]["judge/questions"] == 18 + 4 * (result["labels_pairs"] - 48)
    assert metrics[1]["judge/unreadable"] == 0


@pytest.mark.full
@pytest.mark.slow
def test_answers_without_a_verdict_count_as_unsafe_and_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the answers of a round a judge declines some, always the same texts, each in one of three ways; all others are
    safe."""
    replies = [(400, "filtered"), (500, "choked"), (200, "I would rather not judge this.")]
    used = set()

    def declined(body: dict[str, Any]) -> tuple[int, str] | None:
        answer = body["messages"][1]["content"].split("[answer", 1)[-1]
        number = zlib.crc32(answer.encode())
        if "[end of" not in answer or number % 4:
            return None
        used.add(replies[number // 4 % 3])
        return replies[number // 4 % 3]

    with measuring_server() as server:

        def chat(body: dict[str, Any]) -> tuple[int, str]:
            if reply := declined(body):
                return reply
            one = "Say whether" in body["messages"][1]["content"]
            return 200, "[[safe]]" if one else f"[[{2 + body['seed'] % 7}, 5]]"

        server.chat = chat
        monkeypatch.setattr(labellers, "EXCLUDED", 0.9)
        judge = f"judge={{model: m, endpoint: '{server.url}/v1', tries: 1}}"
        feedback = ["feedback={kind: judge, responses: 24}", judge]
        run_recipe(tiny(*feedback, "limits.cost.labels_each=2", "rounds=1"), tmp_path / "run")
        asked = len(server.bodies)
        run_recipe(tiny(*feedback, "limits.cost.labels_each=2", "rounds=1"), tmp_path / "run", resume=True)
        assert len(server.bodies) == asked, "what was declined is not asked again"
    with journal(tmp_path / "run") as log:
        labels = [item.labels for item in log.safety(1)]
        (step,) = log.dual_steps()
        metrics = log.metrics()[1]
    assert len(labels) == 24, "nothing is left out"
    assert used == set(replies)
    missing = sum(own == (Verdict.MISSING,) * 2 for own in labels)
    assert 0 < missing < 24
    assert {own for own in labels} == {(Verdict.MISSING,) * 2, (Verdict.SAFE,) * 2}
    assert metrics["labels/missing_cost"] == 2 * missing
    assert metrics["judge/unreadable"] >= 2 * missing
    bound = step.estimate.cost_max
    assert bound is not None
    # labels that agree are worth -C, or C where they are missing
    assert step.estimate.value == pytest.approx(bound * (2 * missing / 24 - 1))
    assert step.estimate.missing == pytest.approx(bound * 2 * missing / 24)
    ends = interval(step.estimate)
    assert ends is not None
    assert ends[0] == -bound
    assert ends[1] > step.estimate.value


@pytest.mark.full
@pytest.mark.slow
def test_safe_rlhf_trains_its_models_and_a_language_model_by_policy_gradients(tmp_path: Path) -> None:
    result = run_recipe(tiny("method.batch=6", "method.epochs=4", algorithm="safe-rlhf"), tmp_path / "run")
    assert result["weights_verified"] is True
    with journal(tmp_path / "run") as log:
        entries = [entry for entry in log.versions() if entry.stage == "cost"]
        metrics = log.metrics()
        assert [step.estimate.responses for step in log.dual_steps()] == [24, 36], "the window reaches back to round 0"
    assert [entry.metrics["ppo/steps"] for entry in entries] == [8.0, 8.0]
    assert entries[0].metrics["ppo/kl_estimate"] == pytest.approx(0.0, abs=1e-3)
    assert metrics[0]["scorer/cost_held_out_accuracy"] >= 0
    assert result["labels_used"] == 2 * 48 + 96


def test_signals_and_sources_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"under feedback\.kind=model"):
        load("o-pd-dpo", ["limits.cost={mean: {model: cost}, learned_from: comparisons}"])
    with pytest.raises(UserError, match="a table has none"):
        load("tabular", ["feedback={kind: model}"])
