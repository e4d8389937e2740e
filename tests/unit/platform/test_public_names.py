"""The names of `import pddpo_ray`: a table's run from Python, and a certificate for one of its policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

import pddpo_ray
from pddpo_ray.config import Config
from pddpo_ray.errors import UserError
from tests.support.scorer_rows import rows_of_words
from tests.support.tiny_language_model import save_policy

SMALL = [
    "rounds=2", "feedback.responses=16", "limits.cost.labels_each=4", "offline.pairs=64", "offline.compare_rounds=0",
    "limits.cost.at_most=1.9", "certificate.batch=50", "report.html=false",
]  # fmt: skip


def test_every_public_name_is_there_and_says_what_it_does() -> None:
    assert sorted(pddpo_ray.PLACES) == pddpo_ray.__all__
    for name in pddpo_ray.__all__:
        assert (getattr(pddpo_ray, name).__doc__ or "").strip(), name


@pytest.mark.run
def test_a_recipe_is_run_and_a_policy_of_it_certified(tmp_path: Path) -> None:
    result = pddpo_ray.run(pddpo_ray.load_recipe("tabular", SMALL), tmp_path / "run")
    assert result["rounds"] == 2
    certificate = pddpo_ray.certify(tmp_path / "run", "round-2", draws=400)
    assert json.loads(json.dumps(certificate)) == json.loads((tmp_path / "run" / "certificate.json").read_text())
    with pytest.raises(UserError, match="round-9"):
        pddpo_ray.certify(tmp_path / "run", "round-9", draws=400)


@pytest.mark.slow
def test_models_answer_questions_that_are_rows_in_memory(tmp_path: Path) -> None:
    models = {name: str(save_policy(tmp_path / name, seed)) for name, seed in (("before", 1), ("after", 2))}
    pair = {"prompt": "word3", "chosen": "word4", "rejected": "word5 word6"}
    asked: dict[str, Any] = {"everyday": [pair, pair | {"prompt": "word1 word2"}], "harmless": ["word7"]}

    def evaluated(**more: Any) -> dict[str, Any]:
        found: dict[str, Any] = pddpo_ray.evaluate_models(models, asked, tmp_path / "out", max_tokens=4, **more)
        return found

    result = evaluated(benign=["harmless"], each=2)
    assert (result["reference"], result["models"]) == ("before", models)
    assert (result["sets"]["everyday"]["questions"], result["sets"]["everyday"]["pairs"]) == (2, 2)
    assert "over_refusal" in result["sets"]["harmless"]["measures"]["after"]
    assert "over_refusal" not in result["sets"]["everyday"]["measures"]["after"]
    answers = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 2 * 3 * 2
    for more, said in (({"reference": "ours"}, "no model 'ours'"), ({"benign": ["else"]}, "no set 'else'")):
        with pytest.raises(UserError, match=said):
            evaluated(**more)
    mixed: list[Any] = ["word1", pair]
    for rows, said in (([], "rows in memory hold no"), (mixed, "bad: row 2 in memory: ")):
        with pytest.raises(UserError, match=said):
            pddpo_ray.evaluate_models(models, {"bad": rows}, tmp_path / "out")


def test_a_recipe_takes_rows_in_memory_and_keeps_them_for_a_run_that_goes_on(tmp_path: Path) -> None:
    model = save_policy(tmp_path / "base", 0, context=512)
    told = [f"model.reference={model}", *(f"feedback.{kind}={{path: '{tmp_path}'}}" for kind in ("reward", "cost"))]
    told += [
        "limits.unsafe=null",
        "limits.helpful=null",
        "limits.length={mean: {rule: words}, at_most: 9, bounds: [0, 60]}",
    ]
    pairs = rows_of_words(20, 0)

    def loaded(**rows: Any) -> Config:
        named = {"data.helpful": pairs} | {key.replace("__", "."): given for key, given in rows.items()}
        recipe: Config = pddpo_ray.load_recipe("align", told, rows=named, keep=tmp_path / "rows")
        return recipe

    recipe = loaded(data__prompts=Dataset.from_dict({"prompt": ["word1", "word2 word3"]}))
    assert recipe.data is not None
    kept = Path(recipe.data.helpful[0])
    assert [json.loads(line) for line in kept.read_text().splitlines()] == pairs
    assert [json.loads(line)["prompt"] for line in Path(recipe.data.prompts[0]).read_text().splitlines()] == [
        "word1", "word2 word3",
    ]  # fmt: skip
    assert loaded(data__prompts=["word1", "word2 word3"]) == recipe, "the same rows are the same files"
    other = loaded(data__helpful=pairs[:10])
    assert other.data is not None
    assert other.data.helpful != recipe.data.helpful
    assert len(kept.read_text().splitlines()) == 20, "a run that goes on finds its own rows"
    for rows, said in (
        ({"data__helpfull": pairs}, "data.helpful"),
        ({"data__helpful": []}, "data.helpful: there are no rows"),
        ({"data__helpful": [{"prompt": object()}]}, "data.helpful, row 1: JSON cannot hold it"),
        ({"data__helpful": [7]}, "row 1: a row is a mapping"),
    ):
        with pytest.raises(UserError, match=said):
            loaded(**rows)


def test_a_run_or_model_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        pddpo_ray.certify(tmp_path / "nowhere")
    with pytest.raises(UserError, match="nowhere"):
        pddpo_ray.load_policy(str(tmp_path / "nowhere"))
