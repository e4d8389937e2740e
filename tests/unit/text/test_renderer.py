"""One text layer: what is trained, what the engine sees and what the model's own chat template writes are the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pddpo_ray.config import Config, load
from pddpo_ray.data.real_text import prepare_real_text
from pddpo_ray.errors import UserError
from pddpo_ray.evaluate.command import Plan
from pddpo_ray.evaluate.models import Model, Speaker
from pddpo_ray.journal import Journal, read_journal
from pddpo_ray.records import Decoding, Message, Prompt
from pddpo_ray.text.renderer import Renderer, stop_ids
from pddpo_ray.text.templates import TEMPLATES, for_reading, template_named
from tests.support.chat_tokenizers import LAYOUTS, gemma, gpt_2, llama_3, mistral, qwen_2_5, smollm2, zephyr
from tests.support.small_real_text import SMALL_REAL_TEXT
from tests.support.tiers import in_full

QUESTION = (Message("user", "How do I light the stove?"),)
DIALOGUE = (*QUESTION, Message("assistant", "Use a long match."), Message("user", "And then?"))
WITH_SYSTEM = (Message("system", "You are terse."), *QUESTION)
ANSWER = "Wait a minute, please."
ENDS = {
    "llama_3": "<|eot_id|>",
    "qwen_2_5": "<|im_end|>",
    "gemma": "<end_of_turn>",
    "mistral": "</s>",
    "zephyr": "</s>",
    "gpt_2": "<|endoftext|>",
    "no_bos": "<eos>",
    "smollm2": "<|im_end|>",
}
BEGINS = {"llama_3": "<|begin_of_text|>", "gemma": "<bos>", "mistral": "<s>", "gpt_2": "<|endoftext|>"}
"""Beginning of sequence, in the layouts whose template writes one."""
NAMES = [*LAYOUTS, *in_full("smollm2")]


@cache
def tokenizer_of(name: str) -> Any:
    return smollm2() if name == "smollm2" else LAYOUTS[name]()


def spoken(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def of_library(tokenizer: Any, template: str, messages: Sequence[Message], *, open_: bool) -> list[int]:
    """The ids by transformers itself."""
    made = tokenizer.apply_chat_template(
        spoken(messages), chat_template=template, tokenize=True, add_generation_prompt=open_
    )
    return list(made["input_ids"])


def model_folder(folder: Path, tokenizer: Any, *, ends: Any = None, generation_ends: Any = None) -> Path:
    """A tiny model with this tokenizer, and what its configuration files say about the end of an answer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=256, eos_token_id=ends, tie_word_embeddings=False, initializer_range=0.25,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_ends}))
    return folder


# --- parity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [ANSWER, f"    {ANSWER}\n"], ids=["bare", "with white space"])
@pytest.mark.parametrize("name", NAMES)
def test_trained_ids_are_those_of_the_whole_conversation_in_the_models_template(name: str, given: str) -> None:
    tokenizer = tokenizer_of(name)
    renderer = Renderer(tokenizer, "tokenizer-or-plain")
    for asked in (QUESTION, DIALOGUE):
        prompt, answer = renderer.prompt_ids(asked), renderer.answer_ids(asked, given)
        assert list(prompt) == of_library(tokenizer, renderer.template, asked, open_=True)
        whole = of_library(tokenizer, renderer.template, [*asked, Message("assistant", given)], open_=False)
        trained = [*prompt, *answer]
        if whole[: len(prompt)] == list(prompt):
            assert trained == whole[: len(trained)]
        # else a token would reach from the prompt into the answer
        assert tokenizer.decode(whole).startswith(tokenizer.decode(trained))
        assert tokenizer.decode(whole[len(trained) :]).strip() == "", "only white space comes after the end of a turn"
        assert tokenizer.convert_ids_to_tokens(answer[-1]) == ENDS[name]
        assert answer[-1] in renderer.stop_ids
        assert not set(answer[:-1]) & set(renderer.stop_ids)
        assert tokenizer.decode(answer, skip_special_tokens=True).strip() == ANSWER


@pytest.mark.parametrize("name", NAMES)
def test_the_beginning_of_sequence_is_written_once_or_not_at_all(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for template in ("tokenizer-or-plain", *(TEMPLATES if tokenizer.bos_token else ())):
        text = Renderer(tokenizer, template).text(QUESTION)
        ids = Renderer(tokenizer, template).prompt_ids(QUESTION)
        begin = BEGINS.get(name) if template == "tokenizer-or-plain" else tokenizer.bos_token
        if begin is not None:
            assert (text.count(begin), tokenizer.convert_ids_to_tokens(ids[0])) == (1, begin) or name == "smollm2"
            assert ids[1:2] != ids[:1]


@pytest.mark.parametrize("name", NAMES)
def test_a_text_for_programs_that_tokenise_themselves_gives_them_one_beginning(name: str) -> None:
    tokenizer = tokenizer_of(name)
    renderer = Renderer(tokenizer, "tokenizer-or-plain")
    ids = tokenizer(renderer.plain_prompt(QUESTION))["input_ids"]
    if name == "smollm2":  # whose beginning of sequence is also the mark of every turn
        assert ids == list(renderer.prompt_ids(QUESTION))
    else:
        adds = tokenizer("x")["input_ids"][0] == tokenizer.bos_token_id
        assert ids.count(tokenizer.bos_token_id) == int(adds)


@pytest.mark.slow
@pytest.mark.parametrize("name", [next(iter(LAYOUTS)), *in_full(*list(LAYOUTS)[1:])])
def test_the_engine_is_given_the_prompt_and_ends_where_the_answer_ends(name: str, tmp_path: Path) -> None:
    """A real engine on a real model: its prompt is the trained one, and it stops where the trained answers end."""
    tokenizer = tokenizer_of(name)
    folder = model_folder(tmp_path / "model", tokenizer)
    speaker = Speaker(Model("model", str(folder)), template=Plan.template)  # as `pddpo evaluate` asks
    renderer = Renderer(tokenizer, "tokenizer-or-plain", folder)
    assert speaker.prompt(DIALOGUE).token_ids == renderer.prompt_ids(DIALOGUE)
    assert speaker.prompt(DIALOGUE).messages == DIALOGUE
    [drawn] = speaker.answer([QUESTION], [3], Decoding(max_tokens=200), each=8)
    ended = [reply.token_ids for reply in drawn if len(reply.token_ids) < 200]
    assert ended, "a random model comes upon its end within 200 tokens in at least one of 8 answers"
    for ids in ended:
        assert ids[-1] in renderer.stop_ids
        assert not set(ids[:-1]) & set(renderer.stop_ids)
    scored = speaker.score([QUESTION], [ANSWER])[0]
    assert scored == pytest.approx(speaker.score_ids([QUESTION], [renderer.answer_ids(QUESTION, ANSWER)])[0])
    speaker.close()


# --- stop tokens, templates and what cannot be rendered --------------------------------------------------------------


def test_ends_are_those_of_tokenizer_configuration_generation_and_template(tmp_path: Path) -> None:
    tokenizer = qwen_2_5()
    tokenizer.chat_template = None
    other = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    own = tokenizer.eos_token_id
    assert stop_ids(tokenizer) == (own,)
    assert set(stop_ids(tokenizer, model_folder(tmp_path / "a", tokenizer, generation_ends=[own, other]))) == {
        own,
        other,
    }
    assert set(stop_ids(tokenizer, model_folder(tmp_path / "b", tokenizer, ends=[7, 9], generation_ends=11))) == {
        own, 7, 9, 11,
    }  # fmt: skip
    llama = llama_3()
    assert llama.convert_tokens_to_ids("<|eot_id|>") in stop_ids(llama), (
        "its template says so, its end of text does not"
    )


def test_tokens_that_the_model_does_not_have_end_nothing(tmp_path: Path) -> None:
    tokenizer = SimpleNamespace(eos_token_id=512, chat_template=None)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 512, "eos_token_id": 7}))
    assert stop_ids(tokenizer, tmp_path) == (7,)
    assert stop_ids(tokenizer) == (512,)


def test_an_engine_stops_at_a_token_that_stands_in_generation_config_alone(tmp_path: Path) -> None:
    tokenizer = gpt_2()
    every = list(range(len(tokenizer)))
    folder = model_folder(tmp_path / "model", tokenizer, generation_ends=every)
    speaker = Speaker(Model("model", str(folder)), template="plain")
    [[reply]] = speaker.answer([QUESTION], [0], Decoding(max_tokens=20))
    speaker.close()
    assert len(reply.token_ids) == 1


def test_transcripts_keep_the_space_and_chat_templates_none() -> None:
    tokenizer = qwen_2_5()
    for template, lead in (("hh", " "), ("plain", " "), ("safe-rlhf", " "), ("alpaca", ""), ("chatml", "")):
        renderer = Renderer(tokenizer, template)
        assert renderer.answer_text(DIALOGUE, ANSWER) == lead + ANSWER
        assert renderer.answer_text(DIALOGUE, f"  {ANSWER} ") == f"{lead}  {ANSWER} "
        assert tokenizer.decode(renderer.answer_ids(DIALOGUE, ANSWER)) == f"{lead}{ANSWER}<|im_end|>"
    assert Renderer(tokenizer, "tokenizer").answer_text(QUESTION, ANSWER) == ANSWER


def test_a_template_that_opens_the_reply_with_a_thought_still_gets_answers(tmp_path: Path) -> None:
    tokenizer = qwen_2_5()
    tokenizer.chat_template = tokenizer.chat_template.replace("assistant\n' }}", "assistant\n<think>\n' }}")
    renderer = Renderer(tokenizer, "tokenizer")
    assert renderer.text(QUESTION).endswith("<think>\n")
    assert tokenizer.decode(renderer.answer_ids(QUESTION, ANSWER)) == f"{ANSWER}<|im_end|>"


def test_a_token_never_reaches_from_the_prompt_into_the_answer() -> None:
    """GPT-2 splits two lines and a word otherwise than the lines alone: trained is what follows the engine's prompt."""
    tokenizer = gpt_2()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}:\n\n{{ m.content }}{% endfor %}" + (
        "{% if add_generation_prompt %}assistant:\n\n{% endif %}"
    )
    renderer = Renderer(tokenizer, "tokenizer")
    assert tokenizer.decode(renderer.prompt_ids(QUESTION)).endswith("assistant:\n\n")
    assert tokenizer.decode(renderer.answer_ids(QUESTION, ANSWER)) == f"{ANSWER}<|endoftext|>"


@pytest.mark.parametrize("make", [gemma, mistral])
def test_a_template_without_system_turns_is_refused_where_the_data_has_them(make: Any) -> None:
    renderer = Renderer(make(), "tokenizer")
    renderer.demand_system_turns([QUESTION, DIALOGUE])
    with pytest.raises(UserError, match="system turns") as refused:
        renderer.demand_system_turns([QUESTION, WITH_SYSTEM])
    assert "\n" not in str(refused.value)
    Renderer(make(), "hh").demand_system_turns([WITH_SYSTEM])


def test_a_template_that_drops_system_turns_without_a_word_is_refused() -> None:
    tokenizer = qwen_2_5()
    tokenizer.chat_template = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(UserError, match="drops or refuses"):
        Renderer(tokenizer, "tokenizer").demand_system_turns([WITH_SYSTEM])
    for make in (llama_3, qwen_2_5, zephyr):
        Renderer(make(), "tokenizer").demand_system_turns([WITH_SYSTEM])


def test_the_models_own_template_comes_first_where_it_is_wanted_and_there() -> None:
    own, none = qwen_2_5(), gpt_2()
    assert template_named("tokenizer-or-hh", own) == template_named("tokenizer", own) == own.chat_template
    assert template_named("tokenizer-or-hh", none) == template_named("hh", own) == TEMPLATES["hh"]
    assert template_named("tokenizer-or-hh") == TEMPLATES["hh"]
    with pytest.raises(UserError, match="this model has no chat template"):
        template_named("tokenizer", none)
    with pytest.raises(UserError, match="no chat template 'own'"):
        template_named("own", own)


# --- a run -----------------------------------------------------------------------------------------------------------


def real_text(tmp_path: Path, folder: Path, *overrides: str) -> Config:
    rows = [
        {"prompt": spoken(asked), "chosen": [{"role": "assistant", "content": f"{ANSWER} {number}"}],
         "rejected": [{"role": "assistant", "content": f"And then? {number}"}]}
        for number, asked in enumerate((QUESTION, DIALOGUE))
    ]  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"data.helpful=['{file}']", f"data.harmless=['{file}']", f"model.reference={folder}"]
    return load("real-text", [*SMALL_REAL_TEXT, *given, f"data.cache={tmp_path / 'cache'}", *overrides])


def test_a_runs_pairs_are_what_the_model_would_write(tmp_path: Path) -> None:
    tokenizer = llama_3()
    folder = model_folder(tmp_path / "model", tokenizer)
    prepared = prepare_real_text(real_text(tmp_path, folder))
    assert prepared.chat_template == tokenizer.chat_template
    texts = {item.pair.prompt.text: item.pair for item in prepared.pairs}
    pair = texts[QUESTION[0].content]
    said = tokenizer.apply_chat_template([*spoken(QUESTION), {"role": "assistant", "content": f"{ANSWER} 0"}])
    assert [*pair.prompt.token_ids, *pair.first.token_ids] == list(said["input_ids"])
    assert pair.prompt.messages == QUESTION
    assert pair.first.text == f"{ANSWER} 0"
    assert texts[for_reading(DIALOGUE)].prompt.messages == DIALOGUE


def test_what_cannot_be_rendered_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "bare", gpt_2())
    with pytest.raises(UserError, match="this model has no chat template"):
        prepare_real_text(real_text(tmp_path, folder, "data.template=tokenizer"))
    strict = model_folder(tmp_path / "strict", gemma())
    asked = tmp_path / "system.jsonl"
    asked.write_text(json.dumps({"messages": spoken(WITH_SYSTEM)}) + "\n")
    with pytest.raises(UserError, match="system turns"):
        prepare_real_text(real_text(tmp_path, strict, f"data.prompts=['{asked}']"))
    assert not (tmp_path / "cache").exists()


def test_rows_with_marks_or_refused_turns_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", gemma())
    config = real_text(tmp_path, folder)
    file = tmp_path / "rows.jsonl"
    bad = {"prompt": [{"role": "user", "content": "Say <end_of_turn> twice"}], "chosen": [{"role": "assistant",
           "content": "x"}], "rejected": [{"role": "assistant", "content": "y"}]}  # fmt: skip
    file.write_text(file.read_text() + json.dumps(bad) + "\n")
    prepared = prepare_real_text(config)
    assert {prompt.messages for prompt in prepared.prompts} == {QUESTION, DIALOGUE}
    file.write_text(json.dumps(bad) + "\n")
    with pytest.raises(UserError, match="1 prompts or answers are left out"):
        prepare_real_text(config)


def test_messages_are_kept_in_the_journal(tmp_path: Path) -> None:
    prompts = [Prompt("a", (1, 2), "text", DIALOGUE), Prompt("b", (3,), "only text")]
    with Journal.open(tmp_path / "journal.sqlite", "run", create={"recipe": {}}) as journal:
        journal.add_prompts(prompts)
    with read_journal(tmp_path / "journal.sqlite", "run") as journal:
        assert journal.prompts() == {prompt.id: prompt for prompt in prompts}
    assert prompts[1].turns == (Message("user", "only text"),)
