"""The delivery check that an engine holds the weights that the trainer made. It comes before anything is sampled.

Four statements, each checked by itself: the engine names the version; it uses the same tokenizer; the hash that it
took over the tensors while consuming them is the trainer's; and its log-probabilities of a few canary answers agree
with the trainer's. The hash verifies the delivery, the canary verifies what became of it inside the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pddpo_ray.contracts import RolloutEngine
from pddpo_ray.errors import RunError
from pddpo_ray.records import Array, Delivery, PolicyVersion, Response

CANARIES = 8
"""Sequences whose log-probabilities verify a delivery: a wrong weight shows in every one of them."""
FLOAT32_TOLERANCE = 1e-4
"""Per token. Measured in float32 on a CPU: at most 1e-6; one matrix x 1.01 moves 2e-3, stale weights more than 1."""


@dataclass(frozen=True)
class VerifiedDelivery:
    """What was shown about one engine and one version."""

    engine: str
    version: int
    sha256: str
    tensors: int
    canaries: int
    canary_difference: float
    """Largest difference of a canary's log-probability, per token."""


def verify(
    engine: RolloutEngine,
    delivery: Delivery,
    expected: PolicyVersion,
    canaries: Sequence[Response],
    trainer_log_probs: Array,
    tolerance: float = FLOAT32_TOLERANCE,
    tokenizer: str = "",
) -> VerifiedDelivery:
    """Show that `engine` holds `expected`, or raise RunError naming engine and version.

    trainer_log_probs [n]: sums over the canaries' tokens under `expected`, from the trainer's own forward pass.
    tokenizer: fingerprint of the reference's tokenizer (empty: the engine has none).
    """
    prefix = f"engine {engine.name}, version {expected.number} ({expected.name}): "
    stop = " Nothing was sampled from it."
    if delivery.version != expected.number or engine.version != expected.number:
        raise RunError(f"{prefix}the engine states version {engine.version}, its delivery {delivery.version}.{stop}")
    if delivery.tokenizer != tokenizer:
        raise RunError(
            f"{prefix}tokenizer {delivery.tokenizer[:12] or 'none'} in the engine, {tokenizer[:12] or 'none'} in the"
            f" trainer; token ids would mean other words.{stop}"
        )
    check_hash(delivery.sha256, expected, delivery.tensors, subject=prefix, stop=stop)
    if not canaries or len(canaries) != len(trainer_log_probs):
        raise RunError(f"engine {engine.name}: {len(canaries)} canaries, {len(trainer_log_probs)} log-probs to compare")
    answers = [canary.token_ids for canary in canaries]
    scores = engine.score([canary.prompt for canary in canaries], answers)
    difference = check_canaries(
        scores, trainer_log_probs, list(map(len, answers)), tolerance, subject=prefix, stop=stop
    )
    return VerifiedDelivery(engine.name, expected.number, delivery.sha256, delivery.tensors, len(canaries), difference)


def check_canaries(
    scores: Array, expected: Array, lengths: Sequence[int], tolerance: float, *, subject: str, stop: str
) -> float:
    """Largest difference of log-probabilities per token; RunError above the tolerance. [n], [n], n lengths"""
    difference = largest_difference(scores, expected, lengths)
    if not difference <= tolerance:
        raise RunError(
            f"{subject}canary log-probabilities differ by {difference:.3g} per token (tolerance {tolerance:.3g}): the"
            f" hash agrees, but the engine computes with other weights than the trainer.{stop}"
        )
    return difference


def largest_difference(scores: Array, expected: Array, lengths: Sequence[int]) -> float:
    """Of log-probabilities, per token. [n], [n], n lengths"""
    return float(np.max(np.abs(scores - expected) / np.maximum(1, lengths)))


def check_hash(consumed: str, expected: PolicyVersion, tensors: int, *, subject: str, stop: str) -> None:
    """RunError unless the tensors that an engine takes have the hash that the trainer stated."""
    if consumed != expected.sha256:
        raise RunError(
            f"{subject}the engine consumed {tensors} tensors with hash {consumed[:12]}, the trainer made"
            f" {expected.sha256[:12]}: stale, partial or altered weights.{stop}"
        )


class DeliveryCheck:
    """Verifies one version after another with the same canaries; the trainer is asked once per version.

    `log_probs` is the trainer's own scorer (`Trainer.log_probs`).
    """

    def __init__(
        self,
        log_probs: Callable[[PolicyVersion, Sequence[Response]], Array],
        canaries: Sequence[Response],
        tolerance: float = FLOAT32_TOLERANCE,
        tokenizer: str = "",
    ) -> None:
        self._log_probs = log_probs
        self._canaries = tuple(canaries)
        self._tolerance = tolerance
        self._tokenizer = tokenizer
        self._version_log_probs: tuple[str, Array] | None = None

    def __call__(self, engine: RolloutEngine, delivery: Delivery, expected: PolicyVersion) -> VerifiedDelivery:
        if self._version_log_probs is None or self._version_log_probs[0] != expected.sha256:
            self._version_log_probs = (expected.sha256, self._log_probs(expected, self._canaries))
        return verify(
            engine, delivery, expected, self._canaries, self._version_log_probs[1], self._tolerance, self._tokenizer
        )
