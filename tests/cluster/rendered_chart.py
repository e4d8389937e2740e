"""Renders the chart as Helm does, for `test_chart.py`, in the environment of `make chart`: values on stdin, JSON out.

stdin   {name: values}
stdout  {name: {"documents": [...], "problems": [...]} or {"error": "..."}}; problems are what schemas refuse
"""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python
import kubernetes_validate
import yaml

KUBERNETES = "1.33"
OTHERS_KINDS = ("ray.io/", "monitoring.coreos.com/")


def rendered(folder: str, values: dict[str, Any]) -> dict[str, Any]:
    try:
        texts = helm_python.Chart.load(folder).render(values=values, name="first", namespace="pddpo")
    except helm_python.HelmError as error:
        return {"error": str(error)}
    documents = [entry for text in texts.values() for entry in yaml.safe_load_all(text) if entry]
    problems = []
    for document in documents:
        if document["apiVersion"].startswith(OTHERS_KINDS):
            continue
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            problems.append(f"{document['kind']} {document['metadata']['name']}: {error.message}")
    return {"documents": documents, "problems": problems}


def main(folder: str) -> None:
    results = {name: rendered(folder, values) for name, values in json.load(sys.stdin).items()}
    results["lint"] = helm_python.lint(folder)
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
