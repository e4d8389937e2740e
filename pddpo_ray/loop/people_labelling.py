"""People as the labeller of a run, alone or beside a model: the queue in the journal's database, settings by recipe."""

from __future__ import annotations

from pddpo_ray.annotation.estimates import FromShares
from pddpo_ray.annotation.queue_labeller import PeopleLabeller, Waiting
from pddpo_ray.annotation.queue_rules import Rules
from pddpo_ray.annotation.world_truth import imperfect_model
from pddpo_ray.config import AskedPeople, Config, MixedFeedback, WorldScores
from pddpo_ray.journal import Journal
from pddpo_ray.loop.mixed_labelling import MixedFeedbackController, ScoringModel
from pddpo_ray.theory.cost_estimate import estimate_from_shares


def people_labeller(settings: AskedPeople, journal: Journal, *, cost_max: float) -> PeopleLabeller:
    """Asks in the journal's present round; what it says about people is kept as metrics of that round."""
    return PeopleLabeller(
        journal.engine,
        journal.run_id,
        lambda: journal.round,
        rules_of(settings),
        Waiting(settings.deadline_s, settings.park_after_s, settings.missing == "decide", settings.poll_s),
        estimate=_estimate(settings, cost_max),
        record=journal.add_metrics,
    )


def mixed_feedback(
    constraint: str, config: Config, journal: Journal, model: ScoringModel | None = None
) -> MixedFeedbackController:
    """A model and people together, as the recipe divides the work; no model: scores with errors from the truth."""
    settings = config.feedback
    assert isinstance(settings, MixedFeedback)
    people = people_labeller(settings, journal, cost_max=config.dual.cost_max)
    if model is None:
        assert isinstance(settings.model, WorldScores)
        model = imperfect_model(config, noise=settings.model.noise, bias=settings.model.bias)
    return MixedFeedbackController(
        constraint, people, model, settings, journal, cost_max=config.dual.cost_max, seed=config.seed
    )


def rules_of(settings: AskedPeople) -> Rules:
    """The queue's rules, the same in the run and in the service."""
    return Rules(lease_s=settings.lease_s, gold_rate=settings.gold_rate)


def _estimate(settings: AskedPeople, cost_max: float) -> FromShares:
    return lambda shares: estimate_from_shares(
        shares, labels_each=settings.labels_each, cost_max=cost_max, mode=settings.signal
    )
