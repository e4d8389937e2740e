"""The names of `import pddpo_ray`: a table's run from Python, and a certificate for one of its policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pddpo_ray
from pddpo_ray.errors import UserError

SMALL = [
    "rounds=2", "feedback.responses=16", "feedback.labels_each=4", "offline.pairs=64", "offline.compare_rounds=0",
    "dual.threshold=1.9", "certificate.batch=50", "report.html=false",
]  # fmt: skip


def test_every_public_name_is_there_and_says_what_it_does() -> None:
    assert sorted(pddpo_ray.PLACES) == pddpo_ray.__all__
    for name in pddpo_ray.__all__:
        assert (getattr(pddpo_ray, name).__doc__ or "").strip(), name


def test_a_recipe_is_run_and_a_policy_of_it_certified(tmp_path: Path) -> None:
    result = pddpo_ray.run(pddpo_ray.load_recipe("tabular", SMALL), tmp_path / "run")
    assert result["rounds"] == 2
    certificate = pddpo_ray.certify(tmp_path / "run", "round-2", draws=400)
    assert json.loads(json.dumps(certificate)) == json.loads((tmp_path / "run" / "certificate.json").read_text())
    with pytest.raises(UserError, match="round-9"):
        pddpo_ray.certify(tmp_path / "run", "round-9", draws=400)


def test_a_run_or_model_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        pddpo_ray.certify(tmp_path / "nowhere")
    with pytest.raises(UserError, match="nowhere"):
        pddpo_ray.load_policy(str(tmp_path / "nowhere"))
