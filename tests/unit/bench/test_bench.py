"""The benchmarks compute the same on both sides and say so in one line of JSON; their speed is not asserted."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import (
    annotators,
    cold_start,
    cost_stage,
    data_memory,
    growth,
    online_iteration,
    peak_memory,
    plain_sampling,
    queue_claims,
    reward_step,
    rollout,
    run_shares,
    stored_policies,
)
from bench.__main__ import main
from bench.own_process import alone
from bench.ratio import interleaved, of_pairs
from bench.workload import Shape, endless, preference_rows, prompts_of
from pddpo_ray.journal import PhaseEntry
from pddpo_ray.records import Prompt
from tests.support.tiny_language_model import save_policy


@pytest.mark.full
def test_one_benchmark_prints_json_and_keeps_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--only", "C9-256", "--repeats", "2", "--json", "--out", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["id"] == "C9-256"
    assert result["spread"][0] <= result["ratio"] <= result["spread"][1]
    assert "| C9-256 |" in (tmp_path / "table.md").read_text()


@pytest.mark.full
@pytest.mark.slow
def test_the_cost_stage_equals_the_plain_three_model_loop() -> None:
    """The benchmark itself compares the losses and stops when they differ."""
    result = cost_stage.run(512, repeats=1, pairs=3)
    assert result.details["ours pairs/CPU-s"] > 0


@pytest.mark.full
def test_the_reward_stage_equals_that_of_trl() -> None:
    """The losses after the last step agree, else the benchmark stops. Slow: TRL takes ten seconds to import."""
    pytest.importorskip("trl")
    drawn, grouped = reward_step.run(512, repeats=1, pairs=2)
    assert drawn.details["ours pairs/CPU-s"] == grouped.details["ours pairs/CPU-s"] > 0


@pytest.mark.full
@pytest.mark.vllm
def test_a_cold_start_ends_with_one_token_on_both_sides() -> None:
    """Slow: vLLM takes a quarter of a minute to import."""
    result = cold_start.run(repeats=1)
    assert result.details["ours CPU-s"] > 0


@pytest.mark.full
def test_a_cold_start_that_fails_is_not_timed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="transformers gave no token"):
        cold_start.seconds("transformers", tmp_path)


def test_sides_that_compute_different_losses_are_not_timed() -> None:
    sides = reward_step.Sides([], [], ours=lambda: 0.69, theirs=lambda batches: 0.68)
    with pytest.raises(RuntimeError, match="do not compute the same"):
        sides.assert_equal()


def test_batches_of_similar_length_hold_every_row_once() -> None:
    rows = preference_rows(512, 6)
    sides = reward_step.Sides(rows, [[0, 1], [2, 3], [4, 5]], ours=lambda: 0.0, theirs=lambda batches: 0.0)
    batches = sides.of_similar_length()
    length = [len(row.prompt) + max(len(row.chosen), len(row.rejected)) for row in rows]
    assert sorted(index for batch in batches for index in batch) == list(range(6))
    assert [length[index] for batch in batches for index in batch] == sorted(length)


@pytest.mark.slow
def test_the_peak_is_the_largest_sum_of_tensors_alive_at_once() -> None:
    """By hand: 1,000 weights with gradients, and 10 MB that are gone before another 4 MB come."""
    model = torch.nn.Linear(1000, 1, bias=False)

    def step() -> torch.Tensor:
        torch.zeros(2_500_000)
        return model(torch.ones(1000)).sum() + torch.zeros(1_000_000)[0]

    _, (held, most) = peak_memory.peak(step, model)
    assert held == 8000
    assert most == pytest.approx(1e7, rel=1e-2)


@pytest.mark.slow
def test_a_cost_step_takes_less_memory_than_one_over_three_models() -> None:
    """The benchmark compares the losses of both and stops when they differ."""
    result = peak_memory.against_three_models(peak_memory.Setting(2048, pairs=2, hidden=64, layers=2))
    assert result.ratio > 1


@pytest.mark.full
def test_the_peak_of_a_reward_step_is_compared_at_the_same_loss_as_trl() -> None:
    pytest.importorskip("trl")
    found = peak_memory.against_trl(peak_memory.Setting(2048, pairs=2, hidden=64, layers=2))
    assert [result.id for result in found] == ["C3", "C3-recomputed"]


@pytest.mark.full
def test_one_more_policy_is_stored_as_its_adapter_alone() -> None:
    """Slow: peft takes seconds to import."""
    result = stored_policies.run(hidden=64, layers=2)
    assert result.ratio > 10


TINY = rollout.Setting(Shape(512, 64, 2, 2, 2, 128), tokens=8)


@pytest.mark.full
@pytest.mark.vllm
def test_the_engine_and_generate_make_the_same_number_of_tokens() -> None:
    """The benchmark compares the log-probabilities that the engine states with the model's own."""
    (found,) = alone(partial(rollout.run, 1, (6,), TINY))
    assert found.id == "C4-6"
    assert found.details["ours tokens/CPU-s"] > 0


@pytest.mark.full
@pytest.mark.slow
def test_the_fallback_engine_and_generate_make_the_same_number_of_tokens(tmp_path: Path) -> None:
    """The benchmark compares the log-probabilities that the engine states with the model's own."""
    folder = save_policy(tmp_path / "model", 0)
    cpu, wall = plain_sampling.against_generate(folder, plain_sampling.Size(answers=10, tokens=8), 1)
    assert (cpu.id, wall.id) == ("C14", "C14-wall")
    assert cpu.details["ours tokens/CPU-s"] > 0


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.full
def test_the_actor_gives_the_answers_of_the_bare_engine() -> None:
    """The benchmark stops where it does not."""
    (found,) = alone(partial(rollout.run_actor, 1, 6, TINY))
    assert found.details["hand-over alone s"] > 0


def test_every_call_gets_prompts_that_no_earlier_call_has_seen() -> None:
    first, second = (prompts_of(512, 150, call) for call in (1, 2))
    assert len({prompt.token_ids for prompt in first + second}) == 300
    assert [len(prompt.token_ids) for prompt in first] == [len(prompt.token_ids) for prompt in second]


def test_the_end_mark_of_an_endless_answer_cannot_be_drawn() -> None:
    assert endless(512).eos_token_id == 512
    assert endless(4096).eos_token_id == 4096


@pytest.mark.vllm
@pytest.mark.full
def test_an_online_iteration_does_the_work_of_trls() -> None:
    """The benchmark puts TRL's answers through our fit, compares the losses and counts the work of both."""
    pytest.importorskip("trl")
    (found,) = alone(partial(online_iteration.run, 1, online_iteration.Size(prompts=4, batch=2, model=TINY)))
    assert found.details["ours prompts/CPU-s"] > 0


def test_of_two_answers_worth_the_same_the_first_is_preferred() -> None:
    row = online_iteration.pair_row(Prompt("p", (1,), ""), (5, 6), (7, 8))
    assert (row.chosen, row.rejected) == ((5, 6), (7, 8))
    assert online_iteration.pair_row(Prompt("p", (1,), ""), (5, 5), (7, 8)).chosen == (7, 8)


def test_what_is_no_computation_of_a_round_is_all_but_fit_sample_score_label_and_choose() -> None:
    """By hand: 10 s, of which 2 + 3 s of fits (trainer's own 1.5 and 2.5 s), 1 s of samples and 0.5 s of labels."""
    seconds = {
        "fit-reward": 2.0, "fit-cost": 3.0, "publish": 0.25, "sample": 1.0, "safety": 0.5,
        "dual": 0.25, "evaluate": 1.0, "preferences": 0.5,
    }  # fmt: skip
    metrics = {"fit/reward_seconds": 1.5, "fit/cost_seconds": 2.5, "time/wall": 10.0}
    data: Any = SimpleNamespace(
        finished=1,
        metrics={0: {"time/start": 30.0, "time/wall": 5.0}, 1: metrics},
        phases=tuple(PhaseEntry(1, name, 0, int(1000 * spent), None) for name, spent in seconds.items()),
        deliveries=(),
    )
    delivery, control, unwatched = run_shares.shares(data)
    assert delivery.ratio == pytest.approx(10 / 0.25)
    assert control.ratio == pytest.approx(10 / (10 - 1.5 - 2.5 - 1.0 - 0.5))
    assert unwatched.ratio == pytest.approx(9 / 3.5)


def test_what_a_reward_fit_begun_ahead_covers_is_no_idle_part_of_the_round_before() -> None:
    """By hand: round 2's fit takes 3.2 s, 2 of them in round 2; the other 1.2 cover the evaluation."""
    seconds = {"fit-reward": 2.0, "fit-cost": 3.0, "publish": 0.25, "evaluate": 1.0} | dict.fromkeys(
        ("sample", "safety"), 1.0
    )
    metrics = {"fit/reward_seconds": 2.0, "fit/cost_seconds": 3.0, "time/wall": 10.0}
    data: Any = SimpleNamespace(
        finished=2,
        metrics={0: {"time/start": 30.0, "time/wall": 5.0}, 1: metrics, 2: metrics | {"fit/reward_seconds": 3.2}},
        phases=tuple(
            PhaseEntry(n, name, 0, int(1000 * spent), None) for n in (1, 2) for name, spent in seconds.items()
        ),
        deliveries=(),
    )
    first, second = (run_shares.round_of(data, number).parts for number in (1, 2))
    assert (first["exact evaluation"], second["exact evaluation"]) == pytest.approx((0.0, 1.0))
    assert second["way to the trainer"] == 0.0


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.full
def test_the_shares_are_read_from_a_run_that_the_benchmark_starts() -> None:
    small = [
        "offline.pairs=200", "trainer.fit.steps=4", "feedback.responses=8",
        "limits.cost.labels_each=2", "explore.calibration=32", "explore.prompts=4", "explore.picks=2",
    ]  # fmt: skip
    found = run_shares.run(1, small)
    assert [result.id for result in found] == ["C6", "C11", "C11-unwatched"]
    assert all(result.ratio > 1 for result in found)


@pytest.mark.slow
def test_simulated_people_take_at_least_as_long_as_the_ideal() -> None:
    small = annotators.Round(people=4, answers=3, labels_each=3, pairs=6)
    ideal, complete = annotators.simulated(small, seed=0)
    assert set(complete) == {"safety", "compare"}
    assert max(complete.values()) >= ideal > 0
    assert annotators.simulated(small, seed=0) == (ideal, complete)


@pytest.mark.full
def test_claims_are_measured_singly_in_tens_and_by_many_clients() -> None:
    """The benchmark stops when the queue hands out less than was asked for."""
    singly, in_tens = queue_claims.run(1, small=400, large=800, claims=20)
    assert [singly.id, in_tens.id] == ["C10", "C10-tens"]
    assert singly.details["claims/s of 16 clients"] > 0
    assert in_tens.details["claims/s of 16 clients"] > 0
    assert in_tens.details["claims/s"] == pytest.approx(10_000 / in_tens.details["ms with 800"])


@pytest.mark.full
def test_data_commands_are_measured_each_in_a_process_of_its_own() -> None:
    """The benchmark stops when a command counts other rows or repeats than there are."""
    found = data_memory.run("jsonl.gz", sizes=(1000, 2000))
    assert [result.id for result in found] == ["D1-check", "D1-convert", "D1-stats"]
    for result in found:
        assert 20 < result.details["MiB with 1,000"] < 400, "the peak of the command, not of whoever started it"
        assert result.details["CPU-s with 2,000"] > 0


def test_the_rows_that_data_commands_are_measured_with_have_their_size_and_repeats() -> None:
    made = list(data_memory.rows(3000))
    texts = [tuple(row[name] for name in ("prompt", "response_0", "response_1")) for row in made]
    assert 280 < sum(len(text) for row in texts for text in row) / len(texts) < 320
    assert len(set(texts)) == 3000 - 3
    assert len({row["id"] for row in made}) == 3000


def test_a_row_budget_is_linear_in_the_rounds() -> None:
    assert growth.slope(growth.BUDGET) == pytest.approx(1.0, abs=0.1)
    assert growth.slope(growth.UnionRefit()) > 1.5


def test_a_floor_is_missed_only_when_the_upper_quartile_is_below_it() -> None:
    pairs = [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0)]
    assert of_pairs("x", "", pairs, floor=3.2).met
    assert not of_pairs("x", "", pairs, floor=3.3).met


@pytest.mark.full
@pytest.mark.slow
def test_a_ratio_is_peer_over_ours() -> None:
    def work(amount: int) -> int:
        return sum(number * number for number in range(amount))

    assert interleaved("x", "three times the work", lambda: work(900_000), lambda: work(300_000), 3).ratio > 1
