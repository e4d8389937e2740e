"""Work before the first round, done once: a resumed run reads the results from its journal."""

from __future__ import annotations

import logging

from pddpo_ray.backends.backends import Backends, sets_of_prompts
from pddpo_ray.certificates.groups import SETS
from pddpo_ray.config import Config
from pddpo_ray.driver.build import BuiltParts
from pddpo_ray.driver.cut_answers import watch_cut_answers
from pddpo_ray.driver.offline_setup import (
    answers_to_measure,
    check_reference,
    draw_pools,
    offline_pairs,
    record_reference,
    record_sources,
)
from pddpo_ray.journal import Journal
from pddpo_ray.parts.reachable import note_reachable
from pddpo_ray.scorers.gate import check_limits, check_scorers
from pddpo_ray.scorers.labellers import judging_models

logger = logging.getLogger(__name__)


def prepare(config: Config, journal: Journal, backends: Backends, parts: BuiltParts, *, online: bool) -> None:
    """Records the reference, trains scorers, draws pools, labels offline pairs and measures their answers. May use
    people, engines, networks and judges. The method can run after it."""
    record_reference(journal, backends)
    if backends.measured_by:
        record_sources(journal, backends)
    check_reference(journal, backends, parts.rollout)
    parts.feedback.prepare()
    draw_pools(config, journal, backends, parts.rollout, online)
    offline_pairs(config, journal, backends, parts.rollout, parts.labels_before or parts.feedback, parts.preferences)
    if (models := judging_models(config, parts.feedback)) is not None:
        check_scorers(config, journal, models, backends.offline_unsafe, by_prompt=backends.world is None)
    check_limits(config, journal)
    groups = sets_of_prompts(backends)
    if config.certificate.mixtures and groups:
        journal.once(SETS, lambda: groups)
    for name, margin in parts.margins.items():
        logger.info("%s", margin.line(name, config.thresholds[name]))
    journal.add_metrics({f"dual/margin_{name}": margin.kept for name, margin in parts.margins.items()})
    watch_cut_answers(config, journal, backends)
    first = answers_to_measure(config, journal, backends, online)
    if parts.rewards is not None:
        parts.rewards.measure_before(first)
    if parts.limits.by_sources:
        parts.limits.measure_before(first)
        chances = backends.prior or [1.0] * len(backends.prompts)
        prior = {prompt.token_ids: chance for prompt, chance in zip(backends.prompts, chances, strict=True)}
        note_reachable(journal, backends.held_limits, parts.limits.before, prior)
    if parts.whitened is not None:
        parts.whitened.prepare()
    if parts.explorer is not None:
        parts.explorer.read_back()
    if parts.scorecard is not None:
        parts.scorecard.before()
