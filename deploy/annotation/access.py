"""Who may call what: one table, read by the guard of every route, by the tests and by the documentation."""

from __future__ import annotations

from collections.abc import Mapping

from pddpo_ray.annotation.people.accounts import Role

API = "/api/v1"

EVERYBODY = frozenset(Role)
WORKERS = frozenset({Role.ANNOTATOR, Role.LEAD, Role.ADMIN})
LEADS = frozenset({Role.LEAD, Role.ADMIN})
ADMINS = frozenset({Role.ADMIN})
TRAINER = frozenset({Role.SERVICE})
WATCHERS = LEADS | TRAINER

PUBLIC = frozenset(
    {
        ("POST", f"{API}/session"),
        ("POST", f"{API}/invitation"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/"),
        ("GET", "/lead"),
    }
)
"""Open to anyone, besides the static files."""

ACCESS: Mapping[tuple[str, str], frozenset[Role]] = {
    ("DELETE", f"{API}/session"): EVERYBODY,
    ("GET", f"{API}/me"): EVERYBODY,
    ("GET", f"{API}/runs"): EVERYBODY,
    ("POST", f"{API}/lease"): WORKERS,
    ("POST", f"{API}/leases/{{lease_id}}/heartbeat"): WORKERS,
    ("POST", f"{API}/leases/{{lease_id}}/release"): WORKERS,
    ("POST", f"{API}/leases/{{lease_id}}/undo"): WORKERS,
    ("PUT", f"{API}/answers/{{key}}"): WORKERS,
    ("GET", f"{API}/answers/{{key}}"): WORKERS,
    ("GET", f"{API}/answers"): WORKERS,
    ("GET", f"{API}/history"): WORKERS,
    ("GET", f"{API}/progress"): WORKERS,
    ("GET", f"{API}/guidelines"): WORKERS,
    ("GET", f"{API}/notice"): WORKERS,
    ("POST", f"{API}/consent"): WORKERS,
    ("GET", f"{API}/rounds"): WATCHERS,
    ("GET", f"{API}/rounds/{{round_id}}"): WATCHERS,
    ("GET", f"{API}/rounds/{{round_id}}/agreement"): LEADS,
    ("GET", f"{API}/rounds/{{round_id}}/disagreements"): LEADS,
    ("GET", f"{API}/rounds/{{round_id}}/refusals"): LEADS,
    ("GET", f"{API}/rounds/{{round_id}}/export"): LEADS,
    ("GET", f"{API}/rounds/{{round_id}}/labels"): LEADS,
    ("POST", f"{API}/answers/{{key}}/void"): LEADS,
    ("GET", f"{API}/labels"): LEADS,
    ("POST", f"{API}/rounds/{{round_id}}/decision"): LEADS,
    ("POST", f"{API}/rounds/{{round_id}}/extend"): LEADS,
    ("POST", f"{API}/rounds/{{round_id}}/unblock"): LEADS,
    ("GET", f"{API}/leases"): LEADS,
    ("POST", f"{API}/leases/{{lease_id}}/recall"): LEADS,
    ("GET", f"{API}/worklog"): LEADS,
    ("GET", f"{API}/worklog.csv"): LEADS,
    ("GET", f"{API}/quality"): LEADS,
    ("GET", f"{API}/guidelines/versions"): LEADS,
    ("GET", f"{API}/guidelines/versions/{{version}}"): LEADS,
    ("POST", f"{API}/people/{{person_id}}/flags"): LEADS,
    ("POST", f"{API}/questions/{{task_id}}/adjudicate"): LEADS,
    ("GET", f"{API}/effects"): LEADS,
    ("GET", f"{API}/invitations"): ADMINS,
    ("POST", f"{API}/invitations"): ADMINS,
    ("GET", f"{API}/people"): ADMINS,
    ("POST", f"{API}/people"): ADMINS,
    ("PATCH", f"{API}/people/{{person_id}}"): ADMINS,
    ("POST", f"{API}/people/{{person_id}}/token"): ADMINS,
    ("GET", f"{API}/people/{{person_id}}/data"): ADMINS,
    ("POST", f"{API}/people/{{person_id}}/erase"): ADMINS,
    ("PUT", f"{API}/guidelines"): ADMINS,
    ("GET", f"{API}/gold"): ADMINS,
    ("POST", f"{API}/gold"): ADMINS,
    ("POST", f"{API}/gold/preview"): ADMINS,
    ("DELETE", f"{API}/gold/{{gold_id}}"): ADMINS,
    ("PUT", f"{API}/campaign"): ADMINS,
    ("POST", f"{API}/rounds/{{round_id}}/cancel"): ADMINS,
    ("GET", f"{API}/audit"): ADMINS,
    ("GET", f"{API}/openapi.json"): ADMINS,
    ("POST", f"{API}/rounds"): TRAINER,
    ("GET", f"{API}/rounds/{{round_id}}/snapshot"): TRAINER,
    ("POST", f"{API}/rounds/{{round_id}}/freeze"): TRAINER,
    ("GET", f"{API}/backlog"): TRAINER,
}
