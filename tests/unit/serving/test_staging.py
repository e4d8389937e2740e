"""A staged release: who meets the new round, how its share grows, and what stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, kstest

from deploy.serving.measured_traffic import MeasuredTraffic
from pddpo_ray.certificates.release_history import Releases
from pddpo_ray.certificates.staging import HOUR_MS, SHARES, Stage, in_unit_interval
from pddpo_ray.cli.main import main
from pddpo_ray.errors import UserError
from pddpo_ray.journal.transactions import Store
from pddpo_ray.limits.sources import Answer
from pddpo_ray.serving.alarms import Watched, answering_weights
from pddpo_ray.serving.catalog import Catalog, read_catalog
from pddpo_ray.serving.keys import Scope
from pddpo_ray.theory.certificates.alarm import Alarm
from tests.support.served_run import SAFE, UNSAFE, ServedRun, make_run
from tests.unit.serving.test_app import Caller
from tests.unit.serving.test_measured_traffic import unsafe

QUARTER = HOUR_MS  # of four hours


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ServedRun]:
    made = make_run(tmp_path / "demo", (SAFE, UNSAFE))
    yield made
    made.close()


@pytest.fixture
def store(run: ServedRun, clock: Clock) -> Store:
    return Store(run.journal.engine, "demo", clock=clock)


def met(catalog: Catalog, now_ms: int, count: int = 4000) -> set[int]:
    """Conversations that meet round 2."""
    drawn = (catalog.choose("released", f"c{n}", 3, "secret", now_ms=now_ms).round for n in range(count))
    return {number for number, round_ in enumerate(drawn) if round_ == 2}


def test_the_share_grows_by_its_schedule() -> None:
    stage = Stage(2, 1000, 4.0)
    at = [stage.share(1000 + round(quarters * QUARTER)) for quarters in (-1, 0, 0.99, 1, 2, 3, 3.99, 4, 9)]
    assert at == [SHARES[0], SHARES[0], SHARES[0], *SHARES[1:], SHARES[3], 1.0, 1.0]
    assert stage.whole_ms == 1000 + 4 * QUARTER


def test_places_are_even_and_depend_on_the_secret() -> None:
    ours = [in_unit_interval(f"c{n}", "secret") for n in range(4000)]
    assert kstest(ours, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(ours, [in_unit_interval(f"c{n}", "another") for n in range(4000)])[0, 1]) < 0.06


def test_a_conversation_that_met_the_new_round_stays_with_it(run: ServedRun, store: Store, clock: Clock) -> None:
    Releases(store).release(2, by="ana", force=True, hours=4)
    catalog = read_catalog(store)
    assert (catalog.released, catalog.policies[2].release) == (1, "staged")
    before: set[int] = set()
    for quarter, share in enumerate((*SHARES, 1.0)):
        now = met(catalog, clock.now + quarter * QUARTER)
        low, high = binom.interval(0.9999, 4000, share)
        assert low <= len(now) <= high
        assert before <= now
        before = now


def test_its_answers_state_what_is_known_of_the_round_that_wrote_them(store: Store, clock: Clock) -> None:
    Releases(store).release(2, by="ana", force=True, hours=4)
    catalog = read_catalog(store)
    of_new = catalog.choose("released", f"c{min(met(catalog, clock.now))}", 3, "secret", now_ms=clock.now)
    assert (catalog.state_of("released", of_new), catalog.certificate_of("released", of_new)) == ("staged", None)
    assert answering_weights(catalog, of_new) == catalog.policies[2].version.sha256
    assert answering_weights(catalog, catalog.policies[1]) == catalog.policies[1].version.sha256


def test_the_last_stage_is_a_release(store: Store, clock: Clock) -> None:
    releases = Releases(store)
    releases.release(2, by="ana", force=True, hours=4)
    assert not releases.finish_stage()
    clock.now += 4 * QUARTER
    assert releases.finish_stage()
    assert not releases.finish_stage(), "another entrance came first"
    now = releases.now()
    assert (now.current, now.stage, releases.history()[-1].by) == (2, None, "schedule")


def test_a_rollback_stops_the_stage_and_leaves_what_is_released(store: Store) -> None:
    releases = Releases(store)
    releases.release(2, by="ana", force=True, hours=4)
    now = releases.rollback(by="ana", reason="complaints")
    assert (now.current, now.stage, now.state(2), now.reasons[2]) == (1, None, "withdrawn", "complaints")
    assert not met(read_catalog(store), 10**15)


def test_another_release_ends_the_stage(run: ServedRun, store: Store) -> None:
    releases = Releases(store)
    releases.release(2, by="ana", force=True, hours=4)
    run.add_round(SAFE)
    now = releases.now()
    assert (now.current, now.stage, now.state(2)) == (3, None, "unreleased")


def test_what_cannot_be_staged_is_refused(store: Store) -> None:
    releases = Releases(store)
    for hours in (0.0, -1.0, 10_000.0, float("nan")):
        with pytest.raises(UserError, match="from a minute to 2160 hours"):
            releases.release(2, by="ana", force=True, hours=hours)
    with pytest.raises(UserError, match="no certificate"):
        releases.release(2, by="ana", hours=4)
    releases.rollback(by="ana")
    with pytest.raises(UserError, match="nobody could answer beside round 2"):
        releases.release(2, by="ana", force=True, hours=4)


def test_the_alarm_of_the_new_round_stops_its_stage_alone(tmp_path: Path) -> None:
    """Answers of the new round break the limit, those of the released one do not: each has an alarm of its own."""
    caller = Caller(tmp_path, limits=[unsafe()], measure=1.0)
    try:
        reply = caller.post("/admin/release", {"round": 2, "force": True, "hours": 4}, Scope.ADMIN)
        assert reply.json() == {"released": 1, "staged": 2, "share": SHARES[0]}
        assert caller.engine.checked == [2], "a staged round answers a check before anybody meets it"
        assert "pddpo_serving_staged_share" in caller.client.get("/metrics", headers=bearer(caller)).text
        measured: MeasuredTraffic = caller.endpoint.measured
        old, new = (caller.endpoint.catalog.policies[number].version.sha256 for number in (1, 2))
        for number in range(400):
            measured.measure(old, Answer("a question", "unsafe" if number % 50 == 0 else "fine"))
            measured.measure(new, Answer("a question", "unsafe" if number % 4 == 0 else "fine"))
        asyncio.run(caller.endpoint.look())
        now = caller.endpoint.releases.now()
        assert (now.current, now.stage, now.state(2)) == (1, None, "withdrawn")
        assert now.reasons[2].startswith("alarm: unsafe is broken by what")
        caller.endpoint._take_back_release(Watched(new, "unsafe"), Alarm(0.05, 0.05))
        assert caller.endpoint.releases.now().current == 1, "it is not served any more: nothing to take back"
    finally:
        caller.close()


def bearer(caller: Caller) -> dict[str, str]:
    return {"authorization": f"Bearer {caller.keys[Scope.INSPECT]}"}


def test_the_command_stages_shows_and_refuses(run: ServedRun, capsys: pytest.CaptureFixture[str]) -> None:
    def ends(*words: str) -> int:
        with pytest.raises(SystemExit) as end:
            main(["release", str(run.folder), *words])
        return int(end.value.code or 0)

    assert ends("2", "--force", "--over", "a while") == 2
    assert "--over a while: write a time such as 30min, 2h or 3d" in capsys.readouterr().err
    assert ends("--over", "2h") == 2
    assert "name its round too" in capsys.readouterr().err
    assert ends("2", "--force", "--over", "2h") == 0
    told = capsys.readouterr().out
    assert "staged: round 2 answers 1 % of the conversations, all at " in told
    assert "released: round 1" in told
