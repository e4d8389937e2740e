"""How fast this machine does what a recipe counts: some minutes of the recipe's own parts, in one process.

Everything is taken by two clocks: wall seconds, and CPU seconds, which another program on the machine changes less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.config import Config, ModelFeedback
from pddpo_ray.contracts import FitCommand, FitResult, Start
from pddpo_ray.driver.build import fit_plan
from pddpo_ray.driver.offline_setup import neighbours
from pddpo_ray.errors import UserError
from pddpo_ray.records import HARM, Array, Decoding, LabelledPair, Objective, PairRow, PolicyVersion, Response, Verdict
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.scoring.interface import AnswerScorer
from pddpo_ray.scoring.scorer_training import train_in_run
from pddpo_ray.scoring.stored_scorers import load_scorer
from pddpo_ray.theory.seeds import seed_of

SAMPLING_S = 15.0
"""Seconds of sampling that are measured, at least."""
FIT_STEPS = 3
"""Steps of the longer of two measured fits; their difference is steps alone."""
BATCH = 128
"""Answers in one call of the engine at most; fewer where a round draws fewer at a time."""
SCORED = 32
"""Answers whose features, log-probabilities and scores are timed."""

Clocks = Array
"""[wall, CPU] seconds of something."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one of each thing that a plan's `work` counts under the same name, and of starting the parts.

    Answers are as long as the reference writes them.
    """

    answers: float
    features: float
    log_probs: float
    prepared: float
    fits: float
    fitted_pairs: float
    loads: float
    scorers: float
    scorer_pairs: float
    scored: float
    deliveries: float
    start: float


@dataclass(frozen=True)
class Measured:
    """The costs by either clock, and what is known once the recipe's files are read."""

    wall: Costs
    cpu: Costs
    prompts: int
    """Different prompts of the run."""


def measure(config: Config) -> Measured:
    """What the recipe's parts take on this machine. UserError where there is no language model.

    Nothing is kept. A run on Ray divides the work among its ranks and engines.
    """
    if config.policies != "language models":
        raise UserError("--calibrate measures a language model; other policies take no time worth measuring")
    alone = config.in_one_process()
    with TemporaryDirectory() as folder:
        began = time.monotonic()
        backends = make_backends(alone, Path(folder))
        # the CPU seconds of a process begin with its interpreter and imports
        start = np.array([time.monotonic() - began, time.process_time()])
        try:
            seconds, prompts = {**_Measuring(alone, backends).all(), "start": start}, len(backends.prompts)
        finally:
            backends.close()
    wall, cpu = (Costs(**{name: float(clocks[index]) for name, clocks in seconds.items()}) for index in (0, 1))
    return Measured(wall, cpu, prompts)


class _Measuring:
    """What one measurement leaves to the next."""

    def __init__(self, config: Config, backends: Backends) -> None:
        self._config, self._backends = config, backends
        self._trainer, self._engine = backends.trainer, backends.engines[0]
        rollout = config.rollout
        self._check = DeliveryCheck(
            backends.trainer.log_probs, backends.canaries, rollout.canary_tolerance, backends.tokenizer
        )

    def all(self) -> dict[str, Clocks]:
        """[wall, CPU] seconds of one of each, by the names of `Costs`."""
        reference = self._backends.reference
        self._deliver(reference)
        answers, of_answers = self._sampled()
        some = answers[:SCORED]
        seconds = {"answers": of_answers}
        seconds["features"] = _clocked(lambda: self._trainer.features(some)) / len(some)
        pairs = self._pairs(answers)
        (other, made), of_fits = self._fitted(pairs)
        seconds |= of_fits
        seconds["log_probs"] = _clocked(lambda: self._trainer.log_probs(made, some)) / len(some)
        seconds["deliveries"] = (_clocked(lambda: self._deliver(made)) + _clocked(lambda: self._deliver(reference))) / 2
        # the trainer holds another version by now
        seconds["loads"] = _clocked(lambda: self._trainer.log_probs(other, some[:1]))
        return seconds | self._scorers(pairs, some)

    def _deliver(self, version: PolicyVersion) -> None:
        self._check(self._engine, self._engine.deliver(version), version)

    def _sampled(self) -> tuple[list[Response], Clocks]:
        """Answers of the reference in calls as large as a round's, and the seconds of one."""
        config, engine = self._config, self._engine
        decoding = Decoding(max_tokens=config.rollout.max_tokens)
        wanted = min(BATCH, config.feedback.responses)
        prompts = list(self._backends.prompts[:wanted])
        each = max(2, wanted // len(prompts))
        prompts = prompts[: max(1, wanted // each)]
        engine.sample(prompts[:1], [0], 1, decoding)  # the first call compiles and allocates
        answers: list[Response] = []
        spent = np.zeros(2)
        while spent[0] < SAMPLING_S:
            seeds = [seed_of("calibrate", len(answers), index) for index in range(len(prompts))]
            began = _clocks()
            drawn = engine.sample(prompts, seeds, each, decoding)
            spent += _clocks() - began
            for prompt, draws in zip(prompts, drawn, strict=True):
                answers += [Response(f"{len(answers)}-{i}", prompt, d[0], d[1], 0, 0) for i, d in enumerate(draws)]
        return answers, spent / len(answers)

    def _pairs(self, answers: Sequence[Response]) -> list[LabelledPair]:
        """The offline pairs where there are some already, else neighbouring answers; every label names the first."""
        given = self._backends.offline
        if given is None:
            return [LabelledPair(pair, Verdict.FIRST, {HARM: Verdict.FIRST}) for pair in neighbours(answers, 2, BATCH)]
        policy, scorer = self._config.trainer.of_stage("reward"), self._config.scorers.optimiser
        enough = max(SCORED, 2 * policy.batch_pairs, 2 * scorer.batch_pairs)
        pairs = [labelled.pair for labelled in given(self._config.seed)[:enough]]
        return [LabelledPair(pair, Verdict.FIRST, {HARM: Verdict.FIRST}) for pair in pairs]

    def _fitted(self, pairs: Sequence[LabelledPair]) -> tuple[tuple[PolicyVersion, PolicyVersion], dict[str, Clocks]]:
        """Two fitted versions, the later one in the trainer, and the seconds of a fit without its steps, of a pair in a
        step, and of a text whose frozen numbers are new."""
        rows = tuple(
            PairRow(one.pair.id, one.pair.prompt.token_ids, one.pair.first.token_ids, one.pair.second.token_ids)
            for one in pairs
        )
        settings = fit_plan(self._config).settings("reward", False, 1)
        reference = self._backends.reference
        made: list[FitResult] = []

        def fit(steps: int) -> None:
            own = settings.model_copy(update={"steps": steps, "epochs": None})
            objective = Objective("reward", reference, self._config.beta)
            made.append(
                self._trainer.execute(FitCommand(1, Start(reference), objective, rows, own, 0, f"calibrate-{steps}"))
            )

        fit(1)  # computes the frozen numbers, which the other two find
        short, long = _clocked(lambda: fit(1)), _clocked(lambda: fit(FIT_STEPS))
        step = np.maximum(long - short, 0.0) / (FIT_STEPS - 1)
        texts = [
            Response(f"{one.pair.id}-{i}", one.pair.prompt, answer.token_ids, "", 0, 0)
            for one in pairs[: SCORED // 2]
            for i, answer in enumerate((one.pair.first, one.pair.second))
        ]
        version = made[-1].version
        prepared = _clocked(lambda: self._trainer.log_probs(version, texts)) / len(texts)
        return (made[0].version, version), {
            "fits": np.maximum(short - step, 0.0),
            "fitted_pairs": step / settings.batch_pairs,
            "prepared": prepared,
        }

    def _scorers(self, pairs: Sequence[LabelledPair], answers: Sequence[Response]) -> dict[str, Clocks]:
        """One score model without its steps, one pair in a step, one answer that it scores; zero without models."""
        feedback = self._config.feedback
        nothing = {name: np.zeros(2) for name in ("scorers", "scorer_pairs", "scored")}
        if not isinstance(feedback, ModelFeedback):
            return nothing
        given = feedback.cost or feedback.reward
        if given is not None:
            scorer: AnswerScorer = load_scorer(given.path, given.read)
            return nothing | {"scored": _clocked(lambda: scorer.score(answers)) / len(answers)}
        fit, paths = self._config.scorers.optimiser, []

        def train(steps: int) -> None:
            paths.append(self._train_scorer(pairs, steps))

        short, long = _clocked(lambda: train(1)), _clocked(lambda: train(FIT_STEPS))
        step = np.maximum(long - short, 0.0) / (FIT_STEPS - 1)
        own = load_scorer(paths[-1])
        scored = _clocked(lambda: own.score(answers)) / len(answers)
        return {"scorers": np.maximum(short - step, 0.0), "scorer_pairs": step / fit.batch_pairs, "scored": scored}

    def _train_scorer(self, pairs: Sequence[LabelledPair], steps: int) -> Path:
        store, settings = self._backends.store, self._config.scorers
        path, _, _ = train_in_run(
            "reward",
            pairs,
            {},
            folder=store.folder(self._backends.reference.path),
            store=store,
            ways=settings.ways,
            fit=settings.optimiser.model_copy(update={"steps": steps, "epochs": None}),
            seed=steps,
            held_out=settings.held_out,
            work=Path(store.root) / f"scorer-of-{steps}-steps",
        )
        return store.folder(path)


def _clocked(do: Callable[[], Any]) -> Clocks:
    began = _clocks()
    do()
    return _clocks() - began


def _clocks() -> Clocks:
    return np.array([time.monotonic(), time.process_time()])


def seconds_of(work: Mapping[str, Any], costs: Costs) -> float:
    """Seconds of one stretch of a plan's `work`. People's and judges' labels come on top."""
    counts = {**work, "answers": sum(work["answers"].values())}
    return float(sum(counts[name] * cost for name, cost in asdict(costs).items() if name in counts))


def seconds_of_run(plan: Mapping[str, Mapping[str, Any]], costs: Costs, rounds: int) -> dict[str, float]:
    """Seconds until the parts are up, of every stretch of a plan's `work`, and of the whole run."""
    seconds = {"start": costs.start, **{name: seconds_of(work, costs) for name, work in plan.items()}}
    whole = seconds["start"] + seconds["before"] + seconds["first_round"] + (rounds - 1) * seconds["round"]
    return {**seconds, "run": whole}
