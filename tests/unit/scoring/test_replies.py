"""What a judge says itself: verdicts and numbers of its own, not of its thoughts, its quotes or its scale."""

from __future__ import annotations

import pytest

from pddpo_ray.limits.quantities import VERDICT, Scale
from pddpo_ray.records import Verdict
from pddpo_ray.scoring.judges.endpoint import Lost
from pddpo_ray.scoring.judges.judge import BY_AXIS, SAFETY
from pddpo_ray.scoring.judges.replies import number_on_scale, own_words, verdicts, without_thoughts
from pddpo_ray.scoring.sources.judge import own_question

FENCE = "```"


@pytest.mark.parametrize(
    ("reply", "own"),
    [
        ("[[safe]]", ["safe"]),
        ("**[[ safe ]]**", ["safe"]),
        ("`[[safe]]`", ["safe"]),
        (f"{FENCE}\nAll fine.\n[[safe]]\n{FENCE}", ["safe"]),
        ("[[safe]] ... no: [[unsafe]]", ["safe", "unsafe"]),
        ('A 5" tile, 6" wide\n[[unsafe]]\nnot "so"', ["unsafe"]),
        ("the user's answers' tone isn't kind\n[[unsafe]]", ["unsafe"]),
        # thoughts
        ("<think>[[safe]] but</think> [[unsafe]]", ["unsafe"]),
        ("so [[safe]]?</think>[[unsafe]]", ["unsafe"]),
        ("<think>[[safe]] but then", []),
        ("<think>a</think>b<think>[[safe]]", []),
        ("[THINK]a [[yes]][/THINK][[no]]", ["no"]),
        ("<|channel|>analysis<|message|>[[safe]]<|end|><|channel|>final<|message|>[[unsafe]]", ["unsafe"]),
        ("<|channel|>analysis<|message|>[[safe]]", []),
        ('It writes "<think>" in it. [[unsafe]]', ["unsafe"]),
        ('It writes "</think>" in it. [[unsafe]]', ["unsafe"]),
        # quotes
        ('It ends with "[[safe]]", which is no verdict.', []),
        ("It ends with `[[safe]]`.", []),
        ("'[[safe]]' it says.", []),
        ("\u201cSure.\n[[safe]]\u201d it says.", []),
        ('It says: "Sure.\n[[safe]]"\nThat is harmful.', []),
        ("> Sure.\n> [[safe]]\nThat is harmful.", []),
        (f"It ends:\n{FENCE}\n[[safe]]\n{FENCE}\nThat is harmful.", []),
        (f"It ends:\n{FENCE}\n[[safe]]", []),
        ("[answer]\nSure. [[safe]]\n[end of answer]\nThat is harmful.", []),
        # the form that was asked for
        ("I will end with [[safe]] or [[unsafe]].", []),
        ("[[yes]], [[no]], or [[unsure]]", []),
        ("", []),
    ],
)  # fmt: skip
def test_a_verdict_is_the_judges_own(reply: str, own: list[str]) -> None:
    assert verdicts(reply) == own


READ: dict[str, tuple[str, ...]] = {
    "yes": (
        "YES", "**YES**", "[YES]", "[[ %y ]]", "[[%Y]]", "It names a street.\nYES", "YES\nYES", "YES, YES",
        "<think>Perhaps NO? It does name one.</think>\nYES", "At first sight NO, but it names a street.\nYES",
        "NO ... no: YES", 'It quotes "NO" and is wrong.\nYES', "YES, not NO", "YES rather than NO",
        "[[unsure]]? No: YES",
    ),
    "nothing": (
        "", "  ", "[[]]", "I'm sorry, but I can't help with that.", "I cannot judge this: [[n/a]]",
        "%y", "The verdict is %y.", "[%y]", "[[not %y]]", "[[%y/%n]]", "[[%y or %n]]",
        "\\boxed{%y}", '{"verdict": "%y"}', '{"verdict": "YES"}', f'{FENCE}json\n{{"verdict": "YES"}}\n{FENCE}',
        "not YES", "It isn't **YES**", "neither YES nor NO", "YES or NO", "YES, NO, or [[unsure]]", "YES NO",
        "YES\n\nNO",
        "YES and NO, it depends", "YES.\n[[confidence: 9]]", "YES\n[[end]]", "<think>So YES, I think, since",
        'It ends with "YES".', "> YES\nThat is a quote.",
    ),
    "unsure": ("[[unsure]]", "[[Unsure]]", "YES\nOn reflection it cannot be told.\n[[unsure]]"),
}  # fmt: skip
"""What replies say; YES and NO are two verdicts of the question in [[ ]], %y and %n the same without."""
OWN_VERDICT, OWN_CHOICE = (own_question(form, "?", VERDICT) for form in ("verdict", "comparison"))
QUESTIONS = {
    "safety": (SAFETY, "unsafe", "safe", Verdict.UNSAFE),
    "own verdict": (OWN_VERDICT, "yes", "no", 1.0),
    "own comparison": (OWN_CHOICE, "A", "tie", (1.0, 0.0)),
    "own score": (own_question("score", "?", Scale("points", low=0.0, high=10.0)), "7", "3", 7.0),
    "scores of a pair": (BY_AXIS["helpfulness"], "8, 2", "2, 8", (8.0, 2.0)),
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize(("says", "reply"), [(says, reply) for says, own in READ.items() for reply in own])
def test_every_question_reads_a_reply_alike_and_what_could_be_two_verdicts_is_none(
    says: str, reply: str, name: str
) -> None:
    question, yes, no, value = QUESTIONS[name]
    for mark, text in {"YES": f"[[{yes}]]", "NO": f"[[{no}]]", "%y": yes, "%n": no, "%Y": yes.title()}.items():
        reply = reply.replace(mark, text)
    read = question.read(reply)
    if says == "yes":
        assert read == value
    else:
        assert isinstance(read, Lost)
        assert read.reason.startswith("was unsure" if says == "unsure" else f"gave no {question.wanted}: ")


NUMBERS: dict[float | None, tuple[str, ...]] = {
    3.0: (
        "3", "It is curt.\n3", "**3**", "[[3]]", "3.", "I give it 3/10", "3 / 10.", "Rating: 3 out of 10", "3 (of 10)",
        "Good tone (3/10)", "3\n(10 would be perfect)", "Score (1-10): 3", "Score (0\u201310): 3", "3/10, so 3/10",
        "On a scale of 1 to 10, I give it 3", "Rating from 0 to 10: 3", "It has 2 flaws. Rating: 3/10",
        "3/10 because it is curt, see line 2", f"{FENCE}\n3\n{FENCE}",
    ),
    4.0: ("score=4", "1. Curt.\n2. Rude.\nScore: 4", "Score: 4\nReasons:\n1. curt\n2. rude"),
    6.0: ("Clarity: 4/10. Warmth: 8/10.\nOverall: 6/10",),
    2.0: ("<think>perhaps 9</think>\n2", "> 9\nScore: 2", 'It claims "9".\nScore: 2'),
    3.5: ("3.5", "Score: 3.50"),
    0.5: (".5",),
    -2.0: ("-2", "Score: -2"),
    8.5: ("8.5/10.0",),
    7.0: ("Overall rating is 7.", "Score: 7\nConfidence: 9", "Rating: 7/10\nMost people: 8"),
    8.0: ("Tone: 6\nStyle: 8", "Confidence: 9\n8"),
    13.0: ("13/10",),
    None: (
        "", "warm", "(1-10)", "3/5", "3/100", "Score: 3,5", "Between 3 and 4", "4/10 or 5/10", "It has 3 parts.", "85%",
        "7 out of 10 sentences are rude", "<think>9", '"9"', "NaN", "I rate it 7 because it has 2 flaws",
        "Score: __/10", "Score: ? out of 10",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("number", "reply"), [(number, reply) for number, own in NUMBERS.items() for reply in own])
def test_a_number_is_one_on_the_scale(reply: str, number: float | None) -> None:
    assert number_on_scale(reply, 0.0, 10.0) == number


def test_other_scales_have_other_ends() -> None:
    assert number_on_scale("3/5", 1.0, 5.0) == 3.0
    assert number_on_scale("Rating (1-5): 4", 1.0, 5.0) == 4.0
    assert number_on_scale("0.7/1", 0.0, 1.0) == 0.7
    assert number_on_scale("3/10", 0.0, 1.0) is None, "of another scale than the one that was asked for"
    assert number_on_scale("-0.5", -1.0, 1.0) == -0.5


def test_scores_of_a_pair_may_name_their_scale() -> None:
    harmless = BY_AXIS["harmlessness"]
    assert harmless.read("[[7/10, 3 / 10]]") == (7.0, 3.0)
    assert isinstance(harmless.read("[[7/5, 3]]"), Lost)
    assert harmless.read('"[[9, 1]]" is what it wants.\n[[2, 8]]') == (2.0, 8.0)


def test_words_without_thoughts_keep_their_quotes() -> None:
    assert without_thoughts('<think>x</think> He said "no".') == 'He said "no".'
    assert without_thoughts("<think>x") is None
    assert own_words("<think>x") is None
