"""Other annotation tools: questions go there, answers come back, and the queue's rules decide about each of them."""

from __future__ import annotations

from typing import Any, Protocol

import httpx

from pddpo_ray.annotation.queue.exchange import GivenElsewhere, OpenQuestion
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.scoring.judges.endpoint import Outcome, send


class Connector(Protocol):
    """One project of another tool. Both directions may be repeated at any time."""

    name: str

    def push(self, questions: list[OpenQuestion]) -> int:
        """Adds the questions that are not there yet. Returns how many were added."""
        ...

    def pull(self) -> list[GivenElsewhere]:
        """All answers that are there, old ones too."""
        ...

    def close(self) -> None: ...


TRIES = 4
BUSY = (429, 502, 503, 504)


class Api:
    """One tool at one address."""

    def __init__(self, tool: str, url: str, headers: dict[str, str]) -> None:
        self._tool = tool
        self._client = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=60.0)

    def get(self, path: str, **query: Any) -> Any:
        return self._ask("GET", path, params=query)

    def post(self, path: str, body: Any) -> Any:
        return self._ask("POST", path, json=body)

    def put(self, path: str, body: Any = None) -> Any:
        return self._ask("PUT", path, json=body)

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str, **content: Any) -> Any:
        """The JSON of the reply. Retries while the tool is busy; a POST only where it cannot have had an effect."""
        busy = (429,) if method == "POST" else BUSY

        def worth_another(outcome: Outcome) -> bool:
            if isinstance(outcome, httpx.Response):
                return outcome.status_code in busy
            return isinstance(outcome, httpx.ConnectError) or method != "POST"

        outcome = send(lambda: self._client.request(method, path, **content), worth_another, tries=TRIES)
        if isinstance(outcome, httpx.ConnectError):
            raise UserError(f"no {self._tool} at {self._client.base_url}: check --url ({outcome})") from outcome
        if isinstance(outcome, httpx.HTTPError):
            raise RunError(
                f"{self._tool} broke off {method} {path} ({outcome}); the same command may be given again"
            ) from outcome
        if outcome.status_code in busy:
            raise RunError(f"{self._tool} stays busy ({outcome.status_code}): try again later")
        return self._content(outcome, method, path)

    def _content(self, response: httpx.Response, method: str, path: str) -> Any:
        if response.status_code in (401, 403):
            raise UserError(f"{self._tool} refuses the key ({response.status_code}): look at the environment variable")
        if response.status_code >= 400:
            raise RunError(f"{self._tool}: {method} {path} gave {response.status_code}: {response.text[:300]}")
        return response.json() if response.content else None
