"""The delivery check of docs/integrations.md on an engine that vLLM's own class starts.

The engine is this file's own: the page's script starts it, by vLLM's own class.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_language_model import save_policy

pytestmark = [pytest.mark.vllm, pytest.mark.full]

ROOT = Path(__file__).parents[2]
OTHER = """
from pddpo_ray.errors import RunError
other = AutoModelForCausalLM.from_pretrained("other")
try:
    check(other, llm, canaries(AutoTokenizer.from_pretrained("trained"), questions, answers))
except RunError as error:
    print(error)
"""


def test_the_script_of_the_docs_verifies_an_engine_and_refuses_other_weights(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```py\n([^`]*delivery import.*?)^```", text, re.S | re.M)
    script = script.replace('dtype="float32"', 'dtype="float32", enforce_eager=True, max_model_len=64')
    save_policy(tmp_path / "trained", 0)
    save_policy(tmp_path / "served", 0)
    save_policy(tmp_path / "other", 1)
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", script + OTHER],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert re.search(r"^verified: \d\.\de-\d\d per token$", ran.stdout, re.M), ran.stdout
    assert "the engine computes with other weights than the trainer" in ran.stdout
