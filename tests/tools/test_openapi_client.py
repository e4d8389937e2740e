"""A client that is generated from the annotation API's description signs in, works and understands refusals.

python3 -m venv oc && oc/bin/pip install openapi-python-client
PDDPO_OPENAPI_CLIENT=oc/bin/openapi-python-client python -m pytest tests/tools
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.journal.database import open_database
from tests.support.annotation_api import FreshService
from tests.support.annotation_queue import FreshQueue, create_run, safety_questions
from tests.support.annotation_server import serving

pytestmark = pytest.mark.full


def generated(description: dict[str, Any], folder: Path) -> str:
    """Generates a client package; its name. Every operation has to be understood."""
    program = os.environ.get("PDDPO_OPENAPI_CLIENT")
    if not program:
        pytest.skip("no generator: install openapi-python-client elsewhere and name it in PDDPO_OPENAPI_CLIENT")
    (folder / "api.json").write_text(json.dumps(description))
    command = [program, "generate", "--path", "api.json", "--output-path", "annotation_client", "--meta", "none"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert "WARNING parsing" not in said.stdout + said.stderr, said.stdout
    return "annotation_client"


def test_a_generated_client_takes_a_question_answers_it_and_reads_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_database(tmp_path / "journal.sqlite")
    create_run(engine)
    service = FreshService(FreshQueue(engine))
    name = generated(service.app.openapi(), tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def part(path: str) -> Any:
        return importlib.import_module(f"{name}.{path}")

    models = part("models")
    service.queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    signed_in = part("client").AuthenticatedClient
    with (
        serving(service.app) as url,
        signed_in(base_url=url, token=service.tokens[Role.ANNOTATOR]) as client,
        signed_in(base_url=url, token="wrong") as nobody,
    ):
        assert part("api.work.me").sync(client=client).to_dict()["handle"] == "the annotator"
        task = part("api.work.lease").sync(client=client, body=models.LeaseRequest()).to_dict()["task"]
        given = models.AnswerBodyGiven.from_dict({"safety": "unsafe"})
        body = models.AnswerBody(lease=task["lease"], kind=models.AnswerBodyKind.LABEL, given=given)
        stored = part("api.work.answer").sync_detailed("key-00001", client=client, body=body)
        assert (stored.status_code, stored.parsed.to_dict()["outcome"]) == (201, "counted")
        missing = part("api.work.receipt").sync("key-99999", client=client)
        refused = part("api.admin.people").sync(client=client)
        unknown = part("api.work.me").sync(client=nobody)
    problems = [missing, refused, unknown]
    assert all(isinstance(one, models.Problem) for one in problems)
    assert [(one.status, one.code) for one in problems] == [
        (404, "not_found"),
        (403, "forbidden"),
        (401, "unauthorized"),
    ]
    for module in [one for one in sys.modules if one.split(".")[0] == name]:
        del sys.modules[module]
    engine.dispose()
