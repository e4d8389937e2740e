"""The kinds of sources that a limit can name, with what each may be told: `{classifier: models/guard, label: unsafe}`.

Those that ship; an installed package brings others as entry points of the group `pddpo_ray.sources`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pddpo_ray.limits.quantities import VERDICT, Scale
from pddpo_ray.registry import Extension

SOURCES = "pddpo_ray.scoring.sources"
OPENERS = f"{SOURCES}.openers"
ASKED = ("key_env", "workers", "timeout", "tries")
OF_A_MODEL = ("model", "endpoint", "temperature", "max_tokens", "fields", *ASKED)
"""How a service is asked, and a language model behind one."""
FREE_SOURCES = ("rule", "regex", "json_schema", "function", "classifier", "score_model")
"""Kinds whose measurements cost nothing but time: no judge, service or person is asked."""


@dataclass(frozen=True)
class SourceKind(Extension):
    """What can measure. Its code takes a `limits.sources.Opening` and returns a `limits.sources.Source`.

    `SourceKind("my_package:open_shouting", settings=Shouting, scale=Scale("shouts", low=0.0),
               verdicts=False)`
    """

    options: tuple[str, ...] = ()
    """Keys beside (or under) its name whose values its code checks itself; `settings` checks all of them."""
    scale: Scale | None = None
    """Unit and bounds of one measurement; None: as the limit states them."""
    verdicts: bool = True
    """Whether it can say yes or no about an answer, so that a rate can be taken of it."""
    files: tuple[str, ...] = ()
    """Keys whose values may be files: those in the recipe's folder are found there."""


RULE = SourceKind(f"{OPENERS}:open_rule", options=("tokenizer", "is"), scale=VERDICT)
REGEX = SourceKind(f"{OPENERS}:open_regex", scale=VERDICT)
JSON_SCHEMA = SourceKind("pddpo_ray.limits.local_sources:json_schema_source", scale=VERDICT)
FUNCTION = SourceKind("pddpo_ray.limits.functions:function_source", options=("seconds", "folder"))
CLASSIFIER = SourceKind(
    f"{OPENERS}:open_classifier",
    options=("label", "threshold", "template", "max_tokens", "batch"),
    scale=Scale("probability", low=0.0, high=1.0),
)
SCORE_MODEL = SourceKind(
    f"{SOURCES}.models:score_model_source", options=("template", "scale", "shift", "max_tokens", "batch", "above")
)
JUDGE = SourceKind(f"{SOURCES}.judge:judge_source", options=("question", *OF_A_MODEL))
ENDPOINT = SourceKind(f"{SOURCES}.endpoint:endpoint_source", options=("url", *ASKED, "version"))
GRADER = SourceKind(f"{SOURCES}.graders:grader_source", options=OF_A_MODEL)
PEOPLE = SourceKind(f"{OPENERS}:open_people", options=("question", "labels_each"), scale=VERDICT)
WORLD = SourceKind(f"{OPENERS}:open_world")
MODEL = SourceKind(f"{OPENERS}:open_feedback", scale=Scale("score"))
"""The cost model of a run's `feedback`."""
