"""Runs under stated limits on files of real text: sets from files, rules and an endpoint as sources, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_ray.certificates.ledger import read_ledger
from pddpo_ray.certificates.outcome import Outcome
from pddpo_ray.certificates.testing import certify
from pddpo_ray.config import Config, ScorerJob, load
from pddpo_ray.data.real_text import prepare_real_text
from pddpo_ray.driver.offline_setup import LEFT_OUT, calibration_answers
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.records import HARM, Verdict
from pddpo_ray.report.build import build_report
from pddpo_ray.report.run_data import read_run
from pddpo_ray.report.sections.people import labels as labels_section
from pddpo_ray.scoring.held_out import REPORT, Trials
from pddpo_ray.scoring.scorer_job import train_from_files
from pddpo_ray.storage.whole_files import JOURNAL, RESULT
from tests.support.measured import measured_in
from tests.support.measuring_server import measuring_server
from tests.support.scorer_rows import TEMPLATE, rows_of_words, write_rows
from tests.support.small_real_text import SMALL_REAL_TEXT
from tests.support.tiny_language_model import save_policy

SAMPLES = Path(__file__).parents[3] / "pddpo_ray" / "sample_data" / "limits"


def recipe(folder: Path, limits: dict[str, Any], *overrides: str) -> Config:
    """Two sets in files that share a prompt, beside the recipe."""
    rows = [json.loads(line) for line in (SAMPLES / "benign.jsonl").read_text().splitlines()]
    (folder / "benign.jsonl").write_text("\n".join(json.dumps(row) for row in rows[:4]))
    everyday = (SAMPLES / "everyday.jsonl").read_text().splitlines()
    (folder / "everyday.jsonl").write_text("\n".join([*everyday[:4], json.dumps(rows[0])]))
    tree = {
        "extends": "real-text",
        "rounds": 2,
        "prompts": {
            "everyday": {"files": ["everyday.jsonl"], "share": "60 %"},
            "benign": {"files": ["benign.jsonl"], "share": "40 %"},
        },
        "limits": {"cost": None, **limits},
        "dual": {"rule": {"kind": "newton", "damping": 0.5}},
    }
    (folder / "recipe.yaml").write_text(json.dumps(tree))
    small = [*SMALL_REAL_TEXT, "data.prompt_count=10", "report.html=false", "report.tensorboard=false"]
    return load(str(folder / "recipe.yaml"), [*small, f"data.cache={folder / 'cache'}", *overrides])


RULES: dict[str, dict[str, Any]] = {
    "length": {"mean": {"rule": "words"}, "at_most": 6, "bounds": [0, 200]},
    "refuses": {"rate": {"rule": "refusal"}, "over": "benign", "at_most": "20 %"},
}


@pytest.mark.run
def test_sets_of_files_weigh_their_prompts_as_the_lists_say(tmp_path: Path) -> None:
    """The prompt in both lists has .6 / 5 + .4 / 4 of all draws, each of the others .12 or .1."""
    prepared = prepare_real_text(recipe(tmp_path, RULES))
    sets = prepared.sets
    assert sets is not None
    np.testing.assert_allclose(np.sort(sets.weights), [0.1, 0.1, 0.1, 0.12, 0.12, 0.12, 0.12, 0.22])
    both = int(np.argmax(sets.weights))
    assert sets.factor("benign")[both] == pytest.approx(0.25 / 0.22)
    assert len(prepared.prompts) == 8
    assert "benign" not in prepared.prompts[both].text


@pytest.mark.run
def test_the_dual_aims_nearer_to_a_means_limit_by_how_much_answers_differ(tmp_path: Path) -> None:
    run_recipe(recipe(tmp_path, RULES, "dual.margin=certificate"), tmp_path / "run")
    with read_journal(tmp_path / "run" / JOURNAL) as journal:
        widest, *of_rounds = [values["dual/margin_length"] for _, values in sorted(journal.metrics().items())]
    assert len(of_rounds) == 2
    assert all(0 < one < widest for one in of_rounds), "answers of a few words are not of 0 or 200"


@pytest.mark.full
@pytest.mark.slow
def test_a_cost_model_that_no_limit_asks_is_not_trained(tmp_path: Path) -> None:
    """Rules measure both limits: pairs are compared for the reward alone, and a cost is no number by accident."""
    wide = {"length": {**RULES["length"], "at_most": 150}, "refuses": {**RULES["refuses"], "at_most": "90 %"}}
    config = recipe(tmp_path, wide, "rounds=1", "certificate={certify: end, draws: 64, batch: 8, candidates: 1}")
    assert config.trained_scorers == ("reward",)
    assert load("real-text").trained_scorers == ("reward", "cost")
    run_recipe(config, tmp_path / "run")
    with read_journal(tmp_path / "run" / JOURNAL) as journal:
        (trained,) = [entry.payload for entry in journal.phases(0) if entry.phase == "score-models"]
        (looked_at,) = [entry.payload for entry in journal.phases(0) if entry.phase == "scorer-gate"]
        (measured,) = [entry.payload for entry in journal.phases(0) if entry.phase == "measure-offline"]
        (left_out,) = [entry.payload for entry in journal.phases(0) if entry.phase == LEFT_OUT]
        own = {answer.id for answer in calibration_answers(journal)}
        cut = [entry.payload for entry in journal.phases() if entry.phase == "cut-answers"]
        labels = [entry.labelled for entry in journal.pairs(1)]
        metrics = journal.metrics()[0]
        (tested,) = read_ledger(journal)
    assert tested.state == "certified", "the models that the run trained are read back by the test at its end"
    assert left_out == dict(prepare_real_text(config).left_out)
    assert sum(left_out.values()) > 0
    counted = labels_section(read_run(tmp_path / "run"))
    assert all(f'<li>{why}: <data value="{float(count)}"' in counted for why, count in left_out.items())
    assert list(trained) == ["reward"]
    assert looked_at == {}
    assert set(measured["ids"]) <= own, "limits learn from what the reference itself says, not from the pairs' texts"
    assert len(measured["ids"]) > 8
    assert [one["answers"] for one in cut] == [len(own), config.feedback.responses]
    assert labels
    assert {label.label(HARM) for label in labels} == {Verdict.ABSTAIN}
    assert Verdict.ABSTAIN not in {label.helpful for label in labels}
    assert not [name for name in metrics if name.startswith("scorer/cost")]


@pytest.mark.slow
def test_a_run_measures_by_rule_and_endpoint_within_its_budget(tmp_path: Path) -> None:
    answered: list[str] = []

    def measure(body: dict[str, Any]) -> tuple[int, Any]:
        answered.append(body["row"]["id"])
        return 200, {"value": len(answered) % 5 == 0}

    with measuring_server() as server:
        server.measure = measure
        endpoint = {"endpoint": f"{server.url}/measure", "tries": 1}
        limits = {
            **RULES,
            "tone": {"rate": endpoint, "over": "everyday", "at_most": "50 %", "answers": 4, "failed": "20 %"},
        }
        config = recipe(tmp_path, limits, "certificate={batch: 8}")
        run_recipe(config, tmp_path / "run")
        # the second round's cost stage learned from what the first one measured: no offline pair is about these prompts
        assert len(answered) == len(set(answered)) > 0
        entry = certify(config, tmp_path / "run", "last", {"tone": 0.9, "length": 150.0, "refuses": 0.9}, 16)
        # budgets are those of a call, so no draw is left without a number
        assert entry.count >= 8
        assert all(None not in numbers for numbers in entry.numbers.values())
        assert [limit.source for limit in entry.candidate.limits][:2] == ["rule words", "rule refusal"]
    result = json.loads((tmp_path / "run" / RESULT).read_text())
    assert result["limits"]["tone"]["estimate"] is not None
    assert "value_last" not in result["limits"]["tone"]
    assert result["limits"]["length"]["unit"] == "words"
    with open_folder(tmp_path / "run") as journal:
        fitted = [entry.version for entry in journal.versions() if entry.stage != "reference"]
        assert [one.name for one in fitted] == ["reward-1", "policy-1", "reward-2", "policy-2"]
        assert fitted[0].sha256 == fitted[1].sha256
        assert fitted[2].sha256 != fitted[3].sha256
        payload = measured_in(journal, 1)
        drawn = {answer.id: answer for answer in journal.samples(1, "cost")}
        asked = [drawn[one].prompt.text for one in payload["ids"]]
        asked_for_tone = {answer.prompt.text for answer in journal.samples(-1) if answer.id in entry.draws["tone"]}
    tone = [row[-1] for row in payload["costs"]]
    assert sum(value is not None for value in tone) <= 4
    everyday = {json.loads(line)["prompt"] for line in (tmp_path / "everyday.jsonl").read_text().splitlines()}
    assert asked_for_tone <= everyday
    assert all(text in everyday for text, value in zip(asked, tone, strict=True) if value is not None)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("right", [11, 20])
def test_a_limit_moves_no_multiplier_on_a_score_model_at_chance(right: int, tmp_path: Path) -> None:
    """20 comparisons of its training: 11 right begin at .315, 20 at .832 (exact, 95 %). Costs as large as 60 stop
    nothing: no limit is on logits that the box would clip."""
    folder = save_policy(tmp_path / "base", 0)
    rows = write_rows(tmp_path / "pairs.jsonl", rows_of_words(60, 1))
    job = ScorerJob(kind="cost", files=(str(rows),), base=str(folder), template=TEMPLATE, device="cpu")
    report = train_from_files(job, tmp_path / "cost", resume=False, say=lambda line: None)
    report["held_out"] |= Trials(right, 20).as_metrics()
    (tmp_path / "cost" / REPORT).write_text(json.dumps(report))
    limits = {**RULES, "unsafe": {"rate": {"score_model": "cost"}, "at_most": "20 %"}}
    large = f"feedback.cost={{path: '{tmp_path / 'cost'}', shift: 60.0}}"
    config = recipe(tmp_path, limits, large, "feedback.kind=model")
    said: list[str] = []
    result = run_recipe(config, tmp_path / "run", progress=lambda event: said.append(getattr(event, "message", "")))
    with open_folder(tmp_path / "run") as journal:
        steps = [step for step in journal.dual_steps() if step.constraint == "unsafe"]
        others = [step for step in journal.dual_steps() if step.constraint == "length"]
    moved = {step.multiplier_after for step in steps} != {steps[0].multiplier_before}
    assert moved is (right == 20)
    assert {step.multiplier_after for step in others} != {others[0].multiplier_before}
    wanted = "the score model of limit unsafe is not better than chance: it is right in 11 of 20 comparisons"
    heard = any(wanted in (line or "") and "pddpo scorer train" in line for line in said)
    assert heard is (right == 11)
    assert result["scorers"]["held_out"]["limit unsafe"]["right"] == right
    assert ("limit unsafe" in result["scorers"]["at_chance"]) is (right == 11)
    if right == 11:
        config = recipe(tmp_path, limits, large, "scorers.at_chance=stop")
        with pytest.raises(UserError, match="not better than chance"):
            run_recipe(config, tmp_path / "stopped")


@pytest.mark.run
@pytest.mark.parametrize(("rows", "sets"), [("benign", [["benign"], ["benign"]]), ("everyday", [["everyday"]] * 2)])
def test_prompts_of_certificates_are_in_the_sets_whose_files_hold_them(
    rows: str, sets: list[list[str]], tmp_path: Path
) -> None:
    file = tmp_path / "fresh.jsonl"
    file.write_text("\n".join((SAMPLES / f"{rows}.jsonl").read_text().splitlines()[1:3]))
    config = recipe(
        tmp_path, RULES, f"certificate={{prompts: ['{file}'], certify: end, draws: 8, batch: 8}}", "rounds=1"
    )
    prepared = prepare_real_text(config)
    assert list(prepared.certified_sets.values()) == sets
    assert not {one.id for one in prepared.prompts} & prepared.certified_sets.keys()
    if rows == "everyday":
        with pytest.raises(UserError, match="refuses is about the set benign, whose files hold none"):
            run_recipe(config, tmp_path / "run")
        return
    run_recipe(config, tmp_path / "run")
    with read_journal(tmp_path / "run" / JOURNAL) as journal:
        (tested,) = read_ledger(journal)
    assert {name: len(numbers) for name, numbers in tested.numbers.items()} == {"length": 8, "refuses": 8}
    assert None not in tested.numbers["refuses"]


@pytest.mark.run
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["limits.tone={rate: {world: cost}, at_most: 5 %}"], "files have no truth to measure with"),
        (["prompts.benign={indices: [0], share: 40 %}"], "prompts.benign"),
        (["prompts.benign.files=[nowhere.jsonl]"], "nowhere.jsonl"),
        (["data.prompts=[more.jsonl]"], "the sets under `prompts:` say which prompts a run asks"),
        (["data.prompt_count=1"], "prompts.benign: its share of data.prompt_count=1 is 0 prompts"),
        (["limits.length.bounds=null"], "a mean needs `bounds: [low, high]` in a run"),
    ],
)
def test_what_cannot_be_measured_on_files_is_refused_in_one_line(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises((UserError, RunError)) as refused:
        run_recipe(recipe(tmp_path, RULES, *overrides), tmp_path / "run")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value).strip() or "prompts.benign" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.full
@pytest.mark.run
def test_a_round_with_an_answer_outside_the_bounds_of_a_mean_has_no_interval(tmp_path: Path) -> None:
    config = recipe(tmp_path, {"length": {"mean": {"rule": "words"}, "at_most": 0.5, "bounds": [0, 1]}})
    result = run_recipe(config, tmp_path / "run")
    (said,) = Outcome.from_json(result["outcome"]).limits
    assert said.outside > 0
    assert (said.low, said.high, said.kept) == (None, None, None)
    assert "outside the stated bounds" in said.measured
    assert said.no_interval in said.brief
    assert (result["limits"]["length"]["low"], result["limits"]["length"]["high"]) == (None, None)
    build_report(tmp_path / "run")
    assert said.no_interval in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.run
def test_an_answer_outside_the_bounds_of_a_mean_is_no_draw_of_a_certificate(tmp_path: Path) -> None:
    config = recipe(tmp_path, {"length": {"mean": {"rule": "words"}, "at_most": 2, "bounds": [0, 3]}})
    run_recipe(config, tmp_path / "run")
    for _ in range(2):
        with pytest.raises(UserError, match=r"limit length: an answer measures \d+ words, outside its bounds"):
            certify(config, tmp_path / "run", "last", {}, 16)
