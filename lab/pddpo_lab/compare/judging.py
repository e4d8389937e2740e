"""What a suite can say of policies on real text, where no world knows the truth: scores on prompts no run has seen.

The judges are a reward and a cost model of their own: those that the suite names, or ones that start as the seed's
reference and are trained on the pairs of the held-out prompts alone (`data.held_out`), so neither they nor the
questions had a part in any run. How often they agree with the labels of the runs' own pairs, which they have not seen,
is kept beside all they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pddpo_lab.compare.suite import HeldOutEntry
from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config
from pddpo_ray.data.real_text import PreparedRealText
from pddpo_ray.evaluate.scorers import fingerprint
from pddpo_ray.parts.fitting import with_steps
from pddpo_ray.parts.prompts import spread_prompts
from pddpo_ray.records import HARM, Array, Decoding, PolicyVersion, Response, Verdict
from pddpo_ray.scorers.fits import ScorerOrder, stored_scorer
from pddpo_ray.scoring.held_out import KINDS, Kind
from pddpo_ray.scoring.interface import AnswerScorer, ModelScorer
from pddpo_ray.scoring.stored_scorers import load_scorer
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.theory.seeds import seed_of

Judged = dict[str, Any]


class HeldOutJudge:
    """Judges the policies of one seed. `backends` are those of any of its runs; `recall` must be given there."""

    def __init__(self, settings: HeldOutEntry, config: Config, prepared: PreparedRealText, backends: Backends) -> None:
        assert backends.recall is not None
        self._settings, self._config, self._prepared = settings, config, prepared
        self._backends, self._recall = backends, backends.recall
        self._questions = spread_prompts([item.pair.prompt for item in prepared.held_out], settings.questions)
        named = {"reward": settings.reward_model, "cost": settings.cost_model}
        self._models = {kind: _named(folder) if (folder := named[kind]) else self._trained(kind) for kind in KINDS}
        self._scorer = ModelScorer(*(self._opened(kind) for kind in KINDS))

    def of(self, policy: PolicyVersion) -> Judged:
        """Numbers per question and per pair, helpfulness and harmlessness as differences from the reference's, whose
        own are there too."""
        own, base = (self._measured(version) for version in (policy, self._backends.reference))
        differences = {
            name: (np.array(own[name]) - np.array(base[name])).tolist() for name in ("helpfulness", "harmlessness")
        }
        reference = {name: base[name] for name in ("helpfulness", "harmlessness", "length")}
        return {**own, **differences, "reference": reference, "scorers": self._accuracies()}

    # --- policies -----------------------------------------------------------------------------------------------------

    def _measured(self, policy: PolicyVersion) -> dict[str, list[float]]:
        what = ["judged", policy.sha256, self._config.rollout.max_tokens, self._settings.answers]
        asked = [[prompt.token_ids for prompt in self._questions], {k: m["sha256"] for k, m in self._models.items()}]
        measured: dict[str, list[float]] = self._recall([*what, *asked], lambda: self._measure(policy))
        return measured

    def _measure(self, policy: PolicyVersion) -> dict[str, list[float]]:
        answers = self._answers(policy)
        rewards, costs = self._scorer(answers)
        drawn = np.array([answer.log_prob for answer in answers])
        per_question = {
            "helpfulness": rewards,
            "harmlessness": -costs,
            "kl": drawn - self._backends.trainer.log_probs(self._backends.reference, answers),
            "length": np.array([len(answer.token_ids) for answer in answers], dtype=np.float64),
        }
        means = {name: self._per_question(values).tolist() for name, values in per_question.items()}
        return means | self._agreement(policy)

    def _answers(self, policy: PolicyVersion) -> list[Response]:
        """`answers` of the policy to each question, those to one question together."""
        engine = self._backends.engines[0]
        engine.deliver(policy)
        seeds = [seed_of(self._config.seed, "judged", prompt.id) for prompt in self._questions]
        decoding = Decoding(max_tokens=self._config.rollout.max_tokens)
        drawn = engine.sample(self._questions, seeds, self._settings.answers, decoding)
        return [
            Response(f"judged-{prompt.id}-{index}", prompt, tuple(ids), text, policy.number, seed, log_prob)
            for prompt, seed, replies in zip(self._questions, seeds, drawn, strict=True)
            for index, (ids, text, log_prob) in enumerate(replies)
        ]

    def _per_question(self, values: Array) -> Array:
        return values.reshape(len(self._questions), self._settings.answers).mean(axis=1)

    def _agreement(self, policy: PolicyVersion) -> dict[str, list[float]]:
        """Per held-out pair 1 where log pi/pi_ref prefers the better (the safer) answer, 0 where it does not."""
        pairs = self._prepared.held_out
        answers = [answer for item in pairs for answer in (item.pair.first, item.pair.second)]
        trainer = self._backends.trainer
        ratios = trainer.log_probs(policy, answers) - trainer.log_probs(self._backends.reference, answers)
        prefers_first = (ratios[::2] - ratios[1::2]).tolist()
        return {
            "agrees_better": _agreed(prefers_first, [item.helpful for item in pairs], Verdict.FIRST),
            "agrees_safer": _agreed(prefers_first, [item.label(HARM) for item in pairs], Verdict.SECOND),
        }

    # --- judges -------------------------------------------------------------------------------------------------------

    def _trained(self, kind: Kind) -> dict[str, Any]:
        settings = self._config.scorers
        pairs = self._prepared.held_out
        order = ScorerOrder(
            kind,
            self._backends.reference,
            with_steps(settings.optimiser, len(pairs)),
            seed_of(self._config.seed, "judge", kind),
            held_out=0.0,
            ways=settings.ways,
        )
        return order.trained(pairs, self._prepared.offline_unsafe, self._backends.store, self._recall)

    def _opened(self, kind: Kind) -> AnswerScorer:
        made = self._models[kind]
        if "named" in made:
            return load_scorer(made["named"], dtype=self._config.model.dtype)
        return stored_scorer(str(self._backends.store.root), made["path"], made["sha256"])

    def _accuracies(self) -> dict[str, list[float]]:
        """Per pair that the runs learned from, whether the judge puts its answers in the order of the label."""
        pairs = self._prepared.pairs
        answers = [answer for item in pairs for answer in (item.pair.first, item.pair.second)]

        def score() -> list[list[float]]:
            return [values.tolist() for values in self._scorer(answers)]

        what = ["judges", {kind: made["sha256"] for kind, made in self._models.items()}]
        rewards, costs = self._recall([*what, [answer.token_ids for answer in answers]], score)
        sides = [
            [first - second for first, second in zip(row[::2], row[1::2], strict=True)] for row in (rewards, costs)
        ]
        return {
            "reward": _agreed(sides[0], [item.helpful for item in pairs], Verdict.FIRST),
            "cost": _agreed(sides[1], [item.label(HARM) for item in pairs], Verdict.FIRST),
        }


def _named(folder: str) -> dict[str, Any]:
    return {"named": folder, "sha256": fingerprint([folder])}


def _agreed(sides: Sequence[float], verdicts: Sequence[Verdict], positive: Verdict) -> list[float]:
    """Per decided pair 1, 0 or, where the two answers tie, 0.5. A positive side stands for `positive`."""
    decided = [(side, verdict) for side, verdict in zip(sides, verdicts, strict=True) if verdict in DECIDED]
    return [agreement(side if verdict is positive else -side) for side, verdict in decided]


DECIDED = (Verdict.FIRST, Verdict.SECOND)
