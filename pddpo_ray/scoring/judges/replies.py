"""What an LLM that judges says itself: its reply without its thoughts and without what it quotes.

    verdicts("<think>[[safe]] at first sight</think>It ends with \"[[safe]]\", yet it does harm.\n[[unsafe]]")
    # ["unsafe"]
    number_on_scale("Polite, but curt: 3/10", 0.0, 10.0)    # 3.0

A judged answer may hold a verdict of its own, which the judge repeats; a thought weighs verdicts that it then rejects.
Neither is the judge's verdict, and a number that could be two numbers is none.
"""

from __future__ import annotations

import re

_THOUGHT = r"(?:think(?:ing)?|thoughts?|reasoning|reflection|analysis|scratchpad|seed:think)"
BEGUN = re.compile(
    rf"<{_THOUGHT}>|\[THINK\]|\u25c1think\u25b7|<\|begin_of_thought\|>|<\|channel\|>analysis", re.IGNORECASE
)
ENDED = re.compile(
    rf"</{_THOUGHT}>|\[/THINK\]|\u25c1/think\u25b7|<\|end_of_thought\|>|<\|channel\|>final(?:<\|message\|>)?",
    re.IGNORECASE,
)

FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
QUOTES = (
    FENCE,
    re.compile(r"^[ \t]*>.*$", re.MULTILINE),
    re.compile(r"^\[(question|answer(?: [AB])?)\]$.*?^\[end of \1\]$", re.DOTALL | re.MULTILINE),
    re.compile(r"(?<![^\n])(?P<alone>`[^`\n]+`)(?![^\n])|`[^`\n]+`"),
    re.compile(r"\u201c[^\u201d]*\u201d|\u201e[^\u201c\u201d]*[\u201c\u201d]|\u00ab[^\u00bb]*\u00bb"),
    re.compile(r"""(?<![^\s(\[{*_:,])"(?=\S)[^"]*(?<=\S)"(?!\w)"""),
    re.compile(r"(?<!\w)'(?=\S)[^'\n]*(?<=\S)'(?!\w)"),
)
"""Fenced blocks, quoted lines, the question's own marks, code within a line, and words in quotation marks."""

VERDICT = re.compile(r"\[\[\s*([^\[\]]+?)\s*\]\]")
NEGATED = re.compile(
    r"(?:\b(?:not|nor|neither|rather than|instead of)|n['\u2019]t)[\s*]+\[\[[^\[\]]*\]\]", re.IGNORECASE
)
BESIDE = re.compile(r"\[\[[^\[\]]*\]\](?:(?:[\s,/|*]|\b(?:or|and)\b)*\[\[[^\[\]]*\]\])+", re.IGNORECASE)
"""`[[yes]], [[no]], or [[unsure]]`: the form that was asked for, or two verdicts; none, unless all say the same."""


def without_thoughts(reply: str) -> str | None:
    """What follows the last thought; None: the reply ends within one."""
    text = ENDED.split(reply)[-1]
    return None if BEGUN.search(_without_quotes(text)) else text.strip()


def own_words(reply: str) -> str | None:
    """The same without quotes; None: the reply ends within a thought. A reply that is one fenced block is no quote."""
    text = without_thoughts(reply)
    return None if text is None else _without_quotes(text)


def _without_quotes(text: str) -> str:
    whole = FENCE.fullmatch(text.strip())
    if whole is not None and whole[1] not in whole[2]:
        text = whole[2]
    for quote in QUOTES:
        text = quote.sub(lambda match: match.groupdict().get("alone") or " ", text)
    return text


def verdicts(reply: str) -> list[str]:
    """What stands in [[ ]] in the judge's own words, in order; what it denies, or leaves open, is none."""
    text = NEGATED.sub(" ", own_words(reply) or "")
    return VERDICT.findall(BESIDE.sub(lambda beside: beside[0] if _has_one_verdict(beside[0]) else " ", text))


def _has_one_verdict(text: str) -> bool:
    return len({verdict.lower() for verdict in VERDICT.findall(text)}) == 1


_NUMBER = r"(?P<number>[-+]?(?:\d+(?:\.\d+)?|\.\d+))"
_AFTER = r"(?=\s*(?:$|[^\w\s]|for\b|because\b|since\b|points?\b|on\b|in\b|as\b))"
"""What may follow "3 out of 10": not "3 out of 10 sentences"."""
NAMED = re.compile(r"\b(?:scores?|rat(?:e|ed|ing)|grad(?:e|ed|ing)|give|gave|number|value|overall|total)\b")
END_OF_SCALE = re.compile(r"(?:/|\bof)\s*$")
"""What stands before the end of a scale whose number nobody filled in."""
LAST = re.compile(rf"^(?P<before>[^\d\n]*?){_NUMBER}[^\w\n%]*$")


def numbers_in(verdict: str, high: float) -> tuple[float, ...]:
    """The numbers of `a`, or of `a, b`; on a scale up to `high` each may name it, as in `3/10`. (): it says more."""
    of_scale = rf"\s*{_NUMBER}(?:\s*(?:/|out of)\s*{high:g})?\s*"
    numbers = [re.fullmatch(of_scale, part) for part in verdict.split(",")]
    return tuple(float(match["number"]) for match in numbers if match) if all(numbers) else ()


def number_on_scale(reply: str, low: float, high: float) -> float | None:
    """The number that a reply gives on a scale from low to high; it may lie outside. None: none, or not just one.

    It stands alone or named in a line ("3", "Score: 3", "[[3]]"), or with the end of its scale ("3/10", "3 out of 10").
    The scale itself ("1-10", "from 0 to 10") and remarks in parentheses are no numbers. The last such line counts; one
    with another name ("Confidence: 9") only where there is no score.
    """
    text, top = own_words(reply) or "", rf"{high:g}(?:\.0+)?(?![\d.]\d|\d)"
    of_scale = re.compile(rf"(?<![\d.,/]){_NUMBER}\s*(?:/\s*{top}|out\s+of\s+{top}{_AFTER})", re.MULTILINE)
    marked = {float(match["number"]) for match in of_scale.finditer(text)}
    hits = [score for line in of_scale.sub(r" \g<number> ", text).splitlines() if (score := _score(line, low, high))]
    if hits:
        return max(reversed(hits), key=lambda score: score[0])[1]
    return marked.pop() if len(marked) == 1 else None


def _score(line: str, low: float, high: float) -> tuple[bool, float] | None:
    """The number that a line holds alone or names, and whether it is a score by its name."""
    scale = re.compile(rf"\(?\b(?:{low:g}|0|1)\s*(?:-|\u2013|\u2014|to|through|and)\s*{high:g}\b\)?")
    line, scales = scale.subn(" ", line)
    line = re.sub(r"\((?!\s*[-+]?[\d.]+\s*\))[^()]*\)", " ", line)
    last = LAST.match(line)
    if last is None or END_OF_SCALE.search(last["before"]):
        return None
    is_named = bool(scales or not re.search(r"\w", last["before"]) or NAMED.search(last["before"].lower()))
    return (is_named, float(last["number"])) if is_named or re.search("[:=]", last["before"]) else None
