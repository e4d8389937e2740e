"""How each kind of source that ships is opened (`limits.source_kinds` names these functions).

What models and endpoints need takes seconds to import, or comes with an extra: it is imported when it is opened.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pddpo_ray.errors import UserError
from pddpo_ray.limits.functions import ANSWER_SECONDS, function_source
from pddpo_ray.limits.given_labels import people_source
from pddpo_ray.limits.local_sources import json_schema_source, language_source, regex_source, rule_source
from pddpo_ray.limits.quantities import Scale
from pddpo_ray.limits.sources import Opening, Source
from pddpo_ray.limits.written_numbers import seconds_of
from pddpo_ray.scoring.sources.profanity import PROFANITY, profanity_source

if TYPE_CHECKING:
    from pddpo_ray.scoring.sources.judge import Form
    from pddpo_ray.scoring.sources.models import Says

WINS = Scale("share of wins", True, 0.0, 1.0)


def open_rule(given: Opening) -> Source:
    if "tokenizer" in given.options:
        from pddpo_ray.scoring.sources.models import tokens_source

        return tokens_source(given.where, str(given.options["tokenizer"]), given.scale, given.folder)
    if given.what == "language":
        return language_source(given.where, given.options.get("is"))
    return rule_source(given.where, given.what)


def open_regex(given: Opening) -> Source:
    return regex_source(given.where, given.what, given.folder)


def open_json_schema(given: Opening) -> Source:
    return json_schema_source(given.where, given.what, given.folder)


def open_function(given: Opening) -> Source:
    seconds = seconds_of(f"{given.where}.seconds", given.options.get("seconds", ANSWER_SECONDS))
    folder = Path(str(given.options.get("folder", given.folder)))
    return function_source(given.where, given.what, given.scale, folder, seconds)


def open_classifier(given: Opening) -> Source:
    if given.what == PROFANITY:
        return profanity_source(given.where, given.options, given.scale)
    from pddpo_ray.scoring.sources.models import classifier_source

    return classifier_source(given.where, given.what, given.options, given.scale, given.folder)


def open_score_model(given: Opening) -> Source:
    from pddpo_ray.scoring.sources.models import score_model_source

    says: Says = "comparison" if given.comparing else "verdict" if given.kind == "rate" else "score"
    model = score_model_source(given.where, given.what, given.options, given.scale, given.folder, says)
    return replace(model, scale=WINS) if given.comparing else model


def open_endpoint(given: Opening) -> Source:
    from pddpo_ray.scoring.sources.endpoint import endpoint_source

    return endpoint_source(given.where, given.what, given.options, given.scale, given.environment)


def open_grader(given: Opening) -> Source:
    from pddpo_ray.scoring.sources.graders import grader_source

    options = {**given.judge, **given.options}
    return grader_source(given.where, given.what, options, given.scale, given.folder, given.environment)


def open_people(given: Opening) -> Source:
    people = people_source(given.limit, given.labels_each, wins=given.comparing)
    return replace(people, scale=WINS) if given.comparing else people


def open_judge(given: Opening) -> Source:
    from pddpo_ray.scoring.sources.judge import judge_source

    form: Form = "score" if given.kind == "mean" else "comparison" if given.comparing else "verdict"
    options = {**given.judge, **given.options, **({"question": given.what} if given.what else {})}
    labels = given.labels_each or 1
    judge = judge_source(given.where, options, given.scale, form, given.folder, given.environment, labels)
    return replace(judge, scale=WINS) if form == "comparison" else judge


def open_world(given: Opening) -> Source:
    raise UserError(f"{given.where}: world measures in a run alone")


def open_feedback(given: Opening) -> Source:
    raise UserError(
        f"{given.where}: `model` is the cost model of a run's `feedback`; elsewhere name the model itself,"
        " {score_model: FOLDER}"
    )
