"""Settings of an endpoint, the Serve config file, and the verbs' mistakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ray.exceptions import RayActorError

from deploy.serving.engines.engine import with_relative_temperature
from deploy.serving.settings import ServeArgs, engine_settings, find, mixture_max
from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import Journal
from pddpo_ray.journal.tokens import hashed
from pddpo_ray.journal.transactions import Store
from pddpo_ray.rollout.vllm_start import vllm_options
from pddpo_ray.serving.keys import ApiKeys, Scope
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.served_run import SAFE, UNSAFE, ServedRun, make_run

CONFIG = Path(__file__).parents[3] / "deploy" / "serving" / "serve.yaml"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ServedRun]:
    made = make_run(tmp_path / "demo", (SAFE, UNSAFE))
    yield made
    made.close()


def ends(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def test_the_serve_config_file_fits_serves_schema_and_ours() -> None:
    """Ray's own schema checks the file; our model its arguments; the import path leads to the builder."""
    schema = pytest.importorskip("ray.serve.schema")
    content = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    deployed = schema.ServeDeploySchema.model_validate(content)
    (application,) = deployed.applications
    assert ServeArgs.model_validate(application.args).gpus == 1
    assert application.import_path == "deploy.serving.deployment:build"
    assert deployed.http_options.host == "127.0.0.1"
    with pytest.raises(ValueError):
        ServeArgs.model_validate({**application.args, "gpu": 1})


def test_merged_weights_hold_four_policies_and_adapters_all(run: ServedRun) -> None:
    args = ServeArgs(run=str(run.folder))
    place = find(args)
    merged = engine_settings(args, place, "reference")
    assert (merged.weights, mixture_max(args, merged), merged.max_model_len) == ("merged", 4, 128)
    assert mixture_max(ServeArgs(run="x", mixture_max=2), merged) == 2
    with pytest.raises(UserError, match=r"model\.parameters\.kind=lora"):
        engine_settings(ServeArgs(run=str(run.folder), weights="adapters"), place, "reference")
    config = load("text-world", ["model.parameters.kind=lora", "model.parameters.rank=4"])
    place = place.model_copy(update={"config": config})
    on_gpu = engine_settings(ServeArgs(run=str(run.folder), gpus=1), place, "reference")
    assert (on_gpu.weights, on_gpu.adapter_rank, mixture_max(args, on_gpu)) == ("adapters", 4, None)
    assert engine_settings(args, place, "reference").weights == "merged"


def test_an_engine_over_several_gpus_can_be_asked_for(run: ServedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    # nothing is to be compiled in an engine's process; this one has tests that compile
    monkeypatch.setattr("pddpo_ray.rollout.vllm_start.without_compiling", lambda: True)
    place = find(ServeArgs(run=str(run.folder)))
    spread = engine_settings(ServeArgs(run=str(run.folder), gpus=2, tensor_parallel=2), place, "reference")
    options = vllm_options(Path(spread.model), spread, spread.dtype)
    assert (options["tensor_parallel_size"], options["distributed_executor_backend"]) == (2, "mp")
    with pytest.raises(UserError, match="needs gpus=2, not 1"):
        ServeArgs(run=str(run.folder), gpus=1, tensor_parallel=2)


@pytest.mark.parametrize(
    ("written", "context"),
    [
        ({"max_position_embeddings": 64}, 64),
        ({"n_positions": 64}, 64),
        ({"text_config": {"max_position_embeddings": 64}}, 64),
        ({"max_position_embeddings": 4096}, 128),
        ({"max_position_embeddings": 64, "rope_scaling": {"factor": 8.0}}, 128),
        ({}, 128),
    ],
)
def test_an_engines_context_is_never_longer_than_the_models(
    run: ServedRun, written: dict[str, object], context: int
) -> None:
    """vLLM refuses a longer one with a traceback, after a minute."""
    args = ServeArgs(run=str(run.folder))
    place = find(args)
    reference = run.folder / "artifacts" / "short"
    reference.mkdir(parents=True)
    (reference / "config.json").write_text(json.dumps(written))
    assert engine_settings(args, place, "short").max_model_len == context
    asked = args.model_copy(update={"max_model_len": 65})
    if context == 64:
        with pytest.raises(UserError, match="max_model_len is 65, but the model has 64 positions"):
            engine_settings(asked, place, "short")
    else:
        assert engine_settings(asked, place, "short").max_model_len == 65


def test_requests_are_rendered_as_the_run_was_trained(run: ServedRun, tmp_path: Path) -> None:
    args, place = ServeArgs(run=str(run.folder)), find(ServeArgs(run=str(run.folder)))
    settings = engine_settings(args, place, "reference")
    assert (settings.template, settings.chat_template) == ("tokenizer-or-plain", None)
    of_files = place.model_copy(update={"config": load("real-text", ["data.template=alpaca"])})
    assert engine_settings(args, of_files, "reference").template == "tokenizer-or-plain", "its versions carry `alpaca`"
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    given = args.model_copy(update={"chat_template": str(tmp_path / "own.jinja")})
    assert engine_settings(given, of_files, "reference").chat_template == "{{ messages }}"


def test_tables_and_runs_without_a_reference_are_not_served(tmp_path: Path) -> None:
    for recipe, said in (("tabular", "are tables"), ("text-world", "not stored its reference")):
        folder = tmp_path / recipe
        config = load(recipe)
        Journal.open(folder / JOURNAL, recipe, create=config.model_dump(mode="json")).close()
        with pytest.raises(UserError, match=said):
            find(ServeArgs(run=str(folder)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "nowhere"], "there is no run in"),
        (["serve", "RUN", "--host", "0.0.0.0"], "--behind-proxy"),
        (["serve", "RUN", "--weights", "half"], "choose auto, merged or adapters"),
        (["serve", "RUN", "--weights", "adapters"], "model.parameters.kind=lora"),
        (["serve", "RUN", "--add-key", "app", "--scope", "king"], "choose chat, inspect, admin"),
        (["serve", "RUN", "--revoke-key", "app"], "no valid key"),
        (["serve", "RUN", "--rotate-key", "app"], "no valid key"),
        (["serve", "RUN", "--add-key", "app", "--expires", "soon"], "--expires soon: write a time such as"),
        (["release", "nowhere"], "there is no run in"),
        (["release", "RUN", "2"], "--force"),
        (["release", "RUN", "9"], "rounds 1 to 2"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    run: ServedRun, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert ends(*(str(run.folder) if word == "RUN" else word for word in arguments)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_release_and_rollback_tell_the_history(run: ServedRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("release", str(run.folder), "2", "--force", "--reason", "a trial", "--json") == 0
    assert json.loads(capsys.readouterr().out)["released"] == 2
    assert ends("rollback", str(run.folder)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["release", "release", "rollback", "released:"]
    assert lines[1].endswith("a trial")
    assert lines[-1] == "released: round 1"
    assert ends("rollback", str(run.folder)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "released: nothing"
    assert ends("rollback", str(run.folder)) == 2


@pytest.mark.slow
def test_keys_of_the_command_line_are_shown_once_and_kept_from_others(
    run: ServedRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends("serve", str(run.folder), "--add-key", "app", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["name"], made["scope"]) == ("app", "chat")
    assert ends("serve", str(run.folder), "--rotate-key", "app", "--grace", "1h", "--json") == 0
    rotated = json.loads(capsys.readouterr().out)
    assert (rotated["name"], rotated["scope"]) == ("app", "chat")
    assert rotated["key"] != made["key"]
    assert ends("serve", str(run.folder), "--list-keys") == 0
    listed = capsys.readouterr().out
    assert [line.split()[0][:4] for line in listed.splitlines()] == ["app", "app~"]
    assert "does not end" in listed
    assert "ends 20" in listed
    assert rotated["key"] not in listed
    assert ends("serve", str(run.folder), "--add-key", "app") == 2
    started: list[ServeArgs] = []
    import deploy.serving.deployment as deployment

    monkeypatch.setattr(deployment, "serve_forever", lambda args, **options: started.append(args))
    for _ in range(2):
        assert ends("serve", str(run.folder), "--seed", "3", "--cors", "https://a.example") == 0
    assert (started[0].seed, started[0].cors_origins) == (3, ("https://a.example",))
    files = [run.folder / name for name in ("serve-key", "serve-admin-key")]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    assert len({file.read_text() for file in files}) == 2


@pytest.mark.slow
def test_a_proxy_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray kills a proxy that is not up in its time; no test makes a machine that busy, so its error stands in."""
    import deploy.serving.deployment as deployment

    def late(http_options: object) -> None:
        raise RayActorError

    monkeypatch.setattr(deployment.serve, "start", late)
    with pytest.raises(RunError, match=r"did not begin to listen on .*:8800 in its time: this machine may"):
        deployment.start_proxy({"host": "127.0.0.1", "port": 8800})


def test_an_endpoint_answers_at_the_policys_temperature_unless_it_is_asked_otherwise(run: ServedRun) -> None:
    """vLLM's logits are divided by 0.7 already: 1.0 of the API is 1 / 0.7 of those, and no word is the policy's own."""
    args, place = ServeArgs(run=str(run.folder)), find(ServeArgs(run=str(run.folder)))
    assert engine_settings(args, place, "reference").temperature == 1.0
    config = load("text-world", ["policy.temperature=0.7"])
    warm = engine_settings(args, place.model_copy(update={"config": config}), "reference")
    assert warm.temperature == 0.7
    assert "temperature" not in with_relative_temperature({"max_tokens": 3}, warm.temperature)
    for asked in (0, 0.35, 0.7, 1, 2.0):
        relative = with_relative_temperature({"temperature": asked}, warm.temperature)["temperature"]
        assert warm.temperature * relative == pytest.approx(asked)
    for wrong in ("hot", True, None):
        assert with_relative_temperature({"temperature": wrong}, 0.7) == {"temperature": wrong}


def test_a_key_ends_by_itself_and_a_rotated_one_has_a_time_of_grace(run: ServedRun) -> None:
    now = [1_800_000_000_000]
    keys = ApiKeys(Store(run.journal.engine, "demo", clock=lambda: now[0]))
    _, first = keys.create("shop", Scope.CHAT, requests_per_minute=7, lasts_ms=1000)
    _, lasting = keys.create("page", Scope.CHAT)
    fresh, second = keys.rotate("shop", grace_ms=300)
    assert (fresh.name, fresh.requests_per_minute, fresh.expires_ms) == ("shop", 7, now[0] + 1000)

    def valid() -> set[str]:
        return {secret for secret in (first, second, lasting) if hashed(secret) in keys.valid()}

    assert valid() == {first, second, lasting}
    now[0] += 300
    assert valid() == {second, lasting}
    with pytest.raises(UserError, match=r"a key called 'shop' already"):
        keys.create("shop", Scope.CHAT)
    now[0] += 700
    assert valid() == {lasting}
    for change in (lambda: keys.rotate("shop", 0), lambda: keys.revoke("shop")):
        with pytest.raises(UserError, match="no valid key"):
            change()
    third = keys.rotate("page", grace_ms=10**6)[1]
    old = next(key for key in keys.valid().values() if key.name.startswith("page~"))
    keys.revoke(old.name)
    assert {hashed(third)} == set(keys.valid()), "a leaked secret ends before its grace"
