"""How fast this machine does what a recipe counts: about a minute of the recipe's own parts, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pddpo_ray.config import Config
from pddpo_ray.config.cluster import InProcess
from pddpo_ray.contracts import FitCommand, Start
from pddpo_ray.errors import UserError
from pddpo_ray.loop.backends import Backends
from pddpo_ray.loop.build import fit_plan
from pddpo_ray.loop.in_process import make_backends
from pddpo_ray.records import Decoding, Objective, PairRow, Response
from pddpo_ray.theory.seeds import seed_of

SAMPLING_S = 15.0
"""Seconds of sampling that are measured, at least."""
FIT_S = 5.0
"""Seconds that the measured fit takes, at least."""
BATCH = 128
"""Answers in one call of the engine, about as many as in a round."""


@dataclass(frozen=True)
class Speeds:
    """What one process does in a second. Answers are as long as the reference writes them."""

    answers: float
    features: float
    log_probs: float
    fitted_pairs: float


def measure(config: Config) -> Speeds:
    """Samples, features, scores and fits of the reference, on this machine. UserError where there is none.

    Nothing is kept. A run on Ray divides the work among its ranks and engines.
    """
    if config.policies != "language models":
        raise UserError("--calibrate measures a language model; other policies take no time worth measuring")
    alone = config.model_copy(
        update={
            "cluster": InProcess(),
            "trainer": config.trainer.model_copy(update={"engine": "torch", "workers": 1}),
            "rollout": config.rollout.model_copy(update={"engines": 1}),
        }
    )
    with TemporaryDirectory() as folder:
        backends = make_backends(alone, Path(folder))
        try:
            return _speeds(alone, backends)
        finally:
            backends.close()


def _speeds(config: Config, backends: Backends) -> Speeds:
    answers, per_second = _sampled(config, backends)
    features = len(answers) / _seconds(lambda: backends.trainer.features(answers))
    log_probs = len(answers) / _seconds(lambda: backends.trainer.log_probs(backends.reference, answers))
    return Speeds(per_second, features, log_probs, _fitted(config, backends, answers))


def _sampled(config: Config, backends: Backends) -> tuple[list[Response], float]:
    """Answers of the reference, at least two to a prompt, and how many a second."""
    engine, decoding = backends.engines[0], Decoding(max_tokens=config.rollout.max_tokens)
    engine.deliver(backends.reference)
    prompts = list(backends.prompts[: BATCH // 2])
    each = BATCH // len(prompts)
    engine.sample(prompts[:1], [0], 1, decoding)  # the first call compiles and allocates
    answers: list[Response] = []
    began = time.monotonic()
    while time.monotonic() - began < SAMPLING_S:
        seeds = [seed_of("calibrate", len(answers), index) for index in range(len(prompts))]
        for prompt, draws in zip(prompts, engine.sample(prompts, seeds, each, decoding), strict=True):
            answers += [Response(f"{len(answers)}-{i}", prompt, d[0], d[1], 0, 0) for i, d in enumerate(draws)]
    return answers, len(answers) / (time.monotonic() - began)


def _fitted(config: Config, backends: Backends, answers: list[Response]) -> float:
    """Pairs a second of reward fits on neighbouring answers; the first fit is not measured."""
    rows = tuple(
        PairRow(one.id, one.prompt.token_ids, one.token_ids, other.token_ids)
        for one, other in zip(answers[::2], answers[1::2], strict=False)
    )
    settings = fit_plan(config).settings("reward", False, 1)
    objective = Objective("reward", backends.reference, config.beta)
    steps = 1
    while True:
        fit = settings.model_copy(update={"steps": steps, "epochs": None})
        order = FitCommand(1, Start(backends.reference), objective, rows, fit, 0, f"fit-{steps}")
        metrics = backends.trainer.execute(order).metrics
        seconds = metrics["fit/seconds"] - metrics["fit/prepare_seconds"]
        if steps > 1 and seconds >= FIT_S:
            return steps * settings.batch_pairs / seconds
        steps *= 4


def _seconds(do: Callable[[], Any]) -> float:
    began = time.monotonic()
    do()
    return time.monotonic() - began


def seconds_of(work: Mapping[str, Any], speeds: Speeds) -> float:
    """Seconds of one stretch of a plan's `work`; labelling, delivery and start-up come on top."""
    counts = {**work, "answers": sum(work["answers"].values())}
    counts["fitted_pairs"] = counts["fitted_pairs"] + counts["scorer_pairs"]
    return float(sum(counts[name] / speed for name, speed in asdict(speeds).items()))
