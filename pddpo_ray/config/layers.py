"""Merges a recipe's layers: what an upper one replaces, merges and removes."""

from __future__ import annotations

import logging
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pddpo_ray.config.document import Keys, Origins, origin_of
from pddpo_ray.config.former import data as former_data
from pddpo_ray.config.former.settings import of_its_method, replaced
from pddpo_ray.config.recipe import Config
from pddpo_ray.config.sections.trainer import Stage
from pddpo_ray.errors import UserError, nearest
from pddpo_ray.limits.audits import AUDIT, AUDITED
from pddpo_ray.limits.former import at
from pddpo_ray.limits.reading import COMPARISONS, KINDS, LABELLERS, REWARD, names_source

FITS: tuple[Keys, ...] = (
    ("trainer", "fit"), ("scorers", "fit"), *(("trainer", "stages", stage) for stage in get_args(Stage)),
)  # fmt: skip
"""Sections with `steps` or `epochs`, one of which counts."""
LENGTHS = {"steps", "epochs"}
OF_MEASURE = ("versus", "bounds")
"""Keys of a limit's measure besides its kind and source."""
NAMED = {"limits": "limit", "prompts": "prompt set"}
"""Sections with user-chosen names, and the noun for an entry. `name: null` in a layer removes one."""
logger = logging.getLogger(__name__)
Tree = dict[str, Any]


def _under(layer: Tree, below: Tree) -> Tree:
    """The tree below a layer, without what the layer replaces: `data` and `world` replace each other, a reward source
    another one, and `steps` and `epochs` of a fit each other. Another algorithm keeps the settings that it shares."""
    kind = section_of(layer, "world").get("kind")
    if layer.get("data") is not None or kind is not None:
        section = "world" if layer.get("data") is not None or kind == former_data.FORMER else "data"
        below = {key: value for key, value in below.items() if key != section}
    if names_source(layer.get(REWARD)):
        below = {key: value for key, value in below.items() if key != REWARD}
    if layer.get("algorithm") not in (None, below.get("algorithm")):
        below = of_its_method({**below, "algorithm": layer["algorithm"]})
    return _fits_under(layer, below)


def merge(base: Tree, over: Tree, model: type[BaseModel]) -> Tree:
    """`over` laid on `base`. Where it chooses another variant, only settings that both variants share survive."""
    result = dict(base)
    for key, value in over.items():
        field = model.model_fields.get(key)
        below = result.get(key)
        if isinstance(value, dict) and field is not None and models_of(field):
            below = below if isinstance(below, dict) else {}
            old, new = variant_of(field, below), variant_of(field, {**below, **value})
            if old is not None and new is not None and old is not new:
                below = {name: setting for name, setting in below.items() if name in _shared_fields(old, new)}
            result[key] = merge(below, value, new) if new is not None else _merge_trees(below, value)
        elif isinstance(value, dict) and isinstance(below, dict):
            overlay = _limit_over if key == "limits" else _over
            result[key] = below | {name: overlay(below.get(name), entry) for name, entry in value.items()}
        else:
            result[key] = value
    return result


def laid(below: Tree, layer: Tree, origins: Origins) -> Tree:
    """A layer merged over those below, without the limits and prompt sets that it removes."""
    _check_taken_out(below, layer, origins)
    _check_steps_or_epochs(layer, origins)
    return _without_taken_out(_labelled_by_feedback(below, layer, merge(_under(layer, below), layer, Config)))


def _labelled_by_feedback(below: Tree, layer: Tree, merged: Tree) -> Tree:
    """Gives the limit `cost`, which comparisons teach, the labeller of a layer's new
    `feedback.kind`, unless the layer names a source."""
    old, new = (at(tree, ("feedback", "kind")) or "world" for tree in (below, merged))
    cost, layer_cost = at(merged, ("limits", "cost")), at(layer, ("limits", "cost"))
    if old == new or new not in LABELLERS or not isinstance(cost, dict):
        return merged
    kind = next((key for key in ("logit", "rate") if cost.get(key) == LABELLERS.get(old)), None)
    has_source = layer_cost is not None and kind in layer_cost
    if kind is None or has_source or (kind == "rate" and cost.get("learned_from") != COMPARISONS):
        return merged
    limit = {**cost, kind: dict(LABELLERS[new])}
    if new == "mixed":  # people correct the model; a rate is then learned from what it measures
        limit = {AUDIT: dict(AUDITED), **{key: limit[key] for key in limit if key != "learned_from"}}
    return {**merged, "limits": {**merged["limits"], "cost": limit}}


def _check_taken_out(below: Tree, layer: Tree, origins: Origins) -> None:
    """Raises UserError where a layer takes out, by `name: null`, a limit or a prompt set that is not below it."""
    for section, noun in NAMED.items():
        names = list(section_of(below, section))
        for name, value in section_of(layer, section).items():
            if value is None and name not in names:
                origin = origins.get((section, name)) or origins.get((section,), section)
                listing = (", ".join(names) or "none") + nearest(name, names)
                raise UserError(f"{origin}: there is no {noun} `{name}` to take out; the recipe states {listing}")


def _check_steps_or_epochs(layer: Tree, origins: Origins) -> None:
    """Raises UserError where one layer gives both steps and epochs of a fit."""
    for fit in FITS:
        steps, epochs, key = at(layer, (*fit, "steps")), at(layer, (*fit, "epochs")), ".".join(fit)
        if steps is not None and epochs is not None:
            origin = origin_of((*fit, "steps"), origins)
            raise UserError(
                f"{f'{origin}: ' if origin else ''}{key} has both steps ({steps}) and epochs ({epochs}); give one"
            )


def note_steps(below: Tree, overrides: Tree, origins: Origins) -> None:
    """Warns where an override's steps replace a recipe's epochs."""
    for fit in FITS:
        steps, epochs = at(overrides, (*fit, "steps")), at(below, (*fit, "epochs"))
        if epochs is None and fit[0] == "trainer":
            epochs = _epochs_elsewhere(below, fit)
        if steps is not None and epochs is not None:
            key, origin = ".".join(fit), origin_of((*fit, "steps"), origins)
            logger.warning("%s: %s runs %s steps, not the recipe's epochs (%s)", origin, key, steps, epochs)


def _without_taken_out(tree: Tree) -> Tree:
    """The tree without the limits and prompt sets that are null. Raises UserError where no limit is left."""
    limits = section_of(tree, "limits")
    if limits and all(value is None for value in limits.values()):
        raise UserError(f"limits: {', '.join(limits)} taken out, and none is left: state another one")
    sections = {
        section: {name: value for name, value in section_of(tree, section).items() if value is not None}
        for section in NAMED
        if section_of(tree, section)
    }
    return {**tree, **sections}


def section_of(tree: Tree, section: str) -> Tree:
    value = tree.get(section)
    return value if isinstance(value, dict) else {}


def _over(below: Any, entry: Any) -> Any:
    """An entry of a section with user-chosen names, merged over the one below key by key."""
    return {**below, **entry} if isinstance(below, dict) and isinstance(entry, dict) else entry


def _limit_over(below: Any, entry: Any) -> Any:
    """A limit merged over the one below: its measure, bound and multiplier win.

    A limit of another kind drops the older one's `versus` and `bounds`, which described its measure."""
    if not isinstance(below, dict) or not isinstance(entry, dict):
        return entry
    limit = dict(below)
    if any(key in entry and key not in below for key in KINDS):
        limit = {key: value for key, value in limit.items() if key not in OF_MEASURE}
    for choices in (tuple(KINDS), ("at_most", "at_least")):
        if any(key in entry for key in choices):
            limit = {key: value for key, value in limit.items() if key not in choices}
    return {**limit, **entry, **({"dual": _over(below.get("dual"), entry["dual"])} if "dual" in entry else {})}


def _merge_trees(base: Tree, over: Tree) -> Tree:
    """`over` merged over `base` while their variant is unknown."""
    sections = {
        key: _merge_trees(base[key], value)
        for key, value in over.items()
        if isinstance(base.get(key), dict) and isinstance(value, dict)
    }
    return {**base, **over, **sections}


def _shared_fields(old: type[BaseModel], new: type[BaseModel]) -> set[str]:
    """Settings declared by the nearest common ancestor of two variants."""
    ancestor = next(kind for kind in new.__mro__ if issubclass(old, kind))
    return set(ancestor.model_fields) if issubclass(ancestor, BaseModel) else set()


def with_tags(tree: Tree, model: type[BaseModel]) -> Tree:
    """Names the default variant of a section that sets values without naming one."""
    result = dict(tree)
    for key, field in model.model_fields.items():
        value = result.get(key)
        if not isinstance(value, dict) or not models_of(field):
            continue
        variant = variant_of(field, value)
        if field.discriminator and variant is not None:
            value = {str(field.discriminator): _tag(variant, str(field.discriminator)), **value}
        result[key] = with_tags(value, variant) if variant is not None else value
    return result


def models_of(field: FieldInfo) -> tuple[type[BaseModel], ...]:
    """The section classes that a field may hold: none for a plain value, several for a tagged union."""
    kinds = get_args(field.annotation) or (field.annotation,)
    return tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))


def _tag(model: type[BaseModel], discriminator: str) -> str:
    return str(model.model_fields[discriminator].default)


def variant_of(field: FieldInfo, value: Tree) -> type[BaseModel] | None:
    """The class that a section's values belong to; None when the tag is wrong or there is none and no default."""
    models = models_of(field)
    if len(models) == 1:
        return models[0]
    tag = str(field.discriminator)
    if tag not in value:
        return type(field.default) if isinstance(field.default, BaseModel) else None
    return next((model for model in models if _tag(model, tag) == value[tag]), None)


def _epochs_elsewhere(below: Tree, fit: Keys) -> Any:
    """For a stage without epochs, those of `trainer.fit`; for `trainer.fit`, those of the first stage with some."""
    if fit != ("trainer", "fit"):
        return at(below, ("trainer", "fit", "epochs")) if at(below, (*fit, "steps")) is None else None
    stages = mappings(at(below, ("trainer", "stages")))
    return next((stage["epochs"] for stage in stages if stage.get("epochs") is not None), None)


def _fits_under(layer: Tree, below: Tree) -> Tree:
    """The fits below without what a layer replaces: steps and epochs replace each other, and keys of `trainer.fit`
    replace those of the stages below."""
    fit_keys = set(at(layer, ("trainer", "fit")) or {})
    for fit in FITS:
        removed_keys = set(at(layer, fit) or {}) | (fit_keys if fit[:2] == ("trainer", "stages") else set())
        section = at(below, fit)
        if removed_keys and isinstance(section, dict):
            removed_keys |= LENGTHS if removed_keys & LENGTHS else set()
            below = replaced(below, fit, {key: value for key, value in section.items() if key not in removed_keys})
    return below


def mappings(section: Any) -> list[Tree]:
    return [entry for entry in section.values() if isinstance(entry, dict)] if isinstance(section, dict) else []
