"""Releases: the rule decides once a round, people by hand, and what is served follows from the history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pddpo_ray.errors import UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store
from pddpo_ray.loop.outcome import accuracy
from pddpo_ray.loop.run import run_recipe
from pddpo_ray.records import LabelledPair, Pair, Prompt, Response, Verdict
from pddpo_ray.serving.catalog import NotServed, read_catalog, stamp_of
from pddpo_ray.serving.keys import ApiKeys, Scope
from pddpo_ray.serving.releases import ReleaseEntry, Releases, replay
from pddpo_ray.storage.whole_files import JOURNAL
from tests.served_run import SAFE, UNSAFE, ServedRun, make_run
from tests.unit.loop.small_run import small


def entry(action: str, round_: int | None) -> ReleaseEntry:
    return ReleaseEntry(action, round_, "rule", "because", 0)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ServedRun]:
    made = make_run(tmp_path / "demo", (SAFE, UNSAFE, SAFE))
    yield made
    made.close()


@pytest.fixture
def store(run: ServedRun) -> Iterator[Store]:
    engine = open_database(run.folder / JOURNAL)
    yield Store(engine, run.folder.name)
    engine.dispose()


@pytest.mark.parametrize(
    ("history", "current", "states"),
    [
        ([], None, {}),
        ([("refuse", 1)], None, {1: "refused"}),
        ([("release", 1), ("refuse", 2)], 1, {1: "released", 2: "refused"}),
        ([("release", 1), ("release", 2)], 2, {1: "superseded", 2: "released"}),
        ([("release", 1), ("release", 2), ("rollback", 1)], 1, {1: "released", 2: "withdrawn"}),
        ([("release", 1), ("rollback", None)], None, {1: "withdrawn"}),
        ([("rollback", None)], None, {}),
        ([("release", 1), ("release", 2), ("release", 1), ("rollback", 2)], 2, {1: "withdrawn", 2: "released"}),
        ([("refuse", 1), ("release", 1)], 1, {1: "released"}),
    ],
)
def test_what_is_served_follows_from_the_history(
    history: list[tuple[str, int | None]], current: int | None, states: dict[int, str]
) -> None:
    now = replay([entry(*line) for line in history])
    assert (now.current, dict(now.states)) == (current, states)


def test_a_round_that_fails_the_rule_stays_unreleased(store: Store) -> None:
    now = Releases(store).now()
    assert now.current == 3
    assert [now.state(k) for k in (1, 2, 3, 4)] == ["superseded", "refused", "released", "undecided"]
    said = "estimated cost, 1.64 standard errors to the worse, is 0.564 logit, beyond the limit 0 logit"
    assert now.reasons[2] == said
    with pytest.raises(UserError, match=r"round 2 was refused .* --force"):
        Releases(store).release(2, by="ana")
    assert Releases(store).release(2, by="ana", force=True).current == 2


def test_release_and_rollback_by_hand_are_kept_in_the_history(store: Store) -> None:
    releases = Releases(store)
    assert releases.rollback(by="ana", reason="complaints").current == 1
    assert releases.rollback(by="ana").current is None
    with pytest.raises(UserError, match="nothing to roll back"):
        releases.rollback(by="ana")
    assert releases.release(3, by="ben").current == 3
    with pytest.raises(UserError, match="released one already"):
        releases.release(3, by="ben")
    with pytest.raises(UserError, match="rounds 1 to 3"):
        releases.release(4, by="ben")
    told = [(line.action, line.round, line.by) for line in releases.history()[3:]]
    assert told == [("rollback", 1, "ana"), ("rollback", None, "ana"), ("release", 3, "ben")]
    assert releases.history()[3].reason == "complaints"


def test_the_catalogue_names_every_policy_and_follows_the_run(run: ServedRun, store: Store) -> None:
    catalog = read_catalog(store)
    assert catalog.mixture == (1, 2, 3)
    assert catalog.choose("released", "any").version.name == "policy-3"
    assert catalog.choose("reference", "any").version.number == 0
    round_2 = catalog.choose("round-2", "any")
    assert round_2.multiplier == pytest.approx(0.2)
    assert round_2.release == "refused"
    assert len(round_2.canaries) == 2
    assert {entry["id"] for entry in catalog.models(Scope.CHAT)} == {"mixture", "released"}
    assert len(catalog.models(Scope.INSPECT)) == 6
    for model in ("round-4", "round-0", "round-02", "round-", "gpt", "policy-1"):
        with pytest.raises(NotServed, match="does not exist"):
            catalog.choose(model, "any")
    assert stamp_of(store) == catalog.stamp
    run.add_round(UNSAFE)
    assert stamp_of(store) != catalog.stamp
    grown = read_catalog(store, mixture_max=2)
    assert (grown.released, grown.rounds, grown.mixture) == (3, (1, 2, 3, 4), (3, 4))
    assert [entry["pddpo"]["whole"] for entry in grown.models(Scope.CHAT) if entry["id"] == "mixture"] == [False]


def test_nothing_released_is_said_and_never_replaced(tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo", (UNSAFE,))
    catalog = read_catalog(Store(run.journal.engine, "demo"))
    with pytest.raises(NotServed, match="no round has been released yet") as refusal:
        catalog.choose("released", "any")
    assert refusal.value.status == 503
    assert [entry["id"] for entry in catalog.models(Scope.CHAT)] == ["mixture"]
    run.close()


def test_every_round_of_a_run_is_decided_once_also_after_a_restart(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_recipe(small(rounds=2), run_dir)
    with read_journal(run_dir / JOURNAL, "run") as journal:
        history = Releases(Store(journal.engine, journal.run_id)).history()
        steps = {step.round: step.estimate for step in journal.dual_steps()}
    assert [(line.round, line.by) for line in history] == [(1, "rule"), (2, "rule")]
    for line in history:
        assert line.round is not None
        bound = steps[line.round].value + 1.64 * steps[line.round].standard_error
        assert (line.action == "release") == (bound <= 0)
        assert f"{bound:.4g}" in line.reason
    run_recipe(small(rounds=2), run_dir, resume=True)
    with read_journal(run_dir / JOURNAL, "run") as journal:
        assert Releases(Store(journal.engine, journal.run_id)).history() == history


def test_a_round_whose_reward_accuracy_fell_is_refused(tmp_path: Path) -> None:
    """A generous limit passes every cost; then a reward policy that is worse by more than 2 points is found out."""
    run_dir = tmp_path / "run"
    run_recipe(small("dual.threshold=1.9", rounds=3), run_dir)
    with read_journal(run_dir / JOURNAL, "run") as journal:
        history = Releases(Store(journal.engine, journal.run_id)).history()
    assert history[0].action == "release"
    for line in history[1:]:
        now, before = (float(word) for word in _numbers(line.reason))
        assert (line.action == "release") == (now >= before - 0.02)


def _numbers(reason: str) -> tuple[str, str]:
    """(now, before) of either sentence of the rule."""
    words = reason.replace(",", "").split()
    if "fell" in words:
        return words[words.index("to") + 1], words[words.index("from") + 1]
    return words[words.index("before") - 2], words[words.index("before") - 1]


def test_accuracy_by_hand() -> None:
    """Chosen first with 2 > 1: right. Chosen second with 1 > 3: wrong. Equal scores: half."""
    prompt = Prompt("p", (1,), "p")

    def pair(name: str, helpful: Verdict) -> LabelledPair:
        first, second = (Response(f"{name}{i}", prompt, (i,), "", 0, 0) for i in (5, 6))
        return LabelledPair(Pair(name, first, second), helpful, Verdict.FIRST)

    pairs = [pair("a", Verdict.FIRST), pair("b", Verdict.SECOND), pair("c", Verdict.FIRST)]
    assert accuracy(np.array([2.0, 1.0, 3.0, 1.0, 4.0, 4.0]), pairs) == 0.5


def test_keys_are_stored_as_hashes_and_end_when_revoked(store: Store) -> None:
    keys = ApiKeys(store)
    key, secret = keys.create("app", Scope.CHAT, requests_per_minute=5)
    assert list(keys.valid().values()) == [key]
    assert secret.encode() not in (Path(store.engine.url.database or "")).read_bytes()
    with pytest.raises(UserError, match="already"):
        keys.create("app", Scope.ADMIN)
    with pytest.raises(UserError, match="letters"):
        keys.create("<app>", Scope.ADMIN)
    keys.revoke("app")
    assert keys.valid() == {}
    with pytest.raises(UserError, match="no valid key"):
        keys.revoke("app")
    assert [Scope.ADMIN.covers(scope) for scope in Scope] == [True, True, True]
    assert [Scope.CHAT.covers(scope) for scope in Scope] == [True, False, False]
