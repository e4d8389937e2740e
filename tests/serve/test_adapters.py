"""Policies on one real engine, as adapters all at once or whole one after the other: each answers as its weights do in
transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.tiny_language_model import word_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.full]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("weights", ["adapters", "merged"])
def test_each_policy_answers_as_its_own_weights_and_a_wrong_one_is_refused(tmp_path: Path, weights: str) -> None:
    """Whole ones are those of a model with tied embeddings, all trained, loaded in place."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.serve.adapter_story", str(tmp_path), weights]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    for texts, folder in zip(told["texts"], told["folders"], strict=True):
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        greedy = model.generate(torch.tensor([[1, 5, 9]]), max_new_tokens=6, do_sample=False)[0, 3:]
        assert [text.split() for text in texts] == [word_tokenizer().decode(greedy, skip_special_tokens=True).split()]
    assert len({text for texts in told["texts"] for text in texts}) == 3
    assert "the trainer made 000000" in told["refused"][0]
    assert "Nothing is served from it" in told["refused"][1]
    assert told["health"] == 1
