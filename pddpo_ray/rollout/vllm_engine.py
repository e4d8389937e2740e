"""The vLLM engine inside the process that makes it: the same class serves notebooks, tests and Ray actors.

Weights change in place, version by version; the engine never restarts. Everything it says about a delivery it has seen
itself: the hash is taken over the tensors while they are consumed, because what vLLM keeps (packed layers) cannot be
read back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.config import VllmRollout
from pddpo_ray.contracts import Count, Draw
from pddpo_ray.errors import RunError
from pddpo_ray.records import Array, Decoding, Delivery, PolicyVersion, Prompt
from pddpo_ray.rollout.checkpoint import (
    check_version,
    fingerprint,
    load_tokenizer,
    model_tensors,
)
from pddpo_ray.rollout.vllm_internals import WORKER, end_engine
from pddpo_ray.rollout.vllm_start import prepare_process, vllm_options
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.text.renderer import stop_ids
from pddpo_ray.theory.seeds import counts, draw_seeds

NO_VERSION = -1
"""Version of an engine that holds no policy: dummy weights after the start, or a delivery that did not end well."""


class VllmSettings(VllmRollout):
    """The recipe's section, and what its engine has to know besides."""

    dtype: str = "float32"
    sleeps: bool = False
    """Whether the engine shares its GPU and has to be able to sleep."""
    temperature: float = 1.0
    """The policy's (`policy.temperature`)."""


class VllmEngine:
    """One vLLM engine; satisfies `pddpo_ray.contracts.RolloutEngine`.

    `model` is a folder with config.json and tokenizer, the weights need not exist yet. `store` is where
    `PolicyVersion.path` is found.

    >>> engine = VllmEngine("rollout-0", model=Path("reference"), store=store)  # doctest: +SKIP
    >>> engine.deliver(policy)  # doctest: +SKIP
    >>> engine.sample(prompts, seeds=[1, 2], n=4, decoding=Decoding())  # doctest: +SKIP
    """

    def __init__(self, name: str, model: Path, store: ArtifactStore, settings: VllmSettings | None = None) -> None:
        settings = settings or VllmSettings()
        prepare_process(settings.threads)
        self.name = name
        self._store = store
        self._model_tensors = model_tensors(Path(model))
        self._tokenizer = load_tokenizer(Path(model))
        self.tokenizer = fingerprint(self._tokenizer)
        self._stop_ids = list(stop_ids(self._tokenizer, Path(model)))
        self._version = NO_VERSION
        self._sleeps = settings.sleeps
        self.llm = _start_llm(Path(model), settings, self.start_options())
        self.llm.collective_rpc("divide_logits", args=(settings.temperature,))

    def start_options(self) -> dict[str, Any]:
        """What this kind of engine adds to vLLM's arguments."""
        return dict(WORKER)

    def sleep(self) -> None:
        """Give the GPU's memory away; the weights wait in the host's memory. Nothing happens on a CPU."""
        if self._sleeps:
            self.llm.sleep(level=1)

    def wake(self) -> None:
        """Take the memory again. The delivery check that comes with every version covers what came back."""
        if self._sleeps:
            self.llm.wake_up()

    @property
    def version(self) -> int:
        return self._version

    def deliver(self, policy: PolicyVersion) -> Delivery:
        """Check the stored tensors against the model, load them in place and state what was loaded.

        Raises RunError, and holds no version afterwards, when names, shapes, count or the tokenizer do not fit.
        """
        begin = time.monotonic()
        folder = self._store.folder(policy.path)
        self._version = NO_VERSION
        check_version(self._model_tensors, self.tokenizer, folder, engine=self.name, version=policy.number)
        # Each worker of an engine reads for itself: tensors would not travel to its process.
        sha256, count = self.llm.collective_rpc("reload_version", args=(str(folder),))[0]
        if self._model_tensors.tied:
            self.llm.collective_rpc("take_heads_over")
        return self._adopt_version(policy, sha256, count, begin)

    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding) -> list[list[Draw]]:
        """n answers per prompt. A draw follows from weights, prompt, seed and decoding alone.

        On GPUs its neighbours in a batch decide over rounding too, unless vLLM is told otherwise
        (VLLM_BATCH_INVARIANT=1 in the environment, which costs speed and wants a card of compute capability 9.0).
        Raises RunError when the engine holds no version or an answer is missing.
        """
        from vllm import SamplingParams

        self._demand_version()
        requests, parameters, each = [], [], counts(n, len(prompts))
        for prompt, seed, count in zip(prompts, seeds, each, strict=True):
            for draw_seed in draw_seeds(seed, count):
                requests.append({"prompt_token_ids": list(prompt.token_ids)})
                parameters.append(
                    SamplingParams(
                        temperature=decoding.temperature,
                        top_p=decoding.top_p,
                        max_tokens=decoding.max_tokens,
                        seed=draw_seed,
                        stop_token_ids=self._stop_ids,
                        logprobs=0,
                        detokenize=False,
                    )
                )
        outputs = self._generate(requests, parameters) if requests else []
        if len(outputs) != len(requests):
            raise RunError(f"engine {self.name} returned {len(outputs)} answers for {len(requests)} requests")
        draws = iter([self._draw(output.outputs[0]) for output in outputs])
        return [[next(draws) for _ in range(count)] for count in each]

    def score(self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]) -> Array:
        """Sum log-probability of each answer under the loaded version. -> [n]"""
        self._demand_version()
        texts = [(prompt.token_ids, answer) for prompt, answer in zip(prompts, answers, strict=True)]
        return np.array(log_probs_of(self._generate, texts))

    def close(self) -> None:
        """Release the engine's memory; the object is of no use afterwards."""
        self._version = NO_VERSION
        end_engine(self.llm)

    def _adopt_version(self, policy: PolicyVersion, sha256: str, tensors: int, began: float) -> Delivery:
        """From here on the engine holds the version. RunError, and it holds none, while a request is running."""
        # Keys and values in the cache were computed with the old weights.
        if not self.llm.reset_prefix_cache():
            raise RunError(f"engine {self.name} could not clear its prefix cache; requests are still running")
        self._version = policy.number
        self.llm.update_weight_version(str(policy.number))
        version = int(self.llm.get_weight_version())
        return Delivery(self.name, version, sha256, tensors, time.monotonic() - began, self.tokenizer)

    def _generate(self, requests: list[Any], parameters: Any) -> Any:
        return self.llm.generate(requests, parameters, use_tqdm=False)

    def _demand_version(self) -> None:
        if self._version == NO_VERSION:
            raise RunError(f"engine {self.name} holds no policy: deliver a version before sampling from it")

    def _draw(self, completion: Any) -> Draw:
        token_ids = tuple(int(token) for token in completion.token_ids)
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return token_ids, text, float(completion.cumulative_logprob)


def _start_llm(model: Path, settings: VllmSettings, further: dict[str, Any]) -> Any:
    import torch
    from vllm import LLM

    options = vllm_options(model, settings, settings.dtype) | {"max_num_seqs": settings.max_sequences}
    if torch.cuda.is_available():
        options["enable_sleep_mode"] = settings.sleeps
    else:
        # A prompt that is cut between two steps makes vLLM rewind its generator, which a CPU generator cannot do.
        options["enable_chunked_prefill"] = False
    return LLM(**{"load_format": "dummy", **options, **further})


def log_probs_of(
    generate: Callable[[list[Any], Any], Any], texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> list[float]:
    """Sum log-probability of each answer to its prompt, both as token ids, from vLLM's `generate`. -> [n]"""
    from vllm import SamplingParams

    requests = [{"prompt_token_ids": [*prompt, *answer]} for prompt, answer in texts]
    parameters = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    outputs = generate(requests, parameters) if requests else []
    return [prompt_log_prob(output, len(prompt)) for (prompt, _), output in zip(texts, outputs, strict=True)]


def prompt_log_prob(output: Any, prompt_tokens: int) -> float:
    """Sum log-probability of what follows the prompt's tokens in a request that asked for `prompt_logprobs`."""
    tokens = output.prompt_token_ids[prompt_tokens:]
    entries = output.prompt_logprobs[prompt_tokens:]
    return float(sum(entry[token].logprob for token, entry in zip(tokens, entries, strict=True)))
