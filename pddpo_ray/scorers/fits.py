"""Reward and cost models of a run: trained before the first round, or taken as the recipe names them."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config, FitConfig, ScoredFeedback, ScorerFit, ScorerTrainingConfig, StoredScorerConfig
from pddpo_ray.journal import Journal
from pddpo_ray.parts.fitting import with_steps
from pddpo_ray.records import HARM, Array, LabelledPair, PolicyVersion, Response
from pddpo_ray.scoring.held_out import KINDS, REPORT, Kind, Part, ScoreRow, Trials, parts_of, rows_of
from pddpo_ray.scoring.interface import AnswerScorer, ModelScorer, TextPair
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.recall import Recall, key_of
from pddpo_ray.storage.whole_files import finite, write_json
from pddpo_ray.theory.seeds import seed_of

logger = logging.getLogger(__name__)

MakeScorer = Callable[[], AnswerScorer]
OpenScorer = Callable[[str, MakeScorer], AnswerScorer]
"""(name, maker) -> the scorer, here or in an actor of its own."""
OF_FEEDBACK, OF_METHOD = "score-models", "method-models"
"""Phases that train: the models that label, and those that a method itself asks for."""
FITTED = "scorers"
"""The phase in which scores linear in features are fitted, those of C-DPO, MoCAN and CAID."""
WHOLE = ScorerFit(parameters="full")
"""All weights are trained."""
HELD_OUT = "held_out"
"""In the phase's payload, by kind: how often the model was right on pairs that it did not learn from (`Trials`)."""
Data = Callable[[], tuple[Sequence[LabelledPair], Mapping[str, bool]]]
"""Pairs, and safety labels (unsafe or not) by answer; asked only if the models are not trained yet."""


class AtFirstUse:
    """An `AnswerScorer` that is trained, or loaded, when it is first asked."""

    def __init__(self, make: MakeScorer) -> None:
        self._make = make

    @cached_property
    def _scorer(self) -> AnswerScorer:
        return self._make()

    @property
    def name(self) -> str:
        return self._scorer.name

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        return self._scorer.score_texts(texts)

    def score(self, responses: Sequence[Response]) -> Array:
        return self._scorer.score(responses)


class ScorerTraining:
    """Trains score models once, in a phase of their own; afterwards they are read back from journal and store."""

    def __init__(
        self,
        journal: Journal,
        store: ArtifactStore,
        reference: PolicyVersion,
        settings: ScorerTrainingConfig,
        *,
        seed: int,
        open_scorer: OpenScorer | None = None,
        phase: str = OF_FEEDBACK,
        by_prompt: bool = False,
        recall: Recall | None = None,
    ) -> None:
        self._journal, self._store, self._reference = journal, store, reference
        self._settings, self._seed, self._phase, self._by_prompt = settings, seed, phase, by_prompt
        self._files: dict[Kind, tuple[str, str]] = {}
        self._open = open_scorer or (lambda name, make: make())
        self._recall: Recall = recall or (lambda key, compute: compute())

    def models(self, data: Data) -> ModelScorer:
        """Both models. `data` gives pairs and safety labels by answer; it is asked only if they are not trained yet."""
        self.stored(data)
        return ModelScorer(self.opened("reward"), self.opened("cost"))

    def stored(self, data: Data, kinds: Sequence[Kind] = KINDS) -> dict[Kind, tuple[str, str]]:
        """(path, sha256) of the models, trained if they are not; the first call fixes which kinds there are."""
        if not self._files:
            payloads = {entry.phase: entry.payload for entry in self._journal.phases(self._journal.round)}
            if self._phase in payloads:  # also by this process: a certificate at the run's end has its own feedback
                payload = payloads[self._phase]
            else:
                # Collecting the data has phases of its own, so it comes before the phase that trains.
                labelled, unsafe = data()
                payload = self._journal.once(self._phase, lambda: self._train(labelled, unsafe, kinds))
            self._files = {kind: (payload[kind]["path"], payload[kind]["sha256"]) for kind in kinds}
        return self._files

    def opened(self, kind: Kind, make: MakeScorer | None = None) -> AnswerScorer:
        """A model, in this process or wherever the run's scorers live; the trained one, unless `make` makes another."""
        return self._open(f"{kind}-model", make or partial(stored_scorer, str(self._store.root), *self._files[kind]))

    def _train(
        self, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool], kinds: Sequence[Kind]
    ) -> dict[str, dict[str, Any]]:
        payload: dict[str, dict[str, Any]] = {}
        for kind in kinds:
            seed = seed_of(self._seed, "scorer", kind)
            order = ScorerOrder.of(kind, self._reference, self._settings, seed, len(labelled), self._by_prompt)
            record = order.trained(labelled, unsafe, self._store, self._recall)
            self._journal.add_metrics({f"scorer/{kind}_{name}": value for name, value in record["metrics"].items()})
            trials = {name: record["metrics"][f"held_out_{name}"] for name in ("right", "trials")}
            payload[kind] = {"path": record["path"], "sha256": record["sha256"], HELD_OUT: trials}
        return payload


def training_of(config: Config, journal: Journal, backends: Backends, phase: str) -> ScorerTraining:
    """Training of score models from the reference, in a phase for labelling or for a method."""
    return ScorerTraining(
        journal,
        backends.store,
        backends.reference,
        config.scorers,
        seed=config.seed,
        open_scorer=backends.own_scorer,
        phase=phase,
        # prompts of files are a sample of prompts; those of a world are the ones that there are
        by_prompt=backends.world is None,
        recall=backends.recall,
    )


@dataclass(frozen=True)
class ScorerOrder:
    """All that decides the weights of a score model, but for its data."""

    kind: Kind
    reference: PolicyVersion
    """Its first weights are this model's."""
    fit: FitConfig
    seed: int
    held_out: float
    by_prompt: bool = False
    """Whether whole prompts are held out, and count once each."""
    ways: ScorerFit = WHOLE
    """Which weights are trained, and how."""

    @classmethod
    def of(
        cls,
        kind: Kind,
        reference: PolicyVersion,
        settings: ScorerTrainingConfig,
        seed: int,
        pairs: int,
        by_prompt: bool,
    ) -> ScorerOrder:
        """The recipe's, for a number of pairs."""
        rows = round((1.0 - settings.held_out - settings.calibration) * pairs)
        return cls(
            kind,
            reference,
            with_steps(settings.optimiser, rows),
            seed,
            held_out=settings.held_out,
            by_prompt=by_prompt,
            ways=settings.ways,
        )

    def trained(
        self, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool], store: ArtifactStore, recall: Recall
    ) -> dict[str, Any]:
        """Its path, sha256 and metrics. Equal orders over equal data are trained once; an interrupted one continues."""
        key = [self.kind, self.reference.sha256, self.fit.model_dump(), self.seed]
        key += [self.held_out, self.by_prompt]
        if (self.ways.parameters, self.ways.calibration) != ("full", 0.0):
            key += [self.ways.parameters, self.ways.rank, self.ways.calibration]
        rows = [
            [
                item.pair.prompt.token_ids,
                [[answer.token_ids, unsafe.get(answer.id)] for answer in (item.pair.first, item.pair.second)],
                item.helpful.value,
                item.label(HARM).value,
            ]
            for item in labelled
        ]
        work = store.scratch(f"scorer-{key_of([key, rows])[:16]}")
        record: dict[str, Any] = recall(
            ["scorer", key, rows], lambda: _resume_or_train(work, lambda: self._train(labelled, unsafe, store, work))
        )
        return record

    def _train(
        self, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool], store: ArtifactStore, work: Path
    ) -> dict[str, Any]:
        """Its folder reads back with `stored_scorers.load_scorer` and says in scorer.json how good it is. Metrics are
        those of the fit and of the rows held out."""
        # Imported here: a run whose models are given needs no training in this process.
        from pddpo_ray.scoring import scorer_training as training
        from pddpo_ray.scoring.score_fits import held_out_metrics
        from pddpo_ray.training.models.score_model import score_tensors

        def say(line: str) -> None:
            logger.info("%s model: %s", self.kind, line)

        kind, ways, seed, folder = self.kind, self.ways, self.seed, store.folder(self.reference.path)
        score_rows = rows_of(labelled, kind, unsafe)
        # split by whole prompts, or pair by pair
        keys = [row.unit if self.by_prompt else index for index, row in enumerate(score_rows)]
        split: dict[Part, list[ScoreRow]] = {"fit": [], "calibrate": [], "judge": []}
        for row, part in zip(score_rows, parts_of(keys, self.held_out, ways.calibration, seed), strict=True):
            split[part].append(row)
        rows = training.ScorerRows(**split)
        # older versions trained no bias
        bias = ways.parameters != "full" or ways.calibration > 0.0
        scorer = training.make_scorer(kind, folder, rows, ways, self.fit, seed=seed, work=work, say=say, bias=bias)
        metrics = {**scorer.fit, "rows": float(len(rows.fit))}
        report: dict[str, Any] = {"kind": kind, "calibration": scorer.calibration}
        judge_metrics = Trials(0.0, 0).as_metrics()
        if rows.judge:
            judgement = training.judged(scorer.model, kind, rows.judge, ways, seed=seed, by_prompt=self.by_prompt)
            report["held_out"] = judgement
            judge_metrics = {**held_out_metrics(scorer.model, rows.judge), **Trials.of(judgement).as_metrics()}
        metrics |= {f"held_out_{name}": value for name, value in judge_metrics.items()}

        def fill(target: Path) -> None:
            training.store_scorer(scorer.model, folder, target, "tokens")
            if rows.judge:
                write_json(target / REPORT, finite(report))

        path, sha256 = store.write_tensors(f"{kind}-model", score_tensors(scorer.model), fill=fill)
        return {"path": path, "sha256": sha256, "metrics": metrics}


def _resume_or_train(work: Path, train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a process that died, or of training now; the work folder keeps only the result."""
    result = work / "made.json"
    if not result.exists():
        work.mkdir(parents=True, exist_ok=True)
        record = train()
        shutil.rmtree(work)
        write_json(result, record)
    content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return content


def stored_scorer(root: str, path: str, sha256: str) -> AnswerScorer:
    """A score model from the artifact store, its hash compared; runs wherever the model is to live."""
    # Imported here: models are loaded where they live, which need not be this process.
    from pddpo_ray.scoring.stored_scorers import load_scorer

    store = ArtifactStore(root)
    store.read_torch(path, sha256)
    return load_scorer(store.folder(path))


def given_scorer(settings: StoredScorerConfig, dtype: str) -> AnswerScorer:
    """A model that the recipe names."""
    # Imported here: models are loaded where they live, which need not be this process.
    from pddpo_ray.scoring.stored_scorers import load_scorer

    return load_scorer(settings.path, settings.read, dtype)


def feedback_models(
    settings: ScoredFeedback,
    kinds: Sequence[Kind],
    training: ScorerTraining,
    data: Data,
    dtype: str = "float32",
) -> dict[Kind, AnswerScorer]:
    """The models that are asked: those that the recipe names are loaded, the others trained."""
    configs: dict[Kind, StoredScorerConfig | None] = {kind: getattr(settings, kind) for kind in kinds}
    if missing_kinds := [kind for kind, path in configs.items() if path is None]:
        training.stored(data, missing_kinds)
    return {
        kind: training.opened(kind, None if scorer is None else partial(given_scorer, scorer, dtype))
        for kind, scorer in configs.items()
    }
