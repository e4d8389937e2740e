"""Third-party clients, unchanged, against `pddpo serve`: openai, LangChain, LiteLLM, and lm-eval against transformers.

They live in an environment of their own (`make clients`), since they ask for other versions than the lock has.

The endpoint is this file's own: its model has the tokenizer and template that the clients' libraries read too.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.support.served_process import served
from tests.support.served_run import SAFE, ServedRun, make_run
from tests.support.tiny_language_model import WORDS, word_tokenizer

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
CALLS = Path(__file__).parent / "client_calls.py"
pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.full,
    pytest.mark.skipif(not PYTHON.exists(), reason="the clients are not installed: make clients"),
]
CHAT = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% if not loop.last %} {% endif %}{% endfor %}"


@dataclass
class Endpoint:
    url: str
    run: ServedRun
    folder: Path

    def ask(self, client: str, *more: str) -> Any:
        """What a client's calls come to, as JSON; no client may reach for the network beyond this machine."""
        key = (self.run.folder / "serve-key").read_text().strip()
        environment = {**os.environ, "OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{self.url}/v1"}
        environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        environment |= {"HF_HOME": str(self.folder / "hub"), "LANGCHAIN_TRACING_V2": "false"}
        environment |= {"PYTHONPATH": "", "PDDPO_MODEL": str(self.model)}
        command = [str(PYTHON), str(CALLS), client, str(self.folder), *more]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    @property
    def model(self) -> Path:
        """The weights of round 1, with their tokenizer."""
        return self.run.store.folder(self.run.journal.policies[0].path)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("clients")
    tokenizer = word_tokenizer()
    tokenizer.chat_template = CHAT
    run = make_run(folder / "demo", (SAFE,), tokenizer=tokenizer)
    begins_with_bos(tokenizer).save_pretrained(folder / "tokenizer")
    with served(run.folder, folder / "serve.log") as server:
        yield Endpoint(server.url, run, folder)
    run.close()


def test_openais_client_of_another_major_version(endpoint: Endpoint) -> None:
    said = endpoint.ask("openai")
    assert said["models"][0] == "released"
    assert said["chat"] == "".join(said["streamed"])
    assert said["usage"]["completion_tokens"] == 5
    assert len(said["batch"]) == 2
    assert all(value <= 0 for value in said["logprobs"])


def test_langchain_invokes_and_streams(endpoint: Endpoint) -> None:
    said = endpoint.ask("langchain")
    assert said["invoked"] == said["streamed"]
    assert said["tokens"] > 0
    assert said["batch"] == [said["invoked"]] * 2


def test_litellm_completes_streams_and_reads_errors(endpoint: Endpoint) -> None:
    said = endpoint.ask("litellm")
    assert said["chat"] == said["streamed"]
    assert said["text"]
    assert said["error"] == "AuthenticationError"


@pytest.mark.parametrize(("kind", "bos"), [("choice", "True"), ("perplexity", "True"), ("choice", "False")])
def test_lm_evals_numbers_through_the_endpoint_equal_those_through_transformers(
    endpoint: Endpoint, kind: str, bos: str
) -> None:
    task(endpoint.folder, kind)
    here, there = (endpoint.ask("lm-eval", kind, way, bos) for way in ("transformers", "completions"))
    assert here["samples"]
    assert here["samples"] == pytest.approx(there["samples"], abs=2e-3)
    assert here["metrics"] == pytest.approx(there["metrics"], rel=1e-3)


def test_lm_eval_asks_the_chat_endpoint_and_gets_what_transformers_writes(endpoint: Endpoint) -> None:
    task(endpoint.folder, "generation")
    here, there = (endpoint.ask("lm-eval", "generation", way) for way in ("transformers", "chat"))
    assert here == there
    assert len(set(here["answers"])) > 1


def begins_with_bos(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same, whose texts begin with <bos> as those of Llama's do.

    lm-eval makes any tokenizer do so for transformers, but asks an endpoint with what the tokenizer does by itself.
    """
    same = copy.deepcopy(tokenizer)
    same.add_bos_token = True
    same.update_post_processor()
    return same


def task(folder: Path, kind: str) -> None:
    """A tiny task of lm-eval in the words of the tiny model, with its documents in a file."""
    tasks = folder / "tasks"
    tasks.mkdir(exist_ok=True)
    rows = [
        {
            "question": " ".join(WORDS[n : n + 4]),
            "choices": [WORDS[n + 5], f"{WORDS[n + 9]} {WORDS[n + 2]}"],
            "gold": n % 2,
        }
        for n in range(12)
    ]
    (tasks / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    common = {
        "task": f"tiny_{kind}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tasks / "rows.jsonl")}},
        "test_split": "test",
        "metadata": {"version": 1},
    }
    kinds: dict[str, dict[str, Any]] = {
        "choice": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        },
        "perplexity": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{question}} {{choices[1]}}",
            "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
        },
        "generation": {
            "output_type": "generate_until",
            "doc_to_text": "{{question}}",
            "doc_to_target": "{{choices[0]}}",
            "generation_kwargs": {"max_gen_toks": 6, "do_sample": False, "temperature": 0.0, "until": ["<eos>"]},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    (tasks / f"{kind}.yaml").write_text(json.dumps({**common, **kinds[kind]}))
