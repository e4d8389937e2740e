"""Sources of limits against real functions, servers and models, well and badly behaved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.limits.answer_files import read_answers
from pddpo_ray.limits.check import check
from pddpo_ray.limits.functions import FunctionProcess
from pddpo_ray.limits.quantities import VERDICT, Amount, Limit, Quantity
from pddpo_ray.limits.reading import Asking, stated_limits
from pddpo_ray.limits.sources import Answer, Source, Unmeasured, ask, chosen_for, one_by_one
from pddpo_ray.scoring.sources.graders import similarity
from pddpo_ray.scoring.sources.opening import read_limits
from tests.support.measuring_server import MeasuringServer, measuring_server

Row = dict[str, Any]


@pytest.fixture
def server() -> Iterator[MeasuringServer]:
    with measuring_server() as running:
        yield running


def rows(count: int, **more: Any) -> list[Row]:
    return [{"prompt": f"question {n}", "response": f"answer {n}", "id": n, **more} for n in range(1, count + 1)]


def result(folder: Path, limits: str, given: list[Row]) -> dict[str, Any]:
    """What `pddpo limits check --json` says about the only limit."""
    recipe, answers = folder / "limits.yaml", folder / "answers.jsonl"
    recipe.write_text(f"limits:\n{limits}" if "limits:" not in limits else limits)
    answers.write_text("".join(json.dumps(row) + "\n" for row in given))
    done = CliRunner().invoke(app, ["limits", "check", str(recipe), "--on", str(answers), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0
    (found,) = json.loads(done.stdout).values()
    return dict(found)


# --- functions ----------------------------------------------------------------------------------------------------


@pytest.mark.run
def test_a_function_beside_the_limits_that_hangs_is_stopped_and_the_next_row_is_measured(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import time\n"
        "def slow(prompt, response, row):\n"
        "    print('this is no measurement')\n"
        "    if row['id'] == 2: time.sleep(600)\n"
        "    return row['id'] == 3\n"
    )
    found = result(tmp_path, "  mine: {rate: {function: 'hanging:slow', seconds: 0.5 s}, at_most: 50 %}\n", rows(4))
    assert (found["n"], found["failed"], found["estimate"]) == (3, 1, pytest.approx(1 / 3))
    assert found["reasons"] == ["row 2: function hanging:slow took longer than 0.5 s"]


@pytest.mark.run
def test_a_function_that_ends_its_process_fails_on_that_row_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving.py").write_text(
        "import os, numpy\n"
        "def gone(prompt, response, row):\n"
        "    if row['id'] == 1: os._exit(3)\n"
        "    return numpy.float32(0.5)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    limits = "  mine: {mean: {function: 'leaving:gone'}, at_most: 1, bounds: [0, 1]}\n"
    found = result(tmp_path, limits, rows(3))
    assert (found["n"], found["failed"], found["estimate"]) == (2, 1, 0.5)
    assert found["reasons"] == ["row 1: function leaving:gone ended its process"]


@pytest.mark.run
def test_the_version_of_a_function_follows_its_file(tmp_path: Path) -> None:
    module = tmp_path / "versioned.py"
    module.write_text("__version__ = '2.1'\ndef f(prompt, response, row): return 1\n")
    first = FunctionProcess("versioned:f", 10.0, tmp_path).start()
    assert first.startswith("2.1 ")
    assert FunctionProcess("versioned:f", 10.0, tmp_path).start() == first
    module.write_text("__version__ = '2.1'\ndef f(prompt, response, row): return 2.5\n")
    assert FunctionProcess("versioned:f", 10.0, tmp_path).start() != first


@pytest.mark.run
@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere", "module:name"), ("nowhere:f", "cannot be imported"), ("math:pi", "is not a function")],
)
def test_a_function_that_cannot_be_had_is_one_clear_line(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        result(tmp_path, f"  mine: {{rate: {{function: '{name}'}}, at_most: 5 %}}\n", rows(1))
    assert "limits.mine.rate.function" in str(error.value)


# --- an endpoint --------------------------------------------------------------------------------------------------


def measured_by(server: MeasuringServer, more: str = "") -> str:
    return f"  mine: {{rate: {{endpoint: '{server.url}/measure', tries: 1{more}}}, at_most: 50 %}}\n"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [((500, "broken"), "answered 500"), ((200, b"NaN"), "gave nan"), ((200, {"value": "yes"}), "gave 'yes'"),
     ((200, b"<html>"), "no JSON"), ((200, {"value": 3}), "outside"), ((200, {"score": 1}), "no `value`"),
     ((200, {"value": None}), "abstained")],
)  # fmt: skip
def test_an_endpoint_that_fails_on_some_rows_gives_no_number_there(
    tmp_path: Path, server: MeasuringServer, reply: tuple[int, Any], reason: str
) -> None:
    server.measure = lambda body: reply if body["row"]["id"] % 10 < 3 else (200, {"value": body["row"]["id"] % 2 == 1})
    found = result(tmp_path, measured_by(server), rows(20))
    assert (found["n"], found["failed"]) == (14, 6)
    assert found["estimate"] == pytest.approx(8 / 14)
    assert found["reasons"][0].startswith(f"row 1: endpoint {server.url}/measure ")
    assert reason in found["reasons"][0]


def test_an_endpoint_that_is_slow_is_not_waited_for(tmp_path: Path, server: MeasuringServer) -> None:
    server.slow_s = 1.0
    found = result(tmp_path, measured_by(server, ", timeout: 0.2 s"), rows(2))
    assert (found["estimate"], found["n"], found["failed"], found["kept"]) == (None, 0, 2, None)
    assert "did not answer within 0.2 s" in found["reasons"][0]


def test_an_endpoint_that_is_busy_is_asked_again_with_its_key(
    tmp_path: Path, server: MeasuringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEASURE_KEY", "a-key-of-the-test")
    answers = iter([(503, "busy"), (200, {"value": True})])
    server.measure = lambda body: next(answers)
    limits = f"  mine: {{rate: {{endpoint: '{server.url}/measure', tries: 2, key_env: MEASURE_KEY}}, at_most: 50 %}}\n"
    found = result(tmp_path, limits, rows(1))
    assert (found["estimate"], found["failed"]) == (1.0, 0)
    assert server.keys == ["Bearer a-key-of-the-test"] * 2


def test_a_refused_key_is_one_error_that_names_limit_and_row(tmp_path: Path, server: MeasuringServer) -> None:
    server.measure = lambda body: (401, {"error": "who are you"})
    with pytest.raises(RunError, match=r"limit mine, row 1: endpoint .*401"):
        result(tmp_path, measured_by(server), rows(2))


def test_a_source_that_is_down_is_not_asked_for_ever(tmp_path: Path, server: MeasuringServer) -> None:
    server.measure = lambda body: (500, "down")
    with pytest.raises(RunError, match=r"limit mine, row 1: endpoint .*does not answer: 500 .*start it, then resume"):
        result(tmp_path, measured_by(server), rows(80))
    assert len(server.bodies) <= 32


def test_a_key_that_is_not_set_is_refused_before_anything_is_asked(tmp_path: Path, server: MeasuringServer) -> None:
    with pytest.raises(UserError, match="NO_SUCH_KEY is not set"):
        result(tmp_path, measured_by(server, ", key_env: NO_SUCH_KEY"), rows(1))
    assert server.bodies == []


# --- a judge ------------------------------------------------------------------------------------------------------


def judged_by(server: MeasuringServer, what: str) -> str:
    return f"judge: {{endpoint: '{server.url}/v1', model: a-judge, tries: 1}}\nlimits:\n  mine: {what}\n"


def last_turn(body: Row) -> str:
    return str(body["messages"][-1]["content"])


def test_a_judge_is_asked_the_users_own_question(tmp_path: Path, server: MeasuringServer) -> None:
    (tmp_path / "brand.md").write_text("Does it mention {a competitor}?")
    server.chat = lambda body: (200, "It does. [[yes]]" if "answer 3\n" in last_turn(body) else "[[ no ]]")
    limits = judged_by(server, "{rate: {judge: {question: brand.md}}, at_most: 20 %}")
    found = result(tmp_path, limits, rows(10))
    assert (found["estimate"], found["n"], found["failed"]) == (pytest.approx(0.1), 10, 0)
    assert all("Does it mention {a competitor}?" in last_turn(body) for body in server.bodies)
    assert {body["model"] for body in server.bodies} == {"a-judge"}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [((200, "I think so"), "gave no verdict"), ((200, "[[unsure]]"), "was unsure"), ((500, "down"), "500 down"),
     ((200, "[[NaN]]"), "gave no verdict")],
)  # fmt: skip
def test_a_judge_that_cannot_be_read_gives_no_number(
    tmp_path: Path, server: MeasuringServer, reply: tuple[int, str], reason: str
) -> None:
    server.chat = lambda body: reply if "answer 2\n" in last_turn(body) else (200, "[[yes]]")
    limits = judged_by(server, "{rate: {judge: {question: 'Is it polite?'}}, at_least: 50 %}")
    found = result(tmp_path, limits, rows(4))
    assert (found["estimate"], found["n"], found["failed"]) == (1.0, 3, 1)
    assert found["reasons"][0].startswith("row 2: judge a-judge ")
    assert reason in found["reasons"][0]


def test_a_judge_of_numbers_stays_within_the_bounds(tmp_path: Path, server: MeasuringServer) -> None:
    server.chat = lambda body: (200, "[[11]]" if "answer 1\n" in last_turn(body) else "[[7.5]]")
    limits = judged_by(server, "{mean: {judge: {question: 'How warm is it?'}}, at_least: 5, bounds: [0, 10]}")
    found = result(tmp_path, limits, rows(3))
    assert (found["estimate"], found["failed"]) == (7.5, 1)
    assert "outside [0.0, 10.0]" in found["reasons"][0]


def test_wins_against_the_reference_are_asked_in_both_orders(tmp_path: Path, server: MeasuringServer) -> None:
    """A judge that always prefers the first answer sees a tie; one that sees the better answer sees a win."""
    limits = judged_by(
        server, "{rate: {judge: {question: 'Which helps?'}}, versus: reference, at_least: 50 %, answers: 100}"
    )
    given = rows(6, reference="worse")
    server.chat = lambda body: (200, "[[A]]")
    assert result(tmp_path, limits, given)["estimate"] == 0.5
    server.chat = lambda body: (200, "[[B]]" if "[answer A]\nworse" in last_turn(body) else "[[A]]")
    found = result(tmp_path, limits, [*given, *rows(1)])
    assert (found["estimate"], found["n"], found["failed"]) == (1.0, 6, 1)
    assert "no reference answer" in found["reasons"][0]


def test_several_opinions_are_averaged(tmp_path: Path, server: MeasuringServer) -> None:
    server.chat = lambda body: (200, "[[yes]]" if body["seed"] % 2 else "[[no]]")
    limits = judged_by(server, "{rate: {judge: {question: 'Is it so?'}}, labels_each: 40, at_most: 90 %}")
    found = result(tmp_path, limits, rows(2))
    assert len(server.bodies) == 80
    odd = [body["seed"] % 2 for body in server.bodies]
    assert found["estimate"] == pytest.approx(np.mean(odd))
    assert 0.2 < np.mean(odd) < 0.8


# --- versus the reference, by a rule -----------------------------------------------------------------------------


def test_a_mean_versus_the_reference_is_a_difference(tmp_path: Path) -> None:
    given = [
        {"prompt": "a", "response": "one two three", "reference": "one"},
        {"prompt": "b", "response": "one", "reference": "one two"},
        {"prompt": "c", "response": "one"},
    ]
    limits = "  mine: {mean: {rule: words}, versus: reference, at_most: 3, bounds: [0, 10]}\n"
    found = result(tmp_path, limits, given)
    assert (found["estimate"], found["n"], found["failed"]) == (0.5, 2, 1)
    assert -10 <= found["low"] < 0.5 < found["high"] <= 10


# --- people's labels in the rows ---------------------------------------------------------------------------------


def test_a_logit_of_labels_shows_the_unsafe_rate_beside_it(tmp_path: Path) -> None:
    """15 of 20 labels say unsafe: log 3."""
    given = rows(30, labels={"mine": [True] * 15 + ["safe"] * 5})
    found = result(tmp_path, "  mine: {logit: {people: {labels_each: 20}}, at_most: 0}\n", given)
    assert found["estimate"] == pytest.approx(np.log(3))
    assert "75 % of the labels say unsafe" in found["note"]
    assert found["low"] < np.log(3) < found["high"]


def test_a_label_too_few_is_no_number(tmp_path: Path) -> None:
    given = [*rows(3, labels={"mine": [True, False]}), *rows(1, labels={"mine": [True]}), *rows(1)]
    found = result(tmp_path, "  mine: {rate: {people: {labels_each: 2}}, at_most: 90 %}\n", given)
    assert (found["estimate"], found["n"], found["failed"]) == (0.5, 3, 2)
    assert found["reasons"][0] == "row 4: people gave 1 of 2 labels"


@pytest.mark.slow
def test_an_audit_makes_a_wrong_machine_right() -> None:
    """Over many draws of who is audited, the estimate is people's rate although the machine always says no."""
    people = [number % 4 == 0 for number in range(40)]
    estimates = []
    for draw in range(100):
        (stated,) = stated_limits(
            {
                "limits": {
                    f"m{draw}": {"rate": {"rule": "empty"}, "at_most": 0.5, "audited_by": {"people": "10 a round"}}
                }
            },
            "here",
        )
        silent = Source("machine", "1", one_by_one(lambda answer: False), VERDICT)
        answers = [
            Answer(f"p{n}", "x", {"labels": {stated.limit.name: label}}, where=f"row {n}")
            for n, label in enumerate(people)
        ]
        (found,) = check([(stated, silent)], answers)
        assert found.estimate is not None
        assert found.low is not None
        assert found.high is not None
        assert 0.0 <= found.low.number <= found.high.number <= 1.0
        estimates.append(found.estimate.number)
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - 0.25) < 4 * error
    assert 0.05 < np.std(estimates) < 0.2


def test_an_audited_answer_without_a_label_is_a_failure(tmp_path: Path) -> None:
    found = result(tmp_path, "  mine: {rate: {rule: empty}, at_most: 50 %, audited_by: {people: 4}}\n", rows(10))
    assert (found["n"], found["failed"]) == (6, 4)
    assert "people gave no label" in found["reasons"][0]


@pytest.mark.parametrize(("labels", "estimate"), [("better", 1.0), ("tie", 0.5), (["worse", "better", "tie"], 0.5)])
def test_people_say_how_often_an_answer_beats_the_references(tmp_path: Path, labels: Any, estimate: float) -> None:
    given = [
        *rows(20, reference="theirs", labels={"mine": labels}),
        *rows(1, reference="theirs", labels={"mine": True}),
        *rows(1, reference="theirs", labels={"mine": "abstain"}),
    ]
    found = result(tmp_path, "  mine: {rate: {people: {}}, versus: reference, at_least: 50 %}\n", given)
    assert (found["estimate"], found["n"], found["failed"]) == (estimate, 20, 2)
    assert found["reasons"][0] == "row 21: people gave True; a label is better, worse, tie or abstain"


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("{rate: {rule: empty}, versus: reference, at_most: 5 %, audited_by: {people: 4}}", "is not audited"),
        ("{mean: {rule: words}, at_most: 5, audited_by: {people: 4}}", "state `bounds: [low, high]`"),
        ("{kl: reference, at_most: 5, audited_by: {people: 4}}", "people cannot judge a distance"),
        ("{rate: {people: {}}, at_most: 5 %, audited_by: {people: 4}}", "another source than people"),
    ],
)
def test_what_people_cannot_correct_is_refused_before_a_file_is_measured(
    tmp_path: Path, limit: str, message: str
) -> None:
    with pytest.raises(UserError) as refused:
        result(tmp_path, f"  mine: {limit}\n", rows(3))
    assert message in str(refused.value)


def test_an_audit_without_known_bounds_is_refused_in_one_line(tmp_path: Path, server: MeasuringServer) -> None:
    limits = judged_by(
        server, "{logit: {judge: {question: 'Is it so?'}}, labels_each: 4, at_most: 0, audited_by: {people: 2}}"
    )
    with pytest.raises(UserError, match="audited_by needs `bounds` of the measure"):
        result(tmp_path, limits, rows(3))


@pytest.mark.slow
def test_an_audit_makes_a_judge_of_wins_right() -> None:
    """The judge calls every answer a win; people call a quarter better, a quarter ties and half worse: 37.5 %."""
    people = ["better", "tie", "worse", "worse"] * 10
    everything = Source("judge", "1", one_by_one(lambda answer: True), VERDICT)
    estimates = []
    for draw in range(100):
        asked: Row = {"rate": {"judge": {"question": "Which helps?"}}, "versus": "reference", "at_least": 0.5}
        (stated,) = stated_limits({"limits": {f"m{draw}": {**asked, "audited_by": {"people": "10 a round"}}}}, "here")
        answers = [
            Answer(f"p{n}", "x", {"reference": "y", "labels": {stated.limit.name: label}}, where=f"row {n}")
            for n, label in enumerate(people)
        ]
        (found,) = check([(stated, everything)], answers)
        assert found.estimate is not None
        estimates.append(found.estimate.number)
    assert abs(np.mean(estimates) - 0.375) < 4 * np.std(estimates) / np.sqrt(len(estimates))


# --- graders of OpenAI --------------------------------------------------------------------------------------------


def graded(folder: Path, grader: Row, given: list[Row], options: str = "", kind: str = "mean") -> dict[str, Any]:
    (folder / "grader.json").write_text(json.dumps(grader))
    bound = "bounds: [0, 1], at_least: 0.5" if kind == "mean" else "at_least: 50 %"
    return result(folder, f"  mine: {{{kind}: {{grader: grader.json{options}}}, {bound}}}\n", given)


@pytest.mark.parametrize(("operation", "expected"), [("eq", 1 / 4), ("ne", 3 / 4), ("like", 2 / 4), ("ilike", 3 / 4)])
def test_string_checks_by_hand(tmp_path: Path, operation: str, expected: float) -> None:
    grader = {"type": "string_check", "name": "g", "operation": operation,
              "input": "{{sample.output_text}}", "reference": "{{item.answer}}"}  # fmt: skip
    texts = ["Bern", "It is Bern.", "it is bern.", "Basel"]
    given = [{"prompt": text, "response": text, "answer": "Bern"} for text in texts]
    assert graded(tmp_path, grader, given)["estimate"] == pytest.approx(expected)


def test_similarities_by_hand() -> None:
    assert similarity("fuzzy_match", "abcd", "abed") == pytest.approx(2 * 3 / 8)
    assert similarity("rouge_1", "the cat sat", "The cat ran") == pytest.approx(2 / 3)
    assert similarity("rouge_2", "the cat sat", "The cat ran") == pytest.approx(1 / 2)
    assert similarity("rouge_l", "a b c d", "a c d b") == pytest.approx(3 / 4)
    assert (similarity("rouge_1", "", ""), similarity("fuzzy_match", "a", "")) == (1.0, 0.0)


def test_a_row_without_the_graders_field_is_no_number(tmp_path: Path) -> None:
    grader = {"type": "text_similarity", "name": "g", "evaluation_metric": "rouge_l",
              "input": "{{sample.output_text}}", "reference": "{{item.answer}}"}  # fmt: skip
    given = [{"prompt": "a", "response": "Bern", "answer": "Bern"}, {"prompt": "b", "response": "Bern"}]
    found = graded(tmp_path, grader, given)
    assert (found["estimate"], found["failed"]) == (1.0, 1)
    assert found["reasons"] == ["row 2: grader g found no item.answer in the row"]


@pytest.mark.slow
def test_model_graders_and_their_formula(tmp_path: Path, server: MeasuringServer) -> None:
    asked = {"role": "developer", "content": "Tone of {{sample.output_text}}?"}
    ask_label = {"type": "label_model", "name": "tone", "model": "m", "labels": ["kind", "rude"],
                 "passing_labels": ["kind"], "input": [asked]}  # fmt: skip
    ask_score = {"type": "score_model", "name": "depth", "model": "m", "range": [0, 4],
                 "input": [{"role": "user", "content": "Depth of {{sample.output_text}}?"}]}  # fmt: skip
    grader = {"type": "multi", "graders": {"tone": ask_label, "depth": ask_score},
              "calculate_output": "0.5 * tone + min(depth, 2) / 4"}  # fmt: skip

    def chat(body: Row) -> tuple[int, str]:
        first = body["messages"][0]
        assert first["role"] in ("system", "user")
        if first["content"].startswith("Tone"):
            return 200, "rude" if "answer 2" in first["content"] else "It is warm.\nKind."
        return 200, "3"

    server.chat = chat
    options = f", endpoint: '{server.url}/v1', tries: 1"
    found = graded(tmp_path, grader, rows(3), options)
    assert found["estimate"] == pytest.approx((1.0 + 0.5 + 1.0) / 3)
    server.chat = lambda body: (200, "lukewarm, perhaps")
    found = graded(tmp_path, ask_label, rows(3), options, kind="rate")
    assert (found["estimate"], found["failed"]) == (None, 3)
    assert "gave no label" in found["reasons"][0]


EQUAL = {"type": "string_check", "input": "a", "reference": "b", "operation": "eq"}


@pytest.mark.parametrize(
    ("grader", "message"),
    [
        ({"type": "python", "source": "def grade(): return 1"}, "write {function: my_package.my_module:grade}"),
        ({"type": "strange"}, "not known"),
        ({"type": "string_check", "input": "{{sample.output_tools}}", "reference": "", "operation": "eq"}, "item.KEY"),
        ({"type": "string_check", "input": "a", "reference": "b", "operation": "is"}, "operation must be one of"),
        ({"type": "text_similarity", "input": "a", "reference": "b", "evaluation_metric": "meteor"}, "rouge_l"),
        ({"type": "multi", "graders": {"a": EQUAL}, "calculate_output": "__import__('os').getcwd()"}, "no arithmetic"),
    ],
)  # fmt: skip
def test_a_grader_that_cannot_be_had_says_why(tmp_path: Path, grader: Row, message: str) -> None:
    with pytest.raises(UserError, match=r"limits\.mine\.mean\.grader") as error:
        graded(tmp_path, grader, rows(1))
    assert message in str(error.value)


# --- budget, deadline, largest share of failures -----------------------------------------------------------------


def flaky(fails: int) -> Source:
    def measure(answer: Answer) -> object:
        return None if int(answer.row["id"]) <= fails else True

    return Source("a source", "1", one_by_one(measure), VERDICT)


def asked_rows(count: int) -> list[Answer]:
    return [Answer(f"p{n}", "", {"id": n}, where=f"row {n}") for n in range(1, count + 1)]


def test_too_large_a_share_of_failures_is_one_error_with_limit_source_and_row() -> None:
    assert ask("tone", flaky(30), asked_rows(100), Asking(failed=0.3)).failed == 30
    with pytest.raises(RunError) as error:
        ask("tone", flaky(31), asked_rows(100), Asking(failed=0.3))
    assert "limit tone: a source gave no number for 31 of 100" in str(error.value)
    assert "row 1: a source abstained" in str(error.value)


def test_what_the_deadline_cuts_off_is_a_failure_and_not_a_number() -> None:
    clock = iter(range(100))
    found = ask("tone", flaky(0), asked_rows(10), Asking(seconds=4.0), now=lambda: float(next(clock)))
    assert (len(found.numbers), found.failed) == (4, 6)
    assert "was not asked: the deadline of 4 s had passed" in found.reasons[0]


def test_a_batch_that_began_in_time_is_waited_for_and_counts() -> None:
    """Six seconds a batch of four against a deadline of ten: two batches begin, the second ends at twelve."""
    spent = 0.0

    def measure(part: Sequence[Answer]) -> list[object]:
        nonlocal spent
        spent += 6.0
        return [True] * len(part)

    source = Source("a source", "1", measure, VERDICT, batch=4)
    measured = ask("tone", source, asked_rows(16), Asking(seconds=10.0), now=lambda: spent)
    assert (len(measured.numbers), measured.failed, spent) == (8, 8, 12.0)


def test_a_budget_measures_an_even_draw_that_is_the_same_every_time() -> None:
    found = ask("tone", flaky(0), asked_rows(100), Asking(answers=20))
    assert (found.asked, found.failed, found.values.count(None)) == (20, 0, 80)
    assert chosen_for("tone", 100, 20) == chosen_for("tone", 100, 20) != chosen_for("other", 100, 20)
    counts = np.zeros(10)
    for seed in range(2000):
        counts[chosen_for("tone", 10, 3, seed)] += 1
    assert np.abs(counts / 2000 - 0.3).max() < 4 * np.sqrt(0.3 * 0.7 / 2000)


def test_a_source_that_gives_another_number_of_values_gives_none() -> None:
    short = Source("a source", "1", lambda answers: [True], VERDICT, batch=4)
    found = ask("tone", short, asked_rows(4))
    assert all(isinstance(value, Unmeasured) for value in found.values)


# --- what a limit says ------------------------------------------------------------------------------------------


def test_a_floor_is_a_ceiling_of_the_complement_or_the_negated_measure() -> None:
    rate, mean = Quantity("rate", "share", None, 0.0, 1.0), Quantity("mean", "words", None, 0.0, 10.0)
    floor = Limit("valid", Amount(rate, 0.99), at_least=True)
    assert (floor.cost(1.0), floor.cost_range) == (0.0, (0.0, 1.0))
    assert floor.cost_limit == pytest.approx(0.01)
    longer = Limit("long", Amount(mean, 3.0), at_least=True)
    assert (longer.cost(5.0), longer.cost_limit, longer.cost_range) == (-5.0, -3.0, (-10.0, 0.0))
    assert longer.violation(Amount(mean, 2.0)) == 1.0
    assert Limit("short", Amount(mean, 3.0)).violation(Amount(mean, 2.0)) == -1.0
    bounded = Limit("short", Amount(Quantity("mean", "tokens", None, 0.0, None), 80.0)).within(0.0, 128.0)
    assert bounded.cost_range == (0.0, 128.0)


def stated(text: str) -> Limit:
    return stated_limits({"limits": {"a": yaml.safe_load(text)}}, "here")[0].limit


def test_numbers_are_read_as_people_write_them() -> None:
    assert stated("{rate: {rule: refusal}, at_most: 0.1 %}").bound.number == pytest.approx(0.001)
    assert stated("{mean: {rule: tokens}, at_most: 80}").bound.number == 80
    assert stated("{mean: {rule: tokens}, at_most: 80 tokens}").bound.number == 80
    minutes = "{mean: {function: 'a:b'}, unit: minutes, at_most: %s}"
    assert stated(minutes % "2 min").bound.number == stated(minutes % "120 s").bound.number == 2
    with pytest.raises(UserError, match="in words, and the measure is in tokens"):
        stated("{mean: {rule: tokens}, at_most: 80 words}")


@pytest.mark.parametrize("key", ["no", "on", "1", "Yes", "1.5", "null"])
def test_a_key_that_yaml_reads_as_another_type_is_refused_with_the_right_spelling(tmp_path: Path, key: str) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(f"limits:\n  {key}: {{rate: {{rule: empty}}, at_most: 5 %}}\n")
    with pytest.raises(UserError, match="line 2: YAML reads the key") as error:
        read_limits(path)
    assert f'write "{key}":' in str(error.value)
    path.write_text(f'limits:\n  "{key}": {{rate: {{rule: empty}}, at_most: 5 %}}\n')
    assert [stated.limit.name for stated, _ in read_limits(path)] == [key]


def test_a_limit_that_a_file_cannot_show_is_undecided(tmp_path: Path) -> None:
    found = result(tmp_path, "  mine: {kl: reference, at_most: 8}\n", rows(2))
    assert (found["estimate"], found["kept"], found["n"]) == (None, None, 0)
    assert "measured in a run" in found["note"]


def test_a_row_may_belong_to_several_sets(tmp_path: Path) -> None:
    given = [*rows(4, set=["red_team", "fraud"]), *rows(2, set="red_team"), *rows(3, set="benign")]
    assert result(tmp_path, "  mine: {rate: {rule: empty}, over: fraud, at_most: 50 %}\n", given)["n"] == 4
    assert result(tmp_path, "  mine: {rate: {rule: empty}, over: red_team, at_most: 50 %}\n", given)["n"] == 6
    assert len(read_answers(tmp_path / "answers.jsonl")) == 9
