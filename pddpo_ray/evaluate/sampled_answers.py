"""Answers of a model to the prompt sets that a file with limits names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pddpo_ray.config.document import read_document
from pddpo_ray.errors import UserError
from pddpo_ray.evaluate.models import Speaker, parse_model, policy_temperature
from pddpo_ray.limits.answer_files import asked_turns, json_rows
from pddpo_ray.limits.sources import Answer
from pddpo_ray.records import Decoding, Message
from pddpo_ray.text.templates import as_dicts, for_reading
from pddpo_ray.theory.seeds import seed_of


def sampled(file: Path, model: str, *, samples: int, max_tokens: int, seed: int) -> list[Answer]:
    """`samples` answers to every prompt of the file's `prompts:`. Raises UserError where there is none, or no model."""
    prompts = prompts_of(file)
    parsed_model = parse_model(model)
    speaker = Speaker(parsed_model, template="tokenizer-or-plain", temperature=policy_temperature([parsed_model]))
    try:
        seeds = [seed_of(seed, "limits suggest", index) for index in range(len(prompts))]
        replies = speaker.answer([turns for turns, _ in prompts], seeds, Decoding(max_tokens=max_tokens), samples)
    finally:
        speaker.close()
    return [
        Answer(for_reading(turns), reply.text, {"set": sets}, turns, where=f"prompt {index}, answer {number}")
        for index, ((turns, sets), prompt_replies) in enumerate(zip(prompts, replies, strict=True), start=1)
        for number, reply in enumerate(prompt_replies, start=1)
    ]


def written(answers: Sequence[Answer], path: Path) -> None:
    """Writes answers as a file that `pddpo limits check` reads."""
    rows = ({"prompt": as_dicts(answer.turns), "response": answer.response, **answer.row} for answer in answers)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def prompts_of(file: Path) -> list[tuple[tuple[Message, ...], list[str]]]:
    """Each prompt of the file's `prompts:` once, with the names of its sets."""
    document, _ = read_document(file, file.name)
    sets = document.get("prompts")
    if not isinstance(sets, dict) or not sets:
        raise UserError(f"{file.name}: no `prompts:` in it; name sets: prompts: {{benign: {{files: [benign.jsonl]}}}}")
    sets_of: dict[tuple[Message, ...], list[str]] = {}
    for name, settings in sets.items():
        files = settings.get("files") if isinstance(settings, dict) else None
        if not isinstance(files, list) or not files:
            raise UserError(f"{file.name}: prompts.{name} names files, e.g. {{files: [benign.jsonl]}}")
        for path in files:
            for _, where, row in json_rows(file.parent / str(path)):
                turns = asked_turns(row, where) or (Message("user", row["prompt"]),)
                names = sets_of.setdefault(turns, [])
                if name not in names:
                    names.append(str(name))
    return list(sets_of.items())
