"""C4, G5: sampling with the rollout's vLLM engine against transformers' `generate`, and through its Ray actor.

The same weights, prompts and number of tokens on all sides. The tokenizer's end mark lies outside the vocabulary, so no
answer ends early and everybody makes the same number of tokens. Before anything is timed, a plain forward pass of the
model that `generate` uses scores the engine's own answers and must find the log-probabilities that the engine states;
the actor's answers must be the bare engine's, token by token.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.device import wall_clock
from bench.limits import sampling_roofline
from bench.ratio import Clock, Ratio, interleaved, of_pairs
from bench.workload import Shape, endless, prompts_of
from pddpo_ray.contracts import Count, RolloutEngine
from pddpo_ray.records import Array, Decoding, Delivery, PolicyVersion, Prompt
from pddpo_ray.rollout.vllm_engine import VllmEngine, VllmSettings
from pddpo_ray.rollout.vllm_start import prepare_process
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.seeds import counts
from pddpo_ray.training.local import store_reference
from pddpo_ray.training.passes.log_probs import ResponseScorer, score_texts


@dataclass(frozen=True)
class Setting:
    """The default is the `micro` model of the other rows."""

    shape: Shape = field(default_factory=Shape)
    tokens: int = 48
    """Of every answer."""

    @property
    def vocabulary(self) -> int:
        return self.shape.vocabulary

    def model(self) -> Any:
        model = self.shape.build(0)
        # with `endless` as its tokenizer: nothing ends an answer, and nobody has to look for an end
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        return model


def run(repeats: int = 5, batches: Sequence[int] = (128, 16), setting: Setting | None = None) -> list[Ratio]:
    """CPU seconds of `generate` over those of vLLM, one thread, for every batch size."""
    setting = setting or Setting()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        model = setting.model()
        policy = stored(model, Path(place))
        engine = engine_in(Path(place))
        engine.deliver(policy)
        found = []
        for batch in batches:
            name, floor = ("C4", 1.25) if batch >= 128 else (f"C4-{batch}", None)
            found.append(against(generate, engine, model, setting, batch, repeats, name, floor=floor))
        return found


def run_on_device(
    setting: Setting, peer: Peer, repeats: int = 5, name: str = "G5", *, batch: int = 256, floor: float | None = None
) -> Ratio:
    """Wall seconds of `generate` (static cache) or of transformers' continuous batching over those of vLLM.

    The roofline is what reading all weights and the cache allows at the mean length of a text.
    """
    shape = setting.shape
    with tempfile.TemporaryDirectory() as place:
        model = setting.model()
        policy = stored(model, Path(place))
        engine = engine_in(Path(place), VllmSettings(dtype=shape.number_type, max_model_len=512, max_sequences=batch))
        engine.deliver(policy)
        clock = wall_clock(shape.device)
        found = against(peer, engine, model, setting, batch, repeats, name, floor=floor, clock=clock)
    lengths = [len(prompt.token_ids) for prompt in prompts_of(shape.vocabulary, batch)]
    limit = sampling_roofline(shape, batch, int(np.mean(lengths)) + setting.tokens // 2)
    return found.noting({"ours of the roofline": found.details["ours tokens/s"] / limit})


def run_actor(repeats: int = 5, batch: int = 128, setting: Setting | None = None) -> list[Ratio]:
    """CPU seconds of an engine in this process over those of one behind a Ray actor, its own and the caller's."""
    setting = setting or Setting()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        policy = stored(setting.model(), Path(place))
        engine = engine_in(Path(place))
        engine.deliver(policy)
        calls = Calls(setting.vocabulary, batch)
        return [through_an_actor(engine, policy, Path(place), calls, setting.tokens, repeats)]


def stored(model: Any, folder: Path) -> PolicyVersion:
    """The model and its tokenizer as a folder in Hugging Face layout, and as version 0 of a store beside it."""
    model.save_pretrained(folder / "model")
    endless(model.config.vocab_size).save_pretrained(folder / "model")
    return store_reference(ArtifactStore(folder / "artifacts"), folder / "model")


def engine_in(folder: Path, settings: VllmSettings | None = None) -> RolloutEngine:
    """A vLLM engine of the calling process for the model in the folder; it holds no version yet."""
    prepare_process(1)
    return VllmEngine("bench", folder / "model", ArtifactStore(folder / "artifacts"), settings or VllmSettings())


def generate(model: Any, prompts: list[Prompt], tokens: int) -> list[tuple[int, ...]]:
    """transformers' `generate` on one padded batch. -> one answer per prompt"""
    ids = {name: tensor.to(model.device) for name, tensor in padded_left(prompts).items()}
    # the static cache is what lets transformers compile a step on a GPU; on a CPU it only costs
    options = {"cache_implementation": "static"} if model.device.type == "cuda" else {}
    with torch.no_grad():
        made = model.generate(**ids, do_sample=True, top_k=0, max_new_tokens=tokens, pad_token_id=0, **options)
    return [tuple(answer) for answer in made[:, ids["input_ids"].shape[1] :].tolist()]


def continuous(model: Any, prompts: list[Prompt], tokens: int) -> list[tuple[int, ...]]:
    """transformers' continuous batching, which needs a GPU. -> one answer per prompt, in any order"""
    from transformers import GenerationConfig

    settings = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=tokens, pad_token_id=0, eos_token_id=-1)
    made = model.generate_batch([list(prompt.token_ids) for prompt in prompts], generation_config=settings)
    return [tuple(answer.generated_tokens) for answer in made.values()]


Peer = Callable[[Any, list[Prompt], int], list[tuple[int, ...]]]
"""Samples one answer per prompt from a model, so many tokens each."""
PEERS: Mapping[Peer, str] = {generate: "generate", continuous: "continuous batching"}


def against(
    peer: Peer,
    engine: RolloutEngine,
    model: Any,
    setting: Setting,
    batch: int,
    repeats: int,
    name: str,
    *,
    floor: float | None = None,
    clock: Clock | None = None,
) -> Ratio:
    """One batch of answers, one per prompt; both sides see new prompts at every call, the same ones in turn."""
    tokens, vocabulary = setting.tokens, setting.vocabulary
    calls = Calls(vocabulary, batch)

    def theirs() -> int:
        return sum(map(len, peer(model, calls.prompts("theirs"), tokens)))

    def ours() -> int:
        return sum(map(len, answers(engine, calls.prompts("ours"), tokens)))

    tolerance = setting.shape.tolerance
    assert_same_log_probs(engine, model, prompts_of(vocabulary, batch), Decoding(max_tokens=tokens), tolerance)
    made = {theirs(), ours()}
    if made != {batch * tokens}:
        raise RuntimeError(f"the two sides make {made} tokens, {batch * tokens} were asked for")
    return interleaved(
        name,
        f"sampling {batch} answers of {tokens} tokens: transformers {PEERS[peer]} / ours with vLLM",
        theirs,
        ours,
        repeats,
        floor=floor,
        unit=("tokens", batch * tokens),
        clock=clock,
    )


@dataclass(frozen=True)
class Calls:
    """Prompts for call after call of each side: a kept prefix of an earlier call is of no use."""

    vocabulary: int
    batch: int
    made: Counter[str] = field(default_factory=Counter)

    def prompts(self, side: str) -> list[Prompt]:
        self.made[side] += 1
        return prompts_of(self.vocabulary, self.batch, self.made[side])


def answers(engine: RolloutEngine, prompts: list[Prompt], tokens: int) -> list[tuple[int, ...]]:
    """One answer per prompt."""
    drawn = engine.sample(prompts, range(len(prompts)), 1, Decoding(max_tokens=tokens))
    return [draws[0][0] for draws in drawn]


def assert_same_log_probs(
    engine: RolloutEngine, model: Any, prompts: list[Prompt], decoding: Decoding, tolerance: float
) -> None:
    """Raises RuntimeError if the model finds other log-probabilities than the engine states for its own answers."""
    draws = [answers[0] for answers in engine.sample(prompts, range(len(prompts)), 1, decoding)]
    texts = [(prompt.token_ids, ids) for prompt, (ids, _, _) in zip(prompts, draws, strict=True)]
    theirs, ours = score_texts(ResponseScorer(model, "plain"), texts), [log_prob for _, _, log_prob in draws]
    if not np.allclose(theirs, ours, rtol=tolerance):
        raise RuntimeError(f"the two sides do not compute the same: {theirs} and {ours}")


def padded_left(prompts: list[Prompt]) -> dict[str, torch.Tensor]:
    """A batch as `generate` wants it."""
    longest = max(len(prompt.token_ids) for prompt in prompts)
    ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
        mask[row, longest - len(prompt.token_ids) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def through_an_actor(
    engine: RolloutEngine, policy: PolicyVersion, folder: Path, calls: Calls, tokens: int, repeats: int
) -> Ratio:
    """The same requests to the bare engine of this process and to one behind a Ray actor."""
    from actors.engine_group import RolloutHandle
    from actors.session import ray_session

    with ray_session("pddpo-bench", cpus=2):
        actor = RolloutHandle("bench", partial(engine_in, folder))
        actor.wait_ready()
        actor.deliver(policy)
        sides = {"bare": engine, "actor": actor}

        def side(name: str) -> list[tuple[int, ...]]:
            return answers(sides[name], calls.prompts(name), tokens)

        if side("bare") != side("actor"):
            raise RuntimeError("the actor's answers are not those of the bare engine")
        clocks = Clocks(actor.pid())
        pairs = []
        for _ in range(repeats):
            first, second, third, fourth = (
                clocks.seconds(partial(side, name)) for name in ("bare", "actor", "actor", "bare")
            )
            pairs.append((first + fourth, second + third))
        actor.close()
        handed = hand_over(policy, calls.prompts("bare"), tokens)
    cpu = [(float(bare[0]), float(through[0])) for bare, through in pairs]
    details = {
        "bare engine s": float(np.median([bare[0] for bare, _ in pairs])) / 2,
        "hand-over alone s": handed,
        "wall, actor / bare": float(np.median([through[1] / bare[1] for bare, through in pairs])),
    }
    what = f"sampling {calls.batch} answers of {tokens} tokens: bare engine / through its Ray actor"
    # the goal is an overhead below 5 %
    return of_pairs("C4-actor", what, cpu, floor=1 / 1.05, details=details)


def hand_over(policy: PolicyVersion, prompts: list[Prompt], tokens: int, calls: int = 50) -> float:
    """CPU seconds of one call of such a batch through an actor whose engine has its answers ready."""
    from actors.engine_group import RolloutHandle

    actor = RolloutHandle("ready", partial(ReadyEngine, tokens))
    actor.wait_ready()
    actor.deliver(policy)

    def side() -> None:
        for _ in range(calls):
            answers(actor, prompts, tokens)

    side()
    spent = Clocks(actor.pid()).seconds(side)
    actor.close()
    return float(spent[0]) / calls


class ReadyEngine:
    """An engine that does no work: what is left of a call is the way to it and back."""

    def __init__(self, tokens: int) -> None:
        self.name = "ready"
        self.version = -1
        self._tokens = tokens

    def deliver(self, policy: PolicyVersion) -> Delivery:
        self.version = policy.number
        return Delivery(self.name, policy.number, policy.sha256, 0, 0.0)

    def sample(
        self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding
    ) -> list[list[tuple[tuple[int, ...], str, float]]]:
        answer = (tuple(range(self._tokens)), "word " * self._tokens, 0.0)
        return [[answer] * count for count in counts(n, len(prompts))]

    def score(self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]) -> Array:
        return np.zeros(len(answers))

    def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True)
class Clocks:
    """CPU seconds of this process and one other, and wall seconds."""

    other: int

    def seconds(self, side: Callable[[], object]) -> np.ndarray:
        """-> [CPU, wall]"""
        gc.collect()
        before = self._now()
        side()
        return self._now() - before

    def _now(self) -> np.ndarray:
        import psutil

        times = psutil.Process(self.other).cpu_times()
        return np.array([time.process_time() + times.user + times.system, time.perf_counter()])
