"""What a submitted job made is what the endpoint serves.

The endpoint is this file's own: it serves the run that the job has trained.
"""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest

from pddpo_ray.journal import read_journal
from tests.support.job_head import pddpo_submit, running_head
from tests.support.served_process import served
from tests.support.stopped_streams import STREAMS, stopped_under_streams

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.full]

SMALL = [
    *["rounds=1", "seed=5", "offline.pairs=100", "cluster={mode: ray, cpus: 3}", "trainer.threads=1"],
    *[
        "trainer.fit.steps=4",
        "feedback.responses=24",
    ],
    *["explore.calibration=192", "explore.prompts=4", "explore.picks=2"],
]


def test_the_endpoint_serves_what_a_submitted_job_made(tmp_path: Path) -> None:
    run = tmp_path / "job"
    with running_head() as head:
        done = pddpo_submit(head, "text-world", run, *SMALL)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert (told["exit_code"], told["attached"], told["run"]) == (0, False, str(run))
    assert "round 1/1" in done.stderr, "the log was shown"
    assert json.loads((run / "result.json").read_text())["weights_verified"] is True
    with read_journal(run / "journal.sqlite", "job") as journal:
        version, identity = journal.policies[-1].number, journal.run_id
        prompt = journal.samples(1)[0].prompt
    with served(run, tmp_path / "serve.log") as endpoint:
        key = (run / "serve-key").read_text().strip()
        client = openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key=key, max_retries=0, timeout=120)
        reply = client.completions.create(model="round-1", prompt=list(prompt.token_ids), max_tokens=8, temperature=0)
        ends = stopped_under_streams(endpoint, key, list(prompt.token_ids))
    facts = reply.model_extra["pddpo"]  # type: ignore[index]
    assert (facts["run"], facts["round"], facts["policy_version"]) == (identity, 1, version)
    assert reply.choices[0].text.split()
    assert ends["whole"] >= STREAMS
    assert set(ends) <= {"whole", "refused", "closed"}, ends
