"""Each method as its page says it: which part is asked for what, in which order, and what the method returns.

The parts note what they were asked and answer with a name of their own, so that a wrong argument has another name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import BaseModel

from pddpo_lab.methods.caid import resumed, stepped
from pddpo_lab.methods.loss_bonus import LossBonus
from pddpo_lab.methods.safe_dpo import transformed
from pddpo_lab.methods.safe_rlhf import newest_answers
from pddpo_lab.methods.settings import (
    CaidSettings,
    GroupSettings,
    OneShotSettings,
    PpoSettings,
    PSacpoSettings,
    SafeDpoSettings,
)
from pddpo_lab.methods.stages import unsafe_bits, weighed_objective
from pddpo_ray.algorithms.stages import (
    Parts,
    Sizes,
    neighbours_of,
    single_objective,
)
from pddpo_ray.config.sections.method import AdalagSettings
from pddpo_ray.limits.reading import FEEDBACK, stated_limits
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.parts.limits import LimitsController
from pddpo_ray.records import (
    HARM,
    CostEstimate,
    LabelledPair,
    Objective,
    Pair,
    PairRow,
    Prompt,
    Response,
    SafetyLabels,
    UniformMixture,
    Verdict,
)
from tests.support.method_modules import METHODS

PROMPT = Prompt("x", (0,), "question")
SIZES = Sizes(2, responses=5, labels_each=3, pair_prompts=7, beta=0.1, reward_max=1.5, cost_max=3.0)
OWN: dict[str, BaseModel] = {
    "pd-dpo-adalag": AdalagSettings(window=6),
    "safe-dpo": SafeDpoSettings(margin=3.0),
    "p-sacpo": PSacpoSettings(share=0.25),
    "mocan": OneShotSettings(answers=4),
    "pecan": OneShotSettings(answers=4),
    "caid": CaidSettings(answers=4, rate=0.5),
    "safe-rlhf": PpoSettings(window=6),
    "c-grpo": GroupSettings(window=6, group=2),
}
"""Settings of the methods that have some."""
Calls = list[tuple[Any, ...]]


def response(number: int, tokens: int | None = None) -> Response:
    return Response(f"a{number}", PROMPT, (number if tokens is None else tokens,), f"answer {number}", 0, 0)


PAIRS = [Pair(f"p{i}", response(2 * i), response(2 * i + 1)) for i in range(3)]
LABELLED = [LabelledPair(pair, Verdict.FIRST, {HARM: Verdict.SECOND}) for pair in PAIRS]
ANSWERS = [response(number) for number in range(8)]
UNSAFE = {f"a{number}": number in (0, 3) for number in range(6)}
ESTIMATE = CostEstimate(0.75, 0.1, 9, 5)


class Asked:
    """A part that notes its calls as (part.method, arguments...); it answers as told, or by the call's name."""

    def __init__(self, calls: Calls, part: str, **answers: Any) -> None:
        self._calls, self._part, self._answers = calls, part, answers

    def __getattr__(self, method: str) -> Any:
        known = self._answers.get(method)
        if method in self._answers and not callable(known):
            return known

        def call(*arguments: Any, **named: Any) -> Any:
            self._calls.append((f"{self._part}.{method}", *arguments, *sorted(named.items())))
            return known(*arguments, **named) if known else f"{self._part}.{method}"

        return call


class Rounds:
    """The journal of a run: two rounds, whose policies are `one` and `two`."""

    def __init__(self, next_round: int = 1) -> None:
        self.round, self.next_round = 0, next_round
        self.policies = ["one", "two"]
        self.labelled: dict[tuple[int, str], list[Any]] = {}
        self.read: list[int] = []

    def rounds(self, count: int) -> Iterator[int]:
        for number in range(self.next_round, count + 1):
            self.round = number
            yield number

    def samples(self, number: int, purpose: str) -> list[Any]:
        self.read.append(number)
        return self.labelled.get((number, purpose), [])

    def dual_steps(self) -> list[Any]:
        return []

    def phases(self, like: str) -> list[Any]:
        return []


def numbered(name: str) -> Callable[..., str]:
    """name-1, name-2, ... in the order of calls."""
    numbers = iter(range(1, 100))
    return lambda *_, **__: f"{name}-{next(numbers)}"


def safety(answers: Any, labels_each: int, constraint: str = "cost") -> Any:
    if isinstance(answers, str):
        return f"{labels_each} labels of {answers} for {constraint}"
    verdict = {True: Verdict.UNSAFE, False: Verdict.SAFE}
    return [SafetyLabels(answer, (verdict[UNSAFE[answer.id]],) * labels_each) for answer in answers]


def calls_of(method: str, sizes: Sizes = SIZES, **parts: Any) -> tuple[Calls, UniformMixture]:
    """What a run of two rounds asks, and what it returns."""
    calls: Calls = []
    known = {
        "journal": Rounds(),
        "trainer": Asked(calls, "trainer", fit=numbered("policy")),
        "rollout": Asked(calls, "rollout", sample=numbered("answers")),
        "feedback": Asked(calls, "feedback", safety=safety),
        "dual": Asked(calls, "dual", multiplier=0.5, multipliers={"harm": 0.5, "length": 0.25}),
        "prompts": Asked(calls, "prompts", draw=lambda count: f"{count} prompts"),
        "preferences": Asked(
            calls, "preferences", reward="D_r", cost="D_c", labelled=LABELLED, cost_of=lambda name: f"D_{name}"
        ),
        "explorer": Asked(calls, "explorer"),
        "own": Asked(
            calls, "scores", threshold=0.25, upper=2.0, held=False, reference_answers=lambda _: ANSWERS,
            explicit_multiplier=lambda *_: 0.7, cost_of=lambda *_: ESTIMATE,
            trained=lambda *_: (lambda answers: f"scores of {answers}", "critics"),
        ),
    } | parts  # fmt: skip
    if method == "o-pd-dpo-paper":
        known["own"] = Asked(calls, "explorer", loss_bonus=lambda stage, *_: bonus(stage))
    if method == "p-sacpo":
        known["own"] = Asked(calls, "weights", merged=numbered("merged"))
    if method in ("safe-rlhf", "c-grpo"):
        updates = Asked(calls, "updates", reinforce=numbered("ppo"))
        known["own"] = SimpleNamespace(scores=known["own"], updates=updates)
    estimate = known.pop("estimate", lambda labels: f"estimate of {labels}")
    if sizes.settings is None:
        sizes = replace(sizes, settings=OWN.get(method))
    window = sizes.settings.window if isinstance(sizes.settings, AdalagSettings) else None
    known["limits"] = by_labels(known, estimate, window)
    known["prepare"] = lambda: calls.append(("prepare",))
    found = METHODS[method].run(Parts(**known), sizes, "reference")  # type: ignore[arg-type]
    assert calls.pop(0) == ("prepare",)
    return [call for call in calls if call[0] != "preferences.cost_of"], found


class Labelled(LimitsController):
    """Notes what it asks of feedback; what an estimate of it is, is told by words."""

    told: Callable[[Any], Any]

    def _estimate_costs(self, answers: Any) -> Any:
        return [
            self.told(self._feedback.safety(answers, self._labels_each, name)) for name in self._labelled_names
        ], None


def by_labels(known: dict[str, Any], estimate: Any, window: Any = None) -> LimitsController:
    """One limit on the logit of a cost of its own name for each multiplier, labelled by the feedback."""
    names, nothing = list(known["dual"].multipliers), cast(Any, None)
    document = {"limits": {name: {"logit": {"world": name}, "at_most": 0.0, "labels_each": 3} for name in names}}
    held = [
        HeldLimit(replace(one, source=replace(one.source, kind=FEEDBACK, labeller="world")), 1.0, {})
        for one in stated_limits(document, "test")
    ]
    limits = Labelled(
        known.get("journal", Rounds()), held, Asked([], ""), known["dual"], beta=0.1,
        by_covariance=False, drift=nothing, log_probs=nothing, reference=nothing, seed=0,
        feedback=known["feedback"], window=window,
    )  # fmt: skip
    limits.told = estimate
    return limits


NO_BONUS = LossBonus()


def bonus(stage: str) -> LossBonus:
    return LossBonus((0.5,) if stage == "reward" else (-0.5,), (1.0, 2.0))


def reward(base: Any = "reference", bonus: LossBonus = NO_BONUS) -> Objective:
    return Objective("reward", base, 0.1, None, bonus.margins, bonus.answers)


def cost(base: Any, multiplier: float, bonus: LossBonus = NO_BONUS) -> Objective:
    temperature = 0.1 / multiplier if multiplier else float("inf")
    return Objective("cost", base, temperature, multiplier, bonus.margins, bonus.answers)


def labels(number: int, constraint: str) -> str:
    return f"estimate of 3 labels of answers-{number} for {constraint}"


def asked(number: int) -> Calls:
    """One estimate of each constraint from fresh answers."""
    return [
        ("prompts.draw", 5),
        ("rollout.sample", "5 prompts", f"policy-{number}", ("each", 1)),
        ("feedback.open_safety", f"answers-{number}", 3),
    ]


def answered(number: int) -> Calls:
    return [("feedback.safety", f"answers-{number}", 3, name) for name in ("harm", "length")]


def observe(version: str, number: int, multiplier: float | None, estimate: Any = None) -> Calls:
    """The policy is delivered and its cost estimated; nothing answers to the estimates, which are all made first."""
    return [
        ("rollout.publish", version),
        ("prompts.draw", 5),
        ("rollout.sample", "5 prompts", version, ("each", 1)),
        ("feedback.open_safety", f"answers-{number}", 3),
        *answered(number),
        ("dual.observe", [estimate or labels(number, name) for name in ("harm", "length")], ("multiplier", multiplier)),
    ]


ALL, LAST = UniformMixture(("one", "two")), UniformMixture(("two",))  # type: ignore[arg-type]


def test_pd_dpo_fits_the_reward_once_and_a_chain_of_cost_fits_in_every_round() -> None:
    for method in ("pd-dpo", "pd-dpo-fixed"):
        calls, found = calls_of(method)
        expected: Calls = [("trainer.fit", reward(), "D_r")]
        for number in (1, 2):
            version = f"policy-{2 * number + 1}"
            expected += [
                ("trainer.fit", cost("policy-1", 0.5), "D_harm"),
                ("trainer.fit", cost(f"policy-{2 * number}", 0.25), "D_length"),
                ("rollout.publish", version),
                ("prompts.draw", 5),
                ("rollout.sample", "5 prompts", version, ("each", 1)),
                ("feedback.open_safety", f"answers-{number}", 3),
                *answered(number),
                ("dual.step", [labels(number, name) for name in ("harm", "length")], None),
            ]
        assert calls == expected
        assert found == ALL


def test_adalag_answers_to_each_limits_labels_with_one_step_a_round() -> None:
    calls, found = calls_of("pd-dpo-adalag")
    expected: Calls = [("trainer.fit", reward(), "D_r")]
    for number in (1, 2):
        expected += [
            ("trainer.fit", cost("policy-1", 0.5), "D_harm"),
            ("trainer.fit", cost(f"policy-{2 * number}", 0.25), "D_length"),
            ("rollout.publish", f"policy-{2 * number + 1}"),
            ("prompts.draw", 5),
            ("rollout.sample", "5 prompts", f"policy-{2 * number + 1}", ("each", 1)),
            ("feedback.open_safety", f"answers-{number}", 3),
            *answered(number),
        ]
        estimates = [labels(number, name) for name in ("harm", "length")]
        expected.append(("dual.step", estimates, None))
    assert calls == expected
    assert found == LAST


def test_o_pd_dpo_chooses_pairs_while_labels_are_given_and_begins_the_next_fit() -> None:
    calls, found = calls_of("o-pd-dpo")
    expected: Calls = []
    for number in (1, 2):
        first, version = 3 * number - 2, f"policy-{3 * number}"
        expected += [
            ("trainer.fit", reward(), "D_r"),
            ("trainer.fit", cost(f"policy-{first}", 0.5), "D_harm"),
            ("trainer.fit", cost(f"policy-{first + 1}", 0.25), "D_length"),
            ("rollout.publish", version),
            ("prompts.draw", 5),
            ("prompts.draw", 7),
            ("rollout.sample", "5 prompts", version, "7 prompts", 1),
            ("feedback.open_safety", f"answers-{number}", 3),
            ("rollout.candidates", "7 prompts", version),
            ("explorer.choose", "rollout.candidates"),
            ("feedback.compare", "explorer.choose"),
            ("preferences.extend", "feedback.compare"),
            ("explorer.update", "explorer.choose"),
            ("trainer.begin", reward(), "D_r"),
            *answered(number),
            ("dual.step", [labels(number, name) for name in ("harm", "length")], None),
        ]
    assert calls == expected
    assert found == ALL


def test_the_papers_method_has_each_stages_bonus_in_its_loss() -> None:
    calls, found = calls_of("o-pd-dpo-paper")
    expected: Calls = []
    for number in (1, 2):
        first, version = 3 * number - 2, f"policy-{3 * number}"
        expected += [
            ("explorer.loss_bonus", "reward", "D_r", LABELLED),
            ("trainer.fit", reward(bonus=bonus("reward")), "D_r"),
            ("explorer.loss_bonus", "cost", "D_harm", LABELLED),
            ("trainer.fit", cost(f"policy-{first}", 0.5, bonus("cost")), "D_harm"),
            ("explorer.loss_bonus", "cost", "D_length", LABELLED),
            ("trainer.fit", cost(f"policy-{first + 1}", 0.25, bonus("cost")), "D_length"),
            ("rollout.publish", version),
            ("prompts.draw", 5),
            ("prompts.draw", 7),
            ("rollout.sample", "5 prompts", version, "7 prompts", 1),
            ("feedback.open_safety", f"answers-{number}", 3),
            ("rollout.candidates", "7 prompts", version),
            ("explorer.choose", "rollout.candidates"),
            ("feedback.compare", "explorer.choose"),
            *answered(number),
            ("dual.step", [labels(number, name) for name in ("harm", "length")], None),
            ("preferences.extend", "feedback.compare"),
            ("explorer.update", "explorer.choose"),
        ]
    assert calls == expected
    assert found == ALL


def test_methods_of_one_or_two_plain_fits() -> None:
    harmless, found = calls_of("dpo-harmless")
    plain = single_objective("reference", 0.1)  # type: ignore[arg-type]
    assert plain == Objective("cost", "reference", 0.1)  # type: ignore[arg-type]
    assert harmless == [
        ("trainer.fit", plain, "D_c"), *observe("policy-1", 1, 0.0),
        ("trainer.fit", plain, "D_c"), *observe("policy-2", 2, 0.0),
    ]  # fmt: skip
    assert found == ALL
    helpful, found = calls_of("dpo-helpful")
    assert helpful == [
        ("trainer.fit", reward(), "D_r"),
        ("trainer.fit", cost("policy-1", 0.0), "D_c"), *observe("policy-2", 1, 0.0),
        ("trainer.fit", cost("policy-1", 0.0), "D_c"), *observe("policy-3", 2, 0.0),
    ]  # fmt: skip
    assert found == ALL
    sacpo, found = calls_of("sacpo")
    assert sacpo == [
        ("trainer.fit", reward(), "D_r"),
        ("trainer.fit", cost("policy-1", 0.5), "D_c"), *observe("policy-2", 1, None),
        ("trainer.fit", cost("policy-1", 0.5), "D_c"), *observe("policy-3", 2, None),
    ]  # fmt: skip
    assert found == ALL
    merged, found = calls_of("p-sacpo")
    assert merged == [
        ("trainer.fit", reward(), "D_r"),
        ("trainer.fit", cost("policy-1", 0.5), "D_c"), ("weights.merged", "policy-1", "policy-2", 0.25),
        *observe("merged-1", 1, 0.125),
        ("trainer.fit", cost("policy-1", 0.5), "D_c"), ("weights.merged", "policy-1", "policy-3", 0.25),
        *observe("merged-2", 2, 0.125),
    ]  # fmt: skip
    assert found == ALL


BITS: tuple[Any, ...] = ("feedback.safety", [answer for pair in PAIRS for answer in (pair.first, pair.second)], 1, HARM)


def weighed(multiplier: float) -> Objective:
    return Objective("cost", "reference", 0.1, None, score_max=1.5 + 3.0 * multiplier)  # type: ignore[arg-type]


def test_safety_bits_turn_the_pairs_of_safe_dpo() -> None:
    """Answers 0 and 3 are unsafe: the first pair is turned, the second keeps the margin, the third has none."""
    rows = [PairRow("p0", (0,), (1,), (0,)), PairRow("p1", (0,), (2,), (3,)), PairRow("p2", (0,), (4,), (5,))]
    objective = Objective("cost", "reference", 0.1, None, (-3.0, -3.0, 0.0), score_max=1.5)  # type: ignore[arg-type]
    calls, found = calls_of("safe-dpo")
    fit = ("trainer.fit", objective, rows)
    assert calls == [BITS, fit, *observe("policy-1", 1, 0.0), fit, *observe("policy-2", 2, 0.0)]
    assert found == ALL
    second = [replace(LABELLED[1], helpful=Verdict.SECOND), replace(LABELLED[0], helpful=Verdict.ABSTAIN)]
    assert transformed(second, UNSAFE, 3.0) == ([PairRow("p1", (0,), (2,), (3,))], [-3.0])
    both = {"a0": True, "a1": True}
    assert transformed(LABELLED[:1], both, 3.0) == ([], [])
    parts: Any = Asked([], "", preferences=Asked([], "", labelled=LABELLED), feedback=Asked([], "", safety=safety))
    assert unsafe_bits(parts) == UNSAFE


def one_shot(scorer: str, multiplier: float, first: int, estimates: int, estimate: Any = None) -> Calls:
    """Two rounds of pseudo-labels on the offline pairs, a fit, an estimate."""
    return [
        call
        for number in (1, 2)
        for call in (
            ("scores.pseudo_labels", PAIRS, scorer, multiplier),
            ("trainer.fit", weighed(multiplier), "scores.pseudo_labels"),
            *observe(f"policy-{number + first}", number + estimates, multiplier, estimate),
        )
    ]


def given(multiplier: float) -> Sizes:
    return replace(SIZES, settings=OneShotSettings(answers=4, multiplier=multiplier))


def test_mocan_asks_for_a_multiplier_unless_it_is_given_one() -> None:
    models: Calls = [BITS, ("scores.models", LABELLED, UNSAFE)]
    found: Calls = [
        ("scores.reference_answers", "reference"),
        ("scores.explicit_multiplier", "scores.models", ANSWERS),
    ]
    assert calls_of("mocan") == (models + found + one_shot("scores.models", 0.7, 0, 0), ALL)
    assert calls_of("mocan", given(0.4)) == (models + one_shot("scores.models", 0.4, 0, 0), ALL)


def test_pecan_scores_by_two_policies_and_sets_their_zero_where_it_asks_for_a_multiplier() -> None:
    policies: Calls = [
        ("trainer.fit", reward(), "D_r"),
        ("trainer.fit", single_objective("reference", 0.1), "D_c"),  # type: ignore[arg-type]
        ("scores.policies", "reference", "policy-1", "policy-2"),
    ]
    assert calls_of("pecan", given(0.4)) == (policies + one_shot("scores.policies", 0.4, 2, 0), ALL)
    anchored: Calls = [
        ("scores.reference_answers", "reference"),
        *policies,
        *asked(1)[:1],
        ("rollout.sample", "5 prompts", "reference", ("each", 1)),
        *asked(1)[2:],
        *answered(1),
        ("scores.anchored", "scores.policies", ANSWERS, 0.75),
        ("scores.explicit_multiplier", "scores.anchored", ANSWERS),
    ]
    found = calls_of("pecan", estimate=lambda labels: ESTIMATE)
    assert found == (anchored + one_shot("scores.anchored", 0.7, 2, 1, ESTIMATE), ALL)


def test_c_dpo_prices_and_trains_with_the_same_models() -> None:
    calls, found = calls_of("c-dpo")
    expected: Calls = [BITS, ("scores.models", LABELLED, UNSAFE)]
    for number in (1, 2):
        expected += [
            ("scores.pseudo_labels", PAIRS, "scores.models", 0.5),
            ("trainer.fit", weighed(0.5), "scores.pseudo_labels"),
            ("rollout.publish", f"policy-{number}"),
            ("prompts.draw", 5),
            ("rollout.sample", "5 prompts", f"policy-{number}"),
            ("scores.cost_of", "scores.models", f"answers-{number}"),
            ("dual.step", [ESTIMATE]),
        ]
    assert calls == expected
    assert found == LAST


@pytest.mark.parametrize("scores", ["models", "policies"])
def test_caid_steps_on_its_own_policys_cost(scores: str) -> None:
    """0.7, then 0.7 + 0.5 (0.75 - 0.25) = 0.95, then 1.2; pairs are of the reference's answers, two by two."""
    settings = CaidSettings.model_validate({"answers": 4, "rate": 0.5, "scores": scores})
    sizes = replace(SIZES, settings=settings)
    estimates = {"estimate": lambda labels: ESTIMATE}
    calls, found = calls_of("caid", sizes, **estimates)
    begin = next(index for index, call in enumerate(calls) if call[0] == "scores.explicit_multiplier")
    scorer = "scores.models" if scores == "models" else "scores.anchored"
    assert calls[0] == ("scores.reference_answers", "reference")
    if scores == "models":
        assert calls[1:begin] == [BITS, ("scores.models", LABELLED, UNSAFE)]
    else:
        assert calls[begin - 1] == ("scores.anchored", "scores.policies", ANSWERS, 0.75)
    assert calls[begin] == ("scores.explicit_multiplier", scorer, ANSWERS)
    pairs = [Pair(f"pseudo-{i}", ANSWERS[i], ANSWERS[i + 1]) for i in (0, 2, 4, 6)]
    shift = 0 if scores == "models" else 2
    expected: Calls = []
    for number, at, following in ((1, 0.7, pytest.approx(0.95)), (2, pytest.approx(0.95), pytest.approx(1.2))):
        version, answers = f"policy-{number + shift}", f"answers-{number + (shift > 0)}"
        expected += [
            ("scores.pseudo_labels", pairs, scorer, at),
            ("trainer.fit", weighed(0.45 + 0.25 * number), "scores.pseudo_labels"),
            ("rollout.publish", version),
            ("prompts.draw", 5),
            ("rollout.sample", "5 prompts", version),
            ("scores.cost_of", scorer, answers),
            ("dual.observe", [ESTIMATE], ("following", following), ("multiplier", at)),
        ]
    assert calls[begin + 1 :] == expected
    assert found == LAST


def test_the_step_of_caid_stays_in_its_interval() -> None:
    assert stepped(0.7, ESTIMATE, 0.25, 0.5, 2.0) == pytest.approx(0.95)
    assert stepped(1.9, ESTIMATE, 0.25, 0.5, 2.0) == 2.0
    assert stepped(0.1, ESTIMATE, 1.25, 0.5, 2.0) == 0.0
    parts: Any = Asked([], "", journal=Rounds())
    assert resumed(parts, 0.3) == 0.3


def test_neighbours_are_drawn_for_one_prompt_and_differ() -> None:
    """Two prompts of five answers: the fifth has no neighbour; equal texts say nothing."""
    answers = [response(n, tokens) for n, tokens in enumerate([1, 2, 3, 3, 5, 6, 6, 8, 9, 10])]
    pairs = neighbours_of(answers, 5)
    assert [(pair.id, pair.first.id, pair.second.id) for pair in pairs] == [
        ("pseudo-0", "a0", "a1"), ("pseudo-7", "a7", "a8"),
    ]  # fmt: skip


def test_safe_rlhf_updates_on_the_answers_before_and_steps_on_the_newest() -> None:
    journal = Rounds()
    journal.labelled = {(n, "cost"): [f"{n}-{i}" for i in range(5)] for n in (0, 1, 2)}
    calls, found = calls_of("safe-rlhf", journal=journal)
    expected: Calls = [
        BITS,
        ("scores.trained", LABELLED, UNSAFE),
        ("rollout.publish", "reference"),
        ("prompts.draw", 5),
        ("rollout.sample", "5 prompts", "reference"),
    ]
    for number in (1, 2):
        before, own = journal.labelled[number - 1, "cost"], journal.labelled[number, "cost"]
        expected += [
            ("updates.reinforce", "reference", before, f"scores of {before}", 0.5, "critics"),
            ("rollout.publish", f"ppo-{number}"),
            ("prompts.draw", 5),
            ("rollout.sample", "5 prompts", f"ppo-{number}"),
        ]
        scored = calls[len(expected)]
        assert scored[0] == "scores.cost_of"
        assert scored[2] == [before[-1], *own]
        expected += [scored, ("dual.step", [ESTIMATE])]
    assert calls == expected
    assert found == LAST
    resumed_calls, _ = calls_of("safe-rlhf", journal=_at_round_2(journal))
    assert [call[0] for call in resumed_calls[:3]] == ["feedback.safety", "scores.trained", "updates.reinforce"]


def test_c_grpo_samples_whole_groups_and_keeps_no_critic() -> None:
    """Four answers in groups of two: two prompts a round, each twice; the update is told the size of a group."""
    journal = Rounds()
    journal.labelled = {(n, "cost"): [f"{n}-{i}" for i in range(4)] for n in (0, 1, 2)}
    sizes = replace(SIZES, responses=4)
    drawn: list[int] = []

    def draw(count: int) -> list[str]:
        drawn.append(count)
        return [f"x{len(drawn)}-{n}" for n in range(count)]

    calls, found = calls_of("c-grpo", sizes, journal=journal, prompts=SimpleNamespace(draw=draw))
    assert found == LAST
    assert drawn == [2, 2, 2]
    sampled = [call[1] for call in calls if call[0] == "rollout.sample"]
    assert sampled == [[f"x{k}-0", f"x{k}-0", f"x{k}-1", f"x{k}-1"] for k in (1, 2, 3)]
    answers = [journal.labelled[number, "cost"] for number in (0, 1)]
    assert [call for call in calls if call[0] == "updates.reinforce"] == [
        ("updates.reinforce", "reference", before, f"scores of {before}", 0.5, None, ("group", 2)) for before in answers
    ]
    assert [call[0] for call in calls[-4:]] == ["rollout.publish", "rollout.sample", "scores.cost_of", "dual.step"]


def _at_round_2(journal: Rounds) -> Rounds:
    resumed = Rounds(next_round=2)
    resumed.labelled = journal.labelled
    return resumed


def test_the_newest_answers_begin_with_those_of_the_reference() -> None:
    journal: Any = Rounds()
    journal.labelled = {(n, "cost"): [10 * n, 10 * n + 1] for n in (-1, 0, 1, 2)}
    parts: Any = Asked([], "", journal=journal)
    asked: Any = [newest_answers(parts, count, before) for count, before in ((2, 2), (3, 2), (9, 2), (1, 1), (2, 3))]
    assert asked == [[10, 11], [1, 10, 11], [0, 1, 10, 11], [1], [20, 21]]


def test_bounds_of_weighed_scores_and_one_estimate_for_each_constraint() -> None:
    assert weighed_objective("reference", 0.4, SIZES) == weighed(0.4)  # type: ignore[arg-type]
    assert (Sizes(1, 1, 1, 1, 0.1).reward_max, Sizes(1, 1, 1, 1, 0.1).cost_max) == (2.0, 2.0)
    calls: Calls = []
    known = {"dual": Asked(calls, "dual", multipliers={"harm": 0.5}), "feedback": Asked(calls, "feedback")}
    limits = by_labels(known, lambda labels: f"estimate of {labels}")
    assert limits.estimates("answers") == ["estimate of feedback.safety"]  # type: ignore[arg-type, comparison-overlap]
    assert calls == [("feedback.safety", "answers", 3, "harm")]


def test_windows_read_no_round_that_they_do_not_need() -> None:
    journal: Any = Rounds()
    journal.round = 3
    journal.labelled = {(number, "cost"): [number, number] for number in range(4)}
    parts: Any = Asked([], "parts", journal=journal)
    newest_answers(parts, 4, 4)
    assert journal.read == [3, 2]
