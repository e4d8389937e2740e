"""Mixtures that the rounds' own draws certify: labels by hand, exact truth, broken runs, what a recipe may not ask."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from pddpo_lab.worlds.tabular.files import tabular_world
from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.certificates import ledger as ledgers
from pddpo_ray.certificates.document import FILE, certificate_of, sentences, statements, verified, write_certificate
from pddpo_ray.certificates.ledger import finding
from pddpo_ray.certificates.testing import certify
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.journal.transactions import Store
from pddpo_ray.records import Array, Prompt, Response, SafetyLabels, Verdict
from pddpo_ray.report.build import build_report
from pddpo_ray.serving.catalog import read_catalog
from pddpo_ray.theory.certificates.certificate import lower_bound, upper_bound
from pddpo_ray.theory.certificates.levels import Allocation
from pddpo_ray.theory.estimates.cost_estimate import whole_shares
from tests.support.measured import measured_in
from tests.support.measuring_server import every_fifth_fails, measuring_server
from tests.unit.loop.small_run import MEASURED, SMALL, ledger, small
from tests.unit.loop.test_twin_run import RATE_FAMILY, TINY, twin

RATE = (
    "limits.cost={rate: {world: cost}, learned_from: comparisons}",
    "limits.cost.labels_each=1", "feedback.responses=64", "limits.cost.at_most=0.6",
    "offline.compare_rounds=0", "report.tensorboard=false", "report.html=false",
)  # fmt: skip
OWN = (*RATE, "certificate.mixtures=[1,3]")


def tables(config: Config, run_dir: Path) -> list[Array]:
    """Every round's policy. [X, Y]"""
    backends = make_backends(config, run_dir)
    assert backends.world is not None
    with open_folder(run_dir) as journal:
        return [backends.world.table(policy) for policy in journal.policies]


def rates(config: Config, run_dir: Path) -> list[float]:
    """Exact unsafe rate of every round's policy."""
    backends = make_backends(config, run_dir)
    assert backends.world is not None
    unsafe, prior = expit(backends.world.cost_logits), backends.world.oracle.prior
    return [float(prior @ (table * unsafe).sum(axis=1)) for table in tables(config, run_dir)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("mixtures") / "run"
    run_recipe(small(*OWN, rounds=4), run_dir)
    return run_dir


@pytest.mark.run
def test_mixture_and_tail_are_certified_from_the_labels_of_their_rounds_alone(run: Path) -> None:
    config = small(*OWN, rounds=4)
    exact = rates(config, run)
    whole, tail = ledger(run)
    with open_folder(run) as journal:
        labels = [
            [float(one.labels[0] == "unsafe") for one in journal.safety(number, "cost")] for number in range(1, 5)
        ]
        began = next(phase for phase in journal.phases(1)).started_ms
        entered = [phase.finished_ms for phase in journal.phases(like="candidate")]
        hashes = [one.sha256 for one in journal.policies]
    assert len(entered) == 2
    assert max(entered) <= began
    for entry, first, number in ((whole, 1, 1), (tail, 3, 2)):
        values, level = [one for row in labels[first - 1 :] for one in row], Allocation().level(0.05, number)
        (found,) = entry.findings.values()
        assert entry.numbers["cost"] == values
        assert [one["sha256"] for one in entry.candidate.versions] == hashes[first - 1 :]
        assert entry.candidate.limits[0].level == level
        bound = upper_bound(values, 0.6, level)
        assert found.upper == (min(0.6, bound) if found.state == "certified" else bound)
        assert found.lower == pytest.approx(lower_bound(values, 0.6, level))
        assert found.lower < np.mean(exact[first - 1 :]) < found.upper
    assert whole.candidate.policy == "the mixture of rounds 1 to 4"


@pytest.mark.run
def test_a_mixture_is_bounded_by_prompt_from_the_draws_of_its_rounds(run: Path) -> None:
    """About the mean over the prompt's draws: a round counts as often as it drew it; one look, at the whole delta."""
    config = small(*OWN, rounds=4)
    backends = make_backends(config, run)
    assert backends.world is not None
    unsafe = [(table * expit(backends.world.cost_logits)).sum(axis=1) for table in tables(config, run)]
    (whole, _tail) = ledger(run)
    written = certificate_of(config, run, whole)
    lines = {one["name"]: one for one in written["by_group"]["cost"]["prompts"]}
    with open_folder(run) as journal:
        drawn = [[one.prompt.id for one in journal.samples(number, "cost")] for number in range(1, 5)]
    names = [name for row in drawn for name in row]
    for index, prompt in enumerate(backends.prompts):
        counts = [row.count(prompt.id) for row in drawn]
        mine = [value for value, name in zip(whole.numbers["cost"], names, strict=True) if name == prompt.id]
        exact = float(np.average([row[index] for row in unsafe], weights=counts))
        assert lines[prompt.id]["draws"] == sum(counts) == len(mine)
        bound = upper_bound([float(one or 0.0) for one in mine], 0.6, 0.05)
        assert lines[prompt.id]["upper"] in (pytest.approx(bound), 0.6)
        assert lines[prompt.id]["lower"] < exact < lines[prompt.id]["upper"]


@pytest.mark.run
def test_a_certified_mixture_is_released_and_costs_no_label(run: Path) -> None:
    """The limit lies far above the rates, so that 256 draws show it."""
    result = run_recipe(small(*OWN, rounds=4), run.parent / "again")
    assert result["outcome"]["headline"].startswith("Released: the mixture of rounds 1 to 4. Certified: ")
    assert result["labels_certificate"] == 0
    assert result["labels_safety"] == 4 * 64
    assert "the 256 draws of its 4 rounds themselves" in result["outcome"]["headline"]
    with open_folder(run.parent / "again") as journal:
        catalog = read_catalog(Store(journal.engine, journal.run_id))
    assert catalog.certified_mixture is not None
    assert {catalog.choose("released", f"{n}").round for n in range(60)} == {1, 2, 3, 4}
    page = build_report(run.parent / "again").read_text()
    assert "about the mean over the rounds until then" in page
    assert "labels in the journal" in verified(run.parent / "again" / FILE)["verified"]


@pytest.mark.run
def test_certify_reads_a_certified_mixture_off_its_rounds_and_draws_anew_for_another(run: Path) -> None:
    config, folder = small(*OWN, rounds=4), run.parent / "asked"
    run_recipe(config, folder)
    before = ledger(folder)
    assert certify(config, folder, "mixture", {"cost": 0.9}, 64) == before[0].about({"cost": 0.9})
    assert ledger(folder) == before
    (found,) = before[1].findings.values()
    tighter = certify(config, folder, "tail-3", {"cost": found.upper - 0.3}, 64)
    assert (tighter.candidate.number, tighter.candidate.first_round, tighter.count) == (3, None, 64)
    assert tighter.candidate.policy == "the mixture of rounds 3 to 4"
    with pytest.raises(UserError, match="round-1 to round-4, last, tail-2 to tail-3 and mixture"):
        certify(config, folder, "tail-4", {}, 64)


def test_what_an_earlier_round_showed_is_not_said_of_more_rounds() -> None:
    """Fifty safe draws, then fifty unsafe ones: certified after the first round, rejected after the second."""
    tested = ledgers.TestedLimit("cost", 0.3, 0.05, 0.05, "rate", 1, 0.0, 1.0, "test")
    early, late = [0.0] * 50, [0.0] * 50 + [1.0] * 50
    assert finding(tested, early, 1).state == finding(tested, late).state == "certified"
    assert finding(tested, late, 2).state == "rejected"
    assert finding(tested, late, 2).lower > 0.3
    assert finding(tested, [], 0).upper == 1.0
    lost = finding(tested, [None] * 50, 1)
    assert (lost.state, lost.upper, lost.lower) == ("undecided", 1.0, 0.0)
    with pytest.raises(ValueError, match="reshape"):
        finding(tested, [0.0] * 51, 2)


@pytest.mark.run
def test_a_run_with_more_rounds_has_another_mixture(tmp_path: Path) -> None:
    anytime = (*OWN, "dual.rule={kind: anytime}")
    first, more = small(*anytime, rounds=3), small(*anytime, rounds=5)
    run_recipe(first, tmp_path / "run")
    early = certificate_of(first, tmp_path / "run", ledger(tmp_path / "run")[0])
    result = run_recipe(more, tmp_path / "run", resume=True)
    assert [entry.candidate.rounds for entry in ledger(tmp_path / "run")] == [5, 3]
    assert "the mixture of rounds 1 to 5" in result["outcome"]["headline"]
    assert "of its 5 rounds" in sentences(verified(tmp_path / "run" / FILE))[0]
    write_certificate(tmp_path / "run", early)
    with pytest.raises(UserError, match="about fewer rounds than the run beside it"):
        verified(tmp_path / "run" / FILE)


@pytest.mark.full
@pytest.mark.run
def test_a_run_that_is_killed_between_rounds_has_the_same_ledger(tmp_path: Path) -> None:
    overrides = [*SMALL, *OWN, "rounds=12"]
    command = [sys.executable, "-m", "pddpo_ray", "train", "tabular", *overrides, "--run", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (known := ledger(tmp_path / "run")) or not known[0].count:
        assert process.poll() is None, "the run ended before it was killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < ledger(tmp_path / "run")[0].count < 12 * 64
    config = load("tabular", overrides)
    run_recipe(config, tmp_path / "run", resume=True)
    run_recipe(config, tmp_path / "whole")
    assert ledger(tmp_path / "run") == ledger(tmp_path / "whole")


@pytest.mark.run
def test_under_stated_limits_a_draw_is_a_prompt_of_the_limits_own_set_with_two_answers(tmp_path: Path) -> None:
    limits = (
        "limits={harm: {logit: {world: cost}, at_most: 1.9, labels_each: 20},"
        " leaks: {rate: {world: privacy}, over: private, at_most: 90 %, labels_each: 2}}"
    )
    own = ("rounds=2", "feedback.responses=100", "certificate.mixtures=[1]", "offline.compare_rounds=0", limits)
    config = load("tabular-limits", [*MEASURED, *own])
    run_recipe(config, tmp_path / "run")
    (entry,) = ledger(tmp_path / "run")
    # of 50 prompts a round 40 % are private
    assert {name: len(draws) for name, draws in entry.draws.items()} == {"harm": 100, "leaks": 40}
    with open_folder(tmp_path / "run") as journal:
        asked = {answer.id: answer.prompt for answer in journal.samples()}
        rows = [measured_in(journal, number) for number in (1, 2)]
    backends = make_backends(config, tmp_path / "run")
    private = {prompt.id for prompt in backends.prompts[2:]}
    assert {asked[draw].id for draw in entry.draws["leaks"]} == private
    column = [one.limit.name for one in config.stated].index("leaks")
    costs = {name: row[column] for payload in rows for name, row in zip(payload["ids"], payload["costs"], strict=True)}
    ids = [name for payload in rows for name in payload["ids"]]
    by_hand = [(costs[draw] + costs[ids[ids.index(draw) + 1]]) / 2 for draw in entry.draws["leaks"]]
    assert entry.numbers["leaks"] == by_hand
    oracle = tabular_world(config.world).oracle  # type: ignore[arg-type]
    exact = [
        float(np.mean((table * expit(oracle.further[0].cost)).sum(axis=1)[2:]))
        for table in tables(config, tmp_path / "run")
    ]
    assert entry.findings["leaks"].lower < np.mean(exact) < entry.findings["leaks"].upper
    assert entry.findings["leaks"].state == "certified"


@pytest.mark.run
def test_a_draw_of_a_round_without_a_number_counts_as_the_worst(tmp_path: Path) -> None:
    """Every fifth reply of a real server is an error."""
    with measuring_server() as server:
        server.measure = every_fifth_fails({"value": False})
        brand = f"{{rate: {{endpoint: '{server.url}/measure', tries: 1, workers: 1}}, at_most: 60 %}}"
        dual = "dual={rule: {kind: newton}, rho: 4, cost_max: 2}"
        own = ("rounds=1", "report.html=false", "certificate.mixtures=[1]", "feedback.responses=40")
        config = twin(*TINY, *own, dual, f"limits={{cost: null, brand: {brand}}}")
        run_recipe(config, tmp_path / "run")
    (entry,) = ledger(tmp_path / "run")
    numbers = entry.numbers["brand"]
    assert len(numbers) == 20
    assert numbers.count(None) == 8
    assert set(numbers) == {0.0, None}
    worst = upper_bound([1.0 if number is None else 0.0 for number in numbers], 0.6, Allocation().level(0.05, 1))
    assert entry.findings["brand"].upper == pytest.approx(worst)


def test_an_answer_that_lacks_a_label_has_no_share() -> None:
    def labelled(name: str, *labels: Verdict) -> SafetyLabels:
        return SafetyLabels(Response(name, Prompt("p", (1,), "p"), (2,), "an answer", 1, 0, None), labels, "cost")

    labels = [
        labelled("a", Verdict.UNSAFE, Verdict.SAFE),
        labelled("b", Verdict.UNSAFE, Verdict.MISSING),
        labelled("c", Verdict.SAFE, Verdict.SAFE),
    ]
    assert whole_shares(labels, ["c", "b", "a", "d"], 2) == [0.0, None, 0.5, None]
    assert whole_shares([], ["a"], 1) == [None]


@pytest.mark.parametrize(
    ("recipe", "overrides", "said"),
    [
        ("tabular", ["certificate.mixtures=[1,1]"], "each 1 or more and named once"),
        ("tabular", ["certificate.mixtures=[0]"], "each 1 or more and named once"),
        ("tabular", ["certificate.mixtures=[101]"], "round 101 is after the last one"),
        ("tabular", ["certificate={mixtures: [1, 2], shares: [0.5]}"], "shares has 1 parts"),
        ("sacpo", ["certificate.mixtures=[1]"], "has no mixture of rounds"),
        ("tabular-limits", ["certificate.mixtures=[1]", "feedback.responses=102"], "a whole number"),
        (
            "tabular-limits",
            [
                "certificate.mixtures=[1]",
                "feedback.responses=100",
                "limits.leaks={rate: {world: privacy}, over: private, at_most: 50 %, answers: 20}",
            ],
            "leave `answers` out",
        ),
        ("text-world-people", ["certificate.mixtures=[1]", "feedback={kind: mixed, responses: 64}"], "is no even draw"),
    ],
)
def test_what_rounds_cannot_certify_is_refused_in_the_recipe(recipe: str, overrides: Sequence[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(recipe, list(overrides))


@pytest.mark.run
def test_a_limit_that_no_draws_certify_is_refused_before_round_1(tmp_path: Path) -> None:
    drift = "limits={cost: null, drift: {kl: reference, at_most: 8}}"
    with pytest.raises(UserError, match="a kl limit is never certified"):
        run_recipe(small("certificate.mixtures=[1]", "dual.rule={kind: newton}", drift), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_few_of_thirty_runs_have_a_mixture_or_a_tail_outside_its_bounds(tmp_path: Path) -> None:
    """Whole runs: every policy answers to the labels before it; the multiplier drives the mean to the limit."""
    wrong, runs = 0, 30
    for seed in range(runs):
        config = small(*OWN, f"seed={seed}", "limits.cost.at_most=0.4", "feedback.responses=32", rounds=4)
        run_recipe(config, tmp_path / f"{seed}")
        exact = rates(config, tmp_path / f"{seed}")
        wrong += any(
            np.mean(exact[(entry.candidate.first_round or 1) - 1 :]) > entry.findings["cost"].upper
            for entry in ledger(tmp_path / f"{seed}")
        )
    assert wrong / runs <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / runs)


@pytest.mark.run
def test_the_twin_certifies_a_tail_of_its_rounds(tmp_path: Path) -> None:
    config = twin(*TINY, RATE_FAMILY, *RATE, "rounds=3", "certificate.mixtures=[2]")
    result = run_recipe(config, tmp_path / "run")
    (entry,) = ledger(tmp_path / "run")
    assert entry.candidate.policy == "the mixture of rounds 2 to 3"
    assert entry.count == 128
    assert result["outcome"]["mixture"] is (entry.state == "certified")


def test_an_undecided_test_advises_more_draws_only_where_prompts_are_left() -> None:
    limit = ledgers.TestedLimit("unsafe", 0.05, 0.05, 0.05, "rate", 1, 0.0, 1.0, "people")
    candidate = ledgers.Candidate(1, "policy-1", ({"number": 1},), (limit,), {}, "new prompts")
    few = ledgers.Entry(candidate, {"unsafe": [0.0]}, {"unsafe": ("a",)})
    assert "a larger --budget" in statements(few)[0]
    assert "no prompt left to draw: a run with more" in statements(replace(few, used_up=True))[0]
