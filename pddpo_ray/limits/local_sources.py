"""Sources that need neither a model nor a network: rules that ship, patterns in a file, a JSON schema."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema

from pddpo_ray.errors import UserError
from pddpo_ray.limits import rules
from pddpo_ray.limits.quantities import VERDICT
from pddpo_ray.limits.sources import Answer, Source, fingerprint, one_by_one


def rule_source(where: str, name: str) -> Source:
    """A rule that ships; its version is that of the file with all rules."""
    rule = rules.rule_of(where, name)
    version = f"rule {name} {fingerprint(Path(rules.__file__).read_bytes())}"
    measure = one_by_one(lambda answer: rule.measure(answer.response))
    return Source(f"rule {name}", version, measure, rule.scale, note=rule.note)


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


def json_schema_source(where: str, name: str, folder: Path) -> Source:
    """Yes where the answer is JSON that the schema allows."""
    text = text_of(where, folder / name)
    try:
        schema = json.loads(text)
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

    return Source(f"JSON schema {name}", f"JSON schema {fingerprint(text)}", one_by_one(allowed), VERDICT)


def text_of(where: str, path: Path) -> str:
    """The text of a file that a limit names. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: {path} cannot be read as text ({error})") from error
