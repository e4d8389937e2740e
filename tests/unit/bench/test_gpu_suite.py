"""The benchmarks for a GPU, tried at tiny sizes on a CPU: what they compare is equal, and what they count is right."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench import ceilings, cost_stage, limits, policy_swap, response_head, reward_step, shared_prompts, whole_round
from bench.__main__ import CPU, GPU, main
from bench.device import allocated_at_most
from bench.workload import EIGHT, SEVEN, Shape, preference_rows
from pddpo_ray.records import PairRow
from pddpo_ray.rollout.transformers_engine import TransformersEngine
from pddpo_ray.training.batches import texts_of
from pddpo_ray.training.passes.log_probs import ResponseScorer

TINY = Shape(vocabulary=512, hidden=64, layers=2, heads=2, key_heads=1, intermediate=128)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tiny products on several threads of a busy machine are mostly waiting for each other."""
    torch.set_num_threads(1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_benchmark_without_a_gpu_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--only", "G0"]) == 2
    assert main(["run", "--suite", "gpu"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "G0: this needs a CUDA device, and torch sees none here"
    assert len(lines) == 2


def test_no_benchmark_is_in_both_suites() -> None:
    assert not CPU.keys() & GPU.keys()


def test_weights_are_counted_as_the_model_has_them() -> None:
    model = TINY.build(0)
    linear = sum(module.weight.numel() for module in model.model.modules() if isinstance(module, torch.nn.Linear))
    assert limits.layer_weights(TINY) == linear


def test_operations_of_a_pair_by_hand() -> None:
    """One layer, 2 wide, 4 inside, 3 words: 2 * 4 * 2 + 3 * 8 = 40 weights; 6 tokens, 3 of them in answers.

    Linear maps 2 * (6 * 40 + 3 * 6) = 516. A prompt of 3 attends to 1 + 2 + 3, an answer of 1 to 4, one of 2 to 4 + 5:
    19 times 4 * 2. Adapters: 16 * (2 * 4 + 2 * 4 + 3 * 6) = 544 weights.
    """
    shape = Shape(vocabulary=3, hidden=2, layers=1, heads=1, key_heads=1, intermediate=4)
    rows = [PairRow("a", (1, 1, 1), (1,), (1, 2))]
    assert limits.training_flops(shape, rows, adapters=False) == 3 * (516 + 152)
    assert limits.training_flops(shape, rows, adapters=True) == 2 * 516 + 3 * 152 + 3 * 2 * 6 * 544


def test_the_packed_row_does_the_operations_that_are_counted_and_no_more() -> None:
    """torch counts the products of a forward pass; attention is left out on both sides: its lines are padded."""
    rows = preference_rows(TINY.vocabulary, 3)
    scorer = ResponseScorer(TINY.build(0), "packed")
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        scorer.log_probs(texts_of(rows))
    products = counted.get_flop_counts()["Global"]
    linear = sum(count for name, count in products.items() if str(name) in {"aten.mm", "aten.addmm"})
    answers = sum(len(row.chosen) + len(row.rejected) for row in rows)
    expected = limits.real_tokens(rows) * limits.layer_weights(TINY) + answers * TINY.vocabulary * TINY.hidden
    assert linear == 2 * expected


def test_the_roofline_is_that_of_the_tables() -> None:
    """docs/performance.md has the 7B model; 8.03e9 weights less the embedding and 131 KB of cache a token by hand."""
    assert limits.sampling_roofline(SEVEN, 256, 256) == pytest.approx(23_000, rel=0.02)
    by_hand = 256 / ((2 * 7.505e9 + 131_072 * 256 * 256) / 4.3e12)
    assert limits.sampling_roofline(EIGHT, 256, 256) == pytest.approx(by_hand, rel=1e-3)


@pytest.mark.slow
def test_the_most_that_a_call_allocates() -> None:
    """By hand: 4 MB, gone before 2 MB come."""

    def call() -> None:
        torch.zeros(1_000_000)
        torch.zeros(500_000)

    assert allocated_at_most(call, "cpu") == pytest.approx(4e6, rel=1e-3)


@pytest.mark.slow
def test_the_ceilings_are_of_a_right_product_and_a_right_copy() -> None:
    product, copy = ceilings.run(TINY, 1, side=64, copied=1024)
    assert [product.id, copy.id] == ["G0-product", "G0-copy"]
    broken = ceilings.Copy(TINY, 1024)
    with pytest.raises(RuntimeError, match="the copy is wrong"):
        broken.assert_right()


@pytest.mark.full
@pytest.mark.run
def test_the_cost_stage_is_compared_in_time_and_memory() -> None:
    seconds, memory = cost_stage.run_on_device(TINY, False, 1, pairs=2, batch=2)
    assert seconds.details["ours pairs/s"] > 0
    assert memory.ratio > 1


def test_pairs_with_their_prompt_once_and_twice_have_the_same_lengths() -> None:
    once, twice = (shared_prompts.texts(512, (9, 4), 3, shared=shared) for shared in (True, False))
    assert [(len(prompt), len(answer)) for prompt, answer in once + twice] == [(9, 4)] * 12
    assert len({prompt for prompt, _ in once}) == 3
    assert len({prompt for prompt, _ in twice}) == 6


@pytest.mark.slow
def test_both_sides_of_a_shared_prompt_say_what_a_padded_batch_says() -> None:
    found = shared_prompts.run(TINY, (9, 4), 1, pairs=3)
    assert found.details["ours pairs/s"] > 0


@pytest.mark.parametrize("trained", [True, False])
def test_the_head_in_chunks_equals_the_whole_matrix(trained: bool) -> None:
    """The comparison itself stops where log-probabilities or slopes differ."""
    states = response_head.States(TINY, trained, tokens=40)
    states.assert_equal(response_head.whole_matrix)
    with pytest.raises(RuntimeError, match="do not compute the same"):
        states.assert_equal(lambda hidden, weight, target: 1.01 * response_head.ours(hidden, weight, target))


def test_a_policy_that_was_taken_over_says_what_it_said() -> None:
    swap = policy_swap.Swap(TINY, adapters=False)
    swap.assert_taken_over()
    assert swap.size == 4 * sum(parameter.numel() for parameter in TINY.build(0).parameters())


def test_a_policy_that_was_not_taken_over_is_noticed() -> None:
    swap = policy_swap.Swap(TINY, adapters=False)
    swap._weights[1] = swap._weights[0]
    with pytest.raises(RuntimeError, match="what it said before"):
        swap.assert_taken_over()


@pytest.mark.full
def test_the_head_equals_that_of_trl() -> None:
    pytest.importorskip("trl")
    found = response_head.run(TINY, True, 1, tokens=40)
    assert [row.id for row in found] == ["G3-whole", "G3-whole-memory", "G3-trl", "G3-trl-memory"]


@pytest.mark.full
def test_stages_of_adapters_equal_their_peers() -> None:
    """Slow: TRL and peft take long to import."""
    pytest.importorskip("trl")
    drawn, _ = reward_step.run_on_device(TINY, True, 1, pairs=2, steps=2)
    assert 0 < drawn.details["ours MFU"] < 1
    seconds, _ = cost_stage.run_on_device(TINY, True, 1, pairs=2, batch=2)
    assert seconds.details["ours pairs/s"] > 0
    assert [row.id for row in policy_swap.in_place(TINY, 1)] == ["G6-whole", "G6-adapter"]


def plain_engine(shape: Shape, folder: Path) -> TransformersEngine:
    from pddpo_ray.storage.artifacts import ArtifactStore

    return TransformersEngine("bench", folder / "model", ArtifactStore(folder / "artifacts"), dtype=shape.number_type)


@pytest.mark.full
def test_a_whole_round_does_the_work_and_finds_the_losses_of_its_peer() -> None:
    """The benchmark compares losses and counted work and stops where they differ."""
    pytest.importorskip("trl")
    size = whole_round.Size(TINY, estimate=2, pairs=4, tokens=6, batch=2)
    found = whole_round.run(size, 1, make_engine=plain_engine)
    assert found.id == "G7"


@pytest.mark.full
def test_rounds_of_adalag_go_on_from_one_policy_to_the_next() -> None:
    size = whole_round.Size(TINY, estimate=0, pairs=4, tokens=6, batch=4)
    found = whole_round.paper_budget(size, 1, rounds=2, make_engine=plain_engine)
    assert found.details["s of a round"] == pytest.approx(found.details["s"] / 2)


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.parametrize("way", ["whole", "adapter"])
def test_an_engine_takes_over_a_version_in_both_ways(way: policy_swap.Way) -> None:
    from bench.own_process import alone

    (seconds,) = alone(partial(policy_swap.deliveries, TINY, way, 1))
    assert seconds > 0


@pytest.mark.vllm
@pytest.mark.full
def test_sampling_is_compared_with_generate_and_the_roofline() -> None:
    """The benchmark compares log-probabilities and the number of tokens. Continuous batching needs a GPU."""
    from bench import rollout
    from bench.own_process import alone

    setting = rollout.Setting(TINY, tokens=8)
    found = alone(partial(rollout.run_on_device, setting, rollout.generate, 1, batch=6))
    assert found.details["ours of the roofline"] > 0
