"""Requests made from the API's own description, right and wrong: never a 5xx, every refusal in the one shape."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deploy.annotation.access import API
from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from tests.support.annotation_api import FreshService
from tests.support.annotation_queue import pair_questions, safety_questions

TEXT = st.one_of(st.text(max_size=12), st.sampled_from(["", "safe", "left", "\0", "\ud800", "' OR 1=1 --", "é" * 70]))
NUMBER = st.one_of(st.integers(-5, 5), st.sampled_from([2**31, 2**63, 2**70, -(2**63)]), st.floats(allow_nan=False))
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, TEXT),
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(TEXT, below, max_size=3)),
    max_leaves=5,
)


def matching(schema: dict[str, Any], components: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that mostly follow a schema, and one time in six do not."""
    return st.integers(0, 5).flatmap(lambda n: ANYTHING if n == 0 else _following(schema, components))


def _following(schema: dict[str, Any], components: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return matching(components[schema["$ref"].rpartition("/")[2]], components)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([matching(one, components) for one in schema["anyOf"]])
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        required = set(schema.get("required", []))
        parts = {name: matching(below, components) for name, below in schema["properties"].items()}
        return st.fixed_dictionaries(
            {name: part for name, part in parts.items() if name in required},
            optional={name: part for name, part in parts.items() if name not in required},
        )
    if kind == "object":
        keys = st.sampled_from(["safety", "more_helpful", "more_harmful", "left_safety", "right_safety", "x"])
        return st.dictionaries(keys, st.sampled_from(["safe", "unsafe", "left", "tie", "x"]), max_size=5)
    if kind == "array":
        return st.lists(matching(schema["items"], components), max_size=3)
    simple = {"integer": st.integers(0, 3), "number": st.floats(0, 1), "boolean": st.booleans(), "null": st.none()}
    return simple.get(str(kind), TEXT)


@pytest.fixture
def busy_service(service: FreshService) -> FreshService:
    """An service with open, frozen and answered questions, so that guessed names are sometimes real ones."""
    queue = service.queue
    queue.rounds.open(1, "safety", safety_questions(4), labels_each=2)
    queue.rounds.open(1, "compare", pair_questions(4), labels_each=1)
    for role in (Role.ANNOTATOR, Role.LEAD):
        lease = queue.leases.lease(service.people[role])
        assert isinstance(lease, Lease)
        queue.answers.answer(service.people[role], f"fuzz-{role.value}", lease.id, Submission("abstain"))
        queue.leases.lease(service.people[role])
    return service


@pytest.mark.full
@pytest.mark.slow
def test_no_request_made_from_the_description_breaks_the_service(busy_service: FreshService) -> None:
    admin = busy_service.client(Role.ADMIN)
    description = admin.get(f"{API}/openapi.json").json()
    components = description["components"]["schemas"]
    operations = [
        (path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
        if path not in (f"{API}/people/{{person_id}}", f"{API}/people/{{person_id}}/token", f"{API}/openapi.json")
    ]
    clients = [busy_service.client(role) for role in Role]
    names = [status.id for status in busy_service.queue.rounds.all()] + ["fuzz-annotator", "fuzz-lead", "x"]
    names += [task["lease"] for task in (admin.post(f"{API}/lease", json={}).json()["task"] for _ in range(1)) if task]
    seen: dict[tuple[str, str], set[int]] = {}

    @settings(
        max_examples=1_500,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def fuzz(data: st.DataObject) -> None:
        path, method, operation = data.draw(st.sampled_from(operations))
        address, query = path, {}
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                value = data.draw(st.one_of(st.sampled_from(names), TEXT.filter(lambda text: "\ud800" not in text)))
                address = address.replace(f"{{{parameter['name']}}}", quote(value, safe="") or "x")
            elif data.draw(st.booleans()):
                query[parameter["name"]] = data.draw(st.one_of(st.integers(-1, 300), st.just("x")))
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        sent = None if body is None else data.draw(matching(body, components))
        client = data.draw(st.sampled_from(clients))
        content = None if body is None else json.dumps(sent).encode()
        headers = {"Content-Type": "application/json"}
        response = client.request(method, address, params=query, content=content, headers=headers)
        seen.setdefault((method, path), set()).add(response.status_code)
        assert response.status_code < 500, (method, address, sent, response.text)
        if response.status_code >= 400:
            assert response.headers["content-type"] == "application/problem+json", (method, address, response.text)
            assert {"type", "title", "status", "code", "detail"} <= set(response.json())

    fuzz()
    assert {status for statuses in seen.values() for status in statuses} >= {200, 403, 404, 409, 422}
    assert len(seen) == len(operations), "every operation was tried"
