"""What is reachable by choosing among answers: by hand, by enumeration, and with noisy labels."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.errors import UserError
from pddpo_ray.limits.reading import stated_limits
from pddpo_ray.limits.sources import Answer
from pddpo_ray.limits.suggest import Suggestion, suggest
from pddpo_ray.scoring.sources.opening import Surroundings, open_source
from tests.support.tiny_language_model import save_policy

LENGTHS = "short: {mean: {rule: words}, at_most: 3, bounds: [0, 20]}"
REFUSALS = "refuses: {rate: {rule: refusal}, at_most: 10 %}"
CANNOT = "I cannot help."


def suggested(limits: str, answers: list[Answer]) -> Suggestion:
    stated = stated_limits({"limits": yaml.safe_load(limits)}, "here")
    return suggest([(one, open_source(one, Surroundings(Path()))) for one in stated], answers)


def words(count: int) -> str:
    return " ".join(["word"] * count)


def test_the_best_answers_are_chosen_by_hand() -> None:
    """Words 2 or 8, and 5 or 6: now 5.25, best (2 + 5)/2, and the second prompt has no answer of 3 words."""
    texts = {"a": [words(2), words(8)], "b": [words(5), words(6)]}
    found = suggested(LENGTHS, [Answer(prompt, text) for prompt, own in texts.items() for text in own])
    (one,) = found.limits
    assert one.now.estimate is not None
    assert one.best is not None
    assert (one.now.estimate.number, one.best.number, one.broken) == (5.25, 3.5, 0.5)
    assert found.jointly is False
    assert found.answers_each == 2


def test_limits_that_can_each_be_kept_may_not_be_kept_together() -> None:
    """The only short answers refuse: either limit alone is reachable, both at once are not; enumeration agrees."""
    answers = [Answer(f"p{n}", text) for n in range(4) for text in (CANNOT, words(9))]
    found = suggested(f"{LENGTHS}\n{REFUSALS}", answers)
    assert [one.broken for one in found.limits] == [0.0, 0.0]
    assert found.jointly is False
    costs = np.array([[(3 - 3) / 20, 1 - 0.1], [(9 - 3) / 20, 0 - 0.1]])
    best = max(-max(share * costs[0] + (1 - share) * costs[1]) for share in np.linspace(0, 1, 100001))
    short, refuses = (one.together for one in found.limits)
    assert short is not None
    assert refuses is not None
    reached = -max((short.number - 3) / 20, refuses.number - 0.1)
    assert reached == pytest.approx(best, abs=1e-4)


def test_sets_and_floors_are_chosen_over_their_own_prompts() -> None:
    rows = [("a", words(1), "x"), ("a", words(4), "x"), ("b", words(2), "y"), ("b", words(7), "y")]
    limits = "long: {mean: {rule: words}, over: x, at_least: 3, bounds: [0, 20]}\n" + LENGTHS.replace(
        "short: {", "short: {over: y, "
    )
    found = suggested(limits, [Answer(prompt, text, {"set": name}) for prompt, text, name in rows])
    long, short = found.limits
    assert long.best is not None
    assert short.best is not None
    assert (long.best.number, short.best.number) == (4.0, 2.0)
    assert found.jointly is True


def test_labels_that_choose_do_not_measure() -> None:
    """Fair coins as labels: the best of six answers by one half of two labels still has rate 1/2 by the other half."""
    generator = np.random.default_rng(5)
    answers = [
        Answer(f"p{n}", "x", {"labels": {"harm": [bool(bit) for bit in generator.integers(0, 2, 2)]}})
        for n in range(400)
        for _ in range(6)
    ]
    (one,) = suggested("harm: {rate: {people: {labels_each: 2}}, at_most: 50 %}", answers).limits
    assert one.best is not None
    assert abs(one.best.number - 0.5) < 4 * np.sqrt(0.25 / 400)


def test_answers_without_a_number_are_not_chosen() -> None:
    labels: list[Any] = [[True, True], "abstain", [False, False], [True, True]]
    answers = [Answer(prompt, "x", {"labels": {"harm": label}}) for prompt, label in zip("aabb", labels, strict=True)]
    (one,) = suggested("harm: {rate: {people: {}}, at_most: 50 %}", answers).limits
    assert one.best is not None
    assert one.best.number == 0.5
    assert one.now.failed == 1


def test_single_answers_cannot_be_chosen_among() -> None:
    with pytest.raises(UserError, match="single answer"):
        suggested(LENGTHS, [Answer("a", "x"), Answer("b", "y")])


def test_a_model_answers_the_prompt_sets_of_the_file(tmp_path: Path) -> None:
    """A real tiny model through the command; its saved answers give the same advice again."""
    save_policy(tmp_path / "model", seed=1)
    (tmp_path / "some.jsonl").write_text("".join(json.dumps({"prompt": f"word{n}"}) + "\n" for n in (1, 2, 3)))
    (tmp_path / "more.jsonl").write_text("".join(json.dumps({"prompt": f"word{n}"}) + "\n" for n in (3, 4)))
    limits = tmp_path / "limits.yaml"
    limits.write_text(
        "prompts:\n  some: {files: [some.jsonl]}\n  more: {files: [more.jsonl]}\n"
        "limits:\n  short: {mean: {rule: words}, over: some, at_most: 4, bounds: [0, 20]}\n"
        "  empty: {rate: {rule: empty}, at_most: 50 %}\n"
    )
    saved = tmp_path / "answers.jsonl"
    asked = ["limits", "suggest", str(limits), "--json"]
    model = ["--model", str(tmp_path / "model"), "--samples", "3", "--max-tokens", "6", "--save", str(saved)]
    first = CliRunner().invoke(app, [*asked, *model], catch_exceptions=False)
    again = CliRunner().invoke(app, [*asked, "--on", str(saved)], catch_exceptions=False)
    rows = [json.loads(line) for line in saved.read_text().splitlines()]
    assert [row["set"] for row in rows] == [
        sets for sets in (["some"], ["some"], ["some", "more"], ["more"]) for _ in range(3)
    ]
    found = json.loads(first.stdout)
    assert found == json.loads(again.stdout)
    lengths = {key: [len(row["response"].split()) for row in own] for key, own in itertools.groupby(rows, _prompt)}
    some = [min(lengths[f"word{n}"]) for n in (1, 2, 3)]
    assert found["limits"]["short"]["best"] == pytest.approx(np.mean(some))
    assert found["limits"]["short"]["n"] == 9


def _prompt(row: dict[str, Any]) -> str:
    return str(row["prompt"][0]["content"])


def test_either_answers_or_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="either --on"):
        CliRunner().invoke(app, ["limits", "suggest", "limits.yaml"], catch_exceptions=False)
