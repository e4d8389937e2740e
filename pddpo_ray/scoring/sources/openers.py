"""Openers of the kinds of sources without a file of their own (`limits.source_kinds` names all kinds)."""

from __future__ import annotations

from pddpo_ray.errors import UserError
from pddpo_ray.limits.given_labels import people_source
from pddpo_ray.limits.local_sources import language_source, regex_source, rule_source
from pddpo_ray.limits.sources import Opening, Source
from pddpo_ray.scoring.sources.profanity import PROFANITY, profanity_source


def open_rule(given: Opening) -> Source:
    if "tokenizer" in given.options:
        from pddpo_ray.scoring.sources.models import tokens_source  # seconds to import

        return tokens_source(given)
    if given.what == "language":
        return language_source(given.where, given.options.get("is"))
    return rule_source(given.where, given.what)


def open_regex(given: Opening) -> Source:
    return regex_source(given.where, given.what, given.folder)


def open_classifier(given: Opening) -> Source:
    if given.what == PROFANITY:
        return profanity_source(given)
    from pddpo_ray.scoring.sources.models import classifier_source  # seconds to import

    return classifier_source(given)


def open_people(given: Opening) -> Source:
    return people_source(given.limit, given.labels_each, wins=given.comparing)


def open_world(given: Opening) -> Source:
    raise UserError(f"{given.where}: world measures in a run alone")


def open_feedback(given: Opening) -> Source:
    raise UserError(
        f"{given.where}: `model` is the cost model of a run's `feedback`; elsewhere name the model itself,"
        " {score_model: FOLDER}"
    )
