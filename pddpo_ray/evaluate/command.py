"""`pddpo evaluate`: answers of several models to the same questions, scored, judged and compared.

One model is in memory at a time. Answers and scores are kept in the output folder, so a repeated command, or one with
another model added, computes only what is new.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.evaluate import measure
from pddpo_ray.evaluate.models import Model, Speaker, model_folder, model_now
from pddpo_ray.evaluate.page import render
from pddpo_ray.evaluate.ratings import Comparison, Rating, comparisons_by_score, iterative_elo, ratings
from pddpo_ray.evaluate.sets import EvaluationSet
from pddpo_ray.records import Decoding, Message
from pddpo_ray.rollout.checkpoint import load_tokenizer
from pddpo_ray.storage.recall import Memory
from pddpo_ray.storage.whole_files import write_json, write_whole
from pddpo_ray.text.templates import as_dicts, for_reading
from pddpo_ray.theory.seeds import seed_of

Tell = Callable[[str], None]
Judge = Callable[[Sequence[tuple[str, str, str]]], Sequence[float | None]]
"""(question, first answer, second answer)s -> 1 the first is better, 0 the second, 0.5 a draw; None: no verdict."""
Score = Callable[[Sequence[tuple[Sequence[Message], str]]], Sequence[float]]
"""Scores of (turns of the question, answer)."""
RESULT = "evaluation.json"
TABLE = "evaluation.csv"
PAGE = "evaluation.html"
ANSWERS = "answers.jsonl"


@dataclass(frozen=True)
class Plan:
    """What is asked of every model, and how."""

    models: tuple[Model, ...]
    reference: Model
    """Anchor of the ratings, and what divergence is measured from; one of `models` or another."""
    sets: tuple[EvaluationSet, ...]
    template: str = "tokenizer-or-plain"
    decoding: Decoding = field(default_factory=lambda: Decoding(max_tokens=512))
    policy_temperature: float = 1.0
    """Of every model: answers and log-probabilities are those of its logits divided by it."""
    each: int = 1
    """Answers per question."""
    seed: int = 0
    engine: Literal["transformers", "vllm"] = "transformers"
    dtype: str = "float32"
    max_model_len: int = 2048
    elo: Literal["likelihood", "iterative"] = "likelihood"
    resamples: int = 200

    @property
    def numbers(self) -> tuple[str, float]:
        """What log-probabilities depend on besides model and text."""
        return self.dtype, self.policy_temperature


@dataclass(frozen=True)
class Scorers:
    """Scorers and judges of an evaluation, each optional. The fingerprint is part of the keys of stored results."""

    reward: Score | None = None
    cost: Score | None = None
    judges: tuple[tuple[str, Judge], ...] = ()
    """(what is judged, e.g. helpfulness; the judge)"""
    fingerprint: str = ""


def evaluate(
    plan: Plan,
    scorers: Scorers,
    out: Path,
    tell: Tell = lambda line: None,
    *,
    title: str = "pddpo evaluate",
    commands: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Runs the plan, writes evaluation.json, .csv, .html and answers.jsonl into `out`, and returns the first."""
    out.mkdir(parents=True, exist_ok=True)
    memory = Memory(out / "memory.jsonl")
    all_models = [*plan.models, *([plan.reference] if plan.reference not in plan.models else [])]
    if len({model.name for model in all_models}) != len(all_models):
        raise UserError("two models have the same name: give them names of their own, NAME=PATH")
    outputs = {model.name: _speak(plan, model, memory, tell) for model in all_models}
    reference = _reference_scores(plan, outputs, memory, tell)
    sets = {eval_set.name: _of_set(plan, eval_set, outputs, reference, scorers, memory, tell) for eval_set in plan.sets}
    result = {"reference": plan.reference.name, "seed": plan.seed, "each": plan.each,
              "decoding": asdict(plan.decoding), "policy_temperature": plan.policy_temperature,
              "template": plan.template,
              "models": {model.name: model.source for model in all_models}, "sets": sets}  # fmt: skip
    write_json(out / RESULT, result)
    write_whole(out / TABLE, table(result))
    write_whole(out / PAGE, render(result, title, commands, notes))
    _write_answers(plan, outputs, out / ANSWERS)
    return result


# --- answers and log-probabilities ---------------------------------------------------------------------------------


def _speak(plan: Plan, model: Model, memory: Memory, tell: Tell) -> dict[str, Any]:
    """A model's answers to every set, and its log-probabilities of the sets' pairs. One model load, at most."""
    speakers: list[Speaker] = []

    def speaker() -> Speaker:
        if not speakers:
            tell(f"{model.name}: loading {model.source}")
            speakers.append(_speaker(plan, model))
            speakers[0].renderer.demand_system_turns(turns for eval_set in plan.sets for turns in eval_set.questions)
        return speakers[0]

    outputs: dict[str, Any] = {}
    now = model_now(model.source)
    for eval_set in plan.sets:
        key = ["answers", now, plan.template, asdict(plan.decoding), plan.each, plan.seed, *plan.numbers]
        texts = [as_dicts(question) for question in eval_set.questions]
        both = [[as_dicts(pair.prompt), *pair.answers] for pair in eval_set.pairs]

        def draw(eval_set: EvaluationSet = eval_set) -> list[list[list[Any]]]:
            tell(f"{model.name}: answering {len(eval_set.questions)} questions of {eval_set.name}")
            seeds = [seed_of(plan.seed, "evaluate", eval_set.name, index) for index in range(len(eval_set.questions))]
            drawn = speaker().answer(eval_set.questions, seeds, plan.decoding, plan.each)
            return [[[list(reply.token_ids), reply.text, reply.log_prob] for reply in replies] for replies in drawn]

        def pairs(eval_set: EvaluationSet = eval_set) -> list[list[float]]:
            return _pair_scores(speaker(), eval_set)

        outputs[eval_set.name] = {
            "answers": memory.recall([*key, texts], draw),
            "pairs": memory.recall(["pairs", now, plan.template, *plan.numbers, both], pairs) if eval_set.pairs else [],
        }
    for open_speaker in speakers:
        open_speaker.close()
    return outputs


def _reference_scores(
    plan: Plan, outputs: dict[str, dict[str, Any]], memory: Memory, tell: Tell
) -> dict[str, dict[str, list[list[float]] | None]]:
    """log pi_ref of every model's answers. None for a model with another vocabulary."""
    speaker: Speaker | None = None
    now = model_now(plan.reference.source)
    scores: dict[str, dict[str, list[list[float]] | None]] = {}
    for model in plan.models:
        if model == plan.reference:
            continue
        scores[model.name] = {}
        for eval_set in plan.sets:
            answers = outputs[model.name][eval_set.name]["answers"]

            def score(eval_set: EvaluationSet = eval_set, answers: Any = answers, model: Model = model) -> Any:
                nonlocal speaker
                if speaker is None:
                    tell(f"{plan.reference.name}: scoring the others' answers")
                    speaker = _speaker(plan, plan.reference)
                if not _same_words(model, speaker):
                    return None
                questions = [question for question in eval_set.questions for _ in range(plan.each)]
                ids = [tuple(reply[0]) for replies in answers for reply in replies]
                values = speaker.score_ids(questions, ids)
                return np.reshape(values, (len(eval_set.questions), plan.each)).tolist()

            key = ["reference", now, model_now(model.source), plan.template, *plan.numbers, answers]
            scores[model.name][eval_set.name] = memory.recall(key, score)
    if speaker is not None:
        speaker.close()
    return scores


def _same_words(model: Model, reference: Speaker) -> bool:
    """Whether a model and the reference have the same vocabulary."""
    vocabulary: dict[str, int] = load_tokenizer(model_folder(model.source)).get_vocab()
    return vocabulary == reference.vocabulary


def _speaker(plan: Plan, model: Model) -> Speaker:
    return Speaker(
        model,
        template=plan.template,
        engine=plan.engine,
        dtype=plan.dtype,
        max_model_len=plan.max_model_len,
        temperature=plan.policy_temperature,
    )


def _pair_scores(speaker: Speaker, eval_set: EvaluationSet) -> list[list[float]]:
    """log-probabilities of both answers of every pair. -> [n][2]"""
    questions = [pair.prompt for pair in eval_set.pairs for _ in pair.answers]
    values = speaker.score(questions, [answer for pair in eval_set.pairs for answer in pair.answers])
    rows: list[list[float]] = np.reshape(values, (-1, 2)).tolist()
    return rows


# --- measures ------------------------------------------------------------------------------------------------------


def _of_set(
    plan: Plan,
    eval_set: EvaluationSet,
    outputs: dict[str, dict[str, Any]],
    reference: dict[str, dict[str, list[list[float]] | None]],
    scorers: Scorers,
    memory: Memory,
    tell: Tell,
) -> dict[str, Any]:
    """Measures of every model on one set, ratings included."""
    measures: dict[str, dict[str, Any]] = {}
    texts = {name: _texts(answers[eval_set.name]["answers"]) for name, answers in outputs.items()}
    scores = _scores(eval_set, texts, scorers, memory, tell)
    anchor_pairs = np.array(outputs[plan.reference.name][eval_set.name]["pairs"])
    for name, answers in outputs.items():
        replies = answers[eval_set.name]["answers"]
        counts = [[len(reply[0]) for reply in row] for row in replies]
        measures[name] = measure.of_texts(eval_set, texts[name], counts, plan.decoding.max_tokens)
        if "reward" in scores:
            measures[name] |= measure.of_rewards(scores["reward"][name])
        if "cost" in scores:
            measures[name] |= measure.of_costs(scores["cost"][name])
        if name == plan.reference.name:
            continue
        reference_scores = reference[name][eval_set.name]
        if reference_scores is not None:
            measures[name] |= measure.of_divergence([[reply[2] for reply in row] for row in replies], reference_scores)
        if eval_set.pairs:
            model_pairs = np.array(answers[eval_set.name]["pairs"])
            measures[name] |= measure.of_pairs(eval_set.pairs, model_pairs, anchor_pairs)
    verdicts = _verdicts(eval_set, texts, scores, scorers, memory, tell)
    return {
        "questions": len(eval_set.questions),
        "pairs": len(eval_set.pairs),
        "benign": eval_set.benign,
        "measures": measures,
        "ratings": {
            name: {model: asdict(rating) for model, rating in _ratings(plan, list(outputs), items).items()}
            for name, (items, _) in verdicts.items()
        },
        "verdicts": {name: {"counted": len(items), "excluded": out} for name, (items, out) in verdicts.items()},
    }


def _scores(
    eval_set: EvaluationSet, texts: dict[str, list[list[str]]], scorers: Scorers, memory: Memory, tell: Tell
) -> dict[str, dict[str, list[list[float]]]]:
    """Scores of all answers: {reward, cost: {model: per question}}"""
    scores: dict[str, dict[str, list[list[float]]]] = {}
    for kind, scorer in (("reward", scorers.reward), ("cost", scorers.cost)):
        if scorer is None:
            continue
        scores[kind] = {}
        for name, replies in texts.items():
            inputs = [(turns, text) for turns, row in zip(eval_set.questions, replies, strict=True) for text in row]

            def score(inputs: Any = inputs, scorer: Score = scorer) -> list[float]:
                return [float(value) for value in scorer(inputs)]

            tell(f"{name}: {kind} of {len(inputs)} answers of {eval_set.name}")
            texts_asked = [[as_dicts(question), text] for question, text in inputs]
            values = iter(memory.recall([kind, scorers.fingerprint, texts_asked], score))
            scores[kind][name] = [[next(values) for _ in row] for row in replies]
    return scores


def _verdicts(
    eval_set: EvaluationSet,
    texts: dict[str, list[list[str]]],
    scores: dict[str, dict[str, list[list[float]]]],
    scorers: Scorers,
    memory: Memory,
    tell: Tell,
) -> dict[str, tuple[list[Comparison], int]]:
    """Comparisons of every two models' first answers, and how many verdicts had to be left out.

    Each judge gives one set of them, and each scorer another: the answer with the better score wins.
    """
    prompts = [f"{index}" for index in range(len(eval_set.questions))]
    verdicts: dict[str, tuple[list[Comparison], int]] = {}
    for name, judge in scorers.judges:
        tell(f"{eval_set.name}: judging {name}")
        verdicts[f"judge_{name}"] = _judge_pairs(name, judge, eval_set, texts, scorers.fingerprint, memory)
    for kind, sign, name in (("reward", 1.0, "helpfulness"), ("cost", -1.0, "harmlessness")):
        if kind in scores:
            firsts = {model: sign * np.array([row[0] for row in rows]) for model, rows in scores[kind].items()}
            verdicts[f"score_{name}"] = comparisons_by_score(prompts, firsts), 0
    return verdicts


def _judge_pairs(
    name: str,
    judge: Judge,
    eval_set: EvaluationSet,
    texts: dict[str, list[list[str]]],
    fingerprint: str,
    memory: Memory,
) -> tuple[list[Comparison], int]:
    items: list[Comparison] = []
    excluded = 0
    models = list(texts)
    questions = [for_reading(question) for question in eval_set.questions]
    for index, first in enumerate(models):
        for second in models[index + 1 :]:
            answers = [(texts_a[0], texts_b[0]) for texts_a, texts_b in zip(texts[first], texts[second], strict=True)]
            inputs = [
                (question, answer_a, answer_b)
                for question, (answer_a, answer_b) in zip(questions, answers, strict=True)
                if answer_a != answer_b
            ]

            def outcomes(inputs: list[tuple[str, str, str]] = inputs) -> list[float | None]:
                return list(judge(inputs))

            verdicts = iter(memory.recall(["judge", name, fingerprint, inputs], outcomes))
            for row, (answer_a, answer_b) in enumerate(answers):
                outcome = 0.5 if answer_a == answer_b else next(verdicts)
                if outcome is None:
                    excluded += 1
                else:
                    items.append(Comparison(first, second, outcome, str(row)))
    return items, excluded


def _ratings(plan: Plan, models: Sequence[str], items: Sequence[Comparison]) -> dict[str, Rating]:
    if not items:
        return {}
    if plan.elo == "iterative":
        return iterative_elo(models, items, plan.reference.name, seed=plan.seed)
    return ratings(models, items, plan.reference.name, resamples=plan.resamples, seed=plan.seed)


def _texts(answers: Any) -> list[list[str]]:
    return [[reply[1] for reply in row] for row in answers]


# --- files ---------------------------------------------------------------------------------------------------------


def table(result: dict[str, Any]) -> str:
    """One line per set, model and measure: value, interval and count."""
    lines: list[list[Any]] = [["set", "model", "measure", "value", "low", "high", "count"]]
    for name, entry in result["sets"].items():
        for model, measures in entry["measures"].items():
            for key, value in measures.items():
                if value is not None:
                    lines.append([name, model, key, value["value"], value["low"], value["high"], value["count"]])
        for key, rated in entry["ratings"].items():
            for model, value in rated.items():
                lines.append([name, model, f"elo_{key}", value["value"], value["low"], value["high"], None])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["" if v is None else v for v in line] for line in lines])
    return text.getvalue()


def _write_answers(plan: Plan, outputs: dict[str, dict[str, Any]], path: Path) -> None:
    """Every answer with its question, for people to read."""
    with path.open("w", encoding="utf-8") as file:
        for eval_set in plan.sets:
            for index, question in enumerate(eval_set.questions):
                for name, sets in outputs.items():
                    for reply in sets[eval_set.name]["answers"][index]:
                        row = {"set": eval_set.name, "prompt": for_reading(question), "model": name, "answer": reply[1]}
                        file.write(json.dumps(row, ensure_ascii=False) + "\n")
