"""A run as a source of data: its pairs as rows of the PKU-SafeRLHF format, and all that was measured of its answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pddpo_ray.data.checks.problems import Fault, Row
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.records import HARM, LabelledPair, Prompt, Verdict
from pddpo_ray.text.templates import TEMPLATES, rendered

INDEX = {Verdict.FIRST: 0, Verdict.SECOND: 1}


def rows_of_run(run: Path) -> Iterator[Row | Fault]:
    """Labelled pairs of a run's folder, round by round. UserError if there is no run."""
    with open_folder(run.expanduser().absolute()) as reader:
        number = 0
        for round_ in range(reader.next_round + 1):
            for entry in reader.pairs(round_):
                number += 1
                yield Row(number, pair_row(entry.labelled, f"-{entry.source}"))


def measurements_of_run(run: Path, journal: str | None = None) -> Iterator[dict[str, Any]]:
    """Every measurement under a limit, people's and machines' labels one by one, with prompt and answer (and its id).

    `value` is in the measure's unit (rates and logits: 1 for a yes), or null with the reason in `missing`; `chance` is
    the probability that an audit asks about the answer. Raises UserError if there is no run.
    """
    with open_folder(run.expanduser().absolute(), journal) as reader:
        answers = {answer.id: answer for answer in reader.samples()}
        for number, purpose, measurement in reader.measured():
            answer = answers[measurement.answer]
            fields = asdict(measurement)
            yield {
                "id": fields.pop("answer"),
                "round": number,
                "purpose": purpose,
                **fields,
                "policy_version": answer.policy_version,
                "prompt_id": answer.prompt.id,
                "prompt": question(answer.prompt),
                "response": answer.text,
            }


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
