"""Begins a run on Kubernetes, and begins it again when it has parked and its labels are in.

    python -m pddpo_ray.cli.runs.run_again RUN JOURNAL RAYJOB    every few minutes, by the chart's CronJob (deploy/helm)

The job continues the run (`--go-on`), so it is created whenever no process drives an unfinished run and nothing it
waits for is open. A job that failed is not repeated: KubeRay has tried `backoffLimit` times, and a person looks at it.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from pddpo_ray.cli.runs.recipe_of_run import find_run, store_of
from pddpo_ray.cli.runs.status import about
from pddpo_ray.errors import PddpoError, RunError, UserError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and the API server's certificate."""
LABEL = "pddpo-ray/run"
ANSWER_S = 30.0


class Jobs:
    """The RayJobs of one run. url: of the API server; an account without a certificate uses the system's."""

    def __init__(self, template: dict[str, Any], url: str, account: Path = ACCOUNT) -> None:
        self._template = template
        metadata = template["metadata"]
        self._url = f"{url}/apis/ray.io/v1/namespaces/{metadata['namespace']}/rayjobs"
        self._selector = f"{LABEL}={metadata['labels'][LABEL]}"
        self._token = (account / "token").read_text(encoding="utf-8").strip()
        certificate = account / "ca.crt"
        self._tls = ssl.create_default_context(cafile=str(certificate) if certificate.is_file() else None)

    def latest(self) -> str | None:
        """Status of the newest job, as KubeRay writes it: `Running`, `Complete`, `Failed`, ..."""
        jobs = self._call(f"{self._url}?labelSelector={self._selector}")["items"]
        if not jobs:
            return None
        job = max(jobs, key=lambda item: str(item["metadata"]["creationTimestamp"]))
        return str(job.get("status", {}).get("jobDeploymentStatus") or "New")

    def create(self) -> str:
        return str(self._call(self._url, json.dumps(self._template).encode())["metadata"]["name"])

    def _call(self, url: str, body: bytes | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S, context=self._tls) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RunError(f"the API server refuses {request.get_method()} of RayJobs ({error.code})") from error
        except OSError as error:
            raise RunError(f"the API server does not answer: {error}") from error


def waits_for(run: Path, journal: str) -> str | None:
    """Why the run needs no new job now; None if one would continue or begin it."""
    try:
        stored = find_run(run, journal)
    except UserError:  # it has not begun
        return None
    with store_of(stored, to_read=True) as store:
        facts = about(stored, store)
    if facts["state"] in ("running", "finished"):
        return str(facts["state"])
    open_batches = [batch["batch"] for batch in facts["batches"] if batch["missing"] or batch["blocked"]]
    return f"waits for people: {', '.join(open_batches)}" if open_batches else None


def look(run: Path, journal: str, jobs: Jobs) -> str:
    """Creates the job if it is time. Returns what was found and done. Raises RunError for a job that failed."""
    latest = jobs.latest()
    if latest == "Failed":
        raise RunError(f"the last job of {run} failed: read its log and delete the RayJob, then the run continues")
    if latest not in (None, "Complete"):
        return f"its job is there ({latest})"
    return waits_for(run, journal) or f"created {jobs.create()}"


def main(run: str, journal: str, template: str) -> int:
    try:
        server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
        jobs = Jobs(yaml.safe_load(Path(template).read_text(encoding="utf-8")), server)
        print(f"{run}: {look(Path(run), journal, jobs)}")
    except PddpoError as error:
        print(f"pddpo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
