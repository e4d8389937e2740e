"""Sources that need neither a model nor a network: rules, patterns in a file, a JSON schema."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jsonschema

from pddpo_ray.errors import UserError, one_line
from pddpo_ray.limits import rules
from pddpo_ray.limits.quantities import VERDICT
from pddpo_ray.limits.sources import Answer, Opening, Source, fingerprint, one_by_one


def rule_source(where: str, name: str) -> Source:
    """A rule that ships, or one of an installed package; its version follows its file."""
    rule = rules.rule_of(where, name)
    measure = one_by_one(lambda answer: rule.measure(answer.response))
    return Source(f"rule {name}", rules.version_of(name), measure, rule.scale, note=rule.note)


def language_source(where: str, language: object) -> Source:
    """Yes where an answer is in a language, e.g. de; no number for one without letters. Raises UserError."""
    try:
        from py3langid import langid

        number = version("py3langid")
    except (ImportError, PackageNotFoundError) as error:
        raise UserError(f"{where}: the rule language needs py3langid: pip install py3langid") from error
    codes = {code for code, _ in langid.rank("")}
    if language not in codes:
        raise UserError(f"{where}: say which language by its code, e.g. {{rule: language, is: de}}; got `{language}`")

    def spoken(answer: Answer) -> bool | None:
        has_letters = any(letter.isalpha() for letter in answer.response)
        return langid.classify(answer.response)[0] == language if has_letters else None

    return Source(f"rule language {language}", f"py3langid {number} {language}", one_by_one(spoken), VERDICT)


def regex_source(where: str, name: str, folder: Path) -> Source:
    """Yes where a pattern of the file matches: one a line, blank lines and those that begin with # left out."""
    text = text_of(where, folder / name)
    patterns = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            try:
                patterns.append(re.compile(line.strip()))
            except re.error as error:
                raise UserError(f"{where}: {name} line {number} is no regular expression: {error}") from error
    if not patterns:
        raise UserError(f"{where}: {name} holds no pattern; write one regular expression a line")

    def matches(answer: Answer) -> bool:
        return any(pattern.search(answer.response) for pattern in patterns)

    return Source(f"regex {name}", f"regex {fingerprint(text)}", one_by_one(matches), VERDICT)


def json_schema_source(opening: Opening) -> Source:
    """Yes where the answer is JSON that the schema in a file allows."""
    where, name = opening.where, opening.what
    text = text_of(where, opening.folder / name)
    try:
        schema = json.loads(text)
        validator = jsonschema.validators.validator_for(schema)
        validator.check_schema(schema)
    except (json.JSONDecodeError, jsonschema.SchemaError) as error:
        raise UserError(f"{where}: {name} is no JSON schema: {one_line(error)}") from error
    valid = validator(schema)

    def allowed(answer: Answer) -> bool:
        try:
            return bool(valid.is_valid(json.loads(answer.response)))
        except (json.JSONDecodeError, RecursionError):
            return False

    return Source(f"JSON schema {name}", f"JSON schema {fingerprint(text)}", one_by_one(allowed), VERDICT)


def question_text(where: str, question: str, folder: Path) -> str:
    """The question to a judge or people: the text itself if it has spaces, else a file's. Raises UserError."""
    return question if " " in question.strip() else text_of(where, folder / question)


def text_of(where: str, path: Path) -> str:
    """The text of a file that a limit names. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: {path} cannot be read as text ({error})") from error
