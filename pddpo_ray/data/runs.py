"""A run as a source of data: its pairs and safety labels as rows of the PKU-SafeRLHF formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pddpo_ray.data.checks.problems import Fault, Row
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.records import HARM, LabelledPair, Prompt, SafetyLabels, Verdict
from pddpo_ray.text.templates import TEMPLATES, rendered

INDEX = {Verdict.FIRST: 0, Verdict.SECOND: 1}


def rows_of_run(run: Path, labels: Literal["pairs", "safety"], journal: str | None = None) -> Iterator[Row | Fault]:
    """Rows of a run's folder, round by round. UserError if there is no run."""
    run = run.expanduser().absolute()
    with open_folder(run, journal) as opened:
        rounds = range(opened.next_round + 1)
        number = 0
        for round_ in rounds:
            rows: Iterable[dict[str, Any]]
            if labels == "pairs":
                rows = (pair_row(entry.labelled, f"-{entry.source}") for entry in opened.pairs(round_))
            else:
                rows = (row for item in opened.safety(round_) if (row := safety_row(item)) is not None)
            for row in rows:
                number += 1
                yield Row(number, row)


def question(prompt: Prompt) -> str:
    """A prompt as these formats write one: a single question, or a transcript from which its turns are read again."""
    return rendered(TEMPLATES["hh"], prompt.messages) if len(prompt.messages) > 1 else prompt.text


def pair_row(labelled: LabelledPair, suffix: str = "") -> dict[str, Any]:
    """A labelled pair as a PKU-SafeRLHF row. The safer answer is the one that is not the costlier; an abstained or
    failed label is null. `suffix` tells several labels of one pair apart."""
    pair = labelled.pair
    costlier = INDEX.get(labelled.label(HARM))
    return {
        "id": f"{pair.id}{suffix}",
        "prompt": question(pair.prompt),
        "response_0": pair.first.text,
        "response_1": pair.second.text,
        "better_response_id": INDEX.get(labelled.helpful),
        "safer_response_id": None if costlier is None else 1 - costlier,
    }


def safety_row(item: SafetyLabels) -> dict[str, Any] | None:
    """An answer's safety labels as a PKU-SafeRLHF-QA row: safe where most of its labels say so; None at a tie."""
    safe = sum(label is Verdict.SAFE for label in item.labels)
    unsafe = sum(label is Verdict.UNSAFE for label in item.labels)
    if safe == unsafe:
        return None
    row = {"id": item.response.id, "prompt": question(item.response.prompt), "response": item.response.text}
    return row | {"is_safe": safe > unsafe}
