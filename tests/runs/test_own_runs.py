"""One's own runs side by side: the table says what the runs say, curves run over what was spent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pddpo_lab.compare.own_runs import PAGE, rows, spent
from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.report.run_data import read_run

pytestmark = pytest.mark.run

TINY = ("rounds=2", "explore.bonus=off", "explore.picks=4", "rollout.candidates=4", "explore.calibration=96")
LESS = ("feedback.responses=64", "offline.pairs=200", "certificate.certify=never", "report.tensorboard=false")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("first", 0), ("second", 1)):
        run_recipe(load("text-world-certified-twin", [*TINY, *LESS, f"seed={seed}"]), folder / name)
    return [folder / "first", folder / "second"]


def compare(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *words])
    return int(ended.value.code or 0)


def test_what_is_spent_up_to_the_last_round_is_what_the_result_counts(runs: list[Path]) -> None:
    for folder in runs:
        run = read_run(folder)
        used = spent(run)
        assert used["labels"][2] == run.result["labels_used"]
        assert list(used["labels"].values()) == sorted(used["labels"].values())
        assert used["tokens"][2] > used["tokens"][0] > 0
        assert 60 * used["time"][2] <= run.result["seconds"]


def test_the_page_and_json_hold_both_runs(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*map(str, runs), "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in said["runs"]] == ["first", "second"]
    assert said["runs"] == rows([read_run(folder) for folder in runs])
    text = (runs[0].parent / PAGE).read_text(encoding="utf-8")
    assert said["page"] == str(runs[0].parent / PAGE)
    for row in said["runs"]:
        assert f"{row['labels']:,}" in text
        assert row["limits"]["unsafe"].split(" ")[0] in text
    for axis in ("labels so far", "tokens sampled so far", "minutes so far"):
        assert axis in text
    assert len(re.findall("<figure", text)) == 6, "gap and one limit, over three clocks"
    assert len(re.findall('<div class="charts"><figure', text)) == 3, "beside each other, not as wide as the page"
    assert "<script" not in text


def test_a_table_is_printed_and_what_is_no_run_is_one_line(
    runs: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert compare(*map(str, runs), "--runs", str(tmp_path / "pages")) == 0
    out = capsys.readouterr().out
    assert re.search(r"^first +o-pd-dpo +2 of 2 +none", out, re.M)
    assert (tmp_path / "pages" / PAGE).is_file()
    assert compare(str(runs[0]), "rounds=3") == 2
    assert "rounds=3 is no run folder" in capsys.readouterr().err
    assert compare(str(runs[0]), str(runs[0])) == 2
    assert "named twice" in capsys.readouterr().err
    assert compare(str(tmp_path / "pages"), str(runs[0])) == 2
