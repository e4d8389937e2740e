"""An HTTP endpoint as the source of a limit: one POST for each answer, repeated where it is busy.

It is sent {"prompt": text, "response": text, "row": {...}} and replies with a number, true or false, null to abstain,
or an object {"value": ...} of one of these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.limits.quantities import Scale
from pddpo_ray.limits.reading import seconds_of
from pddpo_ray.limits.sources import Answer, Source, Unmeasured
from pddpo_ray.scoring.endpoint import REFUSED, Outcome, send
from pddpo_ray.scoring.limit_judge import key_of

BATCH = 32
BUSY = (408, 409, 425, 429)


@dataclass(frozen=True)
class MeasuringEndpoint:
    """Asks one URL about answers, `workers` at a time."""

    url: str
    key: str | None
    timeout_s: float
    workers: int
    tries: int

    def __call__(self, answers: Sequence[Answer]) -> list[object]:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        with (
            httpx.Client(headers=headers, timeout=self.timeout_s) as client,
            ThreadPoolExecutor(self.workers) as threads,
        ):
            return list(threads.map(lambda answer: self._one(client, answer), answers))

    def _one(self, client: httpx.Client, answer: Answer) -> object:
        body = {"prompt": answer.prompt, "response": answer.response, "row": dict(answer.row)}
        outcome = send(lambda: client.post(self.url, json=body), _worth_another, tries=self.tries)
        if isinstance(outcome, httpx.TimeoutException):
            return Unmeasured(f"did not answer within {self.timeout_s:g} s")
        if isinstance(outcome, httpx.HTTPError):
            return Unmeasured(f"did not answer: {type(outcome).__name__}: {outcome}")
        if outcome.status_code in REFUSED:
            raise RunError(f"{self.url} refuses: {outcome.status_code} {_start(outcome.text)}")
        if outcome.status_code != 200:
            return Unmeasured(f"answered {outcome.status_code} {_start(outcome.text)}".strip())
        try:
            value = json.loads(outcome.text)
        except ValueError:
            return Unmeasured(f"answered {_start(outcome.text)!r}, which is no JSON")
        if isinstance(value, dict):
            return value["value"] if "value" in value else Unmeasured(f"answered {_start(outcome.text)}: no `value`")
        return value


def endpoint_source(
    where: str, name: str, options: Mapping[str, Any], scale: Scale, environment: Mapping[str, str]
) -> Source:
    """An endpoint by its URL. Raises UserError for what is missing or of another type."""
    url = name or options.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise UserError(f"{where}: give its address, e.g. {{endpoint: {{url: http://127.0.0.1:9000/measure}}}}")
    counts = {"workers": 8, "tries": 4}
    for key in counts:
        value = options.get(key, counts[key])
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{where}.{key} must be a whole number from 1 on, got `{value}`")
        counts[key] = value
    secret = key_of(where, options.get("key_env"), environment)
    timeout = seconds_of(f"{where}.timeout", options.get("timeout", 30))
    version = f"endpoint {url} {options.get('version', 'of no stated version')}"
    measure = MeasuringEndpoint(url, secret, timeout, counts["workers"], counts["tries"])
    return Source(f"endpoint {url}", version, measure, scale, BATCH, give_up=BATCH)


def _worth_another(outcome: Outcome) -> bool:
    if isinstance(outcome, httpx.HTTPError):
        return True
    return outcome.status_code >= 500 or outcome.status_code in BUSY


def _start(text: str) -> str:
    return " ".join(text.split())[:120]
