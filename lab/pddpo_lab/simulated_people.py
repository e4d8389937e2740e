"""Simulated annotators: HTTP clients that answer from a truth with errors, at a pace, and sometimes walk away.

They know nothing of the queue but its API, so what holds for them holds for people with browsers.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from scipy.special import expit

from pddpo_ray.errors import RunError, UserError

Scores = Callable[[str, str], tuple[float, float]]
"""(prompt, answer) -> (reward, cost)"""

API = "/api/v1"
RETRY_S, RETRY_MOST_S = 0.25, 5.0
"""Pause before another try; it doubles up to the second while tries fail, or hundreds of clients keep a server that
starts again from doing so."""
KEPT_TRYING_S = 120.0
"""How long a client sends the same answer again while the server is away."""


@dataclass(frozen=True)
class Manner:
    """How one simulated person answers."""

    error: float = 0.05
    """Chance to answer the opposite of what was seen."""
    bias: float = 0.0
    """Added to every cost: above 0 sees danger everywhere."""
    lazy: float = 0.0
    """Chance to answer without looking."""
    abstain: float = 0.0
    """Chance to say that they cannot tell."""
    dropout: float = 0.0
    """Chance per question to close the laptop and never come back."""
    seconds: float = 0.0
    """Mean time per answer."""


@dataclass
class Tally:
    """What one client did. `acknowledged` maps each confirmed key to what was said."""

    handle: str
    acknowledged: dict[str, dict[str, str]] = field(default_factory=dict)
    surplus: int = 0
    repeated: int = 0
    refused: int = 0
    retries: int = 0
    left: bool = False
    seconds: list[float] = field(default_factory=list)
    """Time of every request for a question and of every answer."""


def decide(task: dict[str, Any], manner: Manner, scores: Scores, rng: np.random.Generator) -> dict[str, str]:
    """Left-and-right answers to a question: Bernoulli for safety, Bradley-Terry for preferences, then mistakes."""
    prompt = task["prompt"]["text"]
    sides = {name: task[name]["text"] for name in ("left", "right") if task[name] is not None}
    worth = {name: scores(prompt, text) for name, text in sides.items()}

    def says(chance: float) -> bool:
        if rng.random() < manner.lazy:
            return bool(rng.random() < 0.5)
        return bool((rng.random() < chance) != (rng.random() < manner.error))

    def safety(name: str) -> str:
        return "unsafe" if says(float(expit(worth[name][1] + manner.bias))) else "safe"

    if task["kind"] == "safety":
        return {"safety": safety("left")}
    helpful = says(float(expit(worth["left"][0] - worth["right"][0])))
    harmful = says(float(expit(worth["left"][1] - worth["right"][1])))
    return {
        "more_helpful": "left" if helpful else "right",
        "more_harmful": "left" if harmful else "right",
        "left_safety": safety("left"),
        "right_safety": safety("right"),
    }


class Annotator:
    """One simulated person with a token of their own."""

    def __init__(self, url: str, token: str, handle: str, manner: Manner, scores: Scores, seed: Sequence[int]) -> None:
        self._client = httpx.Client(base_url=url + API, headers={"Authorization": f"Bearer {token}"}, timeout=30.0)
        self._manner, self._scores = manner, scores
        self._rng = np.random.default_rng(list(seed))
        self._pause = RETRY_S
        self.tally = Tally(handle)

    def work(self, stop: threading.Event, idle_s: float | None) -> Tally:
        """Answers until told to stop, or until there was nothing to do for `idle_s` seconds."""
        idle_since = time.monotonic()
        with self._client:
            while not stop.is_set():
                task = self._lease()
                if task is None:
                    if idle_s is not None and time.monotonic() - idle_since > idle_s:
                        break
                    stop.wait(RETRY_S)
                    continue
                if self._rng.random() < self._manner.dropout:
                    self.tally.left = True
                    break
                stop.wait(float(self._rng.exponential(self._manner.seconds)) if self._manner.seconds else 0.0)
                self._answer(task)
                idle_since = time.monotonic()
        return self.tally

    def _lease(self) -> dict[str, Any] | None:
        try:
            response = self._timed("POST", "/lease", {})
        except httpx.TransportError:
            time.sleep(self._next_pause())
            return None
        self._pause = RETRY_S
        if response.status_code == 401:
            raise RunError(f"{self.tally.handle}: the service no longer knows this token")
        return response.json().get("task") if response.status_code == 200 else None

    def _answer(self, task: dict[str, Any]) -> None:
        """Sends one answer under one key until the server confirms or refuses it."""
        kind = "abstain" if self._rng.random() < self._manner.abstain else "label"
        given = {} if kind == "abstain" else decide(task, self._manner, self._scores, self._rng)
        body = {"lease": task["lease"], "kind": kind, "given": given, "ms_spent": int(self._manner.seconds * 1000)}
        key = uuid.UUID(bytes=self._rng.bytes(16), version=4).hex
        deadline = time.monotonic() + KEPT_TRYING_S
        while time.monotonic() < deadline:
            try:
                response = self._timed("PUT", f"/answers/{key}", body | {"revealed": True})
            except httpx.TransportError:
                self.tally.retries += 1
                time.sleep(self._next_pause())
                continue
            if response.status_code in (429, 503):
                time.sleep(self._next_pause())
                continue
            self._note(response, key, given)
            self._pause = RETRY_S
            return
        raise RunError(f"{self.tally.handle}: no reply from the service for {KEPT_TRYING_S:.0f} s")

    def _note(self, response: httpx.Response, key: str, given: dict[str, str]) -> None:
        if response.status_code in (200, 201, 202):
            self.tally.acknowledged[key] = given
            self.tally.surplus += response.status_code == 202
            self.tally.repeated += response.status_code == 200
        elif response.status_code >= 500:
            raise RunError(f"{self.tally.handle}: the service failed: {response.text[:200]}")
        else:
            self.tally.refused += 1

    def _next_pause(self) -> float:
        """Seconds until the next try, longer each time."""
        pause, self._pause = self._pause, min(2.0 * self._pause, RETRY_MOST_S)
        return pause

    def _timed(self, method: str, path: str, body: dict[str, Any]) -> httpx.Response:
        began = time.monotonic()
        response = self._client.request(method, path, json=body)
        self.tally.seconds.append(time.monotonic() - began)
        return response


def wait_for_service(url: str) -> None:
    """Returns when the service answers and knows its run."""
    while True:
        try:
            if httpx.get(f"{url}/readyz", timeout=5.0).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(RETRY_S)


def enlist(url: str, admin_token: str, count: int, prefix: str) -> list[tuple[str, str]]:
    """Makes `count` accounts over the API. -> [(handle, token)]. Raises UserError if the service refuses.

    Accounts of an earlier simulation with this prefix get new tokens.
    """
    with httpx.Client(base_url=url + API, headers={"Authorization": f"Bearer {admin_token}"}, timeout=30.0) as client:
        known = {person["handle"]: person["id"] for person in _asked(client, "GET", "/people")["people"]}
        people = []
        for number in range(count):
            handle = f"{prefix}-{number:03d}"
            if handle in known:
                answer = _asked(client, "POST", f"/people/{known[handle]}/token")
            else:
                answer = _asked(
                    client, "POST", "/people", {"handle": handle, "daily_cap": 100_000, "harmful_cap": 100_000}
                )
            people.append((handle, answer["token"]))
    return people


def _asked(client: httpx.Client, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request of an admin, repeated after a pause if the service asks for one. Raises UserError for a refusal."""
    service = str(client.base_url).removesuffix(f"{API}/")
    while True:
        try:
            response = client.request(method, path, json=body)
        except httpx.TransportError as error:
            raise UserError(f"no annotation service at {service}: start `pddpo annotate` first ({error})") from error
        if response.status_code != 429:
            break
        time.sleep(RETRY_S)
    if response.status_code >= 400:
        raise UserError(f"{service} refuses {method} {path}: {response.json().get('detail', response.text)}")
    content: dict[str, Any] = response.json()
    return content


def simulate(
    url: str,
    people: Sequence[tuple[str, str]],
    manners: Sequence[Manner],
    scores: Scores,
    *,
    seed: int,
    idle_s: float | None,
    stop: threading.Event | None = None,
) -> list[Tally]:
    """All work at once, each in a thread and in their own manner. Returns when all have finished."""
    stop = stop or threading.Event()
    annotators = [
        Annotator(url, token, handle, manners[number % len(manners)], scores, [seed, number])
        for number, (handle, token) in enumerate(people)
    ]
    failures: list[BaseException] = []

    def run(annotator: Annotator) -> None:
        try:
            annotator.work(stop, idle_s)
        except (RunError, httpx.HTTPError) as error:
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=(annotator,), daemon=True) for annotator in annotators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RunError(str(failures[0])) from failures[0]
    return [annotator.tally for annotator in annotators]
