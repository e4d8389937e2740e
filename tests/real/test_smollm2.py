"""SmolLM2 the whole way (`make real`): three rounds with vLLM, killed in the second, resumed, exported, served; a round
at a policy temperature, and one in bfloat16."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from pddpo_ray.errors import PddpoError
from pddpo_ray.journal import read_journal
from pddpo_ray.storage.whole_files import ARTIFACTS, JOURNAL, WEIGHTS
from tests.support.served_process import served
from tests.support.smollm2_run import (
    LORA,
    answers_of,
    assert_same_log_probs,
    assert_verified,
    done,
    greedy_by_vllm,
    pddpo,
    recipe,
    smollm2,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(7200)]

FULL = "model.parameters={kind: full}"
BEGIN_S = 3000


def phases(run: Path) -> dict[tuple[int, str], int]:
    """Finished phases, by round and name, and when each ended; none before there is a journal."""
    try:
        with read_journal(run / JOURNAL) as journal:
            return {(entry.round, entry.phase): entry.finished_ms for entry in journal.phases()}
    except PddpoError:
        return {}


def killed_in_round_two(arguments: list[str], run: Path) -> dict[tuple[int, str], int]:
    """Begin the run and `kill -9` its process in the midst of round 2. -> phases that were finished by then"""
    process = pddpo("train", *arguments, "--run", str(run))
    deadline = time.monotonic() + BEGIN_S
    while not any(number == 2 for number, _ in phases(run)):
        assert process.poll() is None, process.communicate()[0][-6000:]
        assert time.monotonic() < deadline
        time.sleep(0.5)
    process.kill()
    process.communicate()
    return phases(run)


@pytest.mark.parametrize("parameters", [LORA, FULL], ids=["lora", "full"])
def test_a_real_model_goes_the_whole_way(tmp_path: Path, parameters: str) -> None:
    pytest.importorskip("vllm")
    reference, run = smollm2(), tmp_path / "run"
    arguments = recipe(tmp_path, reference, "rounds=3", parameters)

    finished = killed_in_round_two(arguments, run)
    with read_journal(run / JOURNAL) as journal:
        first = journal.policies[0].sha256
    done(pddpo("train", *arguments, "--run", str(run), "--resume"))
    assert finished.items() <= phases(run).items()  # nothing that was done is done again
    assert_verified(run, 3)
    with read_journal(run / JOURNAL) as journal:
        assert journal.policies[0].sha256 == first

    out = tmp_path / "exported"
    done(pddpo("export", str(run), "--round", "3", "--to", str(out)))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    assert_same_log_probs(model, answers_of(run, 3))
    assert "How it was made" in (out / "README.md").read_text()
    assert done(pddpo("chat", str(run), "--round", "3", "--prompt", "Hello!", "--max-tokens", "8")).strip()

    asked: list[Any] = [{"role": "user", "content": "Name three colours."}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    with torch.no_grad():
        greedy = model.generate(**ids, do_sample=False, temperature=None, top_p=None, top_k=None, max_new_tokens=12)
    begin = ids["input_ids"].shape[1]
    assert greedy_by_vllm(out, ids["input_ids"][0].tolist(), 12) == greedy[0, begin:].tolist()
    with served(run, tmp_path / "serve.log") as endpoint:
        key = (run / "serve-key").read_text().strip()
        client = openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key=key, max_retries=0, timeout=600)
        reply = client.chat.completions.create(model="round-3", messages=asked, max_tokens=12, temperature=0)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == begin
    assert reply.choices[0].message.content == tokenizer.decode(greedy[0, begin:], skip_special_tokens=True)


def test_a_policy_at_a_temperature_is_the_same_in_trainer_engine_and_export(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    reference, run, out = smollm2(), tmp_path / "run", tmp_path / "exported"
    arguments = recipe(tmp_path, reference, "rounds=1", LORA, "policy.temperature=0.7")
    done(pddpo("train", *arguments, "--run", str(run)))
    assert_verified(run, 1)
    done(pddpo("export", str(run), "--round", "1", "--to", str(out)))
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    assert model.generation_config.temperature == 0.7
    assert_same_log_probs(model, answers_of(run, 1), temperature=0.7)


BF16 = "model.dtype=bfloat16"
BF16_CANARIES = 0.1
"""Nats per token between trainer and engine in bfloat16, whose kernels round to 8 bits in another order each."""


def test_a_round_in_bfloat16_moves_the_weights_and_keeps_their_masters(tmp_path: Path) -> None:
    reference, run = smollm2(), tmp_path / "run"
    arguments = recipe(tmp_path, reference, "rounds=1", FULL, BF16)
    # the engine that everybody has: vLLM's own way in bfloat16 is the same as in float32
    engine = "rollout={engine: transformers, max_tokens: 12, candidates: 3}"
    done(pddpo("train", *arguments, engine, f"rollout.canary_tolerance={BF16_CANARIES}", "--run", str(run)))
    assert_verified(run, 1, BF16_CANARIES)
    with read_journal(run / JOURNAL) as journal:
        found, (policy,) = journal.metrics()[1], journal.policies
    for fit in ("reward", "cost"):
        assert 0.05 < found[f"fit/{fit}_moved"] <= 1.0, "less is what a run warns of"
    folder = run / ARTIFACTS / policy.path
    masters, published = load_file(folder / "masters" / WEIGHTS), load_file(folder / WEIGHTS)
    assert {tensor.dtype for tensor in masters.values()} == {torch.float32}
    assert all(torch.equal(masters[name].bfloat16(), weight) for name, weight in published.items())
    assert any(not torch.equal(masters[name], weight.float()) for name, weight in published.items())
