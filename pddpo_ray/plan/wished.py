"""A recipe for a wish: all rows of the files, answers long enough for the limits, every device of the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from pddpo_ray.backends.machine import GIB, Machine
from pddpo_ray.data.lengths import Lengths
from pddpo_ray.limits.wishes import Wish

FEWEST_ANSWERS, MOST_ANSWERS = 128, 1024
"""Answers a round by which limits are estimated."""
STEERED = 6
"""Failures at the limit that a round's answers hold, where MOST_ANSWERS allows."""
ASKED, EACH = 400, 4
"""Prompts whose answers teach the limits first, and answers of each."""
RUNNING_GIB = 4.0
"""What a device holds beside weights and cache."""

Section = dict[str, tuple[Any, str]]
"""Values with their comments, by key."""


@dataclass(frozen=True)
class Given:
    """What was found and said."""

    model: str
    parameters: int
    context: int | None
    """Positions of the model; None: unknown."""
    pairs: str
    lengths: Lengths
    wish: Wish
    machine: Machine
    reward: str
    """Folder of the reward model."""
    judge: Mapping[str, str]
    certificate_prompts: str | None = None


def longest_answer(given: Given) -> int:
    """Tokens that nearly all answers of the pairs have, and twice what a limit on length allows, so that it binds."""
    wanted = max(64, given.lengths.answer_at(0.99))
    for entry in given.wish.limits.values():
        for side in ("at_most", "at_least"):
            amount = str(entry.get(side, "")).split()
            if "mean" in entry and amount[1:] in (["words"], ["tokens"]):
                each = given.lengths.words_per_token if amount[1] == "words" else 1.0
                wanted = max(wanted, math.ceil(2.0 * float(amount[0]) / each) + 1)
    return _up(wanted, 16)


def recipe(given: Given) -> dict[str, Section | tuple[Any, str]]:
    """The sections in order, each value with one comment."""
    gpus = len(given.machine.gpus)
    longest, prompt = longest_answer(given), _up(max(32, given.lengths.prompt_at(0.99)), 16)
    if given.context is not None and prompt + longest > given.context:
        longest = min(longest, given.context // 2)
        prompt = min(prompt, given.context - longest)
    answer = min(longest, _up(max(32, given.lengths.answer_at(0.99)), 16))
    prompts, rows = given.lengths.prompts, given.lengths.rows
    pairs = max(1, round(rows * (1.0 - given.lengths.left_out(prompt, answer))))
    asked = min(prompts, ASKED)
    prompts_have, answers_have = (
        f"half have {at(0.5)}, 99 in 100 {at(0.99)}" for at in (given.lengths.prompt_at, given.lengths.answer_at)
    )
    sections: dict[str, Section | tuple[Any, str]] = {
        "about": (f"{given.model} under {', '.join(given.wish.limits)}", ""),
        "extends": ("align", "what is not said here"),
        "model": {
            "reference": (given.model, f"{given.parameters:,} parameters"),
            "dtype": ("bfloat16" if gpus else "float32", "half the memory" if gpus else "CPUs compute in it"),
        },
        "data": {
            "helpful": ([given.pairs], "`chosen` is the more helpful answer"),
            "prompt_count": (prompts, "every different prompt of the pairs"),
            "prompt_tokens": (
                prompt,
                prompts_have,
            ),
            "answer_tokens": (
                answer,
                answers_have,
            ),
        },
        "rollout": _rollout(given, prompt, longest, answer),
        "feedback": {
            "reward": ({"path": given.reward}, "who compares answers; made by `pddpo scorer train`"),
            "cost": (None, "no limit compares harm"),
            "responses": (_answers(given), "answers a round by which the limits are estimated"),
            **({"gpus": (0.04, "share of a GPU that the reward model has")} if gpus > 1 else {}),
        },
    }
    if given.judge:
        sections["judge"] = {key: (value, _JUDGE[key]) for key, value in given.judge.items()}
    sections["limits"] = _limits(given, longest)
    sections |= {
        "offline": {"pairs": (rows, f"every pair; about {pairs:,} are short enough")},
        "explore": {"calibration": (EACH * asked, f"the reference's answers, {EACH} a prompt: limits learn from them")},
        "trainer": _trainer(given, pairs),
        "certificate": _certificate(given),
    }
    if gpus > 1:
        sections["cluster"] = {
            "mode": ("ray", "a process for each part"),
            "layout": ("time-shared", "every GPU trains and samples in turn"),
        }
    return sections


_WHAT = {
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


def _rollout(given: Given, prompt: int, longest: int, answer: int) -> Section:
    gpus = given.machine.gpus
    section: Section = {
        "max_tokens": (longest, "twice what a limit on length allows, so that it binds, and what the pairs need"),
        "max_model_len": (prompt + max(longest, answer), "longest prompt and answer together"),
    }
    if not gpus:
        return section | {"threads": (given.machine.cpus, "cores of this machine")}
    weights = 2.0 * given.parameters / GIB
    memory = min(gpu.memory_bytes for gpu in gpus) / GIB
    share = min(0.6, max(0.15, (2.0 * weights + RUNNING_GIB) / memory))
    return section | {
        "engines": (len(gpus), "one a GPU"),
        "gpu_memory": (round(share, 2), "share of a GPU for weights and cache while it samples"),
        "canary_tolerance": (0.02, "how far log-probabilities in bfloat16 may differ"),
    }


def _trainer(given: Given, pairs: int) -> Section:
    gpus = len(given.machine.gpus)
    epochs = 2 if pairs < 5000 else 1
    batch = 16 if pairs < 5000 else 64
    fit = {"epochs": epochs, "learning_rate": 1e-4, "batch_pairs": batch}
    steps = math.ceil(epochs * pairs / batch)
    section: Section = {"fit": (fit, f"about {steps:,} steps over the pairs")}
    if gpus > 1:
        section["workers"] = (gpus, "one a GPU")
    if not gpus:
        section["threads"] = (given.machine.cpus, "cores of this machine")
    section["micro_pairs"] = (4 if gpus else 2, "pairs in memory at a time")
    return section


def _limits(given: Given, longest: int) -> Section:
    section: Section = {"unsafe": (None, "not asked for")} if "unsafe" not in given.wish.limits else {}
    section["helpful"] = (
        {"rate": {"score_model": given.reward}, "versus": "reference", "at_least": "50 %"},
        "a floor: without it, refusing everything keeps the other limits",
    )
    most = {"words": longest, "tokens": longest, "sentences": longest, "characters": 16 * longest}
    for name, entry in given.wish.limits.items():
        rule = entry["mean"].get("rule") if isinstance(entry.get("mean"), dict) else None
        bounds = {"bounds": [0, most[rule]]} if rule in most and "bounds" not in entry else {}
        section[name] = (
            {**entry, **bounds},
            _WHAT[next(key for key in ("rate", "mean", "logit", "kl") if key in entry)],
        )
    return section


def _answers(given: Given) -> int:
    """Enough for a round to hold some failures at the rarest limit."""
    rarest = min((_rare(entry) for entry in given.wish.limits.values() if "rate" in entry), default=1.0)
    return int(min(MOST_ANSWERS, max(FEWEST_ANSWERS, _up(STEERED / max(rarest, 1e-6), 32))))


def _rare(entry: Mapping[str, Any]) -> float:
    side = "at_most" if "at_most" in entry else "at_least"
    written = str(entry[side])
    share = float(written.rstrip("% ")) / (100.0 if "%" in written else 1.0)
    return share if side == "at_most" else 1.0 - share


def _certificate(given: Given) -> Section:
    # a level of 5 % with the first candidate's share: 4.6 / limit draws without a failure, three times that with some
    rarest = min((_rare(entry) for entry in given.wish.limits.values() if "rate" in entry), default=0.05)
    section: Section = {
        "certify": ("end", "the run tests its policies when its rounds are done"),
        "draws": (
            _up(max(1000.0, 15.0 / max(rarest, 1e-3)), 100),
            "most draws of a candidate, fewer if it is clear",
        ),
    }
    if given.certificate_prompts is not None:
        section["prompts"] = ([given.certificate_prompts], "asked by certificates alone")
        section["scope"] = ("population", "about new prompts like these")
    return section


def written(sections: Mapping[str, Section | tuple[Any, str]]) -> str:
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


def _up(number: float, unit: int) -> int:
    return unit * math.ceil(number / unit)
