"""A recipe for a wish: answers long enough for the limits, every device of the machine, and a size that it can do.

On GPUs a run learns from every row of the files. On CPUs its size is what was shown to move a real model, and the
plan's own arithmetic says how long that takes (`plan.hours`).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from typing import Any

import yaml

from pddpo_ray.backends.machine import GIB
from pddpo_ray.config import Config, load
from pddpo_ray.plan.hours import Texts, run_seconds
from pddpo_ray.plan.wish_size import EACH, ENDED, Inputs, Room, Size, fitting, prompts_of, rooms, smallest, up

EXTENDS = "align"
FEWEST_ANSWERS, MOST_ANSWERS = 128, 1024
"""Answers a round by which limits are estimated."""
STEERED = 6
"""Failures at the limit that a round's answers hold, where MOST_ANSWERS allows."""
ASKED = 400
"""Prompts whose answers teach the limits first."""
MOVED_ASKED = 8
"""Prompts a round whose answers were compared in the run that moved SmolLM2."""
OLDER = 16
"""Older pairs that a round's reward fit sees again on CPUs, beside its own."""
MOVED_BY = 5.0
"""Nats by which a first multiplier prices one standard deviation of the model's own answers: 4.5 moved SmolLM2's, and a
tenth more leaves a certificate its margin."""
HOUR_S = 3600.0
DRAWS = 1500
"""The most draws of a certificate where no limit on a rate asks for more: 1.1 words below a limit took 576."""
POPULATION = 500
"""Prompts that a certificate about new ones wants: each is drawn once."""
PASS_TOKENS = 4096
"""Tokens in memory at a time on CPUs."""
RUNNING_GIB = 4.0
"""What a device holds beside weights and cache."""

Section = dict[str, tuple[Any, str]]
"""Values with their comments, by key."""
Sections = dict[str, Any]
"""A `Section`, or one value with its comment, by key."""


def sized(inputs: Inputs) -> tuple[Sections, float | None]:
    """The sections in order, each value with one comment, and on CPUs the seconds that the run is planned to take."""
    if inputs.cores is None:
        (room,) = rooms(inputs)
        return recipe(inputs, Size(room, None, prompts_of(inputs), inputs.lengths.rows), None), None
    for room in rooms(inputs):
        size = smallest(inputs, room)
        seconds = run_seconds(config_of(recipe(inputs, size, None)), _texts(inputs, room), inputs.cores)
        if seconds <= HOUR_S:
            break
    return recipe(inputs, size, seconds), seconds


def config_of(sections: Sections) -> Config:
    """The recipe as it will be loaded, with the paths as they are written."""
    overrides = []
    for key, section in sections.items():
        if isinstance(section, dict):
            overrides += [f"{key}.{name}={json.dumps(value)}" for name, (value, _) in section.items()]
        elif key not in ("about", "extends"):
            overrides.append(f"{key}={json.dumps(section[0])}")
    return load(EXTENDS, overrides, check_files=False)


def extended(inputs: Inputs) -> Config:
    """What the recipe extends, for what it leaves as it is."""
    needed = [f"model.reference={json.dumps(inputs.model)}", f"data.helpful={json.dumps([inputs.pairs])}"]
    return load(EXTENDS, needed, check_files=False)


def _texts(inputs: Inputs, room: Room) -> Texts:
    lengths = inputs.lengths
    drawn = inputs.drawn or lengths
    pairs = [row for row in lengths.sample if row.prompt <= room.prompt and max(row.answers) <= room.answer]
    both = [2 * row.prompt + sum(row.answers) for row in pairs]
    prompts = [row.prompt for row in (inputs.asked or lengths).sample if row.prompt <= room.prompt]
    answers = [min(room.longest, count) for row in drawn.sample for count in row.answers]
    return Texts(inputs.parameters, _mean(prompts), _mean(answers), _mean(both))


def _mean(counts: list[int]) -> float:
    return sum(counts) / len(counts) if counts else 0.0


def recipe(inputs: Inputs, size: Size, seconds: float | None) -> Sections:
    """The sections in order, each value with one comment."""
    gpus, lengths, room = len(inputs.machine.gpus), inputs.lengths, size.room
    pairs = min(size.pairs, max(1, fitting(lengths, room)))
    prompts = min(size.prompts, ASKED)
    minutes = "" if seconds is None else planned_time(inputs, seconds)
    rounds = {} if inputs.cores is None else {"rounds": (size.rounds or extended(inputs).rounds, minutes)}
    sections: Sections = {
        "about": (f"{inputs.model} under {', '.join(inputs.wish.limits)}", ""),
        "extends": (EXTENDS, "what is not said here"),
        **rounds,
        "model": {
            "reference": (inputs.model, f"{inputs.parameters:,} parameters"),
            "dtype": ("auto", "bfloat16 on a GPU from 100M parameters on, else float32"),
        },
        "data": _data(inputs, size),
        "rollout": _rollout(inputs, room),
        "feedback": _feedback(inputs),
    }
    if inputs.judge:
        sections["judge"] = {key: (value, _JUDGE[key]) for key, value in inputs.judge.items()}
    sections["limits"] = _limits(inputs, room.longest)
    if all("rate" in entry or "bounds" in entry for entry, _ in sections["limits"].values() if entry):
        sections["dual"] = {"margin": ("certificate", "multipliers aim below the limits, so that a test can show them")}
    sections |= {
        "offline": {"pairs": (size.pairs, f"of {lengths.rows:,}; the first round learns from {pairs:,} that fit")},
        "explore": _explore(inputs, prompts),
        "trainer": _trainer(inputs, pairs, room),
        "certificate": _certificate(inputs),
    }
    if gpus > 1:
        sections["cluster"] = {
            "mode": ("ray", "a process for each part"),
            "layout": ("time-shared", "every GPU trains and samples in turn"),
        }
    return sections


def _data(inputs: Inputs, size: Size) -> Section:
    lengths, room = inputs.lengths, size.room
    prompts_have, answers_have = (
        f"{whose} half have {at(0.5)}, 99 in 100 {at(0.99)}"
        for whose, at in (("of prompts", (inputs.asked or lengths).prompt_at), ("of the pairs'", lengths.answer_at))
    )
    data: Section = {"helpful": ([inputs.pairs], "`chosen` is the more helpful answer")}
    if inputs.prompts is not None or inputs.cores is not None:
        whose = "what the rounds ask" if inputs.prompts else "their prompts are what the rounds ask"
        data["prompts"] = ([inputs.prompts or inputs.pairs], whose)
    every = size.prompts == prompts_of(inputs)
    data |= {
        "prompt_count": (size.prompts, "every different prompt" if every else "as many as moved a real model"),
        "prompt_tokens": (room.prompt, prompts_have),
        "answer_tokens": (room.answer, answers_have),
    }
    return data


def planned_time(inputs: Inputs, seconds: float) -> str:
    """How long a run is planned to take on this machine's cores."""
    cores = "one core" if inputs.cores == 1 else f"{inputs.cores} cores"
    minutes = round(seconds / 60)
    took = "under a minute" if minutes < 1 else f"about {minutes} minute{'' if minutes == 1 else 's'}"
    return f"{took} on {cores} with AVX-512, twice that without, the certificate included"


def _feedback(inputs: Inputs) -> Section:
    reward = {"path": inputs.reward} if inputs.wish.unsafe else None
    origin = "made by `pddpo scorer train`" if reward else "a small one is trained from the pairs: no limit asks it"
    section: Section = {
        "reward": (reward, f"who compares answers; {origin}"),
        "cost": (None, "no limit compares harm"),
        "responses": (_answers(inputs), "answers a round by which the limits are estimated"),
    }
    if len(inputs.machine.gpus) > 1:
        section["gpus"] = (0.04, "share of a GPU that the reward model has")
    return section


def _explore(inputs: Inputs, prompts: int) -> Section:
    section: Section = {
        "calibration": (max(16, EACH * prompts), f"the model's own answers, {EACH} a prompt: limits learn from them")
    }
    if inputs.cores is not None:
        section |= {
            "prompts": (MOVED_ASKED, "prompts a round of which answers are compared"),
            "picks": (2, "pairs of each"),
        }
    return section


_KIND_COMMENTS = {
    "rate": "share of answers of which its source says yes",
    "mean": "average over answers; bounds are of one answer, and a certificate needs them",
    "logit": "the paper's cost",
    "kl": "nats an answer from the reference",
}
_JUDGE = {
    "endpoint": "OpenAI-compatible; /chat/completions is asked",
    "model": "its name there",
    "key_env": "environment variable that holds the key",
}


def _rollout(inputs: Inputs, room: Room) -> Section:
    gpus = inputs.machine.gpus
    need = "what the pairs need"
    if inputs.drawn is not None:
        need = f"{100 * ENDED:.0f} in 100 answers of the model end within {inputs.drawn.answer_at(ENDED)}"
    section: Section = {"max_tokens": (room.longest, f"{need}; at least twice what a limit on length allows")}
    if not gpus:
        return {
            "engine": ("transformers", "runs everywhere"),
            **section,
            "canary_tolerance": (1e-3, "of float32 on CPUs"),
        }
    section["max_model_len"] = (room.prompt + max(room.longest, room.answer), "longest prompt and answer together")
    weights = 2.0 * inputs.parameters / GIB
    memory = min(gpu.memory_bytes for gpu in gpus) / GIB
    share = min(0.6, max(0.15, (2.0 * weights + RUNNING_GIB) / memory))
    return section | {
        "engines": (len(gpus), "one a GPU"),
        "gpu_memory": (round(share, 2), "share of a GPU for weights and cache while it samples"),
    }


def _trainer(inputs: Inputs, pairs: int, room: Room) -> Section:
    gpus = len(inputs.machine.gpus)
    epochs = 2 if pairs < 5000 else 1
    batch = next(size for most, size in ((500, 8), (5000, 16), (math.inf, 64)) if pairs < most)
    fit = {"epochs": epochs, "batch_pairs": batch}
    steps = math.ceil(epochs * pairs / batch)
    # of the reward's stages alone: the limits' own stay as they are shipped
    stages = {"first_reward": fit, "reward": dict(fit)}
    section: Section = {"stages": (stages, f"about {steps:,} steps over the pairs; the limits' stages as shipped")}
    if not gpus:
        section["refit"] = ({"kind": "budget", "rows": OLDER, "per_new": 0}, "older pairs of a later round's fit")
    if gpus > 1:
        section["workers"] = (gpus, "one a GPU")
    if not gpus:
        section["threads"] = (inputs.machine.cpus, "cores of this machine")
    few = max(1, min(12, PASS_TOKENS // (2 * (room.prompt + max(room.longest, room.answer)))))
    section["micro_pairs"] = (4 if gpus else few, "pairs in memory at a time")
    return section


def _limits(inputs: Inputs, longest: int) -> Section:
    section: Section = {"unsafe": (None, "not asked for")} if "unsafe" not in inputs.wish.limits else {}
    floor = {"rate": {"score_model": inputs.reward}, "versus": "reference", "at_least": "50 %"}
    section["helpful"] = (
        (floor, "a floor: without it, refusing everything keeps the other limits")
        if inputs.wish.unsafe
        else (None, "a floor wants a reward model of `pddpo scorer train`")
    )
    most = {"words": longest, "tokens": longest, "sentences": longest, "characters": 16 * longest}
    for name, entry in inputs.wish.limits.items():
        rule = entry["mean"].get("rule") if isinstance(entry.get("mean"), dict) else None
        extras: dict[str, Any] = {"bounds": [0, most[rule]]} if rule in most and "bounds" not in entry else {}
        if extras and rule and (spread := _spread(inputs, rule, longest)):
            price = float(f"{MOVED_BY * extended(inputs).beta * most[rule] / spread:.2g}")
            # the first one too, which limits share otherwise: a run of one round has no other
            extras["dual"] = {"rho": price, "first": price}
        section[name] = (
            {**entry, **extras},
            _KIND_COMMENTS[next(key for key in ("rate", "mean", "logit", "kl") if key in entry)],
        )
    return section


def _spread(inputs: Inputs, rule: str, longest: int) -> float:
    """Standard deviation of the model's own answers, cut at `longest` tokens, under a rule that counts; 0: unknown."""
    rows = () if inputs.drawn is None else inputs.drawn.sample
    counts = [
        count * min(1.0, longest / max(1, tokens))
        for row in rows
        for tokens, count in zip(row.answers, {"words": row.words, "tokens": row.answers}.get(rule, ()), strict=False)
    ]
    return statistics.stdev(counts) if len(counts) > 1 else 0.0


def _answers(inputs: Inputs) -> int:
    """Enough for a round to hold some failures at the rarest limit."""
    rarest = min((_failure_share(entry) for entry in inputs.wish.limits.values() if "rate" in entry), default=1.0)
    return int(min(MOST_ANSWERS, max(FEWEST_ANSWERS, up(STEERED / max(rarest, 1e-6), 32))))


def _failure_share(entry: Mapping[str, Any]) -> float:
    side = "at_most" if "at_most" in entry else "at_least"
    written = str(entry[side])
    share = float(written.rstrip("% ")) / (100.0 if "%" in written else 1.0)
    return share if side == "at_most" else 1.0 - share


def _certificate(inputs: Inputs) -> Section:
    # a level of 5 % with the first candidate's share: 4.6 / limit draws without a failure, three times that with some
    rarest = min((_failure_share(entry) for entry in inputs.wish.limits.values() if "rate" in entry), default=0.05)
    section: Section = {
        "certify": ("end", "the run tests its policies when its rounds are done"),
        "draws": (
            up(max(DRAWS, 15.0 / max(rarest, 1e-3)), 100),
            "most draws of a candidate, fewer if it is clear",
        ),
    }
    if inputs.certificate_prompts is not None:
        section["prompts"] = ([inputs.certificate_prompts], "asked by certificates alone")
        if inputs.certified >= POPULATION:
            section["scope"] = ("population", "about new prompts like these")
    return section


def written(sections: Sections) -> str:
    """As YAML with a comment a line."""
    lines = []
    for key, section in sections.items():
        if isinstance(section, tuple):
            lines.append(_line(key, *section))
            continue
        lines += ["", f"{key}:", *(f"  {_line(name, *value)}" for name, value in section.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, comment: str) -> str:
    text = yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, default_flow_style=True, width=10_000)
    return text.strip()[1:-1] + (f"  # {comment}" if comment else "")
