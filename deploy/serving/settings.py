"""Settings of an endpoint: the arguments of the Serve application, checked before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pddpo_ray.config import Config, LoraParameters, VllmRollout
from pddpo_ray.errors import UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.storage.checkpoints import longest_context
from pddpo_ray.storage.whole_files import ARTIFACTS, JOURNAL
from pddpo_ray.text.templates import OF_VERSION

ONGOING_MAX = 128
"""Requests inside one engine replica, waiting for their turn or generating."""
MERGED_MIXTURE = 4
"""Policies of a mixture where each has to be loaded in place: more would mean loading most of the time."""


class ServeArgs(BaseModel):
    """What `pddpo serve` or a Serve config file gives to the application."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    run: str
    """Run folder; relative to the working directory of the Serve controller, so better absolute."""
    journal: str | None = None
    """Database URL, where the recipe names one; null: `journal.sqlite` in the run folder."""
    weights: Literal["auto", "merged", "adapters"] = "auto"
    """merged: whole weights, loaded in place between batches. adapters: one LoRA adapter per policy on one base. auto:
    adapters for a LoRA run on a GPU, else merged."""
    other_decoding: Literal["mark", "refuse"] = "mark"
    """Requests that decode a certified policy otherwise than it was tested: answered and marked, or refused."""
    engines: int = Field(1, ge=1)
    """Engine replicas."""
    gpus: float = Field(0.0, ge=0)
    """GPUs of each engine replica; 0: the CPU engine."""
    cpus: float = Field(1.0, gt=0)
    """CPUs that Ray reserves for each engine replica."""
    seed: int = Field(0, ge=0)
    """Of the mixture's draws."""
    mixture_max: int | None = Field(None, ge=1)
    """Number of last rounds from which the mixture draws; null: all, or the last 4 where weights are merged."""
    max_tokens: int | None = Field(None, ge=1)
    """Most tokens of one answer; null: the engine's whole context."""
    body_bytes: int = Field(256 * 1024, ge=1024)
    """Largest request."""
    request_s: float = Field(120.0, gt=0)
    """Longest time for a request, waiting included; a stopping endpoint waits as long for those under way."""
    waiting_max: int = Field(256, ge=1)
    """Requests that may wait at the entrance; more are answered 503."""
    follow_s: float = Field(2.0, gt=0)
    """How often the endpoint looks for new rounds and releases of the run."""
    cors_origins: tuple[str, ...] = ()
    """Web origins whose pages may call; none by default."""
    log_texts: bool = False
    """Write prompts and answers to the log."""
    log_json: bool = False
    """Serve's log files have a JSON object per line, a request's numbers as fields of it."""
    measure: float = Field(0.0, ge=0, le=1)
    """Share of the released policy's answers that the limits' own sources measure; an alarm takes the release back."""
    webhook: str | None = None
    """Where an alarm is told, as JSON with a `text`."""
    traces: str | None = None
    """Address of an OpenTelemetry collector's traces (OTLP over HTTP), e.g. http://127.0.0.1:4318/v1/traces."""
    feedback_memory: int = Field(2000, ge=0)
    """Replies that are kept in memory so that their readers can give feedback."""
    keep: Literal["off", "request", "key"] = "off"
    """Whether prompts and answers are kept for the run's next rounds, and who consents: each request by its header, or
    a key for all of its requests. off: nothing is."""
    keep_per_key: int = Field(200, ge=1)
    """The most prompts that are kept of one key."""
    keep_total: int = Field(2000, ge=1)
    """The most prompts that are kept at all."""
    scrub: str | None = None
    """File of rules for what is taken out before anything is kept; null: those that ship."""
    chat_template: str | None = None
    """File of a chat template (Jinja); null: what the run was trained with."""
    max_model_len: int | None = Field(None, ge=8)
    """Context of the engine; null: the recipe's, or the model's own where that is shorter."""
    kv_cache_gib: float = Field(0.5, gt=0)
    """Key-value cache on a CPU, in GiB."""
    gpu_memory: float = Field(0.85, gt=0, le=1)
    """Share of a GPU's memory that the engine may take."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs that one engine is spread over."""

    @model_validator(mode="after")
    def _enough_gpus(self) -> Self:
        if self.tensor_parallel > 1 and self.gpus != self.tensor_parallel:
            raise UserError(
                f"an engine that is spread over {self.tensor_parallel} GPUs needs gpus={self.tensor_parallel},"
                f" not {self.gpus:g}"
            )
        return self

    @property
    def most_requests(self) -> int:
        """Requests under way at once, those that wait included."""
        return ONGOING_MAX * self.engines + self.waiting_max


class EngineSettings(BaseModel):
    """What an engine replica needs to know; everything else comes with each request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    store: str
    model: str
    dtype: str
    weights: Literal["merged", "adapters"]
    adapter_rank: int
    tolerance: float
    max_model_len: int
    kv_cache_gib: float
    gpu_memory: float
    tensor_parallel: int
    threads: int
    template: str
    """Name of what the run turned messages into text with."""
    chat_template: str | None
    """Jinja in its place."""
    traces: str | None = None
    """Where vLLM's own spans go."""
    temperature: float = 1.0
    """The policy's: that of an answer whose request names none."""


class ServedRun(BaseModel):
    """Where a run is and what it was made with."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    folder: Path
    journal: str
    config: Config
    run: str
    """Its identity."""


def find(args: ServeArgs) -> ServedRun:
    """The run of these arguments. UserError where there is none, or it has no language models."""
    folder = Path(args.run).expanduser().absolute()
    journal = args.journal or str(folder / JOURNAL)
    with open_folder(folder, args.journal) as reader:
        config = Config.of_run(reader.recipe)
        run, has_reference = reader.run_id, any(entry.stage == "reference" for entry in reader.versions())
    if config.policies != "language models":
        raise UserError(f"the policies of {folder} are {config.policies}, not language models: nothing to serve")
    if not has_reference:
        raise UserError(f"the run in {folder} has not stored its reference yet: serve it once round 1 has begun")
    return ServedRun(folder=folder, journal=journal, config=config, run=run)


def engine_settings(args: ServeArgs, served: ServedRun, reference_path: str) -> EngineSettings:
    """Settings of every engine replica. Raises UserError for adapters of a run that has none."""
    config, rollout = served.config, served.config.rollout
    parameters = config.model.parameters
    lora = isinstance(parameters, LoraParameters)
    if args.weights == "adapters" and not lora:
        raise UserError("weights=adapters needs a run with model.parameters.kind=lora; this one trained whole models")
    adapters = args.weights == "adapters" or (args.weights == "auto" and lora and args.gpus > 0)
    store = served.folder / ARTIFACTS
    template = None if args.chat_template is None else Path(args.chat_template).expanduser().read_text("utf-8")
    length = _context(args, rollout.max_model_len if isinstance(rollout, VllmRollout) else 256, store / reference_path)
    return EngineSettings(
        store=str(store),
        model=str(store / reference_path),
        dtype=config.model.dtype,
        weights="adapters" if adapters else "merged",
        adapter_rank=parameters.rank if isinstance(parameters, LoraParameters) else 0,
        tolerance=rollout.canary_tolerance,
        max_model_len=length,
        kv_cache_gib=args.kv_cache_gib,
        gpu_memory=args.gpu_memory,
        tensor_parallel=args.tensor_parallel,
        threads=max(1, int(args.cpus)),
        template=OF_VERSION,
        chat_template=template,
        traces=args.traces,
        temperature=config.policy.temperature,
    )


def _context(args: ServeArgs, usual: int, reference: Path) -> int:
    """Tokens of a prompt and its answer: as asked, else as usual, and never more than the model has positions for."""
    room = longest_context(reference)
    if args.max_model_len is None:
        return usual if room is None else min(usual, room)
    if room is not None and args.max_model_len > room:
        raise UserError(
            f"max_model_len is {args.max_model_len}, but the model has {room} positions: give at most {room}"
        )
    return args.max_model_len


def mixture_max(args: ServeArgs, settings: EngineSettings) -> int | None:
    """How many rounds the mixture may draw from; None: from all."""
    if args.mixture_max is not None:
        return args.mixture_max
    return MERGED_MIXTURE if settings.weights == "merged" else None
