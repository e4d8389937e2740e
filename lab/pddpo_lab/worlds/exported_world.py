"""A text world as a folder for other trainers: prompts, offline pairs, the reference model, and how labels are drawn.

    DIR/README.md  world.json  prompts.jsonl  helpful.jsonl  harmless.jsonl  reference/  [truth.json]

The folder is a world of its own: `pddpo score --world DIR` calibrates the truth to the reference in it, so that its
numbers are the same on a machine whose own reference would have been rounded otherwise.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.config import Config, TextWorldConfig
from pddpo_ray.errors import UserError, one_line
from pddpo_ray.records import HARM, LabelledPair, Pair, Response, Verdict
from pddpo_ray.rollout.checkpoint import load_tokenizer
from pddpo_ray.storage.artifacts import file_sha256
from pddpo_ray.storage.whole_files import WEIGHTS, written_aside
from pddpo_ray.theory.seeds import generator
from pddpo_ray.worlds.oracle import Oracle
from pddpo_ray.worlds.text.grammar import BOS
from pddpo_ray.worlds.text.prepared_world import PreparedTextWorld, prepare_text_world
from pddpo_ray.worlds.text.reference import SCORES

WORLD, TRUTH, README, REFERENCE = "world.json", "truth.json", "README.md", "reference"
PROMPTS, HELPFUL, HARMLESS = "prompts.jsonl", "helpful.jsonl", "harmless.jsonl"
FORMAT = "pddpo text world, 1"
PROBLEM = ("beta", "reward_max", "policy", "world", "limits")
"""Sections of a recipe that make the world, besides these settings of `dual` and the longest answer:"""
PROBLEM_OF_DUAL = ("cost_max", "rho")
SAME_WORLD = 1e-3
"""How far the means of reward and cost may move when the world is calibrated again."""


@dataclass(frozen=True)
class Wanted:
    """What is written besides prompts, reference and settings."""

    pairs: int
    truth: bool = False


def export_world(
    config: Config, prepared: PreparedTextWorld, wanted: Wanted, target: Path, made: Mapping[str, Any], *, force: bool
) -> list[str]:
    """Write the folder, whole or not at all; `made` says by whom and when. -> the names in it.

    UserError where `target` holds something, unless `force`: then what has one of the folder's names is replaced.
    """
    refuse_full(target, force)
    if prepared.temperature != 1.0:
        raise UserError(
            f"policy.temperature={prepared.temperature}: other trainers know no such temperature; leave it at 1.0"
        )
    assert isinstance(config.world, TextWorldConfig)
    labelled = offline_pairs(prepared, config.world.seed, wanted.pairs)
    with written_aside(target) as folder:
        folder.mkdir()
        write_reference(prepared, folder / REFERENCE)
        prompts = [{"id": prompt.id, "prompt": prompt.text} for prompt in prepared.prompts]
        _write_lines(folder / PROMPTS, prompts)
        _write_lines(folder / HELPFUL, (_row(one, one.helpful is Verdict.FIRST) for one in labelled))
        _write_lines(folder / HARMLESS, (_row(one, one.label(HARM) is Verdict.SECOND) for one in labelled))
        description = described(config, prepared, len(labelled), folder / REFERENCE, made)
        (folder / WORLD).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        (folder / README).write_text(_readme(description, wanted.truth), encoding="utf-8")
        if wanted.truth:
            truth = truth_of(prepared, config.thresholds["cost"])
            (folder / TRUTH).write_text(json.dumps(truth, allow_nan=False), encoding="utf-8")
        names = sorted(entry.name for entry in folder.iterdir())
        if target.exists():
            _moved_in(folder, target)
    return names


def refuse_full(target: Path, force: bool) -> None:
    """UserError where there is something else than a folder, or where it holds something and `force` is not given."""
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not force)):
        raise UserError(f"{target} is there already and not empty: name a new folder with --to, or add --force")


def exported_settings(folder: Path) -> Config:
    """The settings of an exported folder. UserError where it is not one."""
    return _read(folder)[0]


def prepare_exported(folder: Path) -> PreparedTextWorld:
    """The world of an exported folder, calibrated to the reference in it. UserError where that is another model, or
    where this version makes another world of it."""
    config, stated = _read(folder)
    weights = folder / REFERENCE / WEIGHTS
    if not weights.is_file() or file_sha256(weights) != stated["reference"]["sha256"]:
        raise UserError(f"{folder / REFERENCE} is not the model that {WORLD} names: export the world again")
    prepared = prepare_text_world(config, folder / REFERENCE)
    own = truth_means(prepared.world.oracle)
    if any(abs(own[name] - stated["truth_means"][name]) > SAME_WORLD for name in own):
        version = stated["made"].get("version")
        raise UserError(f"{folder} was written by pddpo {version}, which draws other worlds: use that version")
    return prepared


def _read(folder: Path) -> tuple[Config, dict[str, Any]]:
    file = folder / WORLD
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
        if stated["format"] != FORMAT:
            raise UserError(f"{file}: the format is {stated['format']!r}, this version reads {FORMAT!r}")
        return Config.of_run({"algorithm": "o-pd-dpo", **stated["settings"]}), stated
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder} is no exported world ({one_line(error)}); `pddpo world export` writes one"
        ) from error


# --- what is written --------------------------------------------------------------------------------------------------


def offline_pairs(prepared: PreparedTextWorld, seed: int, count: int) -> list[LabelledPair]:
    """`count` labelled pairs of different answers, drawn from the reference on covered answers, prompts in turn."""
    world, rng = prepared.world, generator(seed, "world-export")
    weights = np.where(world.covered, world.oracle.reference, 0.0)[:, :-1]
    chances = weights / weights.sum(axis=1, keepdims=True)
    texts, ids = world.grammar.answer_texts, world.grammar.answer_ids
    pairs: list[Pair] = []
    while len(pairs) < count:
        x = len(pairs) % len(world.prompts)
        first, second = rng.choice(len(texts), size=2, p=chances[x])
        if first != second:
            name = f"export-{len(pairs)}"
            sides = [Response(f"{name}-{y}", world.prompts[x], ids[y], texts[y], 0, 0) for y in (first, second)]
            pairs.append(Pair(name, *sides))
    return prepared.labeller().compare(pairs, seed)


def write_reference(prepared: PreparedTextWorld, folder: Path) -> None:
    """The reference as an ordinary model folder. Its tokenizer begins every text with the beginning of sequence, as
    the world does; trainers that read text rely on it."""
    from tokenizers.processors import TemplateProcessing

    folder.mkdir()
    for file in sorted(prepared.reference_folder.iterdir()):
        if file.name != SCORES:
            shutil.copyfile(file, folder / file.name)
    tokenizer = load_tokenizer(folder)
    begin = prepared.world.grammar.vocabulary[BOS]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, begin)]
    )
    tokenizer.save_pretrained(folder)


def described(
    config: Config, prepared: PreparedTextWorld, pairs: int, reference: Path, made: Mapping[str, Any]
) -> dict[str, Any]:
    """world.json: settings, limit, beta, and how labels are drawn."""
    whole = config.model_dump(mode="json")
    settings = {key: whole[key] for key in PROBLEM}
    for key in ("cache", "learner"):  # a folder of this machine, and what learns: neither is the world
        settings["world"].pop(key, None)
    settings["dual"] = {key: whole["dual"][key] for key in PROBLEM_OF_DUAL}
    settings["rollout"] = {"engine": "transformers", "max_tokens": config.rollout.max_tokens}
    settings["feedback"] = {"kind": "world"}
    world = prepared.world
    cost = "logit" if world.limits_rate else "cost"
    noise = f"; a share {world.label_noise:g} of these labels says the opposite" if world.label_noise else ""
    return {
        "format": FORMAT,
        "settings": settings,
        "beta": config.beta,
        "limit": {
            "quantity": "unsafe rate" if world.limits_rate else "expected cost",
            "at_most": config.thresholds["cost"],
        },
        "prompts": len(world.prompts),
        "answers_per_prompt": len(world.grammar.answer_texts),
        "off_grammar": off_grammar(world.oracle),
        "labels": {
            "safety": f"an answer is unsafe with probability 1 / (1 + exp(-{cost})){noise}",
            "helpful": "the first answer is better with probability"
            f" 1 / (1 + exp(reward of second - reward of first)){noise}",
            "harmful": "the first answer is costlier with probability"
            f" 1 / (1 + exp({cost} of second - {cost} of first)){noise}",
        },
        "offline_pairs": {
            "count": pairs,
            "drawn": "two different answers of the reference, among those without a rare phrase, prompts in turn",
            "text": "prompt + chosen is the text: chosen and rejected begin with a space, the end of sequence follows",
        },
        "reference": {"folder": REFERENCE, "sha256": file_sha256(reference / WEIGHTS)},
        "truth_means": truth_means(world.oracle),
        "made": dict(made),
    }


def truth_means(oracle: Oracle) -> dict[str, float]:
    """Two numbers by which a world is known again."""
    return {"reward": float(oracle.reward.mean()), "cost": float(oracle.cost.mean())}


def off_grammar(oracle: Oracle) -> dict[str, float]:
    """Reward and cost of text that is none of the answers."""
    return {"reward": float(oracle.reward[0, -1]), "cost": float(oracle.cost[0, -1])}


def truth_of(prepared: PreparedTextWorld, threshold: float) -> dict[str, Any]:
    """truth.json: reward, cost and log pi_ref of every answer of every prompt, and the optimum that follows.

    Where the limit is an unsafe rate, `cost` is the chance of an unsafe label and `logit` what it follows from.
    """
    world, oracle = prepared.world, replace(prepared.world.oracle, threshold=threshold)
    with np.errstate(divide="ignore"):
        log_reference = np.log(oracle.reference)
    return {
        "prompts": [prompt.text for prompt in world.prompts],
        "answers": list(world.grammar.answer_texts),
        "reward": oracle.reward[:, :-1].tolist(),
        "cost": oracle.cost[:, :-1].tolist(),
        **({"logit": world.logits[:, :-1].tolist()} if world.limits_rate else {}),
        "reference_log_probs": log_reference[:, :-1].tolist(),
        "covered": world.covered[:, :-1].tolist(),
        "off_grammar": {**off_grammar(oracle), "reference_probs": oracle.reference[:, -1].tolist()},
        "prior": oracle.prior.tolist(),
        "beta": oracle.beta,
        "limit": threshold,
        "rho": oracle.rho,
        "optimum": {"multiplier": oracle.optimum.multiplier, "f": oracle.optimum.f, "g": oracle.optimum.g},
    }


def _row(labelled: LabelledPair, first_is_chosen: bool) -> dict[str, str]:
    pair = labelled.pair
    chosen, rejected = (pair.first, pair.second) if first_is_chosen else (pair.second, pair.first)
    # trainers join prompt and answer as they are, and words are told apart by spaces
    texts = {"chosen": f" {chosen.text}", "rejected": f" {rejected.text}"}
    return {"id": pair.id, "prompt": pair.prompt.text, **texts}


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _readme(description: Mapping[str, Any], truth: bool) -> str:
    quantity, limit = description["limit"]["quantity"], description["limit"]["at_most"]
    at_most = f"{100 * limit:g} %" if quantity == "unsafe rate" else f"{limit:g}"
    about_truth = (
        f"- `{TRUTH}`: reward, cost and log pi_ref of every answer; what you train must not see it\n" if truth else ""
    )
    return f"""# A world with a known answer

{description["prompts"]} prompts with {description["answers_per_prompt"]} answers each. The task: from `{REFERENCE}`,
train the policy with the largest E[reward] - {description["beta"]:g} KL(policy || reference) whose {quantity} is at
most {at_most}. The best such policy is known exactly.

- `{REFERENCE}/`: the model to start from, in Hugging Face layout, with its tokenizer (one word, one token)
- `{PROMPTS}`: every prompt
- `{HELPFUL}`, `{HARMLESS}`: labelled pairs, `chosen` is the more helpful or the less harmful answer
- `{WORLD}`: all settings, and how labels are drawn
{about_truth}
    pddpo score CHECKPOINT --world THIS_FOLDER        # gap, violation and KL of what you trained, exact
    pddpo world serve --world THIS_FOLDER             # fresh labels over HTTP

Text that is none of the answers has the worst reward and the worst cost. Answers begin with a space, and the end of
sequence belongs to them.
"""


def _moved_in(folder: Path, target: Path) -> None:
    """Every entry of `folder` into `target`; what had its name there is removed once all are in."""
    replaced: list[Path] = []
    for entry in sorted(folder.iterdir()):
        if (target / entry.name).exists():
            replaced.append(target / f".{entry.name}.{uuid.uuid4().hex[:8]}.old")
            (target / entry.name).rename(replaced[-1])
        entry.rename(target / entry.name)
    for old in replaced:
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    folder.rmdir()
