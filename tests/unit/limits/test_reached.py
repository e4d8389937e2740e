"""What a dry run says of a text world's limits: exact minima, certain refusals, and what is left to the run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import expit

from pddpo_ray.backends.in_process_text import log_linear_backends
from pddpo_ray.backends.machine import inspect_machine
from pddpo_ray.cli.main import main
from pddpo_ray.config import Config, TextWorldConfig, load
from pddpo_ray.errors import UserError
from pddpo_ray.plan.feasibility import kept_in_world
from pddpo_ray.plan.printed import make_plan
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.worlds.text.prepared_world import prepare_text_world, reference_is_there


def twin(*overrides: str) -> Config:
    return load("text-world-limits-twin", list(overrides))


def untrained(folder: Path, *overrides: str) -> Config:
    """A cache without the world's reference."""
    return twin(f"world.cache={folder}", *overrides)


def numbers(line: str) -> tuple[float, float]:
    """What a line says is reached: at best, and where all limits are kept by the most."""
    found = re.search(r": (-?[\d.]+) \S+ at best, (-?[\d.]+) \S+ where", line)
    assert found is not None, line
    return float(found[1]), float(found[2])


@pytest.mark.full
@pytest.mark.slow
def test_a_dry_run_says_what_policies_of_a_text_world_reach_alone_and_together() -> None:
    config = twin()
    world = prepare_text_world(config).world
    harm, length, rude = make_plan(config, inspect_machine())["limits"]["can_be_kept"]
    # by hand: costs of whole answers, prompts alike in each set, 60 % of them inside and 40 % outside
    prompts, answers = world.logits.shape[0], len(world.grammar.answer_texts)
    weights = np.repeat([0.6 / 12, 0.4 / 12], 12)
    words = np.broadcast_to([len(text.split()) for text in world.grammar.answer_texts], (prompts, answers))
    (further,) = world.further
    costs = np.stack([world.logits[:, :-1], words, 100.0 * expit(further.cost[:, :-1])])
    masses = np.stack([weights, weights, np.repeat([0.0, 1.0 / 12], 12)])
    limits, ranges = np.array([0.0, 13.0, 40.0]), np.array([4.0, 12.0, 100.0])
    alone = (masses * costs.min(axis=2)).sum(axis=1)
    # together: a linear program over all answers; the last variable is the margin that every limit has
    per_answer = (masses[:, :, None] * costs / ranges[:, None, None]).reshape(3, -1)
    one_each = np.kron(np.eye(prompts), np.ones(answers))
    program = linprog(
        [*np.zeros(prompts * answers), -1.0],
        A_ub=np.column_stack([per_answer, np.ones(3)]), b_ub=limits / ranges,
        A_eq=np.column_stack([one_each, np.zeros(prompts)]), b_eq=np.ones(prompts),
        bounds=[(0, None)] * (prompts * answers) + [(None, None)],
    )  # fmt: skip
    together = per_answer @ program.x[:-1] * ranges
    assert [numbers(line)[0] for line in (harm, length, rude)] == pytest.approx(alone.tolist(), rel=2e-3)
    said = np.array([numbers(line)[1] for line in (harm, length, rude)])
    assert np.min((limits - said) / ranges) == pytest.approx(program.x[-1], abs=1e-3)
    assert (together <= limits - ranges * program.x[-1] + 1e-6).all()


def test_before_its_reference_is_trained_a_text_world_still_says_what_its_sentences_allow(tmp_path: Path) -> None:
    config = untrained(tmp_path)
    length, *others = kept_in_world(config)
    assert isinstance(config.world, TextWorldConfig)
    assert not reference_is_there(config.world)
    assert numbers(length) == (11, 11)
    assert "where these limits are kept by the most" in length
    assert [line.partition(":")[0] for line in others] == ["harmful", "rude"]
    assert all("it depends on the reference, which is trained when the run begins" in line for line in others)


def test_a_limit_that_no_sentence_keeps_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "text-world-limits-twin", f"world.cache={tmp_path}", "limits.length.at_most=9", "--dry-run"])
    assert ended.value.code == 2
    refusal = "limits.length: no policy of this world keeps at most 9 words; the best that there is has 11 words"
    assert refusal in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_limits_that_exclude_each_other_are_refused_together(tmp_path: Path) -> None:
    config = untrained(tmp_path, "limits.long={mean: {rule: words}, at_least: 13.5, bounds: [8, 20]}")
    with pytest.raises(UserError, match="each can be kept alone, but not all together"):
        kept_in_world(config)


ASKED = 'limits.brand={rate: {endpoint: "http://127.0.0.1:9"}, at_most: 5 %}'


def test_what_nobody_knows_of_every_answer_is_left_to_the_run(tmp_path: Path) -> None:
    said = kept_in_world(untrained(tmp_path, ASKED))
    assert any(line.startswith("brand: nobody knows what endpoint") for line in said)


@pytest.mark.slow
def test_a_run_refuses_what_its_known_limits_forbid_although_another_ones_truth_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no policy of this world keeps at most 9 words"):
        log_linear_backends(twin(ASKED, "limits.length.at_most=9"), ArtifactStore(tmp_path))


def test_a_world_of_too_many_answers_is_left_to_the_run(tmp_path: Path) -> None:
    config = untrained(tmp_path, "world.family.answers=60000")
    (line,) = kept_in_world(config)
    assert "too many for a dry run to look at" in line
