"""The paper's comparison at a size for one CPU core (lab/studies/paper_small/registered.yaml, `make paper-small`).

    python -m lab.studies.paper_small.run --data FOLDER                 # every step; what is done is not done again
    python -m lab.studies.paper_small.run --data FOLDER --jobs 2        # two scorers, then two cells at a time
    python -m lab.studies.paper_small.run --only cells --seeds 0        # one of them
    python -m lab.studies.paper_small.run --only table                  # figure, tables and verdict of what there is

    ground    SmolLM2, rows for the scorers, prompts
    scorers   a reward and a cost scorer for the runs, and two judges from other prompts
    pairs     the reference's answers, drawn once; of each prompt's the two that the scorers tell apart most
    cells     each method of paper-small.yaml at each seed: trained, then judged; kept in results.json as it finishes
    table     figure, tables and verdict

The data are read where they are; PKU-SafeRLHF is CC BY-NC 4.0, for non-commercial use alone.
No text of it is kept here.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lab.studies.paper_small.ground import DTYPE, EACH, FILES, WHO, write_ground, write_pairs
from lab.studies.paper_small.shown import GROUND, tables
from lab.studies.real_model.step import REFERENCE, Step, do
from lab.studies.study import FOLDER, Results, keep, known
from pddpo_lab.compare.command import compare, run_here
from pddpo_lab.compare.runner import Row, Tell, Unit, rows_so_far
from pddpo_lab.compare.suite import HeldOutEntry, Suite, load_suite
from pddpo_ray.version import __version__

STUDY = FOLDER / "paper_small"
RESULTS = STUDY / "results.json"
STEPS = ("ground", "scorers", "pairs", "cells", "table")
MACHINE = "one core of an Intel Xeon with AVX-512, shared with other work; bfloat16"
TOKENS, JUDGE_ROWS = 48, 400


def commands(work: Path) -> list[Step]:
    """The commands of `pddpo` before the cells, in order."""
    model, draws = work / "model", work / "draws"
    made = [Step("ground", ["model", "fetch", "smollm2", "--to", str(model)], model / "model.safetensors")]
    for seed, who in enumerate(WHO):
        for kind in FILES:
            out = work / "scorers" / f"{who}-{kind}"
            words = ["scorer", "train", str(work / f"{who}-{kind}.jsonl"), "--kind", kind, "--base", str(model)]
            words += ["--out", str(out), "--max-tokens", "256", "--seed", str(seed)]
            words += ["--rows", str(JUDGE_ROWS)] if who == "judge" else []
            made.append(Step("scorers", words, out / "scorer.json", out.with_name(f"{out.name}.training")))
    asked = ["evaluate", f"{REFERENCE}={model}", "--set", str(work / "prompts.jsonl"), "--each", str(EACH)]
    asked += ["--max-tokens", str(TOKENS), "--policy-temperature", "0.7", "--template", "tokenizer", "--seed", "0"]
    asked += ["--dtype", DTYPE]
    return [*made, Step("pairs", [*asked, "--out", str(draws)], draws / "evaluation.json")]


def held_out_of(folder: Path) -> dict[str, float]:
    """How often a scorer is right on prompts that it did not learn from, with its interval."""
    found = json.loads((folder / "scorer.json").read_text())["held_out"]
    return {name: found[name] for name in ("right", "trials", "low", "high")}


def note_ground(work: Path, out: Path) -> None:
    """Labels the pairs unless that is done, and keeps what is known of them and of the scorers.

    Ends the program where `out` holds cells of other pairs or scorers: methods are compared on one set alone.
    """
    if not (work / "pairs.json").is_file():
        (work / "pairs.json").write_text(json.dumps(write_pairs(work)))
    scorers = {path.parent.name: held_out_of(path.parent) for path in (work / "scorers").glob("*/scorer.json")}
    ground = {"pairs": json.loads((work / "pairs.json").read_text()), "scorers": scorers}
    if {GROUND} < set(known(out)) and known(out)[GROUND] != ground:
        raise SystemExit(f"{out} holds cells of other pairs or scorers than {work}: name a new file with --out")
    keep(out, GROUND, ground)


# --- cells ----------------------------------------------------------------------------------------------------------


def suite_of(work: Path, seeds: Sequence[int], only: Sequence[str]) -> Suite:
    """paper-small.yaml here: scores in standard deviations of the reference's answers, costs from their mean."""
    pairs = json.loads((work / "pairs.json").read_text())
    scales = {kind: 1.0 / pairs[kind]["sd"] for kind in FILES}
    shift = -pairs["cost"]["mean"] * scales["cost"]
    cost = {"path": str(work / "scorers" / "run-cost"), "scale": scales["cost"], "shift": shift}
    given = [
        f"model.reference={work / 'model'}",
        f"model.dtype={DTYPE}",
        f"data.helpful={json.dumps([str(work / 'pairs.jsonl')])}",
        f"feedback.reward={json.dumps({'path': str(work / 'scorers' / 'run-reward'), 'scale': scales['reward']})}",
        f"feedback.cost={json.dumps(cost)}",
    ]
    suite = load_suite(str(STUDY / "paper-small.yaml"), seeds=seeds, only=only, overrides=given)
    judges = {f"{kind}_model": str(work / "scorers" / f"judge-{kind}") for kind in FILES}
    return replace(suite, held_out=HeldOutEntry(**{**suite.held_out.model_dump(), **judges}))


def cell_of(row: Row) -> dict[str, Any]:
    """What the repository keeps of a cell: numbers, no text."""
    judged, trace = row["judged"], row["trace"]
    names = ("helpfulness", "harmlessness")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": MACHINE,
        "version": __version__,
        "seconds": round(row["result"]["seconds"]),
        "steps": row["budget"]["optimiser_steps"],
        **{name: np.round(judged[name], 3).tolist() for name in names},
        "judges": {kind: round(float(np.mean(hits)), 3) for kind, hits in judged["scorers"].items()},
        "reference": {name: np.round(judged["reference"][name], 3).tolist() for name in names},
        **{name: round(float(np.mean(judged[name])), 3) for name in ("kl", "length", "agrees_better", "agrees_safer")},
        "multiplier": np.round([*trace["multiplier"], *trace["next"][-1:]], 3).tolist(),
        "estimate": np.round(trace["estimate"], 3).tolist(),
    }


def units_left(suite: Suite, finished: Results, jobs: int) -> list[Unit]:
    """Cells that are not kept yet, seed by seed; those of a seed are dealt to `jobs` processes in the suite's order."""
    units = []
    for seed in suite.seeds:
        left = [arm for arm in suite.arms if str(seed) not in finished.get(arm, {})]
        units += [Unit(seed, tuple(left[part::jobs])) for part in range(min(jobs, len(left)))]
    return units


def run_cells(work: Path, out: Path, suite: Suite, jobs: int) -> None:
    """Runs the cells that `out` does not hold, one at a time in each process; only this process writes `out`."""

    def tell(line: str) -> None:
        print(line, flush=True)
        for row in rows_so_far(suite, work / "cells"):
            if str(row["seed"]) not in known(out).get(row["arm"], {}):
                keep(out, row["arm"], {str(row["seed"]): cell_of(row)})

    def run_left(suite: Suite, units: Sequence[Unit], folder: Path, tell: Tell) -> list[Row]:
        left = units_left(suite, known(out), jobs)
        if jobs == 1 or not left:
            return run_here(suite, left, folder, tell)
        from pddpo_lab.compare.suite_jobs import run_over_ray

        return run_over_ray(suite, left, folder, tell, jobs=jobs)

    for failed in compare(suite, work / "cells", run_left, tell):
        print(f"{failed['arm']}, seed {failed['seed']}: {failed['error']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PDDPO_SHARED", "../shared")) / "data")
    parser.add_argument("--work", type=Path, default=Path("runs/paper-small"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", default="", help="only these, e.g. pd-dpo-1,mocan")
    parser.add_argument("--only", choices=STEPS)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, each with one core")
    asked = parser.parse_args()
    work, wanted = asked.work.absolute(), STEPS if asked.only is None else (asked.only,)
    if "ground" in wanted and not (work / "prompts.jsonl").is_file():
        write_ground(asked.data.absolute(), work)
    for of in wanted:
        with ThreadPoolExecutor(asked.jobs) as processes:
            list(processes.map(do, [step for step in commands(work) if step.of == of]))
    if {"pairs", "cells"} & set(wanted):
        note_ground(work, asked.out)
    if "cells" in wanted:
        seeds = [int(seed) for seed in asked.seeds.split(",")]
        suite = suite_of(work, seeds, [arm for arm in asked.arms.split(",") if arm])
        run_cells(work, asked.out, suite, asked.jobs)
    if "table" in wanted:
        print(tables(known(asked.out)))


if __name__ == "__main__":
    main()
