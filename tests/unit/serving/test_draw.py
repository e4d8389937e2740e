"""The draw from the mixture: even over rounds, the same for the same conversation, barely moved by a new round."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from pddpo_ray.serving.catalog import conversation_of, drawn_round
from pddpo_ray.storage.whole_files import kept_secret

DRAWS = 20_000


@pytest.mark.parametrize("rounds", [range(1, 4), range(1, 9), (3, 7, 11, 12, 40)])
def test_twenty_thousand_conversations_are_spread_evenly_over_the_rounds(rounds: range | tuple[int, ...]) -> None:
    """A fixed seed, so the p-value is a number and not a chance; a draw biased by a few per cent gives p < 1e-6."""
    counts = Counter(drawn_round(f"conversation {number}", tuple(rounds), seed=5) for number in range(DRAWS))
    assert set(counts) == set(rounds)
    assert chisquare([counts[number] for number in rounds]).pvalue > 0.01


def test_draws_without_a_conversation_are_spread_evenly_too() -> None:
    counts = Counter(drawn_round(conversation_of(None, None, "hello"), (1, 2, 3, 4)) for _ in range(4000))
    assert chisquare(list(counts.values())).pvalue > 1e-6


@pytest.mark.slow
@given(st.text(max_size=40), st.lists(st.integers(1, 200), min_size=1, unique=True), st.integers(0, 2**31))
def test_a_conversation_keeps_its_round_whatever_the_order_of_the_rounds(
    conversation: str, rounds: list[int], seed: int
) -> None:
    assert drawn_round(conversation, rounds, seed) == drawn_round(conversation, sorted(rounds), seed)


@pytest.mark.slow
def test_a_new_round_takes_its_share_and_moves_nobody_else() -> None:
    before = {name: drawn_round(str(name), range(1, 9)) for name in range(9000)}
    after = {name: drawn_round(str(name), range(1, 10)) for name in before}
    moved = {name for name in before if before[name] != after[name]}
    assert {after[name] for name in moved} == {9}
    assert 0.1 < len(moved) / len(before) < 0.125


def test_another_seed_is_another_draw() -> None:
    one, other = ([drawn_round(str(name), range(1, 5), seed) for name in range(200)] for seed in (0, 1))
    assert one != other


def test_without_the_secret_nobody_knows_which_conversation_meets_which_round() -> None:
    """A crafted list of conversations that all meet round 1 under one secret is spread evenly under another."""
    aimed = [name for name in map(str, range(20_000)) if drawn_round(name, range(1, 5), 0, "guess") == 1]
    counts = Counter(drawn_round(name, range(1, 5), 0, "the run's") for name in aimed)
    assert chisquare([counts[number] for number in range(1, 5)]).pvalue > 0.01


def test_the_secret_of_a_run_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "serve-draw-key"
    with ThreadPoolExecutor(8) as threads:
        made = set(threads.map(lambda _: kept_secret(file), range(40)))
    assert made == {file.read_text().strip()}
    assert len(made.pop()) > 40
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [file.name]


def test_a_request_is_drawn_by_its_conversation_else_by_its_seed_else_by_itself() -> None:
    assert conversation_of("mine", 7, "hello") == "mine"
    assert conversation_of(None, 7, "hello") == conversation_of(None, 7, "hello")
    assert conversation_of(None, 7, "hello") != conversation_of(None, 8, "hello")
    assert conversation_of(None, 7, "hello") != conversation_of(None, 7, "good day")
    assert conversation_of(None, None, "hello") != conversation_of(None, None, "hello")


def test_a_mixture_of_nothing_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        drawn_round("a", ())
