"""Which settings of a fit move SmolLM2's words the furthest? (README.md, "A search")

    python -m lab.studies.real_model.search --data FILE                    # every arm, one after another
    python -m lab.studies.real_model.search --data FILE --arms "rank 4"    # some; others may run beside it

One fit an arm (`own_draws.fit`), all on the same answers of the reference, drawn once: 160 prompts, four answers each,
words priced with nats. An arm changes one setting of the first one; arms with fewer prompts or answers take a part of
them. Measured on 48 prompts that no fit saw, two fresh answers each, paired by prompt with the reference's.
Chosen before any arm was run: adapters' arms by the largest fall of words; between arms within one standard error, the
one of the smaller KL.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.studies.real_model.own_draws import HELD, Drawn, Model, Trial, asked_prompts, drawn, fit, moved
from lab.studies.study import keep, known

OUT = Path(__file__).with_name("search.json")
FIRST = Trial(prompts=160, draws=4, rate=5e-4, price=0.3, batch=8, rank=16, new=1)
ARMS: dict[str, Trial] = {
    "rank 16, rate 5e-4, steps of 32 answers, 0.3 nats a word": FIRST,
    "rank 4": replace(FIRST, rank=4),
    "rank 64": replace(FIRST, rank=64),
    "all weights, rate 1e-5": replace(FIRST, rank=0, rate=1e-5),
    "all weights, rate 3e-5": replace(FIRST, rank=0, rate=3e-5),
    "rate 2.5e-4": replace(FIRST, rate=2.5e-4),
    "rate 1e-3": replace(FIRST, rate=1e-3),
    "steps of 16 answers": replace(FIRST, batch=4),
    "two answers a prompt": replace(FIRST, draws=2, batch=16),
    "80 prompts, two passes": replace(FIRST, prompts=80, new=2),
    "0.15 nats a word": replace(FIRST, price=0.15),
}


def common(file: Path, work: Path, seed: int) -> dict[str, Any]:
    """The reference's answers that fits learn from, and its words on the held-out prompts, once for all arms."""
    store = work / f"draws-{seed}.json"
    if not store.is_file():
        model = Model(replace(FIRST, seed=seed))
        prompts = [model.prompt(one) for one in asked_prompts(file)]
        held, asked = prompts[:HELD], prompts[HELD + seed * FIRST.prompts :][: FIRST.prompts]
        rows = drawn(model, asked, seed)
        before = [[model.words(one) for one in row] for row in model.draw(held, 2, 99)]
        plain = [[row.prompt, row.answers, row.words.tolist(), row.reference.tolist()] for row in rows]
        aside = store.with_suffix(".part")
        aside.write_text(json.dumps({"held": held, "rows": plain, "before": before}))
        aside.rename(store)
    found: dict[str, Any] = json.loads(store.read_text())
    texts = [(tuple(prompt), [tuple(one) for one in answers]) for prompt, answers, _, _ in found["rows"]]
    numbers = [(np.array(words), torch.tensor(reference)) for _, _, words, reference in found["rows"]]
    rows = [Drawn(*text, *columns) for text, columns in zip(texts, numbers, strict=True)]
    return found | {"held": [tuple(prompt) for prompt in found["held"]], "rows": rows}


def part(rows: list[Drawn], trial: Trial) -> list[Drawn]:
    """The arm's share of the answers."""
    n = trial.draws
    return [Drawn(row.prompt, row.answers[:n], row.words[:n], row.reference[:n]) for row in rows[: trial.prompts]]


def run(trial: Trial, found: dict[str, Any]) -> dict[str, Any]:
    """One arm."""
    began, model = time.process_time(), Model(trial)
    optimizer = torch.optim.AdamW(model.trained, lr=trial.rate, betas=(0.9, 0.99), weight_decay=0.0)
    rows, generator = part(found["rows"], trial), np.random.default_rng(trial.seed)
    order = np.concatenate([generator.permutation(len(rows)) for _ in range(trial.new)])
    curve = fit(model, optimizer, [rows[index] for index in order])
    answers = model.draw(found["held"], 2, 100)
    texts = [(prompt, answer) for prompt, both in zip(found["held"], answers, strict=True) for answer in both]
    with torch.no_grad():
        own = model.scorer.log_probs(texts)[0]
        # weights that were all trained hold no reference
        reference = (model if trial.rank else Model(replace(trial, rank=1))).of_reference(texts)
    words = np.array([[model.words(one) for one in both] for both in answers], float)
    fresh = [Drawn(one, both, count, reference) for one, both, count in zip(found["held"], answers, words, strict=True)]
    difference = words.mean(1) - np.array(found["before"]).mean(1)
    return {
        "trial": asdict(trial),
        "steps": len(curve),
        "curve": curve,
        "held_out": moved(fresh, (own - reference).reshape(HELD, 2).numpy()),
        "reference": float(np.mean(found["before"])),
        "difference": [float(difference.mean()), float(difference.std(ddof=1) / HELD**0.5)],
        "cpu_seconds": round(time.process_time() - began),
    }


def table(results: dict[str, Any]) -> str:
    """Of all arms that are known, in Markdown."""
    rows = ["| arm | steps | words, less the reference's | KL, nats | CPU seconds |", "|---|---|---|---|---|"]
    for name, seeds in results.items():
        for seed, one in sorted(seeds.items()):
            change, error = one["difference"]
            figures = f"{change:+.1f} ± {error:.1f} | {one['held_out']['kl']:.2f} | {one['cpu_seconds']}"
            rows.append(f"| {name}, {seed} | {one['steps']} | {figures} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="pairs with prompts of HH-RLHF, JSON lines")
    parser.add_argument("--work", type=Path, default=Path("runs/real-model-search"))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    found = common(given.data, given.work, given.seed)
    for name in given.arms:
        if f"seed {given.seed}" not in known(given.out).get(name, {}):
            keep(given.out, name, {f"seed {given.seed}": run(replace(ARMS[name], seed=given.seed), found)})
            print(table(known(given.out)), flush=True)


if __name__ == "__main__":
    main()
