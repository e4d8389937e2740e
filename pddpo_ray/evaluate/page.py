"""evaluation.html: tables and planes of an evaluation, one file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pddpo_ray.report.charts import Dot, color_of, plane
from pddpo_ray.report.shell import page
from pddpo_ray.report.text import MISSING, escape, number, short, table

TITLES = {
    "helpfulness": "helpfulness",
    "harmlessness": "harmlessness",
    "unsafe_rate": "unsafe rate",
    "over_refusal": "over-refusal",
    "refusal": "refusals",
    "kl": "KL to the reference",
    "pair_accuracy_better": "agrees on better",
    "pair_accuracy_safer": "agrees on safer",
    "length_tokens": "tokens",
    "length_words": "words",
}
ABOUT = (
    "<p>Helpfulness is the mean score of the reward model, harmlessness minus the mean score of the cost model; an "
    "answer is unsafe where its cost is above 0. Intervals are 95 %, over questions. Elo is a Bradley-Terry fit with "
    "bootstrap intervals unless the command asked for the iterative one; the reference has 1000 by definition.</p>"
)


def render(result: Mapping[str, Any], title: str, commands: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """The page of an evaluation.json as text."""
    sections = [
        (f"set-{index}", name, _set(name, entry, result))
        for index, (name, entry) in enumerate(result["sets"].items(), 1)
    ]
    models = [[escape(name), f"<code>{escape(source)}</code>"] for name, source in result["models"].items()]
    sections.append(("models", "Models", table(["model", "where it is"], models)))
    if commands:
        sections.append(("commands", "Commands", f"<pre>{escape(chr(10).join(commands))}</pre>"))
    header = f"<h1>{escape(title)}</h1>{ABOUT}" + "".join(f"<p>{escape(note)}</p>" for note in notes)
    return page(title, "pddpo evaluate", header, sections, "evaluation.json")


def _set(name: str, entry: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    measures: Mapping[str, Mapping[str, Any]] = entry["measures"]
    keys = [key for key in TITLES if any(key in values for values in measures.values())]
    lines = []
    for index, (model, values) in enumerate(measures.items()):
        cells = [_estimate(values.get(key), f"{model}/{key}") for key in keys]
        cells += [_estimate(rated.get(model), f"{model}/elo_{rating}") for rating, rated in entry["ratings"].items()]
        lines.append([str(index + 1), escape(model), *cells])
    headings = ["", "model", *[TITLES[key] for key in keys]]
    headings += [f"Elo, {escape(rating.replace('_', ': '))}" for rating in entry["ratings"]]
    dots = [
        Dot(
            model,
            values["harmlessness"]["value"],
            values["helpfulness"]["value"],
            color_of(index),
            str(index + 1),
            ends_of(values["harmlessness"]),
            ends_of(values["helpfulness"]),
        )
        for index, (model, values) in enumerate(measures.items())
        if values.get("harmlessness") and values.get("helpfulness")
    ]
    drawn = plane(
        f"Harmlessness and helpfulness: {name}",
        "Means of the scorers, with bars as in the table; the dashed edge is their safety boundary.",
        dots,
        None,
        x_label="harmlessness",
        y_label="helpfulness",
    )
    kind = ", harmless ones" if entry["benign"] else ""
    excluded = {name: counts["excluded"] for name, counts in entry["verdicts"].items() if counts["excluded"]}
    omissions = "".join(f"<p>{count} verdicts of {escape(name)} were left out.</p>" for name, count in excluded.items())
    counts = f"{entry['questions']} questions{kind}, {entry['pairs']} held-out pairs, {result['each']} answer(s) each"
    note = f"<p>{counts}. In brackets a 95 % interval, or the standard error where no bounds are stated.</p>"
    return f'{note}{omissions}{table(headings, lines)}<div class="charts">{drawn}</div>'


def ends_of(value: Mapping[str, Any]) -> tuple[float, float] | None:
    """Ends of an estimate's 95 % interval, one standard error to each side where no bounds are stated, or None."""
    if value["low"] is not None and value["high"] is not None:
        return value["low"], value["high"]
    error = value.get("standard_error")
    return None if error is None else (value["value"] - error, value["value"] + error)


def _estimate(value: Mapping[str, Any] | None, key: str) -> str:
    if value is None:
        return MISSING
    text = number(value["value"], key)
    if value["low"] is None or value["high"] is None:
        error = value.get("standard_error")
        return text if error is None else f"{text} <small>(error {escape(short(error))})</small>"
    return f"{text} <small>[{escape(short(value['low']))}, {escape(short(value['high']))}]</small>"
