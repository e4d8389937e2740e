"""Servers that behave like Label Studio and Argilla as far as our connectors speak with them.

Built from the tools' public descriptions: paths, fields, pages and status codes. They refuse what the real ones refuse
(wrong key, unknown project, missing variable, an unpublished dataset) and keep everything in memory.
"""

from __future__ import annotations

import uuid
import xml.etree.ElementTree as ElementTree
from typing import Any

from fastapi import FastAPI, HTTPException, Request

KEY = "a-key"
PERSONAL = "head.body.signature"


def label_studio() -> FastAPI:
    """`app.state.tasks` are the tasks of all projects, to which a test adds annotations."""
    app = FastAPI()
    projects: list[dict[str, Any]] = []
    tasks: list[dict[str, Any]] = []
    app.state.tasks, app.state.projects = tasks, projects

    def demand_key(request: Request) -> None:
        if request.headers.get("authorization") not in (f"Token {KEY}", "Bearer short-lived"):
            raise HTTPException(401, {"detail": "Invalid token."})

    @app.post("/api/token/refresh")
    def refresh(body: dict[str, str]) -> dict[str, str]:
        if body.get("refresh") != PERSONAL:
            raise HTTPException(401)
        return {"access": "short-lived"}

    @app.get("/api/projects")
    def listed(request: Request, page: int = 1, page_size: int = 30) -> dict[str, Any]:
        demand_key(request)
        part = projects[(page - 1) * page_size : page * page_size]
        more = "more" if page * page_size < len(projects) else None
        return {"count": len(projects), "next": more, "previous": None, "results": part}

    @app.post("/api/projects", status_code=201)
    def create(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        demand_key(request)
        if len(body["title"]) > 50:
            raise HTTPException(400, {"validation_errors": {"title": ["too long"]}})
        ElementTree.fromstring(body["label_config"])
        projects.append({"id": len(projects) + 1, **body})
        return projects[-1]

    @app.post("/api/projects/{project}/import", status_code=201)
    def import_(request: Request, project: int, body: list[dict[str, Any]]) -> dict[str, int]:
        demand_key(request)
        config = ElementTree.fromstring(projects[project - 1]["label_config"])
        needed = {tag.get("value", "")[1:] for tag in config.iter("Text")}
        for task in body:
            if not needed <= set(task["data"]):
                raise HTTPException(400, {"validation_errors": ["a variable of the labeling config is missing"]})
            tasks.append({"id": len(tasks) + 1, "project": project, "data": task["data"], "annotations": []})
        return {"task_count": len(body)}

    @app.get("/api/tasks")
    def task_list(request: Request, project: int, page: int = 1, page_size: int = 100) -> dict[str, Any]:
        demand_key(request)
        mine = [task for task in tasks if task["project"] == project]
        part = mine[(page - 1) * page_size : page * page_size]
        return {"tasks": part, "total": len(mine), "total_annotations": 0, "total_predictions": 0}

    return app


def choices(**chosen: str) -> list[dict[str, Any]]:
    """The result of an annotation as Label Studio stores it."""
    return [
        {"from_name": name, "to_name": "first", "type": "choices", "id": name[:4], "value": {"choices": [value]}}
        for name, value in chosen.items()
    ]


def argilla() -> FastAPI:
    """`app.state.records` are the records by dataset and external id, to which a test adds responses."""
    app = FastAPI()
    workspace = str(uuid.UUID(int=7))
    datasets: dict[str, dict[str, Any]] = {}
    records: dict[str, dict[str, dict[str, Any]]] = {}
    app.state.records, app.state.datasets = records, datasets

    def demand_key(request: Request) -> None:
        if request.headers.get("x-argilla-api-key") != KEY:
            raise HTTPException(401, {"detail": {"code": "argilla.api.errors::UnauthorizedError"}})

    @app.get("/api/v1/me/workspaces")
    def workspaces(request: Request) -> dict[str, Any]:
        demand_key(request)
        return {"items": [{"id": workspace, "name": "people"}]}

    @app.get("/api/v1/me/datasets")
    def listed(request: Request) -> dict[str, Any]:
        demand_key(request)
        return {
            "items": [{key: one[key] for key in ("id", "name", "status", "workspace_id")} for one in datasets.values()]
        }

    @app.post("/api/v1/datasets", status_code=201)
    def create(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        demand_key(request)
        id_ = str(uuid.uuid4())
        datasets[id_] = {"id": id_, "status": "draft", "fields": [], "questions": [], **body}
        records[id_] = {}
        return datasets[id_]

    @app.post("/api/v1/datasets/{dataset}/{part}", status_code=201)
    def add(request: Request, dataset: str, part: str, body: dict[str, Any]) -> dict[str, Any]:
        demand_key(request)
        datasets[dataset][part].append(body)
        return body

    @app.put("/api/v1/datasets/{dataset}/publish")
    def publish(request: Request, dataset: str) -> dict[str, Any]:
        demand_key(request)
        if not datasets[dataset]["fields"] or not datasets[dataset]["questions"]:
            raise HTTPException(422, {"detail": "a dataset needs a required field and a required question"})
        datasets[dataset]["status"] = "ready"
        return datasets[dataset]

    @app.put("/api/v1/datasets/{dataset}/records/bulk")
    def upsert(request: Request, dataset: str, body: dict[str, Any]) -> dict[str, Any]:
        demand_key(request)
        if datasets[dataset]["status"] != "ready":
            raise HTTPException(422, {"detail": "the dataset is not ready"})
        wanted = {field["name"] for field in datasets[dataset]["fields"]}
        for item in body["items"]:
            if set(item["fields"]) != wanted:
                raise HTTPException(422, {"detail": "unknown or missing fields"})
            old = records[dataset].get(item["external_id"], {"responses": []})
            records[dataset][item["external_id"]] = {**old, **item}
        return {"items": body["items"], "updated_item_ids": []}

    @app.get("/api/v1/datasets/{dataset}/records")
    def record_list(request: Request, dataset: str, offset: int = 0, limit: int = 50) -> dict[str, Any]:
        demand_key(request)
        return {"items": list(records[dataset].values())[offset : offset + limit]}

    return app


def response(user: int, status: str = "submitted", **values: str) -> dict[str, Any]:
    """A response as Argilla returns it."""
    said = {name: {"value": value} for name, value in values.items()}
    return {"id": str(uuid.uuid4()), "user_id": str(uuid.UUID(int=user)), "status": status, "values": said or None}
