"""A run's own certification: its policies are tested in order of their estimates, and the best certified is released.

    rounds whose own estimates keep the limits ──► most helpful first ──► ask until decided ──► certified: released

The rounds' labels only choose who is tested (`order_of_tests`); what counts for a candidate is drawn after it entered
the ledger. Of all policies certified for the recipe's limits, the most helpful by the run's own estimate is released.
What a person releases by hand stays until another policy is certified.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.backends.backends import Backends
from pddpo_ray.certificates.candidate_order import order_of_tests
from pddpo_ray.certificates.certified import PHASE, Certified, read_certified
from pddpo_ray.certificates.document import certificate_of, sentences, write_certificate
from pddpo_ray.certificates.ledger import Entry, TestedLimit, read_ledger
from pddpo_ray.certificates.outcome import NOT_ASKED, ORDER
from pddpo_ray.certificates.release_history import RELEASE, RULE, Releases
from pddpo_ray.certificates.round_draws import mixtures_of
from pddpo_ray.certificates.testing import ask, certify, opened, reason_against
from pddpo_ray.config import Config
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.journal.transactions import Store

logger = logging.getLogger(__name__)


def certify_at_end(config: Config, run_dir: Path, journal: Journal, backends: Backends) -> None:
    """Tests the run's policies, one after the other until one is certified, and releases the best.

    Mixtures that the rounds' own draws certify come first: they cost no label. `certificate.json` is about a round's
    policy if one is certified, else about the mixture of the most rounds that is.
    """
    mixtures = [settled_mixture(config, run_dir, journal, entry) for entry in mixtures_of(read_ledger(journal))]
    if _test_rounds(config, run_dir, journal, backends):
        return
    for entry in sorted(mixtures, key=lambda entry: -(entry.candidate.rounds or 0)):
        if entry.state == "certified":
            write_certificate(run_dir, certificate_of(config, run_dir, entry))
            return


def settled_mixture(config: Config, run_dir: Path, journal: Journal, entry: Entry) -> Entry:
    """Settles a mixture after its last round, by its rounds' draws."""
    logger.info("%s is %s after %d draws of its rounds", entry.candidate.policy, entry.state, entry.count)
    settle(config, run_dir, journal, entry)
    return entry


def _test_rounds(config: Config, run_dir: Path, journal: Journal, backends: Backends) -> bool:
    """Whether a round's policy is certified by draws of its own."""
    journal.round = journal.next_round - 1
    if reason := why_not_asked(config):
        journal.once(NOT_ASKED, lambda: {"reason": reason})
        return False
    order = journal.once(ORDER, lambda: order_of_tests(config, journal, backends))["order"]
    rounds, budget = order[: config.certificate.candidates], config.certificate.draws
    for number in rounds:
        patient = number == rounds[-1]  # one that misses a limit on average gives way to the next
        entry = ask(config, journal, f"round-{number}", {}, budget, lambda: nullcontext(backends), patient)
        logger.info("%s is %s after %d draws", entry.candidate.policy, entry.state, entry.count)
        settle(config, run_dir, journal, entry)
        if entry.state == "certified":
            return True
        if entry.used_up:  # a further candidate would have no draw
            break
    return False


def why_not_asked(config: Config) -> str | None:
    """Why a run with this recipe tests nothing by itself; None: it does at its end."""
    if reason := reason_against(config):
        return reason
    if config.certificate.certify == "end":
        return None
    return "this recipe tests no policy by itself, `pddpo certify RUN` does (certificate.certify is never)"


def certify_and_release(
    config: Config, run_dir: Path, policy: str, limits: Mapping[str, float], budget: int
) -> tuple[Entry, dict[str, Any]]:
    """What `pddpo certify` does: tests one policy, writes its certificate, and releases what is now the best."""
    entry = certify(config, run_dir, policy, limits, budget)
    with opened(config, run_dir) as journal:
        return entry, settle(config, run_dir, journal, entry)


def certify_folder(
    run_dir: Path, policy: str = "last", *, limits: Mapping[str, float] | None = None, draws: int | None = None
) -> dict[str, Any]:
    """Draws prompts, answers and labels for a policy of a finished run until its limits are certified, or one is shown
    to be broken; returns `certificate.json`, and releases the policy if it is the best that is certified.

    `policy` is round-K, last, mixture or tail-K; `limits` are other bounds than the recipe's, by name; `draws` are
    those for this policy, the recipe's `certificate.draws` if left out. Raises UserError where there is no such run.
    """
    folder = Path(run_dir).expanduser().absolute()
    with open_folder(folder, None) as journal:
        config = Config.of_run(journal.recipe)
    _, certificate = certify_and_release(config, folder, policy, limits or {}, draws or config.certificate.draws)
    return certificate


def settle(config: Config, run_dir: Path, journal: Journal, entry: Entry) -> dict[str, Any]:
    """Writes `certificate.json`, notes a policy that keeps the recipe's limits, and releases the best of those."""
    certificate = write_certificate(run_dir, certificate_of(config, run_dir, entry))
    line = entry.about(config.thresholds)
    if line.state == "certified":
        journal.round = entry.candidate.round
        # a mixture of more rounds is another one
        phase = PHASE if line.candidate.rounds is None else f"{PHASE}-{line.candidate.rounds}"
        if not journal.is_finished(phase):
            newest = _certified_policy(config, journal, line, sentences(certificate_of(config, run_dir, line)))
            journal.once(phase, lambda: _release_best_round(journal, newest))
    return certificate


def _certified_policy(config: Config, journal: JournalReader, entry: Entry, statement: Sequence[str]) -> Certified:
    """The certificate that the policy carries."""
    candidate = entry.candidate
    rounds = {record.version.number: record.round for record in journal.versions()}
    return Certified(
        candidate=candidate.number,
        policy=candidate.policy,
        rounds=tuple(rounds[version["number"]] for version in candidate.versions),
        sha256=tuple(version["sha256"] for version in candidate.versions),
        template=config.template,
        decoding=candidate.decoding,
        limits=tuple(_in_short(limit, entry.findings[limit.name].upper) for limit in candidate.limits),
        statement=tuple(statement),
    )


def _in_short(limit: TestedLimit, upper: float) -> str:
    """`leaks at most 4.3 % (limit 5 %, 95 % confidence)`"""
    side, confidence = "least" if limit.at_least else "most", f"{100 * (1 - limit.delta):.4g} % confidence"
    return f"{limit.name} at {side} {limit.amount(upper)} (limit {limit.stated.bound}, {confidence})"


def _release_best_round(journal: Journal, newest: Certified) -> dict[str, Any]:
    """Releases the most helpful of the certified rounds, if it is not this rule's latest release already."""
    helpfulness = _helpfulness(journal)
    policies = [entry for entry in (*read_certified(journal), newest) if len(entry.rounds) == 1]
    best = max(policies, key=lambda entry: (helpfulness.get(entry.rounds[0], -np.inf), entry.rounds[0]), default=None)
    history = Releases(Store(journal.engine, journal.run_id)).history()
    releases = [line.round for line in history if line.by == RULE and line.action == RELEASE]
    if best is not None and releases[-1:] != [best.rounds[0]]:
        journal.add_release(RELEASE, best.rounds[0], RULE, f"certified as candidate {best.candidate} of the run")
    return newest.as_json()


def _helpfulness(journal: JournalReader) -> dict[int, float]:
    """By round, from the newest order of tests."""
    phases = journal.phases(like=ORDER)
    return {int(number): value for number, value in phases[-1].payload["helpfulness"].items()} if phases else {}
