"""Certificates of runs: exact truth beside them, a kill in the middle, copies, siblings, files that were changed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.backends.preflight import take_new_identity
from pddpo_ray.certificates.certified import read_certified
from pddpo_ray.certificates.document import FILE, certificate_of, sentences, verified, write_certificate
from pddpo_ray.certificates.groups import group_bounds
from pddpo_ray.certificates.ledger import Entry, read_ledger
from pddpo_ray.certificates.release import certify_and_release
from pddpo_ray.certificates.release_history import Releases
from pddpo_ray.certificates.testing import certify
from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import DecisionNeeded, UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.journal.transactions import Store
from pddpo_ray.report.build import build_report
from pddpo_ray.theory.certificates.certificate import first_certified, upper_bound
from pddpo_ray.theory.certificates.levels import Allocation
from pddpo_ray.theory.certificates.measured_draws import scaled
from pddpo_ray.theory.estimates.cost_estimate import bias_bound, clipped_logit
from tests.unit.loop.small_run import SMALL, small

pytestmark = pytest.mark.run

RATE = (
    "limits.cost={rate: {world: cost}, learned_from: comparisons}",
    "limits.cost.labels_each=1",
    "limits.cost.at_most=0.6",
)
BATCH_DRAWS = small().certificate.batch
MANY = 100 * BATCH_DRAWS


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds under a rate of 60 %."""
    run_dir = tmp_path_factory.mktemp("certify") / "run"
    run_recipe(small(*RATE), run_dir)
    return run_dir


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """The same run, to write into: a moved folder is the original."""
    run_dir = tmp_path / "run"
    run_recipe(small(*RATE), run_dir)
    return run_dir


def ledger(run_dir: Path) -> list[Entry]:
    with open_folder(run_dir) as journal:
        return read_ledger(journal)


def exact_rate(run_dir: Path) -> float:
    """Expected unsafe rate of the last policy by the world's own tables."""
    from scipy.special import expit

    from pddpo_ray.backends.in_process import make_backends

    backends = make_backends(small(*RATE), run_dir)
    assert backends.world is not None
    with open_folder(run_dir) as journal:
        table = backends.world.table(journal.policies[-1])
    return float(backends.world.oracle.prior @ (table * expit(backends.world.cost_logits)).sum(axis=1))


def test_a_certified_bound_lies_above_the_exact_rate_and_follows_from_the_labels(run: Path) -> None:
    rate = exact_rate(run)
    entry = certify(small(*RATE), run, "last", {"cost": min(0.95, rate + 0.25)}, MANY)
    (found,) = entry.findings.values()
    assert entry.state == "certified"
    assert found.lower < rate < found.upper
    with open_folder(run) as journal:
        labels = {one.response.id: one.labels for one in journal.safety(-1, "cost")}
    values = [float(labels[name][0] == "unsafe") for name in entry.draws["cost"]]
    limit, level = entry.candidate.limits[0].limit, Allocation().level(0.05, 1)
    assert found.decided_after == first_certified(values, limit, level)
    assert found.upper == min(limit, upper_bound(values, limit, level))
    assert len(set(entry.draws["cost"])) == entry.count == len(labels)


def test_the_three_ends_have_their_sentence_and_their_exit_code(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rate = exact_rate(run)
    for limit, code, said in ((rate + 0.3, 0, "Certified: "), (rate - 0.3, 6, "Rejected: "), (rate, 5, "Undecided: ")):
        with pytest.raises(SystemExit) as ended:
            main(["certify", str(run), "--limit", f"cost={limit:.4f}", "--budget", str(5 * BATCH_DRAWS)])
        out = capsys.readouterr().out
        assert ended.value.code == code
        assert out.startswith(said)
    (entry,) = ledger(run)
    assert (entry.candidate.number, entry.candidate.limits[0].level) == (1, Allocation().level(0.05, 1))


def test_a_policy_that_was_shown_to_break_its_limit_is_not_released(tmp_path: Path) -> None:
    """Two small rounds come nowhere near 20 %."""
    config = small(*RATE[:2], "limits.cost.at_most=0.2", "certificate.certify=never")
    run_recipe(config, tmp_path / "run")
    entry, _ = certify_and_release(config, tmp_path / "run", "last", {}, MANY)
    assert entry.state == "rejected"
    with open_folder(tmp_path / "run") as journal:
        assert read_certified(journal) == []
        assert Releases(Store(journal.engine, journal.run_id)).history() == []


def test_a_tested_policy_answers_for_other_bounds_and_spends_nothing(run: Path) -> None:
    """The bets keep the shape of the first bound; the others are read off the same draws."""
    rate = exact_rate(run)
    first = certify(small(*RATE), run, "last", {"cost": rate + 0.2}, MANY)
    numbers = [float(number or 0.0) for number in first.numbers["cost"]]
    level, shape = Allocation().level(0.05, 1), rate + 0.2
    bound = upper_bound(numbers, shape, level)
    above, below = (certify(small(*RATE), run, "last", {"cost": one}, 1) for one in (bound + 0.01, rate - 0.01))
    assert (first.state, above.state, below.state) == ("certified", "certified", "undecided")
    assert above.draws == below.draws == first.draws
    assert above.findings["cost"].decided_after == first_certified(numbers, bound + 0.01, level, shaped_for=shape)
    assert above.findings["cost"].upper == pytest.approx(bound)
    written = write_certificate(run, certificate_of(small(*RATE), run, above))
    assert f"below the limit {100 * (bound + 0.01):.3g} %" in sentences(verified(run / FILE))[0]
    assert written["candidate"]["limits"][0]["shaped_for"] == shape
    assert len(ledger(run)) == 1
    assert certify(small(*RATE), run, "round-1", {"cost": 0.9}, 1).candidate.number == 2


def test_a_larger_budget_goes_on_with_the_same_candidate_and_its_draws(run: Path) -> None:
    limit = {"cost": exact_rate(run)}
    first = certify(small(*RATE), run, "last", limit, BATCH_DRAWS)
    again = certify(small(*RATE), run, "round-2", limit, 3 * BATCH_DRAWS)
    assert again.candidate == first.candidate
    assert again.draws["cost"][:BATCH_DRAWS] == first.draws["cost"]
    assert again.numbers["cost"][:BATCH_DRAWS] == first.numbers["cost"]
    assert again.count == 3 * BATCH_DRAWS
    assert len(ledger(run)) == 1


def test_a_certification_that_was_killed_goes_on_as_if_it_had_not_been(finished: Path, run: Path) -> None:
    limit = {"cost": exact_rate(run)}
    command = [sys.executable, "-m", "pddpo_ray", "certify", str(run), "--limit", f"cost={limit['cost']!r}"]
    process = subprocess.Popen([*command, "--budget", str(MANY)], stdout=subprocess.DEVNULL)
    while not ledger(run) or ledger(run)[0].count < 2 * BATCH_DRAWS:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (broken,) = ledger(run)
    budget = broken.count + 2 * BATCH_DRAWS
    resumed = certify(small(*RATE), run, "last", limit, budget)
    unbroken = certify(small(*RATE), finished, "last", limit, budget)
    assert (resumed.candidate, resumed.draws, resumed.numbers) == (
        unbroken.candidate, unbroken.draws, unbroken.numbers
    )  # fmt: skip
    assert resumed.findings == unbroken.findings
    with open_folder(run) as journal:
        assert len(journal.samples(-1)) == resumed.count
        assert len(journal.safety(-1)) == resumed.count


def test_a_copy_has_spent_what_its_original_has(run: Path, tmp_path: Path) -> None:
    certify(small(*RATE), run, "last", {"cost": 0.1}, BATCH_DRAWS)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with pytest.raises(DecisionNeeded, match="--new-id"):
        certify(small(*RATE), copy, "last", {}, BATCH_DRAWS)
    take_new_identity(small(*RATE), copy)
    shutil.rmtree(run)
    entry = certify(small(*RATE), copy, "round-1", {}, BATCH_DRAWS)
    assert entry.candidate.number == 2
    assert entry.candidate.limits[0].level == Allocation().level(0.05, 2)


def test_the_mixture_draws_from_every_round_in_an_order_of_its_own(run: Path) -> None:
    entry = certify(small(*RATE), run, "mixture", {"cost": 0.95}, BATCH_DRAWS)
    with open_folder(run) as journal:
        author = {answer.id: answer.policy_version for answer in journal.samples(-1)}
        numbers = {policy.number for policy in journal.policies}
    order = [author[name] for name in entry.draws["cost"]]
    assert set(order) == numbers
    assert order != sorted(order)


def test_a_certificate_is_computed_again_and_a_changed_one_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small(*RATE)
    entry = certify(config, run, "last", {"cost": 0.95}, MANY)
    good = write_certificate(run, certificate_of(config, run, entry))
    with pytest.raises(SystemExit):
        main(["certificate", "verify", str(run / FILE)])
    assert "and their labels in the journal" in capsys.readouterr().out

    def changed(**new: Any) -> Path:
        path = run / FILE
        path.write_text(json.dumps({**json.loads(json.dumps(good)), **new}))
        return path

    better = {"cost": {**good["findings"]["cost"], "upper": 0.01}}
    prompts = good["by_group"]["cost"]["prompts"]
    safer = {"cost": {"sets": [], "prompts": [{**prompts[0], "upper": 0.02}, *prompts[1:]]}}
    moved = {**good["groups"], "prompts": {"cost": good["groups"]["prompts"]["cost"][::-1]}}
    assert sum(one["draws"] for one in prompts) == entry.count
    other = {"cost": [1.0 - (entry.numbers["cost"][0] or 0.0), *entry.numbers["cost"][1:]]}
    for problem, said in (
        ({"findings": better}, "upper of cost is 0.01"),
        ({"state": "rejected"}, "says rejected, its draws say certified"),
        ({"candidate": {"number": 1}}, "is no certificate"),
        ({"by_group": safer}, f"upper of cost over {prompts[0]['name']} is 0.02"),
        ({"by_group": {"cost": {"sets": [], "prompts": []}}}, "other prompts than its draws"),
        ({"groups": moved, "by_group": group_bounds(entry, moved)}, "the journal has other prompts"),
    ):
        with pytest.raises(UserError, match=said):
            verified(changed(**problem))
    with pytest.raises(UserError, match=r"of cost is|labels for cost are others"):
        verified(changed(numbers=other))
    with pytest.raises(UserError, match="does not exist"):
        verified(run / "nothing.json")


def test_other_runs_of_the_recipe_are_named_whatever_their_seed(run: Path) -> None:
    run_recipe(small(*RATE, "seed=5"), run.parent / "second")
    run_recipe(small(*RATE, "beta=0.3"), run.parent / "another-recipe")
    entry = certify(small(*RATE), run, "last", {"cost": 0.95}, BATCH_DRAWS)
    certificate = certificate_of(small(*RATE), run, entry)
    assert certificate["siblings"] == ["second"]
    assert "other runs of its recipe: second." in sentences(certificate)[-1]


def test_a_logit_is_certified_below_its_bias_with_the_unsafe_rate_beside_it(tmp_path: Path) -> None:
    config = small("limits.cost.at_most=1.5", "limits.cost.labels_each=16")
    run_recipe(config, tmp_path / "run")
    entry = certify(config, tmp_path / "run", "last", {}, MANY)
    values = scaled(clipped_logit([share or 0.0 for share in entry.numbers["cost"]], 2.0), -2.0, 2.0)
    limit = (1.5 - bias_bound(16, 2.0) + 2.0) / 4.0
    expected = 4.0 * upper_bound(values, limit, Allocation().level(0.05, 1)) - 2.0 + bias_bound(16, 2.0)
    assert entry.findings["cost"].upper == pytest.approx(min(1.5, expected))
    assert "% of the labels say unsafe" in sentences(certificate_of(config, tmp_path / "run", entry))[1]
    with pytest.raises(UserError, match="cannot be certified by any number of draws"):
        certify(config, tmp_path / "run", "last", {"cost": -1.99}, MANY)


def test_two_limits_are_each_tested_at_their_own_whole_level(tmp_path: Path) -> None:
    config = load(
        "tabular-two-limits", [*SMALL, "rounds=1", "limits.cost.labels_each=16", "limits.privacy.labels_each=16"]
    )
    run_recipe(config, tmp_path / "run")
    names = list(config.thresholds)
    entry = certify(config, tmp_path / "run", "last", dict.fromkeys(names, 1.6), 2 * BATCH_DRAWS)
    assert [limit.name for limit in entry.candidate.limits] == names
    assert {limit.level for limit in entry.candidate.limits} == {Allocation().level(0.05, 1)}
    assert entry.state == "certified"
    worse = certify(config, tmp_path / "run", "last", {names[0]: 1.6, names[1]: -1.5}, 2 * BATCH_DRAWS)
    assert worse.state != "certified"
    assert worse.findings[names[0]].state == "certified"


def test_a_limit_that_was_decided_early_catches_up_under_another_bound(tmp_path: Path) -> None:
    """The second limit took more draws; then the first alone is in doubt: none of its batches has a number twice."""
    config = load(
        "tabular-two-limits", [*SMALL, "rounds=1", "limits.cost.labels_each=16", "limits.privacy.labels_each=16"]
    )
    run_recipe(config, tmp_path / "run")

    def asked(limits: list[float], batches: int) -> Entry:
        named = dict(zip(config.thresholds, limits, strict=True))
        return certify(config, tmp_path / "run", "last", named, batches * BATCH_DRAWS)

    sure = asked([1.6, 1.6], 2)
    in_doubt = [(one.lower + one.upper) / 2 for one in sure.findings.values()]
    doubted = asked([1.6, in_doubt[1]], sure.count // BATCH_DRAWS + 1)
    first, second = (len(one) for one in doubted.draws.values())
    assert first < second
    caught_up = asked([in_doubt[0], 1.6], second // BATCH_DRAWS + 1)
    assert len(next(iter(caught_up.draws.values()))) > second


def test_the_report_judges_by_the_recipes_limit_and_says_what_a_candidate_entered_for(run: Path) -> None:
    """Entered for a bound that holds, far above the recipe's 60 %; then one that is broken."""
    config = small(*RATE, "report.html=false")
    above = certify(config, run, "last", {"cost": 0.95}, BATCH_DRAWS)
    assert above.state == "certified"
    assert above.about({"cost": 0.6}).state == "undecided"
    section = build_report(run).read_text().partition('id="certificates"')[2].replace("&nbsp;", " ")
    assert "Undecided: cost, the share of unsafe answers of policy-2" in section
    assert "the limit is 60 %" in section
    assert "It entered the ledger for cost at most 95 %; the statements are about the recipe" in section
    bound = upper_bound([one or 0.0 for one in above.numbers["cost"]], 0.95, Allocation().level(0.05, 1))
    assert f"cost at most {100 * bound:.3g} %" in section
    assert "entered for</th>" in section


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "round-9"], "this run has round-1 to round-2, last and mixture"),
        (["--limit", "cost"], "NAME=VALUE"),
        (["--limit", "harm=0.1"], "this run's limits are cost"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    finished: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["certify", str(finished), *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
