"""Templates that think, that have names or arguments, and that rewrite answers: trained is what the data says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pddpo_ray.config import load
from pddpo_ray.data.real_text import prepare_real_text
from pddpo_ray.errors import UserError
from pddpo_ray.records import Message
from pddpo_ray.serving.export import renderer_of
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.text.renderer import Renderer
from pddpo_ray.text.templates import OF_VERSION, TEMPLATES, template_named, with_arguments
from pddpo_ray.training.local import store_reference
from tests.support.chat_tokenizers import LAYOUTS, llama_3, qwen_2_5
from tests.unit.text.test_renderer import QUESTION, model_folder, real_text

THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}{% if m.role == 'assistant' %}"
    "{{ '<think>\n\n</think>\n\n' ~ m.content.split('</think>')[-1].strip() }}{% else %}{{ m.content }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
OPENS = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
DROPS = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"
CODE = "    total += x\n"
OFF = {"enable_thinking": False}


def templated(template: Any) -> Any:
    tokenizer = qwen_2_5()
    tokenizer.chat_template = template
    return tokenizer


def trained(renderer: Renderer, tokenizer: Any, answer: str) -> str:
    return str(tokenizer.decode(renderer.answer_ids(QUESTION, answer)))


@pytest.mark.parametrize("template", [THINKS, OPENS, DROPS], ids=["thinks", "opens", "drops"])
@pytest.mark.parametrize("answer", ["No.", "<think>7 times 13</think>No.", CODE])
def test_an_answer_is_trained_as_the_data_has_it_whatever_the_template_makes_of_it(template: str, answer: str) -> None:
    tokenizer = templated(template)
    renderer = Renderer(tokenizer, "tokenizer")
    assert trained(renderer, tokenizer, answer) == f"{answer}<|im_end|>"
    (finding,) = renderer.findings()
    assert finding.startswith("the chat template ")


def test_findings_say_what_the_template_does_and_what_to_set() -> None:
    (thinks,) = Renderer(templated(THINKS), "tokenizer").findings()
    assert "'<think>\\n\\n</think>' in front of a reply" in thinks
    assert "data.template_arguments={enable_thinking: false}" in thinks
    assert "opens a reply with '<think>'" in Renderer(templated(OPENS), "tokenizer").findings()[0]
    assert "drops the words of the assistant" in Renderer(templated(DROPS), "tokenizer").findings()[0]
    for make in LAYOUTS.values():
        for template in ("tokenizer-or-plain", *TEMPLATES):
            assert Renderer(make(), template).findings() == []


def test_a_beginning_that_is_written_twice_is_said() -> None:
    tokenizer = llama_3()
    assert Renderer(tokenizer, "tokenizer").findings() == []
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    (said,) = Renderer(tokenizer, "tokenizer").findings()
    assert "begins a prompt twice" in said


def test_without_thinking_the_prompt_holds_the_empty_thought_and_the_answer_is_its_own() -> None:
    tokenizer = templated(THINKS)
    renderer = Renderer(tokenizer, "tokenizer", arguments=OFF)
    assert renderer.text(QUESTION).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert trained(renderer, tokenizer, "No.") == "No.<|im_end|>"
    assert renderer.findings() == []
    own = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False, **OFF
    )
    assert Renderer(tokenizer, "tokenizer", arguments=OFF).text([Message("user", "?")]) == own


def test_arguments_are_part_of_the_template_and_nobody_can_set_others() -> None:
    tokenizer = templated(THINKS)
    tokenizer.chat_template = template_named("tokenizer", tokenizer, OFF)
    for wanted in ({}, {"enable_thinking": True}, OFF):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False, **wanted
        )
        assert text.endswith("</think>\n\n")
    assert Renderer(tokenizer, OF_VERSION).template == tokenizer.chat_template


@pytest.mark.slow
@settings(max_examples=40)
@example('a "%} \\ {{ b }}')
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9),
                    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=5), some, max_size=3),
                    max_leaves=6))  # fmt: skip
def test_an_argument_of_any_form_reaches_the_template_as_it_is(value: Any) -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    seen: list[Any] = []

    def take(given: Any) -> str:
        seen.append(given)
        return "."

    template = with_arguments("\n{{ take(style) }}", {"style": value})
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(template).render(take=take)
    assert (seen, text) == ([value], "\n."), "nothing else changes, the first line break included"


def test_an_argument_that_the_template_does_not_take_is_refused() -> None:
    with pytest.raises(UserError, match="takes no argument 'enable_thought'"):
        Renderer(templated(THINKS), "tokenizer", arguments={"enable_thought": False})
    with pytest.raises(UserError, match="'messages' is no argument"):
        load("real-text", ["data.template_arguments={messages: []}"])


# --- names -----------------------------------------------------------------------------------------------------------

NAMED = {"search": "search {{ messages[0].content }}", "tools": "tools {{ messages[0].content }}"}


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer-or-hh", "tokenizer:other"])
def test_templates_with_names_and_no_default_are_named(name: str) -> None:
    with pytest.raises(
        UserError, match=r"search, tools and no (default|other): choose one, for example tokenizer:search"
    ):
        Renderer(templated(NAMED), name)


def test_one_of_several_templates_is_chosen() -> None:
    assert template_named("tokenizer:search", templated(NAMED)) == NAMED["search"]
    assert template_named("tokenizer", templated({**NAMED, "default": "d"})) == "d"
    assert template_named("tokenizer-or-hh", templated({**NAMED, "default": "d"})) == "d"
    assert Renderer(templated(NAMED), "chatml").stop_ids
    with pytest.raises(UserError, match="one chat template, and none that is called 'search'"):
        template_named("tokenizer:search", templated("x"))
    with pytest.raises(UserError, match="no chat template 'hh:search'"):
        template_named("hh:search", templated(NAMED))


# --- white space -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", ["llama_3", "qwen_2_5", "gpt_2"])
def test_named_templates_keep_an_answers_indentation(name: str, template: str) -> None:
    tokenizer = LAYOUTS[name]()
    renderer = Renderer(tokenizer, template)
    lead = renderer.answer_text(QUESTION, "x").removesuffix("x")
    assert lead.strip() == ""
    assert renderer.answer_text(QUESTION, CODE) == lead + CODE
    assert tokenizer.decode(renderer.answer_ids(QUESTION, CODE)).startswith(lead + CODE)
    assert renderer.without_lead(QUESTION, lead + CODE) == CODE
    assert renderer.without_lead(QUESTION, "x") == "x"


def test_a_template_that_trims_trains_what_it_writes() -> None:
    tokenizer = llama_3()
    assert tokenizer.decode(Renderer(tokenizer, "tokenizer").answer_ids(QUESTION, CODE)) == "total += x<|eot_id|>"


# --- a run -----------------------------------------------------------------------------------------------------------


def test_a_version_carries_the_arguments_that_its_run_was_trained_with(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", templated(THINKS))
    config = real_text(tmp_path, folder, "data.template=tokenizer", "data.template_arguments={enable_thinking: false}")
    prepared = prepare_real_text(config)
    store = ArtifactStore(tmp_path / "artifacts")
    stored = store.stored(store_reference(store, folder, prepared.chat_template).path)
    renderer = renderer_of(stored)
    assert renderer.text(QUESTION).endswith("</think>\n\n")
    prompt = next(one for one in prepared.prompts if one.messages == QUESTION)
    assert renderer.prompt_ids(QUESTION) == prompt.token_ids


def test_a_version_carries_the_one_template_that_was_chosen(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", templated({"search": THINKS, "tools": OPENS}))
    prepared = prepare_real_text(real_text(tmp_path, folder, "data.template=tokenizer:tools"))
    store = ArtifactStore(tmp_path / "artifacts")
    stored = store.stored(store_reference(store, folder, prepared.chat_template).path)
    assert renderer_of(stored).template == prepared.chat_template == OPENS


def test_a_finding_is_said_before_anything_is_trained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare_real_text(
        real_text(tmp_path, model_folder(tmp_path / "model", templated(THINKS)), "data.template=tokenizer")
    )
    assert "in front of a reply that was given" in caplog.text


def test_what_is_left_out_for_length_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = model_folder(tmp_path / "model", qwen_2_5())
    config = real_text(tmp_path, folder)
    file = tmp_path / "rows.jsonl"
    long = " ".join(["wait"] * 300)
    more = [
        {"prompt": long, "chosen": "Yes.", "rejected": "No."},
        {"prompt": "And then?", "chosen": long, "rejected": "No."},
        {"prompt": "Really so?", "chosen": "Say <|im_end|> now.", "rejected": "No."},
    ]
    rows = [*map(json.loads, file.read_text().splitlines()), *more]
    rows[0] = {"prompt": "How do I light the stove?", "chosen": "Use a long match.", "rejected": "Wait."}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:1] + more))
    prepared = prepare_real_text(config)
    settings = config.data
    assert dict(prepared.left_out) == {
        f"pairs left out: the prompt is longer than data.prompt_tokens={settings.prompt_tokens}": 2,  # type: ignore[union-attr]
        f"pairs left out: an answer is longer than data.answer_tokens={settings.answer_tokens}": 2,  # type: ignore[union-attr]
        "pairs left out: the template refuses the turns, or a text holds its marks": 2,
    }, "the file is read for both dimensions"
    assert "2 pairs left out: the prompt is longer" in caplog.text


DATED = (
    "{% if not date_string is defined %}{% if strftime_now is defined %}"
    "{% set date_string = strftime_now('%d %b %Y') %}{% else %}{% set date_string = 'long ago' %}{% endif %}{% endif %}"
    'Today: {{ date_string }}. {{ strftime_now( "%Y-%m-%d" ) }} {{ messages[0].content }}'
    "{% if messages[1] %}{{ messages[1].content }}{% endif %}"
)


def test_a_template_with_a_date_writes_one_day_wherever_the_version_goes(tmp_path: Path) -> None:
    """Training, a resumed run, engine, endpoint and chat: the template itself carries the day."""
    tokenizer = templated(DATED)
    renderer = Renderer(tokenizer, "tokenizer")
    text = "Today: 26 Jul 2024. 2024-07-26 How do I light the stove?"
    assert renderer.text(QUESTION) == text
    tokenizer.chat_template = renderer.template
    asked = [{"role": "user", "content": QUESTION[0].content}]
    assert tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True) == text
    assert template_named(OF_VERSION, tokenizer) == renderer.template
    own_day = {"date_string": "1 Jan 2026"}
    assert Renderer(templated(DATED), "tokenizer", arguments=own_day).text(QUESTION).startswith("Today: 1 Jan 2026.")
