"""What an endpoint tells Prometheus at `/metrics`: requests and their outcome, times, tokens, what is served.

One registry for each entrance; the engines' own figures (load, cache, queue) go through Ray's exporter, as a run's do.
Prompts, answers, keys and conversations never become labels.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pddpo_ray.serving.catalog import MIXTURE, REFERENCE, RELEASED, ROUND, Catalog

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
NAMES = (
    "pddpo_serving_requests_total",
    "pddpo_serving_tokens_total",
    "pddpo_serving_first_piece_seconds",
    "pddpo_serving_request_seconds",
    "pddpo_serving_ongoing",
    "pddpo_serving_accepting",
    "pddpo_serving_refused_total",
    "pddpo_serving_released_round",
    "pddpo_serving_staged_share",
    "pddpo_serving_certified",
    "pddpo_serving_errors_total",
    "pddpo_serving_measured_total",
    "pddpo_serving_measured_cost_total",
    "pddpo_serving_measured_limit",
    "pddpo_serving_undelivered",
    "pddpo_serving_alarms_total",
    "pddpo_serving_kept_total",
    "pddpo_serving_cut_off_total",
)
"""Names as Prometheus stores them; histograms have _bucket, _sum and _count besides."""


class ServingMetrics:
    """Counters of one entrance. `run` is a label of all of them."""

    def __init__(self, run: str) -> None:
        self._registry = CollectorRegistry()
        self._run = run
        common: Any = {"registry": self._registry}
        of_answer = ("run", "model", "round")
        self._requests = Counter(
            "pddpo_serving_requests", "Requests by their HTTP status", (*of_answer, "status"), **common
        )
        self._tokens = Counter("pddpo_serving_tokens", "Tokens of prompts and answers", of_answer, **common)
        self._first_piece_seconds = Histogram(
            "pddpo_serving_first_piece_seconds",
            "Seconds to the first piece of a stream, or to a whole answer",
            ("run", "model"),
            buckets=SECONDS,
            **common,
        )
        self._seconds = Histogram(
            "pddpo_serving_request_seconds", "Seconds to the end", ("run", "model"), buckets=SECONDS, **common
        )
        self._ongoing = Gauge("pddpo_serving_ongoing", "Requests under way", ("run",), **common)
        self._accepting = Gauge("pddpo_serving_accepting", "1 while new requests are accepted", ("run",), **common)
        self._refusals = Counter(
            "pddpo_serving_refused",
            "Requests that reached no engine, by their HTTP status",
            ("run", "status"),
            **common,
        )
        self._released_round = Gauge("pddpo_serving_released_round", "Released round, 0 for none", ("run",), **common)
        self._staged_share = Gauge(
            "pddpo_serving_staged_share", "Share of the conversations that a staged release answers", ("run",), **common
        )
        self._certified_models = Gauge(
            "pddpo_serving_certified",
            "1 where what the model's name stands for is certified",
            ("run", "model"),
            **common,
        )
        self._errors = Counter(
            "pddpo_serving_errors", "Failures that a client was told as a number alone", ("run",), **common
        )
        self._measurements = Counter(
            "pddpo_serving_measured",
            "Served answers that a limit's source measured, or not",
            ("run", "limit", "as"),
            **common,
        )
        self._measured_cost = Counter(
            "pddpo_serving_measured_cost",
            "Sum of the measured numbers, each scaled to 0 (best) ... 1 (worst)",
            ("run", "limit"),
            **common,
        )
        self._measured_limit = Gauge(
            "pddpo_serving_measured_limit", "The limit on their mean, in the same scale", ("run", "limit"), **common
        )
        self._undelivered_release = Gauge(
            "pddpo_serving_undelivered", "1 while an engine does not take what was released", ("run",), **common
        )
        self._alarms = Counter("pddpo_serving_alarms", "Releases that an alarm took back", ("run",), **common)
        self._kept_exchanges = Counter(
            "pddpo_serving_kept",
            "Exchanges whose senders let training learn from them, by what became of them",
            ("run", "as"),
            **common,
        )
        self._cut_off_answers = Counter(
            "pddpo_serving_cut_off",
            "Answers that were broken off by their client or by time",
            ("run",),
            **common,
        )
        self._cut_off_answers.labels(run)
        self._undelivered_release.labels(run)
        self._kept_exchanges.labels(run, "kept")
        self._alarms.labels(run)
        self._errors.labels(run)  # there from the start, so that the first failure is a rise

    def answered(
        self, model: str, round_: int, status: int, tokens: int, first_s: float | None, seconds: float
    ) -> None:
        """The end of one request that was let in. `first_s`: None where nothing came."""
        name = _kind(model)
        self._requests.labels(self._run, name, round_, status).inc()
        self._tokens.labels(self._run, name, round_).inc(tokens)
        self._seconds.labels(self._run, name).observe(seconds)
        if first_s is not None:
            self._first_piece_seconds.labels(self._run, name).observe(first_s)
        if status == 500:
            self._errors.labels(self._run).inc()

    def refused(self, status: int) -> None:
        """A request that was answered without an engine: no key, over its limit, malformed, not accepted now."""
        self._refusals.labels(self._run, status).inc()

    def measured(self, limit: str, value: float | None, at_most: float) -> None:
        """One served answer under one limit; value and limit in [0, 1], higher is worse."""
        self._measurements.labels(self._run, limit, "number" if value is not None else "none").inc()
        self._measured_limit.labels(self._run, limit).set(at_most)
        self._measured_cost.labels(self._run, limit).inc(value or 0.0)

    def kept(self, as_: str) -> None:
        """One exchange: kept, beyond a cap, or dropped whole by a rule."""
        self._kept_exchanges.labels(self._run, as_).inc()

    def broke_off(self) -> None:
        self._cut_off_answers.labels(self._run).inc()

    def rang(self) -> None:
        self._alarms.labels(self._run).inc()

    def undelivered(self, is_so: bool) -> None:
        """Whether a released round waits because an engine did not take it."""
        self._undelivered_release.labels(self._run).set(is_so)

    def text(self, catalog: Catalog, ongoing: int, accepting: bool, now_ms: int) -> bytes:
        """Everything, in Prometheus' text form."""
        self._staged_share.labels(self._run).set(0 if catalog.stage is None else catalog.stage.share(now_ms))
        self._ongoing.labels(self._run).set(ongoing)
        self._accepting.labels(self._run).set(accepting)
        self._released_round.labels(self._run).set(catalog.released or 0)
        policy = None if catalog.released is None else catalog.policies[catalog.released]
        certified = {
            RELEASED: policy.certificate is not None if policy else catalog.released_mixture is not None,
            MIXTURE: catalog.certified_mixture is not None,
        }
        for model, holds in certified.items():
            self._certified_models.labels(self._run, model).set(holds)
        return generate_latest(self._registry)


def _kind(model: str) -> str:
    """A label of few values: the rounds are told apart by a label of their own."""
    return model if model in (RELEASED, MIXTURE, REFERENCE) else f"{ROUND}k"
