"""From a recipe's name or file and `key=value` overrides to a checked configuration.

Later layers win: the recipe that is extended, the recipe, the file of a tabular world (it states its own problem), the
overrides. Every complaint is one line that says where it is, which key it is and what to do.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pddpo_ray.config.document import Keys, Origins, origin_of, parse_value, read_document
from pddpo_ray.config.explaining import every_key
from pddpo_ray.config.file_checks import demand_before, demand_files
from pddpo_ray.config.former import data as former_data
from pddpo_ray.config.former import settings as former_settings
from pddpo_ray.config.layers import (
    Tree,
    laid,
    mappings,
    merge,
    note_steps,
    section_of,
    variant_of,
    with_tags,
)
from pddpo_ray.config.recipe import Config
from pddpo_ray.errors import UserError, nearest
from pddpo_ray.limits import former
from pddpo_ray.limits.former import at
from pddpo_ray.limits.reading import PAIRS, REWARD, beside
from pddpo_ray.registry import OF_LAB, recipe_folders
from pddpo_ray.storage.checkpoints import is_hub_name
from pddpo_ray.storage.whole_files import refuse_password

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
LAYERS = "layers/"
"""Folder of files that recipes only extend, e.g. where they run."""
PATHS: tuple[Keys, ...] = (("world", "path"), ("world", "cache"), ("data", "cache"), ("model", "reference"))
"""Keys whose values are paths: relative to the recipe file that sets them, in an override to the current folder."""
LISTS_OF_PATHS: tuple[Keys, ...] = (
    ("data", "helpful"), ("data", "harmless"), ("data", "prompts"), ("certificate", "prompts"),
)  # fmt: skip
"""Keys whose values are lists of such paths, or of data sets of the hub."""


OF_LIMIT = re.compile(r"recipe: (limits\.[\w.-]*\w)")
"""Start of an error about a limit, with its key."""


def load(recipe: str, overrides: Sequence[str] = (), *, check_files: bool = True, check_scorers: bool = True) -> Config:
    """The configuration of a shipped recipe (by name) or of a recipe file, with overrides. Raises UserError.

    `check_files=False` for a recipe that runs elsewhere: its files need not be on this machine. `check_scorers=False`
    for a plan: reward and cost models may be trained after it.
    """
    tree, origins = _read_recipe(recipe)
    changes: Tree = {}
    change_origins: Origins = {}
    for text in overrides:
        keys, value, origin = _parse_override(text)
        change = _nested_tree(keys, value)
        _absolute_paths(change, Path.cwd())
        changes = merge(changes, change, Config)
        change_origins[keys] = origin
    world = at(changes, ("world", "path")) or at(tree, ("world", "path"))
    tree = merge(tree, _problem_of_world(world, section_of(tree, "limits")), Config)
    note_steps(tree, changes, change_origins)
    tree = with_tags(laid(tree, changes, change_origins), Config)
    origins = {keys: origin for keys, origin in origins.items() if keys not in change_origins} | change_origins
    _refuse_former(tree, origins)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise UserError(_explain(error, tree, origins)) from error
    except UserError as error:  # of a limit, which names its key
        key_match = OF_LIMIT.match(str(error))
        origin = origin_of(tuple(key_match[1].split(".")), origins) if key_match else ""
        raise UserError(str(error).replace("recipe", origin, 1) if origin else str(error)) from error
    if config.journal is not None:
        refuse_password(config.journal)
    if check_files:
        demand_files(config, origins)
        if check_scorers:
            demand_before(config, origins)
    return config


def _refuse_former(tree: Tree, origins: Origins) -> None:
    """Raises UserError for keys of earlier versions, with the line to write in their place."""
    for earlier in (former, former_data, former_settings):
        for keys in earlier.former_keys(tree)[:1]:
            overrides = [
                text for n in range(1, len(keys) + 1) if (text := origins.get(keys[:n], "")).startswith("override")
            ]
            origin = overrides[-1] if overrides else origin_of(keys, origins)
            message = earlier.refusal(tree, override=origin.startswith("override"))
            raise UserError(f"{f'{origin}: ' if origin else ''}{message}")


def recipe_names() -> list[str]:
    """Names of the recipes that ship and of those of installed packages."""
    return [name for name in _recipes() if not name.startswith(LAYERS)]


def _recipes() -> dict[str, Path]:
    """File of each recipe and layer, by name in alphabetical order."""
    files = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for folder in _folders()
        for path in folder.rglob("*.yaml")
    }
    return dict(sorted(files.items()))


def _folders() -> list[Path]:
    """Folders of installed recipes, then of shipped ones, which win."""
    return [*recipe_folders(), RECIPES]


def to_yaml(config: Config) -> str:
    """The resolved recipe as YAML; loading it again gives an equal configuration."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return text


# --- layers ----------------------------------------------------------------------------------------------------------


def _read_recipe(recipe: str, extended_by: tuple[str, ...] = ()) -> tuple[Tree, Origins]:
    path, name = _locate(recipe)
    if name in extended_by:
        raise UserError(f"{name}: recipes extend each other in a circle: {' -> '.join((*extended_by, name))}")
    tree, origins = read_document(path, name)
    if not any(folder in path.parents for folder in _folders()):
        _absolute_paths(tree, path.resolve().parent)
    bases = tree.pop("extends", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(
            f"{origins[('extends',)]}: `extends` names a recipe, e.g. `extends: text-world`, or a list of recipes and"
            " layers, of which the later ones win"
        )
    below: Tree = {}
    origins_below: Origins = {}
    for base in bases:
        base_path = path.parent / base
        base_tree, base_origins = _read_recipe(str(base_path) if base_path.is_file() else base, (*extended_by, name))
        base_tree.pop("about", None)
        below = laid(below, base_tree, base_origins) if below else base_tree
        origins_below |= base_origins
    return (laid(below, tree, origins), origins_below | origins) if bases else (tree, origins)


def _locate(recipe: str) -> tuple[Path, str]:
    """File of a recipe and its name in messages."""
    files = _recipes()
    if recipe in files:
        return files[recipe], f"recipe {recipe}"
    path = Path(recipe)
    if path.is_file():
        return path, recipe
    if path.suffix in (".yaml", ".yml") or path.is_dir():
        raise UserError(f"{recipe}: there is no such recipe file; `pddpo recipes` lists the shipped ones")
    more = "" if recipe_folders() else f", and more are {OF_LAB}"
    raise UserError(
        f"there is no recipe `{recipe}`{nearest(recipe, recipe_names())}; `pddpo recipes` lists them all{more}"
    )


def _parse_override(text: str) -> tuple[Keys, Any, str]:
    origin = f"override `{text}`"
    key, equals, value = text.partition("=")
    keys = tuple(key.strip().split("."))
    if not equals or not all(keys):
        raise UserError(f"{origin}: write overrides as key=value, e.g. limits.cost.at_most=0.1")
    return keys, parse_value(value, origin), origin


def _nested_tree(keys: Keys, value: Any) -> Tree:
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def _absolute_paths(tree: Tree, folder: Path) -> None:
    """Makes a layer's paths absolute, in place; a name that can only be a hub model stays."""
    for *parents, key in PATHS:
        section = at(tree, tuple(parents))
        if isinstance(section, dict) and isinstance(section.get(key), str):
            path = folder / Path(section[key]).expanduser()
            if key != "reference" or path.exists() or not is_hub_name(section[key]):
                section[key] = str(path)
    for *parents, key in LISTS_OF_PATHS:
        section = at(tree, tuple(parents))
        if isinstance(section, dict):
            _absolute_list(section, key, folder)
    for prompt_set in mappings(tree.get("prompts")):
        _absolute_list(prompt_set, "files", folder)
    for limit in mappings(tree.get("limits")):
        beside(limit, folder)
    _scorecard_beside(tree.get("scorecard"), folder)
    reward = tree.get(REWARD)
    if isinstance(reward, dict):
        beside({"mean": reward}, folder)
        _absolute_list(reward, PAIRS, folder)


def _absolute_list(section: Tree, key: str, folder: Path) -> None:
    """Makes a list's files absolute, in place, if the folder has them; others may be hub data sets."""
    if isinstance(section.get(key), list):
        paths = [(file, folder / Path(str(file)).expanduser()) for file in section[key]]
        section[key] = [str(path) if path.exists() else file for file, path in paths]


def _scorecard_beside(section: Any, folder: Path) -> None:
    """Makes the scorecard's files and scorer folders absolute, in place; names of hub scorers stay."""
    if not isinstance(section, dict):
        return
    if isinstance(section.get("benign_files"), list):
        section["benign_files"] = [str(folder / Path(str(file)).expanduser()) for file in section["benign_files"]]
    scorers = section.get("scorers")
    if not isinstance(scorers, dict):
        return
    for kind, scorer in list(scorers.items()):
        path_text = scorer.get("path") if isinstance(scorer, dict) else scorer
        if isinstance(path_text, str) and (folder / Path(path_text).expanduser()).exists():
            path = str(folder / Path(path_text).expanduser())
            scorers[kind] = {**scorer, "path": path} if isinstance(scorer, dict) else path


def _problem_of_world(path: Any, limits: Tree) -> Tree:
    """Settings from a tabular world's file: beta, bounds, number of offline pairs, and the bound of a logit limit that
    is the recipe's only one."""
    if not isinstance(path, str) or not Path(path).is_file():
        return {}
    try:
        world = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"world.path {path}: not a JSON file ({error})") from error
    if not isinstance(world, dict):
        raise UserError(f"world.path {path}: a world is a JSON object with prior, reference, reward, cost, ...")
    tree: Tree = {key: float(world[key]) for key in ("beta", "reward_max") if _is_number(world.get(key))}
    if _is_number(world.get("cost_max")):
        tree["dual"] = {"cost_max": float(world["cost_max"])}
    paper = [name for name, limit in limits.items() if isinstance(limit, dict) and "logit" in limit]
    if _is_number(world.get("threshold")) and len(paper) == len(limits) == 1:
        tree["limits"] = {paper[0]: {"at_most": float(world["threshold"])}}
    offline = world.get("offline")
    pairs = offline.get("pairs") if isinstance(offline, dict) else None
    if isinstance(pairs, int) and not isinstance(pairs, bool):
        tree["offline"] = {"pairs": pairs}
    return tree


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- complaints ------------------------------------------------------------------------------------------------------


def _explain(error: ValidationError, tree: Tree, origins: Origins) -> str:
    """The first complaint as one line, with the number of the others."""
    problems = error.errors()
    # An unknown key explains a missing one that is spelt like it.
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    first = problems[0]
    keys = _keys_of(first["loc"], tree)
    key = ".".join(keys)
    context = first.get("ctx", {})
    match first["type"]:
        case "extra_forbidden":
            text = f"unknown key `{key}`{_nearest_key(keys, tree)}"
        case "missing":
            text = f"key `{key}` is missing; set it, e.g. with {key}=..."
        case "union_tag_invalid" | "union_tag_not_found":
            keys = (*keys, str(context.get("discriminator", "")).strip("'"))
            tags = str(context.get("expected_tags", "")).replace("'", "")
            clause = f" is {context['tag']!r}, but" if "tag" in context else ""
            near = nearest(context["tag"], tags.split(", ")) if "tag" in context else ""
            text = (
                f"`{'.'.join(keys)}`{clause} must be one of {tags}{near}" if tags else f"`{'.'.join(keys)}` is missing"
            )
        case "model_type" | "model_attributes_type":
            text = (
                f"`{key}` is a section: give it keys, or set one with {key}.KEY=..., not {_short_repr(first['input'])}"
            )
        case "value_error":
            while keys and at(tree, keys) is None:  # the tag of a variant is no key
                keys = keys[:-1]
            key, message = ".".join(keys), str(context["error"])
            if not keys and (key_match := OF_LIMIT.match(message)):
                keys, message = tuple(key_match[1].split(".")), message.removeprefix("recipe: ")
            text = f"{f'`{key}`: ' if key else ''}{message}"
        case _:
            demand = first["msg"].replace("Input should be", "must be", 1)
            text = f"`{key}` is {_short_repr(first['input'])}, but {demand}"
    suffix = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    origin = origin_of(keys, origins)
    return f"{origin}: {text}{suffix}" if origin else f"{text}{suffix}"


def _keys_of(location: tuple[int | str, ...], tree: Tree) -> Keys:
    """pydantic's location without the tags of unions, which are no keys."""
    keys: list[str] = []
    node: Any = tree
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(node, dict) and (part in node or last):
            keys.append(str(part))
            node = node.get(part)
        elif isinstance(part, int):
            keys.append(str(part))
    return tuple(keys)


def _nearest_key(keys: Keys, tree: Tree) -> str:
    """`; did you mean ...`: in the same section, then below it, then anywhere."""
    key, fields = ".".join(keys), _fields_of_section(keys[:-1], tree)
    close = difflib.get_close_matches(keys[-1], fields, 1, 0.6)
    if close:
        return f"; did you mean `{'.'.join((*keys[:-1], close[0]))}`?"
    all_keys = list(dict.fromkeys(entry.key for entry in every_key()))
    if key in all_keys:
        variant = next(entry.variant for entry in every_key() if entry.key == key)
        return f"; it belongs to another variant of `{'.'.join(keys[:-1])}`, `{variant}`"
    near = [other for other in all_keys if difflib.get_close_matches(keys[-1], [other.split(".")[-1]], 1, 0.7)]
    near.sort(key=lambda other: (other.split(".")[: len(keys) - 1] != list(keys[:-1]), -_similarity(key, other)))
    if near:
        return f"; did you mean `{near[0]}`?"
    return f"; this section has {', '.join(fields)}" if fields else ""


def _fields_of_section(section: Keys, tree: Tree) -> list[str]:
    """The keys that a section may hold, in the variant that the tree chooses."""
    model: type[BaseModel] | None = Config
    node: Any = tree
    for key in section:
        field = model.model_fields.get(key) if model else None
        node = node.get(key) if isinstance(node, dict) else None
        model = variant_of(field, node) if field is not None and isinstance(node, dict) else None
    return list(model.model_fields) if model else []


def _similarity(key: str, other: str) -> float:
    return difflib.SequenceMatcher(None, key, other).ratio()


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
