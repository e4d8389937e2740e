"""Runs a suite: units of work, each in a process of its own, what every run leaves behind and spends.

    <folder>/seed-0/o-pd-dpo/      an ordinary run folder (journal, result.json), and arm.json with its row
    <folder>/seed-0/shared/        artifacts of all runs of the seed, and what they have in common

A unit is one seed's online arms or one seed's other arms: reference, engine and reward policy are shared inside it, and
two units keep two cores busy to the end. Finished arms are read back, a broken one continues where it was.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pddpo_lab.compare.sharing import SharedEngine, SharedTrainer
from pddpo_lab.compare.suite import HeldOutEntry, Suite
from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.config import Config
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import JournalReader
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.records import HARM, Verdict
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.recall import Memory
from pddpo_ray.storage.whole_files import ARTIFACTS, JOURNAL, write_json

if TYPE_CHECKING:
    from pddpo_lab.compare.judging import HeldOutJudge

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Budget:
    """Everything that costs people or machines something."""

    pairs: int
    """Pairs that were compared; each has up to two labels."""
    labels: int
    """Labels of pairs and answers, without those that were withheld."""
    tokens: int
    """Tokens that were generated, for whatever purpose."""
    fits: int
    """Versions that an optimiser made, by a fit or by an update of PPO."""
    optimiser_steps: int
    """0 in a table, whose fits are exact."""
    fit_seconds: float
    """Seconds of one device in fits; of a fit that another run of the suite had made, the seconds it took there."""
    sampling_seconds: float
    """Seconds of the engine; draws from the reference that another run had made count as nothing."""


def budget_of(journal: JournalReader) -> Budget:
    """The budget of a finished run, from its journal."""
    metrics = journal.metrics()

    def of_purposes(ending: str) -> float:
        return sum(
            value
            for values in metrics.values()
            for name, value in values.items()
            if name.startswith("rollout/") and name.endswith(ending) and name != "rollout/sync_seconds"
        )

    pairs = journal.pairs()
    verdicts = [verdict for entry in pairs for verdict in (entry.labelled.helpful, *entry.labelled.labels.values())]
    decided = sum(verdict in (Verdict.FIRST, Verdict.SECOND) for verdict in verdicts)
    costs = {name for entry in pairs for name in entry.labelled.labels}
    of_answers = ["labels/safety", *(f"labels/{name}" for name in costs if name != HARM)]
    made = [
        (entry.metrics, kind)
        for entry in journal.versions()
        for kind in ("fit", "ppo")
        if entry.stage != "reference" and f"{kind}/seconds" in entry.metrics
    ]
    return Budget(
        pairs=len(pairs),
        labels=decided + int(sum(values.get(name, 0.0) for values in metrics.values() for name in of_answers)),
        tokens=int(of_purposes("_tokens")),
        fits=len(made),
        optimiser_steps=int(sum(measured.get(f"{kind}/steps", 0.0) for measured, kind in made)),
        fit_seconds=sum(measured[f"{kind}/seconds"] for measured, kind in made),
        sampling_seconds=of_purposes("_seconds"),
    )


class MemoryPeak:
    """Largest resident memory of this process between `begin` and `end`, above what it held at `begin`, in MiB.

    Linux can forget its high-water mark; elsewhere the mark of the whole process is all there is, and a run after a
    larger one reports 0.
    """

    def begin(self) -> None:
        with contextlib.suppress(OSError):
            CLEAR.write_text("5")
        self._rest = _resident("VmRSS")

    def end(self) -> float:
        return max(0.0, _resident("VmHWM") - self._rest)


def _resident(name: str) -> float:
    """MiB of this process: VmRSS now, VmHWM at most."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return float(line.split()[1]) / 1024
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


ARM = "arm.json"
SHARED = "shared"
Tell = Callable[[str], None]
Row = dict[str, Any]
Judge = Callable[[Config, Path], Row | None]
"""What there is to say of the last policy of a run on real text; None on worlds, which say it all."""


class SuiteError(UserError):
    """The suite itself is wrong, so that none of its arms can run."""


@dataclass(frozen=True)
class Unit:
    """Arms of one seed that one process works through."""

    seed: int
    arms: tuple[str, ...]


def units_of(suite: Suite) -> list[Unit]:
    """Online arms, which share little and take longest, come first."""
    online = tuple(name for name in suite.arms if suite.config(name, suite.seeds[0]).online)
    other = tuple(name for name in suite.arms if name not in online)
    return [Unit(seed, arms) for arms in (online, other) if arms for seed in suite.seeds]


def run_unit(suite: Suite, unit: Unit, folder: Path, tell: Tell) -> list[Row]:
    """Rows of a unit's arms, in order. A failing arm is a row with `error`; the others continue."""
    shared = _Shared(folder / f"seed-{unit.seed}", suite.held_out)
    rows = []
    try:
        for name in unit.arms:
            row = run_arm(suite, name, unit.seed, folder, shared.backends, shared.judged)
            rows.append(row)
            tell(_line(row))
    finally:
        shared.close()
    return rows


def run_arm(
    suite: Suite,
    name: str,
    seed: int,
    folder: Path,
    make_backends: Callable[[Config, Path], Backends],
    judge: Judge = lambda config, run_dir: None,
) -> Row:
    """Row of one arm and seed: read back if it is finished under the same recipe, else run, and judged on real text."""
    run_dir = arm_folder(folder, name, seed)
    config = suite.config(name, seed)
    if (run_dir / ARM).exists():
        row: Row = json.loads((run_dir / ARM).read_text())
        if row["digest"] == config.digest():
            return row
        raise UserError(f"{run_dir} holds a run with other settings: name another --runs folder, or remove it")
    # What a method's λ does is on the page; hundreds of warnings about it would hide a real one.
    logging.getLogger("pddpo_ray.driver.run").setLevel(logging.ERROR)
    peak = MemoryPeak()

    def parts(config: Config, run_dir: Path) -> Backends:
        """From here on memory counts: a seed's first run also makes what all of its runs share."""
        made = make_backends(config, run_dir)
        peak.begin()
        return made

    resume = (run_dir / JOURNAL).exists()
    try:
        result = run_recipe(config, run_dir, resume=resume, make_backends=parts)
    except SuiteError:
        raise
    except (RunError, UserError) as error:
        return {"arm": name, "seed": seed, "digest": config.digest(), "error": str(error)}
    taken = None if resume else peak.end()
    judged = judge(config, run_dir)
    row = row_of(name, seed, config, run_dir, result) | {"peak_mib": taken, "judged": judged}
    write_json(run_dir / ARM, row)
    return row


def arm_folder(folder: Path, name: str, seed: int) -> Path:
    return folder / f"seed-{seed}" / name


def row_of(name: str, seed: int, config: Config, run_dir: Path, result: Row) -> Row:
    """What the page needs of a finished run: result.json, its traces and its budget."""
    with open_folder(run_dir, config.journal) as journal:
        metrics, steps, budget = journal.metrics(), journal.dual_steps(), budget_of(journal)
    rounds = sorted(number for number, values in metrics.items() if "exact/f_policy" in values)
    last = metrics[rounds[-1]] if rounds else {}
    expected = {"kl_last": last.get("exact/kl_policy")}
    if rounds:
        expected["cost_last"] = result["g_last"] + next(iter(config.thresholds.values()))
        expected["reward_last"] = result["f_last"] + config.beta * last["exact/kl_policy"]
    return {
        "arm": name,
        "seed": seed,
        "digest": config.digest(),
        "algorithm": config.algorithm,
        "threshold": next(iter(config.thresholds.values())),
        "result": result,
        **expected,
        "budget": asdict(budget),
        "trace": {
            "round": [step.round for step in steps],
            "multiplier": [step.multiplier_before for step in steps],
            "next": [step.multiplier_after for step in steps],
            "estimate": [step.estimate.value for step in steps],
            "standard_error": [step.estimate.standard_error for step in steps],
            "g": [metrics.get(step.round, {}).get("exact/g_policy") for step in steps],
            "gap": [metrics.get(step.round, {}).get("exact/gap_policy") for step in steps],
        },
    }


class _Shared:
    """What the runs of one seed share. Without language models nothing: fits take milliseconds."""

    def __init__(self, folder: Path, held_out: HeldOutEntry) -> None:
        self._folder, self._held_out = folder, held_out
        self._common: _Common | None = None

    def backends(self, config: Config, run_dir: Path) -> Backends:
        if config.policies != "language models":
            return make_backends(config, run_dir)
        self._link(run_dir)
        if self._common is None:
            self._common = _Common(config, self._folder / SHARED)
        return self._common.backends(config)

    def judged(self, config: Config, run_dir: Path) -> Row | None:
        """Judges the last policy of a finished run; None on worlds."""
        if self._common is None or config.data is None:
            return None
        with open_folder(run_dir, config.journal) as journal:
            return self._common.judge(config, self._held_out).of(journal.policies[-1])

    def close(self) -> None:
        if self._common is not None:
            self._common.close()

    def _link(self, run_dir: Path) -> None:
        """A run's artifacts are the seed's, so that its folder is complete for its readers."""
        store = self._folder / SHARED / ARTIFACTS
        store.mkdir(parents=True, exist_ok=True)
        link = run_dir / ARTIFACTS
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(store, run_dir), target_is_directory=True)


class _Common:
    """World (or files), reference, scorers, trainer and engine of one seed's runs on texts."""

    def __init__(self, config: Config, folder: Path) -> None:
        from pddpo_ray.backends.in_process_text import prepare_texts, text_backends
        from pddpo_ray.data.real_text import PreparedRealText

        self._key = _common_key(config)
        self._prepared = prepare_texts(config)
        if isinstance(self._prepared, PreparedRealText) and not self._prepared.held_out:
            raise SuiteError("a suite on real text is judged on held-out prompts: set data.held_out, e.g. to 0.4")
        self._judge: HeldOutJudge | None = None
        self._made = text_backends(config, ArtifactStore(folder / ARTIFACTS, shared=True))
        warm = "" if config.policy.temperature == 1.0 else f"-{config.policy.temperature:g}"
        self._memory = Memory(folder / f"memory{warm}.jsonl")
        self._trainer = SharedTrainer(self._made.trainer, self._memory)
        self._engines = [SharedEngine(engine, self._memory, self._made.reference) for engine in self._made.engines]

    def backends(self, config: Config) -> Backends:
        """The seed's parts under one arm's recipe."""
        from pddpo_ray.backends.in_process_text import text_world_backends

        if _common_key(config) != self._key:
            raise SuiteError("the arms of a suite on texts must have one world, model and engine per seed")
        self._trainer.forget()
        made, recall = self._made, self._memory.recall
        return text_world_backends(
            config, made.store, self._prepared, made.reference, self._trainer, self._engines, recall
        )

    def judge(self, config: Config, settings: HeldOutEntry) -> HeldOutJudge:
        """The seed's judge, made when a first run on real text is finished."""
        from pddpo_lab.compare.judging import HeldOutJudge
        from pddpo_ray.data.real_text import PreparedRealText

        if self._judge is None:
            assert isinstance(self._prepared, PreparedRealText)
            self._judge = HeldOutJudge(settings, config, self._prepared, self.backends(config))
        return self._judge

    def close(self) -> None:
        self._made.close()


def _common_key(config: Config) -> Any:
    """Settings in which all arms of a seed must agree."""
    tree = config.model_dump(mode="json")
    world = (config.beta, config.reward_max, config.dual.cost_max, config.dual.rho)
    # the pairs of real text, and the judges that are trained on those held out
    files = (config.offline.pairs, tree["scorers"]) if config.data is not None else ()
    texts = (tree["data"], tree["world"], tree["model"], tree["policy"])
    return texts, world, config.rollout.engine, config.rollout.max_tokens, files


def _line(row: Row) -> str:
    where = f"seed {row['seed']} {row['arm']}"
    if "error" in row:
        return f"{where}: failed: {row['error']}"
    gap, judged, seconds = row["result"]["gap_last"], row.get("judged"), f"{row['result']['seconds']:.0f} s"
    if judged is not None:
        helpful, harmless = (float(np.mean(judged[name])) for name in ("helpfulness", "harmlessness"))
        return f"{where}: helpfulness {helpful:+.3f}, harmlessness {harmless:+.3f}, {seconds}"
    return f"{where}: gap {gap:.3f}, {seconds}" if gap is not None else f"{where}: done"


def rows_so_far(suite: Suite, folder: Path) -> list[Row]:
    """Rows of all finished arms, in the suite's order."""
    paths = [arm_folder(folder, name, seed) / ARM for name in suite.arms for seed in suite.seeds]
    return [json.loads(path.read_text()) for path in paths if path.exists()]
