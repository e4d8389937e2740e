"""What a plan counts against what small runs draw: answers by purpose, and tokens at most."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal import JournalReader, read_journal
from pddpo_ray.plan.cost_model import prompts_of, work
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.small_real_text import SMALL_REAL_TEXT
from tests.support.tiers import in_full
from tools.small_runs import HERE, METHODS, TEXT

ALONE = [*TEXT, "offline.compare_rounds=0", *HERE]


def drawn_in(journal: JournalReader, round_: int) -> tuple[Counter[str], int]:
    """Answers that the engines wrote in a round, by purpose, and their tokens by the run's own count."""
    metrics = journal.metrics().get(round_, {})
    purposes = [name.split("/")[1].removesuffix("_tokens") for name in metrics if name.endswith("_tokens")]
    counted = Counter({purpose: len(journal.samples(round_, purpose)) for purpose in purposes})
    return counted, round(sum(value for name, value in metrics.items() if name.endswith("_tokens")))


@pytest.mark.full
@pytest.mark.slow
def test_a_plan_of_real_text_counts_the_prompts_of_the_pairs(tmp_path: Path) -> None:
    """20 pairs have 20 prompts at most, however many are asked for: 40 answers whiten the features where 24 prompts
    would give 24. 3,840 tokens were planned so on a real model, and 4,257 drawn."""
    size = ["rounds=1", "data.prompt_count=24", "offline.pairs=20", "explore.calibration=24"]
    config = load("real-text", [*SMALL_REAL_TEXT, f"data.cache={tmp_path / 'cache'}", *size])
    run_recipe(config, tmp_path / "run")
    planned = work(config)
    assert prompts_of(config) == 20
    with read_journal(tmp_path / "run" / JOURNAL) as journal:
        for number, stretch in enumerate(("before", "first_round")):
            answers, tokens = drawn_in(journal, number)
            assert answers == planned[stretch]["answers"]
            assert 0 < tokens <= planned[stretch]["tokens"]


def test_an_explicit_dual_is_asked_for_answers_of_the_reference_unless_its_multiplier_is_given() -> None:
    config = load("text-world", [*ALONE, "algorithm=mocan", *METHODS["mocan"]])
    prompts = prompts_of(config)
    assert work(config)["before"]["answers"]["dual"] == 16 * prompts
    for method in ("mocan", "pecan"):
        given = load("text-world", [*ALONE, f"algorithm={method}", *METHODS[method], "method.multiplier=0.5"])
        assert set(work(given)["before"]["answers"]) == {"offline"}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "own"), [*in_full(("caid", ["method.scores=policies"])), ("safe-rlhf", [])])
def test_a_plan_counts_what_methods_draw_from_the_reference(tmp_path: Path, method: str, own: list[str]) -> None:
    config = load("text-world", [*ALONE, f"algorithm={method}", *METHODS[method], "rounds=1", *own])
    run_recipe(config, tmp_path / "run")
    planned = work(config)
    with read_journal(tmp_path / "run" / JOURNAL) as journal:
        for number, stretch in enumerate(("before", "first_round")):
            answers, tokens = drawn_in(journal, number)
            assert answers == planned[stretch]["answers"]
            assert tokens <= planned[stretch]["tokens"]
