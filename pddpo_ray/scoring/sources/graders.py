"""Graders as OpenAI's evaluation and fine-tuning services write them in JSON, as sources of limits.

| type            | value                                                                                   |
|-----------------|-----------------------------------------------------------------------------------------|
| string_check    | 1 or 0: input equals (eq), differs from (ne), contains (like, ilike) the reference      |
| text_similarity | fuzzy_match or rouge_1 ... rouge_5, rouge_l of input and reference, from 0 to 1         |
| label_model     | a model picks a label; 1 if it is a passing one                                         |
| score_model     | a model gives a number within `range` (0 to 1)                                          |
| multi           | `calculate_output`, an arithmetic expression of its graders' values                     |

`python` graders are refused: they would run code out of a data file. Texts are templates over {{sample.output_text}}
and {{item.KEY}}, where KEY is a key of the row.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.limits.local_sources import text_of
from pddpo_ray.limits.sources import Answer, Opening, Source, Unmeasured, fingerprint
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint, Lost
from pddpo_ray.scoring.judges.replies import number_on_scale, without_thoughts
from pddpo_ray.theory.seeds import seed_of

SLOT = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")
BATCH = 8
SIMILARITIES = ("fuzzy_match", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l")
ROLES = {"developer": "system"}
Grade = Callable[[Answer], "float | Unmeasured"]


def grader_source(source: Opening) -> Source:
    """The grader in a JSON file, itself or under `grader`; options (model, endpoint, key_env, ...) override its own.

    For a `rate` its value is compared with its `pass_threshold`, if it has one. Raises UserError with what is wrong.
    """
    where, name, scale = source.where, source.what, source.scale
    options = {**source.judge, **source.options}
    text = text_of(where, source.folder / name)
    try:
        spec = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: {name} is not JSON: {error}") from error
    if isinstance(spec, dict) and isinstance(spec.get("grader"), dict):
        spec = spec["grader"]
    grade = open_grader(spec, replace(source, options=options))
    threshold = spec.get("pass_threshold")

    def value(answer: Answer) -> object:
        number = grade(answer)
        if isinstance(number, Unmeasured) or not scale.verdict or threshold is None:
            return number
        return number >= threshold if math.isfinite(number) else number

    shown = str(spec.get("name") or name)
    identity = f"grader {fingerprint(text, json.dumps(options, sort_keys=True, default=str))}"

    def measure(answers: Sequence[Answer]) -> list[object]:
        with ThreadPoolExecutor(BATCH) as threads:
            return list(threads.map(value, answers))

    return Source(f"grader {shown}", identity, measure, scale, BATCH)


def open_grader(grader: Any, opening: Opening) -> Grade:
    """One grader. Raises UserError for a kind or a field that is not available here."""
    if not isinstance(grader, dict) or "type" not in grader:
        raise UserError(f'{opening.where}: a grader is a JSON object with `type`, e.g. {{"type": "string_check", ...}}')
    kind = grader["type"]
    if kind == "python":
        raise UserError(
            f"{opening.where}: a python grader runs code out of a data file, which is not done here; put the code into"
            " a module and write {function: my_package.my_module:grade}"
        )
    if kind not in KINDS:
        raise UserError(f"{opening.where}: grader type `{kind}` is not known; known are {', '.join(KINDS)}")
    return KINDS[kind](grader, opening)


# --- without a model ----------------------------------------------------------------------------------------------


CHECKS: Mapping[str, Callable[[str, str], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "like": lambda text, reference: reference in text,
    "ilike": lambda text, reference: reference.lower() in text.lower(),
}


def _string_check(spec: Mapping[str, Any], opening: Opening) -> Grade:
    text, reference = _template(spec, "input", opening), _template(spec, "reference", opening)
    check = CHECKS.get(spec.get("operation", ""))
    if check is None:
        raise UserError(f"{opening.where}: operation must be one of {', '.join(CHECKS)}")
    return _comparing_grade(text, reference, lambda left, right: float(check(left, right)))


def _text_similarity(spec: Mapping[str, Any], opening: Opening) -> Grade:
    text, reference = _template(spec, "input", opening), _template(spec, "reference", opening)
    metric = spec.get("evaluation_metric")
    if metric not in SIMILARITIES:
        raise UserError(
            f"{opening.where}: evaluation_metric `{metric}` is not measured here; {', '.join(SIMILARITIES)} are"
        )
    return _comparing_grade(text, reference, lambda left, right: similarity(str(metric), left, right))


def _comparing_grade(text: str, reference: str, compare: Callable[[str, str], float]) -> Grade:
    def grade(answer: Answer) -> float | Unmeasured:
        left, right = filled(text, answer), filled(reference, answer)
        if isinstance(left, Unmeasured):
            return left
        return right if isinstance(right, Unmeasured) else compare(left, right)

    return grade


def similarity(metric: str, text: str, reference: str) -> float:
    """From 0 (nothing in common) to 1 (equal).

    fuzzy_match: 2 L / (m + n), L the longest common subsequence of characters. rouge_n and rouge_l: F1 of shared runs
    of n words, and of the longest common subsequence of words, in lower case.
    """
    if metric == "fuzzy_match":
        return _f1(_common_subsequence(text, reference), len(text), len(reference))
    left, right = re.findall(r"\w+", text.lower()), re.findall(r"\w+", reference.lower())
    if metric == "rouge_l":
        return _f1(_common_subsequence(left, right), len(left), len(right))
    size = int(metric.removeprefix("rouge_"))
    left_runs, right_runs = _runs(left, size), _runs(right, size)
    return _f1((left_runs & right_runs).total(), left_runs.total(), right_runs.total())


def _runs(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + size]) for start in range(len(words) - size + 1))


def _f1(shared: int, left: int, right: int) -> float:
    """Of precision and recall; two empty texts are equal."""
    return 2 * shared / (left + right) if left + right else 1.0


def _common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(right) + 1)
    for item in left:
        before = row
        row = [0]
        for index, other in enumerate(right):
            row.append(before[index] + 1 if item == other else max(row[index], before[index + 1]))
    return row[-1]


# --- with a model -------------------------------------------------------------------------------------------------


def _label_model(spec: Mapping[str, Any], opening: Opening) -> Grade:
    labels, passing = spec.get("labels"), spec.get("passing_labels")
    if not isinstance(labels, list) or not isinstance(passing, list) or not set(passing) <= set(labels):
        raise UserError(f"{opening.where}: a label_model needs `labels`, and `passing_labels` out of them")
    ask = _make_asker(
        spec, opening, f"End with one line that holds nothing but one of these labels: {', '.join(labels)}"
    )

    def grade(answer: Answer) -> float | Unmeasured:
        reply = ask(answer)
        if isinstance(reply, Unmeasured):
            return reply
        words = (without_thoughts(reply) or "").splitlines()
        last = words[-1] if words else ""
        choice = last.strip(" .\"'`*").lower()
        matching = [label for label in labels if label.lower() == choice]
        return float(matching[0] in passing) if matching else Unmeasured(f"gave no label: {last[:80]!r}")

    return grade


def _score_model(spec: Mapping[str, Any], opening: Opening) -> Grade:
    low, high = spec.get("range") or (0.0, 1.0)
    ask = _make_asker(spec, opening, f"End with one line that holds nothing but a number from {low:g} to {high:g}.")

    def grade(answer: Answer) -> float | Unmeasured:
        reply = ask(answer)
        if isinstance(reply, Unmeasured):
            return reply
        value = number_on_scale(reply, low, high)
        if value is None:
            return Unmeasured(f"gave no number: {reply.strip()[-80:]!r}")
        return value if low <= value <= high else Unmeasured(f"gave {value:g}, outside [{low:g}, {high:g}]")

    return grade


def _make_asker(spec: Mapping[str, Any], opening: Opening, form: str) -> Callable[[Answer], str | Unmeasured]:
    """Asks the grader's conversation, with the form of the reply at its end."""
    messages = spec.get("input") or []
    turns = [(ROLES.get(turn.get("role"), turn.get("role")), _content(turn, opening)) for turn in messages]
    if not turns:
        raise UserError(f"{opening.where}: a {spec['type']} needs `input`, a list of messages")
    sampling = {key: spec.get("sampling_params", {}).get(key) for key in ("temperature",)}
    options = {"model": spec.get("model"), **sampling, **opening.options}
    endpoint = ChatEndpoint.stated(opening.where, options, opening.environment)

    def ask(answer: Answer) -> str | Unmeasured:
        chat = []
        for role, template in turns:
            text = filled(template, answer)
            if isinstance(text, Unmeasured):
                return text
            chat.append((str(role), text))
        reply = endpoint.converse([([*chat, ("user", form)], seed_of("grader", *(text for _, text in chat)))])[0]
        return Unmeasured(reply.reason) if isinstance(reply, Lost) else reply

    return ask


def _content(turn: Mapping[str, Any], opening: Opening) -> str:
    content = turn.get("content")
    if isinstance(content, dict):
        content = content.get("text")
    if not isinstance(content, str):
        raise UserError(f"{opening.where}: the content of a message must be text")
    return _check_slots(content, opening)


# --- several ------------------------------------------------------------------------------------------------------


OPERATORS: Mapping[type, Callable[..., float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min, "max": max, "abs": abs, "floor": math.floor, "ceil": math.ceil, "exp": math.exp, "sqrt": math.sqrt,
    "log": math.log,
}  # fmt: skip


def _multi(spec: Mapping[str, Any], opening: Opening) -> Grade:
    graders = spec.get("graders")
    if isinstance(graders, list):
        graders = {str(grader.get("name")): grader for grader in graders}
    if not isinstance(graders, dict) or not graders or not isinstance(spec.get("calculate_output"), str):
        raise UserError(f"{opening.where}: a multi grader needs `graders` by name and `calculate_output`")
    opened = {name: open_grader(grader, opening) for name, grader in graders.items()}
    try:
        formula = ast.parse(spec["calculate_output"], mode="eval").body
        calculate(formula, dict.fromkeys(opened, 0.5))
    except (SyntaxError, ValueError, TypeError) as error:
        raise UserError(f"{opening.where}: calculate_output `{spec['calculate_output']}`: {error}") from error
    except ArithmeticError:
        pass  # of the trial values alone

    def grade(answer: Answer) -> float | Unmeasured:
        values: dict[str, float] = {}
        for name, grader in opened.items():
            value = grader(answer)
            if isinstance(value, Unmeasured):
                return Unmeasured(f"{name} {value.reason}")
            values[name] = value
        return calculate(formula, values)

    return grade


def calculate(node: ast.expr, values: Mapping[str, float]) -> float:
    """An arithmetic expression of graders' values. Raises ValueError for anything else in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name):
        if node.id not in values:
            raise ValueError(f"there is no grader {node.id}; there are {', '.join(values)}")
        return values[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return float(OPERATORS[type(node.op)](calculate(node.left, values), calculate(node.right, values)))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return float(OPERATORS[type(node.op)](calculate(node.operand, values)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        return float(FUNCTIONS[node.func.id](*(calculate(argument, values) for argument in node.args)))
    raise ValueError(f"`{ast.unparse(node)}` is no arithmetic")


KINDS: Mapping[str, Callable[[Mapping[str, Any], Opening], Grade]] = {
    "string_check": _string_check,
    "text_similarity": _text_similarity,
    "label_model": _label_model,
    "score_model": _score_model,
    "multi": _multi,
}


# --- templates ----------------------------------------------------------------------------------------------------


def filled(template: str, answer: Answer) -> str | Unmeasured:
    """The template with the answer's text and the row's values in its slots."""
    missing: list[str] = []

    def value(slot: re.Match[str]) -> str:
        if slot[1] == "sample.output_text":
            return answer.response
        node: Any = answer.row
        for key in slot[1].split(".")[1:]:
            node = node.get(key) if isinstance(node, Mapping) else None
        if node is None:
            missing.append(slot[1])
            return ""
        return node if isinstance(node, str) else json.dumps(node)

    text = SLOT.sub(value, template)
    return Unmeasured(f"found no {missing[0]} in the row") if missing else text


def _template(spec: Mapping[str, Any], key: str, opening: Opening) -> str:
    if not isinstance(spec.get(key), str):
        raise UserError(f"{opening.where}: a {spec['type']} needs the text `{key}`")
    return _check_slots(spec[key], opening)


def _check_slots(template: str, opening: Opening) -> str:
    for slot in SLOT.findall(template):
        if slot != "sample.output_text" and not slot.startswith("item."):
            raise UserError(
                f"{opening.where}: {{{{{slot}}}}} is not known here; there are sample.output_text and item.KEY"
            )
    return template
