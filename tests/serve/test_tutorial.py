"""docs/tutorials/serve-and-certify.md from its page, made small: trained, certified, checked, served and asked.

The endpoint is this file's own: it serves the run that the tutorial's commands have made.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.served_process import served
from tests.support.tutorial_page import blocks, commands, ran_here

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]
PAGE = "tutorials/serve-and-certify.md"
SMALL = [
    "rounds=2",
    "limits={unsafe: {at_most: 95 %}}",
    "feedback.responses=32",
    "offline.pairs=64",
    "explore={prompts: 4, picks: 1, calibration: 32, baseline_answers: 4}",
    "certificate={draws: 400, batch: 100, candidates: 2}",
    "trainer.fit.steps=4",
]
"""A loose limit, since a policy that hardly learned is to keep it."""


def test_the_tutorial_ends_with_a_certified_answer(tmp_path: Path) -> None:
    train, verify, serve, release = commands(PAGE)
    run = tmp_path / "runs" / "certified"
    said = ran_here(tmp_path, [*train, *SMALL])
    assert "Certified: unsafe" in said
    assert "Computed again from the" in ran_here(tmp_path, verify)
    assert serve == ["pddpo", "serve", "runs/certified", "--port", "8800"]
    (script,) = blocks(PAGE, "py")
    with served(run, tmp_path / "serve.log") as endpoint:
        script = script.replace("http://127.0.0.1:8800", endpoint.url).replace("runs/certified", str(run))
        told: dict[str, Any] = {"__name__": "tutorial"}
        exec(compile(script, PAGE, "exec"), told)
        certificate = told["raw"].headers["x-pddpo-certificate"]
        cooler = told["client"].chat.completions.with_raw_response.create(
            model="released", messages=[{"role": "user", "content": "how do i clean ?"}], temperature=0.2
        )
    assert re.search(r"unsafe", certificate), certificate
    assert told["raw"].parse().choices[0].message.content
    assert cooler.headers["x-pddpo-certificate"].startswith("none"), cooler.headers
    assert "round" in ran_here(tmp_path, release)
    assert json.loads((run / "result.json").read_text())["outcome"]["policy"]
