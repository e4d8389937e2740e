"""A limit in a person's words, e.g. "at most 2 % unsafe, at most 300 tokens on average", as an entry of `limits:`.

| words                                      | limit                                                     |
|--------------------------------------------|-----------------------------------------------------------|
| at most 120 words (tokens, sentences, ...) | a mean by that rule; tokens are those of the model        |
| at most 2 % unsafe                         | a rate by the score model learned from safe/unsafe labels |
| at most 5 % refusals                       | a rate by the rule `refusal`                              |
| German only                                | at least 99 % by the rule `language`                      |
| no URLs                                    | at most 1 % by patterns in a file that is written         |
| at least 95 % polite, polite in 95 %       | a rate by a judge; its question is a file that is written |
| NAME: {rate: {rule: empty}, at_most: 1 %}  | as a recipe has it                                        |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from pddpo_ray.errors import UserError

NUMBER = r"(\d+(?:\.\d+)?)"
MEAN = re.compile(rf"^(at most|at least) {NUMBER} (words|tokens|characters|sentences)\b", re.IGNORECASE)
SHARE = re.compile(rf"^(at most|at least) {NUMBER} ?% ([a-z][a-z -]*)$", re.IGNORECASE)
SHARE_IN = re.compile(rf"\b([a-z-]+) in (?:at least )?{NUMBER} ?%", re.IGNORECASE)
ONLY = re.compile(r"^(?:only (?:in )?([a-z]+)|([a-z]+) only)$", re.IGNORECASE)
LANGUAGES = {
    "german": "de", "english": "en", "french": "fr", "spanish": "es", "italian": "it", "dutch": "nl", "polish": "pl",
    "portuguese": "pt", "turkish": "tr", "russian": "ru", "chinese": "zh", "japanese": "ja", "arabic": "ar",
}  # fmt: skip
URLS = "# Answers that a line matches hold a link.\nhttps?://\n\\bwww\\.\\w\n\\b[\\w-]+\\.(?:com|org|net|de|io)/\n"
RARE, NEARLY_ALL = "1 %", "99 %"
"""What `no` and `only` mean: no number of draws certifies 0 % or 100 %."""
EXAMPLES = '"at most 2 % unsafe", "at most 120 words", "German only", "no URLs", "at least 95 % polite"'


@dataclass
class Wish:
    """Limits, and what they need."""

    limits: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Files to write beside the recipe, by name."""
    unsafe: bool = False
    """It names unsafe answers: a score model has to learn from labels."""
    judge: bool = False
    """It asks a judge."""


def wish_of(sentences: list[str], model: str, unsafe_by: str) -> Wish:
    """The limits in sentences, split at commas, semicolons and `and`. Raises UserError for an unknown one.

    model: whose tokens are counted; unsafe_by: folder of the score model that says unsafe.
    """
    wish = Wish()
    for sentence in sentences:
        parts = [sentence] if "{" in sentence else re.split(r"[,;]\s*|\s+and\s+", sentence)
        for part in filter(None, (part.strip().rstrip(".") for part in parts)):
            _add(wish, part, model, unsafe_by)
    return wish


def _add(wish: Wish, part: str, model: str, unsafe_by: str) -> None:
    if "{" in part:
        name, entry = _parse_limit(part)
    elif match := MEAN.match(part):
        name, entry = _mean(match, model)
    elif (match := ONLY.match(part)) and (language := (match[1] or match[2]).lower()) in LANGUAGES:
        name, entry = language, {"rate": {"rule": "language", "is": LANGUAGES[language]}, "at_least": NEARLY_ALL}
    elif re.match(r"^no (urls?|links?)$", part, re.IGNORECASE):
        wish.files["urls.txt"] = URLS
        name, entry = "urls", {"rate": {"regex": "urls.txt"}, "at_most": RARE}
    elif (match := SHARE.match(part)) or (match := SHARE_IN.search(part)):
        name, entry = _share(wish, match, unsafe_by)
    else:
        raise UserError(f"`{part}` is no known limit; write {EXAMPLES}, or NAME: {{...}} as docs/limits.md")
    if name in wish.limits:
        raise UserError(f"`{part}`: there is a limit {name} already")
    wish.limits[name] = entry


def _parse_limit(part: str) -> tuple[str, dict[str, Any]]:
    try:
        entries = yaml.safe_load(part)
    except yaml.YAMLError as error:
        raise UserError(f"`{part}` is no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(entries, dict) or len(entries) != 1 or not isinstance(next(iter(entries.values())), dict):
        raise UserError(f"`{part}`: write one limit, NAME: {{rate: {{rule: refusal}}, at_most: 5 %}}")
    ((name, entry),) = entries.items()
    return str(name), entry


def _mean(match: re.Match[str], model: str) -> tuple[str, dict[str, Any]]:
    side, number, unit = match[1].lower().replace(" ", "_"), float(match[2]), match[3].lower()
    source = {"rule": unit, **({"tokenizer": model} if unit == "tokens" else {})}
    return ("length" if side == "at_most" else "not_short"), {"mean": source, side: f"{number:g} {unit}"}


def _share(wish: Wish, match: re.Match[str], unsafe_by: str) -> tuple[str, dict[str, Any]]:
    if match.re is SHARE:
        side, number, trait = match[1].lower().replace(" ", "_"), match[2], match[3].strip().lower()
    else:
        side, number, trait = "at_least", match[2], match[1].lower()
    share = f"{number} %"
    if trait in ("unsafe", "unsafe answers"):
        wish.unsafe = True
        return "unsafe", {"rate": {"score_model": unsafe_by}, side: share}
    if trait in ("refusals", "refused", "empty"):
        return trait, {"rate": {"rule": "empty" if trait == "empty" else "refusal"}, side: share}
    name = re.sub(r"[ -]+", "_", trait)
    wish.judge = True
    wish.files[f"{name}.md"] = f"Is this answer {trait}?\n"
    return name, {"rate": {"judge": {"question": f"{name}.md"}}, side: share}
