"""The parts one by one: cursors, counts, labels that are missing, delivery checks, warm starts, several constraints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from pddpo_lab.compare.runner import budget_of
from pddpo_lab.worlds.tabular.parts import TabularEngine, TabularTrainer
from pddpo_lab.worlds.tabular.world import TabularWorld, trap_world
from pddpo_ray.config import TrainerConfig
from pddpo_ray.contracts import Count, FitCommand, FitResult, FitSettings, RolloutEngine
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal, VersionEntry, read_journal
from pddpo_ray.parts.dual_step import DualController, LocalDual
from pddpo_ray.parts.fitting import CARRY_MAX, FitPlan, TrainerController, limit_rows, start_of
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.parts.preferences import Preferences, cost_rows, reward_rows
from pddpo_ray.parts.prompts import Prompts
from pddpo_ray.parts.sampling import Draw, Proposal, RolloutController
from pddpo_ray.records import (
    HARM,
    CandidateSet,
    CostEstimate,
    Decoding,
    Delivery,
    LabelledPair,
    Objective,
    Pair,
    PairRow,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
    Verdict,
)
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.estimates.prompt_sets import prompt_sets
from pddpo_ray.theory.multipliers.dual import DualState, ProjectedFixed, limit_state
from pddpo_ray.theory.seeds import counts, seed_of
from pddpo_ray.worlds.truth_labeller import WorldLabeller

WORLD = trap_world()
ANSWERS = [WORLD.response(x, y, f"a{x}{y}") for x in range(2) for y in range(3)]
PAIRS = [Pair(f"q{x}", WORLD.response(x, 0, f"f{x}"), WORLD.response(x, 1, f"s{x}")) for x in range(4)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as opened:
        yield opened


# --- prompts ------------------------------------------------------------------------------------------------------


def test_every_prompt_comes_once_per_epoch_and_a_restart_skips_none(tmp_path: Path) -> None:
    drawn: list[str] = []
    for _ in range(4):
        with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as journal:
            prompts = Prompts(WORLD.prompts, journal, seed=5)
            for _ in journal.rounds(journal.next_round):
                drawn += [prompt.id for prompt in prompts.draw(3)]
    assert len(drawn) == 12
    epochs = [drawn[start : start + 4] for start in (0, 4, 8)]
    assert all(sorted(epoch) == ["p0", "p1", "p2", "p3"] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_prompts_with_a_prior_are_drawn_as_often_as_it_says(journal: Journal) -> None:
    prior = (0.1, 0.2, 0.3, 0.4)
    drawn = [prompt.id for prompt in Prompts(WORLD.prompts, journal, 0, prior).draw(4000)]
    shares = np.array([drawn.count(f"p{x}") for x in range(4)]) / 4000
    # four standard errors of the largest share
    np.testing.assert_allclose(shares, prior, atol=4 * np.sqrt(0.24 / 4000))


def test_independent_draws_are_uniform_whatever_was_drawn_before_and_a_restart_skips_none(tmp_path: Path) -> None:
    """4,000 draws: each pair of neighbours as often as every other, by four standard errors; rounds repeat prompts."""
    drawn: list[int] = []
    for _ in range(4):
        with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as journal:
            prompts = Prompts(WORLD.prompts, journal, 5, independent=True)
            for _ in journal.rounds(journal.next_round):
                drawn += [int(prompt.id[1:]) for prompt in prompts.draw(1000)]
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (drawn[:-1], drawn[1:]), 1.0)
    np.testing.assert_allclose(pairs / 3999, 1 / 16, atol=4 * np.sqrt(1 / 16 / 3999))


@pytest.mark.slow
def test_independent_draws_of_sets_have_equally_many_of_each_in_every_round(journal: Journal) -> None:
    """Shares 75 and 25 % of 8 prompts a round: 6 and 2 of them; p0 stands twice in its list."""
    sets = prompt_sets({"often": [0, 0, 1], "seldom": [2, 3]}, {"often": 0.75, "seldom": 0.25})
    prompts = Prompts(WORLD.prompts, journal, 3, None, sets, independent=True)
    rounds = [[prompt.id for prompt in prompts.draw(8)] for _ in journal.rounds(400)]
    places = [[one in ("p0", "p1") for one in drawn] for drawn in rounds]
    assert sum(places[0]) == 6
    assert all(one == places[0] for one in places)
    often = [one for drawn in rounds for one in drawn if one in ("p0", "p1")]
    assert often.count("p0") / len(often) == pytest.approx(2 / 3, abs=4 * np.sqrt(2 / 9 / len(often)))


def test_prompt_sets_take_turns_by_their_shares_and_go_on_after_a_restart(tmp_path: Path) -> None:
    """Shares 75 and 25 %: of any 8 prompts 6 and 2, to within one; in a set each prompt once an epoch, p0 twice."""
    sets = prompt_sets({"often": [0, 0, 1], "seldom": [2, 3]}, {"often": 0.75, "seldom": 0.25})
    drawn: dict[str, list[str]] = {"whole": [], "parts": []}
    for name, sizes in (("whole", [96]), ("parts", [8] * 12)):
        for size in sizes:
            with Journal.open(tmp_path / f"{name}.sqlite", name, create={}) as journal:
                prompts = Prompts(WORLD.prompts, journal, 3, None, sets)
                for _ in journal.rounds(journal.next_round):
                    drawn[name] += [prompt.id for prompt in prompts.draw(size)]
    whole = drawn["whole"]
    assert drawn["parts"] == whole
    for start in range(0, 88, 3):
        assert abs(sum(one in ("p0", "p1") for one in whole[start : start + 8]) - 6) <= 1
    often = [one for one in whole if one in ("p0", "p1")]
    assert len(often) == 72
    assert all(sorted(often[start : start + 3]) == ["p0", "p0", "p1"] for start in range(0, 72, 3))
    assert {tuple(often[start : start + 3]) for start in range(0, 72, 3)} > {("p0", "p0", "p1")}


# --- preferences --------------------------------------------------------------------------------------------------


def test_the_cheaper_answer_is_chosen_and_the_better_one_too() -> None:
    first, second = PAIRS[0].first.token_ids, PAIRS[0].second.token_ids
    item = LabelledPair(PAIRS[0], Verdict.FIRST, {HARM: Verdict.FIRST})
    assert reward_rows(item, 3) == [PairRow("q0", (0,), first, second, 3)]
    assert cost_rows(item, 3, HARM) == [PairRow("q0", (0,), second, first, 3)]


def test_abstained_and_failed_labels_are_counted_and_become_no_rows(journal: Journal, tmp_path: Path) -> None:
    verdicts = [
        (Verdict.FIRST, {HARM: Verdict.SECOND}),
        (Verdict.ABSTAIN, {HARM: Verdict.FIRST}),
        (Verdict.FAILED, {HARM: Verdict.ABSTAIN}),
    ]
    labelled = [LabelledPair(pair, *both) for pair, both in zip(PAIRS, verdicts, strict=False)]
    preferences = Preferences(journal)
    preferences.extend(labelled)
    assert [row.id for row in preferences.reward] == ["q0"]
    assert [row.id for row in preferences.cost] == ["q0", "q1"]
    assert journal.metrics()[0] == {"labels/pairs": 3, "labels/abstained": 2, "labels/failed": 1}


def test_rows_are_of_a_comparison_that_is_made(journal: Journal, tmp_path: Path) -> None:
    """Else a misspelt name would train on no pairs, and nobody would notice."""
    preferences = Preferences(journal, (HARM, "mirror"))
    with pytest.raises(RunError, match=r"^no pair is compared by mirrror, only by cost, mirror$"):
        preferences.cost_of("mirrror")
    with pytest.raises(RunError, match=r"compared by cost, mirror: name one, preferences.cost_of\(NAME\)$"):
        _ = preferences.cost


def test_a_restart_keeps_the_rows_in_the_order_of_rounds(tmp_path: Path) -> None:
    """Minibatches go by place, so a restarted run must not move the offline pairs behind the rounds it remembers."""
    labelled = [LabelledPair(pair, Verdict.FIRST, {HARM: Verdict.SECOND}) for pair in PAIRS]
    offline, online = labelled[:2], labelled[2:]
    place = tmp_path / "journal.sqlite"
    with Journal.open(place, "run", create={}) as journal:
        unbroken = Preferences(journal)

        def say(items: list[LabelledPair]) -> None:
            journal.add_samples("pair", [answer for item in items for answer in (item.pair.first, item.pair.second)])
            journal.add_pairs(items, "world")
            unbroken.extend(items)

        say(offline)
        for _ in journal.rounds(1):
            say(online)
    with Journal.open(place, "run", create={}) as journal:
        restarted = Preferences(journal)
        restarted.extend(offline)
    assert restarted.reward == unbroken.reward
    assert [row.id for row in restarted.reward] == ["q0", "q1", "q2", "q3"]


# --- feedback -----------------------------------------------------------------------------------------------------


@dataclass
class Unreliable:
    """The world's labels, but the first `failures` calls lose those of the last item and of the first pair."""

    failures: int
    calls: int = 0

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        self.calls += 1
        labelled = WORLD.labeller().safety(items, labels_each, seed)
        if self.calls > self.failures:
            return labelled
        broken = (Verdict.FAILED, *(Verdict.ABSTAIN for _ in range(labels_each - 1)))
        return [*labelled[:-1], replace(labelled[-1], labels=broken)]

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        self.calls += 1
        labelled = WORLD.labeller().compare(pairs, seed)
        if self.calls > self.failures:
            return labelled
        return [
            replace(item, helpful=Verdict.FAILED) if place == 0 else item
            for place, item in enumerate(labelled)
            if place < 3
        ]


def test_failed_safety_labels_are_asked_for_again(journal: Journal) -> None:
    journal.add_samples("cost", ANSWERS)
    labeller = Unreliable(failures=2)
    labelled = FeedbackController({"cost": labeller}, journal, seed=0).safety(ANSWERS, 5, HARM)
    assert [item.response for item in labelled] == ANSWERS
    assert all(len(item.labels) == 5 and {*item.labels} <= {Verdict.SAFE, Verdict.UNSAFE} for item in labelled)
    assert labeller.calls == 3


def test_labels_that_stay_missing_stop_the_round_and_are_named(journal: Journal) -> None:
    journal.add_samples("cost", ANSWERS)
    feedback = FeedbackController({"cost": Unreliable(failures=9)}, journal, seed=0, source="judge-7")
    with pytest.raises(RunError, match="5 safety labels for cost are missing from judge-7 after 3 attempts, on a12"):
        feedback.safety(ANSWERS, 5, HARM)
    assert journal.safety() == []


def test_a_pair_without_an_answer_is_asked_again_and_then_named(journal: Journal) -> None:
    answers = [answer for pair in PAIRS for answer in (pair.first, pair.second)]
    journal.add_samples("candidate", answers)
    journal.add_pair_questions(PAIRS)
    with pytest.raises(RunError, match="of 4 pairs for cost have no answer from world after 3 attempts: q0"):
        FeedbackController({"cost": Unreliable(failures=9)}, journal, seed=0).compare(PAIRS)
    labelled = FeedbackController({"cost": Unreliable(failures=1)}, journal, seed=0).compare(PAIRS)
    assert [item.pair for item in labelled] == PAIRS
    assert all(item.helpful in (Verdict.FIRST, Verdict.SECOND) for item in labelled)


class Early(Unreliable):
    """Begins when it is told to, and notes what it was told."""

    def __init__(self) -> None:
        super().__init__(failures=0)
        self.opened: list[tuple[int, int, int]] = []
        self.seeds: list[int] = []

    def open_safety(self, items: Sequence[Response], labels_each: int, seed: int) -> None:
        self.opened.append((len(items), labels_each, seed))

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        self.seeds.append(seed)
        return super().safety(items, labels_each, seed)


def test_every_labeller_that_can_begins_early_with_the_question_that_is_collected_later(journal: Journal) -> None:
    journal.add_samples("cost", ANSWERS)
    early, late = Early(), Unreliable(failures=0)
    feedback = FeedbackController({"cost": early, "mirror": early, "third": late}, journal, seed=0)
    feedback.open_safety(ANSWERS, 5)
    assert late.calls == 0
    for name in ("cost", "mirror", "third"):
        feedback.safety(ANSWERS, 5, name)
    assert early.opened == [(6, 5, seed) for seed in early.seeds]
    assert len(set(early.seeds)) == 2
    feedback.open_safety(ANSWERS, 5)
    assert len(early.opened) == 2, "what a resumed run has already is not asked again"


def test_each_constraint_has_its_own_labels_and_its_own_rows(journal: Journal, tmp_path: Path) -> None:
    """A second constraint whose cost is minus the first's: its costlier answers are the other ones, mostly."""
    journal.add_samples("cost", [*ANSWERS, *(answer for pair in PAIRS for answer in (pair.first, pair.second))])
    journal.add_pair_questions(PAIRS)
    mirrored = WorldLabeller(
        WORLD.reward, {"mirror": lambda response: -50.0 * WORLD.cost(response)}, cost_name="mirror"
    )
    sharp = WorldLabeller(WORLD.reward, {HARM: lambda response: 50.0 * WORLD.cost(response)})
    feedback = FeedbackController({"cost": sharp, "mirror": mirrored}, journal, seed=0)
    first, second = feedback.safety(ANSWERS, 3, HARM), feedback.safety(ANSWERS, 3, "mirror")
    assert {item.constraint for item in second} == {"mirror"}
    flips = [a.labels[0] is not b.labels[0] for a, b in zip(first, second, strict=True)]
    assert sum(flips) >= 5
    preferences = Preferences(journal, ("cost", "mirror"))
    preferences.extend(feedback.compare(PAIRS))
    pairs = zip(preferences.cost_of("cost"), preferences.cost_of("mirror"), strict=True)
    assert all((a.chosen, a.rejected) == (b.rejected, b.chosen) for a, b in pairs)
    assert list(journal.pairs()[0].labelled.labels) == [HARM, "mirror"]
    assert budget_of(journal).labels == 2 * 3 * len(ANSWERS) + 3 * len(PAIRS)


def test_a_labeller_that_does_not_make_its_comparison_is_told_so(journal: Journal) -> None:
    """A label by another name would count as one that abstains."""
    other = WorldLabeller(WORLD.reward, {"harm": WORLD.cost}, cost_name="harm")
    with pytest.raises(
        RunError, match=r"labeller world did not compare pair q0 by cost: .* labels=\{\"cost\": verdict\}$"
    ):
        FeedbackController({HARM: other}, journal, seed=0).compare(PAIRS)


# --- dual ---------------------------------------------------------------------------------------------------------


def two_constraints() -> LocalDual:
    rule = ProjectedFixed(rounds=4, first=1.0, cost_max=2.0)
    return LocalDual(DualState(tuple(limit_state(name, rho=2.0, rule=rule, first=1.0) for name in ("a", "b"))))


def test_each_multiplier_answers_its_own_estimate_from_the_next_round_on(journal: Journal) -> None:
    """eta = 1 / (2 sqrt 4) = 0.25: a rises by 0.25 * 0.8, b falls by 0.25 * 0.4."""
    dual = DualController(two_constraints(), journal)
    for number in journal.rounds(2):
        if number == 1:
            both = [CostEstimate(value, 0.1, 9, 5, constraint=name) for name, value in (("a", 0.8), ("b", -0.4))]
            assert dual.step(both) == pytest.approx({"a": 1.2, "b": 0.9})
            assert dual.multipliers == {"a": 1.0, "b": 1.0}
        else:
            assert dual.multipliers == pytest.approx({"a": 1.2, "b": 0.9})


def test_a_restored_dual_variable_goes_on_where_the_journal_stops(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as journal:
            dual = DualController(two_constraints(), journal)
            for _ in journal.rounds(number):
                dual.step([CostEstimate(0.8, 0.1, 9, 5, constraint="a")])
    with read_journal(tmp_path / "journal.sqlite", "run") as journal:
        assert [step.multiplier_after for step in journal.dual_steps()] == pytest.approx([1.2, 1.4, 1.6])


# --- trainer ------------------------------------------------------------------------------------------------------

REWARD, POLICY, BASE = (PolicyVersion(n, f"v{n}", f"{n}" * 64, f"v{n}") for n in (3, 2, 1))
PLAN = FitPlan(skip_below=0.01)


def entry(version: PolicyVersion, multiplier: float | None, base: int = 1) -> VersionEntry:
    return VersionEntry(version, 1, "cost", base, multiplier, {}, ())


def cost_objective(multiplier: float) -> Objective:
    return Objective("cost", REWARD, 0.1 / multiplier, multiplier)


def test_a_cost_fit_carries_last_rounds_cost_part_rescaled_to_the_new_multiplier() -> None:
    versions = {1: BASE, 2: POLICY, 3: REWARD}
    start = start_of(cost_objective(0.6), entry(POLICY, 0.4), versions, PLAN)
    assert (start.policy, start.plus, start.minus) == (REWARD, POLICY, BASE)
    assert start.scale == pytest.approx(1.5)
    assert start_of(cost_objective(4.0), entry(POLICY, 0.4), versions, PLAN).scale == CARRY_MAX


def test_a_cost_fit_begins_at_its_base_where_there_is_nothing_to_carry() -> None:
    versions = {1: BASE, 2: POLICY, 3: REWARD}
    for previous in (None, entry(POLICY, 0.005)):
        start = start_of(cost_objective(0.6), previous, versions, PLAN)
        assert (start.policy, start.plus) == (REWARD, None)
    previous_policy = start_of(
        cost_objective(0.6), entry(POLICY, 0.4), versions, replace(PLAN, trainer=TrainerConfig(warm_start="previous"))
    )
    assert (previous_policy.policy, previous_policy.plus) == (POLICY, None)
    from_reward = start_of(
        cost_objective(0.6), entry(POLICY, 0.4), versions, replace(PLAN, trainer=TrainerConfig(warm_start="reward"))
    )
    assert from_reward.policy == REWARD


def test_a_row_budget_keeps_the_newest_round_and_the_weight_of_the_others() -> None:
    rows = [PairRow(f"r{i}", (0,), (1,), (2,), round=i // 10) for i in range(30)]
    kept, margins = limit_rows(rows, [float(i) for i in range(30)], 5, np.random.default_rng([1]))
    assert len(kept) == 15
    assert [row.id for row in kept[5:]] == [f"r{i}" for i in range(20, 30)]
    assert sum(row.weight for row in kept[:5]) == pytest.approx(20.0)
    assert [f"r{int(margin)}" for margin in margins] == [row.id for row in kept]
    assert limit_rows(rows, (), None, np.random.default_rng([1])) == (tuple(rows), ())


class Forgetful:
    """A backend that makes another version than the one it was asked for."""

    def execute(self, command: FitCommand) -> FitResult:
        return FitResult(replace(POLICY, number=command.sequence + 1, name=command.result))

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> np.ndarray:
        return np.zeros(len(responses) - 1)

    features = log_probs  # type: ignore[assignment]

    def close(self) -> None:
        return


def test_a_backend_that_returns_something_else_stops_the_run(journal: Journal) -> None:
    trainer = TrainerController(Forgetful(), journal, PLAN, seed=0)  # type: ignore[arg-type]
    rows = [PairRow("r", (0,), (1,), (2,))]
    with pytest.raises(RunError, match=r"asked for reward-0 \(1\)"):
        trainer.fit(Objective("reward", BASE, 0.1), rows)
    with pytest.raises(RunError, match="of 6 answers and returned 5"):
        trainer.log_probs(POLICY, ANSWERS)
    with pytest.raises(RunError, match="no usable reward pair"):
        trainer.fit(Objective("reward", BASE, 0.1), [])
    assert journal.versions() == []


def test_several_constraints_make_a_chain_whose_last_link_is_the_policy(journal: Journal, tmp_path: Path) -> None:
    backend = TabularTrainer(WORLD, ArtifactStore(tmp_path / "store"))
    trainer = TrainerController(backend, journal, PLAN, seed=0, constraints=2)
    rows = [PairRow(f"r{i}", (0,), (i % 3,), (3,)) for i in range(9)]
    for _ in journal.rounds(2):
        version = trainer.fit(Objective("reward", backend.reference, 0.1), rows)
        for multiplier in (0.3, 0.5):
            version = trainer.fit(Objective("cost", version, 0.1 / multiplier, multiplier), rows)
    names = [(item.version.number, item.version.name, item.base) for item in journal.versions()]
    assert names == [
        (1, "reward-1", 0), (2, "policy-1-1", 1), (3, "policy-1", 2),
        (4, "reward-2", 0), (5, "policy-2-1", 4), (6, "policy-2", 5),
    ]  # fmt: skip
    assert [policy.name for policy in journal.policies] == ["policy-1", "policy-2"]


# --- rollout ------------------------------------------------------------------------------------------------------


class Faulty(TabularEngine):
    """Delivers under another hash, or loses a draw, when told to. Notes how many answers each call asked for."""

    fault = ""

    def __init__(self, world: TabularWorld, store: ArtifactStore, name: str) -> None:
        super().__init__(world, store, name)
        self.asked: list[int] = []

    def deliver(self, policy: PolicyVersion) -> Delivery:
        delivery = super().deliver(policy)
        return replace(delivery, sha256="0" * 64) if self.fault == "hash" else delivery

    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding) -> list[list[Draw]]:
        self.asked.append(sum(counts(n, len(prompts))))
        draws = super().sample(prompts, seeds, n, decoding)
        return draws[:-1] if self.fault == "count" else draws


@pytest.fixture
def backend(tmp_path: Path) -> TabularTrainer:
    return TabularTrainer(WORLD, ArtifactStore(tmp_path / "store"))


def rollout_of(
    journal: Journal,
    backend: TabularTrainer,
    engines: Sequence[RolloutEngine],
    proposal: Proposal,
    largest_batch: int = 3,
) -> RolloutController:
    canaries = [WORLD.response(x, 1, f"canary{x}") for x in range(4)]
    return RolloutController(
        engines,
        journal,
        seed=7,
        decoding=Decoding(),
        reference=backend.reference,
        proposal=proposal,
        log_probs=backend.log_probs,
        verify=DeliveryCheck(backend.log_probs, canaries),
        largest_batch=largest_batch,
    )


def engine_of(tmp_path: Path, name: str = "tabular-0") -> Faulty:
    return Faulty(WORLD, ArtifactStore(tmp_path / "store"), name)


def test_nothing_is_sampled_from_a_version_that_was_not_published(
    journal: Journal, backend: TabularTrainer, tmp_path: Path
) -> None:
    rollout = rollout_of(journal, backend, [engine_of(tmp_path)], Proposal())
    with pytest.raises(RunError, match="reference was not published"):
        rollout.sample(WORLD.prompts, backend.reference)


def test_a_delivery_that_cannot_be_verified_stops_before_sampling(
    journal: Journal, backend: TabularTrainer, tmp_path: Path
) -> None:
    engine = engine_of(tmp_path)
    engine.fault = "hash"
    rollout = rollout_of(journal, backend, [engine], Proposal())
    with pytest.raises(RunError, match="engine tabular-0, version 0"):
        rollout.publish(backend.reference)
    assert [(item.verified, item.delivery.sha256) for item in journal.deliveries()] == [(False, "0" * 64)]
    with pytest.raises(RunError, match="engine tabular-0, version 0"):
        rollout.sample(WORLD.prompts, backend.reference)
    assert journal.samples() == []


def test_an_engine_that_loses_an_answer_stops_the_round(
    journal: Journal, backend: TabularTrainer, tmp_path: Path
) -> None:
    engine = engine_of(tmp_path)
    rollout = rollout_of(journal, backend, [engine], Proposal())
    rollout.publish(backend.reference)
    engine.fault = "count"
    with pytest.raises(RunError, match="asked for 2 answers and returned 1"):
        rollout.sample(WORLD.prompts, backend.reference)


def test_an_engine_that_came_back_without_its_version_is_served_again(
    journal: Journal, backend: TabularTrainer, tmp_path: Path
) -> None:
    engines = [engine_of(tmp_path, name) for name in ("a", "b")]
    rollout = rollout_of(journal, backend, engines, Proposal())
    rollout.publish(backend.reference)
    engines[1]._version = -1
    answers = rollout.sample(WORLD.prompts, backend.reference)
    assert [answer.prompt for answer in answers] == list(WORLD.prompts)
    assert [item.delivery.engine for item in journal.deliveries()] == ["a", "b", "b"]


@pytest.mark.parametrize("pool", [8, 0])
def test_candidates_are_half_from_the_policy_and_half_from_the_reference(
    journal: Journal, backend: TabularTrainer, tmp_path: Path, pool: int
) -> None:
    rollout = rollout_of(journal, backend, [engine_of(tmp_path)], Proposal(candidates=6, share=0.5, pool=pool))
    rollout.publish(backend.reference)
    if pool:
        rollout.pool("proposal", WORLD.prompts, backend.reference, pool, Decoding())
    for _ in journal.rounds(1):
        policy = backend.execute(
            FitCommand(
                2, start_of(Objective("reward", backend.reference, 0.1), None, {}, PLAN),
                Objective("reward", backend.reference, 0.1), (PairRow("r", (0,), (1,), (2,)),), FitSettings(), 0, "p",
            )
        ).version  # fmt: skip
        rollout.publish(policy)
        sets = rollout.candidates(WORLD.prompts, policy)
    for candidates in sets:
        assert [response.policy_version for response in candidates.responses] == [2, 2, 2, 0, 0, 0]
        np.testing.assert_array_equal(candidates.log_policy, backend.log_probs(policy, candidates.responses))
        np.testing.assert_array_equal(
            candidates.log_proposal, backend.log_probs(backend.reference, candidates.responses)
        )
        if pool:
            assert len({response.id for response in candidates.responses}) == 6


@pytest.mark.parametrize(
    ("engines", "largest", "calls"),
    [
        (1, 2048, [[16]]),
        (1, 7, [[4, 6, 6]]),
        (2, 2048, [[7], [9]]),
        (3, 2048, [[4], [6], [6]]),
        (2, 5, [[4, 6], [3, 3]]),
    ],
)
def test_answers_for_the_estimate_and_for_pairs_come_in_one_batch_of_any_cut(
    tmp_path: Path, backend: TabularTrainer, engines: int, largest: int, calls: list[list[int]]
) -> None:
    """4 answers and 4 x 3 candidates; where they were drawn, and with what, changes none of them."""
    asked, paired = WORLD.prompts, WORLD.prompts[::-1]

    def drawn(name: str, made: list[Faulty], largest: int, ahead: bool) -> tuple[list[Response], list[CandidateSet]]:
        with Journal.open(tmp_path / f"{name}.sqlite", "run", create={}) as journal:
            rollout = rollout_of(journal, backend, made, Proposal(candidates=3, share=0.0), largest)
            rollout.publish(backend.reference)
            answers = rollout.sample(asked, backend.reference, paired if ahead else ())
            return answers, rollout.candidates(paired, backend.reference)

    made = [engine_of(tmp_path, f"tabular-{number}") for number in range(engines)]
    found = drawn("together", made, largest, ahead=True)
    assert [engine.asked for engine in made] == calls
    assert found == drawn("apart", [engine_of(tmp_path)], 2048, ahead=False)
    assert [[response.prompt for response in one.responses] for one in found[1]] == [[p] * 3 for p in paired]


def test_candidates_for_other_prompts_than_were_drawn_for_are_refused(
    journal: Journal, backend: TabularTrainer, tmp_path: Path
) -> None:
    rollout = rollout_of(journal, backend, [engine_of(tmp_path)], Proposal(candidates=3, share=0.0))
    rollout.publish(backend.reference)
    rollout.sample(WORLD.prompts, backend.reference, WORLD.prompts[:2])
    with pytest.raises(RunError, match="drawn for other prompts"):
        rollout.candidates(WORLD.prompts[1:3], backend.reference)


def test_seeds_follow_from_names_alone_and_differ_between_them() -> None:
    seeds = {seed_of(*parts) for parts in [(0, 1, "cost", 2), (0, 12, "cost"), (0, 1, "cost", "2"), (1, 1, "cost", 2)]}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(0, "fit") == seed_of(0, "fit")
