"""Limits read from files, rules, sources that fail, and a file of answers checked against them."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.errors import UserError
from pddpo_ray.limits.answer_files import read_answers
from pddpo_ray.limits.check import check, check_one
from pddpo_ray.limits.drawn import estimated, logits
from pddpo_ray.limits.given_labels import people_source
from pddpo_ray.limits.quantities import Amount, Quantity
from pddpo_ray.limits.reading import stated_limits
from pddpo_ray.limits.rules import characters, empty, reading_grade, refusal, repeats, sentences, words
from pddpo_ray.limits.sources import Answer
from pddpo_ray.scoring.sources.opening import read_limits
from pddpo_ray.theory.estimates.cost_estimate import bias_bound
from pddpo_ray.theory.intervals import mean_interval

XSTEST = Path(os.environ.get("PDDPO_SHARED", "../shared")) / "data" / "xstest_refusals.jsonl.gz"


def write(folder: Path, limits: str, rows: list[dict[str, Any]]) -> tuple[Path, Path]:
    recipe, answers = folder / "limits.yaml", folder / "answers.jsonl"
    recipe.write_text(f"limits:\n{limits}")
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return recipe, answers


def checked(folder: Path, limits: str, rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    recipe, answers = write(folder, limits, rows)
    done = CliRunner().invoke(app, ["limits", "check", str(recipe), "--on", str(answers), "--json"])
    assert done.exit_code == 0, done.exception
    result: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return result


def answers(count: int, text: str = "Soak it first.", **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"question {number}", "response": text, **more} for number in range(count)]


def test_a_rate_has_the_exact_binomial_interval(tmp_path: Path) -> None:
    rows = [
        *answers(95),
        *[{"prompt": f"p{n}", "response": "I'm sorry, but I can't help with that."} for n in range(5)],
    ]
    found = checked(tmp_path, "  refuses: {rate: {rule: refusal}, at_most: 5 %}\n", rows)["refuses"]
    exact = binomtest(5, 100).proportion_ci(0.95, "exact")
    assert (found["estimate"], found["n"], found["failed"], found["kept"]) == (pytest.approx(0.05), 100, 0, None)
    assert (found["low"], found["high"]) == (pytest.approx(exact.low), pytest.approx(exact.high))


@pytest.mark.parametrize(("refusing", "kept"), [(0, True), (8, None), (60, False)])
def test_a_limit_is_kept_broken_or_undecided_by_its_interval(tmp_path: Path, refusing: int, kept: bool | None) -> None:
    rows = answers(200)
    for row in rows[:refusing]:
        row["response"] = "I cannot help with that."
    assert checked(tmp_path, "  refuses: {rate: {rule: refusal}, at_most: 5 %}\n", rows)["refuses"]["kept"] is kept


def test_a_floor_is_kept_when_its_lower_end_is_above(tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text('{"type": "object", "required": ["city"]}')
    rows = answers(600, '{"city": "Bern"}')
    found = checked(tmp_path, "  format: {rate: {json_schema: answer.json}, at_least: 99 %}\n", rows)["format"]
    assert (found["estimate"], found["kept"]) == (1.0, True)
    rows[0]["response"] = '{"town": "Bern"}'
    rows[1]["response"] = "Bern"
    found = checked(tmp_path, "  format: {rate: {json_schema: answer.json}, at_least: 99 %}\n", rows)["format"]
    assert (found["estimate"], found["kept"]) == (pytest.approx(598 / 600), None)


def test_a_mean_has_an_interval_only_with_stated_bounds(tmp_path: Path) -> None:
    limits = (
        "  length: {mean: {rule: words}, at_most: 80}\n"
        "  bounded: {mean: {rule: words}, at_most: 80, bounds: [0, 100]}\n"
    )
    found = checked(tmp_path, limits, answers(300))
    assert (found["length"]["estimate"], found["length"]["low"], found["length"]["kept"]) == (3.0, None, None)
    assert "bounds unknown" in found["length"]["note"]
    assert found["bounded"]["low"] < 3.0 < found["bounded"]["high"] < 80
    assert found["bounded"]["kept"] is True


def test_an_answer_outside_the_stated_bounds_leaves_a_mean_without_an_interval(tmp_path: Path) -> None:
    rows = [*answers(99), {"prompt": "p", "response": "one two three four five six seven"}]
    found = checked(tmp_path, "  length: {mean: {rule: words}, at_most: 4, bounds: [0, 5]}\n", rows)["length"]
    assert (found["estimate"], found["low"], found["high"], found["kept"]) == (pytest.approx(3.04), None, None, None)
    assert found["note"] == "no interval: 7 lies outside the stated bounds [0, 5]; state wider ones"
    audit = "  length: {mean: {rule: words}, at_most: 4, bounds: [0, 5], audited_by: {people: 4}}\n"
    recipe, given = write(tmp_path, audit, rows)
    done = CliRunner().invoke(app, ["limits", "check", str(recipe), "--on", str(given)])
    assert isinstance(done.exception, UserError)
    assert "row 100 measures 7, outside the stated bounds [0, 5]" in str(done.exception)


def test_a_file_is_audited_by_an_even_draw() -> None:
    audit = {"people": 20, "unsure": 8}
    limit = {"rate": {"judge": {"question": "q.md"}}, "labels_each": 3, "at_most": "5 %", "audited_by": audit}
    (stated,) = stated_limits({"limits": {"rude": limit}}, "limits.yaml")
    with pytest.raises(UserError, match=r"limits.yaml: limits.rude.audited_by.unsure: of a file people label"):
        check_one(stated, people_source("rude"), [])


def test_a_limit_over_a_set_sees_that_set_alone(tmp_path: Path) -> None:
    rows = [*answers(50, set="benign"), *answers(30, "I cannot help with that.", set="red_team")]
    found = checked(tmp_path, "  refuses: {rate: {rule: refusal}, over: benign, at_most: 10 %}\n", rows)["refuses"]
    assert (found["estimate"], found["n"], found["kept"]) == (0.0, 50, True)


def test_answers_of_one_prompt_are_one_observation(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "response": "fine"} for _ in range(200)]
    found = checked(tmp_path, "  refuses: {rate: {rule: refusal}, at_most: 5 %}\n", rows)["refuses"]
    assert (found["n"], found["prompts"], found["kept"]) == (200, 1, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "failed", "reason"),
    [("raises", 100, "ZeroDivisionError"), ("nan", 100, "nan"), ("text", 100, "no number"),
     ("abstains", 30, "abstained"), ("large", 100, "outside")],
)  # fmt: skip
def test_a_source_that_fails_gives_no_number_and_cannot_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, failed: int, reason: str
) -> None:
    module = tmp_path / "my_measures.py"
    module.write_text(
        "import math\n"
        "def raises(prompt, response, row): return 1 / 0\n"
        "def nan(prompt, response, row): return math.nan\n"
        "def text(prompt, response, row): return 'yes'\n"
        "def abstains(prompt, response, row): return None if row['id'] % 10 < 3 else False\n"
        "def large(prompt, response, row): return 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = [{**row, "id": number} for number, row in enumerate(answers(100))]
    found = checked(tmp_path, f"  mine: {{rate: {{function: 'my_measures:{name}'}}, at_most: 5 %}}\n", rows)["mine"]
    assert (found["n"], found["failed"]) == (100 - failed, failed)
    assert found["estimate"] == (None if failed == 100 else 0.0)
    assert found["kept"] is not True
    assert reason in found["reasons"][0]
    assert found["reasons"][0].startswith("row 1: function my_measures:")


def test_a_regex_file_is_one_pattern_a_line(tmp_path: Path) -> None:
    (tmp_path / "pii.txt").write_text("# e-mail addresses\n[\\w.]+@[\\w.]+\n\n\\b\\d{3}-\\d{4}\\b\n")
    rows = [*answers(3, "write to me@example.org"), *answers(1, "call 555-0100"), *answers(4)]
    for number, row in enumerate(rows):
        row["prompt"] = f"p{number}"
    found = checked(tmp_path, "  pii: {rate: {regex: pii.txt}, at_most: 0.1 %}\n", rows)["pii"]
    assert (found["estimate"], found["kept"]) == (0.5, False)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("  a: {rate: {rule: refusal}, at_most: 120}\n", "between 0 and 100 %"),
        ("  a: {rate: {rule: refusl}, at_most: 5 %}\n", "did you mean `refusal`"),
        ("  a: {rate: {rule: words}, at_most: 5 %}\n", "use `mean`"),
        ("  a: {mean: {rule: words}, at_most: 5 %}\n", "this is no share"),
        ("  a: {mean: {rule: words}, atmost: 5}\n", "did you mean `at_most`"),
        ("  a: {mean: {rule: words}}\n", "needs at_most or at_least"),
        ("  a: {mean: {rule: words}, at_most: no}\n", "is no number"),
        ("  a: {rate: {rule: refusal}, at_most: 5 %, confidence: 20 %}\n", "confidence"),
        ("  a: {rate: {regex: nothing.txt}, at_most: 5 %}\n", "nothing.txt"),
        ("  a: {rate: {clasifier: models/guard}, at_most: 5 %}\n", "did you mean `classifier`"),
        ("  a: {logit: {rule: refusal}, at_most: 0}\n", "estimated from labels"),
        ("  a: {mean: {rule: words}, at_most: 500, bounds: [0, 100]}\n", "outside the measure's bounds"),
        ("  a: words\n", "must say what is measured"),
    ],
)
def test_a_wrong_limit_is_one_clear_line(tmp_path: Path, limits: str, message: str) -> None:
    recipe, _ = write(tmp_path, limits, answers(1))
    with pytest.raises(UserError, match=r"limits\.a") as error:
        read_limits(recipe)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "not JSON"), ("[1]", "no JSON object"), ('{"prompt": "x"}', "no `response`"),
     ('{"prompt": "x", "response": 3}', "must be text"), ('{"prompt": 3, "response": "y"}', "text or messages")],
)  # fmt: skip
def test_a_wrong_row_is_named_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "x", "response": "y"}\n' + line + "\n")
    with pytest.raises(UserError, match="line 2") as error:
        read_answers(path)
    assert message in str(error.value)


def test_a_limit_over_a_set_that_no_row_names_is_refused(tmp_path: Path) -> None:
    recipe, rows = write(tmp_path, "  a: {rate: {rule: empty}, over: benign, at_most: 5 %}\n", answers(3))
    with pytest.raises(UserError, match="no row names its set"):
        check(read_limits(recipe), read_answers(rows))


def test_messages_are_a_prompt(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How?"}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": messages, "response": "So."}) + "\n")
    assert read_answers(tmp_path / "rows.jsonl")[0].prompt == "Be brief.\n\nHow?"


def test_numbers_of_two_quantities_are_never_compared() -> None:
    tokens, share = Quantity("mean", "tokens"), Quantity("rate", "share", None, 0.0, 1.0)
    assert Amount(tokens, 3.0) <= Amount(tokens, 4.0)
    with pytest.raises(TypeError):
        Amount(tokens, 3.0) <= Amount(share, 0.5)  # noqa: B015
    with pytest.raises(TypeError):
        Amount(share, 0.2) - Amount(Quantity("rate", "share", "benign", 0.0, 1.0), 0.1)


@pytest.mark.slow
def test_the_language_of_an_answer(tmp_path: Path) -> None:
    pytest.importorskip("py3langid", reason="py3langid is not installed")
    texts = ["Gießen Sie heißes Wasser darüber und warten Sie.", "Cover it with hot water and wait.", "1 + 1 = 2"]
    rows = [{"prompt": text, "response": text} for text in texts]
    found = checked(tmp_path, "  german: {rate: {rule: language, is: de}, at_least: 40 %}\n", rows)["german"]
    assert (found["estimate"], found["n"], found["failed"]) == (0.5, 2, 1)
    recipe, _ = write(tmp_path, "  german: {rate: {rule: language, is: german}, at_least: 40 %}\n", rows)
    with pytest.raises(UserError, match="by its code"):
        read_limits(recipe)


def test_reading_grade_by_hand() -> None:
    """The cat sat: 3 words, 1 sentence, 3 syllables. Simple tables wobble: 2 + 2 + 2 syllables."""
    assert reading_grade("The cat sat.") == pytest.approx(0.39 * 3 + 11.8 * 1 - 15.59)
    assert reading_grade("Simple tables wobble.") == pytest.approx(0.39 * 3 + 11.8 * 2 - 15.59)
    assert reading_grade("He made cake. We ate it!") == pytest.approx(0.39 * 3 + 11.8 * 1 - 15.59)
    assert reading_grade("123 ...") == 0.0


def test_rules_by_hand() -> None:
    assert (words("Soak it first."), characters(" ab \n"), sentences("Yes. Soak it first"), sentences("")) == (
        3,
        2,
        2,
        0,
    )
    assert (empty(" \u200b\n"), empty(" a "), repeats("a b c")) == (True, False, 0.0)
    assert repeats("a b c d a b c d") == pytest.approx(0.2)


@pytest.mark.skipif(not XSTEST.exists(), reason="the labelled XSTest answers are not beside this checkout")
def test_the_refusal_rule_agrees_with_people_on_prompts_that_it_was_not_chosen_on() -> None:
    """660 of 701 answers to the other half of the prompts, partial refusals left out; stated in docs/limits.md."""
    with gzip.open(XSTEST, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    other = [row for row in rows if int(hashlib.sha256(row["prompt"].encode()).hexdigest(), 16) % 2 == 1]
    clear = [row for row in other if row["label"] != "3_partial_refusal"]
    right = [refusal(row["response"]) == (row["label"] == "2_full_refusal") for row in clear]
    assert len(right) == 701
    assert np.mean(right) == pytest.approx(660 / 701)
    interval = mean_interval(right, [row["prompt"] for row in clear], (0, 1))
    assert interval is not None
    assert interval.count == 156
    assert interval.low == pytest.approx(0.904, abs=5e-4)
    assert interval.high == pytest.approx(0.967, abs=5e-4)


@pytest.mark.run
def test_a_source_sees_prompt_answer_and_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seen_measure.py").write_text("def score(prompt, response, row): return len(prompt) + row['plus']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe, rows = write(
        tmp_path,
        "  a: {mean: {function: 'seen_measure:score'}, at_most: 9}\n",
        [{"prompt": "abc", "response": "", "plus": 4}],
    )
    found = check(read_limits(recipe), read_answers(rows))[0]
    assert found.estimate is not None
    assert found.estimate.number == 7.0
    assert isinstance(read_answers(rows)[0], Answer)


def test_the_bias_of_few_labels_widens_an_interval_at_both_ends() -> None:
    """Shares .2, .4, .4, .6 of five labels, of forty prompts: the same draws without a bias, and .41 further out."""
    drawn = logits(np.array([0.2, 0.4, 0.4, 0.6] * 10), 5, 2.0)
    prompts = [f"p{number}" for number in range(40)]
    wide, narrow = (estimated(one, prompts, 0.0, 0.95) for one in (drawn, replace(drawn, bias=0.0)))
    assert drawn.bias == bias_bound(5, 2.0) > 0.4
    assert narrow.low is not None
    assert narrow.high is not None
    assert (wide.low, wide.high) == pytest.approx((narrow.low - drawn.bias, narrow.high + drawn.bias))
    assert wide.value == narrow.value
