"""The whole plan of a recipe: as plain values for `--json`, and as lines for a reader of `--dry-run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pddpo_ray.backends.machine import Machine
from pddpo_ray.backends.settled import device_of, settled
from pddpo_ray.certificates.margins import draws_rows
from pddpo_ray.config import Config
from pddpo_ray.config.sections.feedback import MINUTES_PER_LABEL
from pddpo_ray.plan.cost_model import prompts_of, work, work_rows
from pddpo_ray.plan.feasibility import kept_in_world
from pddpo_ray.plan.limits import measurements
from pddpo_ray.plan.memory import by_process, host_bytes, memory, model_shape, stored_bytes
from pddpo_ray.plan.resources import placement
from pddpo_ray.plan.scale import cost_scale


def labels(config: Config) -> dict[str, Any]:
    """Labels that the run asks for: N x M x K for every limit's cost, and of a pair which answer is more helpful and,
    under each compared cost, which is more harmful. Stated limits have their own counts. `hours` is people's time, if
    people are asked."""
    labelled, measured = [entry for entry in config.stated if entry.labelled], measurements(config)
    of_a_round = len(labelled) * config.feedback.responses * config.labels_each
    in_rounds = sum(counts.per_round for counts in measured) * config.rounds
    questions = 1 + len(config.compared) if config.compares else 0
    safety, online = of_a_round * config.rounds, questions * config.pairs_asked * config.rounds
    label_count = safety + in_rounds + online
    people = config.feedback.kind in ("people", "mixed") or any(entry.asks_people for entry in config.stated)
    return {
        "safety": safety,
        "safety_per_round": of_a_round,
        "limits": {counts.limit: asdict(counts) for counts in measured},
        "preferences": online,
        "preferences_per_round": questions * config.pairs_asked,
        "offline": questions * config.offline.pairs,
        "asked_in_rounds": label_count,
        "hours": label_count * MINUTES_PER_LABEL / 60.0 if people else 0.0,
    }


def make_plan(config: Config, machine: Machine) -> dict[str, Any]:
    """The whole plan as plain values, for `--dry-run` and `--json`."""
    config = settled(config, machine)
    device = device_of(config, machine)
    shape = model_shape(config)
    placed = placement(config, device)
    needs = memory(config, shape, device, min((gpu.memory_bytes for gpu in machine.gpus), default=0))
    return {
        "cluster": config.cluster.mode,
        "layout": placed.layout,
        "head": list(placed.head),
        "device": device,
        "machine": {
            "cpus": machine.cpus,
            "memory_bytes": machine.memory_bytes,
            "gpus": [gpu.name for gpu in machine.gpus],
        },
        "resources": [asdict(bundle) for bundle in placed.bundles],
        "parameters": shape.parameters if shape else 0,
        "memory": [{**asdict(need), "bytes_each": need.each} for need in needs],
        "host_bytes": host_bytes(needs),
        "memory_by_process": by_process(needs),
        "stored_bytes": stored_bytes(config, shape),
        "prompts": prompts_of(config),
        "work": work(config),
        "labels": labels(config),
        "certificates": [list(row) for row in draws_rows(config)],
        "scale": {**asdict(cost_scale(config)), "in_words": cost_scale(config).lines()},
        "limits": {"can_be_kept": kept_in_world(config)},
    }


def plan_lines(plan: Mapping[str, Any]) -> list[tuple[str, list[Sequence[str]]]]:
    """The plan for a reader: headings, each with rows of aligned cells."""
    resources: list[Sequence[str]] = [
        (
            row["part"],
            f"{row['count']} x",
            f"{row['cpus']:g} CPU" + (f" {row['gpus']:g} GPU" if row["gpus"] else ""),
            row["note"],
        )
        for row in plan["resources"]
    ]
    if resources:
        resources.append(("beside the driver", "", "0 CPU", ", ".join(plan["head"])))
        for unit, name in (("cpus", "CPUs"), ("gpus", "GPUs")):
            total = sum(row["count"] * row[unit] for row in plan["resources"])
            resources += [("in all", "", f"{total:g} {name}", "")] if total else []
    resources = resources or [("one process", "on this machine")]
    memory_rows: list[Sequence[str]] = [
        (
            row["part"],
            f"{row['count']} x {_size(row['bytes_each'])}",
            f"({row['where']})",
            ", ".join(f"{purpose} {_size(size)}" for purpose, size in row["bytes_by_purpose"].items()),
        )
        for row in plan["memory"]
    ]
    memory_rows.append(("in all", _size(plan["host_bytes"]), "(host)", "the most at a time"))
    counts = plan["labels"]
    label_rows: list[Sequence[str]] = [
        *([("safety", f"{counts['safety']:,}", f"{counts['safety_per_round']:,} a round")] if counts["safety"] else []),
        *[
            (
                f"{name}, by {row['source']}",
                f"about {row['in_all']:,}",
                f"{row['per_round']:,} a round, {row['before']:,} before",
            )
            for name, row in counts["limits"].items()
        ],
        ("preferences", f"{counts['preferences']:,}", f"{counts['preferences_per_round']:,} a round"),
        ("offline", f"{counts['offline']:,}", "there before the first round"),
        *([("people's time", f"{counts['hours']:,.0f} h", "for what the rounds ask")] if counts["hours"] else []),
    ]
    worked = [(f"work ({plan['prompts']:,} prompts)", work_rows(plan["work"]))] if plan["parameters"] else []
    certified = [("draws that a certificate takes", plan["certificates"])] if plan["certificates"] else []
    return [
        (f"resources ({plan['cluster']}, {plan['layout']}, {plan['device']})", resources),
        (f"memory (model of {plan['parameters']:,} parameters; artifacts {_size(plan['stored_bytes'])})", memory_rows),
        *worked,
        ("labels", label_rows),
        *certified,
        ("scale of the cost", [(line,) for line in plan["scale"]["in_words"]]),
        *_limits(plan["limits"]),
    ]


def _limits(lines: Mapping[str, Sequence[str]]) -> list[tuple[str, list[Sequence[str]]]]:
    """What is known of the limits before the run, where there is anything."""
    headings = {"can_be_kept": "what policies of this world can reach"}
    return [(heading, [(line,) for line in lines[key]]) for key, heading in headings.items() if lines[key]]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit in ("B", "KiB") or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
