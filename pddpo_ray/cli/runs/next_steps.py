"""What to do with a run next: the commands that `pddpo train`, `certify`, `release` and `status` print at their end.

Each runs as it is printed, in the state of the run in which it is printed.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pddpo_ray.cli.output import print_columns

if TYPE_CHECKING:
    from pddpo_ray.certificates.outcome import Outcome
    from pddpo_ray.cli.runs.recipe_of_run import FoundRun
    from pddpo_ray.config import Config


def with_folder(text: str, run: Path) -> str:
    """A message with the run's folder in the commands that name it RUN, so that they run as printed."""
    return re.sub(r"(`pddpo\s[^`]*)\bRUN\b", lambda match: match[1] + shlex.quote(str(run)), text)


def resume_command(run: Path, journal: str | None) -> str:
    """Resumes a run with its own recipe; `journal` is its database where that is not in the folder."""
    elsewhere = "" if journal is None else f" {shlex.quote(f'journal={journal}')}"
    return f"pddpo train --run {shlex.quote(str(run))} --resume{elsewhere}"


def steps_after(outcome: Outcome, config: Config, run: Path) -> list[str]:
    """Commands for a run whose rounds are finished, each with what it does."""
    folder = shlex.quote(str(run))
    if serve := outcome.serve(folder):
        return [f"`pddpo chat {folder}`", f"`{serve}`", f"`{outcome.export(folder)}`"]
    if outcome.certificate or outcome.round is not None:
        return [f"`pddpo report {folder}` writes the page with all numbers"]
    by_hand = f"`pddpo release {folder} {config.rounds} --force` releases the last policy, marked as uncertified"
    return [*_tests(outcome, config, folder), *_more_rounds(config, run), by_hand]


def _tests(outcome: Outcome, config: Config, folder: str) -> list[str]:
    from pddpo_ray.certificates.testing import reason_against

    if outcome.used_up or reason_against(config):
        return []
    if not outcome.tested:
        return [f"`pddpo certify {folder}` tests the last policy on fresh answers"]
    draws = 2 * config.certificate.draws
    return [f"`pddpo certify {folder} --budget {draws}` tests the last policy on up to {draws:,} fresh answers"]


def _more_rounds(config: Config, run: Path) -> list[str]:
    from pddpo_ray.backends.preflight import fixed_for_its_rounds

    if fixed_for_its_rounds(config):
        return []
    return [f"`{resume_command(run, config.journal)} rounds={2 * config.rounds}` trains more rounds"]


def show_steps(stored: FoundRun) -> None:
    """Prints the steps after a command that changed what is certified or released, and first why nothing is: a
    certificate may be about another bound than the recipe's."""
    from pddpo_ray.certificates.outcome import outcome_of
    from pddpo_ray.cli.runs.recipe_of_run import store_of
    from pddpo_ray.journal.reading import JournalReader

    config = stored.config
    with store_of(stored, to_read=True) as store:
        journal = JournalReader(store.engine, store.run)
        outcome = outcome_of(journal, config.typed_limits, stored.folder, policies=config.policies)
    headlines = [] if outcome.policy else [outcome.headline]
    steps = steps_after(outcome, config, stored.folder)
    print_columns([*labelled("outcome", headlines), *labelled("next", steps)])


def labelled(name: str, lines: list[str]) -> list[tuple[str, str]]:
    """Rows of two columns, the name beside the first line alone."""
    return [(name if number == 0 else "", line) for number, line in enumerate(lines)]
