"""People in a run who compare with the reference's answer, and who audit a mean, a logit, and a certified mixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.certificates.ledger import read_ledger
from pddpo_ray.certificates.testing import certify
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.records import Response
from pddpo_ray.theory.certificates.certificate import upper_bound
from pddpo_ray.theory.certificates.levels import Allocation
from pddpo_ray.theory.certificates.measured_draws import mixture_upper_bound
from tests.runs.test_limits_on_text import twin
from tests.runs.test_people_limits import AT_ONCE, BATCH, PARKED, broken_off_again, nobody_twice, parked
from tests.support.answering_people import answering
from tests.support.measured import measured_in

QUESTION = "# Which answer tells more?\n\nThe longer one does.\n"
WINS = {"left": 1.0, "tie": 0.5, "right": 0.0}


def longer(question: Lease, person: int) -> bool | str | None:
    """Person 0 finds the longer answer better, others find both alike."""
    if question.kind != "better":
        return len(question.left) % 2 == 0
    assert question.right is not None
    apart = len(question.left) - len(question.right)
    return "tie" if person or not apart else "left" if apart > 0 else "right"


@pytest.mark.slow
def test_people_say_which_answer_is_better_and_nobody_knows_which_is_the_policys(tmp_path: Path) -> None:
    folder, question = tmp_path / "run", tmp_path / "tells.md"
    question.write_text(QUESTION)
    source = f"{{people: {{question: {question}, labels_each: 2}}}}"
    own = (
        f"limits.tells={{rate: {source}, versus: reference, over: outside, at_least: 20 %, answers: 10}}",
        "dual.rho=4",
        BATCH,
    )
    line = parked(twin(*own, PARKED), folder)
    assert "measure-offline-tells: waiting for people, 0 of" in line
    config = twin(*own, AT_ONCE)
    with answering(folder, 2, longer) as crowd:
        broken_off_again(config, folder, 2, "measure-answers")
        result = run_recipe(config, folder, resume=True)
        in_rounds = len(crowd.said)
        entry = certify(config, folder, "last", {"tells": 0.02, "harmful": 1.9, "length": 19.0}, 8)
    assert nobody_twice(crowd)
    assert {one.asks for one in crowd.said} == {QUESTION}
    with open_folder(folder) as journal:
        column = [one.limit.name for one in config.stated].index("tells")
        payload = measured_in(journal, 2)
        drawn = {one.id: one for one in journal.samples(2, "cost")}
        policys = {name: one.text for name, one in drawn.items()}
        theirs = journal.samples(2, "reference-measure-answers")
        step = next(one for one in journal.dual_steps() if (one.round, one.constraint) == (2, "tells"))
    costs = {one: row[column] for one, row in zip(payload["ids"], payload["costs"], strict=True)}
    asked = {name: cost for name, cost in costs.items() if cost is not None}
    assert len(asked) == 10
    beside = dict(zip(_beside(payload["ids"], drawn, theirs), theirs, strict=True))
    for name, cost in asked.items():
        assert cost in (0.25, 0.5, 0.75)  # 1 less a mean of a win, a tie or a loss, and a tie
        apart = len(policys[name]) - len(beside[name].text)
        assert cost == 1.0 - (0.5 + 0.5 + 0.5 * np.sign(apart)) / 2.0
    assert step.estimate.value == pytest.approx(np.mean(list(asked.values())))
    assert result["limits"]["tells"]["limit"] == "at least 20 % over outside versus the reference"
    # whose answer stands on the left is drawn
    left = [one.answer in set(policys.values()) for one in crowd.said[:in_rounds] if one.answer != one.other]
    assert 0 < sum(left) < len(left)
    numbers = [number for number in entry.numbers["tells"] if number is not None]
    assert len(numbers) == len(entry.numbers["tells"])
    assert set(numbers) <= {0.25, 0.5, 0.75}
    assert entry.findings["tells"].upper == pytest.approx(
        min(upper_bound(numbers, 0.98, Allocation().level(0.05, 1)), 0.98)
        if entry.findings["tells"].state == "certified"
        else min(upper_bound(numbers, 0.98, Allocation().level(0.05, 1)), 1.0)
    )


def _beside(ids: list[str], drawn: dict[str, Response], theirs: list[Response]) -> list[str]:
    """Which answers have one of the reference beside them: those to its prompts, in their order."""
    prompts = {one.prompt.id for one in theirs}
    return [name for name in ids if drawn[name].prompt.id in prompts]


def audits(question: Lease, person: int) -> bool | str | None:
    """Everybody gives a word more than there are, and of four people two call an answer unsafe."""
    if question.kind == "number":
        assert question.bounds == (8.0, 20.0)
        return str(min(len(question.left.split()) + 1, 20))
    return person < 2


@pytest.mark.full
@pytest.mark.slow
def test_people_audit_a_mean_and_a_logit_and_the_rounds_certify_their_mixture(tmp_path: Path) -> None:
    """The numbers of the mixture are f + (xi/q)(y - f) of exactly 5 of a round's 20 answers."""
    folder, question = tmp_path / "run", tmp_path / "words.md"
    question.write_text("# How many words?\n")
    mean = f"{{mean: {{rule: words}}, at_most: 19, bounds: [8, 20], audited_by: {{people: 5, question: {question}}}}}"
    own = (
        f"limits.length={mean}",
        "limits.harmful={logit: {world: cost}, at_most: 1.9, labels_each: 4, audited_by: {people: 5}}",
        "dual.rho=4",
        "certificate={batch: 8, mixtures: [1]}",
        "feedback.responses=20",
    )
    line = parked(twin(*own, PARKED), folder)
    assert "measure-answers-harmful: waiting for people, 0 of 20 labels" in line
    config = twin(*own, AT_ONCE)
    names = [one.limit.name for one in config.stated]
    with answering(folder, 4, audits) as crowd:
        result = run_recipe(config, folder, resume=True)
    assert nobody_twice(crowd)
    assert len(crowd.said) == 2 * (5 + 5 * 4)
    with open_folder(folder) as journal:
        payloads = [measured_in(journal, number) for number in (1, 2)]
        steps = {(one.round, one.constraint): one.estimate for one in journal.dual_steps()}
        (entry,) = [one for one in read_ledger(journal) if one.candidate.first_round is not None]
        texts = {one.id: one.text for one in journal.samples(2, "cost")}
    corrected: dict[str, list[float]] = {"length": [], "harmful": []}
    for number, payload in enumerate(payloads, start=1):
        for name, values in corrected.items():
            column = names.index(name)
            machine = np.array([row[column] for row in payload["costs"]], dtype=float)
            shown = {row: (cost, chance) for row, at, cost, chance in payload["audit"] if at == column}
            assert len(shown) == 5
            for row, (cost, chance) in shown.items():
                assert chance == 0.25
                if number == 2 and name == "length":
                    assert cost == min(len(texts[payload["ids"][row]].split()) + 1, 20)
                if name == "harmful":
                    assert cost == pytest.approx(0.0)
                machine[row] += (cost - machine[row]) / chance
            assert steps[number, name].value == pytest.approx(machine.mean())
            values += machine.reshape(-1, 2).mean(axis=1).tolist()
    assert "length: rule says 1 lower than people" in result["limits"]["length"]["audit"]["text"]
    tested = {one.name: one for one in entry.candidate.limits}
    for name, values in corrected.items():
        limit, found = tested[name], entry.findings[name]
        assert limit.people == 0.25
        assert limit.source.startswith("people, who saw 25 % of each round's answers, drawn evenly, with ")
        assert entry.numbers[name] == pytest.approx(values)
        low, high = limit.low, limit.high
        assert limit.ends == pytest.approx((high - (high - low) / 0.25, low + (high - low) / 0.25))
        bound = mixture_upper_bound(
            [[limit.to_unit(one) for one in values[start : start + 10]] for start in (0, 10)],
            limit.to_unit(limit.limit - limit.bias),
            limit.level,
        )
        assert found.upper == pytest.approx(min(limit.from_unit(bound) + limit.bias, high))
    assert tested["rude"].people is None


@pytest.mark.run
def test_sets_that_share_prompts_leave_an_audit_no_fixed_share_of_a_round(tmp_path: Path) -> None:
    both = [*range(12, 24), 0]
    own = (
        f"prompts.outside={{indices: {both}, share: 40 %}}",
        "limits.rude.audited_by={people: 4}",
        "certificate.mixtures=[1]",
        "feedback.responses=20",
        "dual.rho=4",
    )
    with pytest.raises(UserError, match="prompts of `outside` are in another set too") as refused:
        run_recipe(twin(*own), tmp_path / "run")
    assert "\n" not in str(refused.value)


def test_a_number_outside_its_bounds_is_refused_and_kept_as_it_was_given() -> None:
    from pddpo_ray.annotation.queue.answer_forms import screen_form, stored_form
    from pddpo_ray.annotation.queue.queue_rules import QueueError
    from pddpo_ray.parts.questions import value_of

    bounds = (0.0, 10.0)
    assert value_of(stored_form("number", {"number": "3.5"}, False, bounds)) == 3.5
    for wrong in ("", "ten", "nan", "inf", "10.1", "-1", True, None):
        with pytest.raises(QueueError, match="number is one from 0 to 10"):
            stored_form("number", {"number": wrong}, False, bounds)
    for swap, side, value in ((False, "left", 1.0), (True, "left", 0.0), (True, "right", 1.0), (True, "tie", 0.5)):
        stored: Any = stored_form("better", {"better": side}, swap)
        assert value_of(stored) == value
        assert screen_form("better", stored, swap) == {"better": side}
