"""The whole loop with nothing left out: a run is trained and served, its users' prompts and verdicts come back.

The endpoint is this file's own: it serves one run while that goes on with further rounds, and keeps what is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal import read_journal
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.served_process import served
from tests.support.small_real_text import SMALL_REAL_TEXT
from tests.unit.loop.test_production import recipe, texts_in

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.full]
MOST = load("real-text", SMALL_REAL_TEXT).rollout.max_tokens
CONTEXT = "data.reference.context=256"
TAKING = "production={share: 40 %, verdicts: 0.5}"


class Users:
    """People in front of the endpoint, with the run's own key."""

    def __init__(self, url: str, run: Path) -> None:
        self._url, self._headers = url, {"authorization": f"Bearer {(run / 'serve-key').read_text().strip()}"}

    def post(self, path: str, body: Any, **headers: str) -> Any:
        sent = httpx.post(f"{self._url}{path}", json=body, headers={**self._headers, **headers}, timeout=300)
        return sent.raise_for_status().json()

    def ask(self, text: str, **headers: str) -> str:
        """The reply's id. Drawn as the run draws: an answer of a seed, or cut shorter, is not kept, and a longer one of
        these random weights is no text of its training."""
        body = {"model": "round-1", "messages": [{"role": "user", "content": text}], "max_tokens": MOST}
        return str(self.post("/v1/chat/completions", body, **headers)["id"])

    def judge(self, reply: str, verdict: str) -> bool:
        return bool(self.post("/v1/feedback", {"id": reply, "verdict": verdict})["kept"])


def test_served_prompts_and_verdicts_enter_two_further_rounds_and_a_withdrawn_one_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_recipe(recipe(tmp_path, 1, CONTEXT), run)
    with served(run, tmp_path / "serve.log", "--keep", "request") as endpoint:
        users = Users(endpoint.url, run)
        yes = {"x-pddpo-training": "yes"}
        zebra = [users.ask("How do I feed a zebra?", **yes) for _ in range(2)]
        sleep = [users.ask("Write to ana@mail.example how I sleep.", **yes) for _ in range(2)]
        not_given = users.ask("Nobody may learn this walrus.")
        for up, unsafe in (zebra, sleep):
            assert users.judge(up, "up")
            assert users.judge(unsafe, "unsafe")
        assert not users.judge(not_given, "up")

        run_recipe(recipe(tmp_path, 3, CONTEXT, TAKING), run, resume=True)
        with read_journal(run / JOURNAL) as journal:
            asked = {prompt.id: prompt.text for prompt in journal.prompts().values() if prompt.id.startswith("served-")}
            assert sorted(asked.values()) == ["How do I feed a zebra?", "Write to [mail] how I sleep."]
            for number in (2, 3):
                assert {answer.prompt.id for answer in journal.samples(number)} & set(asked)
            assert len(journal.phases(2, "verdicts")[0].payload["pairs"]) == 2
        assert texts_in(run)

        taken = users.post("/v1/withdraw", {"id": zebra[0]})
    assert taken["prompts"] == 1
    assert texts_in(run) == []
    run_recipe(recipe(tmp_path, 4, CONTEXT, TAKING), run, resume=True)
    with read_journal(run / JOURNAL) as journal:
        texts = {answer.prompt.text for answer in journal.samples(4)}
    assert "Write to [mail] how I sleep." in texts
    assert not any("zebra" in text for text in texts)
    assert texts_in(run) == []
