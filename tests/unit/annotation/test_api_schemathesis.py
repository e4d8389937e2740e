"""schemathesis against the API: requests made from its OpenAPI description, right and wrong, by every role."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from deploy.annotation.access import ACCESS, API
from pddpo_ray.annotation.people.accounts import Role
from tests.support.annotation_api import FreshService
from tests.support.annotation_queue import pair_questions, safety_questions

EXAMPLES = 8
"""Per operation, role and kind of request."""
FEW = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
Statuses = dict[tuple[str, str], set[int]]


@pytest.fixture
def staffed(service: FreshService) -> FreshService:
    """An service with questions of both kinds, some in people's hands."""
    service.queue.rounds.open(1, "safety", safety_questions(6), labels_each=3)
    service.queue.rounds.open(1, "compare", pair_questions(6), labels_each=1)
    for role in (Role.ANNOTATOR, Role.LEAD, Role.ADMIN):
        service.queue.leases.lease(service.people[role])
    return service


def operations(service: FreshService) -> list[Any]:
    schema = schemathesis.openapi.from_dict(service.client(Role.ADMIN).get(f"{API}/openapi.json").json())
    schema.app = service.app
    return [found.ok() for found in schema.get_all_operations()]


def ask(operation: Any, mode: GenerationMode, token: str, statuses: Statuses) -> None:
    """Calls one operation; a 5xx raises."""

    @FEW
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Any) -> None:
        response = case.call(headers={"Authorization": f"Bearer {token}"})
        case.validate_response(response, checks=(not_a_server_error,))
        statuses.setdefault((case.method, case.path), set()).add(response.status_code)

    try:
        call()
    except Unsatisfiable:
        # Nothing about a request without parameters and body can be wrong.
        assert mode is GenerationMode.NEGATIVE


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_request_of_any_role_is_answered_with_5xx(staffed: FreshService, mode: GenerationMode) -> None:
    statuses: Statuses = {}
    for operation in operations(staffed):
        for role in (Role.ANNOTATOR, Role.ADMIN, Role.SERVICE):
            # A request may give its caller a new token: later ones get 401, which is an answer too.
            ask(operation, mode, staffed.tokens[role], statuses)
    if mode is GenerationMode.POSITIVE:
        assert set(statuses) >= set(ACCESS) - {("GET", f"{API}/openapi.json")}
    else:
        assert 422 in set().union(*statuses.values())
    assert all(status < 500 for found in statuses.values() for status in found)
