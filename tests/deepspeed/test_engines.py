"""Every engine takes the same steps: plain torch and ZeRO 1, 2, 3 on two ranks; on one, those whose stages differ most.

The ranks are plain processes with a gloo group, as Ray Train makes it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.local import store_reference
from tests.support.ports import free_port
from tests.support.tiers import in_full
from tests.support.tiny_language_model import save_policy

pytestmark = pytest.mark.deepspeed

ENGINES = ("torch", "zero1", "zero2", "zero3", "lora-torch", "lora-zero2", "lora-zero3")
IN_BFLOAT16 = ("bf16-torch", "bf16-zero2", "bf16-zero3")
"""ZeRO 1 is ZeRO 2 that keeps whole gradients; in float32 both stand above."""
IN_MAKE_TEST = ("zero2", 2)


ALONE = ("torch", "zero3", "lora-torch")
"""Those that run on one rank too: without a second one nothing is divided, whatever the stage."""


def every(*engines: str) -> list[Any]:
    """Engines with their numbers of ranks; `make test` runs one of them."""
    cases = [(engine, ranks) for engine in engines for ranks in (1, 2) if ranks == 2 or engine in ALONE]
    return [case if case == IN_MAKE_TEST else in_full(case)[0] for case in cases]


def run_ranks(folder: Path, ranks: int, engines: list[str]) -> dict[str, dict[str, Any]]:
    """The same fits on these engines, by `ranks` processes. -> engine: what rank 0 reports"""
    port = free_port()
    output = folder / f"{ranks}.json"
    # Files, not pipes: a rank whose pipe is full waits for its reader, and the other ranks for it.
    logs = [folder / f"{ranks}-rank{rank}.log" for rank in range(ranks)]
    processes = [_start(rank, ranks, port, engines, output, log) for rank, log in enumerate(logs)]
    ends = [process.wait(timeout=600) for process in processes]
    assert ends == [0] * ranks, "\n".join(log.read_text()[-2000:] for log in logs)
    result: dict[str, dict[str, Any]] = json.loads(output.read_text())
    return result


def _start(rank: int, ranks: int, port: int, engines: list[str], output: Path, log: Path) -> subprocess.Popen[bytes]:
    group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    settings = group | {"OMP_NUM_THREADS": 1, "DS_ACCELERATOR": "cpu"}
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.deepspeed.fit_rank", ",".join(engines), str(output), str(output.parent)],
            env={**os.environ, **{name: str(value) for name, value in settings.items()}},
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def needed(items: list[pytest.Item]) -> dict[int, list[str]]:
    """Engines by number of ranks: those of the selected tests, and plain torch, which they are compared with."""
    cases = [item.callspec.params for item in items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    found = {(case["ranks"], str(case["engine"])) for case in cases if "engine" in case}
    found |= {(ranks, "bf16-torch") for ranks, engine in found if engine.startswith("bf16-")}
    found |= {(1, "torch")} | {(1, "lora-torch") for _, engine in found if engine.startswith("lora-")}
    return {ranks: [name for name in ENGINES + IN_BFLOAT16 if (ranks, name) in found] for ranks in (1, 2)}


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("engines")
    engines = needed([item for item in request.session.items if item.path == request.path])
    save_policy(folder / "reference", seed=4)
    store_reference(ArtifactStore(folder / "store"), folder / "reference")
    found = {ranks: run_ranks(folder, ranks, names) for ranks, names in engines.items() if names}
    for file in folder.glob("gradient-*.npy"):
        name, ranks = file.stem.removeprefix("gradient-").rsplit("-", 1)
        found[int(ranks)][name]["gradient"] = np.load(file)
    return found


@pytest.mark.parametrize(("engine", "ranks"), every(*ENGINES))
def test_an_engine_gives_the_losses_and_weights_of_plain_torch(
    results: dict[int, dict[str, dict[str, Any]]], engine: str, ranks: int
) -> None:
    plain = results[1]["lora-torch" if engine.startswith("lora") else "torch"]
    result = results[ranks][engine]
    np.testing.assert_allclose(result["losses"], plain["losses"], rtol=1e-3)
    np.testing.assert_allclose(result["norms"], plain["norms"], rtol=1e-3)
    np.testing.assert_allclose(result["scores"], plain["scores"], atol=5e-3)
    assert result["losses"][1] < result["losses"][0] - 0.05, "the fit must learn something"
    assert result["again"] == result["first"], "a fit repeated in the same processes gives the same version"
    assert result["names"] == plain["names"]


@pytest.mark.parametrize(("engine", "ranks"), every(*IN_BFLOAT16))
def test_in_bfloat16_every_engine_has_masters_and_the_losses_of_float32(
    results: dict[int, dict[str, dict[str, Any]]], engine: str, ranks: int
) -> None:
    """Forward passes and gradients are rounded to 8 bits: losses agree to 2 %, gradients' norms to 5 %."""
    exact, result = results[1]["torch"], results[ranks][engine]
    np.testing.assert_allclose(result["losses"], exact["losses"], rtol=2e-2)
    np.testing.assert_allclose(result["norms"], exact["norms"], rtol=5e-2)
    assert result["again"] == result["first"], "a fit repeated in the same processes gives the same version"
    assert result["names"] == exact["names"]
    assert result["gentle"] > 0.95, "nearly all masters move at a learning rate of 1e-6"
    assert result["resumed"], "the next fit goes on from the stored masters"


@pytest.mark.parametrize(
    ("engine", "ranks"), every(*(name for name in ENGINES + IN_BFLOAT16 if not name.startswith("lora-")))
)
def test_every_engine_has_the_gradient_of_plain_torch(
    results: dict[int, dict[str, dict[str, Any]]], engine: str, ranks: int
) -> None:
    """The whole vector, by the length of the difference: to 1e-4 in float32. In bfloat16, whose passes are rounded to 8
    bits, to a tenth of the float32 gradient, and to 2 % of plain torch's in bfloat16."""
    exact, found = results[1]["torch"]["gradient"], results[ranks][engine]["gradient"]
    narrow = engine.startswith("bf16-")
    assert apart(found, exact) < (0.1 if narrow else 1e-4)
    if narrow:
        assert apart(found, results[ranks]["bf16-torch"]["gradient"]) < 0.02


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """Length of the difference over that of the second vector."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))
