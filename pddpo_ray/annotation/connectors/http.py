"""Requests to another tool's HTTP API: our errors, retries where nothing can happen twice, pages."""

from __future__ import annotations

import time
from typing import Any

import httpx

from pddpo_ray.errors import RunError, UserError

TRIES = 4
PAUSE_S = 0.5
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
        """The JSON that came back. A busy tool is asked again; a POST only if it was never reached."""
        for attempt in range(TRIES):
            try:
                response = self._client.request(method, path, **content)
            except httpx.ConnectError as error:
                if attempt == TRIES - 1:
                    raise UserError(f"no {self._tool} at {self._client.base_url}: check --url ({error})") from error
            except httpx.TransportError as error:
                if method == "POST" or attempt == TRIES - 1:
                    raise RunError(
                        f"{self._tool} broke off {method} {path} ({error}); the same command may be given again"
                    ) from error
            else:
                if response.status_code not in BUSY or (method == "POST" and response.status_code != 429):
                    return self._content(response, method, path)
                if attempt == TRIES - 1:
                    raise RunError(f"{self._tool} stays busy ({response.status_code}): try again later")
            time.sleep(PAUSE_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _content(self, response: httpx.Response, method: str, path: str) -> Any:
        if response.status_code in (401, 403):
            raise UserError(f"{self._tool} refuses the key ({response.status_code}): look at the environment variable")
        if response.status_code >= 400:
            raise RunError(f"{self._tool}: {method} {path} gave {response.status_code}: {response.text[:300]}")
        return response.json() if response.content else None
