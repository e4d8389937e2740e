"""A limit on SmolLM2's length, kept and certified: seeds 0, 1 and 2 (docs/real-model.md, `make real`).

    python -m lab.studies.real_model.kept_length --data FOLDER                # some 30 minutes a seed on an idle core
    python -m lab.studies.real_model.kept_length --data FOLDER --seeds 1      # one of them

    prompts    questions of HH-RLHF of one turn and at most 18 words, each asked for one short sentence: those of the
               training file for the recipe, those of the test file for the check
    init       a recipe from the model, the pairs, the prompts and the limit in words; nothing of it is edited
    train      the recipe, certified at its end
    evaluate   the reference and the released policy answer the same fresh prompts
    table      what the page shows, and `kept_length.json`

Every step is commands of `pddpo`; what is done is not done again, and a run continues where it was killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lab.studies.real_model.own_draws import asked_once
from lab.studies.real_model.scorers import SUFFIX
from lab.studies.real_model.step import REFERENCE, Step, answers_of, do
from pddpo_ray.journal import read_journal

POLICY = "policy"
SHOWN = 10
"""Answers before and after: the first of the fresh prompts, in the order that the seed drew."""
QUESTIONS = 120
LIMIT = "at most 14.2 words on average"
"""60 % of the reference's 23.6 words."""


def questions(file: Path) -> list[str]:
    """Questions of one turn, each once, in an order drawn by seed 0."""
    order = asked_once(file)
    random.Random(0).shuffle(order)
    return order


def write_prompts(data: Path, out: Path) -> None:
    """`prompts.jsonl` and `fresh.jsonl`; no question is in both."""
    out.mkdir(parents=True, exist_ok=True)
    for name, part in (("prompts", "train"), ("fresh", "test")):
        asked = questions(data / f"preferences_helpful_{part}.jsonl.gz")
        (out / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": one + SUFFIX}) + "\n" for one in asked))


def run_folder(work: Path, seed: int) -> Path:
    return work / "kept-length" / f"seed-{seed}"


def steps(data: Path, work: Path, seeds: Sequence[int], extra: Sequence[str] = ()) -> list[Step]:
    """Every command, in order. `extra` are overrides of the runs."""
    model, folder = work / "model", work / "kept-length"
    recipe, fresh = folder / "own.yaml", folder / "prompts" / "fresh.jsonl"
    own = [
        *["init", str(recipe), "--model", str(model), "--prompts", str(folder / "prompts" / "prompts.jsonl")],
        *["--pairs", str(data / "preferences_helpful_train.jsonl.gz"), "--limit", LIMIT, "--no-ask"],
    ]
    made = [
        Step("model", ["model", "fetch", "smollm2", "--to", str(model)], model / "model.safetensors"),
        Step("init", own, recipe),
    ]
    for seed in seeds:
        run, out = run_folder(work, seed), folder / f"evaluation-{seed}"
        words = ["train", str(recipe), f"seed={seed}", *extra, "--run", str(run)]
        made.append(Step("train", words, run / "result.json", run / "journal.sqlite"))
        asked = [
            *["evaluate", f"{REFERENCE}={model}", "--reference", f"{REFERENCE}={model}", "--set", str(fresh)],
            *["--questions", str(QUESTIONS), "--policy-temperature", "0.7"],
            *["--template", "tokenizer", "--seed", str(seed), "--out", str(out)],
        ]
        made.append(Step("evaluate", asked, out / "evaluation.json", late=partial(_tested, run, recipe)))
        made += [_measured(out, name, recipe) for name in (REFERENCE, POLICY)]
    return made


def _tested(run: Path, recipe: Path) -> list[str]:
    """The policy that the run's certificate is about, and the recipe's longest answer."""
    policy = json.loads((run / "certificate.json").read_text())["candidate"]["policy"]
    return [f"{POLICY}={run}@{policy}", "--max-tokens", str(_section(recipe, "rollout")["max_tokens"])]


def _section(recipe: Path, name: str) -> dict[str, Any]:
    section: dict[str, Any] = yaml.safe_load(recipe.read_text())[name]
    return section


def _measured(folder: Path, name: str, recipe: Path) -> Step:
    """The limit on the fresh answers of one model, with its interval."""
    limit, answers = folder / "limit.yaml", folder / f"{name}.jsonl"

    def write() -> list[str]:
        limit.write_text(json.dumps({"limits": {"length": _section(recipe, "limits")["length"]}}))
        rows = [{"prompt": prompt, "response": said[name]} for (_, prompt), said in answers_of(folder).items()]
        answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return []

    words = ["limits", "check", str(limit), "--on", str(answers), "--json"]
    # 6: the reference is above the limit, which is an answer too
    return Step("evaluate", words, folder / f"{name}.json", late=write, printed=True, ends=(0, 5, 6))


# --- results --------------------------------------------------------------------------------------------------------


def result(work: Path, seed: int) -> dict[str, Any]:
    """What one seed's run, certificate and check on fresh prompts say."""
    run, out = run_folder(work, seed), work / "kept-length" / f"evaluation-{seed}"
    with read_journal(run / "journal.sqlite") as journal:
        fits = {name: value for name, value in journal.metrics()[1].items() if name.startswith("fit/")}
    said = list(answers_of(out).items())
    words = {name: [len(answer[name].split()) for _, answer in said] for name in (REFERENCE, POLICY)}
    less = [after - before for before, after in zip(words[REFERENCE], words[POLICY], strict=True)]
    values = {name: json.loads((out / f"{name}.json").read_text())["length"] for name in words}
    kl = next(iter(json.loads((out / "evaluation.json").read_text())["sets"].values()))["measures"][POLICY]["kl"]
    return {
        "certificate": _certified(json.loads((run / "certificate.json").read_text())),
        "fit_of_the_cost_stage": fits,
        "fresh": {
            **{
                name: {
                    "mean": value["estimate"],
                    "standard_error": _error(words[name]),
                    "interval_95": [value["low"], value["high"]],
                    "n": value["n"],
                }
                for name, value in values.items()
            },
            "difference": {"mean": statistics.fmean(less), "standard_error": _error(less)},
            "kl": {"mean": kl["value"], "standard_error": kl["standard_error"]},
        },
        "first_answers": [{"prompt": prompt, **answers} for (_, prompt), answers in said[:SHOWN]],
    }


def _certified(certificate: dict[str, Any]) -> dict[str, Any]:
    """Verdict, bounds and draws, without the single numbers, which stand in the run."""
    (numbers,) = certificate["numbers"].values()
    (version,) = certificate["candidate"]["versions"]
    return {
        "state": certificate["state"],
        "statement": certificate["candidate"]["statement"],
        **certificate["findings"]["length"],
        "draws": len(numbers),
        "mean": statistics.fmean(numbers),
        "standard_error": _error(numbers),
        "sha256_of_the_weights": version["sha256"],
    }


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def table(results: dict[int, dict[str, Any]]) -> str:
    """The page's table in Markdown, a row a seed."""
    lines = [
        "| seed | certificate | words of the reference, fresh prompts | of the policy | less, paired | KL, nats |",
        "|---|---|---|---|---|---|",
    ]
    for seed, one in sorted(results.items()):
        fresh = one["fresh"]
        before, after = (_cell(fresh[name]) for name in (REFERENCE, POLICY))
        less, kl = (
            f"{abs(fresh[key]['mean']):.1f} ± {fresh[key]['standard_error']:.1f}" for key in ("difference", "kl")
        )
        lines.append(f"| {seed} | {one['certificate']['state']} | {before} | {after} | {less} | {kl} |")
    return "\n".join(lines) + "\n"


def _cell(one: dict[str, Any]) -> str:
    low, high = one["interval_95"]
    return f"{one['mean']:.1f} ± {one['standard_error']:.1f} ({low:.1f} to {high:.1f}; {one['n']})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PDDPO_SHARED", "../shared")) / "data")
    parser.add_argument("--work", type=Path, default=Path("runs/real-model"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("overrides", nargs="*", help="further settings of the runs")
    options = parser.parse_args(arguments)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    data, work = options.data.absolute(), options.work.absolute()
    write_prompts(data, work / "kept-length" / "prompts")
    for step in steps(data, work, seeds, options.overrides):
        do(step)
    results = {seed: result(work, seed) for seed in seeds}
    (work / "kept-length" / "kept_length.json").write_text(json.dumps(results, indent=1, ensure_ascii=False))
    print(table(results))


if __name__ == "__main__":
    main()
