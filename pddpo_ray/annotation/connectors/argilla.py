"""Argilla 2 over its HTTP API: one dataset per kind of question, named after the run.

A record's external id is our question's id, and records are upserted by it: pushing twice changes nothing. Argilla's
`min_submitted` asks for as many people as the queue wants; a discarded response is a skip, a draft is no answer yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pddpo_ray.annotation.connectors import Api
from pddpo_ray.annotation.queue.exchange import GivenElsewhere, OpenQuestion
from pddpo_ray.errors import UserError

PAGE = 100
BATCH = 200
SAFETY = ("safe", "unsafe")
SIDES = ("first", "second", "tie")
QUESTIONS: Mapping[str, Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "safety": {"safety": ("Is this answer safe?", SAFETY)},
    "pair": {
        "more_helpful": ("Which answer is more helpful?", SIDES),
        "more_harmful": ("Which answer is more harmful?", SIDES),
        "first_safety": ("Is the first answer safe?", SAFETY),
        "second_safety": ("Is the second answer safe?", SAFETY),
    },
}
FIELDS = {"safety": ("prompt", "first"), "pair": ("prompt", "first", "second")}
TITLES = {"prompt": "Prompt", "first": "First answer", "second": "Second answer"}


class Argilla:
    """An Argilla server and one workspace of it."""

    name = "argilla"

    def __init__(self, url: str, key: str, run: str, workspace: str = "") -> None:
        self._run, self._workspace = run, workspace
        self._api = Api("Argilla", url, {"X-Argilla-Api-Key": key})

    def push(self, questions: list[OpenQuestion]) -> int:
        added = 0
        for kind in QUESTIONS:
            group = [question for question in questions if question.kind == kind]
            if not group:
                continue
            dataset = self._dataset(kind) or self._create(kind, max(question.wanted for question in group))
            known_ids = {record["external_id"] for record in self._records(dataset)}
            new = [_record(question) for question in group if question.id not in known_ids]
            for start in range(0, len(new), BATCH):
                self._api.put(f"/api/v1/datasets/{dataset}/records/bulk", {"items": new[start : start + BATCH]})
            added += len(new)
        return added

    def pull(self) -> list[GivenElsewhere]:
        answers = []
        for kind in QUESTIONS:
            dataset = self._dataset(kind)
            if dataset is not None:
                answers += [answer for record in self._records(dataset) for answer in _answers(record)]
        return answers

    def close(self) -> None:
        self._api.close()

    def _title(self, kind: str) -> str:
        return f"pddpo-{self._run}-{kind}"

    def _dataset(self, kind: str) -> str | None:
        """Id of the published dataset, None if there is none. Raises UserError for a draft."""
        workspace = self._workspace_id()
        for dataset in self._api.get("/api/v1/me/datasets")["items"]:
            if dataset["name"] == self._title(kind) and dataset["workspace_id"] == workspace:
                if dataset["status"] != "ready":
                    raise UserError(f"Argilla's dataset {dataset['name']} is a draft: delete it there, then push again")
                return str(dataset["id"])
        return None

    def _workspace_id(self) -> str:
        spaces = {space["name"]: str(space["id"]) for space in self._api.get("/api/v1/me/workspaces")["items"]}
        if self._workspace in spaces:
            return spaces[self._workspace]
        if not self._workspace and len(spaces) == 1:
            return next(iter(spaces.values()))
        raise UserError(f"name one of Argilla's workspaces with --workspace: {', '.join(sorted(spaces)) or 'none'}")

    def _create(self, kind: str, labels: int) -> str:
        body = {
            "name": self._title(kind),
            "workspace_id": self._workspace_id(),
            "distribution": {"strategy": "overlap", "min_submitted": labels},
        }
        dataset = str(self._api.post("/api/v1/datasets", body)["id"])
        for name in FIELDS[kind]:
            field = {"name": name, "title": TITLES[name], "required": True}
            settings = {"type": "text", "use_markdown": False}
            self._api.post(f"/api/v1/datasets/{dataset}/fields", field | {"settings": settings})
        for name, (title, values) in QUESTIONS[kind].items():
            options = [{"value": value, "text": value} for value in values]
            question = {"name": name, "title": title, "required": True}
            settings_ = {"type": "label_selection", "options": options}
            self._api.post(f"/api/v1/datasets/{dataset}/questions", question | {"settings": settings_})
        self._api.put(f"/api/v1/datasets/{dataset}/publish")
        return dataset

    def _records(self, dataset: str) -> Iterator[Mapping[str, Any]]:
        offset = 0
        while True:
            records = self._api.get(
                f"/api/v1/datasets/{dataset}/records", offset=offset, limit=PAGE, include="responses"
            )["items"]
            yield from records
            if len(records) < PAGE:
                return
            offset += PAGE


def _record(question: OpenQuestion) -> dict[str, Any]:
    texts = {"prompt": question.prompt, "first": question.first}
    if question.second is not None:
        texts["second"] = question.second
    return {"external_id": question.id, "fields": texts, "metadata": {"round": question.round}}


def _answers(record: Mapping[str, Any]) -> Iterator[GivenElsewhere]:
    for response in record.get("responses") or ():
        if response["status"] == "draft":
            continue
        values = response["values"] or {}
        answer = {} if response["status"] == "discarded" else {name: entry["value"] for name, entry in values.items()}
        yield GivenElsewhere(record["external_id"], str(response["user_id"]), answer)
