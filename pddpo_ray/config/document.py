"""Reads recipe files as YAML 1.2, refuses duplicate keys and records each key's line.

PyYAML follows YAML 1.1, in which `1e-4` is a string and `off` is false. In a recipe both would be traps.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pddpo_ray.errors import UserError

Keys = tuple[str, ...]
Origins = dict[Keys, str]
"""Where a key was set, in words: `recipe.yaml line 12`, or the text of an override."""


class _Loader(yaml.SafeLoader):
    """Safe YAML with the core schema of YAML 1.2: null, true, false, decimal numbers, and strings."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the library's own class attribute


MOST_DIGITS = 18
"""Digits before a number's point: few enough that every number is exact and fits into a database."""
WORD = "tag:yaml.org,2002:str"
OTHER_READERS = {form for word in ("yes", "no", "on", "off") for form in (word, word.capitalize(), word.upper())}
"""Words that YAML 1.1 reads as true or false; as keys they need quotes."""

_NUMBER = list("-+.0123456789")
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:null|~|)$"), ["n", "~", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), _NUMBER)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    _NUMBER,
)


class _TooLargeError(yaml.constructor.ConstructorError):
    """A number with more digits than any setting takes."""


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    digits = str(loader.construct_scalar(node))
    if len(digits.lstrip("+-").lstrip("0")) > MOST_DIGITS:
        raise _too_large(digits, node)
    return int(digits)


def _decimal(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node))
    value = float(text)
    if abs(value) >= 10.0**MOST_DIGITS:
        raise _too_large(text, node)
    return value


def _too_large(text: str, node: yaml.Node) -> _TooLargeError:
    excerpt = text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"
    problem = f"{excerpt} has more than {MOST_DIGITS} digits before the point; no setting takes such a number"
    return _TooLargeError(problem=problem, problem_mark=node.start_mark)


# PyYAML's own constructors read a leading zero as octal.
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _decimal)


def read_document(path: Path, name: str) -> tuple[dict[str, Any], Origins]:
    """A recipe file as nested dictionaries, and each key's line. Raises UserError if it is no YAML mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name}: cannot be read as text ({error})") from error
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        origins: Origins = {}
        _note_lines(node, (), name, origins)
        value = loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        message = str(problem) if isinstance(error, _TooLargeError) else f"not valid YAML ({problem})"
        raise UserError(f"{name}{line}: {message}") from error
    finally:
        loader.dispose()
    if not isinstance(value, dict):
        raise UserError(f"{name}: a recipe is a mapping of keys to values, not a {type(value).__name__}")
    return value, origins


def parse_value(text: str, origin: str) -> Any:
    """The value of an override, read as YAML: `3`, `1e-4`, `null`, `true`, `word`, `[1, 2]`, `{kind: newton}`."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except _TooLargeError as error:
        excerpt = origin if len(origin) <= 80 else f"{origin[:60]}…`"
        raise UserError(f"{excerpt}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{origin}: the value is not valid YAML; quote it, e.g. 'key=\"{text}\"'") from error
    finally:
        loader.dispose()


def _note_lines(node: yaml.Node, keys: Keys, name: str, origins: Origins) -> None:
    """Records each key's line. Raises UserError for a duplicate key or one that is no single word."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        origin = f"{name} line {key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise UserError(f"{origin}: a key must be a single word")
        if not key_node.style and (key_node.tag != WORD or key_node.value in OTHER_READERS):
            kind = "false or true" if key_node.value in OTHER_READERS else key_node.tag.rpartition(":")[2]
            raise UserError(f'{origin}: YAML reads the key `{key_node.value}` as {kind}; write "{key_node.value}":')
        path = (*keys, str(key_node.value))
        if path in origins:
            raise UserError(f"{origin}: key `{'.'.join(path)}` is here twice; remove one of the two")
        origins[path] = origin
        _note_lines(value_node, path, name, origins)


def origin_of(keys: Keys, origins: Origins) -> str:
    """Where a key was set. For a section as a whole: the last override inside it, else its line in the recipe."""
    inner_origins = [origin for path, origin in origins.items() if keys and path[: len(keys)] == keys]
    if inner_origins and (keys not in origins or inner_origins[-1].startswith("override")):
        return inner_origins[-1]
    outer_origins = (origins[keys[:length]] for length in range(len(keys), 0, -1) if keys[:length] in origins)
    return next(outer_origins, "")
