"""A certificate for models that another trainer saved: one ledger for the folder, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pddpo_ray.certificates.document import verified
from pddpo_ray.cli.main import app
from pddpo_ray.errors import UserError
from pddpo_ray.integrations.certifying import Question, certify_saved
from pddpo_ray.integrations.saved_policies import saved_names
from pddpo_ray.theory.certificates.certificate import candidate_level
from pddpo_ray.training import progress
from tests.support.tiny_language_model import save_policy, tiny_llama, word_tokenizer

pytestmark = pytest.mark.filterwarnings("default")

LIMITS = """
limits:
  length: {mean: {rule: words}, at_most: 14, bounds: [0, 16]}
  seven: {rate: {regex: seven.txt}, at_most: 60 %}
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """What a trainer leaves: two checkpoints, the model at the end, and a file beside each."""
    folder = tmp_path / "out"
    for seed, name in enumerate(["", "checkpoint-2", "checkpoint-10"]):
        save_policy(folder / name, seed)
    (folder / "checkpoint-10" / "trainer_state.json").write_text("{}")
    prompts = [f"word{n} word{n + 1}" for n in range(16)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    (tmp_path / "seven.txt").write_text("word7\\b\n")
    (tmp_path / "limits.yaml").write_text(LIMITS)
    return folder


def question(out: Path, **changes: Any) -> Question:
    return Question(out.parent / "limits.yaml", out.parent / "prompts.jsonl", **{"max_tokens": 12, **changes})


@pytest.mark.slow
def test_policies_are_candidates_of_one_ledger_and_the_same_weights_are_asked_once(out: Path) -> None:
    assert saved_names(out) == ["checkpoint-2", "checkpoint-10", "final"]
    first, _ = certify_saved(out, question(out))
    assert (first.candidate.number, first.candidate.policy, first.state) == (1, "final", "certified")
    second, written = certify_saved(out, question(out), "checkpoint-2")
    assert second.candidate.number == 2
    assert [one.level for one in second.candidate.limits] == [candidate_level(0.05, 2)] * 2, (
        "the second pays for the first"
    )
    assert json.loads(json.dumps(written)) == json.loads((out / "certificate.json").read_text())
    again, _ = certify_saved(out, question(out), "final")
    assert (again.candidate.number, again.draws) == (1, first.draws), "the same model, no draw more"
    other, _ = certify_saved(out, question(out, temperature=0.5), "final")
    assert other.candidate.number == 3, "answers of another temperature are another policy"
    assert "Computed again" in verified(out / "certificate.json")["verified"]


@pytest.mark.slow
def test_other_prompts_are_another_statement_even_under_the_same_name(out: Path) -> None:
    first, written = certify_saved(out, question(out))
    (out.parent / "prompts.jsonl").write_text('{"prompt": "word9"}\n')
    second, other = certify_saved(out, question(out))
    assert (first.candidate.number, second.candidate.number) == (1, 2)
    assert "the 16 prompts of prompts.jsonl" in str(written)
    assert "the 1 prompts of prompts.jsonl" in str(other)


@pytest.mark.slow
def test_an_answer_outside_the_bounds_of_a_mean_ends_the_test_in_one_line(out: Path) -> None:
    (out.parent / "limits.yaml").write_text("limits: {length: {mean: {rule: words}, at_most: 4, bounds: [0, 5]}}")
    with pytest.raises(UserError, match=r"length: an answer measures \d+ words, outside its bounds; a certif"):
        certify_saved(out, question(out))


@pytest.mark.slow
def test_an_adapter_is_certified_as_the_model_that_it_makes_of_its_base(out: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = save_policy(tmp_path / "base", 3)
    adapted = peft.get_peft_model(
        tiny_llama(3), peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    )
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    folder = tmp_path / "adapters" / "checkpoint-5"
    adapted.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    entry, _ = certify_saved(tmp_path / "adapters", question(out))
    whole = tmp_path / "merged"
    adapted.merge_and_unload().save_pretrained(whole)
    word_tokenizer().save_pretrained(whole)
    merged, _ = certify_saved(whole, question(out))
    assert entry.candidate.policy == "checkpoint-5"
    assert entry.candidate.versions[0]["sha256"] == merged.candidate.versions[0]["sha256"]


def asked(out: Path, *more: str) -> Result:
    files = ["--limits", str(out.parent / "limits.yaml"), "--prompts", str(out.parent / "prompts.jsonl")]
    return CliRunner().invoke(app, ["certify", str(out), *files, "--max-tokens", "12", *more])


@pytest.mark.slow
def test_the_command_says_how_far_it_is_and_the_sentence_and_its_exit_code_is_the_state(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "TELL_EVERY_S", 0.0)
    done = asked(out)
    assert done.exit_code == 0, done.output
    assert "final: 0 of at most " in done.stderr
    assert "Certified: length, the mean of final measured by rule words, is at most" in done.output
    assert asked(out, "--limit", "length=2").exit_code == 6
    assert asked(out, "--policy", "checkpoint-2", "--limit", "seven=25%", "--budget", "4").exit_code == 5
    assert json.loads(asked(out, "--json").stdout)["candidate"]["policy"] == "final"


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--policy", "checkpoint-3"], "--policy checkpoint-3: out has checkpoint-2, checkpoint-10, final"),
        (["--max-tokens", "127"], "prompts.jsonl line 1: 2 tokens and --max-tokens 127 are more than the 128"),
        (["--prompts", "/nowhere.jsonl"], "/nowhere.jsonl does not exist"),
        (["--limits", "/nowhere.yaml"], "--limits: /nowhere.yaml does not exist"),
        (["--limit", "lenght=3"], "lenght"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(more: list[str], line: str, out: Path) -> None:
    done = asked(out, *more)
    assert isinstance(done.exception, UserError), done.output
    assert line in str(done.exception)
    assert "\n" not in str(done.exception)


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        ("limits: {a: {rate: {rule: refusal}, versus: reference, at_most: 5 %}}", "nobody knows here what the trainer"),
        (
            "limits: {a: {rate: {rule: refusal}, over: red_team, at_most: 5 %}}",
            "--prompts is one set; give the file",
        ),
        ("limits: {a: {rate: {people: {question: q.md}}, at_most: 5 %}}", "people are asked in a run alone"),
        ("limits: {a: {mean: {rule: words}, at_most: 5}}", "bounds"),
        ("reward: {rule: words}", "limits"),
    ],
)
def test_a_limit_that_needs_more_than_an_answer_is_refused_before_anything_is_written(
    limits: str, line: str, out: Path
) -> None:
    (out.parent / "q.md").write_text("Is it unsafe?\n")
    (out.parent / "limits.yaml").write_text(limits)
    with pytest.raises(UserError, match=line):
        certify_saved(out, question(out))
    assert not (out / "journal.sqlite").exists()


@pytest.mark.slow
def test_a_folder_of_models_without_limits_and_an_empty_one_are_told_what_is_missing(out: Path, tmp_path: Path) -> None:
    bare = CliRunner().invoke(app, ["certify", str(out)])
    assert "holds models of another trainer: add --limits FILE and --prompts FILE" in str(bare.exception)
    half = CliRunner().invoke(app, ["certify", str(out), "--limits", str(tmp_path / "limits.yaml")])
    assert "both --limits FILE and --prompts FILE" in str(half.exception)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no model: give the folder of a trainer"):
        certify_saved(tmp_path / "empty", question(out))
    asked(out)
    later = CliRunner().invoke(app, ["certify", str(out)])
    assert "holds models of another trainer: add --limits" in str(later.exception)
