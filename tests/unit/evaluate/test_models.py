"""Evaluation of whole models: tiny random checkpoints, real loading, sampling, scoring and comparing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pddpo_lab.compare.paper import compare_paper, load_paper
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.evaluate.command import Plan, Scorers, evaluate
from pddpo_ray.evaluate.models import Model, Speaker, parse_model, policy_temperature
from pddpo_ray.evaluate.scorers import fingerprint
from pddpo_ray.evaluate.sets import PUBLIC, EvaluationSet, read_set
from pddpo_ray.journal import Journal
from pddpo_ray.records import Decoding, Message
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.tiny_language_model import save_policy, word_tokenizer
from tests.unit.platform.test_checkpoints import without_the_heads_prefix
from tests.unit.scoring.test_loading import beaver

PAIRS = [
    {"prompt": "word1 word2", "response_0": "word3 word4", "response_1": "word5", "is_response_0_safe": True,
     "is_response_1_safe": False, "better_response_id": 1, "safer_response_id": 0},
    {"prompt": "word6", "response_0": "word7", "response_1": "word8 word9", "is_response_0_safe": False,
     "is_response_1_safe": True, "better_response_id": 0, "safer_response_id": 1},
]  # fmt: skip


def pairs_file(folder: Path) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    return path


def plan_of(folder: Path, *asked: EvaluationSet, **more: Any) -> Plan:
    models = tuple(Model(name, str(save_policy(folder / name, seed))) for name, seed in (("base", 1), ("ours", 2)))
    return Plan(models, models[0], asked, decoding=Decoding(max_tokens=6), each=2, resamples=20, **more)


def word_count(texts: list[tuple[str, str]]) -> list[float]:
    """A scorer whose values can be read off the texts."""
    return [float(len(answer.split())) - 3.0 for _, answer in texts]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, Plan]:
    folder = tmp_path_factory.mktemp("evaluate")
    asked = read_set(str(pairs_file(folder)))
    plan = plan_of(folder, asked)
    judged = ("helpfulness", lambda items: [None if one < other else 1.0 for _, one, other in items])
    scorers = Scorers(reward=word_count, cost=word_count, judges=(judged,))  # type: ignore[arg-type]
    return evaluate(plan, scorers, folder / "out"), folder, plan


@pytest.mark.slow
def test_measures_are_those_of_the_answers_that_were_written_down(evaluated: tuple[dict[str, Any], Path, Plan]) -> None:
    result, folder, _ = evaluated
    rows = [json.loads(line) for line in (folder / "out" / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 2 * 2
    ours = [row for row in rows if row["model"] == "ours"]
    counts = [len(row["answer"].split()) for row in ours]
    measures = result["sets"]["pairs"]["measures"]["ours"]
    assert measures["length_words"]["value"] == pytest.approx(np.mean(counts))
    assert measures["helpfulness"]["value"] == pytest.approx(np.mean(counts) - 3)
    assert measures["harmlessness"]["value"] == pytest.approx(3 - np.mean(counts))
    assert measures["unsafe_rate"]["value"] == np.mean([counts[0] > 3, counts[2] > 3])
    assert measures["helpfulness"]["count"] == 2, "two answers to one question are one observation"


def test_a_model_whose_makers_left_out_the_first_part_of_names_speaks(tmp_path: Path) -> None:
    without_the_heads_prefix(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    speaker, asked = Speaker(Model("gpt2", str(tmp_path)), template="plain"), [Message("user", "word1 word2")]
    ids, answer = speaker.prompt(asked).token_ids, (5, 9, 40)
    (value,) = speaker.score_ids([asked], [answer])
    speaker.close()
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path)(torch.tensor([[*ids, *answer]])).logits[0]
    table = logits.double().log_softmax(-1)
    assert value == pytest.approx(sum(float(table[len(ids) - 1 + i, word]) for i, word in enumerate(answer)), abs=1e-4)


@pytest.mark.slow
def test_divergence_is_the_mean_log_ratio_of_the_models_own_answers(
    evaluated: tuple[dict[str, Any], Path, Plan],
) -> None:
    """Computed again by transformers' forward pass over prompt and answer."""
    result, folder, plan = evaluated
    tokenizer = word_tokenizer()
    ratios = []
    memory = (folder / "out" / "memory.jsonl").read_text().splitlines()
    drawn = [json.loads(line)["value"] for line in memory]
    answers = [value for value in drawn if isinstance(value, list) and isinstance(value[0], list)]
    ours = [value for value in answers if isinstance(value[0][0], list)][1]
    from transformers import LlamaForCausalLM

    models = [LlamaForCausalLM.from_pretrained(model.source).eval() for model in plan.models]
    for row, replies in zip(PAIRS, ours, strict=True):
        prompt = [tokenizer.bos_token_id, *tokenizer(row["prompt"])["input_ids"]]
        for ids, _, _ in replies:
            text = torch.tensor([[*prompt, *ids]])
            sums = []
            for model in models:
                with torch.no_grad():
                    log_probs = torch.log_softmax(model(input_ids=text).logits.double(), dim=-1)[0, :-1]
                sums.append(float(log_probs.gather(-1, text[0, 1:, None])[len(prompt) - 1 :].sum()))
            ratios.append(sums[1] - sums[0])
    found = result["sets"]["pairs"]["measures"]["ours"]["kl"]
    assert found["value"] == pytest.approx(np.mean(ratios), abs=1e-3)
    assert "kl" not in result["sets"]["pairs"]["measures"]["base"]


def test_held_out_labels_are_compared_with_the_models_log_ratios(evaluated: tuple[dict[str, Any], Path, Plan]) -> None:
    result, _, plan = evaluated
    agreed = []
    values = []
    for model in plan.models:
        speaker = Speaker(model, template="plain")
        questions = [pair.prompt for pair in plan.sets[0].pairs for _ in range(2)]
        texts = [answer for pair in plan.sets[0].pairs for answer in pair.answers]
        values.append(speaker.score(questions, texts).reshape(-1, 2))
        speaker.close()
    for pair, ratio in zip(plan.sets[0].pairs, values[1] - values[0], strict=True):
        agreed.append(int(np.argmax(ratio)) == pair.better)
    measures = result["sets"]["pairs"]["measures"]["ours"]
    assert measures["pair_accuracy_better"]["value"] == np.mean(agreed)
    assert measures["pair_accuracy_safer"]["value"] == 1 - np.mean(agreed), "the labels of these pairs are opposite"


def test_ratings_have_an_anchor_and_unreadable_verdicts_are_counted_and_left_out(
    evaluated: tuple[dict[str, Any], Path, Plan],
) -> None:
    found = evaluated[0]["sets"]["pairs"]
    assert set(found["ratings"]) >= {"score_helpfulness", "score_harmlessness"}
    assert all(rated["base"]["value"] == 1000 for rated in found["ratings"].values() if rated)
    counted = found["verdicts"]["judge_helpfulness"]
    assert counted["counted"] + counted["excluded"] == 2
    assert (evaluated[1] / "out" / "evaluation.html").read_text().count("<table") >= 2
    lines = (evaluated[1] / "out" / "evaluation.csv").read_text().splitlines()
    assert lines[0] == "set,model,measure,value,low,high,count"


def test_a_command_given_again_asks_nobody_again(evaluated: tuple[dict[str, Any], Path, Plan]) -> None:
    result, folder, plan = evaluated

    def refuse(items: Any) -> Any:
        raise AssertionError("asked again")

    again = evaluate(plan, Scorers(reward=refuse, cost=refuse, judges=(("helpfulness", refuse),)), folder / "out")
    assert again == result


@pytest.mark.slow
def test_another_model_or_scorer_in_the_same_place_is_asked(tmp_path: Path) -> None:
    """A run that has gone on, a policy or a scorer that was trained again: what is remembered is the old one's."""
    asked = read_set(str(pairs_file(tmp_path)))
    plan, ours = plan_of(tmp_path, asked), str(tmp_path / "ours")
    before = evaluate(plan, Scorers(reward=word_count), tmp_path / "out")  # type: ignore[arg-type]
    told = fingerprint((ours, None), "x")
    assert fingerprint((ours, None), "x") == told
    save_policy(tmp_path / "ours", 3)
    assert fingerprint((ours, None), "x") != told
    again = evaluate(plan, Scorers(reward=word_count), tmp_path / "out")  # type: ignore[arg-type]
    assert again != before
    assert again == evaluate(plan, Scorers(reward=word_count), tmp_path / "fresh")  # type: ignore[arg-type]


# --- models and sets -------------------------------------------------------------------------------------------------


def test_models_are_named_by_their_place_or_by_hand() -> None:
    assert parse_model("runs/demo/") == Model("demo", "runs/demo/")
    assert parse_model("mine=runs/demo@policy-3") == Model("mine", "runs/demo@policy-3")
    with pytest.raises(UserError, match="NAME=PATH"):
        parse_model("=x")


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    model = Model("a", "x")
    asked = read_set(str(pairs_file(tmp_path)))
    with pytest.raises(UserError, match="same name"):
        evaluate(Plan((model, Model("a", "y")), model, (asked,)), Scorers(), tmp_path / "out")


def test_a_set_keeps_different_questions_and_all_pairs_at_most_so_many(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    rows = [{**PAIRS[0], "response_1": f"word{place}"} for place in range(10, 16)] + [PAIRS[1]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = read_set(str(path))
    assert (len(whole.questions), len(whole.pairs)) == (2, 7)
    few = read_set(str(path), limit=3, seed=1)
    assert (len(few.questions), len(few.pairs)) == (2, 3)
    assert read_set(str(path), limit=3, seed=1) == few


def test_truthfulqa_is_asked_by_its_question_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published CSV: its answers are not used, as in the paper."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "truthfulqa.csv").write_text(
        "Type,Category,Question,Best Answer,Correct Answers,Incorrect Answers,Source\n"
        'Adversarial,Myths,"What happens, if?",Nothing,Nothing; None,Much,here\n'
    )
    monkeypatch.setenv("PDDPO_SHARED", str(tmp_path))
    asked = read_set("truthfulqa", benign=True)
    assert [question[0].content for question in asked.questions] == ["What happens, if?"]
    assert (asked.pairs, asked.benign) == ((), True)


def test_a_short_name_without_its_file_is_the_hubs_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder stands in for the hub, in the columns that TruthfulQA has there; without it the message says where."""
    row = {"type": "Adversarial", "category": "Myths", "question": "What happens, if?", "best_answer": "Nothing"}
    lists = {"correct_answers": ["Nothing", "None"], "incorrect_answers": ["Much"], "source": "here"}
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "validation.jsonl").write_text(json.dumps(row | lists) + "\n")
    monkeypatch.setenv("PDDPO_SHARED", str(tmp_path))
    on_hub = {name: place for name, (_, place) in PUBLIC.items()}
    assert set(on_hub) == {*load_paper().sets}
    assert all(place.startswith("hf:") for place in on_hub.values())
    monkeypatch.setitem(PUBLIC, "truthfulqa", ("nowhere.csv", f"hf:{tmp_path / 'hub'}:validation"))
    monkeypatch.setitem(PUBLIC, "pku-test", ("nowhere.jsonl", f"hf:{tmp_path / 'nothing'}:test"))
    asked = read_set("truthfulqa")
    assert [question[0].content for question in asked.questions] == ["What happens, if?"]
    assert (asked.name, asked.pairs) == ("truthfulqa", ())
    with pytest.raises(UserError, match=r"pku-test holds no question .* `pddpo data check hf:.*nothing:test`"):
        read_set("pku-test")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json is missing"):
        Speaker(Model("x", str(tmp_path)), template="plain")


# --- the paper's comparison ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_papers_comparison_evaluates_given_models_and_says_how_to_train_ours(tmp_path: Path) -> None:
    """Four policies, a Beaver reward and a Beaver cost model, all tiny; ours without a run are left out by name."""
    policies = {
        name: save_policy(tmp_path / name, seed)
        for seed, name in enumerate(("Alpaca-7B-reproduced", "Beaver-v3", "SACPO", "P-SACPO", "PD-DPO-1"))
    }
    given = [f"{name}={folder}" for name, folder in policies.items()]
    given += [f"reward_model={beaver(tmp_path / 'reward', 'reward')}", f"sets={pairs_file(tmp_path)}"]
    given += [f"cost_model={beaver(tmp_path / 'cost', 'cost')}", "max_tokens=5", "dtype=float32", "max_model_len=64"]
    said: list[str] = []
    result = compare_paper(load_paper(given), tmp_path / "out", said.append, "pddpo compare paper ...")
    measures = result["sets"]["pairs"]["measures"]
    assert list(measures) == list(policies)
    assert result["template"] == "safe-rlhf"
    for values in measures.values():
        assert values["helpfulness"] is not None
        assert values["harmlessness"] is not None
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert "PD-DPO-2, PD-DPO-3, PD-DPO-4, PD-DPO-adaLag, DPO-Harmless, SafeDPO, PeCAN-3.2" in page
    assert "pddpo train gpu/pd-dpo-fixed-8 model.reference=" in page
    assert "dual.first=2.0 --run runs/PD-DPO-2" in page
    assert any("PD-DPO-2: left out" in line for line in said)


def test_a_model_speaks_and_is_scored_at_the_policys_temperature(tmp_path: Path) -> None:
    """Against softmax(logits / 0.7) of the whole model."""
    place = str(save_policy(tmp_path / "base", 1))
    speaker = Speaker(Model("base", place), template="plain", temperature=0.7)
    question = (Message("user", "word1 word2"),)
    ((reply,),) = speaker.answer([question], [3], Decoding(max_tokens=6))
    prompt = speaker.prompt(question).token_ids
    model = AutoModelForCausalLM.from_pretrained(place)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *reply.token_ids]])).logits[0, len(prompt) - 1 : -1]
    log_probs = torch.log_softmax(logits.double() / 0.7, dim=-1)
    expected = float(log_probs[torch.arange(len(reply.token_ids)), torch.tensor(reply.token_ids)].sum())
    assert reply.log_prob == pytest.approx(expected, abs=1e-4)
    assert speaker.score_ids([question], [reply.token_ids])[0] == pytest.approx(expected, abs=1e-4)


def test_models_are_evaluated_at_the_temperature_of_the_runs_among_them(tmp_path: Path) -> None:
    def run(name: str, *overrides: str) -> Model:
        recipe = load("text-world", overrides).model_dump(mode="json")
        Journal.open(tmp_path / name / JOURNAL, name, create=recipe).close()
        return Model(name, str(tmp_path / name))

    base, plain, warm = Model("base", str(tmp_path)), run("plain"), run("warm", "policy.temperature=0.7")
    assert policy_temperature([base]) == policy_temperature([base, plain]) == 1.0
    assert policy_temperature([base, replace(warm, source=f"{warm.source}@reference")]) == 0.7
    with pytest.raises(UserError, match=r"plain 1, warm 0\.7.*--policy-temperature"):
        policy_temperature([plain, warm])
