"""A real pretrained model through one round with vLLM and adapters: delivered, verified, exported and loaded again.

The engine is this file's own: the run starts it with that model.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.smollm2_run import (
    LORA,
    answers_of,
    assert_same_log_probs,
    assert_verified,
    done,
    pddpo,
    recipe,
    smollm2,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.full]


def test_smollm2_is_trained_delivered_exported_and_says_the_same_in_transformers(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    reference, run, out = smollm2(), tmp_path / "run", tmp_path / "exported"
    done(pddpo("train", *recipe(tmp_path, reference, "rounds=1", LORA), "--run", str(run)))
    assert_verified(run, 1)
    done(pddpo("export", str(run), "--round", "1", "--to", str(out)))
    assert_same_log_probs(AutoModelForCausalLM.from_pretrained(out), answers_of(run, 1))
    theirs, own = (AutoTokenizer.from_pretrained(folder) for folder in (reference, out))
    asked = [{"role": "user", "content": "How do I float on my back?"}]
    assert own.apply_chat_template(asked, add_generation_prompt=True, tokenize=False) == theirs.apply_chat_template(
        asked, add_generation_prompt=True, tokenize=False
    )
