"""The command line: verbs, exit codes, one-line messages, and how little `--help` imports."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray import errors
from pddpo_ray.backends.machine import GIB, Machine
from pddpo_ray.certificates.outcome import Outcome
from pddpo_ray.cli.main import VERBS, main, unusable_path
from pddpo_ray.cli.output import print_json
from pddpo_ray.cli.runs import train
from pddpo_ray.config import load
from pddpo_ray.journal import Journal
from pddpo_ray.registry import LAB, SHIPPED

HEAVY = ("torch", "ray", "vllm", "transformers", "datasets", "deepspeed", "peft", "numpy", "scipy", "sqlalchemy")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    printed = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), printed.out, printed.err


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two CPUs and no cluster, whatever machine the tests run on."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("pddpo_ray.backends.machine.inspect_machine", lambda: Machine(cpus=2, memory_bytes=24 * GIB))


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands in for the loop, whose own tests run it for real; notes what it was asked to do."""
    calls: list[dict[str, Any]] = []

    def run_recipe(config: Any, run_dir: Path, *, resume: bool, progress: Any) -> dict[str, Any]:
        calls.append({"config": config, "run_dir": run_dir, "resume": resume})
        outcome = Outcome(None, None, None, "no round is finished", ()).as_json()
        known = {"outcome": outcome, "limits": {}, "gap_last": None, "labels_used": 7}
        return {**known, "seconds": 1.25, "rounds": config.rounds}

    monkeypatch.setattr(train, "runner", lambda config: run_recipe)
    monkeypatch.setattr(train, "write_report", lambda config, run_dir: None)
    return calls


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.run
def test_help_imports_nothing_heavy() -> None:
    """Of all verbs, one after another in one process."""
    program = (
        "import sys\n"
        "from pddpo_ray.cli.main import main\n"
        f"for words in {[[], *([verb] for verb in (*VERBS, *SHIPPED['commands'], *LAB['commands']))]!r}:\n"
        "    try:\n        main([*words, '--help'])\n"
        "    except SystemExit as end:\n        assert not end.code, (words, end.code)\n"
        f"    heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    assert not heavy, (words, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: pddpo") == 1 + len({*VERBS, *SHIPPED["commands"], *LAB["commands"]})


@pytest.mark.full
@pytest.mark.run
def test_python_dash_m_equals_the_console_script(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("pddpo")
    if not script.exists():
        pytest.skip("the console script is not installed here: run `make setup`")
    for arguments in (["--version"], ["recipes"], ["train", "nothing"]):
        one = subprocess.run([str(script), *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
        command = [sys.executable, "-m", "pddpo_ray", *arguments]
        other = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)


KNOWN_VERBS = (
    "demo",
    *("train", "report", "doctor", "recipes", "status", "verify", "annotate", "simulate-annotators", "submit", "serve"),
    *(
        "stop",
        "logs",
        "release",
        "rollback",
        "evaluate",
        "compare",
        "audit",
        "explain",
        "export",
        "init",
        "chat",
        "score",
        "certify",
    ),
    "withdraw",
    "annotations",
)


def test_verbs_have_the_names_that_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    verbs = {*VERBS, *SHIPPED["commands"]}
    assert {"train", "report", "doctor", "recipes", "annotate", "submit"} <= verbs <= set(KNOWN_VERBS)
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"  {verb} " in out for verb in verbs)


@pytest.mark.run
def test_the_shell_completes_verbs() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "pddpo_ray"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "_PDDPO_COMPLETE": "complete_bash", "COMP_WORDS": "pddpo ex", "COMP_CWORD": "1"},
    )
    assert said.stdout.split() == ["explain", "export"]


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [(errors.RunError, 1), (errors.UserError, 2), (errors.ParkedError, 3), (errors.DecisionNeeded, 4)],
)
def test_each_kind_of_error_has_its_exit_code_and_one_line(
    error: type[errors.PddpoError],
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def fail(config: Any, run_dir: Path, *, resume: bool, progress: Any) -> dict[str, Any]:
        raise error("what is wrong; what to do")

    monkeypatch.setattr(train, "runner", lambda config: fail)
    ended, out, err = run(capsys, "train", "tabular", "--run", str(tmp_path / "run"))
    begun = f"{tmp_path / 'run'}: begins\n"
    assert (ended, out, err) == (code, "", f"{begun}pddpo: what is wrong; what to do\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["train"],
        ["train", "tabular", "--nonsense"],
        ["train", "tabular", "rounds"],
        ["train", "tabular", "ronds=3"],
        ["train", "tabular", "rounds=many"],
        ["train", "tabular", "dual.first=3", "dual.upper=2"],
        ["train", "missing.yaml"],
        ["train", "tabular", "world.path=missing.json"],
        ["train", "text-world", "model.reference=missing"],
        ["train", "tabular", "--resume"],
        ["train", "tabular", "--resume", "--run", "missing"],
        ["report", "missing"],
        ["recipes", "missing"],
        ["verify", "--world", "missing.json"],
        ["verify", "--rounds", "3"],
        ["no-such-verb"],
    ],
)
def test_mistakes_of_the_user_end_with_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.startswith("pddpo: ") == (err.count("\n") == 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.run
def test_the_hub_says_nothing_of_its_retries() -> None:
    script = (
        "from pddpo_ray.cli.main import main\n"
        "try:\n    main(['recipes'])\nexcept SystemExit:\n    pass\n"
        "from huggingface_hub.utils import logging\nprint(logging.get_verbosity())"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(logging.ERROR)


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", "--run", LONG), ("status", LONG), ("logs", LONG), ("stop", LONG), ("report", LONG), ("chat", LONG),
        ("serve", LONG), ("certify", LONG), ("release", LONG), ("export", LONG, "--to", "y"), ("evaluate", LONG),
        ("annotate", f"--run={LONG}"), ("compare", LONG), ("verify", "--world", LONG), ("init", LONG),
        ("limits", "check", LONG, "--on", LONG), ("data", "check", LONG), ("recipes", LONG), ("train", LONG),
        ("train", "tabular", "--run", "/".join(["d" * 200] * 25)), ("train", "tabular", "--run", "bad\udcff"),
        ("train", "tabular", "--run", "nul\0"), ("model", "fetch", "smollm2", "--to", "/proc/x"),
    ],
    ids=lambda words: " ".join(words)[:24],
)  # fmt: skip
def test_a_path_that_no_file_can_have_is_one_line(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *arguments)
    assert (code, err.count("\n")) == (2, 1), err
    assert err.startswith("pddpo: ")
    assert len(err) < 400 or "cannot be made" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(errno.ENOENT, "", "RUN"), True),
        (FileNotFoundError(errno.ENOENT, "", "RUN/result.json"), False),
        (PermissionError(errno.EACCES, "", "RUN/result.json"), True),
        (FileNotFoundError(errno.ENOENT, "", ".RUN.0a1b.tmp"), True),
        (PermissionError(errno.EACCES, "", "elsewhere/result.json"), False),
        (OSError(errno.ENOSPC, "", "RUN"), False),
        (OSError("without a number"), False),
    ],
    ids=str,
)
def test_only_a_path_of_the_command_line_is_told_in_one_line(error: OSError, told: bool) -> None:
    assert (unusable_path(error, ["report", "--run=RUN"]) is not None) == told


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(config: Any, run_dir: Path, *, resume: bool, progress: Any) -> dict[str, Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(train, "runner", lambda config: broken)
    with pytest.raises(ZeroDivisionError):
        main(["train", "tabular", "--run", str(tmp_path / "run")])


# --- train -----------------------------------------------------------------------------------------------------------


def test_train_hands_the_resolved_recipe_and_an_absolute_folder_to_the_loop(
    runner: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "train", "tabular", "rounds=3", "--run", "here", "limits.cost.at_most=-0.5", "--json")
    assert code == 0
    (call,) = runner
    assert call["config"] == load("tabular", ["rounds=3", "limits.cost.at_most=-0.5"])
    assert (call["run_dir"], call["resume"]) == (tmp_path / "here", False)
    printed = json.loads(out)
    assert (printed["run"], printed["rounds"], printed["seconds"]) == (str(tmp_path / "here"), 3, 1.25)


def test_train_ends_with_its_outcome_and_not_with_a_dump_of_keys(
    runner: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, out, _ = run(capsys, "train", "tabular", "--run", str(tmp_path / "r"))
    assert out.splitlines() == [
        "No policy is certified, and none is released: no round is finished.",
        "  Nothing is certified. An estimate of a round's own labels is no certificate that a limit is kept.",
        f"run folder  {tmp_path / 'r'}",
        f"next        `pddpo certify {tmp_path / 'r'}` tests the last policy on fresh answers",
        f"            `pddpo release {tmp_path / 'r'} 100 --force` releases the last policy, marked as uncertified",
        "effort      7 labels, 1.2 s",
    ]


def test_a_used_run_folder_is_only_entered_with_resume(
    runner: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = load("tabular")
    recipe = config.model_dump(mode="json")
    Journal.open(tmp_path / "journal.sqlite", "a", recipe, fixed=config.fixed_settings()).close()
    code, _, err = run(capsys, "train", "tabular", "--run", str(tmp_path))
    assert code == 2
    assert "is not empty; add --resume" in err
    assert run(capsys, "train", "tabular", "--run", str(tmp_path), "--resume")[0] == 0
    assert [call["resume"] for call in runner] == [True]


def test_the_runner_follows_the_cluster_mode() -> None:
    assert train.runner(load("tabular")).__module__ == "pddpo_ray.driver.run"
    assert train.runner(load("text-world")).__module__ == "actors.launch"


OWN_CORES = ("trainer.threads=1", "cluster.cpus=2")
"""The demo shares its cores; with these its plan counts every process."""


@pytest.mark.usefixtures("small_machine")
def test_impossible_resources_are_refused_before_anything_starts(
    runner: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    code, _, err = run(capsys, "train", "text-world", "trainer.workers=4", *OWN_CORES, "--run", str(folder))
    assert code == 2
    assert "reserves 5 CPUs (trainer 4 x 1 + rollout 1 x 1), this machine has 2, 3 too few" in err
    assert not folder.exists()
    assert runner == []


# --- dry run and recipes ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_machine")
def test_a_dry_run_prints_the_recipe_and_the_plan_and_runs_nothing(
    runner: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "train", "text-world", "rounds=7", "--dry-run")
    assert code == 0
    shown = ("rounds: 7", "resources (ray, split, cpu)", "memory (model of", "preferences")
    for expected in (*shown, "before round 1", "answers", "at most", "features"):
        assert expected in out
    assert runner == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_machine")
def test_a_dry_run_of_impossible_resources_shows_the_plan_and_ends_with_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "train", "text-world", "trainer.workers=4", *OWN_CORES, "--dry-run", "--json")
    assert code == 2
    assert err.startswith("pddpo: the recipe reserves 5 CPUs")
    plan = json.loads(out)
    assert plan["short"] in err
    assert plan["recipe"]["trainer"]["workers"] == 4
    assert plan["digest"] == load("text-world", ["trainer.workers=4", *OWN_CORES]).digest()


@pytest.mark.slow
def test_recipes_lists_every_recipe_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "recipes", "--json")
    listed = json.loads(out)["recipes"]
    assert listed["tabular"] == load("tabular").about
    _, out, _ = run(capsys, "recipes")
    assert len(out.partition("from installed packages:")[0].splitlines()) == len(listed)


def test_a_shown_recipe_is_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = run(capsys, "recipes", "pd-dpo")
    (tmp_path / "copy.yaml").write_text(out)
    assert load(str(tmp_path / "copy.yaml")) == load("pd-dpo")


def test_json_has_no_numbers_that_json_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("nan"), "b": [float("-inf"), 1.5], 3: (True, None, Path("x"))})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "3": [True, None, "x"]}


@pytest.mark.run
def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m pddpo_ray recipes text-world | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stderr == ""


# --- the real thing, small -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tabular_run_from_the_command_line_to_its_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["train", "tabular", "rounds=2", "feedback.responses=8", "explore.prompts=4", "--run", str(folder)]
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0
    result = json.loads(out)
    assert result["rounds"] == 2
    assert {key: result[key] for key in ("f_last", "multiplier")} == {
        key: json.loads((folder / "result.json").read_text())[key] for key in ("f_last", "multiplier")
    }
    assert err.count("round 1/2") == 1
    assert err.count("round 2/2") == 1
    assert (folder / "report.html").is_file()
    assert list((folder / "tensorboard").iterdir())
    code, out, _ = run(capsys, "report", str(folder))
    assert (code, out) == (0, f"report: {folder / 'report.html'}\n")


@pytest.mark.run
def test_the_run_folder_of_another_recipe_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small = ["rounds=1", "feedback.responses=8", "explore.prompts=4", "--run", str(folder)]
    assert run(capsys, "train", "tabular", *small)[0] == 0
    code, out, err = run(capsys, "train", "tabular", "beta=0.3", *small, "--resume")
    assert (code, out) == (2, "")
    assert err.startswith("pddpo: ")
    assert err.count("\n") == 1
    assert "recipe" in err


def test_verify_runs_one_method_on_a_world_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    world = {
        "prior": [1.0],
        "reference": [[0.4, 0.3, 0.3]],
        "baseline": [[0.6, 0.4, 0.0]],
        "reward": [[0.0, 1.0, 1.5]],
        "cost": [[-1.0, 1.0, 0.5]],
        "beta": 0.5,
        "reward_max": 2.0,
        "cost_max": 2.0,
        "threshold": 0.0,
        "offline": {"covered": [[True, True, False]], "pairs": 20},
    }
    path = tmp_path / "world.json"
    path.write_text(json.dumps(world))
    code, out, _ = run(capsys, "verify", "--world", str(path), "--rounds", "2", "--json")
    assert code == 0
    result = json.loads(out)
    assert {"f_optimum", "multiplier_optimum", "rho"} <= result.keys()
    assert len(result["rounds"]) == 2
    keys = {"multiplier", "cost_estimate", "f_policy", "g_policy", "f_mixture", "g_mixture"}
    assert all(keys <= row.keys() for row in result["rounds"])
    code, _, err = run(capsys, "verify", "--world", str(path), "--method", "ppo")
    assert code == 2
    assert "ppo" in err


@pytest.mark.parametrize("code", [0, 1])
def test_verify_hands_on_whether_every_check_held(
    code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pddpo_lab.verify import command

    asked: list[command.VerifyOptions] = []

    def checks(chosen: command.VerifyOptions) -> int:
        asked.append(chosen)
        return code

    monkeypatch.setattr(command, "main", checks)
    assert run(capsys, "verify", "--full", "--out", str(tmp_path), "--seed", "3")[0] == code
    assert asked == [command.VerifyOptions(seed=3, full=True, out=str(tmp_path))]
