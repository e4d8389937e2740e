"""Ask until decided: draws, answers and labels for a candidate until it is certified, rejected or out of budget.

    entry in the ledger ──► batch: prompts ──► answers of the candidate ──► labels ──► look after every draw ──┐
                              ▲                                                                    undecided   │
                              └────────────────────────────────────────────────────────────────────────────────┘

What is drawn and who labels it: `draws`. A statement names its prompts: the run's own, on which the policy was trained,
or those of a certification set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pddpo_ray.backends import in_process
from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.preflight import resumed_run
from pddpo_ray.certificates.draws import draw_until_decided
from pddpo_ray.certificates.groups import with_gates
from pddpo_ray.certificates.ledger import Candidate, Entry, TestedLimit, enter, line_of, mixture_name, read_ledger
from pddpo_ray.config import Config
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.limits.reading import SourceName, StatedLimit
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.whole_files import JOURNAL
from pddpo_ray.theory.certificates.levels import Allocation

BESIDE_PEOPLE = ", with "
"""What stands between people and the machine beside them, where a source is named."""

MakeParts = Callable[[], AbstractContextManager[Backends]]


def certify(config: Config, run_dir: Path, policy: str, limits: Mapping[str, float], budget: int) -> Entry:
    """Puts a policy of a finished run to the test in this process: `ask` on the journal in its folder."""
    recipe = config.in_one_process()
    with opened(config, run_dir) as journal:
        return ask(config, journal, policy, limits, budget, lambda: closing(in_process.make_backends(recipe, run_dir)))


def opened(config: Config, run_dir: Path) -> Journal:
    """Opens the journal of an existing run for writing. Raises UserError where there is none."""
    run_id, shared = resumed_run(config, run_dir)
    recipe = config.model_dump(mode="json")
    return Journal.open(config.journal or run_dir / JOURNAL, run_id, create=recipe, fixed=shared)


def ask(
    config: Config, journal: Journal, policy: str, limits: Mapping[str, float], budget: int, parts: MakeParts,
    patient: bool = True,
) -> Entry:  # fmt: skip
    """Puts a policy of a run to the test with at most `budget` draws a limit, and returns its line of the ledger.

    `limits` are other bounds than the recipe's, in the limits' own units. A policy's earlier test continues where
    it stopped and spends nothing, whatever the bounds are now; the line is about those that were asked for. `parts`
    draws and labels, and is entered where there is something to draw. Unless `patient`, a test ends undecided after
    `EARLY` batches whose mean breaks a limit. Raises UserError for a policy or limit that the run lacks, and where
    nothing could be certified.
    """
    versions = _versions(journal, policy)
    test_limits = with_gates(config, tested_limits(config, limits, len(read_ledger(journal)) + 1))
    return ask_about(config, journal, versions, test_limits, budget, parts, patient=patient)


def ask_about(
    config: Config,
    journal: Journal,
    versions: Sequence[PolicyVersion],
    tested: tuple[TestedLimit, ...],
    budget: int,
    parts: MakeParts,
    statement: str | None = None,
    patient: bool = True,
) -> Entry:
    """`ask` about policies that the journal holds, under limits at the level of the ledger's next candidate.

    A `statement` says what prompts the sentence is about where the recipe does not know it, and who measures; under
    another one the policy is another candidate.
    """
    bounds = {limit.name: limit.limit for limit in tested}
    ledger = [line for line in read_ledger(journal) if statement is None or line.candidate.statement == statement]
    entry = _same(ledger, versions, tested, decoding_of(config))
    if entry is None:
        candidate = _candidate(journal, config, versions, tested, statement or _statement(config))
    else:
        candidate = entry.candidate.about(bounds)
    line = line_of(journal, candidate.number).about(bounds)
    if line.state != "undecided" or line.count >= budget:
        return line
    with parts() as backends:
        draw_until_decided(config, journal, backends, candidate, budget, patient=patient)
    return line_of(journal, candidate.number).about(bounds)


def reason_against(config: Config) -> str | None:
    """Why nothing of such a run can be certified; None: it can be."""
    try:
        tested_limits(config, {}, 1)
    except UserError as problem:
        return str(problem)
    return None


def tested_limits(config: Config, limits: Mapping[str, float], number: int) -> tuple[TestedLimit, ...]:
    """The limits of a candidate, each at the level of candidate `number`; 0 where the fixed shares are used up.

    Raises UserError for a limit that no draws can certify.
    """
    unknown = [name for name in limits if name not in config.thresholds]
    if unknown:
        raise UserError(f"--limit {unknown[0]}: this run's limits are {', '.join(config.thresholds)}")
    tested = [_tested_limit(entry, limits, number, config) for entry in bounded(config) if cannot(entry) is None]
    if not tested:
        raise UserError("; ".join(estimated_only(config)))
    for test in tested:
        if not test.possible:
            bias = f", a logit's also above -C = {test.low:g} by the bias of {test.labels_each} labels, {test.bias:.2f}"
            raise UserError(
                f"limit {test.name} of {test.stated.bound} cannot be certified by any number of draws: it must lie"
                f" inside the measure's bounds{bias if test.kind == 'logit' else ''}"
            )
    return tuple(tested)


def estimated_only(config: Config) -> tuple[str, ...]:
    """The stated limits that no draws can certify, each with its reason."""
    return tuple(f"{entry.limit.name}: {cannot(entry)}" for entry in bounded(config) if cannot(entry))


def bounded(config: Config) -> tuple[StatedLimit, ...]:
    """The stated limits; tokens of an answer are at most those that a run lets it have."""
    longest = config.rollout.max_tokens
    return tuple(
        replace(stated_limit, limit=stated_limit.limit.within(0.0, longest))
        if stated_limit.source == SourceName("rule", "tokens") and stated_limit.limit.cost_range is None
        else stated_limit
        for stated_limit in config.stated
    )


def cannot(stated_limit: StatedLimit) -> str | None:
    """Why a stated limit is estimated only; None: it can be certified."""
    quantity = stated_limit.limit.quantity
    if quantity.kind == "kl":
        return "a kl limit is never certified, for its ratio has no bound"
    if quantity.kind == "mean" and stated_limit.source.named == "model":
        return "a cost model's mean is estimated only, never certified"
    if quantity.kind == "mean" and stated_limit.limit.cost_range is None:
        return "a mean without stated bounds is estimated only, never certified; state them, e.g. bounds: [0, 400]"
    return None


def _tested_limit(stated_limit: StatedLimit, bounds: Mapping[str, float], number: int, config: Config) -> TestedLimit:
    """A limit of `limits:` as it is tested."""
    limit, quantity = stated_limit.limit, stated_limit.limit.quantity
    bound = limit.cost(bounds[limit.name]) if limit.name in bounds else limit.cost_limit
    low, high = limit.cost_range or (-config.dual.cost_max, config.dual.cost_max)
    level, delta = level_of(config, limit.name, number), config.deltas[limit.name]
    labels = stated_limit.asking.labels_each or 1
    source = (config.labels.called or config.feedback.kind) if stated_limit.labelled else str(stated_limit.source)
    people, machine = share_audited(config, stated_limit), "a model" if stated_limit.source.kind == "model" else source
    if people is not None:
        source = f"people, asked about {100 * people:.3g} % of the draws by a coin{BESIDE_PEOPLE}{machine} that saw all"
    return TestedLimit(
        limit.name, bound, level, delta, quantity.kind, labels, low, high, source, quantity.over, quantity.unit,
        limit.at_least, labelled=stated_limit.labelled, versus=quantity.versus, people=people,
    )  # fmt: skip


def share_audited(config: Config, stated_limit: StatedLimit) -> float | None:
    """q: people see as many of a certificate's draws as of a round's answers to the limit's prompts; None: no audit."""
    if stated_limit.audited is None:
        return None
    over = stated_limit.limit.quantity.over
    share = 1.0 if over is None else config.prompts[over].share
    return min(1.0, stated_limit.audited / (share * config.feedback.responses))


def level_of(config: Config, name: str, number: int) -> float:
    """alpha of a limit for the k-th candidate: its part of delta."""
    settings = config.certificate
    shares = None if settings.shares is None else tuple(settings.shares)
    return Allocation(shares).level(config.deltas[name], number)


def first_of_rounds(config: Config) -> int:
    """Number of the first candidate that is no mixture of the recipe's."""
    return len(config.certificate.mixtures) + 1


def siblings(config: Config, run_dir: Path) -> list[str]:
    """Runs beside this one with the same recipe but for the seed: training until one passes must be visible."""
    settings = {**config.fixed_settings(), "seed": None}
    siblings = []
    for folder in sorted(run_dir.parent.iterdir()):
        if folder != run_dir and (folder / JOURNAL).is_file() and {**_settings_of(folder), "seed": None} == settings:
            siblings.append(folder.name)
    return siblings


def _settings_of(folder: Path) -> Mapping[str, Any]:
    """Fixed settings of another run by today's rules, or as they are stored where its recipe is none of today's."""
    try:
        with open_folder(folder) as other:
            stored = other.about
    except UserError:  # begun this moment, or no journal of a run
        return {}
    try:
        return Config.of_run(stored.recipe).fixed_settings()
    except ValidationError:
        return dict(stored.fixed_settings)


def _versions(journal: Journal, policy: str) -> tuple[PolicyVersion, ...]:
    """The rounds' policies that a candidate draws from. Raises UserError."""
    policies = journal.policies[: journal.next_round - 1]
    names = [f"round-{number}" for number in range(1, len(policies) + 1)]
    if not policies:
        raise UserError("no round is finished: there is no policy to certify")
    if policy == "mixture":
        return tuple(policies)
    tails = {f"tail-{first}": tuple(policies[first - 1 :]) for first in range(2, len(policies))}
    if policy in tails:
        return tails[policy]
    name = names[-1] if policy == "last" else policy
    if name not in names:
        choices = [f"{names[0]} to {names[-1]}, last", "mixture"]
        if tails:
            choices.insert(1, f"tail-2 to tail-{len(policies) - 1}")
        raise UserError(f"--policy {policy}: this run has {', '.join(choices[:-1])} and {choices[-1]}")
    return (policies[names.index(name)],)


def _same(
    ledger: Sequence[Entry],
    versions: Sequence[PolicyVersion],
    test_limits: Sequence[TestedLimit],
    decoding: Mapping[str, Any],
) -> Entry | None:
    """The line of the same weights, decoding and measures, whatever their bounds; its level is that of its entry.

    A mixture that its rounds' own draws do not certify under these bounds is drawn from anew.
    """
    hashes = [version.sha256 for version in versions]
    bounds = {limit.name: limit.limit for limit in test_limits}
    for entry in ledger:
        candidate = entry.candidate
        if candidate.first_round is not None and entry.about(bounds).state != "certified":
            continue
        same = [version["sha256"] for version in candidate.versions] == hashes and candidate.decoding == decoding
        of_rounds = candidate.first_round is not None
        measures = [[_measure(limit, of_rounds) for limit in limits] for limits in (candidate.limits, test_limits)]
        if same and measures[0] == measures[1]:
            return entry
    return None


def _measure(limit: TestedLimit, of_rounds: bool) -> TestedLimit:
    """All of a limit but its bound and its level. Of rounds, the share that people saw is the rounds' own."""
    measure = replace(limit, limit=0.0, level=0.0, delta=0.0, shaped_for=None)
    return replace(measure, people=None, source="people") if of_rounds and measure.people is not None else measure


def _candidate(
    journal: Journal,
    config: Config,
    versions: Sequence[PolicyVersion],
    limits: tuple[TestedLimit, ...],
    statement: str,
) -> Candidate:
    if not all(limit.level for limit in limits):
        raise UserError(
            "certificate.shares are used up: this run has tested as many candidates, a further one cannot be certified"
        )
    first = journal.policies.index(versions[0]) + 1
    name = versions[0].name if len(versions) == 1 else mixture_name(first, len(versions))
    return enter(
        journal,
        Candidate(
            number=len(read_ledger(journal)) + 1,
            policy=name,
            versions=tuple(
                {"name": version.name, "number": version.number, "sha256": version.sha256} for version in versions
            ),
            limits=limits,
            decoding=decoding_of(config),
            statement=statement,
            estimated=estimated_only(config),
        ),
    )


def decoding_of(config: Config) -> dict[str, Any]:
    """The decoding that is tested."""
    return {"temperature": config.policy.temperature, "top_p": 1.0, "max_tokens": config.rollout.max_tokens}


def _statement(config: Config) -> str:
    """What prompts the sentence is about, and how they were drawn."""
    if not config.certificate.prompts:
        whose = "the run's" if config.data is not None else "the world's"
        return f"{whose} prompts, drawn with replacement; the policy was trained on them"
    if config.certificate.scope == "set":
        return "the prompts of the certification set, drawn with replacement; the policy was not trained on them"
    return "new prompts like those of the certification set, each drawn once; the policy was not trained on them"
