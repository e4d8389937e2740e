"""The trainer without Ray: executes self-contained fit commands and scores texts, one model resident at a time.

A Ray worker runs this same class on every rank; only the engine inside knows how many ranks there are. Rank 0 writes
versions to the artifact store, and every rank computes the same hash, so nothing has to be sent back.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pddpo_ray.contracts import FitCommand, FitResult, Start, Update
from pddpo_ray.errors import UserError
from pddpo_ray.records import Array, PolicyVersion, Response
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.masters import (
    MASTERS,
    MOMENTS,
    check_startable,
    forget_older,
    published,
    read_masters,
    read_moments,
    write_beside,
)
from pddpo_ray.storage.tensors import MadeTensors
from pddpo_ray.storage.whole_files import copy_plain_files, write_json
from pddpo_ray.training.batches import Text, texts_of
from pddpo_ray.training.device import device_for
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import Engine, FrozenColumns, Tensors, run_fit
from pddpo_ray.training.models.nf4 import store_in_nf4
from pddpo_ray.training.passes.log_probs import (
    ResponseScorer,
    Support,
    mean_hidden,
    passes,
    score_texts,
    support_of_texts,
)
from pddpo_ray.training.row_store import Column, Kind, RowStore

MakeEngine = Callable[[ResponseScorer], Engine]
SUPPORT_FLOOR = 1e-3
"""Smallest probability under the reference that counts as supported: rarer tokens are not of its language."""
SAMPLE = 2**20
"""Numbers sampled to estimate a fit's moved share, to a tenth of a percent; all, if there are fewer."""


def carried(
    base: Mapping[str, Tensor], plus: Mapping[str, Tensor], minus: Mapping[str, Tensor], scale: float
) -> Mapping[str, Tensor]:
    """base + scale * (plus - minus), each tensor when it is asked for (contracts.Start)."""
    return MadeTensors(base, lambda name: base[name] + scale * (plus[name] - minus[name]))


class LocalTrainer:
    """Satisfies contracts.TrainerBackend.

    What frozen models say about a text (log-probability, support, features) is computed once per run (`row_store`).
    """

    carry = staticmethod(carried)

    def __init__(self, engine: Engine, store: ArtifactStore, reference: PolicyVersion) -> None:
        self.engine = engine
        self.store = store
        self.reference = reference
        self._loaded_path: str | None = None
        self._dtype = next(engine.scorer.parameters()).dtype
        numbers, temperature = str(self._dtype).removeprefix("torch."), engine.scorer.temperature
        if temperature != 1.0:
            numbers += f"-{temperature:g}"
        self._rows = RowStore(store, numbers, writes=engine.shard.rank == 0)
        self._reference_log_probs = self._open_column("log_probs", reference.sha256)
        self._features = self._open_column("features", reference.sha256)
        self._supports: tuple[float, Column] | None = None

    def execute(self, command: FitCommand) -> FitResult:
        """Run one fit and store its version."""
        began = time.perf_counter()
        columns = self._columns(command)
        prepared = time.perf_counter()
        self.load_start(command.start)
        before = self._weight_sample(self.engine.each_weight())
        source = command.start.moments
        self.engine.begin(
            command.settings, None if source is None else read_moments(self.store.stored(source.path), source)
        )
        curve = run_fit(
            self.engine,
            command.objective,
            command.rows,
            columns,
            command.settings,
            command.seed,
            command.optimism,
            command.result,
        )
        moments = self.engine.moments() if command.keeps_moments else {}
        self.engine.end()
        weights = self.engine.weights()
        version = self.keep(command, weights, moments)
        metrics = curve.as_metrics()
        if weights:
            metrics["fit/moved"] = moved_share(before, self._weight_sample(weights.items()))
        metrics["fit/prepare_seconds"] = prepared - began
        metrics["fit/seconds"] = time.perf_counter() - began
        return FitResult(version, metrics, (os.getpid(),), curve.as_json())

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        return self.score(policy, [(r.prompt.token_ids, r.token_ids) for r in responses])

    def features(self, responses: Sequence[Response]) -> Array:
        texts = [(r.prompt.token_ids, r.token_ids) for r in responses]
        new = self._features.missing(texts)
        if new:
            self.load(self.reference)
            self._features.add(new, self._share_work(lambda part: mean_hidden(self.engine.scorer, part), new))
        return np.stack(self._features.of(texts))

    def score(self, policy: PolicyVersion, texts: Sequence[Text]) -> Array:
        """log pi(y|x) of texts; equal texts are computed once. -> [n]"""
        if policy.sha256 == self.reference.sha256:
            self._add_reference(texts)
            return np.array(self._reference_log_probs.of(texts))
        unique = list(dict.fromkeys(texts))
        if not unique:
            return np.empty(0)
        self.load(policy)
        scores = dict(
            zip(unique, self._share_work(lambda part: score_texts(self.engine.scorer, part), unique), strict=True)
        )
        return np.array([scores[text] for text in texts])

    def close(self) -> None:
        """Nothing to release: the process owns the model."""

    # --- frozen columns -----------------------------------------------------------------------------------------

    def _columns(self, command: FitCommand) -> FrozenColumns:
        texts = list(dict.fromkeys(texts_of(command.rows)))
        supports: dict[Text, Support] = {}
        if command.settings.support > 0:
            supports = self._add_supports(texts, SUPPORT_FLOOR).mapping(texts)
        base = command.objective.base
        if base.sha256 == self.reference.sha256:
            self._add_reference(texts)
            return FrozenColumns(self._reference_log_probs.mapping(texts), supports)
        column = self._open_column("log_probs", base.sha256)
        missing = column.missing(texts)
        if missing:
            column.add(missing, self.score(base, missing))
        return FrozenColumns(column.mapping(texts), supports)

    def _add_reference(self, texts: Sequence[Text]) -> None:
        new = self._reference_log_probs.missing(texts)
        if new:
            self.load(self.reference)
            self._reference_log_probs.add(
                new, self._share_work(lambda part: score_texts(self.engine.scorer, part), new)
            )

    def _add_supports(self, texts: Sequence[Text], floor: float) -> Column:
        if self._supports is None or self._supports[0] != floor:
            self._supports = floor, self._open_column("supports", self.reference.sha256, f"-{floor:g}")
        column = self._supports[1]
        new = column.missing(texts)
        if new:
            self.load(self.reference)
            # Not shared between ranks: a mask is needed by the rank that trains on the text, and that changes per step.
            log_probs, supports = support_of_texts(self.engine.scorer, new, floor)
            column.add(new, supports)
            # One pass gives both. A number that is known stays, so that a run that was broken off sees the same ones.
            unknown = set(self._reference_log_probs.missing(new))
            fresh = [index for index, text in enumerate(new) if text in unknown]
            self._reference_log_probs.add([new[index] for index in fresh], log_probs[fresh])
        return column

    def _open_column(self, kind: Kind, version: str, detail: str = "") -> Column:
        """A column, read by all ranks before one of them may write: they must agree on what is missing from it."""
        column = self._rows.column(kind, version, detail)
        self.engine.gather(np.empty(0))
        return column

    def _share_work(self, compute: Callable[[list[Text]], Array], texts: list[Text]) -> Array:
        """Rows of `compute` over all texts, the work divided between ranks. -> [n, ...]"""
        shard = self.engine.shard
        share = -(-len(texts) // shard.ranks)
        shares = [texts[rank * share : (rank + 1) * share] for rank in range(shard.ranks)]
        cuts = [list(passes(self.engine.scorer, part)) for part in shares]
        batches = cuts[shard.rank]
        parts = [compute([shares[shard.rank][i] for i in batch]) for batch in batches]
        for _ in range(len(batches), max(map(len, cuts))):
            # A sharded model needs every rank in every forward pass: one that has run out repeats a text.
            parts.append(compute(texts[:1])[:0])
        result = np.concatenate(parts)
        return np.concatenate(self.engine.gather(result[np.argsort(np.concatenate(batches))] if batches else result))

    # --- weights ------------------------------------------------------------------------------------------------

    def _weight_sample(self, weights: Iterable[tuple[str, Tensor]]) -> Tensor:
        trained = [parameter for parameter in self.engine.scorer.parameters() if parameter.requires_grad]
        # under ZeRO-3 a parameter itself is empty, and DeepSpeed notes its size
        numbers = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in trained)
        return sampled(weights, numbers, self._dtype)

    def load(self, policy: PolicyVersion) -> None:
        # By path: two versions with different masters may round to equal weights.
        if self._loaded_path != policy.path:
            self._loaded_path = None
            self.engine.load(self._read_weights(policy))
            self._loaded_path = policy.path

    def load_start(self, start: Start) -> None:
        for version in (start.policy, start.plus, start.minus):
            if version is not None:
                check_startable(self.store.stored(version.path), version)
        if start.plus is None or start.minus is None:
            self.load(start.policy)
        else:
            base, plus, minus = (self._read_weights(version) for version in (start.policy, start.plus, start.minus))
            self.engine.load(self.carry(base, plus, minus, start.scale))
        self._loaded_path = None

    def _read_weights(self, policy: PolicyVersion) -> Mapping[str, Tensor]:
        masters = read_masters(self.store.stored(policy.path), policy, self._dtype)
        return self.store.read_torch(policy.path, policy.sha256) if masters is None else masters

    def keep(
        self, command: FitCommand | Update, weights: Mapping[str, Tensor], moments: Tensors | None = None
    ) -> PolicyVersion:
        """The version that these trained weights make. Rank 0 has them and writes it; the others receive its hash."""
        first = self.engine.shard.rank == 0
        sha256 = self._write_version(command.result, weights, moments or {}) if first else ""
        sha256 = self.engine.gather(np.array(sha256))[0].item()
        self._loaded_path = path = f"{command.result}-{sha256[:12]}"
        if first and not self.store.shared:
            forget_older(self.store.stored(path))
        return PolicyVersion(command.sequence, command.result, sha256, path)

    def _write_version(self, name: str, weights: Mapping[str, Tensor], moments: Tensors) -> str:
        """Put a version into the store, with what the next fit of its stage starts from. -> its hash"""

        def fill(folder: Path) -> None:
            copy_plain_files(self.store.folder(self.reference.path), folder)
            if self._dtype == torch.bfloat16:
                write_beside(folder, MASTERS, weights)
            if moments:
                write_beside(folder, MOMENTS, moments)

        return self.store.write_tensors(name, published(weights, self._dtype), fill=fill)[1]


def store_reference(
    store: ArtifactStore,
    folder: Path,
    chat_template: str | None = None,
    dtype: str = "float32",
    *,
    in_nf4: bool = False,
) -> PolicyVersion:
    """Put a checkpoint into the store as version 0: one file, tied tensors once, in the type that the run computes in.

    From there trainer and engines read it, whatever its shards, names and type were. `chat_template` takes the place of
    the folder's own: every version of a run carries the one it is trained with. `in_nf4`: the version is the
    checkpoint as rounded to four bits. Raises UserError where weights that the model needs are missing.
    """
    from transformers import AutoModelForCausalLM

    model, loaded = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True
    )
    if loaded["missing_keys"]:
        missing = sorted(loaded["missing_keys"])
        raise UserError(f"{folder} lacks {len(missing)} tensors of its model, first {missing[0]}; copy it again")
    weights: Mapping[str, Tensor] = {name: parameter.detach() for name, parameter in model.named_parameters()}
    base = store_in_nf4(store, folder, weights, dtype) if in_nf4 else None
    if base is not None:
        weights = base.whole_weights()

    def fill(target: Path) -> None:
        copy_plain_files(folder, target)
        if base is not None:
            base.note(target)
        if chat_template is not None:
            (target / "chat_template.jinja").write_text(chat_template, "utf-8")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config.pop("torch_dtype", None) is not None or config.get("dtype") != dtype:
            write_json(target / "config.json", {**config, "dtype": dtype})

    path, sha256 = store.write_tensors("reference", weights, fill=fill)
    return PolicyVersion(0, "reference", sha256, path)


def load_trainer(
    folder: Path,
    store: ArtifactStore,
    reference: PolicyVersion,
    dtype: str = "float32",
    temperature: float = 1.0,
    make_engine: MakeEngine = TorchEngine,
    device: str = "auto",
) -> LocalTrainer:
    """A trainer of this process for the model in `folder`."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device_for(device))
    return LocalTrainer(make_engine(ResponseScorer(model, temperature=temperature)), store, reference)


# --- the share of the weights that a fit moved ------------------------------------------------------------------------
#
# A step that is smaller than half the distance to the next number of the type leaves the published weight as it was. In
# bfloat16 that distance is up to 1/128 of the weight.


def sampled(weights: Iterable[tuple[str, Tensor]], numbers: int, dtype: torch.dtype) -> Tensor:
    """Every n-th of the trained numbers in the type in which they are published. -> [at most about SAMPLE]"""
    step = max(1, numbers // SAMPLE)
    parts = {name: tensor.reshape(-1)[::step].to(dtype).cpu() for name, tensor in weights}
    return torch.cat([parts[name] for name in sorted(parts)])


def moved_share(before: Tensor, after: Tensor) -> float:
    """Share of the numbers that differ. [n], [n] -> in [0, 1]"""
    return float((before != after).double().mean())
