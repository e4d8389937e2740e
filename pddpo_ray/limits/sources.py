"""Who measures an answer: a rule that ships, patterns in a file, a JSON schema, or a function of yours.

A source returns a number, a yes or no, or nothing. What fails or abstains is `Unmeasured` with its reason and never
becomes a number.
"""

from __future__ import annotations

import difflib
import importlib
import json
import math
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.limits.quantities import Kind
from pddpo_ray.limits.rules import RULES

FUNCTION_SECONDS = 10.0
"""How long a user's function may take for one answer."""
TOKEN_LIKE = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Unmeasured:
    """No number, and why: the source failed, or it abstained."""

    reason: str
    abstained: bool = False


@dataclass(frozen=True)
class Answer:
    """What a source is handed: the prompt as text, the answer, and the row that both stand in."""

    prompt: str
    response: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """One way to measure an answer. `unit` and the bounds are those of a single measurement."""

    name: str
    measure: Callable[[Answer], object]
    unit: str
    verdict: bool
    """Whether values are shares: True, False or a probability."""
    low: float | None = None
    high: float | None = None
    note: str = ""
    """What a reader of the numbers should know about them."""

    def __call__(self, answer: Answer) -> float | Unmeasured:
        """The measure of one answer. An exception, a wrong type, NaN or a value outside the bounds is no number."""
        try:
            value = self.measure(answer)
        except Exception as error:
            return Unmeasured(f"{type(error).__name__}: {error}")
        if isinstance(value, Unmeasured):
            return value
        if value is None:
            return Unmeasured("abstained", abstained=True)
        if isinstance(value, bool) and self.verdict:
            return float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return Unmeasured(f"gave {value!r}, which is no number")
        if not math.isfinite(value):
            return Unmeasured(f"gave {value!r}")
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            return Unmeasured(f"gave {value:g}, outside [{self.low}, {self.high}]")
        return float(value)


def open_source(where: str, kind: Kind, given: Any, folder: Path) -> Source:
    """The source that a limit names, e.g. {rule: words}. Paths are relative to `folder`. Raises UserError."""
    if not isinstance(given, dict) or len(given) != 1:
        raise UserError(f"{where}.{kind} names one source, e.g. {{rule: words}} or {{regex: pii.txt}}; got {given}")
    (name, value), *_ = given.items()
    if name not in SOURCES:
        near = difflib.get_close_matches(str(name), list(SOURCES), 1, 0.5)
        mend = (
            f"; did you mean `{near[0]}`?" if near else f"; answers in a file can be measured by {', '.join(SOURCES)}"
        )
        raise UserError(f"{where}.{kind}: `{name}` cannot measure a file of answers{mend}")
    source = SOURCES[name](f"{where}.{kind}.{name}", str(value), folder)
    if kind == "rate" and not source.verdict:
        raise UserError(
            f"{where}: {source.name} counts {source.unit}; use `mean` for it, or a rule that says yes or no"
        )
    if name == "function" and kind == "mean":
        return replace(source, unit="", verdict=False, low=None, high=None)
    return source


def _rule(where: str, name: str, folder: Path) -> Source:
    if name == "tokens":
        note = "tokens are counted as words and punctuation marks, not by a model's tokenizer"
        return Source(
            "rule tokens", lambda answer: len(TOKEN_LIKE.findall(answer.response)), "tokens", False, 0.0, None, note
        )
    if name not in RULES:
        near = difflib.get_close_matches(name, ["tokens", *RULES], 1, 0.5)
        known = f"did you mean `{near[0]}`?" if near else f"rules are tokens, {', '.join(RULES)}"
        raise UserError(f"{where}: there is no rule `{name}`; {known}")
    rule = RULES[name]
    return Source(
        f"rule {name}", lambda answer: rule.measure(answer.response), rule.unit, rule.verdict, rule.low, rule.high
    )


def _regex(where: str, name: str, folder: Path) -> Source:
    """Yes where a pattern of the file matches: one a line, blank lines and those that begin with # left out."""
    patterns = []
    for number, line in enumerate(_lines(where, folder / name), start=1):
        if line.strip() and not line.startswith("#"):
            try:
                patterns.append(re.compile(line.strip()))
            except re.error as error:
                raise UserError(f"{where}: {name} line {number} is no regular expression: {error}") from error
    if not patterns:
        raise UserError(f"{where}: {name} holds no pattern; write one regular expression a line")

    def matches(answer: Answer) -> bool:
        return any(pattern.search(answer.response) for pattern in patterns)

    return Source(f"regex {name}", matches, "share", True, 0.0, 1.0)


def _json_schema(where: str, name: str, folder: Path) -> Source:
    """Yes where the answer is JSON that the schema allows."""
    import jsonschema  # here: a recipe without schemas does not need it

    try:
        schema = json.loads("\n".join(_lines(where, folder / name)))
        validator = jsonschema.validators.validator_for(schema)
        validator.check_schema(schema)
    except (json.JSONDecodeError, jsonschema.SchemaError) as error:
        raise UserError(f"{where}: {name} is no JSON schema: {str(error).splitlines()[0]}") from error
    valid = validator(schema)

    def allowed(answer: Answer) -> bool:
        try:
            return bool(valid.is_valid(json.loads(answer.response)))
        except (json.JSONDecodeError, RecursionError):
            return False

    return Source(f"JSON schema {name}", allowed, "share", True, 0.0, 1.0)


def _function(where: str, name: str, folder: Path) -> Source:
    """`package.module:name`, called as name(prompt, response, row) with a time limit."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UserError(f"{where}: write package.module:name, got `{name}`")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{where}: {name} cannot be imported: {error}") from error
    if not callable(function):
        raise UserError(f"{where}: {name} is not a function")
    return Source(f"function {name}", lambda answer: _within_time(function, answer), "share", True, 0.0, 1.0)


def _within_time(function: Callable[..., object], answer: Answer) -> object:
    """What the function returns; Unmeasured if it takes too long. Raises what it raises."""
    outcome: list[object] = []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            outcome.append(function(answer.prompt, answer.response, dict(answer.row)))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(FUNCTION_SECONDS)
    if thread.is_alive():
        return Unmeasured(f"took longer than {FUNCTION_SECONDS:g} s")
    if raised:
        raise raised[0]
    return outcome[0]


def _lines(where: str, path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: {path} cannot be read as text ({error})") from error


SOURCES: Mapping[str, Callable[[str, str, Path], Source]] = {
    "rule": _rule,
    "regex": _regex,
    "json_schema": _json_schema,
    "function": _function,
}
"""What can measure answers in a file, by the key that a limit uses."""
