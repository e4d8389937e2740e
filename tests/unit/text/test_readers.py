"""Scorers, judges and people get the question once, whatever template the policy has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pddpo_ray.config import EndpointConfig, ScorerConfig, load
from pddpo_ray.data.formats.standard import FORMATS, read_row
from pddpo_ray.data.real_text import prepare_real_text
from pddpo_ray.data.runs import pair_row
from pddpo_ray.parts.questions import pair_question, safety_question
from pddpo_ray.records import HARM, LabelledPair, Message, Pair, Prompt, Response, Verdict
from pddpo_ray.rollout.checkpoint import load_tokenizer
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint
from pddpo_ray.scoring.judges.judge import Judge, JudgeLabeller
from pddpo_ray.scoring.stored_scorers import encoded, load_scorer
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.text.renderer import Renderer
from pddpo_ray.text.templates import for_reading
from pddpo_ray.training.local import store_reference
from tests.support.chat_tokenizers import gpt_2, zephyr
from tests.support.measuring_server import MeasuringServer, measuring_server
from tests.support.small_real_text import SMALL_REAL_TEXT
from tests.support.tiny_language_model import save_policy, word_tokenizer
from tests.unit.scoring.test_loading import beaver
from tests.unit.text.test_renderer import DIALOGUE, WITH_SYSTEM, spoken

QUESTION = "word1 word2"
MARKS = ("USER", "ASSISTANT", "BEGINNING", "Human")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[LabelledPair]:
    """Pairs of a run whose policy is spoken to in the template of safe-rlhf, as in every gpu recipe."""
    folder = tmp_path_factory.mktemp("run")
    rows = [{"prompt": QUESTION, "chosen": f"word{n}", "rejected": f"word{n} word3"} for n in (4, 5)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = save_policy(folder / "model", seed=1)
    given = [f"data.helpful=['{folder / 'rows.jsonl'}']", f"model.reference={model}"]
    config = load("real-text", [*SMALL_REAL_TEXT, *given, "data.template=tokenizer-or-safe-rlhf"])
    prepared = prepare_real_text(config)
    # The policy does see its template, whose words a tokenizer of 84 words does not know.
    assert len(prepared.prompts[0].token_ids) > 1 + len(QUESTION.split())
    return list(prepared.pairs)


def test_people_see_the_question_as_it_was_asked(pairs: list[LabelledPair]) -> None:
    assert {pair_question(item.pair).prompt for item in pairs} == {QUESTION}
    assert safety_question(pairs[0].pair.first).prompt == QUESTION
    assert pair_row(pairs[0])["prompt"] == QUESTION


def test_a_dialogue_out_of_a_run_is_read_back_turn_by_turn() -> None:
    answers = [Response(name, Prompt("p", (1,), for_reading(DIALOGUE), DIALOGUE), (2,), name, 0, 0) for name in "ab"]
    row = pair_row(LabelledPair(Pair("x", *answers), Verdict.FIRST, {HARM: Verdict.SECOND}))
    assert read_row(row, FORMATS["pku"], "helpful").prompt == DIALOGUE


@pytest.fixture
def server() -> Iterator[MeasuringServer]:
    with measuring_server() as running:
        running.chat = lambda body: (200, "[[5, 5]]")
        yield running


def test_a_judge_is_asked_the_question_once(pairs: list[LabelledPair], server: MeasuringServer) -> None:
    judge = Judge(ChatEndpoint(EndpointConfig(endpoint=f"{server.url}/v1", model="judge")))
    labeller = JudgeLabeller(judge, lambda: 1)
    labeller.compare([item.pair for item in pairs], seed=0)
    labeller.safety([pairs[0].pair.first], 1, seed=0)
    asked = [request["messages"][-1]["content"] for request in server.bodies]
    assert len(asked) == 2 * 2 * 2 + 1
    for text in asked:
        assert text.count(f"[question]\n{QUESTION}\n[end of question]") == 1
        assert not any(mark in text for mark in MARKS)


@pytest.mark.parametrize("template", ["safe-rlhf", "{prompt} word9 {answer}", "chat"])
def test_a_scorer_renders_the_question_once_in_its_own_template(
    template: str, pairs: list[LabelledPair], tmp_path: Path
) -> None:
    folder = beaver(tmp_path / "scorer", "cost")
    if template == "chat":
        tokenizer = word_tokenizer()
        tokenizer.chat_template = "{% for m in messages %} word7 {{ m['content'] }}{% endfor %} <eos>"
        tokenizer.save_pretrained(folder)
    scorer = load_scorer(folder, ScorerConfig(template=template))
    answers = [answer for item in pairs for answer in (item.pair.first, item.pair.second)]
    expected = scorer.score_texts([(QUESTION, answer.text.strip()) for answer in answers])
    np.testing.assert_allclose(scorer.score(answers), expected)
    assert len(set(expected.tolist())) > 1


def test_scorers_are_given_dialogues_turn_by_turn() -> None:
    tokenizer = gpt_2()
    text = tokenizer.decode(encoded(tokenizer, "safe-rlhf", DIALOGUE, " Wait.")["input_ids"])
    assert text == (
        "BEGINNING OF CONVERSATION: USER: How do I light the stove? ASSISTANT: Use a long match.</s> "
        "USER: And then? ASSISTANT:Wait.<|endoftext|>"
    )
    tokenizer = zephyr()
    said = [*spoken(WITH_SYSTEM), {"role": "assistant", "content": "Wait."}]
    ids = list(tokenizer.apply_chat_template(said)["input_ids"])
    assert encoded(tokenizer, "chat", WITH_SYSTEM, " Wait.")["input_ids"] == ids
    policy = Renderer(tokenizer, "tokenizer")
    seen = [*policy.prompt_ids(WITH_SYSTEM), *policy.answer_ids(WITH_SYSTEM, "Wait.")]
    assert encoded(tokenizer, "tokens", WITH_SYSTEM, "Wait.")["input_ids"] == seen


def test_a_stored_version_carries_the_template_of_its_run(tmp_path: Path) -> None:
    """Whoever loads it, this package, transformers or vLLM, speaks to it as it was trained."""
    store = ArtifactStore(tmp_path / "store")
    model = save_policy(tmp_path / "model", seed=0)
    own = word_tokenizer()
    own.chat_template = "{{ messages[0]['content'] }} word8"
    own.save_pretrained(model)
    trained = Renderer(own, "hh").template
    reference = store_reference(store, model, trained)
    stored = load_tokenizer(store.folder(reference.path))
    assert stored.chat_template == trained
    asked = (Message("user", QUESTION),)
    assert Renderer(stored, "tokenizer-or-plain").prompt_ids(asked) == Renderer(own, "hh").prompt_ids(asked)
