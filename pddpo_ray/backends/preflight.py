"""Checks whether a run may begin or continue in a folder, before anything is written: a refusal changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pddpo_ray.config import Config, NewtonRule, ProjectedRule
from pddpo_ray.config.former import settings as former_settings
from pddpo_ray.errors import UserError
from pddpo_ray.journal import RunEntry
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.identity import IDENTITY, become_child, demand_original, new_identity, open_folder
from pddpo_ray.journal.journal import first_difference
from pddpo_ray.journal.served import KeptPrompt, kept_prompts
from pddpo_ray.storage.whole_files import JOURNAL


def has_begun(config: Config, run_dir: Path) -> bool:
    """Whether the folder holds a run."""
    return (run_dir / (JOURNAL if config.journal is None else IDENTITY)).exists()


def new_run(config: Config, run_dir: Path) -> str:
    """Identity of a run that begins in this folder. Raises UserError if the folder holds one already."""
    if has_begun(config, run_dir):
        raise UserError(f"{run_dir} holds a run already: continue it with --resume, or choose another --run")
    return new_identity()


def resumed_run(config: Config, run_dir: Path) -> tuple[str, Any]:
    """Identity of the run that continues in this folder, and its fixed settings as stored.

    Raises UserError if there is none or if it has another recipe, DecisionNeeded if the folder is a copy.
    """
    if config.journal is None and not (run_dir / JOURNAL).is_file():
        raise UserError(f"there is no run in {run_dir} to resume: leave --resume out, or give the folder of a run")
    with open_folder(run_dir, config.journal) as reader:
        _demand_same_recipe(config, reader.about)
        demand_original(run_dir, reader, config.journal)
        return reader.run_id, reader.about.fixed_settings


def given_by_users(config: Config, run_dir: Path) -> list[KeptPrompt]:
    """Prompts of the endpoint's users that they did not withdraw; [] before the run has begun."""
    try:
        with open_folder(run_dir, config.journal) as reader:
            return kept_prompts(reader.engine, reader.run_id)
    except UserError:
        return []


def take_new_identity(config: Config, run_dir: Path) -> str:
    """Makes the copied run in this folder a run of its own, which names its parent."""
    with open_folder(run_dir, config.journal) as reader:
        _demand_same_recipe(config, reader.about)
        identity = reader.run_id
    engine = open_database(config.journal or run_dir / JOURNAL)
    try:
        return become_child(engine, identity)
    finally:
        engine.dispose()


def _demand_same_recipe(config: Config, stored: RunEntry) -> None:
    """A resumed run shares what decides the numbers; it may be given more rounds. Raises UserError."""
    try:
        # Read by today's rules: a setting that came later has its default.
        before = Config.of_run(stored.recipe).fixed_settings()
    except ValidationError:
        before = stored.fixed_settings
    if changed := former_settings.fixed_otherwise(stored.recipe):
        raise UserError(f"run {stored.name} was begun with an older version: {changed}; continue with that version")
    settings = config.fixed_settings()
    # what users gave enters the rounds to come: it was not there when the run began
    before, settings = ({key: tree[key] for key in tree if key != "production"} for tree in (before, settings))
    if before == settings:
        return
    if {**before, "rounds": settings["rounds"]} != settings:
        raise UserError(
            f"run {stored.name} belongs to another recipe ({first_difference(before, settings)}): choose another run"
            f" folder, or resume with the recipe it was started with"
        )
    if settings["rounds"] < before["rounds"]:
        raise UserError(f"run {stored.name} has rounds={before['rounds']}: it can be given more rounds, not fewer")
    if reason := fixed_for_its_rounds(config):
        raise UserError(f"run {stored.name} cannot be given more than its {before['rounds']} rounds: {reason}")


def fixed_for_its_rounds(config: Config) -> str | None:
    """Why a run with this recipe cannot be given more rounds; None if it can."""
    for rule in (dual.rule for dual in config.duals.values()):
        if isinstance(rule, ProjectedRule | NewtonRule):
            return (
                f"dual.rule={rule.kind} fixes its step for that number; begin a new run with more, or with rule anytime"
            )
    if config.trainer.last_rate != 1.0:
        return "trainer.last_rate lowers the learning rate over that number; begin a new run with more"
    return None
