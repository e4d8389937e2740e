"""An HTTP endpoint as the source of a limit: one POST for each answer, repeated where it is busy.

It is sent {"prompt": text, "response": text, "row": {...}} and replies with a number, true or false, null to abstain,
or an object {"value": ...} of one of these.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.limits.sources import Answer, Opening, Source, Unmeasured
from pddpo_ray.limits.written_numbers import seconds_of
from pddpo_ray.scoring.judges.endpoint import (
    IN_A_ROW,
    JSON,
    NOBODY,
    OF_ONE_ITEM,
    Outcome,
    Silence,
    client_of,
    error_of,
    json_of,
    key_of,
    kind_of_refusal,
    send,
    shortened,
    worth_another,
)

BATCH = 32
NO_ACCESS = (401, 403, 404, 405)


class MeasuringEndpoint:
    """Asks one URL about answers, `workers` at a time.

    A failure leaves that answer alone unmeasured. RunError where the service seems to be down: no connection; no
    access, or server errors for a whole batch, before its first measurement; more than `IN_A_ROW` failures in a row.
    """

    def __init__(self, url: str, key: str | None, timeout_s: float, workers: int, tries: int) -> None:
        self._url, self._key, self._timeout_s, self._workers, self._tries = url, key, timeout_s, workers, tries
        self._silence = Silence()

    def __call__(self, answers: Sequence[Answer]) -> list[object]:
        workers = self._workers
        with client_of(self._key, self._timeout_s, workers) as client, ThreadPoolExecutor(workers) as threads:
            outcomes = list(threads.map(lambda answer: self._ask_endpoint(client, answer), answers))
        if not self._silence.heard and all(_is_broken(outcome) for outcome in outcomes):
            raise RunError(f"{self._url} does not answer: {error_of(outcomes[0])}; start it, then resume")
        return [self._value(outcome) for outcome in outcomes]

    def _ask_endpoint(self, client: httpx.Client, answer: Answer) -> Outcome:
        body = {"prompt": answer.prompt, "response": answer.response, "row": dict(answer.row)}
        outcome = send(
            lambda: client.post(self._url, content=json_of(body), headers=JSON),
            lambda reply: worth_another(_status(reply)),
            tries=self._tries,
        )
        status = _status(outcome)
        if status == 200:
            self._silence.end()
            return outcome
        row, first = self._silence.grow(), not self._silence.heard
        if isinstance(outcome, NOBODY) or (row > IN_A_ROW and worth_another(status)):
            raise RunError(f"{self._url} does not answer: {error_of(outcome)}; start it, then resume")
        if (status in NO_ACCESS and (first or row > IN_A_ROW)) or (first and row > IN_A_ROW):
            raise RunError(f"{self._url} refuses: {error_of(outcome)}")
        return outcome

    def _value(self, outcome: Outcome) -> object:
        if isinstance(outcome, httpx.TimeoutException):
            return Unmeasured(f"did not answer within {self._timeout_s:g} s")
        if isinstance(outcome, httpx.HTTPError):
            return Unmeasured(f"did not answer: {error_of(outcome)}")
        if outcome.status_code in OF_ONE_ITEM:
            return Unmeasured(f"{kind_of_refusal(outcome.status_code, outcome.text)}: {error_of(outcome)}")
        if outcome.status_code != 200:
            return Unmeasured(f"answered {outcome.status_code}: {shortened(outcome.text)}")
        try:
            value = json.loads(outcome.text)
        except ValueError:
            return Unmeasured(f"answered {shortened(outcome.text)!r}, which is no JSON")
        if isinstance(value, dict):
            return value["value"] if "value" in value else Unmeasured(f"gave no `value`: {shortened(outcome.text)}")
        return value


def endpoint_source(opening: Opening) -> Source:
    """An endpoint by its URL. Raises UserError for what is missing or of another type."""
    where, options = opening.where, opening.options
    url = opening.what or options.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise UserError(f"{where}: give its address, e.g. {{endpoint: {{url: http://127.0.0.1:9000/measure}}}}")
    counts = {"workers": 8, "tries": 4}
    for key in counts:
        value = options.get(key, counts[key])
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{where}.{key} must be a whole number from 1 on, got `{value}`")
        counts[key] = value
    secret = key_of(where, options.get("key_env"), opening.environment)
    timeout = seconds_of(f"{where}.timeout", options.get("timeout", 30))
    version = f"endpoint {url} {options.get('version', 'of no stated version')}"
    measure = MeasuringEndpoint(url, secret, timeout, counts["workers"], counts["tries"])
    return Source(f"endpoint {url}", version, measure, opening.scale, BATCH)


def _status(outcome: Outcome) -> int | None:
    return outcome.status_code if isinstance(outcome, httpx.Response) else None


def _is_broken(outcome: Outcome) -> bool:
    return isinstance(outcome, httpx.Response) and outcome.status_code >= 500
