"""The Helm chart, rendered by Helm's own library for several values, and every object against its kind's schema.

The tools live in an environment of their own (`make chart`).
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.serving import stopping
from deploy.serving.settings import ServeArgs
from pddpo_ray import __version__
from pddpo_ray.config import load, recipe_names

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-chart" / "bin" / "python"
CHART = ROOT / "deploy" / "helm"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
NAMES = ["default", *(path.stem for path in EXAMPLES)]
CRDS: dict[str, Any] = json.loads(gzip.decompress((Path(__file__).parent / "schemas/kuberay-v1.json.gz").read_bytes()))
WRONG = {
    "misspelt": {"run": {"reciep": "tabular"}},
    "a password in the URL": {"database": {"enabled": False, "url": "postgresql://pddpo:secret@db/pddpo"}},
    "no database at all": {"database": {"enabled": False}},
    "SQLite by an override": {"run": {"overrides": ["journal=/mnt/pddpo/journal.sqlite"]}},
    "a quote that ends the command": {"run": {"recipe": "x'; rm -rf /"}},
    "a run folder that is not shared": {"runFolder": "/tmp/first"},
}
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not PYTHON.exists(), reason="the chart's tools are not installed: make chart"),
]
Documents = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    values = {"default": {}, **{path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in EXAMPLES}}
    command = [str(PYTHON), str(Path(__file__).with_name("rendered_chart.py")), str(CHART)]
    done = subprocess.run(command, input=json.dumps({**values, **WRONG}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def strict(schema: Any) -> Any:
    """As the API server's strict validation: no field that the schema does not know."""
    if isinstance(schema, list):
        return [strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result


def kuberay(document: dict[str, Any]) -> None:
    """Raises ValidationError. The schemas themselves are not checked: that would take longer than everything else."""
    jsonschema.Draft7Validator(strict(CRDS[document["kind"]])).validate(document)


def of_kind(documents: Documents, kind: str) -> Documents:
    return [document for document in documents if document["kind"] == kind]


def ray_objects(documents: Documents) -> Documents:
    """KubeRay's objects, with the job that the ConfigMap holds."""
    jobs = [yaml.safe_load(one["data"]["rayjob.yaml"]) for one in of_kind(documents, "ConfigMap")]
    return [*jobs, *(one for one in documents if one["apiVersion"] == "ray.io/v1")]


def ray_cluster(document: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = document["spec"]
    return spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec


def pods(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod's spec in an object."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for entry in value.values():
            yield from pods(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from pods(entry)


def test_helm_finds_no_mistake(results: dict[str, Any]) -> None:
    assert results["lint"]["errors"] == []
    assert {one["error"] for one in results["lint"]["messages"]} <= {"icon is recommended"}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == __version__


@pytest.mark.parametrize("name", NAMES)
def test_every_object_fits_the_schema_of_its_kind(results: dict[str, Any], name: str) -> None:
    assert results[name]["problems"] == []
    for document in ray_objects(results[name]["documents"]):
        kuberay(document)
    for document in results[name]["documents"]:
        assert document["metadata"]["namespace"] == "pddpo"
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "first"


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused(results: dict[str, Any], name: str) -> None:
    assert "documents" not in results[name]
    assert "schema" in results[name]["error"]


def test_a_misspelt_field_is_noticed(results: dict[str, Any]) -> None:
    (job,) = ray_objects(results["default"]["documents"])
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParam"] = {}
    with pytest.raises(jsonschema.ValidationError, match="rayStartParam"):
        kuberay(job)


@pytest.mark.parametrize("name", NAMES)
def test_every_pod_is_restricted_and_takes_secrets_by_reference(results: dict[str, Any], name: str) -> None:
    documents = results[name]["documents"]
    found = [*pods(documents), *pods(ray_objects(documents))]
    assert len(found) >= 3
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "automountServiceAccountToken" in pod
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            named = {one["name"] for one in container.get("env", []) if "value" in one}
            assert not any("PASSWORD" in one or "TOKEN" in one or "AUTH" in one for one in named)
            assert container["resources"]["limits"]


@pytest.mark.parametrize("name", NAMES)
def test_ray_clusters_ask_for_a_token_keep_the_head_free_and_survive_it(results: dict[str, Any], name: str) -> None:
    for document in ray_objects(results[name]["documents"]):
        cluster = ray_cluster(document)
        assert cluster["authOptions"] == {"mode": "token"}
        if name == "kind":  # one node without a GPU, whose head keeps what it knows in itself
            assert "gcsFaultToleranceOptions" not in cluster
        else:
            assert cluster["gcsFaultToleranceOptions"]["redisAddress"].startswith("redis:")
        assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        head, (worker,) = cluster["headGroupSpec"]["template"]["spec"], cluster["workerGroupSpecs"]
        assert "nvidia.com/gpu" not in str(head)
        tolerated = {one["key"] for one in worker["template"]["spec"].get("tolerations", ())}
        assert ("nvidia.com/gpu" in tolerated) is (name != "kind")
        assert worker["minReplicas"] <= worker["replicas"] <= worker["maxReplicas"]
        # Ray's autoscaler is a container of the head's and asks the API server
        assert head["automountServiceAccountToken"] is cluster.get("enableInTreeAutoscaling", False)
        assert not worker["template"]["spec"]["automountServiceAccountToken"]


@pytest.mark.parametrize("name", ["default", "people", "autoscaled"])
def test_the_jobs_recipe_loads_with_the_journal_in_postgresql(results: dict[str, Any], name: str) -> None:
    job = ray_objects(results[name]["documents"])[0]
    words = re.search(r"pddpo_ray train (\S+) (.*?) --run (\S+) --go-on", job["spec"]["entrypoint"])
    assert words is not None
    assert words[1] in recipe_names()
    config = load(words[1], words[2].split(), check_files=False)
    assert config.journal == "postgresql://pddpo@first-database/pddpo"
    if name == "autoscaled":
        (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        assert workers["minReplicas"] == 0
        assert config.cluster.autoscaler_s == 1800  # type: ignore[union-attr]


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (1, 1), (2, 2), (3, 0), (4, 0), (143, 143)])
def test_a_run_that_parks_ends_its_job_well(results: dict[str, Any], ended: int, code: int, tmp_path: Path) -> None:
    """Its command as a shell executes it, with a run that ends like this."""
    (job,) = ray_objects(results["default"]["documents"])
    (tmp_path / "python").write_text(f'#!/bin/bash\necho "$@" > {tmp_path / "called"}\nexit {ended}\n')
    (tmp_path / "python").chmod(0o755)
    command = ["bash", "-c", job["spec"]["entrypoint"]]
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    assert done.returncode == code
    assert (tmp_path / "called").read_text().split()[-1] == "--go-on"


def test_only_the_cron_job_of_the_run_may_create_jobs(results: dict[str, Any]) -> None:
    documents = results["default"]["documents"]
    (role,) = of_kind(documents, "Role")
    assert role["rules"] == [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["list", "create"]}]
    run, backup = sorted(of_kind(documents, "CronJob"), key=lambda one: str(one["metadata"]["name"]), reverse=True)
    (pod,), (other,) = pods(run), pods(backup)
    assert pod["serviceAccountName"] == role["metadata"]["name"]
    assert pod["containers"][0]["command"][:3] == ["python", "-m", "pddpo_ray.cli.runs.run_again"]
    assert (pod["automountServiceAccountToken"], other["automountServiceAccountToken"]) == (True, False)


def test_a_backup_is_whole_or_not_there_and_old_ones_go(results: dict[str, Any], tmp_path: Path) -> None:
    """Its command as a shell executes it, with a pg_dump that writes, then one that fails half-way."""
    (backup,) = [
        one for one in of_kind(results["default"]["documents"], "CronJob") if "backup" in one["metadata"]["name"]
    ]
    (pod,) = pods(backup)
    command, folder, program = pod["containers"][0]["command"], tmp_path / "kept", tmp_path / "pg_dump"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "FOLDER": str(folder), "JOURNAL": "postgresql://db/pddpo"}
    write = '#!/bin/bash\n[ "$3" = postgresql://db/pddpo ] && echo labels > "${2#--file=}"\n'
    for ending, code in (("exit 0", 0), ("exit 1", 1)):
        program.write_text(write + ending + "\n")
        program.chmod(0o755)
        done = subprocess.run(command, env=environment, check=False)
        assert done.returncode == code
        (kept,) = folder.glob("*.dump")
        assert kept.read_text() == "labels\n"
    kept = kept.rename(folder / "journal-20260101T000000Z.dump")
    subprocess.run(["touch", "-d", "20 days ago", str(kept)], check=True)
    program.write_text(write + "exit 0\n")
    subprocess.run(command, env=environment, check=True)
    (newest,) = folder.iterdir()
    assert newest != kept


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, while its module is imported
def test_the_served_application_is_the_one_of_the_serve_file_and_lets_answers_end(results: dict[str, Any]) -> None:
    from ray.serve.schema import ServeDeploySchema

    (document,) = of_kind(results["service"]["documents"], "RayService")
    served = yaml.safe_load(document["spec"]["serveConfigV2"])
    shipped = yaml.safe_load((ROOT / "deploy" / "serving" / "serve.yaml").read_text(encoding="utf-8"))
    ServeDeploySchema.model_validate(served)
    (application,) = served["applications"]
    assert application["import_path"] == shipped["applications"][0]["import_path"]
    assert ServeArgs.model_validate(application["args"]).journal == "postgresql://pddpo@db.example/pddpo"
    pod = ray_cluster(document)["headGroupSpec"]["template"]["spec"]
    *command, name, grace_s = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["python", "-m", stopping.__name__]
    assert name == application["name"]
    assert application["args"]["request_s"] <= float(grace_s) < pod["terminationGracePeriodSeconds"]
    (workers,) = ray_cluster(document)["workerGroupSpecs"]
    gpus = int(workers["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert gpus * workers["replicas"] == application["args"]["engines"] * application["args"]["gpus"]


def test_the_endpoints_keys_are_kept_where_it_finds_them_and_prometheus_has_one(results: dict[str, Any]) -> None:
    """The first start writes keys into the run's folder and their hashes into the database, whose password is a secret
    (`tests/unit/serving/test_first_keys.py`)."""
    documents = results["service"]["documents"]
    (document,) = of_kind(documents, "RayService")
    (application,) = yaml.safe_load(document["spec"]["serveConfigV2"])["applications"]
    args = ServeArgs.model_validate(application["args"])
    assert args.journal is not None
    assert args.journal.startswith("postgresql://")
    found = list(pods(document))
    assert len(found) == 2
    for pod in found:
        (container,) = pod["containers"]
        (mount,) = [one for one in container["volumeMounts"] if Path(args.run).is_relative_to(one["mountPath"])]
        (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
        assert volume["persistentVolumeClaim"] == {"claimName": "first"}
        assert not mount.get("readOnly")
        assert container["envFrom"] == [{"secretRef": {"name": "pddpo-secrets"}}]
    monitors = [one for monitor in of_kind(documents, "PodMonitor") for one in monitor["spec"]["podMetricsEndpoints"]]
    (endpoint,) = [one for one in monitors if one["port"] == "serve"]
    assert endpoint["authorization"] == {"credentials": {"name": "pddpo-serve-key", "key": "key"}}


def test_what_is_reached_from_outside_speaks_https(results: dict[str, Any]) -> None:
    for name, port in (("service", 8000), ("people", 8790)):
        documents = results[name]["documents"]
        (ingress,) = of_kind(documents, "Ingress")
        hosts = {rule["host"] for rule in ingress["spec"]["rules"]}
        assert hosts == set(ingress["spec"]["tls"][0]["hosts"])
        (policy,) = of_kind(documents, "NetworkPolicy")
        opened = {one["port"] for rule in policy["spec"]["ingress"] for one in rule.get("ports", [])}
        assert port in opened
    (policy,) = of_kind(results["default"]["documents"], "NetworkPolicy")
    assert not any("ports" in rule for rule in policy["spec"]["ingress"])
    assert of_kind(results["default"]["documents"], "Ingress") == []


def test_alerts_are_those_of_the_shipped_file(results: dict[str, Any]) -> None:
    (rules,) = of_kind(results["people"]["documents"], "PrometheusRule")
    shipped = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text(encoding="utf-8"))
    assert rules["spec"] == shipped
    assert len(of_kind(results["service"]["documents"], "PodMonitor")) == 2


def test_a_run_takes_what_its_recipe_names_from_the_hub_and_an_endpoint_takes_nothing(results: dict[str, Any]) -> None:
    """The image itself is offline: a recipe that downloads ended with an error."""
    (run,) = ray_objects(results["default"]["documents"])
    (service,) = of_kind(results["service"]["documents"], "RayService")
    for document, offline in ((run, "0"), (service, "1")):
        containers = [container for pod in pods(document) for container in pod["containers"]]
        told = [{one["name"]: one.get("value") for one in container.get("env", [])} for container in containers]
        assert {one["HF_HUB_OFFLINE"] for one in told if "HF_HUB_OFFLINE" in one} == {offline}
        assert {one["HF_HOME"] for one in told if "HF_HOME" in one} == {"/mnt/pddpo/hub"}
