"""Models that the driver of a run opens itself: where each lives, and where the plan counts it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification
from typer.testing import CliRunner

from pddpo_ray.backends.machine import GIB, Gpu, Machine
from pddpo_ray.cli.main import app
from pddpo_ray.config import Config, FitConfig, ScorerFit, StoredScorerConfig, load
from pddpo_ray.driver import run
from pddpo_ray.errors import RunError
from pddpo_ray.limits.quantities import Scale
from pddpo_ray.limits.sources import Source
from pddpo_ray.parts.measuring import SourceMeasures
from pddpo_ray.parts.rewards import ComputedReward
from pddpo_ray.plan.memory import ModelShape, by_process, host_bytes, memory, on_one_gpu
from pddpo_ray.plan.warnings import warnings
from pddpo_ray.records import Prompt, Response
from pddpo_ray.scorecard.scorers import _score_answers, own_scores
from pddpo_ray.scorers.fits import given_scorer
from pddpo_ray.scoring import scorer_training
from pddpo_ray.scoring.held_out import ScoreRow
from pddpo_ray.scoring.sources.opening import source_in_run
from pddpo_ray.training.device import device_for
from tests.support.tiny_language_model import save_policy, word_tokenizer

RAY, IN_PROCESS = "cluster={mode: ray}", "cluster={mode: in-process}"
SEVEN_B = ModelShape(6_738_415_616, 4096, 32, 32_000, 32 * (4 * 8192 + 3 * 15104), 512)
ASKED = Response("a", Prompt("p", (1, 4), "word4"), (5, 2), "word5", 0, 0)
EIGHT = Machine(64, 960 * GIB, (Gpu("card", 80 * GIB),) * 8)


def guard(folder: Path) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForSequenceClassification(
        BertConfig(vocab_size=88, **sizes, id2label={0: "safe", 1: "unsafe"})
    ).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def of_size(folder: Path, parameters: int) -> Path:
    """A model folder of which a plan reads the sizes alone."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [parameters], "data_offsets": [0, 0]}}).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def recipe(*overrides: str) -> Config:
    return load("text-world", overrides, check_files=False)


def limit(source: str) -> str:
    return f"limits={{cost: null, mine: {{rate: {{{source}}}, at_most: 5 %}}}}"


def of_limit(folder: Path, source: str) -> None:
    (stated,) = recipe(limit(source.format(guard(folder / "guard")))).stated
    assert source_in_run(stated, {}) is not None


def held_out(folder: Path) -> None:
    given = StoredScorerConfig(path=str(guard(folder / "guard")))
    assert len(_score_answers(partial(given_scorer, given, "float32"), [ASKED])) == 1


def trained(folder: Path) -> None:
    rows = scorer_training.ScorerRows(fit=[ScoreRow((1, 9), (4, 2), (5, 2))])
    ways, fit = ScorerFit(parameters="full"), FitConfig(steps=1, learning_rate=1e-3, batch_pairs=1)
    base = save_policy(folder / "base", 0)
    scorer_training.make_scorer("reward", base, rows, ways, fit, seed=0, work=folder, say=lambda line: None)


OPENED: dict[str, Callable[[Path], None]] = {
    "a limit's classifier": partial(of_limit, source="classifier: '{}', label: unsafe"),
    "a limit's score model": partial(of_limit, source="score_model: '{}', above: 0.5"),
    "a held-out scorer": held_out,
    "a scorer in training": trained,
}


def asked_for(
    config: Config, folder: Path, open_it: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> set[str]:
    """Devices to which models go that are opened where a run makes its parts, on a machine whose torch sees a GPU."""
    places: set[str] = set()

    def to(model: torch.nn.Module, device: Any = None, **_: Any) -> torch.nn.Module:
        if not isinstance(device, torch.dtype):
            places.add(str(device))
        return model

    class Opened(RunError):
        pass

    def make_backends(config: Config, run_dir: Path) -> Any:
        places.add(str(device_for()))
        open_it(folder)
        raise Opened

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.nn.Module, "to", to)
    with pytest.raises(Opened):
        run.run_recipe(config, folder / "run", make_backends=make_backends)
    assert str(device_for()) == "cuda", "the run is over"
    return places


@pytest.mark.run
@pytest.mark.parametrize("what", OPENED)
def test_a_model_that_the_driver_of_a_ray_run_opens_is_on_no_gpu(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has reserved none: the first one of its machine is a rank's or an engine's."""
    assert asked_for(recipe(RAY, "model.device=cuda"), tmp_path, OPENED[what], monkeypatch) == {"cpu"}


@pytest.mark.run
@pytest.mark.parametrize(("device", "place"), [("auto", "cuda"), ("cpu", "cpu"), ("cuda", "cuda")])
def test_in_one_process_it_is_where_the_policy_is(
    device: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = recipe(IN_PROCESS, f"model.device={device}", "model.dtype=float32")
    assert asked_for(config, tmp_path, OPENED["a limit's classifier"], monkeypatch) == {place}


def test_an_entrance_measures_served_answers_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = pytest.importorskip("deploy.serving.deployment")
    places: list[str] = []

    def watched_limits(config: Config) -> tuple[list[str], list[str]]:
        places.append(str(device_for()))
        return ["harm"], []

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(deployment, "watched_limits", watched_limits)
    deployment._measurable_limits(SimpleNamespace(measure=0.1), recipe())
    assert places == ["cpu"]


@pytest.mark.parametrize("kind", ["classifier", "function", "judge"])
def test_the_scorecard_asks_the_rewards_own_source_and_opens_no_second(kind: str) -> None:
    stated = SimpleNamespace(source=SimpleNamespace(kind=kind))
    source = Source("mine", "1", lambda answers: [2.0] * len(answers), Scale("score", False, 0.0, 5.0))
    reward: Any = ComputedReward(stated, SourceMeasures([], [], [], 1.0), source)  # type: ignore[arg-type]
    nobody: Any = None
    scores = own_scores(recipe(), nobody, reward)
    assert {name: score([ASKED]).tolist() for name, score in scores.items()} == (
        {} if kind == "judge" else {"reward": [2]}
    )
    assert own_scores(recipe(), nobody, None) == {}


# --- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "device", "where"),
    [(RAY, "cuda", "host"), (IN_PROCESS, "cuda", "device"), (RAY, "cpu", "host"), (IN_PROCESS, "cpu", "host")],
)
def test_the_plan_counts_the_drivers_models_where_they_live(
    cluster: str, device: Any, where: str, tmp_path: Path
) -> None:
    folder, other = of_size(tmp_path / "guard", 1000), of_size(tmp_path / "other", 300)
    measured = [limit(f"classifier: '{folder}'"), f"reward={{score_model: '{other}', bounds: [-5, 5]}}"]
    config = recipe(cluster, *measured, f"scorecard={{prompts: 8, scorers: {{reward: '{other}'}}}}")
    needs = memory(config, SEVEN_B, device)
    found = {need.part: need for need in needs}
    assert found["models that measure"].bytes_by_purpose == {"limits.mine": 4000.0, "reward": 1200.0}
    assert found["held-out scorers"].each == 300 * 4
    config = load("text-world-scorers", [cluster, "scorers.fit.batch_pairs=4"])
    found |= {need.part: need for need in memory(config, SEVEN_B, device)}
    assert found["scorer training"].each > 16.0 * SEVEN_B.parameters
    parts = ("models that measure", "held-out scorers", "scorer training")
    assert {(found[part].count, found[part].where) for part in parts} == {(1, where)}
    stored = found["driver, storing the reference"].each
    if cluster == RAY:
        assert by_process(needs)["driver"] == pytest.approx(found["driver"].each + stored)
        rounds = [need for need in needs if not need.before_rounds]
        assert by_process(rounds)["driver"] == pytest.approx(found["driver"].each + 5200 + 1200)


@pytest.mark.slow
def test_scorers_that_a_method_or_the_scorecard_trains_are_counted_as_those_that_label() -> None:
    for name, overrides in (
        ("safe-rlhf", []),
        ("real-text", ["scorecard.train=true", "data.held_out=0.2"]),
        ("text-world-scorers", ["feedback={kind: mixed, model: scorers}"]),
    ):
        config = load(name, [RAY, *overrides], check_files=False)
        found = {need.part: need for need in memory(config, SEVEN_B, "cuda")}
        assert found["scorer training"].where == "host"
        opened = found["held-out scorers" if config.scorecard.train else "reward and cost models"]
        assert (opened.where, opened.bytes_by_purpose["models"]) == ("host", 4.0 * SEVEN_B.parameters)


def test_one_gpu_trains_scorers_before_it_holds_the_rounds() -> None:
    config = load("text-world-scorers", [IN_PROCESS, "scorers.parameters=head"])
    needs = memory(config, SEVEN_B, "cuda")
    parts = {need.part: need.count * need.each for need in needs if need.where == "device"}
    assert parts["scorer training"] == 4.0 * SEVEN_B.parameters
    assert on_one_gpu(config, needs) == {"the run": pytest.approx(sum(parts.values()) - parts["scorer training"])}
    apart = [need for need in needs if need.part != "scorer training"]
    assert host_bytes(needs) == host_bytes(apart)


def slow(*overrides: str, machine: Machine = EIGHT) -> str:
    return "\n".join(line for line in warnings(recipe(*overrides), machine) if "no GPU is reserved" in line)


def test_a_model_that_is_hopeless_on_the_drivers_cpus_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pddpo_ray.plan.warnings.model_shape", lambda config: SEVEN_B)
    large = limit(f"classifier: '{of_size(tmp_path / 'large', 7_000_000_000)}'")
    small = limit(f"classifier: '{of_size(tmp_path / 'small', 100_000_000)}'")
    more = ["feedback.responses=1000", "explore.prompts=100", "explore.picks=5", "offline.pairs=10"]
    said = slow(RAY, large, *more)
    # 2,000 texts of 512 tokens, two operations a weight and token, 0.11 TFLOP/s on each of 64 cores
    assert said == (
        "limits.mine: no GPU is reserved, and 7.0 billion weights take up to 0.6 h for 2,000 texts on 64 CPUs; take a"
        " smaller one, or serve it and measure by an `endpoint`"
    )
    assert "up to 5.7 h for 20,000 texts" in slow(RAY, large, "offline.pairs=10000"), "those of the pairs come first"
    assert slow(RAY, small, *more) == ""
    assert slow(IN_PROCESS, large, *more) == "", "it is on the run's GPU"
    assert slow(RAY, large, *more, machine=Machine(64, 960 * GIB)) == "", "so is nothing"


def test_scorers_that_are_made_or_asked_without_a_gpu_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pddpo_ray.plan.warnings.model_shape", lambda config: SEVEN_B)
    said = slow(RAY, "feedback.kind=model", "limits={cost: {logit: {model: cost}}}")
    trains, asked = said.splitlines()
    assert trains.startswith("scorers: no GPU is reserved, and 6.7 billion weights take up to")
    assert "`pddpo scorer train`" in trains
    assert asked.startswith("feedback.gpus=0: ")
    assert asked.endswith("on 1 CPUs; write feedback.gpus=0.04")
    given = "feedback={kind: model, gpus: 0.04, reward: {path: o/r}, cost: {path: o/c}}"
    assert slow(RAY, given, "limits={cost: {logit: {model: cost}}}") == ""


def test_a_dry_run_shows_where_they_are(tmp_path: Path) -> None:
    words = [limit(f"classifier: '{of_size(tmp_path / 'large', 7_000_000_000)}', label: unsafe"), RAY]
    plan = ["--dry-run", "--gpus", "2", "--gpu-memory", "80"]
    done = CliRunner().invoke(app, ["train", "text-world", *words, "trainer.threads=1", *plan], catch_exceptions=False)
    (row,) = [" ".join(line.split()) for line in done.stdout.splitlines() if "models that measure" in line]
    assert row == "models that measure 1 x 26.1 GiB (host) limits.mine 26.1 GiB"
