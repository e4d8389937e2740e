"""Releases: by a certificate, or by people, and what is served follows from the history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pddpo_ray.certificates.certified import Certified
from pddpo_ray.certificates.release_history import ALARM, ReleaseEntry, Releases, released_now
from pddpo_ray.errors import UserError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.catalog import NotServed, read_catalog, stamp_of
from pddpo_ray.serving.keys import ApiKeys, Scope
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.served_run import SAFE, UNSAFE, ServedRun, make_run


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
        ([("release", 1), ("release", 2)], 2, {1: "superseded", 2: "released"}),
        ([("release", 1), ("release", 2), ("rollback", 1)], 1, {1: "released", 2: "withdrawn"}),
        ([("release", 1), ("rollback", None)], None, {1: "withdrawn"}),
        ([("rollback", None)], None, {}),
        ([("release", 1), ("release", 2), ("release", 1), ("rollback", 2)], 2, {1: "withdrawn", 2: "released"}),
    ],
)
def test_what_is_served_follows_from_the_history(
    history: list[tuple[str, int | None]], current: int | None, states: dict[int, str]
) -> None:
    now = released_now([entry(*line) for line in history], [], {1: "a", 2: "b"})
    assert (now.current, dict(now.states)) == (current, states)


def test_a_refusal_that_version_0_1_noted_releases_nothing(store: Store) -> None:
    releases = Releases(store)
    before = releases.release(1, by="ana", force=True)
    store.write(lambda connection: releases._add(connection, "refuse", 2, "rule", "the estimate is too high"))
    assert releases.now() == before


def mixture_of(*rounds: int) -> Certified:
    return Certified(1, f"rounds {rounds}", rounds, tuple("abcd"[k - 1] for k in rounds), "", {}, (), ())


def test_one_function_says_what_is_released() -> None:
    """Nothing, by a certificate, withdrawn by an alarm, forced by hand, released again; and mixtures, where no round
    is."""
    weights, whole, tail = {1: "a", 2: "b", 3: "c"}, mixture_of(1, 2, 3), mixture_of(2, 3)

    def now(*history: ReleaseEntry, certified: Sequence[Certified] = (), most: int | None = None) -> tuple[object, ...]:
        found = released_now(history, certified, weights, mixture_max=most)
        return found.current, found.by, found.reason, found.mixture, found.stands_in

    released = entry("release", 2)
    alarm = ReleaseEntry("rollback", None, ALARM, "leaks", 1)
    forced = ReleaseEntry("release", 3, "ana", "a trial", 2)
    again = ReleaseEntry("release", 2, "rule", "certified anew", 3)
    assert now() == (None, None, "", None, False)
    assert now(released) == (2, "rule", "because", None, False)
    assert now(released, alarm) == (None, None, "leaks", None, True)
    assert now(released, alarm, certified=[whole]) == (None, None, "leaks", None, True)
    assert now(released, alarm, forced) == (3, "ana", "a trial", None, False)
    assert now(released, alarm, forced, again) == (2, "rule", "certified anew", None, False)
    assert now(certified=[tail, whole]) == (None, "rule", "", whole, False)
    assert now(certified=[tail, whole], most=2) == (None, "rule", "", tail, False)
    assert now(released, certified=[whole])[:4] == (2, "rule", "because", None)
    # of other weights, and of rounds that are not the last ones any more
    assert now(certified=[replace(whole, sha256=("a", "b", "d")), mixture_of(1, 2)])[3] is None


@pytest.mark.slow
def test_an_alarm_goes_back_to_the_last_certified_round_and_at_last_to_the_reference(
    run: ServedRun, store: Store
) -> None:
    releases = Releases(store)
    releases.release(2, by="ana", force=True)
    run.add_round(SAFE)
    assert (releases.now().current, releases.now().earlier) == (4, (1, 3, 2))
    assert releases.withdraw(4, reason="alarm").current == 3, "nobody certified round 2"
    assert releases.withdraw(4, reason="alarm").current == 3, "something else is released by now"
    assert releases.withdraw(3, reason="alarm").current == 1
    last = releases.withdraw(1, reason="alarm")
    assert (last.current, last.stands_in) == (None, True)
    catalog = read_catalog(store)
    assert catalog.choose("released", "a conversation").round == 0
    (entry,) = [each for each in catalog.models(Scope.CHAT) if each["id"] == "released"]
    assert (entry["pddpo"]["release"], entry["pddpo"]["certificate"]) == ("reference", "none")
    run.add_round(SAFE)
    assert read_catalog(store).choose("released", "a conversation").round == 5, "another certified round is released"


@pytest.mark.slow
def test_an_alarm_on_the_certified_mixture_leaves_the_reference(tmp_path: Path) -> None:
    run = make_run(tmp_path / "mixed", (UNSAFE, UNSAFE))
    try:
        run.certify(1, 2)
        store = Store(run.journal.engine, run.folder.name)
        assert read_catalog(store).choose("released", "a conversation").round in (1, 2)
        assert Releases(store).withdraw(None, reason="alarm").stands_in
        catalog = read_catalog(store)
        assert (catalog.choose("released", "a conversation").round, catalog.certified_mixture) == (0, None)
        assert catalog.needed_scope("mixture") is Scope.INSPECT
    finally:
        run.close()


def test_a_round_without_a_certificate_is_released_by_force_alone(store: Store) -> None:
    now = Releases(store).now()
    assert now.current == 3
    assert [now.state(k) for k in (1, 2, 3, 4)] == ["superseded", "unreleased", "released", "unreleased"]
    assert now.reasons[3] == "certified as candidate 2 of the run"
    with pytest.raises(UserError, match=r"round 2 has no certificate: .* --force"):
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
    told = [(line.action, line.round, line.by) for line in releases.history()[2:]]
    assert told == [("rollback", 1, "ana"), ("rollback", None, "ana"), ("release", 3, "ben")]
    assert releases.history()[2].reason == "complaints"


def test_the_catalogue_names_every_policy_and_follows_the_run(run: ServedRun, store: Store) -> None:
    catalog = read_catalog(store)
    assert catalog.mixture == (1, 2, 3)
    assert catalog.choose("released", "any").version.name == "policy-3"
    assert catalog.choose("reference", "any").version.number == 0
    round_2 = catalog.choose("round-2", "any")
    assert round_2.multiplier == pytest.approx(0.2)
    assert (round_2.release, round_2.certificate) == ("unreleased", None)
    assert len(round_2.canaries) == 2
    assert {entry["id"] for entry in catalog.models(Scope.CHAT)} == {"released"}
    assert len(catalog.models(Scope.INSPECT)) == 6
    for model in ("round-4", "round-0", "round-02", "round-", "gpt", "policy-1"):
        with pytest.raises(NotServed, match="does not exist"):
            catalog.choose(model, "any")
    assert stamp_of(store) == catalog.stamp
    run.add_round(UNSAFE)
    assert stamp_of(store) != catalog.stamp
    grown = read_catalog(store, mixture_max=2)
    assert (grown.released, grown.rounds, grown.mixture) == (3, (1, 2, 3, 4), (3, 4))
    assert [entry["pddpo"]["whole"] for entry in grown.models(Scope.INSPECT) if entry["id"] == "mixture"] == [False]


def test_nothing_released_is_said_and_never_replaced(tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo", (UNSAFE,))
    catalog = read_catalog(Store(run.journal.engine, "demo"))
    with pytest.raises(NotServed, match="no policy of this run is certified") as refusal:
        catalog.choose("released", "any")
    assert refusal.value.status == 503
    assert catalog.models(Scope.CHAT) == []
    assert catalog.needed_scope("mixture") is Scope.INSPECT
    run.close()


def test_ten_thousand_crafted_conversations_never_meet_an_unreleased_round_by_a_chat_key(
    run: ServedRun, store: Store
) -> None:
    """What such a key may ask for is a policy that is released, or a mixture that is certified as a whole."""
    catalog = read_catalog(store)
    open_to_all = [model for model in ("mixture", "released", *(f"round-{n}" for n in range(5)), "reference", "x")
                   if Scope.CHAT.covers(catalog.needed_scope(model))]  # fmt: skip
    assert open_to_all == ["released"]
    met = {catalog.choose(model, f"{n}\0{n}", n).round for model in open_to_all for n in range(10_000)}
    assert {catalog.policies[number].release for number in met} == {"released"}
    run.certify(1, 2, 3)
    assert read_catalog(store).needed_scope("mixture") is Scope.CHAT


def test_certificates_are_stated_by_model_and_bound_to_their_weights(run: ServedRun, store: Store) -> None:
    catalog = read_catalog(store)
    said = {entry["id"]: entry["pddpo"] for entry in catalog.models(Scope.INSPECT)}
    assert said["released"]["certificate"].startswith("certified; cost at most ")
    assert said["released"]["certificate"].endswith(f"sha256 {catalog.policies[3].version.sha256[:16]}")
    assert said["released"]["statement"][0].startswith("Certified: cost, ")
    for name in ("mixture", "round-2", "reference"):
        assert (said[name]["certificate"], said[name]["statement"]) == ("none", ["nothing is certified of this policy"])
    run.certify(1, 2, 3)
    assert stamp_of(store) != catalog.stamp
    whole = read_catalog(store)
    (mixture,) = [entry["pddpo"] for entry in whole.models(Scope.CHAT) if entry["id"] == "mixture"]
    assert (mixture["release"], mixture["certificate"][:9]) == ("unreleased", "certified")
    assert read_catalog(store, mixture_max=2).certified_mixture is None
    run.add_round(UNSAFE)
    assert read_catalog(store).certified_mixture is None


@pytest.mark.slow
def test_the_mixture_is_released_where_it_alone_is_certified(tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo", (UNSAFE, UNSAFE))
    run.certify(1, 2)
    catalog = read_catalog(Store(run.journal.engine, "demo"))
    drawn = [catalog.choose("released", f"conversation {number}") for number in range(40)]
    assert drawn == [catalog.choose("mixture", f"conversation {number}") for number in range(40)]
    assert {policy.round for policy in drawn} == {1, 2}
    assert catalog.state_of("released", drawn[0]) == catalog.state_of("mixture", drawn[0]) == "released"
    assert catalog.certificate_of("released", drawn[0]) is not None
    assert catalog.certificate_of("round-1", drawn[0]) is None
    assert [entry["id"] for entry in catalog.models(Scope.CHAT)] == ["released", "mixture"]
    run.close()


@pytest.mark.slow
def test_a_certified_tail_has_a_name_and_a_state_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo", (UNSAFE, UNSAFE, UNSAFE))
    store = Store(run.journal.engine, "demo")
    run.certify(2, 3)
    catalog = read_catalog(store)
    drawn = [catalog.choose("released", f"conversation {number}") for number in range(40)]
    assert drawn == [catalog.choose("tail-2", f"conversation {number}") for number in range(40)]
    assert {policy.round for policy in drawn} == {2, 3}
    assert catalog.state_of("released", drawn[0]) == catalog.state_of("tail-2", drawn[0]) == "released"
    assert catalog.state_of("mixture", drawn[0]) == "unreleased"
    assert (catalog.needed_scope("tail-2"), catalog.needed_scope("mixture")) == (Scope.CHAT, Scope.INSPECT)
    said = {entry["id"]: entry["pddpo"] for entry in catalog.models(Scope.CHAT)}
    assert set(said) == {"released", "tail-2"}
    assert (said["tail-2"]["rounds"], said["tail-2"]["whole"]) == ([2, 3], False)
    assert said["tail-2"]["certificate"] == said["released"]["certificate"] != "none"
    with pytest.raises(NotServed, match="does not exist"):
        catalog.choose("tail-3", "any")
    assert read_catalog(store, mixture_max=1).tails == {}
    run.add_round(UNSAFE)
    assert read_catalog(store).tails == {}
    run.close()


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
