"""Models that are evaluated: a folder or hub name in Hugging Face layout, or a policy of a run.

sacpo=line-corporation/sacpo        a name of one's own before it
runs/demo                           the last policy of a run
runs/demo@reference                 its reference;  runs/demo@policy-3: the policy of a round
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pddpo_ray.contracts import RolloutEngine
from pddpo_ray.errors import UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.records import Array, Decoding, Message, PolicyVersion, Prompt
from pddpo_ray.rollout.checkpoint import load_tokenizer, model_tensors, stored_shapes
from pddpo_ray.rollout.transformers_engine import TransformersEngine
from pddpo_ray.rollout.vllm_engine import VllmEngine, VllmSettings
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.checkpoints import checkpoint_folder, files_now
from pddpo_ray.storage.whole_files import ARTIFACTS, JOURNAL
from pddpo_ray.text.renderer import Renderer
from pddpo_ray.text.templates import for_reading
from pddpo_ray.training.local import store_reference

LAST = "last"


@dataclass(frozen=True)
class Model:
    """A model's name in tables, and its source as the user gave it."""

    name: str
    source: str


@dataclass(frozen=True)
class Reply:
    """An answer as it was drawn; `log_prob` is the sum over its tokens under the policy."""

    token_ids: tuple[int, ...]
    text: str
    log_prob: float


def parse_model(text: str) -> Model:
    """`name=source`, or a source whose last part becomes the name."""
    name, equals, source = text.partition("=")
    if not equals:
        return Model(Path(text.rstrip("/")).name, text)
    if not name or not source:
        raise UserError(f"{text}: write a model as NAME=PATH, or as a path alone")
    return Model(name, source)


def model_folder(source: str) -> Path:
    """Folder with weights, configuration and tokenizer. UserError if there is none."""
    path, _, version = source.partition("@")
    if (Path(path) / JOURNAL).is_file():
        return _of_run(Path(path).absolute(), version or LAST)
    folder = checkpoint_folder(source)
    if not (folder / "config.json").is_file():
        raise UserError(f"{source} holds no model (config.json is missing): name a model folder, a hub name or a run")
    return folder


def model_now(source: str) -> list[Any]:
    """The source and the state of its files now: a run's last policy and a folder's weights can change."""
    local = Path(source.partition("@")[0]).is_dir()
    return [source, *files_now(model_folder(source))] if local else [source]


def policy_temperature(models: Sequence[Model]) -> float:
    """`policy.temperature` of the runs among the models, 1.0 where there is none. UserError where they differ."""
    temperatures: dict[float, str] = {}
    for model in models:
        run = Path(model.source.partition("@")[0])
        if (run / JOURNAL).is_file():
            with open_folder(run.absolute()) as journal:
                temperatures[(journal.recipe.get("policy") or {}).get("temperature", 1.0)] = model.name
    if len(temperatures) > 1:
        text = ", ".join(f"{name} {temperature:g}" for temperature, name in temperatures.items())
        raise UserError(f"the runs have policies at different temperatures ({text}): give one, --policy-temperature")
    return next(iter(temperatures), 1.0)


def _of_run(run: Path, version: str) -> Path:
    with open_folder(run) as journal:
        entries = {entry.version.name: entry.version for entry in journal.versions()}
        policies = journal.policies
    chosen = entries.get(version) if version != LAST else (policies[-1] if policies else None)
    if chosen is None:
        raise UserError(f"run {run.name} has no {version}; it has {', '.join(entries) or 'no versions yet'}")
    folder = ArtifactStore(run / ARTIFACTS).folder(chosen.path)
    if not (folder / "config.json").is_file():
        raise UserError(f"{run.name}@{version} is no language model: `pddpo evaluate {run}` evaluates it")
    return folder


def has_own_names(folder: Path) -> bool:
    """Whether the tensors in a folder have the names that their model gives them, which an engine asks for.

    GPT-2's makers left out the first part of each; transformers corrects that when it loads.
    """
    model, stored = model_tensors(folder), set(stored_shapes(folder))
    return set(model.shapes) <= stored <= set(model.shapes) | model.tied


def in_own_names(folder: Path, aside: Path, dtype: str) -> Path:
    """A copy below `aside` whose tensors have their model's names."""
    store = ArtifactStore(aside)
    return store.folder(store_reference(store, folder, dtype=dtype).path)


class Speaker:
    """One loaded model that answers questions and scores texts; `close` frees it."""

    def __init__(
        self,
        model: Model,
        *,
        template: str,
        engine: Literal["transformers", "vllm"] = "transformers",
        dtype: str = "float32",
        max_model_len: int = 2048,
        temperature: float = 1.0,
    ) -> None:
        folder = model_folder(model.source).absolute()
        self._aside: TemporaryDirectory[str] | None = None
        if not has_own_names(folder):
            self._aside = TemporaryDirectory(prefix="pddpo-evaluate-")
            folder = in_own_names(folder, Path(self._aside.name), dtype)
        self._tokenizer = load_tokenizer(folder)
        self.renderer = Renderer(self._tokenizer, template, folder)
        # The folder as it stands is the version: its parent is the store, and taking it over checks every tensor.
        self._engine = _engine(engine, folder, dtype, max_model_len, temperature)
        self._engine.deliver(PolicyVersion(0, model.name, "", folder.name))

    def prompt(self, messages: Sequence[Message], name: str = "") -> Prompt:
        """A question as the model's own template and tokenizer see it."""
        return Prompt(name, self.renderer.prompt_ids(messages), for_reading(messages), tuple(messages))

    def answer(
        self, questions: Sequence[Sequence[Message]], seeds: Sequence[int], decoding: Decoding, each: int = 1
    ) -> list[list[Reply]]:
        """`each` answers per question."""
        drawn = self._engine.sample([self.prompt(question) for question in questions], seeds, each, decoding)
        return [
            [Reply(tuple(ids), self.renderer.without_lead(question, text), value) for ids, text, value in answers]
            for question, answers in zip(questions, drawn, strict=True)
        ]

    def score(self, questions: Sequence[Sequence[Message]], answers: Sequence[str]) -> Array:
        """log-probability of each text as an answer, the end of its turn included. -> [n]"""
        ids = [self.renderer.answer_ids(question, answer) for question, answer in zip(questions, answers, strict=True)]
        return self.score_ids(questions, ids)

    def score_ids(self, questions: Sequence[Sequence[Message]], answers: Sequence[tuple[int, ...]]) -> Array:
        """The same for answers in this model's tokens. -> [n]"""
        return self._engine.score([self.prompt(question) for question in questions], answers)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Two models with one vocabulary can score each other's tokens."""
        words: dict[str, int] = self._tokenizer.get_vocab()
        return words

    def close(self) -> None:
        self._engine.close()
        if self._aside is not None:
            self._aside.cleanup()


def _engine(kind: str, folder: Path, dtype: str, max_model_len: int, temperature: float) -> RolloutEngine:
    store = ArtifactStore(folder.parent)
    if kind == "vllm":
        settings = VllmSettings(dtype=dtype, max_model_len=max_model_len, temperature=temperature)
        return VllmEngine("evaluate", folder, store, settings)
    return TransformersEngine("evaluate", folder, store, dtype=dtype, temperature=temperature)
