"""Run by test_adapters.py in a process of its own: policies on one vLLM engine, as adapters or whole (then of a tied
model with all weights trained, loaded in place). Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from deploy.serving.engines.engine import PolicyEngine
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.errors import RunError
from pddpo_ray.records import Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.serving.catalog import Canary, ServedPolicy
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.local import LocalTrainer, load_trainer, store_reference
from pddpo_ray.training.models.lora import load_lora_trainer
from tests.support.served_run import small_engine
from tests.support.tiny_language_model import save_policy

ROWS = tuple(PairRow(f"r{i}", (1, 5 + i, 9), (10 + i, 11, 12 + i, 2), (60 + i, 61, 62, 63 + i, 2)) for i in range(8))
PROMPT = [1, 5, 9]


def main(folder: Path, weights: Literal["adapters", "merged"]) -> None:
    store = ArtifactStore(folder / "store")
    reference = store_reference(store, save_policy(folder / "reference", seed=4, tied=weights == "merged"))
    base, rate = store.folder(reference.path), 2e-2 if weights == "adapters" else 5e-3
    trainer = load_trainer(base, store, reference)
    if weights == "adapters":
        trainer = load_lora_trainer(base, store, reference, rank=4, alpha=8.0)
    policies = [served(trainer, reference, 0)]
    for number, rows in ((1, ROWS), (2, tuple(replace(r, chosen=r.rejected, rejected=r.chosen) for r in ROWS))):
        settings = FitSettings(steps=12, learning_rate=rate, batch_pairs=8, support=0.0)
        objective = Objective("reward", reference, 0.1)
        command = FitCommand(number, Start(reference), objective, rows, settings, 3, f"policy-{number}")
        policies.append(served(trainer, trainer.execute(command).version, number))
    print(json.dumps(asyncio.run(serve(store, reference, policies, weights))))


def served(trainer: LocalTrainer, version: PolicyVersion, round_: int) -> ServedPolicy:
    answers = [Response(row.id, Prompt("p", row.prompt, ""), row.chosen, "", version.number, 0) for row in ROWS[:2]]
    canaries = tuple(
        Canary(answer.prompt.token_ids, answer.token_ids, float(value))
        for answer, value in zip(answers, trainer.log_probs(version, answers), strict=True)
    )
    return ServedPolicy(round_, version, None, "undecided" if round_ else "reference", "", canaries)


async def serve(
    store: ArtifactStore, reference: PolicyVersion, policies: list[ServedPolicy], weights: Literal["adapters", "merged"]
) -> dict[str, Any]:
    settings = small_engine(store, reference, weights=weights, adapter_rank=4)
    engine = await PolicyEngine.start(settings)
    try:
        replies = await asyncio.gather(*(ask(engine, policy) for _ in range(4) for policy in policies))
        wrong = replace(policies[1], version=replace(policies[1].version, name="another", sha256="0" * 64))
        foreign = replace(
            policies[2], canaries=policies[1].canaries, version=replace(policies[2].version, name="alien")
        )
        refused = [await refusal(engine, policy) for policy in (wrong, foreign)]
        return {
            "texts": [list(set(replies[place :: len(policies)])) for place in range(len(policies))],
            "folders": [str(store.folder(policy.version.path)) for policy in policies],
            "refused": refused,
            "health": (await engine.check())["tokens"],
        }
    finally:
        engine.close()


async def ask(engine: PolicyEngine, policy: ServedPolicy) -> str:
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0.0}
    (reply,) = [piece async for piece in engine.respond("completion", policy, body)]
    assert isinstance(reply, dict)
    assert reply["status"] == 200, reply
    return str(reply["body"]["choices"][0]["text"])


async def refusal(engine: PolicyEngine, policy: ServedPolicy) -> str:
    try:
        await ask(engine, policy)
    except RunError as error:
        return str(error)
    return "served"


if __name__ == "__main__":
    main(Path(sys.argv[1]), "merged" if sys.argv[2] == "merged" else "adapters")
