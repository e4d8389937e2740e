"""Reads limits from a file as typed limits. Nothing is opened here: a source is named, not loaded.

limits:
  length:  {mean: {rule: words}, at_most: 80}
  refuses: {rate: {rule: refusal}, over: benign, at_most: 5 %, confidence: 95 %}
  brand:   {rate: {judge: {question: brand.md}}, at_most: 2 %, audited_by: {people: 40 a round}}

Percent, units and times are read as people write them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pddpo_ray import registry
from pddpo_ray.errors import UserError, nearest_or_all
from pddpo_ray.limits.audits import AUDIT, read_audit
from pddpo_ray.limits.quantities import VERDICT, Amount, Kind, Limit, Quantity, Scale
from pddpo_ray.limits.rules import rule_of
from pddpo_ray.limits.source_kinds import SourceKind
from pddpo_ray.limits.written_numbers import number_of, seconds_of

KINDS: Mapping[str, Kind] = {"rate": "rate", "mean": "mean", "logit": "logit", "kl": "kl"}
KEYS = (
    "over", "at_most", "at_least", "confidence", "bounds", "unit", "versus", "audited_by",
    "answers", "labels_each", "deadline", "failed", "dual", "learned_from",
)  # fmt: skip
COMPARISONS, VALUES = "comparisons", "values"
"""What teaches a policy to keep a limit: `learned_from`."""
CERTAIN = 36.0
"""At this logit a probability is 1 to the last digit of a float."""
FILES = ("regex", "json_schema", "classifier", "score_model", "grader", "tokenizer", "question", "judge")
"""Keys of sources whose values may be files."""
LABELLERS: Mapping[str, Mapping[str, Any]] = {
    "world": {"world": "cost"}, "people": {"people": {}}, "judge": {"judge": {}}, "model": {"model": "cost"},
    "mixed": {"model": "cost"},
}  # fmt: skip
"""Sources that say safe or unsafe about an answer, by `feedback.kind`."""
FEEDBACK = "feedback"
"""The source of a limit for which the run's feedback labels single answers."""
OF_LOGITS = tuple(dict.fromkeys(next(iter(source)) for source in LABELLERS.values()))
REWARD, PAIRS = "reward", "pairs"
"""The key of a recipe's reward, and the key in it that names files of comparisons. A world's labellers compare by the
first too: `{rate: {world: reward}, versus: reference}`."""
REWARD_KEYS = ("bounds", "unit", "answers", "labels_each", "deadline", "failed")
"""What a computed reward may be given beside its source."""


@dataclass(frozen=True)
class Asking:
    """How much a source is asked, and how much of it may fail."""

    answers: int | None = None
    """Most answers that are measured in one call, chosen evenly at random; None: all."""
    seconds: float | None = None
    """Deadline of one call; answers that were not begun by then are failures. None: no deadline."""
    failed: float | None = None
    """Largest share of the asked answers that may have no number; None: any."""
    labels_each: int | None = None
    """Opinions per answer, of a judge or of people."""


@dataclass(frozen=True)
class SourceName:
    """Which source a limit names, e.g. {classifier: models/guard, label: unsafe}."""

    kind: str
    """A name of the registry's sources, `reference` for a kl limit, or `feedback` where that labels single answers."""
    what: str = ""
    """A rule's name, a path, `module:name`; empty where options say all."""
    options: Mapping[str, Any] = field(default_factory=dict)
    labeller: str = ""
    """Of `feedback`: who labels, by the name of that source."""

    def __str__(self) -> str:
        return f"{self.named} {self.what}".strip()

    @property
    def named(self) -> str:
        """The source that the limit names, whether feedback asks it or the limit itself."""
        return self.labeller or self.kind


@dataclass(frozen=True)
class StatedLimit:
    """A limit as it is stated: what it says, who measures it, and how much is asked."""

    limit: Limit
    source: SourceName
    scale: Scale
    """Of one measurement by the source, before any comparison with the reference."""
    asking: Asking
    audited: int | None = None
    """Answers per round (or file) that people measure too, drawn evenly at random; None: no audit."""
    audit_question: str | None = None
    """What an audit asks people, a file or a text; None: what the source is asked."""
    unsure: int = 0
    """Of the audited answers, those of which the source is least sure; the others are drawn evenly."""
    where: str = ""
    """What messages call its place, e.g. `limits.yaml: limits.length`."""
    dual: Any = None
    """How its multiplier moves in a run, where not as the recipe's `dual` says; the recipe checks it."""
    learned_from: str | None = None
    """COMPARISONS or VALUES; None: as its kind and the method have it, a logit from comparisons."""

    @property
    def labelled(self) -> bool:
        """Whether the run's feedback labels single answers for it, on all prompts, and comparisons teach it."""
        return self.source.kind == FEEDBACK

    @property
    def by_comparisons(self) -> bool:
        """Whether comparisons teach it, in a stage of its own."""
        return self.labelled or self.limit.quantity.kind == "logit"

    @property
    def wins(self) -> bool:
        """Whether its source is shown the reference's answer too, and says which of the two is better."""
        return self.limit.quantity.versus == "wins"

    @property
    def asks_people(self) -> bool:
        """Whether people measure answers, all of them or an audit's."""
        return self.source.kind == "people" or self.audited is not None

    @property
    def people_each(self) -> int:
        """How many people answer one question about it; 0: it asks nobody."""
        if not self.asks_people and self.source.labeller != "people":
            return 0
        alone = self.audited is not None and self.limit.quantity.kind != "logit"
        return 1 if alone else self.asking.labels_each or 1

    @property
    def worst(self) -> float | None:
        """The worst single measurement, in the source's own unit; None where its bounds are unknown."""
        return self.scale.low if self.limit.at_least else self.scale.high

    @property
    def compared_as(self) -> str:
        """The cost under which pairs are compared for it: a world's by name, or the harm that people or models see."""
        return self.source.what if self.source.named == "world" else "cost"

    def labelled_by(self, feedback: str, *, by_comparisons: bool) -> bool:
        """Whether the run's feedback labels single answers for it, and comparisons teach it: the paper's cost.

        `by_comparisons`: whether the method learns every limit from comparisons.
        """
        quantity, asking = self.limit.quantity, self.asking
        learned = self.learned_from or (COMPARISONS if by_comparisons or quantity.kind == "logit" else VALUES)
        plain = not self.limit.at_least and quantity.over is None and quantity.versus is None and self.audited is None
        whole = asking.answers is None and asking.seconds is None and asking.failed is None
        bare = set(self.source.options) <= {"labels_each"} and (feedback == "world" or self.source.what in ("", "cost"))
        scores = (quantity.kind == "mean") <= (feedback == "model")
        return self.source.kind == feedback and learned == COMPARISONS and plain and whole and bare and scores


def stated_limits(document: Mapping[str, Any], name: str) -> list[StatedLimit]:
    """The limits of a document with `limits:` and perhaps `prompts:`. Raises UserError with the key that is wrong."""
    limits = document.get("limits")
    if not isinstance(limits, dict) or not limits:
        near = difflib.get_close_matches("limits", [str(key) for key in document], 1, 0.6)
        raise UserError(f"{name}: no `limits:` in it" + (f"; did you mean limits for `{near[0]}`?" if near else ""))
    sets = document.get("prompts")
    set_names = list(sets) if isinstance(sets, dict) else None
    return [stated_limit(limit, entry, name, set_names) for limit, entry in limits.items()]


def stated_limit(name: Any, entry: Any, file: str, sets: Sequence[str] | None = None) -> StatedLimit:
    """One entry of `limits:`; `sets` are the names under `prompts:`, None where the file names none."""
    if not isinstance(name, str):
        raise UserError(f'{file}: the name of a limit is a word; YAML reads `{name}` as another type: write "{name}":')
    where = f"{file}: limits.{name}"
    if not isinstance(entry, dict):
        raise UserError(f"{where} must say what is measured, e.g. {{mean: {{rule: words}}, at_most: 80}}")
    for key in entry:
        if key not in KINDS and key not in KEYS:
            raise UserError(f"{where}: unknown key `{key}`{nearest_or_all(str(key), [*KINDS, *KEYS])}")
    kinds = [key for key in entry if key in KINDS]
    if len(kinds) != 1:
        raise UserError(f"{where} needs exactly one of {', '.join(KINDS)}; it has {', '.join(kinds) or 'none of them'}")
    kind = KINDS[kinds[0]]
    source = _source(f"{where}.{kind}", kind, entry[kind])
    scale = _scale(where, kind, source, entry)
    quantity = _quantity(where, kind, entry, source, scale, sets)
    limit, asking = _limit(name, where, entry, quantity), _asking(where, entry, source)
    learned = _learned_from(where, kind, entry)
    statement = StatedLimit(
        limit, source, scale, asking, *read_audit(where, entry.get(AUDIT)), where, entry.get("dual"), learned
    )
    if statement.audited is not None:
        _audit_fits(statement)
    return statement


def stated_reward(entry: Mapping[str, Any], file: str, reward_max: float) -> StatedLimit:
    """A computed `reward:`, read as a limit that every policy keeps: its mean is at least its lower bound.

    Its cost is then -reward. A world's own reward lies in [-reward_max, reward_max]. Raises UserError.
    """
    where = f"{file}: {REWARD}"
    settings = {key: value for key, value in entry.items() if key in REWARD_KEYS}
    source = _source(where, "mean", {key: value for key, value in entry.items() if key not in REWARD_KEYS})
    if source.kind == "people":
        raise UserError(f"{where}: people compare answers; leave `reward` out and set feedback.kind=people")
    if source.kind == "world" and source.what != REWARD:
        raise UserError(f"{where}: a world has one reward; write {{world: reward}}, not `{source.what}`")
    scale = _scale(where, "mean", source, settings)
    if source.kind == "world":
        scale = Scale(scale.unit, False, -reward_max, reward_max)
    if scale.low is None or scale.high is None:
        raise UserError(f"{where}: a computed reward needs `bounds: [low, high]`, by whose range its fit is scaled")
    quantity = _quantity(where, "mean", settings, source, scale, None)
    always = Limit(REWARD, Amount(quantity, scale.low), at_least=True)
    return StatedLimit(always, source, scale, _asking(where, settings, source), where=where)


def names_source(entry: Any) -> bool:
    """Whether a `reward:` names its source, not only how it is asked."""
    return isinstance(entry, dict) and bool(set(entry) - set(REWARD_KEYS))


def beside(entry: dict[str, Any], folder: Path) -> None:
    """Makes an entry's files absolute, in place, if they lie in `folder`, beside the recipe."""
    for kind in (*KINDS, AUDIT):
        source = entry.get(kind)
        if not isinstance(source, dict):
            continue
        inner = [source, *(value for value in source.values() if isinstance(value, dict))]
        names = [name for name in registry.installed_names("sources") if name in source]
        file_keys = [key for name in names for key in registry.load("sources", name, SourceKind).files]
        for options in inner:
            for key in (*FILES, *file_keys):
                value = options.get(key)
                if isinstance(value, str) and (folder / value).exists():
                    options[key] = str(folder / value)
        if "function" in source and (folder / f"{str(source['function']).partition(':')[0].split('.')[0]}.py").exists():
            source.setdefault("folder", str(folder))


# --- what measures ------------------------------------------------------------------------------------------------


def _source(where: str, kind: Kind, source_entry: Any) -> SourceName:
    if kind == "kl":
        if source_entry != "reference":
            raise UserError(f"{where}: a kl limit is to the reference; write {{kl: reference, at_most: 8}}")
        return SourceName("reference")
    if not isinstance(source_entry, dict) or not source_entry:
        raise UserError(f"{where} names one source, e.g. {{rule: words}} or {{regex: pii.txt}}; got {source_entry}")
    every = registry.names("sources")
    sources = [key for key in source_entry if key in every]
    # a judge and a grader have an `endpoint` of their own
    names = [key for key in sources if not any(key in _options_of(other) for other in sources)]
    if len(names) != 1:
        first = str(next(iter(source_entry)))
        hint = nearest_or_all(first, every) if not names else f"; it names {' and '.join(names)}"
        raise UserError(f"{where} names one source{hint}")
    name, value = names[0], source_entry[names[0]]
    options = {key: option for key, option in source_entry.items() if key != name}
    text = ""
    if isinstance(value, dict):
        options |= value
    elif isinstance(value, str):
        text = value
    elif value is not None:
        raise UserError(f'{where}.{name}: `{value}` is no text; put it in quotes: "{value}"')
    if registry.load("sources", name, SourceKind).settings is not None:
        source = SourceName(name, text, options)
        settings_of(where, source)
        return source
    known_keys = _options_of(name)
    for key in options:
        if key not in known_keys:
            suggestion = nearest_or_all(str(key), known_keys) if known_keys else "; it takes none"
            raise UserError(f"{where}.{name}: unknown key `{key}`{suggestion}")
    return SourceName(name, text, options)


def settings_of(where: str, source: SourceName) -> BaseModel | None:
    """What a limit says about its source, checked by the class of the source's kind; None where it has none.

    Raises UserError with the key that is wrong.
    """
    if registry.load("sources", source.kind, SourceKind).settings is None:
        return None
    try:
        return registry.checked("sources", source.kind, source.options, f"{where}.{source.kind}")
    except ValueError as error:
        raise UserError(str(error)) from error


def _options_of(name: str) -> tuple[str, ...]:
    kind = registry.load("sources", name, SourceKind)
    return kind.options if kind.settings is None else tuple(kind.settings.model_fields)


def _scale(where: str, kind: Kind, source: SourceName, entry: Mapping[str, Any]) -> Scale:
    """Unit and bounds of one measurement, by what the source is and what the limit states."""
    if kind == "kl":
        return Scale("nats")
    if kind == "logit":
        if source.kind not in OF_LOGITS:
            raise UserError(f"{where}: a logit is estimated from labels; its source is {', '.join(OF_LOGITS)}")
        return Scale("logit", low=_bounds(where, entry)[0], high=_bounds(where, entry)[1])
    source_kind = registry.load("sources", source.kind, SourceKind)
    scale = source_kind.scale or Scale("")
    if source.kind == "rule" and source.what != "language":
        scale = rule_of(f"{where}.{kind}.rule", source.what).scale
    elif kind == "rate" and source_kind.verdicts:
        scale = VERDICT
    if kind == "rate":
        if not scale.verdict:
            raise UserError(f"{where}: {source} gives {scale.unit}; use `mean` for it, or a source that says yes or no")
        if "bounds" in entry or "unit" in entry:
            raise UserError(f"{where}: a rate is a share between 0 and 100 %; leave out `bounds` and `unit`")
        return scale
    low, high = _bounds(where, entry)
    unit = str(entry.get("unit", scale.unit))
    return Scale(unit, False, scale.low if low is None else low, scale.high if high is None else high)


def _quantity(
    where: str, kind: Kind, entry: Mapping[str, Any], source: SourceName, scale: Scale, sets: Sequence[str] | None
) -> Quantity:
    over, versus = entry.get("over"), entry.get("versus")
    if over is not None and not isinstance(over, str):
        raise UserError(f"{where}.over names one prompt set, got `{over}`; put a name that is no word in quotes")
    if over is not None and sets is not None and over not in sets:
        raise UserError(f"{where}: there is no prompt set `{over}`{nearest_or_all(over, list(sets))}")
    if kind == "kl" and over is not None:
        raise UserError(f"{where}: a kl limit is over all prompts; leave out `over`")
    if versus is None:
        return Quantity(kind, scale.unit, over, scale.low, scale.high)
    if versus != "reference" or kind not in ("rate", "mean"):
        raise UserError(f"{where}: a rate or a mean may be `versus: reference`; got {kind} versus `{versus}`")
    if kind == "mean" and source.kind == "people":
        raise UserError(f"{where}: people say which of two answers is better; state it as a rate")
    if kind == "rate" and compares(source):
        return Quantity(kind, scale.unit, over, 0.0, 1.0, "wins")
    if scale.low is None or scale.high is None:
        return Quantity(kind, scale.unit, over, None, None, "reference")
    span = scale.high - scale.low
    return Quantity(kind, scale.unit, over, -span, span, "reference")


def compares(source: SourceName) -> bool:
    """Whether a source can be shown both answers and say which is better, so that its rate is a share of wins."""
    return source.kind in ("judge", "people", "score_model") or (source.kind == "world" and source.what == REWARD)


# --- the statement ------------------------------------------------------------------------------------------------


def _limit(name: str, where: str, entry: Mapping[str, Any], quantity: Quantity) -> Limit:
    keys = [key for key in ("at_most", "at_least") if key in entry]
    if len(keys) != 1:
        raise UserError(f"{where} needs at_most or at_least, one of the two")
    if quantity.kind in ("kl", "logit") and keys[0] == "at_least":
        raise UserError(f"{where}: a {quantity.kind} limit is `at_most` only")
    at = f"{where}.{keys[0]}"
    share = quantity.kind == "rate"
    bound = number_of(at, entry[keys[0]], share=share, unit=quantity.unit)
    if quantity.kind == "kl" and bound <= 0.0:
        raise UserError(f"{at}: {bound:g} nats or less is kept by the reference alone; a kl limit is above 0")
    if quantity.kind == "logit" and abs(bound) > CERTAIN:
        raise UserError(f"{at}: a logit of {bound:g} is a certainty; a limit lies between -{CERTAIN:g} and {CERTAIN:g}")
    low, high = quantity.low, quantity.high
    if share and low is not None and high is not None and not low <= bound <= high:
        raise UserError(f"{at}: a rate lies between {100 * low:g} and {100 * high:g} %, got {100 * bound:g} %")
    if (low is not None and bound < low) or (high is not None and bound > high):
        ends = f"[{'-inf' if low is None else f'{low:g}'}, {'inf' if high is None else f'{high:g}'}]"
        raise UserError(f"{at}: {bound:g} lies outside the measure's bounds {ends}")
    confidence = number_of(f"{where}.confidence", entry.get("confidence", 0.95), share=True)
    if not 0.5 <= confidence < 1.0:
        raise UserError(f"{where}.confidence lies between 50 % and 100 %, got {100 * confidence:g} %")
    return Limit(name, Amount(quantity, bound), keys[0] == "at_least", confidence)


def _asking(where: str, entry: Mapping[str, Any], source: SourceName) -> Asking:
    counts: dict[str, int | None] = {}
    for key in ("answers", "labels_each"):
        value = entry.get(key, source.options.get(key))
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UserError(f"{where}.{key} must be a whole number from 1 on, got `{value}`")
        counts[key] = value
    failed = entry.get("failed")
    share = None if failed is None else number_of(f"{where}.failed", failed, share=True)
    if share is not None and not 0.0 <= share <= 1.0:
        raise UserError(f"{where}.failed lies between 0 and 100 %, got {100 * share:g} %")
    deadline = entry.get("deadline")
    seconds = None if deadline is None else seconds_of(f"{where}.deadline", deadline)
    return Asking(counts["answers"], seconds, share, counts["labels_each"])


def _learned_from(where: str, kind: Kind, entry: Mapping[str, Any]) -> str | None:
    learned = entry.get("learned_from")
    possible = {"logit": (COMPARISONS,), "kl": ()}.get(kind, (COMPARISONS, VALUES))
    if learned is not None and learned not in possible:
        raise UserError(
            f"{where}.learned_from: a {kind} is learned from"
            f" {' or '.join(possible) or 'the drift itself'}; got `{learned}`"
        )
    return learned


def _audit_fits(limit: StatedLimit) -> None:
    """Raises UserError where people cannot give the numbers that would correct the source's."""
    where, quantity = limit.where, limit.limit.quantity
    if limit.source.kind == "people":
        raise UserError(f"{where}: audited_by corrects another source than people; leave it out")
    if quantity.kind == "kl":
        raise UserError(f"{where}: people cannot judge a distance to the reference; leave audited_by out")
    if quantity.versus == "reference":
        raise UserError(
            f"{where}: people see one answer, or say which of two is better; a difference to the reference is"
            " not audited: leave `versus` or audited_by out"
        )
    if quantity.kind == "mean" and limit.limit.cost_range is None:
        raise UserError(f"{where}: people audit a mean within its bounds; state `bounds: [low, high]`")
    if quantity.kind == "logit" and limit.asking.labels_each is None:
        raise UserError(f"{where}: say how many labels an answer has, of people too: labels_each: 20")
    tells_chances = limit.source.kind == "model" or (limit.asking.labels_each or 1) > 1
    if limit.unsure and (quantity.kind == "mean" or not tells_chances):
        raise UserError(
            f"{where}.{AUDIT}.unsure: people are asked first where the source's chance of a yes is nearest to a half,"
            f" and {limit.source} gives {'a number' if quantity.kind == 'mean' else 'a verdict'}, no chance: leave"
            " `unsure` out, and all audited answers are drawn evenly"
        )


def _bounds(where: str, entry: Mapping[str, Any]) -> tuple[float | None, float | None]:
    bounds = entry.get("bounds")
    if bounds is None:
        return None, None
    if not isinstance(bounds, list) or len(bounds) != 2:
        raise UserError(f"{where}.bounds must be two numbers, e.g. [0, 400]; got {bounds}")
    low, high = (number_of(f"{where}.bounds", bound, share=False) for bound in bounds)
    if not low < high:
        raise UserError(f"{where}.bounds: {low:g} is not below {high:g}")
    return low, high
