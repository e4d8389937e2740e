"""`pddpo demo` to an answer and what to do next, with fits of a few steps under a limit that they keep."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest

from pddpo_ray.cli.main import main
from pddpo_ray.config import load

SMALL = [
    "trainer.fit.steps=4",
    *["cluster.mode=in-process", "rollout={engine: transformers, max_tokens: 40, candidates: 4}"],
    *["rounds=2", "feedback.responses=64", "offline.pairs=48", "explore.calibration=96", "explore.rank=16"],
    *["limits.unsafe.at_most=70 %", "certificate.batch=100", "explore.prompts=8", "explore.picks=2"],
    *["report.tensorboard=false", "trainer.threads=1"],
]


def test_the_demos_limit_is_one_that_a_person_would_state() -> None:
    config = load("demo")
    assert [str(one.limit) for one in config.stated] == ["at most 5 %"]
    assert (config.cluster.mode, config.certificate.certify) == ("ray", "end")


@pytest.mark.slow
def test_the_demo_ends_with_a_released_model_an_answer_and_what_to_do_next(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "the demo"
    with pytest.raises(SystemExit) as ended:
        main(["demo", *SMALL, "--run", str(run)])
    assert ended.value.code == 0
    out = capfd.readouterr().out
    assert "A tiny language model is made as helpful as it can be within its limit: unsafe at most 70 %." in out
    assert "So early rounds may break it; what is released has passed a test at the end." in out
    for subject in (
        "released",
        "limit",
        "certificate",
        "truth",
        "gap",
        "effort",
        "answers",
        "asked",
        "  before",
        "  after",
        "report",
        "next",
    ):
        assert re.search(rf"^{subject:<13}\S", out, re.M), subject
    page = (run / "report.html").read_text(encoding="utf-8")
    assert re.search(r"after \(released policy, round \d\)", page)
    assert "Both policies were sampled with the same decoding." in page
    shown = re.findall(
        r'<bdi>[^<]+</bdi><span class="mark">help [+−][\d.]+</span><span class="mark">harm [\d.]+ %</span>', page
    )
    assert len(shown) == page.count("<bdi>") - page.count("labels</span></p>") > 2, (
        "each answer has its harm and its help"
    )
    line = re.sub(r"\s+", " ", out)
    measured = re.findall(r" (before|after) [^()]+ \(help ([+−][\d.]+), harm ([\d.]+) %\)", line)
    assert [who for who, *_ in measured] == ["before", "after"] * (len(measured) // 2)
    harm = [float(share) for who, _, share in measured if who == "before"]
    assert harm == sorted(harm, reverse=True)
    init, serve, chat = re.findall(r"`(pddpo [^`]+)`", line.partition(" next ")[2])
    assert (init, shlex.split(serve)) == ("pddpo init", ["pddpo", "serve", str(run)])
    assert line.rstrip().endswith(f"`{chat}`")
    monkeypatch.setattr("sys.stdin", io.StringIO("what is the best way to clean the oven late at night ?\n"))
    with pytest.raises(SystemExit) as talked:
        main(shlex.split(chat)[1:])
    assert talked.value.code == 0
    said = capfd.readouterr()
    assert said.out.strip()
    assert "questions such as" in said.err
    with pytest.raises(SystemExit) as asked:
        main(["status", str(run)])
    assert asked.value.code == 0
    lines = re.sub(r"\s+", " ", capfd.readouterr().out)
    assert "outcome Released: policy-" in lines
    assert f"next `{chat}` `{serve}` `pddpo export '{run}' --to DIR`" in lines
    assert "pddpo init" in out
    assert "multiplier" not in out
    assert "displacement" not in out
    assert "loss" not in out
    with pytest.raises(SystemExit) as again:
        main(["demo", *SMALL, "--run", str(run), "--verbose"])
    assert again.value.code == 0
    verbose = capfd.readouterr().out
    assert "run folder" in verbose
    assert "Released: policy-" in verbose


@pytest.mark.full
@pytest.mark.slow
def test_a_demo_that_certifies_nothing_names_a_longer_one_that_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["demo", *SMALL, "limits.unsafe.at_most=1 %", "rounds=1", "--run", "a demo"])
    out = re.sub(r"\s+", " ", capfd.readouterr().out)
    (longer,) = re.findall(r"next more rounds: `(pddpo demo [^`]+)`", out)
    assert shlex.split(longer)[1:] == ["demo", "rounds=2", "--run", "a demo-longer"]
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(longer)[1:], *SMALL[:-2], "rounds=1"])
    assert ended.value.code == 0
