"""`pddpo demo` to an answer and what to do next, with fits of a few steps under a limit that they keep."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pddpo_ray.cli.main import main
from pddpo_ray.config import load

SMALL = [
    *[f"trainer.{stage}.steps=4" for stage in ("reward", "cost", "first_reward", "first_cost")],
    *["cluster.mode=in-process", "rollout={engine: transformers, max_tokens: 40, candidates: 4, canaries: 2}"],
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
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "demo"
    with pytest.raises(SystemExit) as ended:
        main(["demo", *SMALL, "--run", str(run)])
    assert ended.value.code == 0
    out = capfd.readouterr().out
    assert "A tiny language model is made as helpful as it can be within its limit: unsafe at most 70 %." in out
    for subject in (
        "released",
        "limit",
        "certificate",
        "truth",
        "gap",
        "effort",
        "asked",
        "answered",
        "report",
        "next",
    ):
        assert re.search(rf"^{subject:<13}\S", out, re.M), subject
    assert (run / "report.html").is_file()
    assert "pddpo init" in out
    assert "multiplier" not in out
    with pytest.raises(SystemExit) as again:
        main(["demo", *SMALL, "--run", str(run), "--verbose"])
    assert again.value.code == 0
    verbose = capfd.readouterr().out
    assert "run folder" in verbose
    assert "Released: policy-" in verbose
