"""SmolLM2 under limits on harm, refusals, length and helpfulness (docs/real-model.md, `make real`, registered.yaml).

    python -m lab.studies.real_model.run --data FOLDER                     # every cell
    python -m lab.studies.real_model.run --data FOLDER --cells o-pd-dpo-50 # one of them
    python -m lab.studies.real_model.run --dry-run                         # what each run would be

A cell is a run, then the reference's and the policy's answers to held-out prompts, scored by the run's scorers and by
judges that no run saw (`scorers.py`). Runs and answers are commands of `pddpo`, which continue where they were killed;
what is done is not done again. Nothing of the data is copied but into the folder of the work: PKU-SafeRLHF is
CC BY-NC 4.0 and for non-commercial use alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lab.studies.real_model import scorers
from lab.studies.real_model.measures import measured, over_seeds, table
from lab.studies.real_model.own_draws import asked_once
from lab.studies.real_model.scorers import SUFFIX
from lab.studies.real_model.step import REFERENCE, Step, do
from pddpo_ray.config import load
from pddpo_ray.data.real_text import prepare_real_text

REGISTERED: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "registered.yaml").read_text())
SETS = ("harmful", "harmless")
WORDS = 18
ASKED, CERTIFIED = 352, {"harmful": 1981, "harmless": 849}
"""Of each set's file the prompts before those that certificates draw, and how many these draw: in the shares of the
registrations, for three candidates with all their draws. Rounds choose among all others, which of the harmful ones are
those behind them too."""
POLICY, OURS, OFFLINE, HELPFUL, ALONE = "policy", "o-pd-dpo-", "pd-dpo-", "helpful-", "alone-"
RESULT, MEMORY = "evaluation.json", "memory.jsonl"
"""Files of `pddpo evaluate`: its result, and what it need not do again."""


def cells() -> dict[str, tuple[int, list[str]]]:
    """By name the seed and what the run has in place of O-PD-DPO under the limits."""
    found: dict[str, tuple[int, list[str]]] = {f"{OURS}{seed}": (seed, []) for seed in REGISTERED["seeds"]}
    offline = [f"{key}={json.dumps(value)}" for key, value in REGISTERED["offline"].items()]
    found |= {f"{OFFLINE}{seed}": (seed, ["algorithm=pd-dpo", *offline]) for seed in REGISTERED["seeds"]}
    seed = REGISTERED["seeds"][0]
    found |= {f"{ALONE}{kept}-{seed}": (seed, []) for kept in REGISTERED["alone"]}
    fixed = ["dual.rule={kind: fixed}", "certificate.certify=never"]
    for factor in REGISTERED["penalties"]:
        first = {name: factor * one["dual"]["first"] for name, one in REGISTERED["limits"].items()}
        priced = [f"limits.{name}.dual={{rho: {2 * value:g}, first: {value:g}}}" for name, value in first.items()]
        found[f"penalty-{factor:g}-{seed}"] = (seed, [*fixed, *priced])
    free = [f"limits.{name}.dual.first=0" for name in REGISTERED["limits"]]
    return found | {f"{HELPFUL}{seed}": (seed, ["algorithm=pd-dpo", *offline, "rounds=1", *fixed, *free])}


# --- prompts and scorers --------------------------------------------------------------------------------------------


def _short(prompts: Sequence[str]) -> list[str]:
    kept = [one for one in dict.fromkeys(prompts) if 3 <= len(one.split()) <= WORDS and "\n" not in one]
    random.Random(0).shuffle(kept)
    return kept


def write_inputs(data: Path, out: Path) -> None:
    """Prompts of rounds, certificates and the held-out table, and pairs; no prompt is in two of the first three."""
    out.mkdir(parents=True, exist_ok=True)
    learned = {row["prompt"] for row in scorers.rows_of(data / "pku_saferlhf_train.jsonl.gz")}
    harmful = [row["prompt"] for row in scorers.rows_of(data / "pku_saferlhf_prompts.jsonl.gz")]
    helpful = data / "preferences_helpful_train.jsonl.gz"
    asked = {"harmful": [one for one in _short(harmful) if one not in learned], "harmless": _short(asked_once(helpful))}
    lines = (data / "eval_safety_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    held_out = [row["prompt"] for row in map(json.loads, lines) if row["source"] != "xstest"]
    fresh = {"harmful": held_out, "harmless": asked_once(data / "preferences_helpful_test.jsonl.gz")}
    certified: list[str] = []
    for name in SETS:
        _write(out / f"{name}.jsonl", asked[name])
        first = REGISTERED["held_out_from"][name]
        _write(out / f"fresh-{name}.jsonl", _short(fresh[name])[first : first + REGISTERED["held_out_prompts"]])
        certified += asked[name][ASKED : ASKED + CERTIFIED[name]]
    _write(out / "certificate.jsonl", certified)
    pairs = scorers.of_turns(helpful, "chosen", "rejected", WORDS)
    rows = [{"prompt": asked + SUFFIX, "chosen": better, "rejected": other} for asked, better, other in pairs]
    (out / "helpful.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write(file: Path, prompts: Sequence[str]) -> None:
    file.write_text("".join(json.dumps({"prompt": one + SUFFIX}) + "\n" for one in prompts))


def _write_asked(work: Path, out: Path) -> list[str]:
    """The prompts that the rounds of every cell may ask: which ones of the sets' files those are is the recipe's."""
    config = load("align", settings(work, list(REGISTERED["limits"])))
    prompts = prepare_real_text(config).prompts
    out.write_text("".join(json.dumps({"prompt": prompt.text}) + "\n" for prompt in prompts))
    return []


def _write_own_pairs(work: Path, answers: Path, out: Path) -> list[str]:
    """Two of the reference's own answers to each prompt, the more helpful one by the run's scorer as `chosen`."""
    said: dict[str, list[str]] = {}
    for row in map(json.loads, (answers / "answers.jsonl").read_text(encoding="utf-8").splitlines()):
        said.setdefault(row["prompt"], []).append(row["answer"])
    texts = [(prompt, answer) for prompt, both in said.items() for answer in both]
    head = np.load(work / "scorers" / "run.npz")["reward"]
    scores = dict(zip(texts, scorers.scored(str(work / "model"), head, texts).tolist(), strict=True))
    with out.open("w", encoding="utf-8") as file:
        for prompt, both in said.items():
            worse, better = sorted(both, key=lambda answer: scores[prompt, answer])
            file.write(json.dumps({"prompt": prompt, "chosen": better, "rejected": worse}) + "\n")
    return []


# --- commands of a cell ---------------------------------------------------------------------------------------------


def shares() -> dict[str, float]:
    """Of the rounds' prompts, by set."""
    harmful = REGISTERED["harmful"]
    return {"harmful": harmful, "harmless": round(1.0 - harmful, 6)}


def settings(work: Path, limits: Sequence[str]) -> list[str]:
    """The recipe's: one for all cells under the same limits."""
    inputs = work / "inputs"
    sets = {name: {"files": [str(inputs / f"{name}.jsonl")], "share": share} for name, share in shares().items()}
    certificate = {**REGISTERED["certificate"], "prompts": [str(inputs / "certificate.jsonl")]}
    given = {
        "model.reference": str(work / "model"),
        "data.helpful": [str(inputs / "helpful.jsonl")],
        "prompts": sets,
        "certificate": certificate,
        **{"limits.unsafe": None, "limits.helpful": None},  # the recipe's own
        **REGISTERED["recipe"],
        **{f"limits.{name}": REGISTERED["limits"][name] for name in limits},
    }
    return [f"{key}={json.dumps(value)}" for key, value in given.items()]


def steps(work: Path, name: str, extra: Sequence[str] = ()) -> list[Step]:
    """The reference's held-out answers, which all cells share, the run, and its policy's answers to the prompts."""
    seed, own = cells()[name]
    run, inputs, answers = work / "runs" / name, work / "inputs", work / "answers"
    before, after = answers / REFERENCE, answers / name
    asked = _asking(work, [inputs / f"fresh-{one}.jsonl" for one in SETS])
    drawn: list[Step] = []
    write_pairs: Callable[[], list[str]] = list
    if name.startswith((OFFLINE, HELPFUL)):
        prompts, pairs = inputs / "asked.jsonl", inputs / "own.jsonl"
        words = [*_asking(work, [prompts]), str(answers / "own"), "--each", "2"]
        drawn = [Step("evaluate", words, answers / "own" / RESULT, late=partial(_write_asked, work, prompts))]
        write_pairs = partial(_write_own_pairs, work, answers / "own", pairs)
        own = [*own, f"data.helpful={json.dumps([str(pairs)])}"]
    limits = [name.split("-")[1]] if name.startswith(ALONE) else list(REGISTERED["limits"])
    train = ["train", "align", f"seed={seed}", *settings(work, limits), *own, *extra, "--run", str(run)]
    # of a run that asked for a test itself the certificate is there, and this step is done
    test = Step("certify", ["certify", str(run)], run / "certificate.json", ends=(0, 5, 6))
    return [
        Step("evaluate", [*asked, str(before)], before / RESULT),
        *drawn,
        Step("train", train, run / "result.json", run / "journal.sqlite", late=write_pairs),
        *([test] if name.startswith(OURS) else []),
        Step("evaluate", [*asked, str(after)], after / RESULT, late=partial(_last, run, before, after)),
    ]


def _asking(work: Path, files: Sequence[Path]) -> list[str]:
    """The command that draws answers to files of prompts, with the reference's; its last word, the folder, is left."""
    reference = f"{REFERENCE}={work / 'model'}"
    asked = [word for file in files for word in ("--set", str(file))]
    as_drawn = ["--max-tokens", "96", "--policy-temperature", "0.7", "--template", "tokenizer"]
    return ["evaluate", reference, "--reference", reference, *asked, *as_drawn, "--out"]


def _last(run: Path, before: Path, after: Path) -> list[str]:
    """The policy that was certified or tested last; of runs without certificates the last round's."""
    if not (after / MEMORY).is_file():
        shutil.copyfile(before / MEMORY, after / MEMORY)
    file = run / "certificate.json"
    tested = f"@{json.loads(file.read_text())['candidate']['policy']}" if file.is_file() else ""
    return [f"{POLICY}={run}{tested}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PDDPO_SHARED", "../shared")) / "data")
    parser.add_argument("--work", type=Path, default=Path("runs/real-model"))
    parser.add_argument("--cells", default=",".join(cells()))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("overrides", nargs="*", help="further settings of the runs")
    options = parser.parse_args(arguments)
    data, work, names = options.data.absolute(), options.work.absolute(), options.cells.split(",")
    if unknown := [name for name in names if name not in cells()]:
        parser.error(f"there is no cell {', '.join(unknown)}: {', '.join(cells())}")
    if options.dry_run:
        for step in (step for name in names for step in steps(work, name, options.overrides)):
            print(f"{step.of}: pddpo {shlex.join(step.words)}")
        return
    model, heads = work / "model", work / "scorers"
    do(Step("model", ["model", "fetch", "smollm2", "--to", str(model)], model / "model.safetensors"))
    write_inputs(data, work / "inputs")
    scorers.make(data, str(model), heads, "run")
    os.environ |= {scorers.MODEL: str(model), scorers.HEADS: str(heads / "run.npz")}
    results = work / "results.json"
    for name in names:
        for step in steps(work, name, options.overrides):
            do(step)
        scorers.make(data, str(model), heads, "judge")
        cell = measured(work, name)  # long: other processes write their cells meanwhile
        known = json.loads(results.read_text()) if results.is_file() else {"cells": {}}
        known["cells"][name] = cell
        seeds = [one for one in known["cells"] if one.startswith(OURS)]
        known |= {"over_seeds": over_seeds(work, seeds)}
        known |= {"scorers": {which: json.loads((heads / f"{which}.json").read_text()) for which in ("run", "judge")}}
        results.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
        print(table(known), flush=True)


if __name__ == "__main__":
    main()
