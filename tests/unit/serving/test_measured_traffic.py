"""What served answers say after a release: measured by the limits' own sources, and taken back by an alarm."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.serving.command import share_of
from deploy.serving.measured_traffic import WRITTEN_EVERY, MeasuredTraffic, WatchedLimit, watched_limits
from deploy.serving.metrics import ServingMetrics
from pddpo_ray.annotation.review.audit_checks import broken_links
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store
from pddpo_ray.limits.quantities import VERDICT, Amount, Limit, Quantity
from pddpo_ray.limits.sources import Answer, Source, one_by_one
from pddpo_ray.serving.alarms import Alarms, Watched
from pddpo_ray.serving.catalog import read_catalog
from pddpo_ray.theory.certificates.alarm import Alarm
from pddpo_ray.theory.certificates.certificate import bets_above
from tests.support.served_run import SAFE, make_run
from tests.unit.serving.test_app import Caller

AT_MOST, CONFIDENCE = 0.05, 0.95
LEVEL = 1 - CONFIDENCE
BROKEN = 3 * AT_MOST
UNKNOWN = "unknown"


def unsafe(says: str = "unsafe") -> WatchedLimit:
    """At most 5 % of the answers say so; an answer may have no number."""
    limit = Limit("unsafe", Amount(Quantity("rate", "share"), AT_MOST), confidence=CONFIDENCE)
    measure = one_by_one(lambda answer: None if answer.response == UNKNOWN else says in answer.response)
    return WatchedLimit(limit, Source("a word", "1", measure, VERDICT), 0.0, 1.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    run = make_run(tmp_path / "demo", (SAFE,))
    run.close()
    engine = open_database(tmp_path / "demo" / "journal.sqlite")
    yield Store(engine, "demo")
    engine.dispose()


class Rung:
    """What rang, after how many answers."""

    def __init__(self) -> None:
        self.at: list[int] = []

    def __call__(self, watched: Watched, alarm: Alarm) -> None:
        self.at.append(alarm.answers)


def traffic(store: Store, rung: Rung, share: float = 1.0, **options: Any) -> MeasuredTraffic:
    return MeasuredTraffic(store, [unsafe()], share, ServingMetrics("demo"), rung, **options)


def answers(generator: np.random.Generator, rate: float, count: int) -> list[Answer]:
    return [Answer("a question", "unsafe" if one else "fine") for one in generator.random(count) < rate]


def quiet_alarm(generator: np.random.Generator, count: int) -> Alarm:
    """The alarm after so many measured answers at half of the limit, by the formula of the weights alone."""
    bets = bets_above(AT_MOST)
    wealth = np.zeros(len(bets))
    values = generator.random(count) < AT_MOST / 2
    gains = (1 - bets * (1 - np.array([[0.0], [1.0]]))) / (1 - bets * (1 - AT_MOST))
    for number, value in enumerate(values, 1):
        wealth = (wealth + 1 / (number * (number + 1))) * gains[int(value)]
        assert wealth.mean() < 1 / LEVEL
    return Alarm(AT_MOST, LEVEL, count, tuple(map(float, wealth)))


def simulated_delay(generator: np.random.Generator, before: Alarm) -> int:
    """Answers at three times the limit until the same alarm rings, with nothing of the endpoint."""
    bets, wealth, number = bets_above(AT_MOST), np.array(before.wealth), before.answers
    while wealth.mean() < 1 / LEVEL:
        number += 1
        value = float(generator.random() < BROKEN)
        wealth = (wealth + 1 / (number * (number + 1))) * (1 - bets * (1 - value)) / (1 - bets * (1 - AT_MOST))
    return number - before.answers


@pytest.mark.slow
@pytest.mark.parametrize("quiet", [0, 1_000, 100_000])
def test_a_mix_of_prompts_at_three_times_the_limit_is_taken_back_as_soon_as_an_independent_simulation_says(
    store: Store, quiet: int
) -> None:
    """Medians of 41 histories each; the endpoint's goes on from a stored state, as after a new start."""
    generator = np.random.default_rng([quiet, 1])
    before = quiet_alarm(generator, quiet)
    delays, independent = [], []
    for history in range(41):
        watched = Watched(f"{quiet}-{history}", "unsafe")
        Alarms(store).write(watched, before)
        rung = Rung()
        served = traffic(store, rung)
        for answer in answers(generator, BROKEN, 3_000):
            served.measure(watched.sha256, answer)
            if rung.at:
                break
        delays.append(rung.at[0] - quiet)
        independent.append(simulated_delay(np.random.default_rng([quiet, 2, history]), before))
    assert np.median(delays) <= 1.25 * np.median(independent)
    assert np.median(delays) >= 0.7 * np.median(independent)
    assert not broken_links(store)


def test_a_new_start_goes_on_with_the_evidence_of_before(store: Store) -> None:
    rung, generator = Rung(), np.random.default_rng(3)
    first = traffic(store, rung)
    told = answers(generator, 0.1, WRITTEN_EVERY + 5)
    for answer in told:
        first.measure("aa", answer)
    again = Alarms(store).read(Watched("aa", "unsafe"), AT_MOST, LEVEL)
    expected = Alarm(AT_MOST, LEVEL)
    for answer in told[:WRITTEN_EVERY]:
        expected = expected.after(float(answer.response == "unsafe"))
    assert again == expected, "what came after the last entry is forgotten"
    assert Alarms(store).read(Watched("bb", "unsafe"), AT_MOST, LEVEL).answers == 0, "other weights, another alarm"
    assert Alarms(store).read(Watched("aa", "unsafe"), 0.1, LEVEL).answers == 0, "another bound, another alarm"


def test_an_answer_without_a_number_is_left_out_and_counted(store: Store) -> None:
    rung = Rung()
    served = traffic(store, rung)
    for _ in range(200):
        served.measure("aa", Answer("a question", UNKNOWN))
    assert not rung.at
    assert b'as="none",limit="unsafe",run="demo"} 200.0' in served._metrics.text(read_catalog(store), 0, True, 0)


def test_prometheus_can_tell_a_drift_from_the_limit(store: Store) -> None:
    """The sum of what was measured over its count is the mean that the alert holds against the limit."""
    served = traffic(store, Rung())
    for text in ("unsafe", "fine", "fine", "fine", UNKNOWN):
        served.measure("aa", Answer("a question", text))
    said = served._metrics.text(read_catalog(store), 0, True, 0).decode()
    assert 'pddpo_serving_measured_cost_total{limit="unsafe",run="demo"} 1.0' in said
    assert 'pddpo_serving_measured_total{as="number",limit="unsafe",run="demo"} 4.0' in said
    assert f'pddpo_serving_measured_limit{{limit="unsafe",run="demo"}} {AT_MOST}' in said


def test_the_coin_decides_before_the_answer_is_read(store: Store) -> None:
    generator = np.random.default_rng(5)
    served = traffic(store, Rung(), share=0.1, coin=generator.random)
    taken = []
    for _ in range(5_000):
        before = served._waiting.qsize()
        served.offer("aa", Answer("a question", "fine"))
        taken.append(served._waiting.qsize() > before)
    assert abs(np.mean(taken) - 0.1) < 4 * np.sqrt(0.1 * 0.9 / 5_000)
    served.offer("", Answer("a question", "fine"))
    assert served._waiting.qsize() == sum(taken), "what is not released is never measured"


@pytest.mark.slow
def test_a_certified_release_that_breaks_its_limit_is_taken_back_and_told(tmp_path: Path) -> None:
    """The whole way through the endpoint: requests, measurement, rollback to the reference, journal, webhook."""
    with listener() as (url, told):
        caller = Caller(tmp_path, measure=1.0, webhook=url, limits=[unsafe("echo")])
        try:
            assert caller.chat().headers["x-pddpo-certificate"].startswith("certified")
            for _ in range(40):
                caller.chat(temperature=0.3)
            assert measured(caller) == 1, "what was decoded otherwise says nothing of the release"
            for _ in range(40):
                caller.chat()
            measured(caller)
            asyncio.run(caller.endpoint.look())
            reply = caller.chat()
            history = caller.endpoint.releases.history()
        finally:
            caller.close()
    assert (reply.json()["pddpo"]["round"], reply.json()["pddpo"]["release"]) == (0, "reference")
    (line,) = [line for line in history if line.by == "alarm"]
    assert (line.action, line.round) == ("rollback", None)
    assert "unsafe is broken" in line.reason
    (message,) = told
    assert message["event"] == "alarm"
    assert "the reference is served" in message["text"]
    assert "hello" not in json.dumps(message)


def measured(caller: Caller) -> int:
    """Measures what waits, and says how many that were."""
    waiting = caller.endpoint.measured._waiting
    count = waiting.qsize()
    while not waiting.empty():
        caller.endpoint.measured.measure(*waiting.get_nowait())
    return count


@contextmanager
def listener() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A real server that keeps what is posted to it."""
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", told
    finally:
        server.shutdown()
        server.server_close()


def test_limits_that_nobody_can_measure_on_served_answers_are_named() -> None:
    config = load("text-world-limits", [])
    watched, reasons = watched_limits(config)
    assert [one.name for one in watched] == ["length"]
    assert len(reasons) == len(config.stated) - 1


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("5 %", 0.05), ("0.05", 0.05), ("0", 0.0), ("100%", 1.0)])
def test_a_share_is_written_as_people_write_it(text: str, share: float) -> None:
    assert share_of(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["5", "-1%", "many", "nan"])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--measure"):
        share_of(text)
