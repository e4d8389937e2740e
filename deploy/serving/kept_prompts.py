"""What is kept of served exchanges for the run's next rounds: only with the operator's opt-in and its sender's consent.

Texts are scrubbed before they are written. Answers never wait for that: exchanges are queued here and a task of its own
writes them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Literal

from deploy.serving.metrics import ServingMetrics
from pddpo_ray.journal.served import Caps, Sent, UserVerdict, judge, keep
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.keys import ApiKey
from pddpo_ray.serving.scrubbing import Scrubber

logger = logging.getLogger("deploy.serving")

Consent = Literal["off", "request", "key"]
"""Who consents: nobody, so that nothing is kept; each request by itself; or the key, for all its requests."""
CONSENT_HEADER = "x-pddpo-training"
"""yes or no, of this request; a no counts whatever the key says."""
WAITING_MAX = 1000


def consents(consent: Consent, key: ApiKey, header: str | None) -> bool:
    """Whether what a request sends may be kept; `header`: its header."""
    word = (header or "").strip().lower()
    if consent == "off" or word not in ("", "yes"):
        return False
    return word == "yes" if consent == "request" else key.consented


class KeptPrompts:
    """Of one entrance. `work` writes what waits, until cancelled."""

    def __init__(self, store: Store, consent: Consent, scrub: Scrubber, caps: Caps, metrics: ServingMetrics) -> None:
        self._store, self._scrub, self._caps, self._metrics = store, scrub, caps, metrics
        self.consent = consent
        self._waiting: asyncio.Queue[Sent] = asyncio.Queue(WAITING_MAX)

    def offer(self, key: ApiKey, header: str | None, sent: Sent | None) -> None:
        """Queues an exchange that ended well, if it has consent and the queue has room."""
        if sent is not None and consents(self.consent, key, header) and not self._waiting.full():
            self._waiting.put_nowait(sent)

    async def work(self) -> None:
        while True:
            sent = await self._waiting.get()
            try:
                await asyncio.to_thread(self.write, sent)
            except Exception:
                logger.exception("a prompt that may be kept was not written")
            finally:
                self._waiting.task_done()

    def write(self, sent: Sent) -> None:
        """Scrubs and stores one exchange, within the caps."""
        contents = [self._scrub(text) for text in (*(turn.content for turn in sent.messages), sent.answer)]
        clean = [text for text in contents if text is not None]
        if len(clean) < len(contents):
            self._metrics.kept("scrubbed-whole")
            return
        turns = tuple(replace(turn, content=text) for turn, text in zip(sent.messages, clean, strict=False))
        self._metrics.kept(keep(self._store, replace(sent, messages=turns, answer=clean[-1]), self._caps))

    async def judge(self, reply: str, verdict: UserVerdict) -> bool:
        """Stores a reader's verdict on an answer. -> whether the answer is kept"""
        if self.consent == "off":
            return False
        await self.settled()
        return await asyncio.to_thread(judge, self._store, reply, verdict)

    async def settled(self) -> None:
        """Returns when everything that was offered is written."""
        await self._waiting.join()
