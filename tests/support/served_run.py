"""A run with real (tiny, random) language models and a journal as a finished run leaves it: something to serve."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from deploy.serving.settings import EngineSettings
from pddpo_ray.certificates.ledger import BATCH, Candidate, enter, line_of, read_ledger
from pddpo_ray.certificates.release import settle
from pddpo_ray.certificates.release_history import Releases
from pddpo_ray.certificates.testing import tested_limits
from pddpo_ray.config import Config, load
from pddpo_ray.journal import Journal
from pddpo_ray.journal.transactions import Store
from pddpo_ray.records import CostEstimate, PolicyVersion, Prompt, Response
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import ARTIFACTS, JOURNAL
from tests.support.tiny_language_model import tiny_llama, word_tokenizer

PROMPT = Prompt("p0", (1, 5, 6, 7), "word1 word2 word3")
ANSWERS = ((9, 10, 11, 2), (20, 30, 40, 50, 2))
SAFE, UNSAFE = -0.5, 0.4
"""Estimated costs of a round that is certified and released, and of one that is not tested; the limit is 0."""
DRAWS = 256


@dataclass
class ServedRun:
    """`add_round` is what a driver does to the journal, without training anything."""

    folder: Path
    journal: Journal
    store: ArtifactStore
    model: Callable[[int], LlamaForCausalLM] = tiny_llama
    """The reference's weights from the number 100, those of round k from 100 + k."""
    tokenizer: PreTrainedTokenizerFast = field(default_factory=word_tokenizer)

    def add_round(self, cost: float) -> None:
        number = self.journal.next_round
        for k in self.journal.rounds(number):
            version = self._version(2 * k, f"policy-{k}", seed=100 + k)
            self.journal.add_version(version, "cost", base=2 * k - 1, multiplier=0.1 * k)
            self.journal.add_samples("cost", self._answers(version, seed=100 + k))
            estimate = CostEstimate(cost, 0.1, responses=8, labels_each=4)
            self.journal.add_dual_step("cost", estimate, 0.1 * k, 0.1 * k + 0.05, 0.1)
        if cost <= 0:
            self.certify(number)

    def certify(self, *rounds: int) -> None:
        """Enters the policy of a round, or the mixture of several, with draws whose labels all say safe."""
        config = Config.model_validate(self.journal.recipe)
        versions = [self.journal.policies[number - 1] for number in rounds]
        entered = enter(
            self.journal,
            Candidate(
                number=len(read_ledger(self.journal)) + 1,
                policy=versions[0].name if len(rounds) == 1 else "the mixture of all rounds",
                versions=tuple({"name": one.name, "number": one.number, "sha256": one.sha256} for one in versions),
                limits=tested_limits(config, {}, 1),
                decoding={"temperature": config.policy.temperature, "top_p": 1.0, "max_tokens": 5},
                statement="the test's prompts",
            ),
        )
        ids = [f"{entered.number}-{place}" for place in range(DRAWS)]
        self.journal.once(f"{BATCH}0", lambda: {"draws": {"cost": ids}, "numbers": {"cost": [0.0] * DRAWS}})
        settle(config, self.folder, self.journal, line_of(self.journal, entered.number))

    def add_reference(self) -> None:
        version = self._version(0, "reference", seed=100)
        self.journal.add_version(version, "reference")
        self.journal.add_samples("baseline", self._answers(version, seed=100))

    def rollback(self) -> None:
        Releases(Store(self.journal.engine, self.journal.run_id)).rollback(by="the test")

    def close(self) -> None:
        self.journal.close()

    def _version(self, number: int, name: str, seed: int) -> PolicyVersion:
        model = self.model(seed)

        def fill(folder: Path) -> None:
            model.config.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

        path, sha256 = self.store.write_tensors(name, dict(model.state_dict()), fill=fill)
        return PolicyVersion(number, name, sha256, path)

    def _answers(self, version: PolicyVersion, seed: int) -> list[Response]:
        """Canaries: log-probabilities by transformers, so that vLLM is compared with somebody else."""
        model, found = self.model(seed), []
        for place, answer in enumerate(ANSWERS):
            ids = torch.tensor([[*PROMPT.token_ids, *answer]])
            with torch.no_grad():
                scores = model(ids).logits[0].log_softmax(-1)
            log_prob = sum(float(scores[len(PROMPT.token_ids) + i - 1, token]) for i, token in enumerate(answer))
            name = f"{version.name}-{place}"
            found.append(Response(name, PROMPT, answer, "an answer", version.number, seed=place, log_prob=log_prob))
        return found


def small_engine(
    store: ArtifactStore,
    reference: PolicyVersion,
    *,
    weights: Literal["adapters", "merged"] = "merged",
    adapter_rank: int = 0,
) -> EngineSettings:
    """Settings of an engine of a tiny model, without a run."""
    return EngineSettings(
        store=str(store.root),
        model=str(store.folder(reference.path)),
        dtype="float32",
        weights=weights,
        adapter_rank=adapter_rank,
        tolerance=1e-4,
        max_model_len=128,
        kv_cache_gib=0.1,
        gpu_memory=0.5,
        tensor_parallel=1,
        threads=1,
        template="tokenizer-or-plain",
        chat_template=None,
    )


def make_run(
    folder: Path,
    costs: tuple[float, ...] = (),
    *,
    max_model_len: int = 128,
    temperature: float = 1.0,
    **parts: Any,
) -> ServedRun:
    """A run folder with a reference and one round per estimated cost; close it in the end.

    `parts`: model and tokenizer of the ServedRun, where they are not the tiny random ones. Without them it is a copy of
    one that this process makes once.
    """
    settings = (f"rollout.max_model_len={max_model_len}", f"policy.temperature={temperature}")
    if parts:
        return _with_rounds(_opened(folder, settings, **parts), costs)
    shutil.copytree(_made_once(folder.name, costs, settings), folder)
    return _opened(folder, settings)


@cache
def _made_once(name: str, costs: tuple[float, ...], settings: tuple[str, ...]) -> Path:
    root = Path(tempfile.mkdtemp(prefix="pddpo-served-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    run = _with_rounds(_opened(root / name, settings), costs)
    run.close()
    return run.folder


def _opened(folder: Path, settings: tuple[str, ...], **parts: Any) -> ServedRun:
    config = load("text-world", ["rounds=64", "limits.cost.at_most=0.0", *settings])
    journal = Journal.open(
        folder / JOURNAL, folder.name, create=config.model_dump(mode="json"), fixed=config.fixed_settings()
    )
    return ServedRun(folder, journal, ArtifactStore(folder / ARTIFACTS), **parts)


def _with_rounds(run: ServedRun, costs: tuple[float, ...]) -> ServedRun:
    run.add_reference()
    for cost in costs:
        run.add_round(cost)
    return run
