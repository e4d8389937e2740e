"""People as the labeller of a run: its queue in the journal's database, its settings from the recipe."""

from __future__ import annotations

from pddpo_ray.annotation.estimates import FromShares
from pddpo_ray.annotation.labeller import Patience, PeopleLabeller
from pddpo_ray.annotation.rules import Rules
from pddpo_ray.config import tree
from pddpo_ray.cost_estimate import estimate_from_shares
from pddpo_ray.journal import Journal


def people_labeller(settings: tree.PeopleFeedback, journal: Journal, *, cost_max: float) -> PeopleLabeller:
    """Asks in the journal's present round; what it says about people is kept as metrics of that round."""
    return PeopleLabeller(
        journal.engine,
        journal.run_id,
        lambda: journal.round,
        rules_of(settings),
        Patience(settings.deadline_s, settings.park_after_s, settings.missing == "decide", settings.poll_s),
        estimate=_estimate(settings, cost_max),
        record=journal.add_metrics,
    )


def rules_of(settings: tree.PeopleFeedback) -> Rules:
    """The queue's rules, the same in the run and in the service."""
    return Rules(lease_s=settings.lease_s, gold_rate=settings.gold_rate)


def _estimate(settings: tree.PeopleFeedback, cost_max: float) -> FromShares:
    return lambda shares: estimate_from_shares(
        shares, labels_each=settings.labels_each, cost_max=cost_max, mode=settings.signal
    )
