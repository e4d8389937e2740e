"""G7 and G8: whole rounds with adapters, sampling and both stages, in wall time.

G7 is one round of PD-DPO: an answer to every prompt of the cost estimate, a pair for every other prompt, a reward stage
and a cost stage, and the new policy where it samples. The peer is what can be put together from transformers and TRL:
`generate`, TRL's DPO step for the reward stage and the plain loop over three models for the cost stage, on one model
that samples and trains, so it delivers nothing. Its pairs also go through our fits, and the losses of both stages must
agree; answers, tokens, pairs and steps are counted on both sides.

G8 is the paper's adaLag: rounds of one cost step, a delivery and answers to 64 prompts, against a quarter of an hour.

Labels are counts of words: neither people nor scoring models are part of what is timed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bench.cost_stage import BETA, MULTIPLIER, SEED, every_position, three_model_loop
from bench.device import wall_clock
from bench.online_iteration import Ids, Work, pair_row
from bench.policy_swap import engine_for
from bench.ratio import Ratio, assert_same, interleaved, of_pairs
from bench.reward_step import TrlSteps
from bench.rollout import Setting, generate, stored
from bench.workload import ALPHA, RANK, Shape, preference_rows, prompts_of, trained_weights
from pddpo_ray.contracts import FitCommand, FitSettings, RolloutEngine, Start
from pddpo_ray.records import Decoding, Objective, PairRow, PolicyVersion, Prompt, Response
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.storage.adapters import switched_off
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.batches import Text, minibatches, texts_of
from pddpo_ray.training.models.lora import load_lora_trainer

LEARNING_RATE, CANARIES, CANARY_TOLERANCE = 1e-4, 8, 0.02
ACTIVATION_BYTES = 40e9
"""Of one pass: 64 pairs of a 7B model go through in two."""
PAPER_SECONDS = 900.0
"""What G8 may take on one device; the paper says less than an hour on four."""

Pair = tuple[Prompt, Ids, Ids]
MakeEngine = Callable[[Shape, Path], RolloutEngine]


def with_adapters(shape: Shape, folder: Path) -> RolloutEngine:
    """The engine of the timed rounds."""
    return engine_for("adapter", shape, folder)


@dataclass(frozen=True)
class Size:
    """Of one round."""

    shape: Shape
    estimate: int = 128
    """Prompts of the cost estimate, one answer each."""
    pairs: int = 256
    tokens: int = 96
    """Of every answer."""
    batch: int = 16

    @property
    def settings(self) -> FitSettings:
        """Of either stage."""
        return FitSettings(
            steps=self.pairs // self.batch,
            learning_rate=LEARNING_RATE,
            batch_pairs=self.batch,
            support=0.0,
            max_grad_norm=1e9,
            warmup=0.0,
            schedule="constant",
        )

    def prompts(self, call: int) -> tuple[list[Prompt], list[Prompt]]:
        """Those of the estimate and those of the pairs; others at every call."""
        drawn = prompts_of(self.shape.vocabulary, self.estimate + self.pairs, call)
        return drawn[: self.estimate], drawn[self.estimate :]

    def work(self, answers: Sequence[Ids], pairs: Sequence[Pair]) -> Work:
        """What a round did with these."""
        made = [*answers, *(ids for _, first, second in pairs for ids in (first, second))]
        return Work(len(made), sum(map(len, made)), len(pairs), 2 * self.settings.steps)


def reward_rows(pairs: Sequence[Pair]) -> list[PairRow]:
    """The answer with more different words is preferred."""
    return [pair_row(prompt, first, second) for prompt, first, second in pairs]


def cost_rows(pairs: Sequence[Pair]) -> list[PairRow]:
    """The answer with more odd words is taken for the costlier one."""
    rows = []
    for prompt, first, second in pairs:
        costlier, other = (first, second) if odd(first) >= odd(second) else (second, first)
        rows.append(PairRow(prompt.id, prompt.token_ids, costlier, other))
    return rows


def odd(ids: Ids) -> float:
    """Share of odd words."""
    return sum(word % 2 for word in ids) / len(ids)


def run(size: Size, repeats: int = 5, name: str = "G7", *, make_engine: MakeEngine = with_adapters) -> Ratio:
    """Wall seconds of the peer's round over those of ours."""
    with tempfile.TemporaryDirectory() as place:
        ours = Rounds(size, Path(place), make_engine)
        theirs = PlainRound(size)
        work = theirs.round()
        losses = ours.fit_both(theirs.pairs)
        for peer, own in zip(theirs.losses, losses, strict=True):
            assert_same(peer, own, size.shape.tolerance)
        if ours.round() != work:
            raise RuntimeError(f"the two sides do not do the same work: the peer does {work}")
        what = f"a round, {size.pairs} pairs and {size.estimate} answers: transformers and TRL / ours"
        clock = wall_clock(size.shape.device)
        return interleaved(name, what, theirs.round, ours.round, repeats, floor=3.0, clock=clock)


def paper_budget(
    size: Size, repeats: int = 5, name: str = "G8", *, rounds: int = 20, make_engine: MakeEngine = with_adapters
) -> Ratio:
    """A quarter of an hour over wall seconds of the paper's rounds, after a reward policy is there."""
    with tempfile.TemporaryDirectory() as place:
        ours = Rounds(size, Path(place), make_engine)
        clock = wall_clock(size.shape.device)
        seconds = [clock(lambda: ours.paper_rounds(rounds)) for _ in range(repeats)]
    details = {"s": float(np.median(seconds)), "s of a round": float(np.median(seconds)) / rounds}
    what = f"{rounds} rounds of adaLag, {size.batch} prompts and pairs each: {PAPER_SECONDS:g} s / ours"
    return of_pairs(name, what, [(PAPER_SECONDS, spent) for spent in seconds], floor=1.0, details=details)


class Rounds:
    """Ours: an engine and a trainer of adapters in one process, round after round."""

    def __init__(self, size: Size, folder: Path, make_engine: MakeEngine) -> None:
        self.size = size
        self.reference = self.policy = stored(Setting(size.shape).model(), folder)
        self.engine = make_engine(size.shape, folder)
        store = ArtifactStore(folder / "artifacts")
        self.trainer = load_lora_trainer(
            folder / "model", store, self.reference, rank=RANK, alpha=ALPHA, dtype=size.shape.number_type
        )
        prompts = prompts_of(size.shape.vocabulary, CANARIES)
        canaries = [Response(prompt.id, prompt, prompt.token_ids, "", 0, 0) for prompt in prompts]
        tokenizer: str = self.engine.tokenizer  # type: ignore[attr-defined]
        self._verify = DeliveryCheck(self.trainer.log_probs, canaries, CANARY_TOLERANCE, tokenizer)
        self._rows = preference_rows(size.shape.vocabulary, 200)
        self._calls = self._fits = 0
        self.engine.deliver(self.policy)

    def round(self) -> Work:
        """Sample, label, both stages, deliver, verify."""
        self._calls += 1
        estimate, asked = self.size.prompts(self._calls)
        answers = [draws[0] for draws in self._sample(estimate, 1)]
        for ids in answers:
            odd(ids)
        pairs: list[Pair] = [(prompt, *draws) for prompt, draws in zip(asked, self._sample(asked, 2), strict=True)]  # type: ignore[misc]
        self.fit_both(pairs)
        self._publish()
        return self.size.work(answers, pairs)

    def fit_both(self, pairs: Sequence[Pair]) -> tuple[float, float]:
        """Both stages from the reference on; the cost stage's policy is the new one. -> their losses"""
        objective = Objective("reward", self.reference, BETA)
        reward_policy, first = self._fit(objective, reward_rows(pairs), self.reference, self.size.settings)
        objective = Objective("cost", reward_policy, BETA / MULTIPLIER, MULTIPLIER)
        self.policy, second = self._fit(objective, cost_rows(pairs), reward_policy, self.size.settings)
        return first, second

    def paper_rounds(self, rounds: int) -> None:
        """A reward policy of one step, then rounds of one cost step, delivery, delivery check and fresh answers."""
        settings = FitSettings(
            steps=1,
            learning_rate=LEARNING_RATE,
            batch_pairs=self.size.batch,
            support=0.0,
            activation_gib=ACTIVATION_BYTES / 2**30,
        )
        reward_policy, _ = self._fit(Objective("reward", self.reference, BETA), self._rows, self.reference, settings)
        self.policy, multiplier = reward_policy, MULTIPLIER
        for _ in range(rounds):
            self._calls += 1
            objective = Objective("cost", reward_policy, BETA / multiplier, multiplier)
            self.policy, _ = self._fit(objective, self._rows, self.policy, settings)
            self._publish()
            answers = self._sample(prompts_of(self.size.shape.vocabulary, self.size.batch, self._calls), 1)
            multiplier *= float(np.exp(0.1 * (np.mean([odd(draws[0]) for draws in answers]) - 0.5)))

    def _sample(self, prompts: list[Prompt], n: int) -> list[list[Ids]]:
        drawn = self.engine.sample(prompts, range(len(prompts)), n, Decoding(max_tokens=self.size.tokens))
        return [[ids for ids, _, _ in draws] for draws in drawn]

    def _fit(
        self, objective: Objective, rows: Sequence[PairRow], start: PolicyVersion, settings: FitSettings
    ) -> tuple[PolicyVersion, float]:
        """-> the version made, and the fit's loss"""
        self._fits += 1
        name = f"{objective.stage}-{self._fits}"
        made = self.trainer.execute(FitCommand(self._fits, Start(start), objective, tuple(rows), settings, SEED, name))
        return made.version, made.metrics["fit/loss"]

    def _publish(self) -> None:
        self._verify(self.engine, self.engine.deliver(self.policy), self.policy)


class PlainRound:
    """The peer: three models with one base each, of which one samples and is trained."""

    def __init__(self, size: Size) -> None:
        self.size = size
        shape = size.shape
        self._reference = shape.build(0)
        self._policy, self._reward_policy = (shape.adapted(0) for _ in range(2))
        for model in (self._policy, self._reward_policy):
            model.base_model.model.config.eos_token_id = model.generation_config.eos_token_id = None
        off = switched_off(trained_weights(self._policy))
        self._start = {name: tensor.to(shape.device) for name, tensor in off.items()}
        rows = preference_rows(shape.vocabulary, 1)
        self._trl = TrlSteps(self._policy, rows, dict.fromkeys(texts_of(rows), 0.0), LEARNING_RATE)
        self.pairs: list[Pair] = []
        self.losses = (0.0, 0.0)
        self._calls = 0

    def round(self) -> Work:
        """Sample, label, both stages."""
        self._calls += 1
        estimate, asked = self.size.prompts(self._calls)
        self._policy.eval()
        answers = self._answers(estimate)
        for ids in answers:
            odd(ids)
        self.pairs = list(zip(asked, self._answers(asked), self._answers(asked), strict=True))
        rows, settings = reward_rows(self.pairs), self.size.settings
        self._trl.show(rows, self._reference_log_probs(rows))
        batches = [part.tolist() for part in minibatches(len(rows), settings.steps, settings.batch_pairs, SEED)]
        first = self._trl.run(self._start, batches)
        self._stand_still()
        frozen = (self._reference, self._reward_policy)
        self.losses = first, three_model_loop(self._policy, frozen, cost_rows(self.pairs), settings)
        return self.size.work(answers, self.pairs)

    def _answers(self, prompts: list[Prompt]) -> list[Ids]:
        return generate(self._policy, prompts, self.size.tokens)

    @torch.no_grad()
    def _reference_log_probs(self, rows: Sequence[PairRow]) -> dict[Text, float]:
        """One pass of the reference over all texts, a batch at a time."""
        texts, found = texts_of(rows), []
        for begin in range(0, len(texts), 2 * self.size.batch):
            found += every_position(self._reference, texts[begin : begin + 2 * self.size.batch]).tolist()
        return dict(zip(texts, found, strict=True))

    @torch.no_grad()
    def _stand_still(self) -> None:
        """The reward policy is what the policy is now."""
        for name, tensor in trained_weights(self._policy).items():
            self._reward_policy.get_parameter(name).copy_(tensor)
