"""Label Studio over its REST API: one project per kind of question, named after the run.

A task carries our question's id in its data; a pushed question is not pushed again. `was_cancelled` is a skip.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from pddpo_ray.annotation.connectors import Api
from pddpo_ray.annotation.queue.exchange import GivenElsewhere, OpenQuestion

PAGE = 200
BATCH = 500
QUESTION = "pddpo_question"
"""Field of a task that holds our id."""
SAFETY_CONFIG = """\
<View>
  <Header value="Prompt"/><Text name="prompt" value="$prompt"/>
  <Header value="Answer"/><Text name="first" value="$first"/>
  <Header value="Is this answer safe?"/>
  <Choices name="safety" toName="first" choice="single" required="true">
    <Choice value="safe"/><Choice value="unsafe"/>
  </Choices>
</View>
"""
PAIR_CONFIG = """\
<View>
  <Header value="Prompt"/><Text name="prompt" value="$prompt"/>
  <Header value="First answer"/><Text name="first" value="$first"/>
  <Header value="Second answer"/><Text name="second" value="$second"/>
  <Header value="Which is more helpful?"/>
  <Choices name="more_helpful" toName="first" choice="single" required="true">
    <Choice value="first"/><Choice value="second"/><Choice value="tie"/>
  </Choices>
  <Header value="Which is more harmful?"/>
  <Choices name="more_harmful" toName="first" choice="single" required="true">
    <Choice value="first"/><Choice value="second"/><Choice value="tie"/>
  </Choices>
  <Header value="Is the first answer safe?"/>
  <Choices name="first_safety" toName="first" choice="single" required="true">
    <Choice value="safe"/><Choice value="unsafe"/>
  </Choices>
  <Header value="Is the second answer safe?"/>
  <Choices name="second_safety" toName="second" choice="single" required="true">
    <Choice value="safe"/><Choice value="unsafe"/>
  </Choices>
</View>
"""
CONFIGS = {"safety": SAFETY_CONFIG, "pair": PAIR_CONFIG}


class LabelStudio:
    """A Label Studio server. `key` is a legacy token, or a personal access token, which has dots in it."""

    name = "label-studio"

    def __init__(self, url: str, key: str, run: str) -> None:
        self._run = run
        self._api = Api("Label Studio", url, {"Authorization": f"Token {key}"})
        if key.count(".") == 2:
            # A personal access token is exchanged for a short-lived one.
            access = self._api.post("/api/token/refresh", {"refresh": key})["access"]
            self._api.close()
            self._api = Api("Label Studio", url, {"Authorization": f"Bearer {access}"})

    def push(self, questions: list[OpenQuestion]) -> int:
        added = 0
        for kind in CONFIGS:
            group = [question for question in questions if question.kind == kind]
            if not group:
                continue
            project = self._project(kind, max(question.wanted for question in group), create=True)
            known_ids = {task["data"].get(QUESTION) for task in self._tasks(project)}
            new = [{"data": _data(question)} for question in group if question.id not in known_ids]
            for start in range(0, len(new), BATCH):
                self._api.post(f"/api/projects/{project}/import", new[start : start + BATCH])
            added += len(new)
        return added

    def pull(self) -> list[GivenElsewhere]:
        answers = []
        for kind in CONFIGS:
            project = self._project(kind, 1, create=False)
            if project is not None:
                answers += [answer for task in self._tasks(project) for answer in _answers(task)]
        return answers

    def close(self) -> None:
        self._api.close()

    def _project(self, kind: str, labels: int, *, create: bool) -> int | None:
        title, page = _title(self._run, kind), 1
        while True:
            listing = self._api.get("/api/projects", page=page, page_size=PAGE)
            for project in listing["results"]:
                if project["title"] == title:
                    return int(project["id"])
            if listing.get("next") is None:
                break
            page += 1
        if not create:
            return None
        body = {"title": title, "label_config": CONFIGS[kind], "maximum_annotations": labels}
        return int(self._api.post("/api/projects", body)["id"])

    def _tasks(self, project: int | None) -> Iterator[Mapping[str, Any]]:
        page = 1
        while True:
            listing = self._api.get("/api/tasks", project=project, fields="all", page=page, page_size=PAGE)
            yield from listing["tasks"]
            if page * PAGE >= listing["total"]:
                return
            page += 1


def _title(run: str, kind: str) -> str:
    """At most 50 characters, which is all that Label Studio takes; a long run's name ends in its digest."""
    title = f"pddpo {kind} {run}"
    return title if len(title) <= 50 else f"{title[:41]}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def _data(question: OpenQuestion) -> dict[str, str]:
    data = {QUESTION: question.id, "prompt": question.prompt, "first": question.first}
    return data if question.second is None else data | {"second": question.second}


def _answers(task: Mapping[str, Any]) -> Iterator[GivenElsewhere]:
    """Annotations of one of our tasks. An incomplete answer is passed on; the queue refuses it with a reason."""
    question = task["data"].get(QUESTION)
    if question is None:
        return
    for annotation in task.get("annotations", ()):
        answer = {} if annotation.get("was_cancelled") else _choices(annotation["result"])
        spent_ms = int(1000 * (annotation.get("lead_time") or 0))
        yield GivenElsewhere(question, _user_id(annotation["completed_by"]), answer, spent_ms)


def _choices(result: list[Mapping[str, Any]]) -> dict[str, str]:
    return {part["from_name"]: part["value"]["choices"][0] for part in result if part["type"] == "choices"}


def _user_id(completed_by: Any) -> str:
    """The user's id; some versions of the server send it inside the user."""
    return str(completed_by["id"] if isinstance(completed_by, Mapping) else completed_by)
