"""Run by test_json_mode.py in a process of its own: JSON mode of a byte-level model on a real engine. Prints one JSON
object."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from deploy.serving.engines.engine import PolicyEngine
from deploy.serving.settings import EngineSettings
from pddpo_ray.serving.catalog import ServedPolicy
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.local import store_reference
from tests.support.chat_tokenizers import gpt_2
from tests.support.served_run import small_engine
from tests.support.tiny_language_model import tiny_llama

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"safe": {"type": "boolean"}, "kind": {"enum": ["harm", "none"]}},
    "required": ["safe", "kind"],
    "additionalProperties": False,
}
STRICT = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True}}
WRONG = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": {"type": "nonsense"}}}


def main(folder: Path) -> None:
    tokenizer, model = gpt_2(), folder / "model"
    weights = tiny_llama(5, words=len(tokenizer))
    for settings_ in (weights.config, weights.generation_config):
        settings_.eos_token_id = settings_.bos_token_id = settings_.pad_token_id = tokenizer.eos_token_id
    weights.save_pretrained(model)
    tokenizer.save_pretrained(model)
    store = ArtifactStore(folder / "store")
    reference = store_reference(store, model)
    settings = small_engine(store, reference)
    print(json.dumps(asyncio.run(replies(settings, ServedPolicy(0, reference, None, "reference")))))


async def replies(settings: EngineSettings, policy: ServedPolicy) -> dict[str, Any]:
    engine = await PolicyEngine.start(settings)
    try:
        asked = [ask(engine, policy, STRICT, seed) for seed in range(8)]
        told = {"strict": await asyncio.gather(*asked), "wrong": await ask(engine, policy, WRONG, 0)}
        told["full"] = await ask(engine, policy, {"type": "text"}, 8, "a" * (settings.max_model_len - 20))
        return told | {"fields": {kind: sorted(model.model_fields) for kind, model in request_models().items()}}
    finally:
        engine.close()


def request_models() -> dict[str, Any]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    return {"chat": ChatCompletionRequest, "completion": CompletionRequest}


async def ask(
    engine: PolicyEngine, policy: ServedPolicy, response_format: dict[str, Any], seed: int, text: str = "is it safe"
) -> Any:
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 100,
        "seed": seed,
        "response_format": response_format,
        "request_id": f"json-{seed}",
    }
    async for piece in engine.respond("chat", policy, body):
        assert isinstance(piece, dict)
        return piece


if __name__ == "__main__":
    main(Path(sys.argv[1]))
