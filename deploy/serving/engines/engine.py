"""One vLLM engine with vLLM's own OpenAI layer, checked to speak with the policy that was asked for.

Merged weights: the engine holds one policy; a gate batches requests by policy and the next one's weights are loaded in
place in between. Adapters: reference and policies live on one base at once, each adapter under a name of its own.

Before a policy's first token is given out, the stored file's hash is compared with the journal's, and after every load
the log-probabilities of a few answers with those that the run itself journalled. Every answer's own weight version, as
vLLM counted it token by token, is compared with the one that was meant.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray

from deploy.serving.engines.engine_lock import Gate
from deploy.serving.request_fields import Kind
from deploy.serving.settings import EngineSettings
from deploy.serving.tracing import TRACEPARENT, let_engine_trace
from pddpo_ray.errors import RunError
from pddpo_ray.rollout.checkpoint import (
    check_version,
    load_tokenizer,
    model_tensors,
    stored_tensors,
    tokenizer_fingerprint,
)
from pddpo_ray.rollout.delivery_check import check_canaries, check_hash
from pddpo_ray.rollout.vllm_engine import prompt_log_prob
from pddpo_ray.rollout.vllm_internals import WORKER, OpenAiLayer, error_reply, ray_metrics, reload_weights, status_of
from pddpo_ray.rollout.vllm_native import adapter_options
from pddpo_ray.rollout.vllm_start import prepare_process, vllm_options
from pddpo_ray.serving.catalog import REFERENCE, ServedPolicy
from pddpo_ray.storage.adapters import ADAPTER
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import TensorStream
from pddpo_ray.text.renderer import stop_ids
from pddpo_ray.text.templates import template_named

logger = logging.getLogger("deploy.serving.engines.engine")

TokensCall = Literal["tokenize", "detokenize"]
TOKENS_FIELDS = ("prompt", "messages", "tokens", "add_special_tokens", "add_generation_prompt", "return_token_strs")
Piece = dict[str, Any] | str
"""First {"status": ..., "body": ..., "room": tokens that the prompt leaves for the answer, at most those asked for}; a
stream continues with lines of server-sent events."""
LENGTHS: ContextVar[list[int]] = ContextVar("LENGTHS")
"""Lengths that vLLM gave to the answers of the request under way: it cuts them to what the prompt leaves."""

BASE = "base"
STOP = " Nothing is served from it."
VERIFIED_FOR_S = 10.0
"""A verified answer younger than this is as good as a health check of its own."""


class EngineGone(Exception):
    """The engine that was asked is dead; another one is being started."""


class PolicyEngine:
    """Answers requests under a given policy. `start` makes one."""

    def __init__(
        self, settings: EngineSettings, llm: Any, openai: OpenAiLayer, stop: tuple[int, ...], json_mode: bool
    ) -> None:
        self._settings, self._llm, self._openai = settings, llm, openai
        self._stop_ids, self._json_mode = stop, json_mode
        self._store = ArtifactStore(settings.store)
        self._shapes = model_tensors(Path(settings.model))
        self._tokenizer = tokenizer_fingerprint(Path(settings.model))
        self._checked_hashes: set[str] = set()
        self._adapters: dict[str, Any] = {}
        self._adapter_lock = asyncio.Lock()
        self.gate = Gate(self._load)

    @classmethod
    async def start(cls, settings: EngineSettings) -> PolicyEngine:
        """Starts vLLM (tens of seconds). Call it where the engine's event loop runs."""
        prepare_process(settings.threads)
        if settings.traces:
            let_engine_trace("pddpo-engine")
        # In a thread: requests are told meanwhile that there is no engine.
        llm = await asyncio.to_thread(watched_engine, settings)
        await llm.collective_rpc("divide_logits", args=(settings.temperature,))
        tokenizer = load_tokenizer(Path(settings.model))
        template = settings.chat_template or template_named(settings.template, tokenizer)
        openai = OpenAiLayer(llm, BASE, settings.model, template)
        return cls(settings, llm, openai, stop_ids(tokenizer, Path(settings.model)), writes_json(tokenizer))

    def close(self) -> None:
        self._llm.shutdown()

    @property
    def dead(self) -> bool:
        """vLLM's process has ended; nothing here will answer again."""
        return bool(self._llm.errored)

    # --- answers --------------------------------------------------------------------------------------------------

    async def respond(
        self, kind: Kind, policy: ServedPolicy, body: dict[str, Any], trace: str = ""
    ) -> AsyncGenerator[Piece, None]:
        """The reply to one request, piece by piece, under exactly this policy. `trace`: the span to continue."""
        async with self._holding(policy) as model:
            request = with_relative_temperature({**body, "model": model}, self._settings.temperature)
            lengths: list[int] = []
            LENGTHS.set(lengths)
            reply = await self._ask(kind, self._with_stop_ids(request), trace)
            room = {"room": min(lengths)} if lengths else {}
            if not isinstance(reply, dict):
                yield {"status": 200, **room}
                async for line in reply:
                    yield line
                return
        # Outside of the block: a slow reader must not delay other requests.
        yield {**reply, **room}

    def _with_stop_ids(self, body: dict[str, Any]) -> dict[str, Any]:
        """Adds the model's own ends of a turn to the client's stop ids."""
        client_ids = body.get("stop_token_ids") or []
        if body.get("ignore_eos") or not isinstance(client_ids, list):
            return body
        return body | {"stop_token_ids": [*client_ids, *self._stop_ids]}

    async def tokens(self, way: TokensCall, body: dict[str, Any]) -> dict[str, Any]:
        """Text or messages as token ids, or the other way round: {"status": ..., "body": ...}."""
        reply: dict[str, Any] = await self._ask(way, body)
        return reply

    async def _ask(self, route: Kind | TokensCall, body: dict[str, Any], trace: str = "") -> Any:
        """{"status": ..., "body": ...}, or a stream of events."""
        from pydantic import ValidationError
        from starlette.requests import Request

        form = body.get("response_format")
        if isinstance(form, dict) and form.get("type") != "text" and not self._json_mode:
            return _failure(400, "response_format: the vocabulary of this model cannot write JSON")
        headers = [(TRACEPARENT.encode(), trace.encode())]
        request = Request({"type": "http", "headers": headers}) if trace else None
        try:
            reply = await self._openai.ask(route, body, request)
        except ValidationError as error:
            return _invalid(error)
        except Exception as error:
            reply = error_reply(error)
            if status_of(reply) >= 500:
                logger.error("request %s failed in vLLM", body.get("request_id"), exc_info=error)
        if hasattr(reply, "model_dump"):
            return {"status": status_of(reply), "body": reply.model_dump()}
        return reply

    # --- the delivery check -------------------------------------------------------------------------------------------

    async def check(self, policy: ServedPolicy | None = None) -> dict[str, Any]:
        """One real token under the policy (or the one that is loaded, if any), and the version that it came from."""
        policy = policy or self.gate.current
        if policy is None:
            output = await self._generate([0], None)
            return {"version": None, "tokens": len(output.outputs[0].token_ids)}
        async with self._holding(policy) as model:
            prompt = list(policy.canaries[0].prompt) if policy.canaries else [0]
            output = await self._generate(prompt, self._adapters.get(model))
        return {"version": policy.version.number, "tokens": len(output.outputs[0].token_ids)}

    async def healthy(self) -> None:
        """Raises unless a verified answer was just given or can be given now."""
        if time.monotonic() - self._llm.verified_at > VERIFIED_FOR_S:
            await self.check()

    @asynccontextmanager
    async def _holding(self, policy: ServedPolicy) -> AsyncIterator[str]:
        """The policy answers inside the block; yields the name by which vLLM's layer knows it."""
        if self._settings.weights == "adapters":
            yield await self._adapter(policy)
            return
        async with self.gate.hold(policy):
            yield BASE

    async def _load(self, policy: ServedPolicy) -> None:
        """Loads whole weights in place. The gate lets nothing run meanwhile."""
        folder = await self._checked_folder(policy)
        self._llm.holds(None)
        # No request is running, so nobody is waited for; the cached keys and values of the old weights go.
        await self._llm.pause_generation(mode="wait", clear_cache=True)
        try:
            await reload_weights(self._llm, folder)
            if self._shapes.tied:
                await self._llm.collective_rpc("take_heads_over")
            await self._llm.update_weight_version(str(policy.version.number))
        finally:
            await self._llm.resume_generation()
        self._llm.holds(str(policy.version.number))
        await self._compare_canaries(policy, None)

    async def _adapter(self, policy: ServedPolicy) -> str:
        """The policy's adapter, loaded once under a name of its own; the reference is the base without one."""
        name = BASE if policy.release == REFERENCE else f"{policy.version.name}-{policy.version.sha256[:12]}"
        async with self._adapter_lock:
            if name in self._adapters:
                return name
            await self._checked_folder(policy)
            if name == BASE:
                self._adapters[BASE] = None
            else:
                stored = await asyncio.to_thread(self._store.stored, policy.version.path)
                self._adapters[name] = await self._openai.load_adapter(name, stored / ADAPTER)
            try:
                await self._compare_canaries(policy, self._adapters[name])
            except RunError:
                if self._adapters.pop(name) is not None:
                    await self._openai.unload_adapter(name)
                raise
        return name

    async def _checked_folder(self, policy: ServedPolicy) -> Path:
        """The version's folder, after names, shapes, tokenizer and hash were compared (once per version)."""
        folder = await asyncio.to_thread(self._store.folder, policy.version.path)
        if policy.version.sha256 not in self._checked_hashes:
            await asyncio.to_thread(self._compare_files, policy, folder)
            self._checked_hashes.add(policy.version.sha256)
        return folder

    def _compare_files(self, policy: ServedPolicy, folder: Path) -> None:
        version = policy.version
        check_version(self._shapes, self._tokenizer, folder, engine="serving", version=version.number)
        stream = TensorStream()
        for name, tensor in stored_tensors(folder):
            stream.add(name, tensor)
        check_hash(stream.sha256(), version, stream.count, subject=f"{version.name}: ", stop=STOP)

    async def _compare_canaries(self, policy: ServedPolicy, adapter: Any) -> None:
        """Log-probabilities of answers that the run drew from this policy, against what the journal says of them."""
        if not policy.canaries:
            return
        scores = []
        for canary in policy.canaries:
            output = await self._generate([*canary.prompt, *canary.answer], adapter, prompt_logprobs=0)
            scores.append(prompt_log_prob(output, len(canary.prompt)))
        expected = np.array([canary.log_prob for canary in policy.canaries])
        lengths = [len(canary.answer) for canary in policy.canaries]
        prefix, tolerance = f"{policy.version.name}: ", self._settings.tolerance
        try:
            check_canaries(np.array(scores), expected, lengths, tolerance, subject=prefix, stop=STOP)
        except RunError:
            self._llm.holds(None)
            raise

    async def _generate(self, prompt: list[int], adapter: Any, **options: Any) -> Any:
        """One token."""
        from vllm import SamplingParams

        parameters = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, **options)
        request = self._llm.generate(
            {"prompt_token_ids": prompt}, parameters, f"check-{uuid.uuid4().hex}", lora_request=adapter
        )
        outputs = [output async for output in request]
        if not outputs or not outputs[-1].outputs[0].token_ids:
            raise RunError("the engine gave no token")
        return outputs[-1]


def with_relative_temperature(body: dict[str, Any], temperature: float) -> dict[str, Any]:
    """Makes the temperature relative to the policy's, by which vLLM divides all logits already.

    A client's temperature is that of the model's own logits; without one the answer is the policy's.
    """
    value = body.get("temperature")
    # Anything else than a number is left for vLLM's own complaint.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return body
    return body | {"temperature": value / temperature}


def writes_json(tokenizer: Any) -> bool:
    """Whether the vocabulary can write JSON: where it cannot, a grammar ends in an error of the engine."""
    text = '{"a": [0.1, -2, true, null]}'
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return "".join(str(tokenizer.decode(ids)).split()) == "".join(text.split())


def _invalid(error: Any) -> dict[str, Any]:
    """A pydantic error in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return _failure(400, f"{field}: {first['msg']}" if field else str(first["msg"]))


def _failure(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "api_error"
    return {"status": status, "body": {"error": {"message": message, "type": kind, "param": None, "code": status}}}


def watched_engine(settings: EngineSettings) -> Any:
    """The engine of these settings; call it after `prepare_process`."""
    from vllm import AsyncEngineArgs, AsyncLLMEngine

    class WatchedEngine(AsyncLLMEngine):  # type: ignore[misc]
        verified_at = -1e9
        _held_version: str | None = None

        def holds(self, version: str | None) -> None:
            self._held_version = version

        def generate(self, prompt: Any, parameters: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            LENGTHS.get([]).append(parameters.max_tokens)
            return self._verify_outputs(super().generate(prompt, parameters, *args, **kwargs))

        async def _verify_outputs(self, outputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
            version = self._held_version
            async for output in outputs:
                if output.finished:
                    demand_version(output, version)
                    self.verified_at = time.monotonic()
                yield output

    options = {**vllm_options(Path(settings.model), settings, settings.dtype), **WORKER}
    if settings.weights == "adapters":
        options |= {"max_loras": 16, "max_cpu_loras": 256}
        options |= adapter_options(Path(settings.model), settings.adapter_rank)
    # Without white space between its parts: small models write nothing else until their length is used up.
    options |= {"structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True}}
    if settings.traces:
        options["otlp_traces_endpoint"] = settings.traces
    # Load, cache and queue of this engine, through Ray's exporter where this is one of its workers.
    loggers = [ray_metrics()] if ray.is_initialized() else []
    arguments = AsyncEngineArgs(enable_log_requests=False, **options)
    return WatchedEngine.from_engine_args(arguments, stat_loggers=loggers)


def demand_version(output: Any, version: str | None) -> None:
    """Raise RunError where a finished answer names another weight version than the engine was given."""
    if version is None:
        return
    for completion in output.outputs:
        versions = {span.version for span in completion.weight_versions or ()}
        if versions - {version}:
            raise RunError(f"an answer came from weight version {sorted(versions)}, the engine holds {version}")
