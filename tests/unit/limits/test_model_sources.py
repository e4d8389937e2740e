"""Classifiers, score models and tokenizers as sources of limits: real models with random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import BertConfig, BertForSequenceClassification

from pddpo_ray.config import ScorerJob
from pddpo_ray.errors import UserError
from pddpo_ray.limits.check import Checked, check
from pddpo_ray.limits.reading import stated_limits
from pddpo_ray.limits.sources import Answer
from pddpo_ray.scoring.scorer_job import train_from_files
from pddpo_ray.scoring.sources.opening import Surroundings, open_source
from tests.support.scorer_rows import TEMPLATE, rows_of_words, write_rows
from tests.support.tiny_language_model import save_policy, word_tokenizer

ANSWERS = [Answer(f"word{n}", f"word{2 * n} word{n + 1}", where=f"row {n}") for n in range(1, 13)]


def guard(folder: Path, *, broken: bool = False) -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=88, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        id2label={0: "safe", 1: "unsafe"}, label2id={"safe": 0, "unsafe": 1}, pad_token_id=0,
        max_position_embeddings=64, initializer_range=1.0,
    )  # fmt: skip
    torch.manual_seed(3)
    model = BertForSequenceClassification(config).eval()
    if broken:
        model.classifier.weight.data.fill_(float("nan"))
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return model


def checked(folder: Path, limit: str) -> Checked:
    (stated,) = stated_limits({"limits": {"mine": yaml.safe_load(limit)}}, "here")
    return check([(stated, open_source(stated, Surroundings(folder)))], ANSWERS)[0]


def chances(model: BertForSequenceClassification) -> Any:
    with torch.no_grad():
        logits = [model(**word_tokenizer()(one.prompt, one.response, return_tensors="pt")).logits[0] for one in ANSWERS]
    return torch.softmax(torch.stack(logits).double(), 1)[:, 1].numpy()


def test_a_classifier_says_yes_where_its_label_is_likely_and_gives_the_probability_as_a_mean(tmp_path: Path) -> None:
    expected = chances(guard(tmp_path / "guard"))
    aim = float(np.median(expected))
    share = checked(tmp_path, f"{{rate: {{classifier: guard, label: Unsafe, threshold: {aim:.6f}}}, at_most: 5 %}}")
    assert share.estimate is not None
    assert share.estimate.number == pytest.approx(np.mean(expected >= aim), abs=1 / 12 + 1e-9)
    mean = checked(tmp_path, "{mean: {classifier: guard, label: unsafe}, at_most: 0.5}")
    assert mean.estimate is not None
    assert mean.estimate.number == pytest.approx(np.mean(expected), abs=1e-4)
    assert (mean.n, mean.failed) == (12, 0)


def test_a_classifier_is_asked_for_a_label_that_it_has(tmp_path: Path) -> None:
    guard(tmp_path / "guard")
    for label, message in [("", "say which with `label`"), (", label: toxic", "no label toxic; it has safe, unsafe")]:
        with pytest.raises(UserError, match=message):
            checked(tmp_path, f"{{rate: {{classifier: guard{label}}}, at_most: 5 %}}")
    with pytest.raises(UserError, match=r"limits\.mine\.rate\.classifier: no-such-guard"):
        checked(tmp_path, "{rate: {classifier: no-such-guard, label: unsafe}, at_most: 5 %}")


def test_a_classifier_that_gives_nan_gives_no_number(tmp_path: Path) -> None:
    guard(tmp_path / "guard", broken=True)
    found = checked(tmp_path, "{rate: {classifier: guard, label: unsafe}, at_most: 5 %}")
    assert (found.estimate, found.n, found.failed, found.kept) == (None, 0, 12, None)
    assert found.reasons[0] == "row 1: classifier guard, label unsafe gave nan"


def test_the_version_of_a_classifier_follows_weights_label_and_threshold(tmp_path: Path) -> None:
    def version(limit: str) -> str:
        (stated,) = stated_limits({"limits": {"mine": yaml.safe_load(limit)}}, "here")
        return open_source(stated, Surroundings(tmp_path)).version

    model = guard(tmp_path / "guard")
    limit = "{rate: {classifier: guard, label: unsafe}, at_most: 5 %}"
    first = version(limit)
    assert version(limit) == first
    assert version("{rate: {classifier: guard, label: safe}, at_most: 5 %}") != first
    assert version("{rate: {classifier: guard, label: unsafe, threshold: 40 %}, at_most: 5 %}") != first
    model.classifier.bias.data += 1.0
    model.save_pretrained(tmp_path / "guard")
    assert version(limit) != first


def test_a_score_model_gives_its_score(tmp_path: Path) -> None:
    expected = chances(guard(tmp_path / "guard"))
    found = checked(tmp_path, "{mean: {score_model: guard, scale: -1}, at_most: 0, bounds: [-50, 50]}")
    assert found.estimate is not None
    assert found.estimate.number == pytest.approx(-np.mean(np.log(expected / (1 - expected))), abs=1e-3)


def test_a_score_model_says_yes_above_zero_or_above_what_is_stated(tmp_path: Path) -> None:
    logits = np.log(chances(guard(tmp_path / "guard")))
    logits -= np.log1p(-np.exp(logits))
    for above, extra in ((0.0, ""), (float(np.median(logits)), f", above: {float(np.median(logits)):.6f}")):
        found = checked(tmp_path, f"{{rate: {{score_model: guard{extra}}}, at_most: 50 %}}")
        assert found.estimate is not None
        assert found.estimate.number == pytest.approx(np.mean(logits > above), abs=1e-9)


def test_a_score_model_versus_the_reference_gives_the_share_of_wins(tmp_path: Path) -> None:
    """Every other answer is the reference's own: a tie, which is a half."""
    model = guard(tmp_path / "guard")
    rows = [replace(one, reference=one.response if n % 2 else f"word{n + 3}") for n, one in enumerate(ANSWERS)]
    logits = []
    with torch.no_grad():
        for one in rows:
            texts = [word_tokenizer()(one.prompt, said, return_tensors="pt") for said in (one.response, one.reference)]
            own, other = [float(output[1] - output[0]) for text in texts for output in model(**text).logits]
            logits.append((own > other + 1e-3) + 0.5 * (abs(own - other) <= 1e-3))
    limit = {"rate": {"score_model": "guard"}, "versus": "reference", "at_least": "50 %"}
    (stated,) = stated_limits({"limits": {"mine": limit}}, "here")
    (found,) = check([(stated, open_source(stated, Surroundings(tmp_path)))], rows)
    assert found.estimate is not None
    assert found.estimate.number == pytest.approx(np.mean(logits), abs=1e-9)
    assert 0.25 <= found.estimate.number <= 0.75
    (alone,) = check([(stated, open_source(stated, Surroundings(tmp_path)))], ANSWERS)
    assert (alone.estimate, alone.failed) == (None, 12)
    guard(tmp_path / "guard", broken=True)
    (broken,) = check([(stated, open_source(stated, Surroundings(tmp_path)))], rows)
    assert (broken.estimate, broken.failed) == (None, 12), "a failed score is no tie"


@pytest.mark.run
def test_a_verdict_needs_a_zero_that_means_something(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if not k.startswith("is_")} for row in rows_of_words(40, 3)]
    file = write_rows(tmp_path / "pairs.jsonl", rows)
    base = save_policy(tmp_path / "base", 0)
    job = ScorerJob(kind="cost", files=(str(file),), base=str(base), template=TEMPLATE, device="cpu")
    report = train_from_files(job, tmp_path / "cost", resume=False, say=lambda line: None)
    assert not report["calibration"]["zero_is_known"]
    with pytest.raises(UserError, match=r"the zero of cost means nothing.*`above: 0\.5`"):
        checked(tmp_path, "{rate: {score_model: cost}, at_most: 50 %}")
    assert checked(tmp_path, "{rate: {score_model: cost, above: 0.5}, at_most: 50 %}").estimate is not None


def test_tokens_are_counted_by_the_tokenizer_that_is_named(tmp_path: Path) -> None:
    word_tokenizer().save_pretrained(tmp_path / "guard")
    found = checked(tmp_path, "{mean: {rule: tokens, tokenizer: guard}, at_most: 40, bounds: [0, 100]}")
    assert found.estimate is not None
    assert (found.estimate.number, found.note) == (2.0, "")


def test_a_real_classifier_of_swear_words_tells_them_apart() -> None:
    pytest.importorskip("profanity_check", reason="alt-profanity-check is not installed")
    named: dict[str, Any] = {"classifier": "alt-profanity-check"}
    (stated,) = stated_limits({"limits": {"mine": {"rate": named, "at_most": "5 %"}}}, "here")
    source = open_source(stated, Surroundings(Path()))
    polite = [Answer("p", "Soak it in warm water first."), Answer("p", "Thank you, that is kind.")]
    rude = [Answer("p", "You stupid bastard, go to hell."), Answer("p", "What a load of bullshit.")]
    assert source.values([*polite, *rude]) == [0.0, 0.0, 1.0, 1.0]
    assert source.version.startswith("alt-profanity-check 1.")
    (other,) = stated_limits(
        {"limits": {"mine": {"rate": {"classifier": "alt-profanity-check", "label": "toxic"}, "at_most": "5 %"}}},
        "here",
    )
    with pytest.raises(UserError, match="has no label toxic"):
        open_source(other, Surroundings(Path()))
