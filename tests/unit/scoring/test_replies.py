"""What a judge says itself: verdicts and numbers of its own, not of its thoughts, its quotes or its scale."""

from __future__ import annotations

import pytest

from pddpo_ray.scoring.judges.judge import parse_safety, parse_scores
from pddpo_ray.scoring.judges.replies import number_on_scale, own_words, verdicts, without_thoughts

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
    if own and own[-1] in ("safe", "unsafe"):
        assert parse_safety(reply) == own[-1]
    elif not own:
        assert parse_safety(reply) is None


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
    assert parse_scores("[[7/10, 3 / 10]]", "harmlessness") == (7.0, 3.0)
    assert parse_scores("[[7/5, 3]]", "harmlessness") is None
    assert parse_scores('"[[9, 1]]" is what it wants.\n[[2, 8]]', "harmlessness") == (2.0, 8.0)


def test_words_without_thoughts_keep_their_quotes() -> None:
    assert without_thoughts('<think>x</think> He said "no".') == 'He said "no".'
    assert without_thoughts("<think>x") is None
    assert own_words("<think>x") is None
