"""Runs in the clients' own environment: calls the endpoint as their documentation says, and prints JSON.

python client_calls.py openai|langchain|litellm FOLDER
python client_calls.py lm-eval FOLDER TASK transformers|completions|chat [True|False: whether texts begin with <bos>]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

MESSAGES: list[Any] = [{"role": "user", "content": "word1 word2 word3"}]
SETTINGS: dict[str, Any] = {"temperature": 0, "max_tokens": 5}


def with_openai() -> dict[str, Any]:
    import openai

    client = openai.OpenAI(max_retries=0)
    chat = client.chat.completions.create(model="released", messages=MESSAGES, **SETTINGS)
    stream = client.chat.completions.create(model="released", messages=MESSAGES, stream=True, **SETTINGS)
    batch = client.completions.create(model="round-1", prompt=["word1 word2", "word3"], max_tokens=3, temperature=0)
    echo: Any = client.completions.create(model="round-1", prompt="word1 word2", echo=True, logprobs=1, max_tokens=0)
    scores = echo.choices[0].logprobs
    return {
        "models": [one.id for one in client.models.list()],
        "chat": chat.choices[0].message.content,
        "usage": chat.usage.model_dump(),
        "streamed": [one.choices[0].delta.content or "" for one in stream if one.choices],
        "batch": [choice.text for choice in batch.choices],
        "logprobs": [value for value in scores.token_logprobs if value is not None],
    }


def with_langchain() -> dict[str, Any]:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="released", max_retries=0, **SETTINGS)
    answer = model.invoke("word1 word2 word3")
    return {
        "invoked": answer.content,
        "tokens": answer.usage_metadata["total_tokens"],
        "streamed": "".join(str(chunk.content) for chunk in model.stream("word1 word2 word3")),
        "batch": [one.content for one in model.batch(["word1 word2 word3"] * 2)],
    }


def with_litellm() -> dict[str, Any]:
    import litellm

    common = {"model": "openai/released", "messages": MESSAGES, "num_retries": 0, **SETTINGS}
    stream = litellm.completion(stream=True, **common)
    text = litellm.text_completion(model="text-completion-openai/round-1", prompt="word1 word2", **SETTINGS)
    try:
        litellm.completion(**{**common, "api_key": "wrong"})
        error = ""
    except litellm.exceptions.AuthenticationError as refused:
        error = type(refused).__name__
    return {
        "chat": litellm.completion(**common).choices[0].message.content,
        "streamed": "".join(one.choices[0].delta.content or "" for one in stream),
        "text": text.choices[0].text,
        "error": error,
    }


def with_lm_eval(folder: Path, task: str, way: str, bos: str = "True") -> dict[str, Any]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    base, tokenizer = os.environ["OPENAI_BASE_URL"], folder / "tokenizer"
    weights = os.environ["PDDPO_MODEL"]
    through = {
        "transformers": ("hf", f"pretrained={weights},tokenizer={tokenizer},dtype=float32,add_bos_token={bos}"),
        "completions": (
            "local-completions",
            f"model=round-1,base_url={base}/completions,tokenizer={tokenizer},tokenizer_backend=huggingface,"
            f"num_concurrent=1,max_retries=1,max_length=128,add_bos_token={bos}",
        ),
        "chat": ("local-chat-completions", f"model=round-1,base_url={base}/chat/completions,max_retries=1"),
    }
    model, arguments = through[way]
    done = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[f"tiny_{task}"],
        task_manager=TaskManager(include_path=str(folder / "tasks"), include_defaults=False),
        apply_chat_template=task == "generation",
        batch_size=1,
        device="cpu",
        bootstrap_iters=0,
    )
    name = f"tiny_{task}"
    samples = sorted(done["samples"][name], key=lambda one: one["doc_id"])
    if task == "generation":
        return {"answers": [one["filtered_resps"][0].strip() for one in samples]}
    numbers = [value for one in samples for value in _numbers(one["filtered_resps"])]
    metrics = {key: value for key, value in done["results"][name].items() if isinstance(value, float)}
    return {"samples": numbers, "metrics": metrics}


def _numbers(value: Any) -> list[float]:
    if isinstance(value, list | tuple):
        return [one for inner in value for one in _numbers(inner)]
    return [float(value)] if isinstance(value, float | int) and not isinstance(value, bool) else []


if __name__ == "__main__":
    calls = {"openai": with_openai, "langchain": with_langchain, "litellm": with_litellm}
    client, where, *rest = sys.argv[1:]
    print("\n" + json.dumps(with_lm_eval(Path(where), *rest) if client == "lm-eval" else calls[client]()))
