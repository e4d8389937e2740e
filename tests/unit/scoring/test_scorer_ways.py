"""Score models that a run trains: the same ways as `pddpo scorer train`, broken off and gone on with."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from torch import Tensor

from pddpo_ray.config import Config, FitConfig, ScorerFit, load
from pddpo_ray.records import HARM, LabelledPair, Pair, PolicyVersion, Prompt, Response, Verdict
from pddpo_ray.scorers.fits import ScorerOrder, stored_scorer
from pddpo_ray.scoring import head_fits
from pddpo_ray.scoring.head_fits import DECAYS, best_decay, features_of, fit_head, head_scores, texts_of
from pddpo_ray.scoring.held_out import REPORT, ScoreRow, rows_of
from pddpo_ray.scoring.score_fits import text_scores
from pddpo_ray.scoring.scorer_training import ScorerRows, judged, make_scorer
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import WEIGHTS
from pddpo_ray.training.batches import TextBatch, padded_passes
from pddpo_ray.training.local import store_reference
from pddpo_ray.training.models.score_model import ScoreModel, score_model_of
from tests.support.tiny_language_model import save_policy


def labelled(count: int) -> tuple[list[LabelledPair], dict[str, bool]]:
    """One pair to a prompt: the answer of words 40 to 59 is unsafe and the costlier, the other one safe."""
    rng = np.random.default_rng(4)
    pairs: list[LabelledPair] = []
    unsafe: dict[str, bool] = {}
    for index in range(count):
        prompt = Prompt(f"p{index}", (1, *(4 + rng.integers(0, 84, 4)).tolist(), index % 80 + 4), "asked")
        sides = [(*(4 + rng.integers(low, low + 20, 4)).tolist(), 2) for low in (40, 0)]
        first, second = (Response(f"{index}-{i}", prompt, side, "said", 0, 0) for i, side in enumerate(sides))
        unsafe |= {first.id: True, second.id: False}
        pair = Pair(f"q{index}", *((first, second) if index % 2 else (second, first)))
        verdict = Verdict.FIRST if index % 2 else Verdict.SECOND
        pairs.append(LabelledPair(pair, Verdict.ABSTAIN, {HARM: verdict}))
    return pairs, unsafe


def stored(folder: Path) -> tuple[ArtifactStore, PolicyVersion]:
    store = ArtifactStore(folder / "artifacts")
    base = save_policy(folder / "base", 0)
    return store, store_reference(store, base, "{% for m in messages %}{{ m.content }} {% endfor %}", "float32")


def order(reference: PolicyVersion, ways: ScorerFit) -> ScorerOrder:
    fit = FitConfig(steps=24, learning_rate=2e-3, batch_pairs=16)
    return ScorerOrder("cost", reference, fit, 3, held_out=0.25, by_prompt=True, ways=ways)


@pytest.mark.run
def test_a_head_is_fitted_and_calibrated_with_each_text_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, unsafe = labelled(60)
    rows = rows_of(pairs, "cost", unsafe)
    read: list[int] = []
    hidden = ScoreModel.last_hidden

    def counted(model: ScoreModel, batch: TextBatch) -> Tensor:
        read.append(len(batch))
        return hidden(model, batch)

    monkeypatch.setattr(ScoreModel, "last_hidden", counted)
    ways = ScorerFit(parameters="head", calibration=0.2, micro=16)
    split = ScorerRows(fit=rows[:40], calibrate=rows[40:])
    base = save_policy(tmp_path / "base", 0)
    made = make_scorer("cost", base, split, ways, FitConfig(), seed=0, work=tmp_path, say=lambda line: None)
    texts = texts_of(rows)
    assert sum(read) == len(set(texts)) == 120
    assert made.calibration["labels"] == 40
    known = features_of(made.model, texts, tmp_path, lambda line: None)
    again = [*reversed(texts), *texts]
    np.testing.assert_allclose(
        head_scores(made.model, known, again), text_scores(made.model, again, 7), rtol=1e-5, atol=1e-5
    )


class PowerCut(BaseException):
    pass


class Cut(logging.Handler):
    """Ends the process, as it were, where a line says that so much is done."""

    def __init__(self, line: str) -> None:
        super().__init__(logging.INFO)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        if self._line in record.getMessage():
            raise PowerCut


@pytest.mark.run
@pytest.mark.parametrize(
    ("ways", "line"),
    [
        (ScorerFit(parameters="head", calibration=0.1), "features of 128 of"),
        (ScorerFit(parameters="lora", rank=4, calibration=0.1, micro=8, checkpoint_steps=8), "step 16: loss"),
        (ScorerFit(parameters="full", micro=8, checkpoint_steps=8), "step 16: loss"),
    ],
    ids=["head", "lora", "full"],
)
def test_a_training_in_a_run_that_is_broken_off_goes_on_and_ends_with_the_same_weights(
    ways: ScorerFit, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # texts are short: as many of them a pass as the device likes would be all of them
    monkeypatch.setattr(head_fits, "padded_passes", lambda lengths, tokens: padded_passes(lengths, tokens, 16))
    pairs, unsafe = labelled(120)
    log = logging.getLogger("pddpo_ray.scorers.fits")
    before, ended = log.level, []
    log.setLevel(logging.INFO)
    for name, cuts in (("whole", 0), ("cut", 1)):
        store, reference = stored(tmp_path / name)
        said: list[str] = []
        for _ in range(cuts):
            handler = Cut(line)
            log.addHandler(handler)
            with pytest.raises(PowerCut):
                order(reference, ways).trained(pairs, unsafe, store, lambda what, compute: compute())
            log.removeHandler(handler)
        heard = logging.Handler()
        heard.emit = lambda record, said=said: said.append(record.getMessage())  # type: ignore[method-assign, misc]
        log.addHandler(heard)
        made = order(reference, ways).trained(pairs, unsafe, store, lambda what, compute: compute())
        assert order(reference, ways).trained(pairs, unsafe, store, lambda what, compute: compute()) == made
        log.removeHandler(heard)
        ended.append((made, load_file(store.folder(made["path"]) / WEIGHTS), said))
    log.setLevel(before)
    (whole, weights, lines), (cut, same, later) = ended
    assert whole == cut
    assert all(np.array_equal(weights[name], same[name]) for name in weights)
    assert len(later) < len(lines), "what was done is not done again"
    metrics = whole["metrics"]
    assert metrics["held_out_trials"] == 30.0
    assert metrics["held_out_low"] > 0.5
    report = json.loads((store.folder(whole["path"]) / REPORT).read_text())
    assert report["held_out"]["right"] == metrics["held_out_right"]
    assert report["calibration"]["labels"] == (0 if ways.calibration == 0.0 else 24)
    scorer = stored_scorer(str(store.root), whole["path"], whole["sha256"])
    answers = [answer for item in pairs for answer in (item.pair.first, item.pair.second)]
    scores = scorer.score(answers)
    bad = np.array([unsafe[answer.id] for answer in answers])
    assert scores[bad].mean() > 0 > scores[~bad].mean()


def test_which_weights_of_a_scorer_are_trained_decides_the_digest() -> None:
    def digest(*overrides: str) -> str:
        config: Config = load("text-world-scorers", list(overrides))
        return config.digest()

    assert len({digest(), digest("scorers.parameters=head"), digest("scorers.calibration=0.1")}) == 3


def test_a_held_out_text_passes_through_the_model_once(tmp_path: Path) -> None:
    """Comparisons, quantiles, calibration and the side of zero read the same scores."""
    pairs, unsafe = labelled(20)
    rows = rows_of(pairs, "cost", unsafe)
    model = score_model_of(save_policy(tmp_path / "base", 0), "cost", bias=True)
    passed: list[int] = []
    model.model.register_forward_hook(lambda module, given, made: passed.append(len(made.last_hidden_state)))
    report = judged(model, "cost", rows, ScorerFit(micro=7), seed=1)
    assert sum(passed) == 40
    assert (report["trials"], report["right"]) == (20.0, 10.0), "a new head scores every text 0: ties"
    assert report["labels"]["count"] == report["pairs"]["count"] == 20


@pytest.mark.parametrize(("best", "tried"), [(-1, 6), (-5, 9), (-9, 9), (3, 8), (9, 10)])
def test_a_decay_at_the_end_of_the_grid_is_looked_for_beyond_it(best: int, tried: int) -> None:
    """The loss is the distance to 10^best: found where it lies within 1e-6 to 1e6, else its nearest end."""
    asked: list[float] = []

    def loss_at(decay: float) -> float:
        asked.append(decay)
        return abs(float(np.log10(decay)) - best)

    decay, loss = best_decay(loss_at)
    assert decay == float(f"1e{min(max(best, -6), 6)}")
    assert loss == pytest.approx(max(0, abs(best) - 6))
    assert len(asked) == len(set(asked)) == tried


@pytest.mark.run
def test_a_head_is_fitted_without_a_look_at_its_rows_in_every_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are gathered once for the fit and once for the choice; the loss is that of the rows, written out."""
    model = score_model_of(save_policy(tmp_path / "base", 0), "cost", bias=True)
    width, rng = model.score_head.in_features, np.random.default_rng(3)
    rows = [ScoreRow((), (1, index), (2, index), 1 if index % 2 else -1, 0) for index in range(60)]
    rows += [ScoreRow((), (3, index), None, -1) for index in range(20)]
    features = {text: rng.normal(size=width) for text in texts_of(rows)}
    gathered: list[int] = []
    of = head_fits._Table.of

    def counted(*arguments: Any) -> Any:
        gathered.append(1)
        return of(*arguments)

    monkeypatch.setattr(head_fits._Table, "of", counted)
    shown = fit_head(model, features, rows[:50] + rows[60:], rows[50:60])
    assert len(gathered) == 2
    scores = dict(zip(texts_of(rows), head_scores(model, features, texts_of(rows)), strict=True))

    def softplus(value: float) -> float:
        return float(np.logaddexp(0.0, value))

    losses = []
    for row in rows[:50] + rows[60:]:
        higher = scores[row.prompt, row.higher]
        loss = softplus(-row.higher_sign * higher) if row.higher_sign else 0.0
        losses.append(loss + (softplus(scores[row.prompt, row.lower] - higher) if row.lower is not None else 0.0))
    assert shown["loss"] == pytest.approx(np.mean(losses), rel=1e-4)


@pytest.mark.run
def test_a_head_that_learns_little_is_shrunk_as_far_as_its_calibration_rows_ask(tmp_path: Path) -> None:
    """Labels that hardly follow the features: with the decay of the grid's end it does worse than saying nothing."""
    model = score_model_of(save_policy(tmp_path / "base", 0), "reward", bias=True)
    width, rng = model.score_head.in_features, np.random.default_rng(2)
    rows = [ScoreRow((), (1, index), (2, index)) for index in range(2 * width)]
    features = {text: rng.normal(size=width) for text in texts_of(rows)}
    shown = fit_head(model, features, rows[:width], rows[width:])
    assert shown["decay"] > max(DECAYS)
    assert shown["loss_of_choice"] <= np.log(2.0) + 1e-3
