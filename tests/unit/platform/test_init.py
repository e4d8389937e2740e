"""`pddpo init`: five questions, the files looked at, and a recipe that loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from tests.support.scorer_rows import write_rows

ANSWERS = "models/mine\nhelpful.jsonl\nsafety.jsonl\n5 %\n80\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "config.json").write_text("{}")
    write_rows(
        tmp_path / "helpful.jsonl",
        [{"prompt": f"How {n}?", "chosen": "Open the gas.", "rejected": "No idea."} for n in range(4)],
    )
    write_rows(
        tmp_path / "safety.jsonl",
        [{"prompt": f"How {n}?", "response": "Pour petrol on it.", "is_safe": n > 1} for n in range(4)],
    )
    return tmp_path


def asked(text: str, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["init", *arguments], input=text)
    if isinstance(done.exception, UserError):
        raise done.exception
    return done.exit_code, done.output


def test_five_answers_make_a_recipe_that_loads(folder: Path) -> None:
    code, said = asked(ANSWERS)
    assert code == 0, said
    config = load("recipe.yaml", check_files=False)
    stated = {one.limit.name: str(one.limit) for one in config.stated}
    assert stated["unsafe"] == "at most 5 %"
    assert stated["length"] == "at most 80 words"
    assert stated["helpful"].startswith("at least 50 %")
    assert config.model.reference == str(folder / "models" / "mine")
    assert config.data.helpful == [str(folder / "helpful.jsonl")]  # type: ignore[union-attr]
    assert "pddpo scorer train safety.jsonl --kind cost --base models/mine --out scorers/cost" in said
    assert "pddpo train recipe.yaml --run runs/mine" in said


def test_a_recipe_elsewhere_names_files_from_there(folder: Path) -> None:
    assert asked(ANSWERS, "recipes/ours.yaml")[0] == 0
    document = yaml.safe_load(Path("recipes/ours.yaml").read_text())
    assert document["world"]["helpful"] == ["../helpful.jsonl"]
    found = load("recipes/ours.yaml", check_files=False).model.reference
    assert found is not None
    assert Path(found).resolve() == (folder / "models" / "mine").resolve()


def test_an_answer_that_cannot_be_used_is_asked_again(folder: Path) -> None:
    files = "nowhere.jsonl\nsafety.jsonl\nhelpful.jsonl\nhelpful.jsonl\nsafety.jsonl\n"
    wrong = f"models\nmodels/mine\n{files}500 %\n5 %\nmany\n0\n"
    code, said = asked(wrong)
    assert code == 0, said
    for line in ("is no model folder", "holds no pairs", "holds no answers called safe or unsafe", "many"):
        assert line in said, said
    assert "length" not in {one.limit.name for one in load("recipe.yaml", check_files=False).stated}


def test_options_are_not_asked_and_a_wrong_one_is_one_line(folder: Path) -> None:
    given = ("--model", "models/mine", "--pairs", "helpful.jsonl", "--safety", "safety.jsonl", "--unsafe", "1 %")
    assert asked("", *given, "--words", "0")[0] == 0
    with pytest.raises(UserError, match=r"recipe\.yaml exists already"):
        asked("", *given, "--words", "0")
    with pytest.raises(UserError, match="holds no answers called safe or unsafe"):
        asked("", "other.yaml", "--model", "models/mine", "--pairs", "helpful.jsonl", "--safety", "helpful.jsonl")
    assert not Path("other.yaml").exists()
