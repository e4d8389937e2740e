"""`pddpo world export`: what other trainers get, that it is the world's, and that a failing command changes nothing."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import expit
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from pddpo_lab.commands.world import choose_world
from pddpo_lab.worlds.exported_world import exported_settings, prepare_exported
from pddpo_lab.worlds.labels_by_text import LabelsByText
from pddpo_ray.cli.main import app
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.records import Verdict
from pddpo_ray.worlds.text.prepared_world import prepare_text_world
from tests.support.exported_text_world import Exported, export_to

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_to(tmp_path_factory.mktemp("world") / "w", "--seed", "0")


def contents(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def refused(*command: str) -> str:
    done = CliRunner().invoke(app, list(command))
    assert isinstance(done.exception, UserError), done.output
    assert "\n" not in str(done.exception)
    return str(done.exception)


@pytest.mark.run
def test_the_folder_is_the_world_of_the_seed(world: Exported) -> None:
    here, there = prepare_exported(world.folder), prepare_text_world(load("text-world", ["world.seed=0"]))
    for key in ("reward", "cost"):
        table = getattr(there.world.oracle, key)
        np.testing.assert_allclose(world.table(key), table[:, :-1], atol=1e-5)
        np.testing.assert_allclose(getattr(here.world.oracle, key), table, atol=1e-5)
        assert world.truth["off_grammar"][key] == table[0, -1]
    assert world.truth["answers"] == list(there.world.grammar.answer_texts)
    assert [row["prompt"] for row in world.lines("prompts.jsonl")] == world.truth["prompts"]
    assert exported_settings(world.folder).beta == load("text-world").beta == world.truth["beta"]
    stated = json.loads((world.folder / "world.json").read_text("utf-8"))
    assert "cache" not in stated["settings"]["world"]
    assert "truth.json" in (world.folder / "README.md").read_text("utf-8")


def test_the_reference_gives_text_the_probabilities_of_the_truth(world: Exported) -> None:
    """A pair's text, joined and ended as trainers do it, under the plain model and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(world.reference)
    tokenizer = AutoTokenizer.from_pretrained(world.reference)
    for row in world.lines("helpful.jsonl")[:8]:
        begin = tokenizer(row["prompt"])["input_ids"]
        ids = tokenizer(row["prompt"] + row["chosen"] + tokenizer.eos_token)["input_ids"]
        assert ids[: len(begin)] == begin
        assert (begin[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
        with torch.no_grad():
            log_probs = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, :-1].double(), -1)
        total = float(log_probs[range(len(begin) - 1, len(ids) - 1), ids[len(begin) :]].sum())
        x, y = world.truth["prompts"].index(row["prompt"]), world.truth["answers"].index(row["chosen"].strip())
        assert total == pytest.approx(world.truth["reference_log_probs"][x][y], abs=1e-4)


RATE = (
    "world.family={kind: drawn, limit: {kind: rate, at_most: 0.05}, label_noise: 0.1}",
    *("limits.cost={rate: {world: cost}, learned_from: comparisons}", "limits.cost.at_most=0.05", "dual.cost_max=6.0"),
)


@pytest.mark.full
@pytest.mark.run
def test_a_world_under_an_unsafe_rate_has_the_chances_of_its_labels_and_their_logits(tmp_path: Path) -> None:
    """The optimum has exactly 5 %, and 10,000 labels of the endpoint's follow the stated chance with its noise."""
    world = export_to(tmp_path / "w", "--seed", "3", *RATE)
    np.testing.assert_allclose(world.table("cost"), expit(world.table("logit")), atol=1e-12)
    stated = json.loads((world.folder / "world.json").read_text("utf-8"))
    assert stated["limit"] == {"quantity": "unsafe rate", "at_most": 0.05}
    assert stated["labels"]["safety"].endswith("exp(-logit)); a share 0.1 of these labels says the opposite")
    assert "whose unsafe rate is at\nmost 5 %" in (world.folder / "README.md").read_text("utf-8")
    prepared = prepare_exported(world.folder)
    best = prepared.world.oracle.optimum.policy
    rate = float(prepared.world.oracle.prior @ (best * expit(prepared.world.logits)).sum(axis=1))
    assert rate == pytest.approx(0.05, abs=1e-6)
    assert world.truth["optimum"]["g"] == pytest.approx(0.0, abs=1e-6)
    labels, chances, unsafe = LabelsByText(prepared, 7), [], 0
    for x, y in ((0, 0), (1, 5), (2, 9), (3, 1)):
        chance = world.table("cost")[x, y]
        _, verdicts = labels.safety(world.truth["prompts"][x], world.truth["answers"][y], 2500)
        chances += [0.1 + 0.8 * chance] * 2500
        unsafe += sum(one is Verdict.UNSAFE for one in verdicts)
    spread = math.sqrt(sum(chance * (1 - chance) for chance in chances))
    assert abs(unsafe - sum(chances)) < 4 * spread


@pytest.mark.parametrize(("name", "key", "sign"), [("helpful.jsonl", "reward", 1.0), ("harmless.jsonl", "cost", -1.0)])
def test_pairs_are_labelled_by_the_stated_chances(world: Exported, name: str, key: str, sign: float) -> None:
    """Whether the truly better answer was chosen, over 1,500 pairs: a sum of coins of known chances."""
    rows, scores, covered = world.lines(name), sign * world.table(key), world.table("covered")
    places = {text: index for index, text in enumerate(world.truth["prompts"])}
    answers = {text: index for index, text in enumerate(world.truth["answers"])}
    right, chances = [], []
    for row in rows:
        x, chosen, rejected = places[row["prompt"]], answers[row["chosen"][1:]], answers[row["rejected"][1:]]
        assert chosen != rejected
        assert covered[x, chosen]
        assert covered[x, rejected]
        lead = scores[x, chosen] - scores[x, rejected]
        right.append(lead > 0)
        chances.append(expit(abs(lead)))
    assert len(rows) == 1500
    chance = np.array(chances)
    deviation = (np.sum(right) - chance.sum()) / math.sqrt((chance * (1 - chance)).sum())
    assert abs(deviation) < 4
    assert chance.mean() > 0.55


def test_answers_of_pairs_are_drawn_from_the_reference(world: Exported) -> None:
    """Shares of the closing phrase, against the reference's own on covered answers."""
    closing = re.split(r"(?<= [,.]) ", world.truth["answers"][0])[-1]
    last = np.array([answer.endswith(f" {closing}") for answer in world.truth["answers"]])
    weights = np.exp(world.table("reference_log_probs")) * world.table("covered")
    expected = float(((weights / weights.sum(axis=1, keepdims=True)) @ last).mean())
    texts = [row[side] for row in world.lines("helpful.jsonl") for side in ("chosen", "rejected")]
    share = np.mean([text.endswith(f" {closing}") for text in texts])
    assert 0.05 < expected < 0.95
    # pairs of equal answers are left out, which moves the share by far less than this
    assert share == pytest.approx(expected, abs=4 * math.sqrt(0.25 / len(texts)) + 0.01)


def test_the_pairs_are_read_as_trl_pairs(world: Exported) -> None:
    done = CliRunner().invoke(app, ["data", "check", str(world.folder / "harmless.jsonl"), "--json"])
    found = json.loads(done.stdout)
    assert found["files"][0]["format"] == "trl"
    assert set(found["bad"]) <= {"duplicate", "contradiction"}
    assert found["good"] > 1400


@pytest.mark.run
def test_the_same_seed_writes_the_same_pairs_and_another_one_others(world: Exported, tmp_path: Path) -> None:
    again = export_to(tmp_path / "again", "--seed", "0", "--pairs", "30")
    assert again.lines("helpful.jsonl") == world.lines("helpful.jsonl")[:30]


@pytest.mark.run
def test_a_full_folder_is_refused_and_force_replaces_only_its_own_names(world: Exported, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    shutil.copytree(world.folder, folder)
    (folder / "trained").mkdir()
    (folder / "trained" / "mine").write_text("keep")
    (folder / "truth.json").write_text("old")
    before = contents(folder)
    assert "--force" in refused("world", "export", "--to", str(folder))
    assert contents(folder) == before
    export_to(folder, "--seed", "0", "--force")
    after = contents(folder)
    assert after.pop("world.json") != before.pop("world.json"), "it states when and how it was made"
    assert after.pop("truth.json") != before.pop("truth.json")
    assert after == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["w"]


@pytest.mark.run
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--world", "tabular"], "a text world is needed"),
        (["policy.temperature=0.7"], "leave it at 1.0"),
        (["beta=-1"], "beta"),
        (["offline.pairs=3"], "says nothing about a world"),
    ],
)
def test_what_cannot_be_exported_leaves_nothing_behind(tmp_path: Path, options: list[str], said: str) -> None:
    assert said in refused("world", "export", "--to", str(tmp_path / "w"), *options)
    assert list(tmp_path.iterdir()) == []


def test_a_changed_folder_is_no_world(world: Exported, tmp_path: Path) -> None:
    shutil.copytree(world.folder, tmp_path / "w")
    file = tmp_path / "w" / "world.json"
    stated = json.loads(file.read_text("utf-8"))
    for change, said in (
        ({"truth_means": {"reward": 0.0, "cost": 0.0}}, "draws other worlds"),
        ({"reference": {"sha256": "0"}}, "is not the model"),
        ({"format": "another"}, "the format is 'another'"),
    ):
        file.write_text(json.dumps(stated | change))
        with pytest.raises(UserError, match=said):
            prepare_exported(tmp_path / "w")
    for text in ("{", "[]", "{}"):
        file.write_text(text)
        with pytest.raises(UserError, match="no exported world"):
            exported_settings(tmp_path / "w")


def test_a_world_has_the_limit_on_its_own_cost_alone_and_labels_it_itself() -> None:
    people = choose_world("text-world-people", 0, []).config
    assert (people.feedback.kind, people.limits["cost"]["logit"]) == ("world", {"world": "cost"})
    with pytest.raises(UserError, match="has limits that sources measure") as refused:
        choose_world("text-world-certified", 0, [])
    settings = shlex.split(str(refused.value).partition("own cost: ")[2])
    assert choose_world("text-world-certified", 0, settings).config.thresholds == {"cost": -3.0}
