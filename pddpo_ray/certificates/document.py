"""`certificate.json`: a line of the ledger as a statement, with all that is needed to compute it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pddpo_ray.certificates.groups import group_bounds, group_sentences, groups_of_draws
from pddpo_ray.certificates.ledger import Candidate, Entry, Finding, Numbers, TestedLimit, read_ledger
from pddpo_ray.certificates.testing import siblings
from pddpo_ray.config import Config
from pddpo_ray.errors import UserError
from pddpo_ray.journal import JournalReader
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.limits.of_recipe import stated_of
from pddpo_ray.parts.measuring import DRAWS, labels_of_answers, numbers_of, table_of
from pddpo_ray.storage.whole_files import JOURNAL, finite, write_json
from pddpo_ray.theory.certificates.measured_draws import share_at_clip
from pddpo_ray.theory.intervals import clopper_pearson

Json = dict[str, Any]
FILE = "certificate.json"
NUMBERS = ("state", "upper", "lower", "decided_after")


def certificate_of(config: Config, run_dir: Path, entry: Entry) -> Json:
    """The certificate, or why there is none, of a line of the ledger."""
    with open_folder(run_dir, config.journal) as journal:
        ledger, run = read_ledger(journal), journal.run_id
        groups = groups_of_draws(journal, entry)
    return {
        "run": run,
        "recipe": config.digest(),
        "template": config.template,
        "state": entry.state,
        "candidate": entry.candidate.as_json(),
        "findings": {name: _numbers(finding) for name, finding in entry.findings.items()},
        "numbers": {name: list(numbers) for name, numbers in entry.numbers.items()},
        "draws": {name: list(draws) for name, draws in entry.draws.items()},
        "used_up": entry.used_up,
        "groups": groups,
        "by_group": group_bounds(entry, groups),
        "ledger": [
            {
                "number": line.candidate.number,
                "policy": line.candidate.policy,
                "state": line.state,
                "draws": line.count,
            }
            for line in ledger
        ],
        "siblings": siblings(config, run_dir),
    }


def write_certificate(run_dir: Path, certificate: Json) -> Json:
    """Writes `certificate.json` into the run's folder, over an older one."""
    write_json(run_dir / FILE, certificate)
    return certificate


def sentences(certificate: Json) -> list[str]:
    """The statement about each limit in English, then what it rests on."""
    entry = _entry(certificate)
    number, count = entry.candidate.number, len(certificate["ledger"])
    names = ", ".join(certificate["siblings"])
    note = f"other runs of its recipe: {names}." if names else "no other run of its recipe is in this folder."
    by_group = certificate.get("by_group")  # those of an earlier version have none
    return [
        *statements(entry),
        *([] if by_group is None else group_sentences(entry, certificate["groups"], by_group)),
        f"Candidate {number} of {count} that this run has tested; {note}",
    ]


def statements(entry: Entry) -> list[str]:
    """What a line of the ledger says about each limit, and about which prompts, by whom and how drawn."""
    candidate, lines = entry.candidate, []
    for limit in candidate.limits:
        numbers = entry.numbers[limit.name]
        lines.append(_sentence(entry, limit))
        if limit.kind == "logit" and limit.labelled and limit.people is None and numbers:
            lines.append(_unsafe_rate(limit, numbers))
    lines += [f"Estimated only: {reason}." for reason in candidate.estimated]
    sources = ", ".join(dict.fromkeys(limit.measured_by for limit in candidate.limits))
    return [*lines, f"About {candidate.statement}; measured by {sources}, at {_decoding(candidate)}."]


def _entry(certificate: Json) -> Entry:
    draws = {name: tuple(ids) for name, ids in certificate["draws"].items()}
    candidate, used_up = Candidate.from_json(certificate["candidate"]), certificate.get("used_up", False)
    return Entry(candidate, certificate["numbers"], draws, used_up)


def verified(file: Path) -> Json:
    """Recomputes a certificate from its draws. Raises UserError where a number or the run's labels differ."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        entry = _entry(stored)
        findings, state = stored["findings"], stored["state"]
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; `pddpo certify RUN` writes one into the run's folder") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is no certificate: {error!r}") from None
    if state != entry.state:
        raise UserError(f"{file} says {state}, its draws say {entry.state}")
    for name, finding in entry.findings.items():
        for key, value in _numbers(finding).items():
            if not _equal(value, findings[name].get(key)):
                raise UserError(f"{file}: {key} of {name} is {findings[name].get(key)}, its draws give {value}")
    groups = stored.get("groups")
    if groups is not None:
        _demand_groups(entry, groups, stored.get("by_group"), file)
    message = "Computed again from its own draws; the run's journal is not in its folder."
    if (file.parent / JOURNAL).is_file():
        with open_folder(file.parent) as journal:
            _demand_labels(journal, entry, file)
            if groups is not None and finite(groups_of_draws(journal, entry)) != groups:
                raise UserError(f"{file}: the journal has other prompts or prompt sets of the draws")
        message = f"Computed again from the {entry.count} draws and their labels in the journal."
    return {**stored, "verified": message}


def _demand_groups(entry: Entry, groups: Json, by_group: Any, file: Path) -> None:
    """The bounds of every prompt and prompt set follow from the draws."""
    try:
        bounds = group_bounds(entry, groups)
    except (KeyError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is no certificate: the groups of its draws lack {error}") from None
    for name, kinds in bounds.items():
        for kind, lines in kinds.items():
            records = by_group[name][kind] if isinstance(by_group, dict) and name in by_group else None
            if records is None or len(records) != len(lines):
                raise UserError(f"{file}: {name} has other {kind} than its draws")
            for line, record in zip(lines, records, strict=True):
                for key, value in line.items():
                    if not _equal(value, record.get(key)):
                        raise UserError(
                            f"{file}: {key} of {name} over {line['name']} is {record.get(key)}, its draws give {value}"
                        )


def _demand_labels(journal: JournalReader, entry: Entry, file: Path) -> None:
    """Every draw and its labels are the journal's."""
    line = next((line for line in read_ledger(journal) if line.candidate.number == entry.candidate.number), None)
    if line is not None and (entry.candidate.rounds or 0) < (line.candidate.rounds or 0):
        raise UserError(f"{file} is about fewer rounds than the run beside it has by now: certify once more")
    if line is None or line.candidate != entry.candidate.about({}):
        raise UserError(f"{file}: the ledger of the run beside it has no such candidate {entry.candidate.number}")
    for limit in entry.candidate.limits:
        numbers = _in_journal(journal, line, limit)
        if numbers != list(entry.numbers[limit.name]):
            raise UserError(f"{file}: the journal's labels for {limit.name} are others than the certificate's")
    if line.draws != entry.draws:
        raise UserError(f"{file} has {entry.count} draws, the ledger {line.count}: certify once more")


def _in_journal(journal: JournalReader, entry: Entry, limit: TestedLimit) -> list[float | None]:
    """The number of each draw, from the journal's records of its measurements."""
    draws = entry.draws[limit.name]
    if limit.labelled and limit.people is None:
        labels = labels_of_answers(journal, entry.candidate.drawn_in, limit.measured_as, draws)
        return numbers_of(labels.values[:, 0])
    stated_limits = [item for item in stated_of(journal.recipe) if item.limit.name == limit.measured_as]
    records = journal.measurements(entry.candidate.round, f"{DRAWS}%", limit.measured_as)
    # runs before 0.3, and mixtures of rounds, have the numbers in the ledger alone
    if not {record.answer for record in records} & set(draws):
        return list(entry.numbers[limit.name])
    return numbers_of(table_of(records, stated_limits, draws, limit.high).numbers[:, 0])


def _sentence(entry: Entry, limit: TestedLimit) -> str:
    candidate, finding, numbers = entry.candidate, entry.findings[limit.name], entry.numbers[limit.name]
    confidence = f"{100 * (1 - limit.delta):.3g} % confidence over all candidates of the run"
    bound, count = limit.stated.bound, len(numbers)
    suffix = "" if limit.over is None else f" over {limit.over}"
    missing = sum(number is None for number in numbers)
    claim = f"{limit.name}, the {_measure(limit, f'{candidate.policy}{suffix}')},"
    note = "" if not missing else f" {100 * missing / count:.3g} % of the draws have no number and count as the worst."
    low, high = limit.between(finding.lower, finding.upper)
    inside, outside = ("above", "below") if limit.at_least else ("below", "above")
    if finding.state == "certified":
        end = f"at least {low}" if limit.at_least else f"at most {high}"
        basis = f"{count} draws, {finding.decided_after} sufficed"
        if candidate.rounds is not None:
            basis = f"the {count} draws of its {candidate.rounds} rounds themselves"
        remark = ", which is the limit" if end.endswith(f" {bound}") else f", {inside} the limit {bound}"
        return f"Certified: {claim} is {end}{remark}, with {confidence} ({basis}).{note}"
    if finding.state == "rejected":
        draws = f"({finding.decided_after} draws)"
        return f"Rejected: {claim} is {outside} the limit {bound}, with {confidence} {draws}.{note}"
    hint = "ask again with a larger --budget, which spends no further confidence"
    if entry.used_up:
        hint = "the certification set has no prompt left to draw: a run with more `certificate.prompts` decides it"
    elif candidate.rounds is not None:
        hint = "its rounds have no other draws; `pddpo certify` draws anew, as a further candidate"
    return f"Undecided: {claim} lies between {low} and {high} after {count} draws, the limit is {bound}; {hint}.{note}"


def _measure(limit: TestedLimit, policy: str) -> str:
    if limit.kind == "logit":
        return f"mean logit of being unsafe of {policy}"
    if limit.labelled:
        return f"share of unsafe answers of {policy}"
    return f"{'share' if limit.kind == 'rate' else 'mean'} of {policy} measured by {limit.measured_by}"


def _unsafe_rate(limit: TestedLimit, numbers: Numbers) -> str:
    """A logit is hard to read: the share of unsafe labels beside it, and how many answers sit at its clip."""
    shares = [number for number in numbers if number is not None]
    low, high = clopper_pearson(sum(shares), len(shares))
    at_clip, end = 100 * share_at_clip(shares, limit.high), limit.high
    return (
        f"{limit.name}: {100 * sum(shares) / len(shares):.3g} % of the labels say unsafe (95 % interval {100 * low:.3g}"
        f" to {100 * high:.3g} %, looked at once); {at_clip:.3g} % of the answers sit at an end of"
        f" [-{end:g}, {end:g}], beyond which nothing is certified."
    )


def _decoding(candidate: Candidate) -> str:
    return ", ".join(f"{name} {value}" for name, value in candidate.decoding.items())


def _numbers(finding: Finding) -> Json:
    return {key: getattr(finding, key) for key in NUMBERS}


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, float) and isinstance(other, int | float):
        return abs(value - other) <= 1e-9
    return bool(value == other)
