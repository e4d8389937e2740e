"""A run's own certification: its policies are tested in order of their estimates, and the best certified is released.

    rounds whose own estimates keep the limits ──► most helpful first ──► ask until decided ──► certified: released

A round's labels only choose who is tested; what counts for a candidate is drawn after it entered the ledger. Released
is, of all policies that keep the recipe's limits by a certificate, the most helpful by the run's own estimate. What a
person releases by hand stays until another policy is certified.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.config import Config
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.journal.transactions import Store
from pddpo_ray.loop.backends import Backends
from pddpo_ray.loop.certificate_file import certificate_of, sentences, write_certificate
from pddpo_ray.loop.certifying import ask, certify, opened, reason_against, tested_limits
from pddpo_ray.loop.ledger import Entry, TestedLimit
from pddpo_ray.loop.outcome import NOT_ASKED, ORDER
from pddpo_ray.records import Array, PolicyVersion, Response
from pddpo_ray.serving.certified import PHASE, Certified, read_certified
from pddpo_ray.serving.releases import RELEASE, RULE, Releases
from pddpo_ray.theory.output import in_order_of_test, shortfall
from pddpo_ray.theory.power import certified_rate

logger = logging.getLogger("pddpo_ray.loop.run")

LogProbs = Callable[[PolicyVersion, Sequence[Response]], Array]


def certify_at_end(config: Config, run_dir: Path, journal: Journal, backends: Backends) -> None:
    """Tests the run's policies, one after the other until one is certified, and releases the best."""
    journal.round = journal.next_round - 1
    if reason := why_not_asked(config):
        journal.once(NOT_ASKED, lambda: {"reason": reason})
        return
    order = journal.once(ORDER, lambda: _order(config, journal, backends.trainer.log_probs))["order"]
    for number in order[: config.certificate.candidates]:
        policy = f"round-{number}"
        entry = ask(config, journal, policy, {}, config.certificate.draws, lambda: nullcontext(backends))
        logger.info("%s is %s after %d draws", policy, entry.state, entry.count)
        settle(config, run_dir, journal, entry)
        if entry.state == "certified":
            return


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
    """What `pddpo certify` does: asks about one policy, writes its certificate, and releases what is now the best."""
    entry = certify(config, run_dir, policy, limits, budget)
    with opened(config, run_dir) as journal:
        return entry, settle(config, run_dir, journal, entry)


def settle(config: Config, run_dir: Path, journal: Journal, entry: Entry) -> dict[str, Any]:
    """Writes `certificate.json`, notes a policy that keeps the recipe's limits, and releases the best of those."""
    certificate = write_certificate(run_dir, certificate_of(config, run_dir, entry))
    kept = all(one.limit <= config.thresholds[one.name] for one in entry.candidate.limits)
    if entry.state == "certified" and kept:
        journal.round = entry.candidate.round
        if not journal.is_finished(PHASE):
            newest = _certified(config, journal, entry, sentences(certificate))
            journal.once(PHASE, lambda: _noted(journal, newest))
    return certificate


def _certified(config: Config, journal: JournalReader, entry: Entry, said: Sequence[str]) -> Certified:
    """What travels with the policy from here on."""
    candidate = entry.candidate
    rounds = {one.version.number: one.round for one in journal.versions()}
    return Certified(
        candidate=candidate.number,
        policy=candidate.policy,
        rounds=tuple(rounds[one["number"]] for one in candidate.versions),
        sha256=tuple(one["sha256"] for one in candidate.versions),
        template=config.template,
        decoding=candidate.decoding,
        limits=tuple(_in_short(one, entry.findings[one.name].upper) for one in candidate.limits),
        statement=tuple(said),
    )


def _in_short(one: TestedLimit, upper: float) -> str:
    """`leaks at most 4.3 % (limit 5 %, 95 % confidence)`"""
    side, confidence = "least" if one.at_least else "most", f"{100 * (1 - one.delta):.4g} % confidence"
    return f"{one.name} at {side} {one.amount(upper)} (limit {one.stated.bound}, {confidence})"


def _noted(journal: Journal, newest: Certified) -> dict[str, Any]:
    """Releases the most helpful of the certified rounds, if it is not this rule's latest release already."""
    helpful = _helpfulness(journal)
    single = [one for one in (*read_certified(journal), newest) if len(one.rounds) == 1]
    best = max(single, key=lambda one: (helpful.get(one.rounds[0], -np.inf), one.rounds[0]), default=None)
    history = Releases(Store(journal.engine, journal.run_id)).history()
    mine = [line.round for line in history if line.by == RULE and line.action == RELEASE]
    if best is not None and mine[-1:] != [best.rounds[0]]:
        journal.add_release(RELEASE, best.rounds[0], RULE, f"certified as candidate {best.candidate} of the run")
    return newest.as_json()


# --- who is tested first ----------------------------------------------------------------------------------------------


def _helpfulness(journal: JournalReader) -> dict[int, float]:
    """By round, as the newest order of tests found it."""
    phases = journal.phases(like=ORDER)
    return {int(number): value for number, value in phases[-1].payload["helpfulness"].items()} if phases else {}


def _order(config: Config, journal: JournalReader, log_probs: LogProbs) -> dict[str, Any]:
    """Rounds in the order in which they are put to the test, with what each is estimated to be worth."""
    tested = tested_limits(config, {}, 1)
    limits = {one.name: _reachable(one, config.certificate.draws) for one in tested}
    estimates: dict[int, dict[str, float]] = {}
    for step in journal.dual_steps():
        if step.round < journal.next_round and step.constraint in limits:
            estimates.setdefault(step.round, {})[step.constraint] = step.estimate.value
    thresholds = {one.name: one.limit for one in tested}
    short = {number: shortfall(found, limits, thresholds) for number, found in estimates.items()}
    helpful = _estimated_helpfulness(config.beta, journal, log_probs)
    order = in_order_of_test(short, {number: helpful.get(number, float(number) - 1e9) for number in short})
    return {"order": order, "helpfulness": helpful}


def _reachable(tested: TestedLimit, draws: int) -> float:
    """The estimate below which a test with so many draws is expected to certify."""
    unit = tested.to_unit(tested.limit - tested.bias)
    return tested.from_unit(certified_rate(unit, draws, tested.level))


def _estimated_helpfulness(beta: float, journal: JournalReader, log_probs: LogProbs) -> dict[int, float]:
    """-beta KL(round's policy || last reward policy), by round, from the round's own answers; {} without such a policy.

    The reward policy is exp(reward / beta) times the reference up to a factor of each prompt, so E[reward] - beta KL
    from the reference is this, plus a number that is the same for all policies.
    """
    rewards = [entry.version for entry in journal.versions() if entry.stage == "reward" and entry.round > 0]
    found = {}
    for number, policy in enumerate(journal.policies[: journal.next_round - 1], start=1):
        answers = journal.samples(number, "cost")
        if rewards and answers:
            ratio = log_probs(rewards[-1], answers) - log_probs(policy, answers)
            found[number] = beta * float(np.mean(ratio))
    return found
