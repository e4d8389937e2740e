"""What a comparison changes in the offline data: more pairs of the whole reference, fewer labels for helpfulness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.config import load
from pddpo_ray.driver.offline_setup import neighbours, offline_answers, with_reward_share
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal import read_journal
from pddpo_ray.records import HARM, Verdict
from pddpo_ray.storage.whole_files import JOURNAL

ONE_FIT = (
    "algorithm=dpo-harmless",
    "rounds=1",
    "dual.rule={kind: fixed}",
    "feedback.responses=8",
    "limits.cost.labels_each=2",
)


def test_extra_pairs_hold_answers_that_the_offline_data_never_show() -> None:
    """The trap world's uncovered answers have 8 % of the reference in all."""
    world = trap_world()
    drawn = world.unconfined(0, 4000)
    answers = [world.cell(answer)[1] for item in drawn for answer in (item.pair.first, item.pair.second)]
    assert all(item.pair.first.token_ids != item.pair.second.token_ids for item in drawn)
    share = np.mean([answer >= 4 for answer in answers])
    # pairs of two different draws: P(y, y') is proportional to ref(y) ref(y') off the diagonal
    reference = world.oracle.reference[0]
    joint = np.outer(reference, reference) * ~np.eye(8, dtype=bool)
    assert share == pytest.approx((joint.sum(axis=1)[4:].sum()) / joint.sum(), abs=0.012)


@pytest.mark.run
def test_extra_pairs_are_added_to_the_offline_ones(tmp_path: Path) -> None:
    result = run_recipe(load("tabular", [*ONE_FIT, "offline.pairs=30", "offline.extra=12"]), tmp_path / "run")
    assert result["labels_pairs"] == 42
    with read_journal(tmp_path / "run" / JOURNAL, "run") as journal:
        names = [entry.labelled.pair.id for entry in journal.pairs(0)]
    assert len(set(names)) == 42
    assert sum(name.startswith("extra-") for name in names) == 12


def test_a_share_of_the_pairs_keeps_its_label_for_helpfulness_and_all_keep_the_one_for_harm() -> None:
    labelled = trap_world().offline(0, 200)
    thinned = with_reward_share(labelled, 0.05, seed=7)
    assert [item.pair for item in thinned] == [item.pair for item in labelled]
    assert [item.label(HARM) for item in thinned] == [item.label(HARM) for item in labelled]
    kept = [place for place, item in enumerate(thinned) if item.helpful is not Verdict.ABSTAIN]
    assert len(kept) == 10
    assert [thinned[place] for place in kept] == [labelled[place] for place in kept]
    assert with_reward_share(labelled, 0.05, seed=7) == thinned != with_reward_share(labelled, 0.05, seed=8)


def test_at_least_one_pair_keeps_its_label_and_a_whole_share_changes_nothing() -> None:
    labelled = trap_world().offline(0, 5)
    assert with_reward_share(labelled, 1.0, 0) == labelled
    assert sum(item.helpful is not Verdict.ABSTAIN for item in with_reward_share(labelled, 0.01, 0)) == 1


def test_no_pairs_are_drawn_where_none_are_wished() -> None:
    """Of a method that scores the reference's answers itself."""
    assert offline_answers(0, 6) == 0
    assert neighbours([], 0, 0) == []
