"""Feedback drawn from reward and cost models, and the labels on which such models are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pddpo_ray.algorithms.stages import neighbours_of
from pddpo_ray.config import ModelFeedback, ScorerTrainingConfig
from pddpo_ray.contracts import Labeller
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.loop.labelling import FeedbackController
from pddpo_ray.loop.sampling import RolloutController
from pddpo_ray.records import (
    CostEstimate,
    Decoding,
    LabelledPair,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
    Verdict,
)
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.theory.cost_estimate import estimate_cost, estimate_from_scores, within_prompt_variance
from pddpo_ray.theory.seeds import seed_of


class ScoredFeedbackController(FeedbackController):
    """Feedback from a reward and a cost model. `signal` cost_model estimates from the scores instead of labels.

    Then one label per answer is journalled, the side of zero that its score is on; the estimate scores the answers
    themselves, so a window over several rounds needs nothing but the journal.
    """

    def __init__(
        self,
        labeller: ScoredLabeller,
        journal: Journal,
        settings: ModelFeedback,
        *,
        seed: int,
        constraint: str,
        cost_max: float,
    ) -> None:
        super().__init__({constraint: labeller}, journal, seed=seed, source="model")
        self._models, self._settings, self._cost_max = labeller, settings, cost_max

    def open_safety(self, items: Sequence[Response], labels_each: int) -> None:
        super().open_safety(items, self._wanted(labels_each))

    def safety(self, items: Sequence[Response], labels_each: int, constraint: str | None = None) -> list[SafetyLabels]:
        return super().safety(items, self._wanted(labels_each), constraint)

    def _wanted(self, labels_each: int) -> int:
        # A fixed number of labels from one deterministic source says no more than one.
        return 1 if self._from_scores else labels_each

    def estimate_cost(self, verdicts: Sequence[SafetyLabels]) -> CostEstimate:
        """The recipe's signal, of answers that were labelled."""
        constraint = verdicts[0].constraint
        if self._from_scores:
            scores = self._models.costs([item.response for item in verdicts])
            # The constraint is on the model's own scale, where its scores carry no label noise.
            spread = within_prompt_variance(scores, 0.0, [item.response.prompt.id for item in verdicts])
            return replace(estimate_from_scores(scores, constraint=constraint), within_variance=spread)
        return estimate_cost(
            verdicts,
            labels_each=self._settings.labels_each,
            cost_max=self._cost_max,
            mode=self._settings.signal,
            constraint=constraint,
        )

    @property
    def _from_scores(self) -> bool:
        return self._settings.signal == "cost_model"


def labelled_reference_answers(
    journal: Journal,
    rollout: RolloutController,
    prompts: Sequence[Prompt],
    reference: PolicyVersion,
    labeller: Labeller,
    settings: ScorerTrainingConfig,
    *,
    max_tokens: int,
    seed: int,
) -> tuple[list[LabelledPair], dict[str, bool]]:
    """Pairs of the reference's answers with their labels, and one safety label per answer; drawn and paid for once."""
    per_prompt = 2 * -(-settings.pairs // len(prompts))
    if "pool-scorers" not in {entry.phase for entry in journal.phases(0)}:
        rollout.publish(reference)
    decoding = Decoding(temperature=settings.temperature, max_tokens=max_tokens)
    answers = rollout.pool("scorers", prompts, reference, per_prompt, decoding)
    pairs = neighbours_of(answers, per_prompt)[: settings.pairs]
    asked = list({answer.id: answer for pair in pairs for answer in (pair.first, pair.second)}.values())
    labelled = labeller.compare(pairs, seed_of(seed, "scorers", "compare"))
    bits = labeller.safety(asked, 1, seed_of(seed, "scorers", "safety"))
    unsafe = {item.response.id: item.labels[0] is Verdict.UNSAFE for item in bits if item.labels}
    if len(labelled) != len(pairs) or len(unsafe) != len(asked):
        raise RunError(f"labels for the scorers are missing: {len(labelled)} of {len(pairs)} pairs were labelled")
    journal.add_metrics({"labels/scorers": 2 * len(pairs) + len(asked)})
    return labelled, unsafe
