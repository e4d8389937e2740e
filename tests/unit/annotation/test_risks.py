"""The risk of a question: the highest that a model's score or the category of its prompt says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import ParkedError, UserError
from pddpo_ray.journal.annotation_schema import question_round, task
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.identity import JOURNAL
from pddpo_ray.parts.people import highest_known, stated_risk
from pddpo_ray.parts.questions import UNKNOWN_RISK
from pddpo_ray.records import Prompt, Response
from tests.runs.test_limits_on_text import twin
from tests.runs.test_people_limits import parked
from tests.unit.data.test_real_text import tiny

CATEGORIES_OF = {"p0": ["violence"], "p1": ["cooking"], "p2": ["cooking", "violence"], "p3": ["travel"]}
ANSWERS = [Response(f"r{n}", Prompt(f"p{n}", (n,), f"question {n}"), (3,), "an answer", 1, 0) for n in range(5)]
RISKS = {"violence": 0.9, "cooking": 0.1}


def people(*overrides: str) -> Config:
    return load("tabular", ["feedback.kind=people", *overrides])


def risks_asked(folder: Path) -> dict[str, set[float]]:
    """Risks of the questions of a run, by the purpose of their batch."""
    engine = open_database(folder / JOURNAL)
    query = select(question_round.c.purpose, task.c.risk).join(task, task.c.question_round == question_round.c.id)
    found: dict[str, set[float]] = {}
    with engine.connect() as connection:
        for row in connection.execute(query):
            found.setdefault(row.purpose, set()).add(row.risk)
    engine.dispose()
    return found


def test_the_highest_of_the_categories_holds_and_nobody_knows_the_risk_of_the_others() -> None:
    risk_of = highest_known(RISKS, CATEGORIES_OF)
    assert risk_of(ANSWERS) == [0.9, 0.1, 0.9, UNKNOWN_RISK, UNKNOWN_RISK]
    assert risk_of([]) == []


def test_a_category_raises_what_a_model_says_and_never_lowers_it() -> None:
    risk_of = highest_known(RISKS, CATEGORIES_OF, lambda answers: [0.3] * len(answers))
    assert risk_of(ANSWERS) == [0.9, 0.3, 0.9, 0.3, 0.3]


def test_without_a_stated_risk_the_score_stands_alone() -> None:
    assert stated_risk(people(), CATEGORIES_OF) is None
    score = lambda answers: [0.3] * len(answers)  # noqa: E731
    assert stated_risk(people(), CATEGORIES_OF, score) is score


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (
            CATEGORIES_OF,
            r"people\.risk_by_category: no prompt of the run is in `violense`; did you mean `violence`\?",
        ),
        ({"p0": ["sport"], "p1": ["travel"]}, r"is in `violense`; there are sport, travel$"),
        ({}, r"is in `violense`; its prompts have no `category` and no prompt set$"),
    ],
)
def test_a_category_that_no_prompt_has_is_refused_with_the_nearest_name(
    known: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        stated_risk(people("people.risk_by_category={violense: 0.9}"), known)


def test_a_risk_is_a_chance() -> None:
    with pytest.raises(UserError, match=r"risk_by_category\.violence"):
        people("people.risk_by_category={violence: 90}")


def test_a_run_may_go_on_with_another_risk() -> None:
    assert people().digest() == people("people.risk_by_category={violence: 0.9}").digest()


@pytest.mark.full
@pytest.mark.slow
def test_people_are_asked_about_a_prompt_with_the_risk_of_its_category(tmp_path: Path) -> None:
    file, kinds = tmp_path / "prompts.jsonl", ("violence", "cooking", "travel")
    asked = [{"prompt": f"What about {kind} in town {n}?", "category": kind} for n in range(6) for kind in kinds]
    file.write_text("".join(json.dumps(one) + "\n" for one in asked), encoding="utf-8")
    settings = (
        f"data.prompts=['{file}']", "feedback={kind: people, responses: 40}", "people.park_after_s=0",
        "limits.cost.labels_each=5",
        "people.risk_by_category={violence: 0.9, cooking: 0.1}", "rounds=1", "data.prompt_count=18",
    )  # fmt: skip
    with pytest.raises(ParkedError):
        run_recipe(tiny(tmp_path / "cache", *settings), tmp_path / "run")
    assert risks_asked(tmp_path / "run")["safety"] == {0.9, 0.1, UNKNOWN_RISK}


@pytest.mark.full
@pytest.mark.slow
def test_questions_of_a_limit_have_the_risk_of_their_prompt_set(tmp_path: Path) -> None:
    own = (
        "limits.rude={rate: {people: {}}, over: outside, at_most: 60 %}",
        "limits.harmful={logit: {people: {}}, at_most: 0, labels_each: 1}",
        "people={park_after_s: 0, risk_by_category: {outside: 0.25}}",
        "dual.rho=4",
    )
    parked(twin(*own), tmp_path / "run")
    risks = risks_asked(tmp_path / "run")
    assert risks["measure-answers-rude"] == {0.25}
    assert risks["measure-answers-harmful"] == {0.25, UNKNOWN_RISK}
