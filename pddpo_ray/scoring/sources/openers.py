"""Openers of the kinds of sources without a file of their own (`limits.source_kinds` names all kinds)."""

from __future__ import annotations

from pddpo_ray.errors import UserError
from pddpo_ray.limits.given_labels import people_source
from pddpo_ray.limits.local_sources import language_source, regex_source, rule_source
from pddpo_ray.limits.sources import Opening, Source
from pddpo_ray.scoring.sources.profanity import PROFANITY, profanity_source


def open_rule(opening: Opening) -> Source:
    if "tokenizer" in opening.options:
        from pddpo_ray.scoring.sources.models import tokens_source  # seconds to import

        return tokens_source(opening)
    if opening.what == "language":
        return language_source(opening.where, opening.options.get("is"))
    return rule_source(opening.where, opening.what)


def open_regex(opening: Opening) -> Source:
    return regex_source(opening.where, opening.what, opening.folder)


def open_classifier(opening: Opening) -> Source:
    if opening.what == PROFANITY:
        return profanity_source(opening)
    from pddpo_ray.scoring.sources.models import classifier_source  # seconds to import

    return classifier_source(opening)


def open_people(opening: Opening) -> Source:
    return people_source(opening.limit, opening.labels_each, wins=opening.comparing)


def open_world(opening: Opening) -> Source:
    raise UserError(f"{opening.where}: world measures in a run alone")


def open_feedback(opening: Opening) -> Source:
    raise UserError(
        f"{opening.where}: `model` is the cost model of a run's `feedback`; elsewhere name the model itself,"
        " {score_model: FOLDER}"
    )
