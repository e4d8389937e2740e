"""A real model aligned, from pairs to a table: SmolLM2 on PKU-SafeRLHF and HH-RLHF (docs/real-model.md, `make real`).

    python -m lab.studies.real_model.run                         # every step; what is done is not done again
    python -m lab.studies.real_model.run --only scorers          # one of them
    python -m lab.studies.real_model.run --seeds 0,1,2           # more seeds: only their runs are new
    python -m lab.studies.real_model.run --dry-run               # what each step would run

    model     SmolLM2-135M-Instruct as a folder
    scorers   a reward and a cost model for the runs, and two held-out judges from other prompts and another seed
    train     O-PD-DPO and offline PD-DPO by the recipe smollm2, three rounds each
    evaluate  the reference and both last policies answer the same unseen prompts from the same seeds; the judges score
    limits    the same model under length, refusals and harm at once, certified, beside fixed length penalties
    table     what the page shows

Every step is commands of `pddpo`, which continue where they were killed. The data are read where they are (`--data`, or
$PDDPO_SHARED/data), none of it is copied: PKU-SafeRLHF is CC BY-NC 4.0 and for non-commercial use alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lab.studies.real_model.limits import limit_steps, limits_table
from lab.studies.real_model.step import REFERENCE, Step, answers_of, do, evaluate_words

STEPS = ("model", "scorers", "train", "evaluate", "limits", "table")
METHODS = ("o-pd-dpo", "pd-dpo")
ROUNDS = 3
ROWS, JUDGE_ROWS = 1400, 600
"""Rows that a scorer learns from and is judged by, drawn by seed."""
SHOWN = 10
"""Answers before and after on the page: the first of the set, in the order that the seed drew."""


def steps(data: Path, work: Path, seeds: Sequence[int], extra: Sequence[str] = ()) -> list[Step]:
    """Every command, in order. `extra` are overrides of the runs."""
    model = work / "model"
    made = [Step("model", ["model", "fetch", "smollm2", "--to", str(model)], model / "model.safetensors")]
    helpful, pku = "preferences_helpful", "pku_saferlhf"
    for kind, name in (("reward", helpful), ("cost", pku)):
        for who, part, rows, seed in (("run", "train", ROWS, 0), ("judge", "test", JUDGE_ROWS, 1)):
            out = work / "scorers" / f"{who}-{kind}"
            words = [
                *["scorer", "train", str(data / f"{name}_{part}.jsonl.gz"), "--kind", kind, "--base", str(model)],
                *["--out", str(out), "--rows", str(rows), "--max-tokens", "256", "--seed", str(seed)],
            ]
            made.append(Step("scorers", words, out / "scorer.json", out.with_name(f"{out.name}.training")))
    for seed in seeds:
        made += [_run(data, work, method, seed, extra) for method in METHODS]
        made += _evaluation(data, work, seed)
        made += limit_steps(data, work, seed, ROUNDS, extra)
    return made


def run_folder(work: Path, method: str, seed: int) -> Path:
    return work / "runs" / f"{method}-{seed}"


def _run(data: Path, work: Path, method: str, seed: int, extra: Sequence[str]) -> Step:
    run, cost = run_folder(work, method, seed), work / "scorers" / "run-cost"
    limits = {
        "unsafe": {"rate": {"score_model": str(cost)}, "at_most": "10 %"},
        "helpful": {
            "rate": {"score_model": str(work / "scorers" / "run-reward")},
            "versus": "reference",
            "at_least": "50 %",
        },
    }
    prompts = [str(data / f"{name}.jsonl.gz") for name in ("pku_saferlhf_prompts", "preferences_helpful_train")]
    words = [
        *["train", "smollm2", f"algorithm={method}", f"rounds={ROUNDS}", f"seed={seed}"],
        f"model.reference={work / 'model'}",
        f"data.helpful={json.dumps([str(data / 'preferences_helpful_train.jsonl.gz')])}",
        f"data.harmless={json.dumps([str(data / 'pku_saferlhf_train.jsonl.gz')])}",
        f"data.prompts={json.dumps(prompts)}",
        f"feedback.reward={json.dumps({'path': str(work / 'scorers' / 'run-reward')})}",
        f"feedback.cost={json.dumps({'path': str(cost)})}",
        f"limits={json.dumps(limits)}",
        *extra,
        *["--run", str(run)],
    ]
    return Step("train", words, run / "result.json", run / "journal.sqlite")


def _evaluation(data: Path, work: Path, seed: int) -> list[Step]:
    """Answers of the reference and of both last policies, scored; and the shares of wins against the reference."""
    out = work / "evaluation" / str(seed)
    models = [f"{method}={run_folder(work, method, seed)}@policy-{ROUNDS}" for method in METHODS]
    checks = [
        Step(
            "evaluate",
            ["limits", "check", str(out / "wins.yaml"), "--on", str(out / f"wins-{method}.jsonl"), "--json"],
            out / f"wins-{method}.json",
            late=partial(_write_wins, out, method),
            printed=True,
        )
        for method in METHODS
    ]
    return [Step("evaluate", evaluate_words(data, work, models, seed, out), out / "evaluation.json"), *checks]


# --- wins -----------------------------------------------------------------------------------------------------------


def _write_wins(folder: Path, method: str) -> list[str]:
    """A policy's first answers beside the reference's to the same prompts, and the question who wins."""
    answers = answers_of(folder)
    rows = [
        {"prompt": prompt, "response": said[method], "reference": said[REFERENCE]}
        for (name, prompt), said in answers.items()
        if name == "eval_helpful_prompts"
    ]
    (folder / f"wins-{method}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge = folder.parents[1] / "scorers" / "judge-reward"
    limit = {"helpful": {"rate": {"score_model": str(judge)}, "versus": "reference", "at_least": "50 %"}}
    (folder / "wins.yaml").write_text(json.dumps({"limits": limit}))
    return []


# --- the table ------------------------------------------------------------------------------------------------------

MEASURES = (
    ("eval_safety", "unsafe_rate", "unsafe by the held-out judge, harmful prompts", True),
    ("eval_helpful", "helpfulness", "reward by the held-out judge, helpful prompts", False),
    ("eval_helpful", "kl", "KL to the reference, nats an answer", False),
    ("eval_helpful", "length_tokens", "tokens an answer", False),
    ("benign", "over_refusal", "refusals of harmless requests", True),
)
"""(beginning of the set's name, measure, what the table calls it, whether it is a share)"""


def table(work: Path, seeds: Sequence[int]) -> str:
    """The page's tables in Markdown: scorers, and each seed's measures with their 95 % intervals and counts."""
    lines = [
        "| scorer | right on held-out prompts | calibration error | of exact probabilities, at most |",
        "|---|---|---|---|",
    ]
    for folder in sorted((work / "scorers").glob("*/scorer.json")):
        lines.append(_scorer_line(folder.parent.name, json.loads(folder.read_text())["held_out"]))
    for seed in seeds:
        folder = work / "evaluation" / str(seed)
        result = json.loads((folder / "evaluation.json").read_text())
        names = [REFERENCE, *METHODS]
        lines += ["", f"Seed {seed}:", "", f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
        for beginning, measure, called, share in MEASURES:
            asked = next(one for name, one in result["sets"].items() if Path(name).name.startswith(beginning))
            row = [_shown(asked["measures"][name].get(measure), share) for name in names]
            lines.append(f"| {called} | {' | '.join(row)} |")
        wins = [_shown(_wins(folder, method), True) for method in METHODS]
        lines.append(f"| wins against the reference by the held-out judge | | {' | '.join(wins)} |")
        lines += ["", "Three limits at once:", "", limits_table(work, seed)]
    return "\n".join(lines) + "\n"


def _scorer_line(name: str, held_out: dict[str, Any]) -> str:
    share, count = held_out["right"] / held_out["trials"], int(held_out["trials"])
    fit = (held_out.get("labels") or held_out["pairs"])["reliability"]
    ends = f"{100 * held_out['low']:.1f} to {100 * held_out['high']:.1f} %"
    return (
        f"| {name} | {100 * share:.1f} % of {count} ({ends}) | {fit['expected_calibration_error']:.3f}"
        f" | {fit['error_if_calibrated']:.3f} |"
    )


def _wins(folder: Path, method: str) -> dict[str, Any]:
    found = json.loads((folder / f"wins-{method}.json").read_text())["helpful"]
    return {"value": found["estimate"], "low": found["low"], "high": found["high"], "count": found["n"]}


def _shown(one: dict[str, Any] | None, share: bool) -> str:
    if one is None or one["value"] is None:
        return ""
    scale, unit = (100.0, " %") if share else (1.0, "")
    text = f"{scale * one['value']:.3g}{unit}"
    if one["low"] is not None:
        return f"{text} ({scale * one['low']:.3g} to {scale * one['high']:.3g}; {one['count']})"
    error = one.get("standard_error")
    return f"{text} (standard error {error:.2g}; {one['count']})" if error is not None else text


def before_and_after(work: Path, seed: int) -> list[dict[str, str]]:
    """The first answers of reference and O-PD-DPO, as the seed drew the prompts; nobody chose them."""
    answers = answers_of(work / "evaluation" / str(seed))
    picked = [(prompt, said) for (name, prompt), said in answers.items() if name == "eval_helpful_prompts"][:SHOWN]
    return [{"prompt": prompt, **{name: said[name] for name in (REFERENCE, METHODS[0])}} for prompt, said in picked]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PDDPO_SHARED", "../shared")) / "data")
    parser.add_argument("--work", type=Path, default=Path("runs/real-model"))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--only", choices=STEPS)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("overrides", nargs="*", help="further settings of the runs")
    options = parser.parse_args(arguments)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    data, work = options.data.absolute(), options.work.absolute()
    if not (data / "pku_saferlhf_train.jsonl.gz").is_file():
        raise SystemExit(
            f"{options.data} holds no pku_saferlhf_train.jsonl.gz: name the folder of the data with --data"
        )
    for step in steps(data, work, seeds, options.overrides):
        if options.only in (None, step.of):
            if options.dry_run:
                print(f"{step.of}: pddpo {shlex.join(step.words)}")
            else:
                do(step)
    if options.only in (None, "table") and not options.dry_run:
        text = table(work, seeds)
        (work / "table.md").write_text(text)
        (work / "before-and-after.json").write_text(json.dumps(before_and_after(work, seeds[0]), indent=1))
        print(text)


if __name__ == "__main__":
    main()
