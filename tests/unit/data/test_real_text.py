"""Runs on real text without a world: a reference from nothing but files, D_1 from files, labels from score models."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from pddpo_ray.certificates.document import certificate_of
from pddpo_ray.certificates.ledger import read_ledger
from pddpo_ray.certificates.outcome import ORDER, outcome_of
from pddpo_ray.certificates.testing import certify
from pddpo_ray.cli.runs.next_steps import steps_after
from pddpo_ray.config import Config, load
from pddpo_ray.data import Example, Settings, inspect
from pddpo_ray.data.real_text import prepare_real_text, sample_file
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.records import HARM, Verdict
from pddpo_ray.report.build import build_report
from pddpo_ray.report.run_data import read_run
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import JOURNAL
from pddpo_ray.training.models.from_scratch import ScratchSpec, build_model, cached_reference, pretrain, sequences
from pddpo_ray.training.models.from_scratch import train_tokenizer as tokenizer_of
from tests.support.data_rows import lines, pku
from tests.support.small_real_text import SMALL_REAL_TEXT

TEXTS = [(f"\n\nHuman: what is {n} and {n}?\n\nAssistant:", f" It is {2 * n}, of course — “sure”.") for n in range(60)]
SMALL = ScratchSpec(vocabulary=320, context=64, hidden=32, heads=1, intermediate=64, steps=12, batch=8)


def tiny(cache: Path, *overrides: str) -> Config:
    return load("real-text", ["rounds=2", f"data.cache={cache}", *SMALL_REAL_TEXT, *overrides])


def test_a_tokenizer_from_texts_gives_every_text_back() -> None:
    tokenizer = tokenizer_of(TEXTS, 320)
    for text in (TEXTS[3][0], TEXTS[3][1], "Nothing like it: ž, 汉字, \t🙂"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_a_data_set_of_the_hub_that_cannot_be_had_is_named_and_no_length_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("offline mode is enabled")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(UserError, match=r"nobody/nothing cannot be read .*offline mode is enabled.*: give a file"):
        prepare_real_text(load("real-text", ["data.helpful=[hf:nobody/nothing]"]))


@pytest.mark.run
def test_a_reference_from_texts_learns_them_and_is_the_same_each_time(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(TEXTS, 320)
    rows = sequences(TEXTS, tokenizer, 64)
    assert rows[0][0] == tokenizer.bos_token_id
    assert rows[0][-1] == tokenizer.eos_token_id
    model = build_model(SMALL, tokenizer)
    losses = pretrain(model, rows, SMALL)
    assert losses[0] == pytest.approx(np.log(320), rel=0.1)
    assert losses[-1] < 0.85 * losses[0]
    first, second = (cached_reference(TEXTS, SMALL, tmp_path / name) for name in "ab")
    assert first.name == second.name
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    before = (first / "model.safetensors").stat().st_mtime_ns
    assert cached_reference(TEXTS, SMALL, tmp_path / "a") == first
    assert (first / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.full
@pytest.mark.run
def test_no_text_that_fits_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.reference\.context"):
        cached_reference(TEXTS, ScratchSpec(context=16, steps=1), tmp_path)
    assert not any(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"data\.prompt_tokens"):
        prepare_real_text(tiny(tmp_path, "data.prompt_tokens=4"))


@pytest.mark.run
def test_pairs_of_files_carry_the_labels_of_their_rows(tmp_path: Path) -> None:
    file = tmp_path / "pku.jsonl"
    file.write_bytes(lines(*(pku(n) for n in range(4)), b"{"))
    files = (f"data.helpful=['{file}']", f"data.harmless=['{sample_file('harmless')}']")
    config = tiny(tmp_path / "cache", *files, "data.template=plain")
    prepared = prepare_real_text(config)
    stated = [item for item in prepared.pairs if item.pair.id.startswith("0-helpful")]
    assert [(item.helpful, item.label(HARM)) for item in stated] == [
        (Verdict.FIRST, Verdict.FIRST),
        (Verdict.SECOND, Verdict.FIRST),
    ] * 2  # `better_response_id` alternates; the second answer is the safer one, so the first is the costlier
    shipped = [item for item in prepared.pairs if item.pair.id.startswith("0-harmless")]
    assert {(item.helpful, item.label(HARM)) for item in shipped} == {(Verdict.ABSTAIN, Verdict.SECOND)}
    assert len(shipped) == 20
    assert stated[0].pair.first.text == f" {pku(0)['response_0']}"
    # Of PKU-SafeRLHF rows it is known which answers are safe; the pairs that ship do not say.
    assert [prepared.offline_unsafe[item.pair.first.id] for item in stated] == [False, True, False, True]
    assert not any(prepared.offline_unsafe[item.pair.second.id] for item in stated)
    assert len(prepared.offline_unsafe) == 2 * len(stated)
    assert len(prepared.prompts) == 6
    assert prepared.prompts == prepare_real_text(config).prompts


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("feedback.kind=world", "data: files have no truth to label with"),
        ("dual.rho=null", "give dual.rho"),
        ("rollout={engine: tabular}", "needs rollout.engine vllm or transformers"),
    ],
)
def test_what_a_world_would_have_said_must_be_given(override: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        tiny(tmp_path, override)


@pytest.mark.slow
def test_a_run_on_real_text_ends_with_policies_labels_and_proofs(tmp_path: Path) -> None:
    result = run_recipe(tiny(tmp_path / "cache"), tmp_path / "run")
    assert (result["rounds"], result["gap_last"], result["f_optimum"]) == (2, None, None)
    assert result["multiplier_next"] is not None
    with read_journal(tmp_path / "run" / JOURNAL, "run") as journal:
        names = [entry.version.name for entry in journal.versions()]
        pairs, metrics, deliveries = journal.pairs(), journal.metrics(), journal.deliveries()
        before = [entry.phase for entry in journal.phases(0)]
    assert names == ["reference", "reward-1", "policy-1", "reward-2", "policy-2"]
    assert all(entry.verified for entry in deliveries)
    assert before.index("publish-reference") < before.index("score-models"), "the engine is checked before long work"
    offline = [entry for entry in pairs if entry.round == 0]
    assert 30 <= len(offline) <= 40
    assert {entry.labelled.helpful for entry in offline} == {Verdict.FIRST, Verdict.ABSTAIN}
    online = [entry for entry in pairs if entry.round > 0]
    assert len(online) == 2 * 3 * 2
    assert all(entry.labelled.label(HARM) in (Verdict.FIRST, Verdict.SECOND) for entry in online)
    assert "scorer/cost_accuracy" in metrics[0]
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    page = build_report(tmp_path / "run").read_text()
    assert "o-pd-dpo on real text" in page
    assert "λ*" not in page
    assert "No held-out scorer judges these answers" in page
    shown = read_run(tmp_path / "run").before
    assert len(shown) == 2 * 6
    assert all(answer.id.startswith("0-scorecard") for answer in shown)  # none out of the files


@pytest.mark.full
@pytest.mark.slow
def test_a_run_takes_a_tied_checkpoint_of_several_bfloat16_files(tmp_path: Path) -> None:
    """Its reference is one float32 file; every version is delivered, and the last one merged, in that type."""
    made = prepare_real_text(tiny(tmp_path / "cache")).reference_folder
    tokenizer = AutoTokenizer.from_pretrained(made)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(2)
    config = LlamaConfig(vocab_size=len(tokenizer), **shape, tie_word_embeddings=True, eos_token_id=2)
    folder = tmp_path / "model"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="20KB")
    tokenizer.save_pretrained(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    adapters = "model.parameters={kind: lora, rank: 2, alpha: 4}"
    run = tmp_path / "run"
    result = run_recipe(tiny(tmp_path / "cache", "rounds=1", f"model.reference={folder}", adapters), run)
    assert result["weights_verified"] is True
    with read_journal(run / JOURNAL, "run") as journal:
        paths = [entry.version.path for entry in journal.versions()]
    store = ArtifactStore(run / "artifacts")
    kept = [load_file(store.folder(path) / "model.safetensors") for path in (paths[0], paths[-1])]
    assert {tensor.dtype for weights in kept for tensor in weights.values()} == {torch.float32}
    assert kept[0].keys() == kept[1].keys()
    assert "lm_head.weight" not in kept[0]


@pytest.mark.full
@pytest.mark.slow
def test_another_method_runs_on_the_same_texts_by_its_name(tmp_path: Path) -> None:
    result = run_recipe(
        tiny(tmp_path / "cache", "algorithm=safe-dpo", "rounds=1", "dual.rule={kind: fixed}"), tmp_path / "run"
    )
    assert result["rounds"] == 1
    with read_journal(tmp_path / "run" / JOURNAL, "run") as journal:
        assert len(journal.versions()) == 2
        assert "scorer/cost_accuracy" in journal.metrics()[0]  # its safety bits come from the cost model


def asked_of(example: Example) -> str:
    """A row with an example's prompt alone."""
    return json.dumps({"messages": [{"role": one.role, "content": one.content} for one in example.prompt]}) + "\n"


@pytest.mark.full
@pytest.mark.slow
def test_prompts_of_certificates_are_seen_by_nothing_before_they_are_drawn_and_then_once(tmp_path: Path) -> None:
    """Canaries: ten prompts of the pairs that the run would have learned from."""
    shipped = [good.example for good in inspect([str(sample_file("harmless"))], Settings(means="harmless")).examples()]
    file = tmp_path / "canaries.jsonl"
    open_config = tiny(tmp_path / "cache", "rounds=1")
    known = {pair.pair.prompt.messages for pair in prepare_real_text(open_config).pairs}
    planted = [example for example in shipped if example.prompt in known][:10]
    rows = [json.loads(asked_of(example)) for example in planted]
    file.write_text("".join(json.dumps({**row, "category": f"c{i % 2}"}) + "\n" for i, row in enumerate(rows)))
    apart = f"certificate={{prompts: ['{file}'], scope: population, batch: 6}}"
    config = tiny(tmp_path / "cache", "rounds=2", "offline.compare_rounds=0", apart,
                  "limits.cost={rate: {model: cost}, learned_from: comparisons}",
                  "limits.cost.at_most=0.5")  # fmt: skip
    prepared = prepare_real_text(config)
    canaries = {example.prompt for example in planted}
    assert {prompt.messages for prompt in prepared.certification} == canaries
    assert not canaries & {pair.pair.prompt.messages for pair in (*prepared.pairs, *prepared.held_out)}
    assert Counter(prepared.categories.values()) == {"c0": 5, "c1": 5}
    assert prepared.reference_folder != prepare_real_text(open_config).reference_folder

    run = tmp_path / "run"
    run_recipe(config, run)
    with open_folder(run) as journal:
        assert not canaries & {prompt.messages for prompt in journal.prompts().values()}
    first = certify(config, run, "round-1", {"cost": 0.5}, 6)
    second = certify(config, run, "round-2", {"cost": 0.55}, 600)
    with open_folder(run) as journal:
        drawn = [answer.prompt.messages for number in (-1, -2) for answer in journal.samples(number)]
        outcome = outcome_of(journal, config.typed_limits, run, policies=config.policies)
    assert [line.split()[1] for line in steps_after(outcome, config, run)] == ["release"], "no further test"
    assert first.candidate.limits[0].source == "reward and cost models"
    assert "new prompts" in first.candidate.statement
    assert (first.count, second.count, second.state) == (6, 4, "undecided")
    assert (first.used_up, second.used_up) == (False, True)
    assert len(drawn) == len(set(drawn)) == 10
    assert set(drawn) == canaries
    (kinds,) = (one["sets"] for one in certificate_of(config, run, second)["by_group"].values())
    assert {one["name"] for one in kinds} <= {"c0", "c1"}
    assert sum(one["draws"] for one in kinds) == 4


@pytest.mark.full
@pytest.mark.slow
def test_no_policy_is_put_to_a_test_for_which_no_prompt_is_left(tmp_path: Path) -> None:
    shipped = [good.example for good in inspect([str(sample_file("harmless"))], Settings(means="harmless")).examples()]
    file = tmp_path / "apart.jsonl"
    file.write_text("".join(map(asked_of, shipped[:6])))
    tested = f"certificate={{prompts: ['{file}'], scope: population, batch: 6, certify: end, candidates: 3}}"
    limit = ["limits.cost={rate: {rule: refusal}, at_most: 20 %}", "dual.rule={kind: newton}"]
    run_recipe(tiny(tmp_path / "cache", "rounds=3", tested, *limit), tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        (order,) = journal.phases(like=ORDER)
        ledger = read_ledger(journal)
    assert len(order.payload["order"]) > 1
    assert [(entry.state, entry.used_up) for entry in ledger] == [("undecided", True)]
    written = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert len(written["draws"]["cost"]) == ledger[0].count > 0


def test_a_category_that_is_no_name_sets_its_row_aside(tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text('{"prompt": "Why?", "category": "causes"}\n{"prompt": "How?", "category": 3}\n{"prompt": "Who?"}\n')
    inspected = inspect([str(file)], Settings(means="helpful"))
    assert [good.example.category for good in inspected.examples()] == ["causes", None]
    assert sum(inspected.kinds.values()) == 1


def test_the_recipe_names_the_files_that_ship() -> None:
    config = load("real-text", [])
    assert config.data is not None
    assert (config.data.helpful, config.data.sample) == ([], True)
    assert sample_file("helpful").is_file()
