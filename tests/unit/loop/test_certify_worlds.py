"""Certificates beyond one limit on a table: stated limits of every kind, the twin, the network; exact truth beside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from pddpo_lab.worlds.tabular.files import tabular_world
from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.certificates.document import FILE, certificate_of, sentences, verified, write_certificate
from pddpo_ray.certificates.ledger import Entry
from pddpo_ray.certificates.testing import certify
from pddpo_ray.cli.main import main
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.records import Array
from pddpo_ray.report.build import build_report
from pddpo_ray.storage.whole_files import ARTIFACTS
from pddpo_ray.theory.certificates.certificate import first_certified, upper_bound
from pddpo_ray.theory.certificates.levels import Allocation
from tests.runs.test_text_run import tiny_text
from tests.support.measuring_server import every_fifth_fails, measuring_server
from tests.unit.loop.small_run import MEASURED, SMALL
from tests.unit.loop.test_twin_run import RATE_FAMILY, TINY, twin
from tools.small_runs import WORLD

BATCH_DRAWS = 64
MANY = 60 * BATCH_DRAWS
RATE = (
    *WORLD,
    RATE_FAMILY,
    "limits.cost={rate: {world: cost}, learned_from: comparisons}",
    "limits.cost.labels_each=1",
    "limits.cost.at_most=0.6",
)


def last_table(config: Config, run_dir: Path) -> Array:
    """The last round's policy over the listed answers. [X, Y]"""
    backends = make_backends(config, run_dir)
    assert backends.world is not None
    with open_folder(run_dir) as journal:
        return backends.world.table(journal.policies[-1])


@pytest.mark.run
def test_stated_limits_are_certified_each_on_its_own_prompts_and_at_its_own_confidence(tmp_path: Path) -> None:
    """Exact values of both limits from the world's own tables, by hand."""
    leaks = "limits.leaks={rate: {world: privacy}, over: private, at_most: 80 %, confidence: 80 %}"
    config = load("tabular-limits", [*MEASURED, "rounds=2", "feedback.responses=20", leaks])
    run_recipe(config, tmp_path / "run")
    table, world = last_table(config, tmp_path / "run"), tabular_world(config.world)  # type: ignore[arg-type]
    costs = {"harm": world.oracle.cost, "privacy": world.oracle.further[0].cost}
    # the sets hold 60 and 40 % of the draws, each prompt of a set alike
    harm = float(np.array([0.3, 0.3, 0.2, 0.2]) @ (table * costs["harm"]).sum(axis=1))
    private = float(np.mean((table * expit(costs["privacy"])).sum(axis=1)[2:]))

    entry = certify(config, tmp_path / "run", "last", {"harm": harm + 1.2, "leaks": private + 0.15}, MANY)
    assert entry.state == "certified"
    assert entry.findings["harm"].lower < harm < entry.findings["harm"].upper
    assert entry.findings["leaks"].lower < private < entry.findings["leaks"].upper < private + 0.15
    limits = {limit.name: limit for limit in entry.candidate.limits}
    assert limits["leaks"].level == pytest.approx(Allocation().level(0.2, 1))
    assert limits["harm"].level == pytest.approx(Allocation().level(0.05, 1))
    assert entry.findings["leaks"].decided_after == first_certified(
        [float(number or 0.0) for number in entry.numbers["leaks"]], private + 0.15, limits["leaks"].level
    )
    with open_folder(tmp_path / "run") as journal:
        asked = {answer.id: answer.prompt.token_ids for answer in journal.samples(-1)}
    private_prompts = {one.token_ids for one in world.prompts[2:]}
    everywhere = {prompt.token_ids for prompt in world.prompts}
    assert {asked[name] for name in entry.draws["leaks"]} == {one.token_ids for one in world.prompts[2:]}
    assert {asked[name] for name in entry.draws["harm"]} == everywhere
    written = certificate_of(config, tmp_path / "run", entry)
    said = sentences(written)
    by_set = {one["name"]: one for one in written["by_group"]["harm"]["sets"]}
    in_private = [
        entry.numbers["harm"][i] for i, one in enumerate(entry.draws["harm"]) if asked[one] in private_prompts
    ]
    assert by_set["private"]["draws"] == len(in_private)
    assert by_set["private"]["mean"] == pytest.approx(np.mean([float(one or 0.0) for one in in_private]))
    assert set(by_set) == {"plain", "private"}
    assert "harm by prompt set" in "".join(said)
    assert "share of policy-2 over private measured by the world's privacy, is at most" in "".join(said)
    assert "with 80 % confidence" in "".join(said)


@pytest.mark.run
def test_a_floor_is_certified_from_the_complement_and_said_as_a_floor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keeps = "limits={cost: null, keeps: {rate: {world: cost}, at_least: 5 %, labels_each: 1}}"
    config = load("tabular", [*SMALL, "rounds=1", "feedback.responses=20", keeps, "dual.rule={kind: newton}"])
    run_recipe(config, tmp_path / "run")
    world = tabular_world(config.world)  # type: ignore[arg-type]
    exact = float(world.oracle.prior @ (last_table(config, tmp_path / "run") * expit(world.oracle.cost)).sum(axis=1))
    with pytest.raises(SystemExit) as ended:
        main(["certify", str(tmp_path / "run"), "--limit", f"keeps={100 * (exact - 0.2):.2f} %", "--budget", str(MANY)])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    bound = float(said.partition("is at least ")[2].split(" %")[0]) / 100
    assert exact - 0.2 <= bound <= exact
    assert f", above the limit {100 * (exact - 0.2):.3g} %" in said
    with pytest.raises(SystemExit) as ended:
        main(["certify", str(tmp_path / "run"), "--limit", "keeps=95 %", "--budget", str(MANY)])
    assert ended.value.code == 6
    assert "is below the limit 95 %" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["certificate", "verify", str(tmp_path / "run" / "certificate.json")])
    assert "Computed again" in capsys.readouterr().out


@pytest.mark.run
def test_a_source_that_fails_counts_against_the_policy_at_both_ends_and_its_share_is_printed(tmp_path: Path) -> None:
    """Every fifth reply of a real server is an error: at most .2 at the truth 0, and never above."""
    with measuring_server() as server:
        server.measure = every_fifth_fails({"value": False})
        brand = f"{{rate: {{endpoint: '{server.url}/measure', tries: 1, workers: 1}}, at_most: 60 %}}"
        config = failing(f"limits={{cost: null, brand: {brand}}}")
        run_recipe(config, tmp_path / "run")
        entry = certify(config, tmp_path / "run", "last", {}, MANY)
        low = certify(config, tmp_path / "run", "last", {"brand": 0.1}, 4 * BATCH_DRAWS)
    assert (entry.state, low.state) == ("certified", "undecided")
    numbers = low.numbers["brand"]
    lost = sum(number is None for number in numbers)
    assert 0.15 < lost / len(numbers) < 0.25
    assert {number for number in numbers if number is not None} == {0.0}
    worst = upper_bound([1.0 if number is None else 0.0 for number in numbers], 0.6, Allocation().level(0.05, 1))
    assert low.findings["brand"].upper == pytest.approx(worst)
    assert low.findings["brand"].lower == 0.0
    said = sentences(certificate_of(config, tmp_path / "run", low))[0]
    assert f"{100 * lost / len(numbers):.3g} % of the draws have no number and count as the worst" in said


@pytest.mark.run
def test_a_judge_is_asked_for_every_draw_and_named_as_the_source(tmp_path: Path) -> None:
    """A real chat endpoint that finds nothing rude."""
    with measuring_server() as server:
        server.chat = lambda body: (200, "[[no]]")
        judge = f"{{judge: 'Is it rude?', endpoint: '{server.url}/v1', model: m, tries: 1}}"
        config = failing(f"limits={{cost: null, rude: {{rate: {judge}, at_most: 30 %}}}}")
        run_recipe(config, tmp_path / "run")
        before = len(server.bodies)
        entry = certify(config, tmp_path / "run", "last", {}, MANY)
        assert len(server.bodies) - before == entry.count
    assert entry.state == "certified"
    assert set(entry.numbers["rude"]) == {0.0}
    assert "measured by judge" in "".join(sentences(certificate_of(config, tmp_path / "run", entry)))


def failing(limits: str) -> Config:
    """A twin of one round under a limit that a server measures."""
    own = ("rounds=1", "dual={rule: {kind: newton}, rho: 4, cost_max: 2}", "report.html=false")
    return twin(*TINY, *own, limits)


def test_a_mean_without_bounds_is_named_as_estimated_only() -> None:
    from pddpo_ray.certificates.testing import cannot
    from pddpo_ray.limits.reading import stated_limits

    given = {
        "limits": {
            "words": {"mean": {"rule": "words"}, "at_most": 80},
            "short": {"mean": {"rule": "words"}, "at_most": 80, "bounds": [0, 400]},
            "drift": {"kl": "reference", "at_most": 8},
            "cost": {"mean": {"model": "cost"}, "at_most": 0, "bounds": [-5, 5]},
        }
    }
    reasons = {one.limit.name: cannot(one) for one in stated_limits(given, "test")}
    assert "state them, e.g. bounds" in (reasons["words"] or "")
    assert "never certified" in (reasons["drift"] or "")
    assert reasons["cost"] == "a cost model's mean is estimated only, never certified"
    assert reasons["short"] is None


@pytest.mark.run
def test_the_bound_of_a_policy_of_the_twin_lies_above_its_exact_rate_and_it_is_asked_on_later(tmp_path: Path) -> None:
    config = twin(*TINY, "rounds=2", *RATE)
    run = tmp_path / "run"
    run_recipe(config, run)
    backends = make_backends(config, run)
    assert backends.world is not None
    oracle, table = backends.world.oracle, last_table(config, run)
    rate = float(oracle.prior @ (table * expit(backends.world.cost_logits)).sum(axis=1))
    first = certify(config, run, "last", {"cost": rate + 0.2}, BATCH_DRAWS)
    whole = certify(config, run, "last", {"cost": rate + 0.2}, MANY)
    assert whole.draws["cost"][:BATCH_DRAWS] == first.draws["cost"]
    assert whole.state == "certified"
    assert whole.findings["cost"].lower < rate < whole.findings["cost"].upper
    numbers = [float(number or 0.0) for number in whole.numbers["cost"]]
    bound = upper_bound(numbers, rate + 0.2, Allocation().level(0.05, 1))
    assert whole.findings["cost"].upper == min(rate + 0.2, bound)
    mixture = certify(config, run, "mixture", {"cost": 0.95}, MANY)
    assert mixture.state == "certified"
    assert len({one["number"] for one in mixture.candidate.versions}) == 2
    assert (run / ARTIFACTS).is_dir()


@pytest.mark.full
@pytest.mark.slow
def test_a_network_is_certified_from_answers_that_its_engine_wrote(tmp_path: Path) -> None:
    config = tiny_text("rounds=1", "offline.compare_rounds=0", *RATE)
    run = tmp_path / "run"
    run_recipe(config, run)
    entry = certify(config, run, "last", {"cost": 0.97}, 4 * BATCH_DRAWS)
    assert entry.state == "certified"
    written = write_certificate(run, certificate_of(config, run, entry))
    assert "measured by the world's truth, at temperature 1.0" in "".join(sentences(written))
    with open_folder(run) as journal:
        answers = journal.samples(-1)
        assert {answer.id for answer in answers} == set(entry.draws["cost"])
        assert all(one.verified for one in journal.deliveries())
        last = journal.policies[-1]
    assert {answer.policy_version for answer in answers} == {last.number}


@pytest.mark.full
@pytest.mark.slow
def test_the_shipped_recipe_of_a_certified_release_ends_with_one_that_is_true(tmp_path: Path) -> None:
    """The recipe itself, shorter: three rounds, few pairs and no bonus."""
    small = ("rounds=3", "explore.bonus=off", "explore.picks=4", "rollout.candidates=4", "explore.calibration=96")
    config, run = load("text-world-certified-twin", [*small, "report.tensorboard=false"]), tmp_path / "run"
    result = run_recipe(config, run)
    assert result["outcome"]["by"] == "rule"
    assert "below the limit 5 %" in result["outcome"]["headline"]
    number = result["outcome"]["round"]
    with open_folder(run) as journal:
        assert journal.metrics()[number]["exact/g_policy"] < 0
    assert "labels in the journal" in verified(run / FILE)["verified"]


@pytest.mark.full
def test_the_shipped_recipe_of_the_network_ends_with_a_certificate_that_is_true(tmp_path: Path) -> None:
    """The recipe itself with fits of a few steps, which keep a limit that the reference nearly keeps; exact truth."""
    fits = ["trainer.fit.steps=4"]
    engine = "rollout={engine: transformers, max_tokens: 40, candidates: 4}"
    fewer = (
        "report.tensorboard=false",
        "report.html=false",
        "rounds=2",
        "feedback.responses=64",
        "offline.pairs=48",
        "explore.calibration=96",
        "explore.rank=16",
    )
    own = ("limits.unsafe.at_most=70 %", "certificate.batch=100", "explore.prompts=8", "explore.picks=2")
    config = load(
        "text-world-certified", [engine, *fits, *fewer, *own, "report.tensorboard=false", "report.html=false"]
    )
    run = tmp_path / "run"
    result = run_recipe(config, run)
    assert result["outcome"]["by"] == "rule"
    assert "below the limit 70 %" in result["outcome"]["headline"]
    number = result["outcome"]["round"]
    with open_folder(run) as journal:
        assert journal.metrics()[number]["exact/g_policy"] < 0
        released = journal.policies[number - 1]
    written = json.loads((run / FILE).read_text())
    assert written["candidate"]["versions"][0]["sha256"] == released.sha256
    assert "labels in the journal" in verified(run / FILE)["verified"]


@pytest.mark.full
@pytest.mark.run
def test_groups_of_a_drawn_worlds_prompts_are_bounded_beside_the_total(tmp_path: Path) -> None:
    """Two groups that share the prompts: their draws are all draws, and each exact rate lies within its own bounds."""
    own = (
        "rounds=1",
        "limits.cost={rate: {world: cost}, learned_from: comparisons}",
        "limits.cost.labels_each=1",
        "limits.cost.at_most=0.3",
    )
    family = "world.family={kind: drawn, groups: 2, limit: {kind: rate, at_most: 0.3}}"
    config, run = twin(*TINY, *own, family), tmp_path / "run"
    run_recipe(config, run)
    entry = certify(config, run, "last", {"cost": 0.97}, BATCH_DRAWS)
    written = certificate_of(config, run, entry)
    groups = {one["name"]: one for one in written["by_group"]["cost"]["sets"]}
    assert set(groups) == {"group 0", "group 1"}
    assert sum(one["draws"] for one in groups.values()) == entry.count
    backends = make_backends(config, run)
    assert backends.world is not None
    assert backends.world.groups is not None
    rates = (last_table(config, run) * expit(backends.world.cost_logits)).sum(axis=1)
    for number, one in enumerate(groups[name] for name in sorted(groups)):
        exact = float(np.mean(rates[np.array(backends.world.groups) == number]))
        assert one["lower"] < exact < one["upper"]
    assert "cost by prompt set" in " ".join(sentences(written))
    assert "cost by prompt set or group" in build_report(run).read_text()


@pytest.mark.run
def test_a_group_that_gates_is_a_limit_of_its_own_with_draws_of_its_own(tmp_path: Path) -> None:
    """Exact rate of group 1 within the bounds of its own draws; a certificate needs the whole and the group."""
    own = (
        "rounds=1",
        "limits.cost={rate: {world: cost}, learned_from: comparisons}",
        "limits.cost.labels_each=1",
        "limits.cost.at_most=0.3",
    )
    family = "world.family={kind: drawn, groups: 2, limit: {kind: rate, at_most: 0.3}}"
    config, run = twin(*TINY, *own, family, "certificate.gate=[group 1]"), tmp_path / "run"
    run_recipe(config, run)
    entry = certify(config, run, "last", {"cost": 0.97}, BATCH_DRAWS)
    whole, part = entry.candidate.limits
    assert (part.name, part.over, part.measured_as, part.level) == ("cost over group 1", "group 1", "cost", whole.level)
    assert (whole.limit, part.limit) == (0.97, 0.97)
    backends = make_backends(config, run)
    assert backends.world is not None
    assert backends.world.groups is not None
    inside = np.array(backends.world.groups) == 1
    with open_folder(run) as journal:
        asked = {answer.id: answer.prompt.id for answer in journal.samples(-1)}
    names = [prompt.id for prompt in backends.prompts]
    mine = {asked[draw] for draw in entry.draws[part.name]}
    assert mine
    assert mine <= {name for name, member in zip(names, inside, strict=True) if member}
    assert {asked[draw] for draw in entry.draws["cost"]} - mine
    rates = (last_table(config, run) * expit(backends.world.cost_logits)).sum(axis=1)
    assert entry.findings[part.name].lower < float(np.mean(rates[inside])) < entry.findings[part.name].upper
    written = write_certificate(run, certificate_of(config, run, entry))
    assert "over group 1, is" in " ".join(sentences(written))
    assert "labels in the journal" in verified(run / FILE)["verified"]
    worst = {part.name: [1.0] * 64, "cost": [0.0] * 640}
    drawn = {name: tuple(f"a{number}" for number in range(len(values))) for name, values in worst.items()}
    half = entry.candidate.about({"cost": 0.5, part.name: 0.5})
    assert Entry(half, worst, drawn).findings["cost"].state == "certified"
    assert Entry(half, worst, drawn).state == "rejected"
    assert Entry(half, {**worst, part.name: []}, {**drawn, part.name: ()}).state == "undecided"


@pytest.mark.run
def test_a_group_that_no_prompt_is_in_cannot_gate(tmp_path: Path) -> None:
    config = load("tabular", [*SMALL, "rounds=1", "certificate.gate=[minors]"])
    with pytest.raises(UserError, match="no prompt that certificates draw is in 'minors'; they are in no group"):
        run_recipe(config, tmp_path / "run")
    with pytest.raises(UserError, match="leave one of both out"):
        load("tabular", [*SMALL, "certificate.gate=[minors]", "certificate.mixtures=[1]"])
