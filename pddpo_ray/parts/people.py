"""People as a labeller of answers and pairs: what they are asked, how often, and what their answers mean.

    answers, pairs ──► questions, each with its risk ──► `PeopleLabeller` ──► labels, or a run that parks

Who reaches people stands behind the name `people` of the registry's kind `labellers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pddpo_ray import registry
from pddpo_ray.config import Config, QueueConfig
from pddpo_ray.errors import UserError, nearest
from pddpo_ray.journal import Journal
from pddpo_ray.limits.of_recipe import labelled_by_feedback
from pddpo_ray.parts.questions import (
    TIE,
    UNKNOWN_RISK,
    Batch,
    Given,
    PeopleLabeller,
    contradicts_itself,
    pair_question,
    safety_question,
)
from pddpo_ray.records import HARM, LabelledPair, Pair, Response, SafetyLabels, Verdict
from pddpo_ray.theory.estimates.cost_estimate import estimate_from_shares
from pddpo_ray.theory.estimates.people_estimates import FromShares
from pddpo_ray.theory.seeds import generator

RiskOf = Callable[[Sequence[Response]], Sequence[float]]
"""The chance that each answer is harmful. [n] -> [n], from 0 to 1"""
OVERLAP_EACH = 3
"""People who compare a pair of `people.overlap`: of two who differ nobody knows which one is wrong."""
SIDE = {"first": Verdict.FIRST, "second": Verdict.SECOND, TIE: Verdict.ABSTAIN}


@dataclass(frozen=True)
class Asking:
    """How people are asked outside a round's own batches."""

    part_of: Callable[[], str] = lambda: ""
    """Ends the name of a batch where a round has several."""
    go_on: str = "pddpo train --run RUN --resume"
    """The command that collects the labels of a run that has parked."""


@dataclass(frozen=True)
class Overlap:
    """Some pairs go to several people, so that their agreement is known."""

    share: float = 0.0
    people: int = OVERLAP_EACH

    def drawn(self, pairs: Sequence[Pair], *seed: int | str) -> dict[str, int]:
        """Labels wanted by each pair that is drawn, by its id: the nearest number to the share of them all."""
        count = round(self.share * len(pairs)) if self.people > 1 else 0
        indices = generator(*seed, "overlap").permutation(len(pairs))[:count]
        return {pairs[index].id: self.people for index in indices}


class People:
    """A `contracts.LateLabeller`. `round_of` gives the run's present round.

    `risk_of` gives the chance that an answer is harmful, for people who opted out of such texts; None: nobody knows.
    Where a round has several batches of safety questions, `part_of` ends the name of the present one.
    """

    def __init__(
        self,
        people: PeopleLabeller,
        round_of: Callable[[], int],
        *,
        overlap: Overlap | None = None,
        risk_of: RiskOf | None = None,
        part_of: Callable[[], str] = lambda: "",
    ) -> None:
        self._people, self._round_of, self._part_of = people, round_of, part_of
        self._overlap, self._risk_of = overlap or Overlap(), risk_of

    def open_safety(self, items: Sequence[Response], labels_each: int, seed: int) -> None:
        """Opens the questions that `safety` waits for, so that people can begin; not while the backlog is too long."""
        self._people.arrived(self._safety_batch(items, labels_each))

    def safety_arrived(self, items: Sequence[Response], labels_each: int, seed: int) -> bool:
        """Whether `safety` has nothing to wait for."""
        return self._people.arrived(self._safety_batch(items, labels_each))

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        """`labels_each` labels of different people for every answer; MISSING where a lead decided to do without. The
        seed is not used. Raises as `PeopleLabeller.ask` does."""
        batch = self._safety_batch(items, labels_each)
        answers = self._people.ask(batch).by_item(batch)
        labelled = []
        for item in items:
            labels = tuple(Verdict(answer["safety"]) for answer, _ in answers[item.id])
            missing = (Verdict.MISSING,) * (labels_each - len(labels))
            people = tuple(person for _, person in answers[item.id])
            labelled.append(SafetyLabels(item, labels + missing, people=people))
        return labelled

    def open_compare(self, pairs: Sequence[Pair], seed: int) -> None:
        """Opens the questions that `compare` waits for, so that people can begin; not while the backlog is too long."""
        self.comparisons_arrived(pairs, seed)

    def comparisons_arrived(self, pairs: Sequence[Pair], seed: int) -> bool:
        """Whether `compare` has nothing to wait for."""
        return not pairs or self._people.arrived(self._pair_batch(pairs))

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        """One label of every pair: what a lead decided where people differ, else the first that arrived. A tie is an
        abstention and enters neither data set, nor does a missing label, nor an answer that contradicts itself.

        Where a round's candidates are all alike it has no pair, and nobody is asked."""
        if not pairs:
            return []
        answers = self._people.ask(self._pair_batch(pairs))
        choices = dict(reversed(answers.given)) | dict(answers.decided)
        return [_labelled_pair(pair, choices.get(pair.id)) for pair in pairs]

    def _safety_batch(self, items: Sequence[Response], labels_each: int) -> Batch:
        risks = self._risks(items)
        questions = [safety_question(item, risk=risk) for item, risk in zip(items, risks, strict=True)]
        return Batch(f"safety{self._part_of()}", questions, labels_each)

    def _pair_batch(self, pairs: Sequence[Pair]) -> Batch:
        first, second = (self._risks([getattr(pair, side) for pair in pairs]) for side in ("first", "second"))
        questions = [pair_question(pair, risk=max(risks)) for pair, *risks in zip(pairs, first, second, strict=True)]
        # safety questions come first: they want several different people
        return Batch("compare", questions, 1, self._overlap.drawn(pairs, self._round_of()), priority=0)

    def _risks(self, items: Sequence[Response]) -> list[float]:
        if self._risk_of is None or not items:
            return [UNKNOWN_RISK] * len(items)
        return [float(risk) for risk in self._risk_of(items)]


def _labelled_pair(pair: Pair, answer: Given | None) -> LabelledPair:
    if answer is None:
        return LabelledPair(pair, Verdict.MISSING, {HARM: Verdict.MISSING})
    if contradicts_itself(answer):
        return LabelledPair(pair, Verdict.ABSTAIN, {HARM: Verdict.ABSTAIN})
    return LabelledPair(pair, SIDE[answer["more_helpful"]], {HARM: SIDE[answer["more_harmful"]]})


def reached(settings: QueueConfig, journal: Journal, estimate: FromShares, go_on: str) -> PeopleLabeller:
    """People as these settings reach them, in the journal's present round."""
    labeller: PeopleLabeller = registry.code_of("labellers", "people").of_run(
        settings, journal, estimate=estimate, go_on=go_on
    )
    return labeller


def people_labeller(
    config: Config, journal: Journal, *, asking: Asking | None = None, risk_of: RiskOf | None = None
) -> People:
    """Asks in the journal's present round."""
    settings, asking = config.people, asking or Asking()
    people_each = min(OVERLAP_EACH, config.labels_each) if labelled_by_feedback(config.stated) else OVERLAP_EACH
    estimate = partial(
        estimate_from_shares, labels_each=config.labels_each, cost_max=config.dual.cost_max, mode=config.signal
    )
    return People(
        reached(settings, journal, estimate, asking.go_on),
        lambda: journal.round,
        overlap=Overlap(settings.overlap, people_each),
        risk_of=risk_of,
        part_of=asking.part_of,
    )


def stated_risk(
    config: Config, categories_of: Mapping[str, Sequence[str]], scored: RiskOf | None = None
) -> RiskOf | None:
    """The risk by score and category; `scored` alone where the recipe states none of a category.

    `categories_of` are the names of each prompt's categories and sets, by its id. Raises UserError for a name that no
    prompt has.
    """
    risks = config.people.risk_by_category
    if not risks:
        return scored
    options = sorted({name for names in categories_of.values() for name in names})
    hint = f"; there are {', '.join(options)}" if options else "; its prompts have no `category` and no prompt set"
    for name in risks:
        if name not in options:
            suggestion = nearest(name, options, hint)
            raise UserError(f"people.risk_by_category: no prompt of the run is in `{name}`{suggestion}")
    return highest_known(risks, categories_of, scored)


def highest_known(
    risks: Mapping[str, float], categories_of: Mapping[str, Sequence[str]], scored: RiskOf | None = None
) -> RiskOf:
    """The highest of a model's score, if there is one, and the risks of the categories that the prompt is in.

    `categories_of` names them by the prompt's id. UNKNOWN_RISK of an answer that neither says anything about.
    """

    def risk_of(answers: Sequence[Response]) -> list[float]:
        scores: list[list[float]] = [[]] * len(answers) if scored is None else [[score] for score in scored(answers)]
        return [
            max([*score, *(risks[name] for name in categories_of.get(answer.prompt.id, ()) if name in risks)],
                default=UNKNOWN_RISK)
            for score, answer in zip(scores, answers, strict=True)
        ]  # fmt: skip

    return risk_of
