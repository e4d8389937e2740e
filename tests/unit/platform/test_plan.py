"""Resources, memory and labels of a recipe, against counts by hand and by the real model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pddpo_ray.backends.machine import GIB, Gpu, Machine, visible_gpus
from pddpo_ray.backends.settled import device_of
from pddpo_ray.config import Config, TextWorldConfig
from pddpo_ray.config import load as load_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.plan.memory import (
    ModelShape,
    by_process,
    host_bytes,
    memory,
    model_shape,
    rollout_bytes,
    stored_bytes,
    trainer_bytes,
)
from pddpo_ray.plan.printed import labels, make_plan, plan_lines
from pddpo_ray.plan.resources import Bundle, bundles, shortage
from pddpo_ray.storage.checkpoints import weight_shapes

LAPTOP = Machine(cpus=2, memory_bytes=24 * GIB)
H200 = Machine(cpus=16, memory_bytes=128 * GIB, gpus=(Gpu("H200", 140 * GIB),))
# Llama-2-7B: 32 layers of width 4096 and 11008 inside, vocabulary 32000
LINEAR_7B = 32 * (4 * (4096 + 4096) + 3 * (4096 + 11008))
SEVEN_B = ModelShape(6_738_415_616, 4096, 32, 32_000, LINEAR_7B, 512)
BF16 = ("model.dtype=bfloat16", "trainer.micro_pairs=1")


def load(recipe: str, overrides: Sequence[str] = ()) -> Config:
    """A recipe with one thread per rank, whatever the demo is tuned to."""
    return load_recipe(
        recipe, ["trainer.threads=1", "cluster.cpus=null", *overrides] if recipe == "text-world" else overrides
    )


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


# --- resources -------------------------------------------------------------------------------------------------------


def test_the_demo_runs_on_two_cores() -> None:
    assert shortage(load_recipe("text-world"), LAPTOP) is None


def test_the_demo_reserves_one_core_for_training_and_one_for_inference() -> None:
    assert bundles(load("text-world"), "cpu") == (Bundle("trainer", 1, 1), Bundle("rollout", 1, 1))
    assert shortage(load("text-world"), LAPTOP) is None


def test_tensor_parallel_engines_take_devices_on_gpus_and_cores_on_cpus() -> None:
    config = load("text-world", ["rollout.tensor_parallel=2", "rollout.threads=3", "trainer.workers=4"])
    assert bundles(config, "cuda") == (Bundle("trainer", 4, 1, 1), Bundle("rollout", 1, 3, 2))
    assert bundles(config, "cpu") == (Bundle("trainer", 4, 1), Bundle("rollout", 1, 6))


def test_the_device_is_cuda_where_there_is_one_unless_said_otherwise() -> None:
    assert device_of(load("text-world"), LAPTOP) == "cpu"
    assert device_of(load("text-world"), H200) == "cuda"
    assert device_of(load("text-world", ["model.device=cpu"]), H200) == "cpu"


@pytest.mark.parametrize(
    ("overrides", "machine", "expected"),
    [
        (
            ["trainer.workers=2"],
            LAPTOP,
            "reserves 3 CPUs (trainer 2 x 1 + rollout 1 x 1), this machine has 2, 1 too few",
        ),
        (["rollout.engines=5", "cluster.cpus=4"], LAPTOP, "reserves 6 CPUs"),
        (["model.device=cuda"], LAPTOP, "no CUDA device; set model.device=cpu"),
        ([], H200, "reserves 2 GPUs, this machine has 1, 1 too few"),
        (["rollout.kv_cache_gib=64"], LAPTOP, "GiB of memory, this machine has 24.0"),
    ],
)
def test_what_a_machine_can_never_do_is_said_in_one_line(overrides: list[str], machine: Machine, expected: str) -> None:
    problem = shortage(load("text-world", overrides), machine)
    assert problem is not None
    assert expected in problem
    assert "\n" not in problem
    assert ";" in problem  # what to do about it


def test_one_gpu_can_be_shared_on_purpose() -> None:
    config = load("text-world", ["cluster.gpu_share=0.5"])
    assert bundles(config, "cuda") == (Bundle("trainer", 1, 1, 0.5), Bundle("rollout", 1, 1, 0.5))
    assert shortage(config, H200) is None


def test_a_time_shared_gpu_holds_one_rank_and_one_engine() -> None:
    overrides = ["cluster.layout=time-shared", "trainer.workers=4", "rollout.engines=4"]
    trainer, rollout = bundles(load("text-world", overrides), "cuda")
    assert trainer.count == rollout.count == 4
    assert 0 < trainer.gpus <= 1 - rollout.gpus < 0.5
    assert all(bundle.gpus == 0 for bundle in bundles(load("text-world", overrides), "cpu"))
    for wrong, message in ((["rollout.engines=2"], "must be equal"), (["rollout.tensor_parallel=2"], "layout=split")):
        with pytest.raises(UserError, match=message):
            load("text-world", [*overrides, *wrong])


def test_a_time_shared_gpu_must_hold_each_of_its_two_states() -> None:
    config = load("text-world", [*BF16, "cluster.layout=time-shared"])
    working, awake = (need.bytes_by_purpose for need in memory(config, SEVEN_B, "cuda") if need.where == "device")
    assert working["engine asleep"] > 0
    assert awake["trainer's weights"] == working["weights"]
    assert awake["trainer's optimizer"] == working["optimizer"]
    assert "activations" not in " ".join(awake)


def test_reward_and_cost_models_reserve_their_share() -> None:
    overrides = ["feedback.kind=model", "feedback.gpus=0.5"]
    assert bundles(load("text-world", overrides), "cuda")[2] == Bundle("feedback", 2, 0.0, 0.5)
    assert bundles(load("text-world", overrides), "cpu")[2].gpus == 0
    assert "labeller" not in make_plan(load("text-world", overrides), H200)["head"]


def test_the_plan_names_engines_stages_layout_and_what_stays_beside_the_driver() -> None:
    overrides = ["trainer.workers=4", "trainer.engine=zero3", "rollout.engines=2", "rollout.tensor_parallel=2"]
    plan = make_plan(load("text-world", [*overrides, "model.device=cuda"]), H200)
    notes = {row["part"]: (row["count"], row["gpus"], row["note"]) for row in plan["resources"]}
    assert notes == {"trainer": (4, 1.0, "DeepSpeed ZeRO-3"), "rollout": (2, 2.0, "vLLM, tensor parallel 2")}
    assert plan["layout"] == "split"
    assert {"driver", "journal", "dual variable", "labeller"} <= set(plan["head"])
    text = "\n".join(" ".join(row) for row in plan_lines(plan)[0][1])
    assert "8 GPUs" in text


def test_cores_can_be_shared_on_purpose() -> None:
    assert shortage(load("text-world", ["trainer.workers=2", "cluster.cpus=3"]), LAPTOP) is None


def test_a_cluster_elsewhere_is_not_judged_by_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shortage(load("text-world", ["trainer.workers=64", "cluster.address=auto"]), LAPTOP) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert shortage(load("text-world", ["trainer.workers=64"]), LAPTOP) is None


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("GPU-abc,GPU-def", 2)]
)
def test_gpus_are_those_that_this_process_may_see(visible: str | None, count: int) -> None:
    gpus = visible_gpus("NVIDIA H200, 143771\nNVIDIA H200, NVL, 143771\n", visible)
    assert len(gpus) == count
    assert all(gpu.memory_bytes == 143771 * 2**20 for gpu in gpus)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_the_text_worlds_parameters_are_those_of_the_real_model() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from pddpo_ray.worlds.text.family import grammar_of

    config = load("text-world")
    assert isinstance(config.world, TextWorldConfig)
    size = config.world.reference
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(grammar_of(config.world).vocabulary),
                hidden_size=size.hidden,
                intermediate_size=size.intermediate,
                num_hidden_layers=size.layers,
                num_attention_heads=size.heads,
                num_key_value_heads=size.heads,
                tie_word_embeddings=False,
            )
        )
    shape = model_shape(config)
    assert shape is not None
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    linear = [module for name, module in model.named_modules() if name.endswith("_proj")]
    assert shape.linear_sizes == sum(sum(module.weight.shape) for module in linear)


def test_training_7b_takes_18_bytes_a_parameter_in_full_and_one_copy_of_the_weights_with_lora() -> None:
    """121.3 GB for AdamW with float32 masters and gradients; 13.5 GB of weights and little more for adapters."""
    full = trainer_bytes(load("text-world", BF16), SEVEN_B)
    assert full["weights"] + full["gradients"] + full["optimizer"] == pytest.approx(121.3e9, rel=1e-3)
    lora = trainer_bytes(load("text-world", [*BF16, "model.parameters={kind: lora, rank: 16}"]), SEVEN_B)
    # 40 million adapter weights, the known count for rank 16 on all linear maps of this model
    assert lora["gradients"] == 4 * 39_976_960
    assert lora["weights"] + lora["gradients"] + lora["optimizer"] == pytest.approx(14.0e9, rel=0.01)


@pytest.mark.slow
def test_safe_rlhf_keeps_two_critics_beside_the_policy_while_it_trains() -> None:
    """Three networks in all: 16 bytes a parameter for each of the critics in float32."""
    alone, three = (
        trainer_bytes(load("safe-rlhf", [f"algorithm={name}", *more]), SEVEN_B)
        for name, more in (("c-grpo", ["method.group=4"]), ("safe-rlhf", []))
    )
    assert three.pop("critics") == 2 * 16 * SEVEN_B.parameters
    assert three == alone, "groups of answers stand in for critics"


def test_activations_and_head_follow_the_tokens_in_flight() -> None:
    """51.5 h L bytes a token were tracked for 7B; 10 V bytes is 0.32 MB; one pair is 2 texts of 512 tokens."""
    need = trainer_bytes(load("text-world", BF16), SEVEN_B)
    assert need["activations"] == pytest.approx(1024 * 51.5 * 4096 * 32, rel=0.1)
    # logits exist for 262 tokens at a time on a CPU (32 MiB in float32), for all of these on a GPU; the head's gradient
    # of a chunk in bfloat16 and the sum in float32 are 6 V h
    assert need["head"] == 262 * 0.32e6 + 6 * 32_000 * 4096
    assert trainer_bytes(load("text-world", BF16), SEVEN_B, "cuda")["head"] == 1024 * 0.32e6 + 6 * 32_000 * 4096
    whole = trainer_bytes(load("text-world", [*BF16, "trainer.engine=zero3", "trainer.workers=4"]), SEVEN_B)
    assert whole["head"] == 1024 * 0.32e6, "DeepSpeed gathers the head inside its own pass"
    assert trainer_bytes(load("text-world", [*BF16, "trainer.activation_gib=1.0"]), SEVEN_B)["activations"] == 2**30


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"), [(0, 1, 1, 1), (1, 1, 1, 4), (2, 1, 4, 4), (3, 4, 4, 4)]
)
def test_zero_stages_divide_what_they_say(stage: int, weights: int, gradients: int, optimizer: int) -> None:
    engine = f"trainer.engine={f'zero{stage}' if stage else 'torch'}"
    whole = trainer_bytes(load("text-world", [*BF16]), SEVEN_B)
    if stage:
        # ZeRO keeps gradients in the type of the weights
        whole["gradients"] /= 2
    share = trainer_bytes(load("text-world", [*BF16, "trainer.workers=4", engine]), SEVEN_B)
    assert share["weights"] == whole["weights"] / weights
    assert share["gradients"] == whole["gradients"] / gradients
    assert share["optimizer"] == whole["optimizer"] / optimizer


def test_engines_hold_their_share_of_the_weights_and_a_cache() -> None:
    config = load("text-world", [*BF16, "rollout.tensor_parallel=2", "rollout.kv_cache_gib=3"])
    assert rollout_bytes(config, SEVEN_B, "cuda")["weights"] == SEVEN_B.parameters
    assert rollout_bytes(config, SEVEN_B, "cpu") == {"weights": 2.0 * SEVEN_B.parameters, "cache": 3 * GIB}


def test_fifty_policies_take_the_space_of_their_weights() -> None:
    """K = 25 rounds make 50 versions: 674 GB in full beside the reference, four of them with float32 masters; 8 GB as
    adapters, which are float32, and the whole weights that were made of the last four."""
    overrides = [*BF16, "rounds=25"]
    reference = 2 * SEVEN_B.parameters
    whole = stored_bytes(load("text-world", overrides), SEVEN_B) - reference
    assert whole == pytest.approx(50 * 13.476831e9 + 4 * 26.953662e9, rel=1e-6)
    adapters = stored_bytes(load("text-world", [*overrides, "model.parameters.kind=lora"]), SEVEN_B) - reference
    assert adapters - 4 * reference == pytest.approx(8.0e9, rel=1e-3)
    by_files = [*overrides, "model.parameters.kind=lora", "rollout.delivery=native"]
    assert stored_bytes(load("text-world", by_files), SEVEN_B) - reference == pytest.approx(8.0e9, rel=1e-3)
    # moments are two numbers of four bytes a trained parameter, kept for the last two versions of either stage
    moments = stored_bytes(load("text-world", [*by_files, "trainer.moments=carried"]), SEVEN_B) - reference - 8.0e9
    assert moments == pytest.approx(8 * 4 * 8.0e9 / 50 / 4, rel=1e-2)


def test_scorers_that_are_trained_are_stored_beside_the_versions() -> None:
    shape, given = ModelShape(1_000_000, 100, 10, 1_000, 0, 50), "feedback={kind: model, reward: {path: hub/a}}"
    plain = stored_bytes(load("text-world"), shape)
    assert stored_bytes(load("text-world-scorers", ["cluster={mode: in-process}", "rounds=1"]), shape) == 4e6 * 5
    assert stored_bytes(load("text-world", [given]), shape) - plain == 4e6


def test_a_model_too_large_for_the_gpu_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pddpo_ray.plan.resources.model_shape", lambda config: SEVEN_B)
    small = Machine(cpus=16, memory_bytes=256 * GIB, gpus=(Gpu("L4", 24 * GIB),) * 2)
    problem = shortage(load("text-world", BF16), small)
    assert problem is not None
    assert problem.startswith("trainer needs about 1")
    assert "model.parameters.kind=lora" in problem
    assert shortage(load("text-world", [*BF16, "model.parameters.kind=lora"]), small) is None


@pytest.mark.parametrize(
    ("where", "share", "fits"),
    [
        ("{mode: in-process}", 0.5, True),
        ("{mode: in-process}", 0.8, False),
        ("{mode: ray, gpu_share: 0.5}", 0.8, False),
        ("{mode: ray}", 0.8, True),
    ],
)
def test_parts_that_are_on_a_gpu_at_the_same_time_must_fit_on_it_together(
    where: str, share: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 7B policy with adapters, whose trainer takes 15 GiB and some for a pass, beside vLLM's share of 80."""
    monkeypatch.setattr("pddpo_ray.plan.resources.model_shape", lambda config: SEVEN_B)
    two = Machine(cpus=16, memory_bytes=256 * GIB, gpus=(Gpu("card", 80 * GIB),) * 2)
    engine = ["rollout.engine=vllm", f"rollout.gpu_memory={share}", "model.parameters.kind=lora"]
    problem = shortage(load_recipe("text-world", [*BF16, *engine, f"cluster={where}"]), two)
    assert (problem is None) == fits, problem
    assert fits or "rollout.gpu_memory" in str(problem)


def test_scorers_of_one_process_are_where_its_policy_is() -> None:
    config = load_recipe("text-world", ["cluster={mode: in-process}", "feedback={kind: model, reward: {path: hub/a}}"])
    (scorers,) = [need for need in memory(config, SEVEN_B, "cuda") if need.part == "reward and cost models"]
    assert scorers.where == "device"


def test_sizes_of_a_model_folder_are_read_from_its_files(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    described = {"hidden_size": 4, "num_hidden_layers": 1, "vocab_size": 10}
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "tokenizer.json").write_text("{}")
    weights = {
        "embed": np.zeros((10, 4), np.float32),
        "proj": np.zeros((4, 6), np.float32),
        "norm": np.ones(4, np.float32),
    }
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert sorted(weight_shapes(tmp_path)) == [(4,), (4, 6), (10, 4)]
    shape = model_shape(load("text-world", [f"model.reference={tmp_path}", "rollout.max_model_len=256"]))
    assert shape == ModelShape(40 + 24 + 4, 4, 1, 10, 10, 256, linear_numbers=24)
    (tmp_path / "model.safetensors").write_bytes(b"no safetensors at all")
    with pytest.raises(UserError, match="cannot read the model's sizes"):
        model_shape(load("text-world", [f"model.reference={tmp_path}"]))


def test_tables_need_no_memory_worth_counting() -> None:
    config = load("tabular")
    assert [need.part for need in memory(config, model_shape(config), "cpu")] == ["driver"]
    assert stored_bytes(config, None) == 0


# --- labels ----------------------------------------------------------------------------------------------------------


def test_labels_are_n_times_m_times_k_and_two_a_pair() -> None:
    overrides = [
        "rounds=10",
        "feedback.responses=100",
        "limits.cost.labels_each=3",
        "explore.prompts=5",
        "explore.picks=2",
    ]
    asked = labels(load("text-world", [*overrides, "offline.pairs=7"]))
    assert (asked["safety"], asked["preferences"], asked["offline"]) == (3000, 200, 14)
    assert asked["hours"] == 0, "the world labels"
    by_people = labels(load("text-world-people", [*overrides, "limits.cost.labels_each=1"]))
    assert by_people["hours"] == pytest.approx(by_people["asked_in_rounds"] * 0.5 / 60)
    assert labels(load("pd-dpo", overrides))["preferences"] == 0


def test_scorers_that_are_trained_count_their_optimiser_and_give_it_back_before_the_rounds() -> None:
    config = load("text-world-scorers", ["scorers.fit.batch_pairs=4", "cluster={mode: in-process}"])
    shape = ModelShape(1_000_000, 100, 10, 1_000, 0, 50)
    needs = {need.part: need for need in memory(config, shape, "cpu")}
    assert needs["reward and cost models"].count == 2
    assert needs["reward and cost models"].each == needs["driver, storing the reference"].each == 4e6
    # two texts a pair; weights, gradients and AdamW's state take 16 bytes a parameter
    scorer = needs["scorer training"]
    assert scorer.each - scorer.bytes_by_purpose["activations"] == pytest.approx(16e6)
    assert scorer.bytes_by_purpose["activations"] > 2 * 4 * 50 * 100 * 10 * 34
    before = ("scorer training", "driver, storing the reference")
    kept = sum(needs[part].each * needs[part].count for part in needs if part not in before)
    held = needs["trainer"].bytes_by_purpose["weights"] + needs["rollout"].each + needs["driver"].each
    assert host_bytes(tuple(needs.values())) == max(kept, needs["scorer training"].each + held)


def test_the_most_that_is_held_is_that_of_scorer_training_of_a_fit_or_of_a_delivery() -> None:
    """With adapters: base and masters are mapped files, merged weights are held only while they go over."""
    shape = ModelShape(1_000_000, 100, 10, 1_000, 10_000, 50)
    config = load("text-world-scorers", ["cluster={mode: in-process}", "model.parameters.kind=lora"])
    needs = {need.part: need for need in memory(config, shape, "cpu")}
    trainer, rollout = needs["trainer"].bytes_by_purpose, needs["rollout"].each
    version = needs["first rank"].bytes_by_purpose["version"]
    assert version == 4.0 * config.model.parameters.rank * 10_000  # type: ignore[union-attr]
    assert needs["rollout process"].bytes_by_purpose == {"merged weights": 4e6}
    always = needs["driver"].each + trainer["weights"] + rollout
    training = always + needs["scorer training"].each
    always += version
    fitting = always + 8e6 + sum(trainer[key] for key in ("gradients", "optimizer", "activations", "head"))
    delivering = always + 8e6 + trainer["optimizer"] + 4e6
    assert host_bytes(tuple(needs.values())) == pytest.approx(max(training, fitting, delivering))
    small = {**trainer, "activations": 0.0, "head": 0.0}
    quick = [replace(need, bytes_by_purpose=small) if name == "trainer" else need for name, need in needs.items()]
    assert delivering > always + 8e6 + sum(small[key] for key in ("gradients", "optimizer"))
    assert host_bytes([need for need in quick if need.part != "scorer training"]) == pytest.approx(delivering)


def test_each_kind_of_process_on_a_cluster_has_its_own_peak() -> None:
    config = load("text-world-scorers", ["model.parameters.kind=lora", "trainer.workers=2"])
    needs = memory(config, ModelShape(1_000_000, 100, 10, 1_000, 10_000, 50), "cpu")
    by_name = {need.part: need.bytes_by_purpose for need in needs}
    peaks = by_process(needs)
    assert set(peaks) == {"trainer", "rollout", "scorer", "driver", "ray"}
    assert peaks["trainer"] == pytest.approx(GIB + 16 * 4e4 + sum(by_name["trainer"].values()))
    assert peaks["rollout"] == pytest.approx(1.5 * GIB + 4e6 + sum(by_name["rollout"].values()))
    assert peaks["scorer"] == pytest.approx(0.65 * GIB + 4e6)
    assert peaks["ray"] == 1.8 * GIB
    alone = memory(load("text-world-scorers", ["cluster={mode: in-process}"]), None, "cpu")
    assert [need.part for need in alone] == ["driver"], "one process has no Ray beside it"
    assert peaks["driver"] == pytest.approx(GIB + sum(by_name["scorer training"].values()))


def test_two_texts_of_a_pair_share_their_prompt_in_a_pass() -> None:
    apart = trainer_bytes(load("text-world", BF16), SEVEN_B)["activations"]
    shared = trainer_bytes(load("text-world", BF16), replace(SEVEN_B, prompt_tokens=128))["activations"]
    # keys and values of the prompt are laid out for each answer
    assert (2 * 512 - 128) / (2 * 512) < shared / apart < 0.92


# --- together --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["text-world", "tabular", "pd-dpo"])
@pytest.mark.parametrize("machine", [LAPTOP, H200])
def test_every_plan_is_json_and_reads_well(recipe: str, machine: Machine) -> None:
    plan = make_plan(load(recipe), machine)
    assert json.loads(json.dumps(plan)) == plan
    headings = [heading for heading, _ in plan_lines(plan)]
    work = [] if recipe == "tabular" else ["work"]
    own = ["resources", "memory", *work, "labels", "draws", "scale", "what"]
    assert [heading.split(" ")[0] for heading in headings] == own
    for _, rows in plan_lines(plan):
        assert len({len(row) for row in rows}) == 1
