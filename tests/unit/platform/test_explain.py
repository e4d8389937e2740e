"""What `pddpo explain` and docs/settings.md say about the keys of a recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pddpo_ray.cli.main import main
from pddpo_ray.config.explaining import (
    FIRST,
    LABORATORY,
    SYNONYMS,
    every_key,
    explained,
    first_keys,
    keys_of_section,
    settings_page,
)
from pddpo_ray.errors import UserError

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_pages_are_those_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), "pddpo explain --page > docs/settings.md"
    laboratory = PAGE.with_name("settings-laboratory.md").read_text(encoding="utf-8")
    assert laboratory == settings_page(laboratory=True), "pddpo explain world --page > docs/settings-laboratory.md"
    assert len(settings_page().splitlines()) <= 400


def test_every_key_says_who_would_change_it() -> None:
    said = {one.key: one.changed_by for one in every_key()}
    assert set(said.values()) == {"everyone", "engineer", "operator", "labelling lead", "researcher"}
    assert {key for key, who in said.items() if who == "everyone"} == set(FIRST) | {"limits"}
    assert [said[key] for key in ("trainer.fit.warmup", "trainer.refit", "trainer.workers", "people")] == [
        "engineer", "researcher", "operator", "labelling lead",
    ]  # fmt: skip


def test_a_run_has_at_most_200_settings() -> None:
    """Every key with a value, in every variant, beside those of worlds and compared methods: a page that one can read.

    A new one takes the place of another, or of a constant's."""
    variants: dict[str, set[str]] = {}
    for one in every_key():
        variants.setdefault(one.key, set()).add(one.takes)
    settings = [key for key, takes in variants.items() if "a section" not in takes]
    settings = [key for key in settings if key.partition(".")[0] not in LABORATORY]
    assert 100 < len(settings) <= 200


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("lora", "model.parameters.rank"),
        ("batch size", "trainer.fit.batch_pairs"),
        ("epochs", "trainer.fit.epochs"),
        ("learning rate", "trainer.fit.learning_rate"),
        ("wandb", "report.trackers"),
        ("quantisation", "model.parameters.quantise"),
        ("fsdp", "trainer.engine"),
        ("max length", "rollout.max_model_len"),
        ("Gradient_accumulation", "trainer.micro_pairs"),
        ("longest answer, in", "rollout.max_tokens"),
    ],
)
def test_keys_are_found_by_what_others_call_them_and_by_words(words: str, key: str) -> None:
    assert key in {one.key for one in explained(words)}


def test_every_key_that_matters_first_and_every_synonym_is_a_key() -> None:
    every = {one.key for one in every_key()}
    assert len(FIRST) == len(set(FIRST)) == 25
    assert {*FIRST, *SYNONYMS.values()} <= every
    assert [one.key for one in first_keys()] == list(FIRST)


def test_every_key_that_a_recipe_may_set_is_explained() -> None:
    every = {one.key for one in every_key()}
    assert every >= {"report.trackers.wandb.project", "report.trackers.mlflow.uri", "method.window"}
    silent = [one.key for one in every_key() if not one.about and one.takes != "a section"]
    assert silent == []


def test_a_key_says_what_it_takes_and_its_default() -> None:
    (beta,) = explained("beta")
    assert (beta.takes, beta.default) == ("number, > 0", "0.1")
    (damping,) = explained("dual.rule.damping")
    assert (damping.variant, damping.takes) == ("kind: newton", "number, > 0 and ≤ 1")
    kinds = {one.variant for one in explained("feedback.kind")}
    assert {"kind: world", "kind: people", "kind: model", "kind: judge"} <= kinds
    assert "algorithm" in {one.key for one in every_key()}
    assert next(iter(explained("rounds"))).default == "16"


def test_a_section_lists_its_keys_alone() -> None:
    keys = [one.key for one in keys_of_section("dual")]
    assert {"dual.cost_max", "dual.rule"} <= set(keys)
    assert all(key.count(".") == 1 for key in keys)


def test_a_wrong_key_names_near_ones() -> None:
    with pytest.raises(UserError, match=r"there is no key `damping`; did you mean dual\.rule\.damping"):
        explained("damping")
    with pytest.raises(UserError, match=r"did you mean .*explore\.picks"):
        explained("explore.pick")


def test_the_terminal_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "dual"])
    said = capsys.readouterr().out
    assert not ended.value.code
    assert "cost_max" in said
    assert "costs lie in [-C, C]" in said
    with pytest.raises(SystemExit):
        main(["explain", "explore.picks", "--json"])
    assert json.loads(capsys.readouterr().out)["keys"][0]["default"] == "6"
