"""From a recipe's name or file and `key=value` overrides to a checked configuration.

Later layers win: the recipe that is extended, the recipe, the file of a tabular world (it states its own problem), the
overrides. Every complaint is one line that says where it is, which key it is and what to do.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pddpo_ray.config import former_data, former_settings
from pddpo_ray.config.document import Keys, Origins, parse_value, read_document
from pddpo_ray.config.former_settings import replaced
from pddpo_ray.config.recipe import Config
from pddpo_ray.config.rollout import VllmRollout
from pddpo_ray.config.scorers import StoredScorerConfig
from pddpo_ray.config.trainer import Stage
from pddpo_ray.config.world import TabularWorldConfig
from pddpo_ray.errors import UserError, nearest
from pddpo_ray.limits import former
from pddpo_ray.limits.former import at
from pddpo_ray.limits.reading import COMPARISONS, KINDS, LABELLERS, PAIRS, REWARD, beside, names_source
from pddpo_ray.storage.checkpoints import (
    adapter_problem,
    checkpoint_folder,
    checkpoint_problem,
    is_adapter,
    is_hub_name,
    longest_context,
)
from pddpo_ray.storage.whole_files import refuse_password

logger = logging.getLogger(__name__)
HUB = "hf:"
"""What the name of a data set of the hub begins with."""

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
LAYERS = "layers/"
"""What recipes share by `extends` and nobody runs alone: where they run, for one."""
PATHS: tuple[Keys, ...] = (("world", "path"), ("world", "cache"), ("data", "cache"), ("model", "reference"))
"""Keys whose values are paths: relative to the recipe file that sets them, in an override to the current folder."""
LISTS_OF_PATHS: tuple[Keys, ...] = (
    ("data", "helpful"), ("data", "harmless"), ("data", "prompts"), ("certificate", "prompts"),
)  # fmt: skip
"""Keys whose values are lists of such paths, or of data sets of the hub."""

FITS: tuple[Keys, ...] = (
    ("trainer", "fit"), ("scorers", "fit"), *(("trainer", "stages", stage) for stage in get_args(Stage)),
)  # fmt: skip
"""Sections with `steps` or `epochs`, one of which counts."""

LENGTHS = {"steps", "epochs"}
NAMED = {"limits": "limit", "prompts": "prompt set"}
"""Sections whose names are the user's own, and what one entry is. A layer takes one out by `name: null`."""

OF_LIMIT = re.compile(r"recipe: (limits\.[\w.-]*\w)")
"""What a complaint about a limit begins with, and its key."""

Tree = dict[str, Any]


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
        change = _nested(keys, value)
        _absolute_paths(change, Path.cwd())
        changes = merge(changes, change, Config)
        change_origins[keys] = origin
    world = at(changes, ("world", "path")) or at(tree, ("world", "path"))
    tree = merge(tree, _problem_of_world(world, _section(tree, "limits")), Config)
    _note_steps(tree, changes, change_origins)
    tree = _with_tags(_laid(tree, changes, change_origins), Config)
    origins = {keys: origin for keys, origin in origins.items() if keys not in change_origins} | change_origins
    _refuse_former(tree, origins)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise UserError(_explain(error, tree, origins)) from error
    except UserError as error:  # of a limit, which names its key
        named = OF_LIMIT.match(str(error))
        origin = _origin_of(tuple(named[1].split(".")), origins) if named else ""
        raise UserError(str(error).replace("recipe", origin, 1) if origin else str(error)) from error
    if config.journal is not None:
        refuse_password(config.journal)
    if check_files:
        _check_files(config, origins)
        if check_scorers:
            _check_scorers(config, origins)
    return config


def _refuse_former(tree: Tree, origins: Origins) -> None:
    """Raises UserError for keys of earlier versions, with the line to write in their place."""
    for earlier in (former, former_data, former_settings):
        for keys in earlier.former_keys(tree)[:1]:
            overrides = [
                one for n in range(1, len(keys) + 1) if (one := origins.get(keys[:n], "")).startswith("override")
            ]
            origin = overrides[-1] if overrides else _origin_of(keys, origins)
            said = earlier.refusal(tree, override=origin.startswith("override"))
            raise UserError(f"{f'{origin}: ' if origin else ''}{said}")


def recipe_names() -> list[str]:
    """Names of the shipped recipes."""
    return [name for name in _shipped() if not name.startswith(LAYERS)]


def _shipped() -> list[str]:
    """Names of the shipped recipes and of the layers that they extend."""
    return sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml"))


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
    if path.parent != RECIPES:
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
        beside = path.parent / base
        base_tree, base_origins = _read_recipe(str(beside) if beside.is_file() else base, (*extended_by, name))
        base_tree.pop("about", None)
        below = _laid(below, base_tree, base_origins) if below else base_tree
        origins_below |= base_origins
    return (_laid(below, tree, origins), origins_below | origins) if bases else (tree, origins)


def _under(layer: Tree, below: Tree) -> Tree:
    """What a layer finds below it: its files replace a world, its world replaces files, its source of the reward
    another one, and of `steps` and `epochs` of a fit the one that it gives replaces the other."""
    kind = _section(layer, "world").get("kind")
    if layer.get("data") is not None or kind is not None:
        replaced = "world" if layer.get("data") is not None or kind == former_data.FORMER else "data"
        below = {key: value for key, value in below.items() if key != replaced}
    if names_source(layer.get(REWARD)):
        below = {key: value for key, value in below.items() if key != REWARD}
    return _fits_under(layer, below)


def _fits_under(layer: Tree, below: Tree) -> Tree:
    """The fits below without what a layer says of them: of steps and epochs the one that it gives replaces the other,
    and what it says of every fit replaces what the stages below say."""
    every = set(at(layer, ("trainer", "fit")) or {})
    for fit in FITS:
        gone = set(at(layer, fit) or {}) | (every if fit[:2] == ("trainer", "stages") else set())
        under = at(below, fit)
        if gone and isinstance(under, dict):
            gone |= LENGTHS if gone & LENGTHS else set()
            below = replaced(below, fit, {key: value for key, value in under.items() if key not in gone})
    return below


def _locate(recipe: str) -> tuple[Path, str]:
    """File of a recipe and its name in messages."""
    names = recipe_names()
    if recipe in _shipped():
        return RECIPES / f"{recipe}.yaml", f"recipe {recipe}"
    path = Path(recipe)
    if path.is_file():
        return path, recipe
    if path.suffix in (".yaml", ".yml") or path.is_dir():
        raise UserError(f"{recipe}: there is no such recipe file; `pddpo recipes` lists the shipped ones")
    raise UserError(f"there is no recipe `{recipe}`{nearest(recipe, names)}; `pddpo recipes` lists them all")


def _parse_override(text: str) -> tuple[Keys, Any, str]:
    origin = f"override `{text}`"
    key, equals, value = text.partition("=")
    keys = tuple(key.strip().split("."))
    if not equals or not all(keys):
        raise UserError(f"{origin}: write overrides as key=value, e.g. limits.cost.at_most=0.1")
    return keys, parse_value(value, origin), origin


def _nested(keys: Keys, value: Any) -> Tree:
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def merge(base: Tree, over: Tree, model: type[BaseModel]) -> Tree:
    """`over` laid on `base`. Where it chooses another variant, only settings that both variants share survive."""
    result = dict(base)
    for key, value in over.items():
        field = model.model_fields.get(key)
        below = result.get(key)
        if isinstance(value, dict) and field is not None and _models(field):
            below = below if isinstance(below, dict) else {}
            old, new = _variant(field, below), _variant(field, {**below, **value})
            if old is not None and new is not None and old is not new:
                below = {name: kept for name, kept in below.items() if name in _shared_fields(old, new)}
            result[key] = merge(below, value, new) if new is not None else _merged(below, value)
        elif isinstance(value, dict) and isinstance(below, dict):
            laid = _limit_over if key == "limits" else _over
            result[key] = below | {name: laid(below.get(name), given) for name, given in value.items()}
        else:
            result[key] = value
    return result


def _laid(below: Tree, layer: Tree, origins: Origins) -> Tree:
    """A layer on what lies below it, without the limits and prompt sets that it takes out."""
    _check_taken_out(below, layer, origins)
    _check_steps_or_epochs(layer, origins)
    return _without_taken_out(_labelled_by_feedback(below, layer, merge(_under(layer, below), layer, Config)))


def _labelled_by_feedback(below: Tree, layer: Tree, merged: Tree) -> Tree:
    """Who labels for the limit `cost`, which comparisons teach, where a layer gives another
    `feedback.kind` and no source of that limit."""
    old, new = (at(tree, ("feedback", "kind")) or "world" for tree in (below, merged))
    cost, said = at(merged, ("limits", "cost")), at(layer, ("limits", "cost"))
    if old == new or new not in LABELLERS or not isinstance(cost, dict):
        return merged
    kind = next((key for key in ("logit", "rate") if cost.get(key) == LABELLERS.get(old)), None)
    own = said is not None and kind in said
    if kind is None or own or (kind == "rate" and cost.get("learned_from") != COMPARISONS):
        return merged
    return {**merged, "limits": {**merged["limits"], "cost": {**cost, kind: dict(LABELLERS[new])}}}


def _check_taken_out(below: Tree, layer: Tree, origins: Origins) -> None:
    """Raises UserError where a layer takes out, by `name: null`, a limit or a prompt set that is not below it."""
    for section, one in NAMED.items():
        stated = list(_section(below, section))
        for name, value in _section(layer, section).items():
            if value is None and name not in stated:
                origin = origins.get((section, name)) or origins.get((section,), section)
                there = (", ".join(stated) or "none") + nearest(name, stated)
                raise UserError(f"{origin}: there is no {one} `{name}` to take out; the recipe states {there}")


def _check_steps_or_epochs(layer: Tree, origins: Origins) -> None:
    """Raises UserError where one layer gives both steps and epochs of a fit."""
    for fit in FITS:
        steps, epochs, key = at(layer, (*fit, "steps")), at(layer, (*fit, "epochs")), ".".join(fit)
        if steps is not None and epochs is not None:
            origin = _origin_of((*fit, "steps"), origins)
            raise UserError(
                f"{f'{origin}: ' if origin else ''}{key} has both steps ({steps}) and epochs ({epochs}); give one"
            )


def _note_steps(below: Tree, overrides: Tree, origins: Origins) -> None:
    """Says where steps of an override count in place of a recipe's epochs."""
    for fit in FITS:
        steps, epochs = at(overrides, (*fit, "steps")), at(below, (*fit, "epochs"))
        if epochs is None and fit[0] == "trainer":
            epochs = _epochs_elsewhere(below, fit)
        if steps is not None and epochs is not None:
            key, origin = ".".join(fit), _origin_of((*fit, "steps"), origins)
            logger.warning("%s: %s runs %s steps, not the recipe's epochs (%s)", origin, key, steps, epochs)


def _epochs_elsewhere(below: Tree, fit: Keys) -> Any:
    """Epochs of a stage that says none itself: those of every fit; of every fit: those of the first stage with some."""
    if fit != ("trainer", "fit"):
        return at(below, ("trainer", "fit", "epochs")) if at(below, (*fit, "steps")) is None else None
    stages = _mappings(at(below, ("trainer", "stages")))
    return next((own["epochs"] for own in stages if own.get("epochs") is not None), None)


def _without_taken_out(tree: Tree) -> Tree:
    """The tree without the limits and prompt sets that are null. Raises UserError where no limit is left."""
    limits = _section(tree, "limits")
    if limits and all(value is None for value in limits.values()):
        raise UserError(f"limits: {', '.join(limits)} taken out, and none is left: state another one")
    kept = {
        section: {name: value for name, value in _section(tree, section).items() if value is not None}
        for section in NAMED
        if _section(tree, section)
    }
    return {**tree, **kept}


def _section(tree: Tree, section: str) -> Tree:
    value = tree.get(section)
    return value if isinstance(value, dict) else {}


def _over(below: Any, given: Any) -> Any:
    """One entry of a section whose names are free (`limits`), laid on the one below it, key by key."""
    return {**below, **given} if isinstance(below, dict) and isinstance(given, dict) else given


def _limit_over(below: Any, given: Any) -> Any:
    """One limit laid on the one below it: what it says of its measure, its bound and its multiplier wins."""
    if not isinstance(below, dict) or not isinstance(given, dict):
        return given
    kept = dict(below)
    for choices in (tuple(KINDS), ("at_most", "at_least")):
        if any(key in given for key in choices):
            kept = {key: value for key, value in kept.items() if key not in choices}
    return {**kept, **given, **({"dual": _over(below.get("dual"), given["dual"])} if "dual" in given else {})}


def _merged(base: Tree, over: Tree) -> Tree:
    """`over` laid on `base` where nobody has said yet which variant they are."""
    both = {key: _merged(base[key], value) for key, value in over.items() if _are_trees(base.get(key), value)}
    return {**base, **over, **both}


def _are_trees(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)


def _shared_fields(old: type[BaseModel], new: type[BaseModel]) -> set[str]:
    """Settings declared by the nearest common ancestor of two variants."""
    ancestor = next(kind for kind in new.__mro__ if issubclass(old, kind))
    return set(ancestor.model_fields) if issubclass(ancestor, BaseModel) else set()


def _with_tags(tree: Tree, model: type[BaseModel]) -> Tree:
    """Name the default variant where a section sets values without saying which variant it is."""
    result = dict(tree)
    for key, field in model.model_fields.items():
        value = result.get(key)
        if not isinstance(value, dict) or not _models(field):
            continue
        variant = _variant(field, value)
        if field.discriminator and variant is not None:
            value = {str(field.discriminator): _tag(variant, str(field.discriminator)), **value}
        result[key] = _with_tags(value, variant) if variant is not None else value
    return result


def _absolute_paths(tree: Tree, folder: Path) -> None:
    """Make the paths of one layer absolute, in place. What can only be a model of the hub stays as it is."""
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
    for one_set in _mappings(tree.get("prompts")):
        _absolute_list(one_set, "files", folder)
    for limit in _mappings(tree.get("limits")):
        beside(limit, folder)
    _scorecard_beside(tree.get("scorecard"), folder)
    reward = tree.get(REWARD)
    if isinstance(reward, dict):
        beside({"mean": reward}, folder)
        _absolute_list(reward, PAIRS, folder)


def _absolute_list(section: Tree, key: str, folder: Path) -> None:
    """Makes files in a list absolute, in place, where they lie in the folder; others may be data sets of the hub."""
    if isinstance(section.get(key), list):
        paths = [(file, folder / Path(str(file)).expanduser()) for file in section[key]]
        section[key] = [str(path) if path.exists() else file for file, path in paths]


def _scorecard_beside(section: Any, folder: Path) -> None:
    """Files of the scorecard, and scorers in folders; what can only be a scorer of the hub stays as it is."""
    if not isinstance(section, dict):
        return
    if isinstance(section.get("benign_files"), list):
        section["benign_files"] = [str(folder / Path(str(file)).expanduser()) for file in section["benign_files"]]
    named = section.get("scorers")
    if not isinstance(named, dict):
        return
    for kind, one in list(named.items()):
        given = one.get("path") if isinstance(one, dict) else one
        if isinstance(given, str) and (folder / Path(given).expanduser()).exists():
            path = str(folder / Path(given).expanduser())
            named[kind] = {**one, "path": path} if isinstance(one, dict) else path


def _mappings(section: Any) -> list[Tree]:
    return [one for one in section.values() if isinstance(one, dict)] if isinstance(section, dict) else []


def _problem_of_world(path: Any, limits: Tree) -> Tree:
    """What a tabular world's file says about the problem: beta, bounds, number of offline pairs, and the bound of the
    paper's cost where the recipe limits that alone."""
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
    paper = [name for name, one in limits.items() if isinstance(one, dict) and "logit" in one]
    if _is_number(world.get("threshold")) and len(paper) == len(limits) == 1:
        tree["limits"] = {paper[0]: {"at_most": float(world["threshold"])}}
    offline = world.get("offline")
    pairs = offline.get("pairs") if isinstance(offline, dict) else None
    if isinstance(pairs, int) and not isinstance(pairs, bool):
        tree["offline"] = {"pairs": pairs}
    return tree


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- the tree of models ----------------------------------------------------------------------------------------------


def _models(field: FieldInfo) -> tuple[type[BaseModel], ...]:
    """The section classes that a field may hold: none for a plain value, several for a tagged union."""
    kinds = get_args(field.annotation) or (field.annotation,)
    return tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))


def _tag(model: type[BaseModel], discriminator: str) -> str:
    return str(model.model_fields[discriminator].default)


def _variant(field: FieldInfo, value: Tree) -> type[BaseModel] | None:
    """The class that a section's values belong to; None when the tag is wrong or there is none and no default."""
    models = _models(field)
    if len(models) == 1:
        return models[0]
    tag = str(field.discriminator)
    if tag not in value:
        return type(field.default) if isinstance(field.default, BaseModel) else None
    return next((model for model in models if _tag(model, tag) == value[tag]), None)


def dotted_keys(model: type[BaseModel] = Config, prefix: Keys = ()) -> Iterator[str]:
    """Every key that a recipe may set, in all variants."""
    for key, field in model.model_fields.items():
        yield ".".join((*prefix, key))
        for section in _models(field):
            yield from dotted_keys(section, (*prefix, key))


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
            stated = f" is {context['tag']!r}, but" if "tag" in context else ""
            near = nearest(context["tag"], tags.split(", ")) if "tag" in context else ""
            text = (
                f"`{'.'.join(keys)}`{stated} must be one of {tags}{near}" if tags else f"`{'.'.join(keys)}` is missing"
            )
        case "model_type" | "model_attributes_type":
            text = f"`{key}` is a section: give it keys, or set one with {key}.KEY=..., not {_shown(first['input'])}"
        case "value_error":
            while keys and at(tree, keys) is None:  # the tag of a variant is no key
                keys = keys[:-1]
            key, said = ".".join(keys), str(context["error"])
            if not keys and (named := OF_LIMIT.match(said)):
                keys, said = tuple(named[1].split(".")), said.removeprefix("recipe: ")
            text = f"{f'`{key}`: ' if key else ''}{said}"
        case _:
            wanted = first["msg"].replace("Input should be", "must be", 1)
            text = f"`{key}` is {_shown(first['input'])}, but {wanted}"
    others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    origin = _origin_of(keys, origins)
    return f"{origin}: {text}{others}" if origin else f"{text}{others}"


def _keys_of(location: tuple[int | str, ...], tree: Tree) -> Keys:
    """pydantic's location without the tags of unions, which are no keys."""
    keys: list[str] = []
    here: Any = tree
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(here, dict) and (part in here or last):
            keys.append(str(part))
            here = here.get(part)
        elif isinstance(part, int):
            keys.append(str(part))
    return tuple(keys)


def _origin_of(keys: Keys, origins: Origins) -> str:
    """Where a key was set. For a section as a whole: the last override inside it, else its line in the recipe."""
    inside = [origin for path, origin in origins.items() if keys and path[: len(keys)] == keys]
    if inside and (keys not in origins or inside[-1].startswith("override")):
        return inside[-1]
    around = (origins[keys[:length]] for length in range(len(keys), 0, -1) if keys[:length] in origins)
    return next(around, "")


def _nearest_key(keys: Keys, tree: Tree) -> str:
    """`; did you mean ...`: in the same section, then below it, then anywhere."""
    key, fields = ".".join(keys), _fields_of_section(keys[:-1], tree)
    close = difflib.get_close_matches(keys[-1], fields, 1, 0.6)
    if close:
        return f"; did you mean `{'.'.join((*keys[:-1], close[0]))}`?"
    every = list(dict.fromkeys(dotted_keys()))
    if key in every:
        return f"; it belongs to another variant of `{'.'.join(keys[:-1])}`"
    near = [other for other in every if difflib.get_close_matches(keys[-1], [other.split(".")[-1]], 1, 0.7)]
    near.sort(key=lambda other: (other.split(".")[: len(keys) - 1] != list(keys[:-1]), -_similarity(key, other)))
    if near:
        return f"; did you mean `{near[0]}`?"
    return f"; this section has {', '.join(fields)}" if fields else ""


def _fields_of_section(section: Keys, tree: Tree) -> list[str]:
    """The keys that a section may hold, in the variant that the tree chooses."""
    model: type[BaseModel] | None = Config
    here: Any = tree
    for key in section:
        field = model.model_fields.get(key) if model else None
        here = here.get(key) if isinstance(here, dict) else None
        model = _variant(field, here) if field is not None and isinstance(here, dict) else None
    return list(model.model_fields) if model else []


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- files -----------------------------------------------------------------------------------------------------------


def _check_files(config: Config, origins: Origins) -> None:
    """Everything that a recipe needs is given, and what it points to is there; a model of the hub is downloaded, the
    first time."""
    _check_needs(config, origins)
    _check_texts(config, origins)
    file = config.world.path if isinstance(config.world, TabularWorldConfig) else None
    if file is not None and not Path(file).is_file():
        origin = _origin_of(("world", "path"), origins)
        raise UserError(f"{origin}: world.path {file} does not exist; give the path of a world file (JSON)")
    if config.model.reference is not None:
        origin, reference = _origin_of(("model", "reference"), origins), config.model.reference
        folder = checkpoint_folder(reference) if is_hub_name(reference) or is_adapter(reference) else Path(reference)
        problem = checkpoint_problem(folder)
        if problem is None and config.model.parameters.kind == "lora":
            problem = adapter_problem(folder)
        if problem:
            raise UserError(f"{origin}: model.reference {reference} {problem}")
        _check_context(config, folder, origins)


def _check_context(config: Config, folder: Path, origins: Origins) -> None:
    """vLLM refuses a context that is longer than the model's, once everything else has started."""
    room = longest_context(folder)
    if room is not None and isinstance(config.rollout, VllmRollout) and config.rollout.max_model_len > room:
        origin = _origin_of(("rollout", "max_model_len"), origins) or _origin_of(("model", "reference"), origins)
        raise UserError(
            f"{origin}: rollout.max_model_len is {config.rollout.max_model_len}, but model.reference has {room}"
            f" positions: give rollout.max_model_len={room}, or less"
        )


def _check_needs(config: Config, origins: Origins) -> None:
    """Raises UserError that names every setting which the recipe leaves to the user and the user left out."""
    wanted = {**(_needs_of_files(config) if config.data else {}), **config.needs}
    if config.data and config.data.reference is not None:  # a trial on a small model made from the texts
        wanted.pop("model.reference", None)
    tree = config.model_dump(mode="json")
    empty: tuple[Any, ...] = (None, [], {}, "")
    missing = {key: what for key, what in wanted.items() if at(tree, tuple(key.split("."))) in empty}
    if missing:
        origin = _origin_of(("needs",), origins)
        said = "; ".join(f"{key}, {what}" for key, what in missing.items())
        raise UserError(f"{f'{origin}: ' if origin else ''}still to be given: {said}")


def _needs_of_files(config: Config) -> dict[str, str]:
    """What a run on files cannot do without: a model and pairs, unless the recipe says that it is a trial."""
    data = config.data
    assert data is not None
    needs = {}
    if data.reference is None:
        needs["model.reference"] = "the model to align, e.g. model.reference=models/smollm2"
    if not (data.sample or data.helpful or data.harmless):
        needs["data.helpful"] = "files of pairs, e.g. data.helpful=[helpful.jsonl] (`pddpo data check helpful.jsonl`)"
    return needs


def _check_texts(config: Config, origins: Origins) -> None:
    """Files of pairs and prompts of real text are there; data sets of the hub are looked for when they are read."""
    data = config.data
    if data is None:
        return
    named: dict[Keys, list[str]] = {
        ("data", "helpful"): data.helpful,
        ("data", "harmless"): data.harmless,
        ("data", "prompts"): data.prompts,
        ("certificate", "prompts"): config.certificate.prompts,
        ("scorecard", "benign_files"): config.scorecard.benign_files,
    }
    named |= {("prompts", name, "files"): one.files or [] for name, one in config.prompts.items()}
    for keys, files in named.items():
        for file in files:
            if not file.startswith(HUB) and not Path(file).expanduser().exists():
                origin = _origin_of(keys, origins)
                raise UserError(
                    f"{f'{origin}: ' if origin else ''}{'.'.join(keys)}: there is no file {file}; give the path of a"
                    " file or folder (`pddpo data check PATH` says what is in it)"
                )


def missing_scorers(config: Config) -> Iterator[tuple[Keys, str]]:
    """Reward and cost models that the run asks, that are not on this machine and can't be the hub's: the setting that
    names one, and what to do."""
    scorers: dict[Keys, StoredScorerConfig | None] = {
        ("scorecard", "scorers", kind): scorer for kind, scorer in config.scorecard.scorers.items()
    }
    scorers |= {("feedback", kind): getattr(config.score_models, kind) for kind in config.asked_models}
    named = [(keys, ".path", keys[-1], scorer.path) for keys, scorer in scorers.items() if scorer is not None]
    of_limits = [one for one in config.stated if one.source.kind == "score_model"]
    named += [
        (("limits", one.limit.name), "", "reward" if one.limit.at_least else "cost", one.source.what)
        for one in of_limits
    ]
    for keys, last, kind, path in named:
        if not Path(path).is_dir() and not is_hub_name(path):
            yield (
                keys,
                f"{'.'.join(keys)}{last}: there is no folder {path}; `pddpo scorer train FILES --kind {kind} --base"
                f" MODEL --out {path}` makes it, or name another one",
            )


def _check_scorers(config: Config, origins: Origins) -> None:
    for keys, problem in missing_scorers(config):
        origin = _origin_of(keys, origins)
        raise UserError(f"{f'{origin}: ' if origin else ''}{problem}")
