"""D^r and D^c: labelled pairs as training rows, from before the first round and from every round since."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.parts.production import UsersVerdicts
from pddpo_ray.records import HARM, LabelledPair, PairRow, Verdict
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import written_aside

SHARDS = "preferences"
"""Folder of the stored shards among the artifacts."""


class Preferences:
    """Rows of both data sets, in the order of the journal.

    A restarted run begins with the pairs of its finished rounds; `extend` adds those of the current one. Abstained and
    failed labels are counted and left out: they never become a preference. `verdicts` adds pairs of the endpoint's
    users; what a user withdrew is in no row.
    """

    def __init__(
        self,
        journal: Journal,
        store: ArtifactStore,
        compared: Sequence[str] = (HARM,),
        verdicts: UsersVerdicts | None = None,
    ) -> None:
        self._journal = journal
        self._store = store
        self._verdicts = verdicts
        self._compared = tuple(compared)
        self._labelled: list[tuple[int, LabelledPair]] = [
            (entry.round, entry.labelled) for entry in journal.pairs() if entry.round < journal.next_round
        ]

    @property
    def labelled(self) -> list[LabelledPair]:
        """All pairs with their labels, usable or not."""
        return [item for _, item in self._of_rounds]

    @property
    def _of_rounds(self) -> list[tuple[int, LabelledPair]]:
        gone = self._journal.withdrawn
        return [(number, item) for number, item in self._labelled if item.pair.prompt.id not in gone]

    @property
    def reward(self) -> list[PairRow]:
        """D^r: `chosen` is the more helpful answer."""
        return self._rows(reward_rows)

    @property
    def cost(self) -> list[PairRow]:
        """D^c of a run that learns from one comparison: `chosen` is the cheaper answer. Raises RunError of several."""
        if len(self._compared) > 1:
            raise RunError(
                f"preferences.cost is of one comparison, and pairs are compared by {', '.join(self._compared)}: name"
                " one, preferences.cost_of(NAME)"
            )
        return self.cost_of(self._compared[0])

    def cost_of(self, comparison: str) -> list[PairRow]:
        """D^c of one comparison: `chosen` is the cheaper answer. Raises RunError of one that nobody makes."""
        if comparison not in self._compared:
            raise RunError(f"no pair is compared by {comparison}, only by {', '.join(self._compared)}")
        return self._rows(lambda item, number: cost_rows(item, number, comparison))

    def _rows(self, rows_of: Callable[[LabelledPair, int], list[PairRow]]) -> list[PairRow]:
        rows = [row for number, item in self._of_rounds for row in rows_of(item, number)]
        if self._verdicts is None:
            return rows
        weight = self._verdicts.weight
        theirs = [row for number, item in self._verdicts.labelled() for row in rows_of(item, number)]
        return rows + [replace(row, weight=weight) for row in theirs]

    def extend(self, labelled: Sequence[LabelledPair]) -> None:
        """The pairs of this round, all at once, also stored as an Arrow shard. Called again, nothing is doubled."""
        number = self._journal.round
        self._journal.once("preferences", lambda: self._store_shard(number, labelled))
        others = [(other, item) for other, item in self._labelled if other != number]
        # By round: a restarted run says round 0 again after it has read the later ones, and minibatches go by order.
        self._labelled = sorted([*others, *((number, item) for item in labelled)], key=lambda entry: entry[0])

    def _store_shard(self, number: int, labelled: Sequence[LabelledPair]) -> dict[str, str | int]:
        shards = {"reward": [row for item in labelled for row in reward_rows(item, number)]}
        for name in self._compared:
            shards[name] = [row for item in labelled for row in cost_rows(item, number, name)]
        texts = {item.pair.id: item for item in labelled}
        sha256 = hashlib.sha256(repr(sorted(shards.items())).encode()).hexdigest()
        path = f"{SHARDS}/round-{number:04d}-{sha256[:12]}"
        self._store.write_folder(path, lambda folder: write_shards(folder, shards, texts))
        counts = {f"labels/{kind}": count for kind, count in verdict_counts(labelled).items()}
        self._journal.add_metrics({"labels/pairs": len(labelled), **counts})
        return {"path": path, "sha256": sha256, **{name: len(rows) for name, rows in shards.items()}}


def reward_rows(item: LabelledPair, number: int) -> list[PairRow]:
    """The pair's row of D^r; none if the label is not a preference."""
    return _rows(item, item.helpful, number, first_is_chosen=Verdict.FIRST)


def cost_rows(item: LabelledPair, number: int, comparison: str) -> list[PairRow]:
    """The pair's row of D^c: the costlier answer is rejected."""
    return _rows(item, item.label(comparison), number, first_is_chosen=Verdict.SECOND)


def _rows(item: LabelledPair, verdict: Verdict, number: int, first_is_chosen: Verdict) -> list[PairRow]:
    if verdict not in (Verdict.FIRST, Verdict.SECOND):
        return []
    first, second = item.pair.first.token_ids, item.pair.second.token_ids
    chosen, rejected = (first, second) if verdict is first_is_chosen else (second, first)
    return [PairRow(item.pair.id, item.pair.prompt.token_ids, chosen, rejected, number)]


def verdict_counts(labelled: Sequence[LabelledPair]) -> dict[str, int]:
    """How many labels are no preference."""
    verdicts = [verdict for item in labelled for verdict in (item.helpful, *item.labels.values())]
    counts = {"abstained": verdicts.count(Verdict.ABSTAIN), "failed": verdicts.count(Verdict.FAILED)}
    missing = verdicts.count(Verdict.MISSING)
    return counts | ({"missing": missing} if missing else {})


def write_shards(folder: Path, shards: Mapping[str, Sequence[PairRow]], pairs: Mapping[str, LabelledPair]) -> None:
    """One Arrow file per data set, readable by `datasets.Dataset.from_file`, with texts beside the token ids."""
    # Imported here: the pages and the command line's help work without Arrow.
    import pyarrow as pa

    for name, rows in shards.items():
        table = pa.Table.from_pylist([_arrow_row(row, pairs[row.id]) for row in rows], schema=_arrow_schema())
        _write_table(folder / f"{name}.arrow", table)


def forget_pairs(store: ArtifactStore, names: Collection[str]) -> None:
    """Takes pairs out of all stored shards."""
    if not names:
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    gone = pa.array(sorted(names), pa.string())
    for path in sorted((Path(store.root) / SHARDS).glob("round-*/*.arrow")):
        table = pa.ipc.open_stream(pa.py_buffer(path.read_bytes())).read_all()
        kept = table.filter(pc.invert(pc.is_in(table["id"], value_set=gone)))
        with written_aside(path) as aside:
            _write_table(aside, kept)


def _write_table(path: Path, table: Any) -> None:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def _arrow_schema() -> object:
    import pyarrow as pa

    texts = [(name, pa.string()) for name in ("id", "prompt", "chosen", "rejected")]
    ids = [(f"{name}_ids", pa.list_(pa.int64())) for name in ("prompt", "chosen", "rejected")]
    return pa.schema([*texts, *ids, ("round", pa.int64()), ("weight", pa.float64())])


def _arrow_row(row: PairRow, item: LabelledPair) -> dict[str, object]:
    first, second = item.pair.first, item.pair.second
    chosen, rejected = (first, second) if row.chosen == first.token_ids else (second, first)
    return {
        "id": row.id,
        "prompt": item.pair.prompt.text,
        "chosen": chosen.text,
        "rejected": rejected.text,
        "prompt_ids": row.prompt,
        "chosen_ids": row.chosen,
        "rejected_ids": row.rejected,
        "round": row.round,
        "weight": row.weight,
    }
