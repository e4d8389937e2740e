"""Every field that the pinned vLLM reads: refused, answered without a certificate, or harmless; and its page."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from deploy.serving.request_fields import FIELDS, ROUTES, TABLE, Kind, RequestField, departure, fields_page, read
from deploy.serving.requests import parse
from deploy.web.http_errors import ApiError
from pddpo_ray.storage.checkpoints import control_tokens
from pddpo_ray.text.renderer import special_tokens
from tests.support.chat_tokenizers import gpt_2
from tests.unit.serving.test_app import CHAT, Caller, caller, error_of

__all__ = ["caller"]
PAGE = Path(__file__).parents[3] / "docs/request-fields.md"
TESTED = {"temperature": 1.0, "max_tokens": 5}
MODELS: dict[Kind, tuple[str, str]] = {
    "chat": ("entrypoints/openai/chat_completion/protocol.py", "ChatCompletionRequest"),
    "completion": ("entrypoints/openai/completion/protocol.py", "CompletionRequest"),
}
OTHER: dict[str | None, Any] = {"truth": None, "whole": 3, "number": 0.25, None: ["x"]}
"""A value by its form that is under no field the one that was tested."""


def fields_of_vllm(kind: Kind) -> set[str]:
    """The fields of the request model in vLLM's own source: importing it would take half a minute."""
    (folder,) = importlib.util.find_spec("vllm").submodule_search_locations  # type: ignore[union-attr, misc]
    file, name = MODELS[kind]
    tree = ast.parse((Path(folder) / file).read_text("utf-8"))
    (model,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    stated = [
        node.target.id for node in model.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return {field for field in stated if not field.startswith("_")}


@pytest.mark.parametrize("kind", ROUTES)
def test_every_field_of_vllms_own_request_models_is_in_the_table(kind: Kind) -> None:
    fields = fields_of_vllm(kind)
    assert len(fields) > 50
    assert fields <= set(FIELDS[kind]), "say what the new field does to an answer: refused, no certificate or harmless"


def test_the_page_is_the_table() -> None:
    command = "python -m deploy.serving.request_fields > docs/request-fields.md"
    assert PAGE.read_text(encoding="utf-8") == fields_page(), command


def other_value(field: RequestField) -> Any:
    return not field.plain[0] if field.form == "truth" and field.plain else OTHER[field.form]


def kinds(field: RequestField) -> list[Kind]:
    return [kind for kind in ROUTES if field.only in (None, kind)]


@pytest.mark.parametrize("field", [one for one in TABLE if one.effect == "refused"], ids=lambda one: one.name)
def test_a_refused_field_is_named_and_left_out_under_an_allowed_value(field: RequestField) -> None:
    for kind in kinds(field):
        with pytest.raises(ApiError, match=rf"{field.name} is not supported") as refused:
            read(kind, {field.name: other_value(field)})
        assert refused.value.status_code == 400
        for value in (None, *field.plain):
            assert read(kind, {field.name: value}) == {}


@pytest.mark.parametrize("field", [one for one in TABLE if one.effect == "no certificate"], ids=lambda one: one.name)
def test_a_field_that_makes_another_answer_departs_from_what_was_tested(field: RequestField) -> None:
    for kind in kinds(field):
        asked = read(kind, {field.name: other_value(field)})
        said = departure(kind, asked, TESTED)
        assert said is not None
        assert said.startswith(f"{field.name}=") or not field.shown
        for value in (TESTED[field.tested],) if field.tested else field.plain:
            assert departure(kind, read(kind, {field.name: value}), TESTED) is None


@pytest.mark.parametrize("field", [one for one in TABLE if one.effect == "harmless"], ids=lambda one: one.name)
def test_a_harmless_field_departs_from_nothing(field: RequestField) -> None:
    for kind in kinds(field):
        value = True if field.form == "truth" else OTHER[field.form]
        assert departure(kind, read(kind, {field.name: value}), TESTED) is None


@pytest.mark.parametrize(
    ("value", "truth"),
    [(1, True), ("true", True), ("YES", True), ("on", True), (0, False), ("false", False), (1.0, True)],
)
def test_truth_values_are_read_as_pydantic_reads_them_for_vllm(caller: Caller, value: Any, truth: bool) -> None:
    reply = caller.chat(stream=value)
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream") is truth
    assert caller.engine.asked[-1][1]["stream"] is truth


@pytest.mark.parametrize("value", ["perhaps", 2, [True], {}])
def test_what_is_no_truth_value_is_refused_by_name(caller: Caller, value: Any) -> None:
    assert error_of(caller.chat(stream=value)).startswith("stream must be true or false")


def test_a_field_that_nobody_knows_is_refused_by_name(caller: Caller) -> None:
    for name in ("guided_choice", "regex", "Temperature", "x" * 500):
        reply = caller.post("/v1/chat/completions", {**CHAT, name: ["left"]})
        assert reply.status_code == 400
        assert error_of(reply).startswith(f"{name[:60]} is not a field of /v1/chat/completions")
    assert caller.chat(guided_choice=None).status_code == 200
    assert caller.engine.asked[-1][1].keys() == {*CHAT, "request_id"}


def test_a_length_beyond_the_most_is_cut_and_said(caller: Caller) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        body = {key: value for key, value in CHAT.items() if key != "max_tokens"} | {name: 4096}
        reply = caller.post("/v1/chat/completions", body)
        assert reply.status_code == 200
        assert caller.engine.asked[-1][1][name] == 100
        assert reply.json()["pddpo"]["clamped"] == f"{name}: 100 in place of 4096"
        assert reply.headers["x-pddpo-clamped"] == f"{name}: 100 in place of 4096"
        assert reply.headers["x-pddpo-certificate"] == f"none: {name}=100 is not what was tested"
    assert "clamped" not in caller.chat(max_tokens=100).json()["pddpo"]
    both = caller.chat(max_completion_tokens=5, max_tokens=10**9)
    assert both.headers["x-pddpo-certificate"].startswith("certified"), "vLLM reads the newer name where both are given"
    assert "max_tokens" not in caller.engine.asked[-1][1]


def test_a_length_of_the_operators_below_the_tested_one_carries_no_certificate(tmp_path: Path) -> None:
    caller = Caller(tmp_path)
    caller.endpoint.most = 3
    plain = {key: value for key, value in CHAT.items() if key != "max_tokens"}
    reply = caller.post("/v1/chat/completions", plain)
    assert caller.engine.asked[-1][1]["max_tokens"] == 3
    assert reply.headers["x-pddpo-certificate"] == "none: max_tokens=3 is not what was tested"
    caller.close()


def test_what_a_header_repeats_is_short_and_ascii(caller: Caller) -> None:
    """Before, a stop that Latin-1 does not have was answered 500, and a long one made a header that clients refuse."""
    for stop in ("好", "x" * 20_000, ["a\nb"]):
        reply = caller.chat(stop=stop)
        said = reply.headers["x-pddpo-certificate"]
        assert reply.status_code == 200
        assert said == reply.json()["pddpo"]["certificate"]
        assert said.startswith("none: stop=")
        assert len(said) < 120
    prompt = caller.post("/v1/completions", {"model": "released", "prompt": "a secret", "max_tokens": 5})
    assert "secret" not in prompt.headers["x-pddpo-certificate"]
    assert prompt.headers["x-pddpo-certificate"].startswith("none: a prompt without the chat template")


def test_messages_reach_engine_source_and_training_as_one_text(caller: Caller) -> None:
    parts = [{"type": "text", "text": "two"}, {"text": "parts", "cache_control": {"type": "ephemeral"}}]
    empty: Any = {"role": "assistant", "content": None, "tool_calls": [], "refusal": None, "audio": None}
    asked = [{"role": "developer", "content": "be brief", "type": "text"}, empty, {"role": "user", "content": parts}]
    reply = caller.chat(messages=asked)
    assert reply.headers["x-pddpo-certificate"].startswith("certified")
    assert caller.engine.asked[-1][1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "two\nparts"},
    ]


@pytest.mark.parametrize(
    "content",
    [
        3,
        True,
        {"text": "a"},
        ["a"],
        [{"type": "image_url", "image_url": {"url": "x"}, "text": "a"}],
        [{"type": "text"}],
    ],
)
def test_what_is_no_text_is_refused(caller: Caller, content: Any) -> None:
    reply = caller.chat(messages=[{"role": "user", "content": content}])
    assert (reply.status_code, "text alone" in error_of(reply)) == (400, True)


@pytest.mark.parametrize("role", ["human", "Human", "", None, 3, {"a": 1}])
def test_a_role_that_no_template_knows_is_refused_by_name(caller: Caller, role: Any) -> None:
    reply = caller.chat(messages=[{"role": "user", "content": "a"}, {"role": role, "content": "b"}])
    assert (reply.status_code, error_of(reply).startswith("messages[1]: the role")) == (400, True)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", '"0.3"', "true"])
def test_what_is_no_number_is_refused(caller: Caller, text: str) -> None:
    body = f'{{"model": "released", "temperature": {text}, "messages": [{{"role": "user", "content": "a"}}]}}'
    headers = {"authorization": f"Bearer {caller.keys['chat']}", "content-type": "application/json"}  # type: ignore[index]
    assert caller.client.post("/v1/chat/completions", content=body, headers=headers).status_code == 400


@pytest.mark.parametrize("place", ["content", "user", "conversation_id", "stop"])
def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands(caller: Caller, place: str) -> None:
    half = "\\ud83d"
    content = half if place == "content" else "a"
    more = "" if place == "content" else f', "{place}": "{half}"'
    body = f'{{"model": "released", "seed": 1, "messages": [{{"role": "user", "content": "{content}"}}]{more}}}'
    headers = {"authorization": f"Bearer {caller.keys['chat']}", "content-type": "application/json"}  # type: ignore[index]
    reply = caller.client.post("/v1/chat/completions", content=body, headers=headers)
    assert (reply.status_code, "surrogate" in error_of(reply)) == (400, True)


def test_control_tokens_are_read_from_the_models_own_file(tmp_path: Path) -> None:
    assert control_tokens(tmp_path) == ()
    tokenizer = gpt_2()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    tokenizer.add_tokens(["plain"])
    tokenizer.save_pretrained(tmp_path)
    assert set(control_tokens(tmp_path)) == set(special_tokens(tokenizer).values())
    assert "<|turn|>" in control_tokens(tmp_path)


def test_the_seed_of_a_completion_draws_its_round_too() -> None:
    calls = [parse("completion", {"prompt": "a", "seed": seed}, None, 10) for seed in (1, 1, 2)]
    assert calls[0].conversation == calls[1].conversation != calls[2].conversation
