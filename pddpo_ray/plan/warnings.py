"""Warnings of a dry run and of a run's first lines: the recipe works, but does not do what was wished.

Each warning is one line: what, by how much, and what to write. None stops a run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pddpo_ray.backends.machine import Machine
from pddpo_ray.backends.settled import device_of, driver_device
from pddpo_ray.certificates.testing import first_of_rounds, tested_limits
from pddpo_ray.config import Config, ModelFeedback, RayCluster
from pddpo_ray.config.file_checks import HUB, missing_before
from pddpo_ray.data.lengths import WORDS_PER_TOKEN, Lengths, lengths_of
from pddpo_ray.data.tokens import renderer_of
from pddpo_ray.driver.offline_setup import own_answers
from pddpo_ray.errors import UserError
from pddpo_ray.parts.fitting import with_steps
from pddpo_ray.plan.cost_model import prompts_of, rows_of_own, work_before, work_of_a_round
from pddpo_ray.plan.data_files import named_files
from pddpo_ray.plan.hours import PASSES
from pddpo_ray.plan.memory import measuring_models, model_shape
from pddpo_ray.plan.resources import bundles, runs_here
from pddpo_ray.scorecard.cards import HELD_OUT
from pddpo_ray.scoring.held_out import REPORT, Trials
from pddpo_ray.storage.checkpoints import checkpoint_folder
from pddpo_ray.theory.certificates.power import draws_needed
from pddpo_ray.training.device import number_type

CUT = 0.05
"""Share of answers cut, or of pairs left out, above which a warning is given."""
TAIL = 2
"""Longest answer over the mean that a limit asks for: below it, cutting alone shortens the mean."""
MOVED_STEPS, MOVED_PROMPTS, MOVED_ANSWERS = 20, 160, 640
"""What moved SmolLM2's length from 24 to 13 words (docs/real-model.md); 48 prompts and fewer moved it to 17."""
EXPECTED = 3
"""Failures at the limit that a round's answers should hold, or its estimate is 0 most of the time."""


def warnings(config: Config, machine: Machine) -> list[str]:
    """All warnings of a recipe on a machine; reads its files."""
    lengths = _lengths(config)
    return [
        *(f"before the run: {problem}" for _, problem in missing_before(config)),
        *_limits_without_effect(config, lengths),
        *_unused_rows(config, lengths),
        *_idle_devices(config, machine),
        *_wide_numbers(config, machine),
        *_models_off_gpus(config, machine),
        *_undersampled_limits(config),
        *_too_few_steps(config),
        *_scorers_at_chance(config),
    ]


def _lengths(config: Config) -> dict[str, Lengths]:
    """What the recipe's files hold, by the setting that names them; {} for worlds."""
    data = config.data
    if data is None:
        return {}
    reference = config.model.reference
    renderer = None if reference is None else renderer_of(checkpoint_folder(reference), data)
    lengths = {}
    for source in named_files(config, data):
        local = [file for file in source.files if not file.startswith(HUB)]
        if source.dimension is not None and local:
            lengths[source.key] = lengths_of(local, source.settings, renderer)
    return lengths


def _limits_without_effect(config: Config, lengths: dict[str, Lengths]) -> Iterator[str]:
    """Limits on a mean length that the longest answer keeps by itself, or makes impossible."""
    if config.policies != "language models":
        return
    longest = config.rollout.max_tokens
    per_token = next((stats.words_per_token for stats in lengths.values()), WORDS_PER_TOKEN)
    for entry in config.stated:
        quantity, rule = entry.limit.quantity, entry.source.what if entry.source.kind == "rule" else ""
        if quantity.kind != "mean" or quantity.versus is not None or rule not in ("words", "tokens"):
            continue
        each = per_token if rule == "words" else 1.0
        bound, where = entry.limit.bound.number, f"limits.{entry.limit.name}"
        target = _round_up(TAIL * bound / each)
        ends = f"answers end at rollout.max_tokens={longest}"
        if entry.limit.at_least and bound > longest * each:
            yield f"{where}: at least {entry.limit.bound} cannot be reached: {ends}; write rollout.max_tokens={target}"
        elif not entry.limit.at_least and bound >= longest:
            yield f"{where}: at most {entry.limit.bound} can never bind: {ends}; write rollout.max_tokens={target}"
        elif not entry.limit.at_least and bound > longest * each / TAIL:
            yield (
                f"{where}: cutting alone keeps answers near {entry.limit.bound}: {ends}, about {longest * each:.0f}"
                f" {rule}; write rollout.max_tokens={target}"
            )


def _unused_rows(config: Config, lengths: dict[str, Lengths]) -> Iterator[str]:
    data = config.data
    if data is None or not lengths:
        return
    rows, each = sum(stats.rows for stats in lengths.values()), config.offline.pairs // len(lengths)
    used = sum(min(stats.rows, each) for stats in lengths.values())
    if used < rows:
        most = len(lengths) * max(stats.rows for stats in lengths.values())
        yield f"{', '.join(lengths)}: {used:,} of {rows:,} pairs are used; write offline.pairs={most}"
    for key, stats in lengths.items():
        left = stats.left_out(data.prompt_tokens, data.answer_tokens)
        if left > CUT:
            yield (
                f"{key}: about {100 * left:.0f} % of the pairs are left out, longer than data.prompt_tokens="
                f"{data.prompt_tokens} or data.answer_tokens={data.answer_tokens}; 99 in 100 fit"
                f" {stats.prompt_at(0.99)} and {stats.answer_at(0.99)}"
            )
        cut = stats.cut(config.rollout.max_tokens)
        if cut > CUT:
            yield (
                f"{key}: about {100 * cut:.0f} % of answers like these are cut at rollout.max_tokens="
                f"{config.rollout.max_tokens}; 95 in 100 end within {stats.answer_at(0.95)}"
            )


def _idle_devices(config: Config, machine: Machine) -> Iterator[str]:
    total = len(machine.gpus)
    if not total or not runs_here(config) or config.policies != "language models":
        return
    device = device_of(config, machine)
    reserved = sum(bundle.count * bundle.gpus for bundle in bundles(config, device))
    used = math.ceil(reserved - 1e-9) if isinstance(config.cluster, RayCluster) else int(device == "cuda")
    if used < total:
        yield (
            f"cluster: {total - used} of {total} GPUs stay idle; write cluster={{mode: ray, layout: time-shared}}"
            f" trainer.workers={total} rollout.engines={total} (trainer.engine=zero2 or zero3)"
        )


def _wide_numbers(config: Config, machine: Machine) -> Iterator[str]:
    shape = model_shape(config)
    if config.model.dtype != "float32" or shape is None:
        return
    if number_type(device_of(config, machine), shape.parameters) == "bfloat16":
        yield "model.dtype=float32: a GPU computes several times faster in bfloat16; write model.dtype=auto"


def _models_off_gpus(config: Config, machine: Machine) -> Iterator[str]:
    """Models of a GPU run that compute on CPUs, and take longer there than a deadline."""
    device, shape, cpus = device_of(config, machine), model_shape(config), machine.cpus
    if shape is None or driver_device(config, device) == device:
        return
    prompts, size = prompts_of(config), shape.parameters
    before, a_round = work_before(config, prompts), config.feedback.responses + 2 * config.pairs_asked
    read = 6 * before.scorer_pairs or 2 * before.scorers * config.offline.pairs
    slow = [("scorers", size, read, cpus, "make them on a GPU with `pddpo scorer train`, and name them in the recipe")]
    for key, count in measuring_models(config).items():
        most = max(2 * config.offline.pairs, a_round)
        slow.append((key, count, most, cpus, "take a smaller one, or serve it and measure by an `endpoint`"))
    if isinstance(config.feedback, ModelFeedback) and not config.feedback.gpus:
        slow.append(("feedback.gpus=0", size, work_of_a_round(config, prompts).scored, 1, "write feedback.gpus=0.04"))
    for key, parameters, texts, cores, advice in slow:
        seconds = 2.0 * parameters * texts * shape.text_tokens / (PASSES * cores)
        if seconds > config.rollout.deadline_s:
            took = f"{parameters / 1e9:.1f} billion weights take up to {seconds / 3600:.1f} h for {texts:,} texts"
            yield f"{key}: no GPU is reserved, and {took} on {cores} CPUs; {advice}"


def _undersampled_limits(config: Config) -> Iterator[str]:
    """Limits for which the certificate's draws or a round's answers are too few."""
    try:
        tested = tested_limits(config, {}, first_of_rounds(config))
    except UserError:
        tested = ()
    draws = config.certificate.draws
    for test in tested:
        if test.people is None and test.level:
            needed = draws_needed(test.to_unit(test.limit - test.bias), 0.0, test.level)
            if needed is not None and needed > draws:
                yield (
                    f"limits.{test.name}: {draws:,} draws certify nothing below {test.amount(test.limit)}: the test"
                    f" needs {needed:,} without a single failure; write certificate.draws={_round_up(3 * needed)}"
                )
    for entry in config.stated:
        limit, answers = entry.limit, entry.asking.answers or config.feedback.responses
        if limit.is_share and 0 < limit.cost_limit * answers < EXPECTED:
            yield (
                f"limits.{limit.name}: a round's {answers} answers hold {limit.cost_limit * answers:.2g} failures at"
                f" the limit, too few to steer by; write feedback.responses={_round_up(EXPECTED / limit.cost_limit)}"
            )


def _too_few_steps(config: Config) -> Iterator[str]:
    """Fits of the limits on the policy's own answers with fewer steps or prompts than moved a small model."""
    by_values = any(entry.limit.quantity.kind in ("rate", "mean") and not entry.labelled for entry in config.stated)
    if not (config.data is not None and config.model.reference and by_values and config.online):
        return
    prompts = prompts_of(config)
    answers = own_answers(config, prompts) or 2 * config.offline.pairs
    steps = with_steps(config.trainer.of_stage("first_cost"), rows_of_own(answers, prompts)).steps
    each = with_steps(config.trainer.of_stage("cost"), config.feedback.responses // 2).steps
    later = (config.rounds - 1) * each if config.trainer.measured == "newest" else 0
    if steps + later < MOVED_STEPS or prompts < MOVED_PROMPTS:
        yield (
            f"trainer.stages.first_cost: {steps} steps on {answers:,} answers to {prompts:,} prompts;"
            f" {MOVED_STEPS} steps on {MOVED_ANSWERS} answers to {MOVED_PROMPTS} prompts moved the length of a 135M"
            f" model, fewer did not (docs/real-model.md): write data.prompt_count={max(prompts, MOVED_PROMPTS)}"
            f" explore.calibration={max(answers, MOVED_ANSWERS)}, or more trainer.stages.first_cost.epochs"
        )


def _scorers_at_chance(config: Config) -> Iterator[str]:
    """Score models whose own report does not show them better than chance."""
    paths = {
        f"limits.{entry.limit.name}": entry.source.what for entry in config.stated if entry.source.kind == "score_model"
    }
    scorers = {kind: getattr(config.score_models, kind) for kind in config.asked_models}
    paths |= {f"feedback.{kind}": scorer.path for kind, scorer in scorers.items() if scorer is not None}
    for key, path in paths.items():
        report = Path(path) / REPORT
        if not report.is_file():
            continue
        trials = Trials.of(json.loads(report.read_text(encoding="utf-8"))[HELD_OUT])
        if trials.count and not trials.better_than_chance:
            low, high = trials.interval
            worse = "worse than chance" if high < 0.5 else "not shown better than chance"
            yield (
                f"{key}: {path} is {worse}, right on {trials.right:g} of {trials.count} comparisons that it did not"
                f" learn from ({100 * low:.0f} to {100 * high:.0f} %); train it on more rows"
            )


def _round_up(number: float) -> int:
    """To two digits: 613 is 620."""
    unit = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return math.ceil(number / unit - 1e-9) * unit


# --- numbers that no run could ever work through, refused before they are multiplied ---------------------------------


MOST = 1_000_000_000
MOST_ROUNDS = 1_000_000
FREE = ("seed", "bytes")
"""Words in names of settings that are no amount of work."""


def demand_possible_sizes(config: Config) -> None:
    """UserError where a count is beyond what any run could do."""
    if config.rounds > MOST_ROUNDS:
        raise UserError(f"rounds={config.rounds}: more than {MOST_ROUNDS:,} rounds never end; give fewer")
    for key, value in _counts(config.model_dump(mode="json")):
        if value > MOST:
            raise UserError(f"{key}={value}: more than {MOST:,} of anything is never done; give a smaller number")


def _counts(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not any(word in str(name) for word in FREE):
                yield from _counts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _counts(inner, key)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield key, value
