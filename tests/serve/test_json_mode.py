"""JSON mode on a real engine: a random byte-level model under a schema writes what the schema allows.

The engine is this file's own: its model has random weights over bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.serve.json_story import SCHEMA
from tests.unit.serving.test_request_fields import fields_of_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.full]

ROOT = Path(__file__).parents[2]


def test_under_a_schema_even_a_random_model_writes_what_the_schema_allows(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.serve.json_story", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    finished = [each["body"]["choices"][0] for each in told["strict"] if each["status"] == 200]
    assert len(finished) == 8
    for choice in finished:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    assert len({choice["message"]["content"] for choice in finished}) > 1
    assert told["wrong"]["status"] == 400
    assert 0 < told["full"]["room"] < 100, "the prompt leaves less than the 100 tokens that were asked for"
    assert told["full"]["body"]["usage"]["completion_tokens"] <= told["full"]["room"]
    for kind, fields in told["fields"].items():
        assert set(fields) == fields_of_vllm(kind), "vLLM's own models, as its source reads"
