"""The registry: the example package is installed and a run uses each of its extensions; what is wrong is one line."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pddpo_ray import registry
from pddpo_ray.config import load
from pddpo_ray.config.sections.explore import Bonus
from pddpo_ray.errors import UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.limits import rules
from pddpo_ray.records import HARM, Verdict
from pddpo_ray.registry import Extension
from pddpo_ray.storage.whole_files import JOURNAL

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "plugin"
SMALL = (
    "rounds=3", "feedback.responses=16", "limits.cost.labels_each=4", "offline.pairs=64", "offline.compare_rounds=0",
    "report.samples=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example."""
    folder = tmp_path_factory.mktemp("installed")
    copy = folder / "plugin"
    (copy / "pddpo_politeness").mkdir(parents=True)
    for file in [
        *EXAMPLE.glob("*.*"),
        *EXAMPLE.glob("pddpo_politeness/*.py"),
    ]:
        (copy / file.relative_to(EXAMPLE)).write_bytes(file.read_bytes())
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "site"), str(copy)]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def pddpo(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pddpo_ray", *arguments],
        capture_output=True, text=True, check=False, cwd=folder, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT), str(ROOT / "lab")])},
    )  # fmt: skip


def test_the_entry_point_that_the_page_shows_is_the_examples() -> None:
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```toml\n(.*?)^```", page, re.S | re.M)
    assert shown in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.run
def test_rules_and_a_source_of_an_installed_package_measure(site: Path, tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(
        "limits:\n"
        "  thanks: {mean: {rule: courtesies}, at_most: 1, bounds: [0, 9]}\n"
        "  polite: {rate: {rule: polite}, at_least: 10 %}\n"
        "  loud: {rate: {shouting: {share: 0.9}}, at_most: 60 %}\n"
    )
    answers = ["Thanks! Please soak it.", "SOAK IT."]
    (tmp_path / "answers.jsonl").write_text(
        "".join(json.dumps({"prompt": text, "response": text}) + "\n" for text in answers)
    )
    checked = pddpo(site, tmp_path, "limits", "check", "limits.yaml", "--on", "answers.jsonl", "--json")
    assert checked.returncode == 0, checked.stderr
    found = json.loads(checked.stdout)
    assert [found[name]["estimate"] for name in ("thanks", "polite", "loud")] == [1.0, 0.5, 0.5]
    assert found["polite"]["note"] == "by two English phrases"
    (tmp_path / "limits.yaml").write_text("limits: {loud: {rate: {shouting: {shre: 0.9}}, at_most: 60 %}}")
    refused = pddpo(site, tmp_path, "limits", "check", "limits.yaml", "--on", "answers.jsonl")
    assert refused.returncode == 2
    assert "unknown key `limits.yaml: limits.loud.rate.shouting.shre`; did you mean `share`?" in refused.stderr


@pytest.mark.run
def test_a_run_uses_method_world_bonus_dual_rule_and_tracker_of_an_installed_package(
    site: Path, tmp_path: Path
) -> None:
    own = [
        "algorithm=sparing", "method.every=2", "world={kind: two-requests, curt: 0.6}",
        "explore.bonus=seldom-asked", "explore.settings.power=1.0",
        "dual.rule={kind: signs, step: 0.2}", "report.trackers={csv: {file: all.csv}}", "report.tensorboard=false",
    ]  # fmt: skip
    done = pddpo(site, tmp_path, "train", "tabular", "--run", "run", *SMALL, *own)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["algorithm"] == "sparing"
    names = ("methods/sparing", "worlds/two-requests", "bonuses/seldom-asked", "dual_rules/signs", "trackers/csv")
    assert result["provenance"]["extensions"] == dict.fromkeys(names, "pddpo-politeness 0.2.0")
    evaluated = json.loads(pddpo(site, tmp_path, "evaluate", "run", "--json").stdout)
    assert evaluated["values"]["policy-3"]["gap"] == pytest.approx(result["gap_last"])
    told: dict[str, dict[int, float]] = {}
    with (tmp_path / "run" / "all.csv").open(newline="") as file:
        for round_, name, value in csv.reader(file):
            told.setdefault(name, {})[int(round_)] = float(value)
    # the method explores in rounds 1 and 3; the bonus counts the compared pairs, and the offline ones
    assert set(told["explore/pairs"]) == {1, 3}
    # the dual moves by the sign alone, by 0.2 rho / sqrt(k)
    first = told["dual/multiplier"][1]
    for number in (1, 2, 3):
        before, after = told["dual/multiplier"][number], told["dual/next"][number]
        sign = math.copysign(1.0, told["cost/estimate"][number])
        assert after == pytest.approx(before + sign * 0.2 * first / math.sqrt(number), rel=1e-9)


@pytest.mark.full
@pytest.mark.run
def test_a_run_takes_labels_and_holds_limits_on_a_rule_and_a_source_of_an_installed_package(
    site: Path, tmp_path: Path
) -> None:
    sizes = ["rounds=1", "feedback.responses=32", "offline.pairs=200", "explore.prompts=8", "explore.picks=2"]
    quiet = [
        "report.tensorboard=false",
        "report.html=false",
        "offline.compare_rounds=0",
        "certificate.certify=never",
        "dual.rho=1.0",
    ]
    recipe = tmp_path / "mine.yaml"
    document = load("text-world-limits-twin").model_dump(mode="json")
    document["limits"] = {
        "thanks": {"mean": {"rule": "courtesies"}, "at_most": 1, "bounds": [0, 9]},
        "loud": {"rate": {"shouting": {"share": 0.9}}, "at_most": "5 %"},
    }
    document["dual"]["first"] = None
    recipe.write_text(json.dumps(document))
    feedback = "feedback={kind: brevity, responses: 24, words: 9}"
    done = pddpo(site, tmp_path, "train", "mine.yaml", "--run", "run", *sizes, *quiet, feedback)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["limits"]["loud"]["estimate"] == 0.0
    with read_journal(tmp_path / "run" / JOURNAL, "run") as journal:
        labelled = [entry.labelled for entry in journal.pairs(1)]
    longer = {one.pair.id: len(one.pair.first.text.split()) - len(one.pair.second.text.split()) for one in labelled}
    verdicts = {True: Verdict.SECOND, False: Verdict.FIRST}
    assert any(longer.values())
    for one in labelled:
        words = longer[one.pair.id]
        assert one.helpful is (verdicts[words > 0] if words else Verdict.ABSTAIN)
        assert one.label(HARM) is (verdicts[words < 0] if words else Verdict.ABSTAIN)
    names = ("feedback/brevity", "sources/shouting", "rules/courtesies")
    assert result["provenance"]["extensions"] == dict.fromkeys(names, "pddpo-politeness 0.2.0")


@pytest.mark.full
@pytest.mark.run
def test_what_is_installed_is_explained_listed_and_checked(site: Path, tmp_path: Path) -> None:
    explained = pddpo(site, tmp_path, "explain", "dual.rule.step")
    assert explained.stdout.startswith(
        "dual.rule.step (kind: signs): number, > 0; default 0.1; changed by: researcher\n"
    )
    listed = json.loads(pddpo(site, tmp_path, "recipes", "--json").stdout)["installed"]
    assert {(one["kind"], one["name"]) for one in listed if one["package"].startswith("pddpo-politeness")} == {
        ("method", "sparing"), ("world", "two-requests"), ("bonus", "seldom-asked"), ("dual rule", "signs"),
        ("source", "shouting"), ("feedback kind", "brevity"),
        ("rule", "courtesies"), ("rule", "polite"), ("tracker", "csv"),
    }  # fmt: skip
    wrong = pddpo(site, tmp_path, "train", "tabular", "--dry-run", "world={kind: two-requests, crt: 0.6}")
    assert wrong.stderr.endswith("`world`: unknown key `world.crt`; did you mean `curt`?\n")
    refused = pddpo(site, tmp_path, "train", "tabular", "--dry-run", "dual.rule={kind: signs, stp: 0.2}")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.endswith("`dual.rule`: unknown key `dual.rule.stp`; did you mean `step`?")
    refused = pddpo(site, tmp_path, "train", "text-world", "--dry-run", "feedback={kind: brevity, wrds: 12}")
    assert refused.stderr.endswith("`feedback`: unknown key `feedback.wrds`; did you mean `words`?\n")
    refused = pddpo(site, tmp_path, "train", "tabular", "--dry-run", "feedback={kind: brevity, words: 12}")
    assert "feedback.kind=brevity reads texts; a table has none" in refused.stderr


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Entry points as if packages had brought them."""
    entries = [EntryPoint("lab", "pddpo_lab.recipes", "pddpo_ray.recipes")]
    registry._entries_of_packages.cache_clear()
    monkeypatch.setattr(registry, "entry_points", lambda group: [one for one in entries if one.group == group])
    yield entries
    registry._entries_of_packages.cache_clear()


@pytest.mark.parametrize("kind", registry.KINDS)
def test_everything_that_ships_is_in_the_registry_and_can_be_loaded(kind: str) -> None:
    for name in registry.SHIPPED[kind]:
        if kind == "rules":
            assert isinstance(registry.load(kind, name, rules.Rule), rules.Rule)
        elif kind == "commands":
            assert callable(registry.command(name))
        elif (kind, name) not in (("trackers", "wandb"), ("trackers", "mlflow")):
            assert callable(registry.code_of(kind, name))
        assert registry.package_of(kind, name) is None


def test_what_cannot_be_loaded_names_package_and_entry_point(given: list[EntryPoint], tmp_path: Path) -> None:
    class Named(EntryPoint):
        @property
        def dist(self) -> object:  # type: ignore[override]
            return type("Package", (), {"name": "breaking", "version": "1.2"})

    given += [
        Named("gone", "no_such_module:RULE", "pddpo_ray.rules"),
        Named("words2", "pddpo_ray.limits.rules:words", "pddpo_ray.rules"),
        Named("half", "pddpo_ray.config.sections.explore:ELLIPTICAL", "pddpo_ray.dual_rules"),
    ]
    with pytest.raises(
        UserError, match=r"breaking 1\.2 brings the rule `gone` as no_such_module:RULE, which cannot be"
    ):
        rules.rule_of("x", "gone")
    with pytest.raises(
        UserError, match=r"breaking 1\.2 .*rules:words, which is no pddpo_ray\.limits\.rules\.Rule, but"
    ):
        rules.rule_of("x", "words2")
    with pytest.raises(UserError, match="x: there is no rule `gome`; did you mean `gone`"):
        rules.rule_of("x", "gome")


def test_code_that_cannot_be_loaded_names_package_and_code(
    given: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "BROKEN", Extension("no_such_module:make"), raising=False)
    given += [EntryPoint("broken", "pddpo_ray.limits.rules:BROKEN", "pddpo_ray.bonuses")]
    with pytest.raises(
        UserError, match=r"bonus `broken` as .*:BROKEN, whose code no_such_module:make cannot be loaded"
    ):
        registry.code_of("bonuses", "broken")


def test_recipes_of_a_package_without_its_code_are_one_clear_error(given: list[EntryPoint]) -> None:
    given += [EntryPoint("more", "no_such_module", "pddpo_ray.recipes")]
    with pytest.raises(UserError, match=r"brings recipes and cannot be imported \(No module .*: reinstall it"):
        registry.recipe_folders()


def test_two_of_one_name_are_refused(given: list[EntryPoint]) -> None:
    given += [EntryPoint("words", "other:RULE", "pddpo_ray.rules"), EntryPoint("off", "other:OFF", "pddpo_ray.bonuses")]
    with pytest.raises(UserError, match="pddpo-ray and an unnamed package both bring a rule `words`: uninstall one"):
        rules.rule_of("x", "words")
    with pytest.raises(UserError, match="both bring a bonus `off`"):
        load("tabular", ["explore.bonus=off"])
    given += [EntryPoint("new", "one:A", "pddpo_ray.bonuses"), EntryPoint("new", "two:A", "pddpo_ray.bonuses")]
    registry._entries_of_packages.cache_clear()
    with pytest.raises(UserError, match="both bring a bonus `new`"):
        registry.load("bonuses", "new", Bonus)


def test_the_version_of_a_rule_follows_its_file() -> None:
    assert rules.version_of("words") == f"rule words {rules.digest(Path(rules.__file__))}"
