"""Runs every step of a training run once for a given model, with the run's own parts.

load    the checkpoint, as the run's reference in a store of its own
render  a question as the model's own template and tokenizer see it
deliver to each engine, whose log-probabilities of a few answers have to be the trainer's
train   one small step of adapters (of all weights where a model takes none)
merge   the trained version, delivered to each engine and checked in the same way
export  merged weights and tokenizer to a plain folder
reload  that folder by transformers alone: the same log-probabilities
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pddpo_ray.contracts import FitCommand, FitSettings, RolloutEngine, Start
from pddpo_ray.errors import PddpoError, RunError, UserError
from pddpo_ray.records import Array, Message, Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.rollout.checkpoint import fingerprint, load_tokenizer, model_tensors, tokenizer_fingerprint
from pddpo_ray.rollout.delivery_check import FLOAT32_TOLERANCE, check_canaries, verify
from pddpo_ray.rollout.transformers_engine import TransformersEngine
from pddpo_ray.rollout.vllm_engine import VllmEngine, VllmSettings
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.checkpoints import checkpoint_folder, checkpoint_problem, unused_settings
from pddpo_ray.text.renderer import Renderer
from pddpo_ray.text.templates import as_dicts
from pddpo_ray.training.local import LocalTrainer, load_trainer, store_reference
from pddpo_ray.training.models.lora import load_lora_trainer

EngineName = Literal["transformers", "vllm"]
QUESTION = "How do I keep bread fresh for 3 days?"
ANSWERS = (
    "Wrap it in a cloth, and keep it in a box that lets some air through.",
    "Put it in the freezer in slices; toast them one by one.",
    "Leave it open on the table, near the window.",
    "I do not know. Ask 12 bakers!",
)
RANK, ALPHA = 4, 8.0
LEARNING_RATE = 1e-3
MOVED = 1e-3
"""Nats by which one step has to move some answer: far above rounding, far below what the step does."""


@dataclass(frozen=True)
class Step:
    """One step's outcome; `seen` is what was seen, or why it failed."""

    step: str
    ok: bool
    seen: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def steps_of(source: str, engines: Sequence[EngineName]) -> Iterator[Step]:
    """Each step's outcome for a model (folder or hub name), as it ends; the first failure is the last."""
    with tempfile.TemporaryDirectory(prefix="pddpo-model-") as folder:
        way = _StepState(source, Path(folder))
        order: list[tuple[str, Callable[[], str]]] = [("load", way.load), ("render", way.render)]
        order += [(f"deliver to {name}", partial(way.deliver, name)) for name in engines]
        order += [("train", way.train)]
        order += [(f"merge into {name}", partial(way.merge, name)) for name in engines]
        order += [("export", way.export), ("reload", way.reload)]
        try:
            for name, act in order:
                try:
                    yield Step(name, True, act())
                except Exception as error:
                    yield Step(name, False, _reason(error))
                    return
        finally:
            way.close()


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no reason given"
    return text if isinstance(error, PddpoError) else f"{type(error).__name__}: {text}"


class _StepState:
    """The state that one step leaves to the next."""

    def __init__(self, source: str, folder: Path) -> None:
        self._source, self._folder = source, folder
        self._store = ArtifactStore(folder / "artifacts")
        self._engines: dict[EngineName, RolloutEngine] = {}
        self.reference: PolicyVersion
        self.policy: PolicyVersion
        self._trainer: LocalTrainer
        self._renderer: Renderer
        self._canaries: list[Response] = []

    def load(self) -> str:
        folder = checkpoint_folder(self._source)
        if problem := checkpoint_problem(folder):
            raise UserError(f"{self._source} {problem}")
        self.reference = store_reference(self._store, folder)
        tensors = model_tensors(self._base)
        count = sum(int(np.prod(shape)) for shape in tensors.shapes.values())
        unused = unused_settings(folder)
        left = f"; its generation settings are not used: {', '.join(unused)}" if unused else ""
        return f"{count:,} parameters, {'tied' if tensors.tied else 'untied'} embeddings, as float32{left}"

    @property
    def _base(self) -> Path:
        return self._store.folder(self.reference.path)

    def render(self) -> str:
        tokenizer = load_tokenizer(self._base)
        renderer, turns = Renderer(tokenizer, "tokenizer-or-plain", self._base), [Message("user", QUESTION)]
        self._renderer = renderer
        prompt = Prompt("question", renderer.prompt_ids(turns), renderer.text(turns))
        if tokenizer.chat_template:
            form = {"chat_template": renderer.template, "add_generation_prompt": True, "return_dict": True}
            encoding = tokenizer.apply_chat_template(as_dicts(turns), **form)
            if tuple(encoding["input_ids"]) != prompt.token_ids:
                raise RunError("the ids of the rendered question are not those of the tokenizer's own chat template")
        for index, answer in enumerate(ANSWERS):
            words = renderer.answer_ids(turns, answer)
            self._canaries.append(Response(f"answer-{index}", prompt, words, answer, 0, 0))
        how = "its chat template" if tokenizer.chat_template else "no chat template, so plain"
        ends = ", ".join(tokenizer.convert_ids_to_tokens(list(renderer.stop_ids)))
        findings = "".join(f"; {finding}" for finding in renderer.findings())
        return f"a question of {len(prompt.token_ids)} tokens, {how}; answers end with {ends}{findings}"

    def deliver(self, name: EngineName) -> str:
        return self._deliver_and_verify(name, self.reference)

    def merge(self, name: EngineName) -> str:
        return self._deliver_and_verify(name, self.policy)

    def _deliver_and_verify(self, name: EngineName, policy: PolicyVersion) -> str:
        if name not in self._engines:
            self._engines[name] = _engine(name, self._base, self._store, self._canaries)
        engine = self._engines[name]
        tokenizer = tokenizer_fingerprint(self._base)
        expected = self._trainer_log_probs(policy)
        check = verify(engine, engine.deliver(policy), policy, self._canaries, expected, tokenizer=tokenizer)
        return f"{check.tensors} tensors, log-probabilities differ by {check.canary_difference:.1e} a token"

    def _trainer_log_probs(self, policy: PolicyVersion) -> Array:
        if not hasattr(self, "_trainer"):
            self._trainer, self._trainer_description = _trainer(self._base, self._store, self.reference)
        return self._trainer.log_probs(policy, self._canaries)

    def train(self) -> str:
        before = self._trainer_log_probs(self.reference)
        answers = [canary.token_ids for canary in self._canaries]
        question = self._canaries[0].prompt.token_ids
        rows = (PairRow("a", question, answers[0], answers[2]), PairRow("b", question, answers[1], answers[3]))
        no_support = 0.0
        settings = FitSettings(
            steps=1, learning_rate=LEARNING_RATE, batch_pairs=2, warmup=0.0, schedule="constant", support=no_support
        )
        objective = Objective("reward", self.reference, 0.1)
        command = FitCommand(1, Start(self.reference), objective, rows, settings, 1, "policy-1")
        self.policy = self._trainer.execute(command).version
        moved = float(np.abs(self._trainer_log_probs(self.policy) - before).max())
        if not moved > MOVED:
            raise RunError(f"one step moved no answer by more than {moved:.1e} nats: nothing was learned")
        return f"{self._trainer_description}; one step moved an answer by {moved:.3f} nats"

    def export(self) -> str:
        from transformers import AutoModelForCausalLM, GenerationConfig

        model = AutoModelForCausalLM.from_pretrained(self._store.folder(self.policy.path))
        model.generation_config = GenerationConfig(**self._renderer.sampling(1.0))
        model.save_pretrained(self._export_folder)
        load_tokenizer(self._base).save_pretrained(self._export_folder)
        size = sum(file.stat().st_size for file in self._export_folder.iterdir())
        return f"a plain folder of {size / 2**20:,.1f} MiB"

    @property
    def _export_folder(self) -> Path:
        return self._folder / "exported"

    def reload(self) -> str:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self._export_folder).eval()
        sums = []
        for canary in self._canaries:
            ids = torch.tensor([[*canary.prompt.token_ids, *canary.token_ids]])
            with torch.no_grad():
                table = torch.log_softmax(model(ids).logits[0, :-1].float(), dim=-1).double()
            chosen = table.gather(1, ids[0, 1:, None])[:, 0]
            sums.append(float(chosen[len(canary.prompt.token_ids) - 1 :].sum()))
        lengths = [len(canary.token_ids) for canary in self._canaries]
        difference = check_canaries(
            np.array(sums),
            self._trainer_log_probs(self.policy),
            lengths,
            FLOAT32_TOLERANCE,
            subject="the exported model: ",
            stop="",
        )
        if fingerprint(load_tokenizer(self._export_folder)) != tokenizer_fingerprint(self._base):
            raise RunError("the exported tokenizer gives other token ids than the model's own")
        return f"log-probabilities differ by {difference:.1e} a token, the same tokenizer"

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


def _trainer(folder: Path, store: ArtifactStore, reference: PolicyVersion) -> tuple[LocalTrainer, str]:
    """A trainer of adapters, or of all weights for a model that takes none; and which of the two."""
    try:
        return load_lora_trainer(folder, store, reference, rank=RANK, alpha=ALPHA), f"adapters of rank {RANK}"
    except UserError as error:
        return load_trainer(folder, store, reference), f"all weights ({error})"


def _engine(name: EngineName, folder: Path, store: ArtifactStore, canaries: Sequence[Response]) -> RolloutEngine:
    if name == "transformers":
        return TransformersEngine(name, folder, store)
    longest = max(len(canary.prompt.token_ids) + len(canary.token_ids) for canary in canaries)
    return VllmEngine(name, folder, store, VllmSettings(max_model_len=longest + 1, kv_cache_gib=0.5))
