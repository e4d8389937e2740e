"""One line about any error: its class and what it says, whoever raised it; chains of causes that lead back."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError
from ray.exceptions import ActorDiedError, RayTaskError

from actors.calls import wait_for_actor
from actors.rank import Rank, _perform
from pddpo_ray.errors import LONGEST_LINE, RunError, UserError, causes_of, one_line
from pddpo_ray.storage.whole_files import explain_disk


class Engine(BaseModel):
    max_model_len: int
    dtype: str


def refused() -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        Engine.model_validate({"max_model_len": "many", "dtype": 3})
    return raised.value


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def raised_in_an_actor(error: BaseException) -> ActorDiedError:
    """As Ray tells that a constructor failed: its traceback in the text of another error."""
    return ActorDiedError(
        RayTaskError("Engine.__init__", text_of(error), error, proctitle="ray::Engine", pid=7, ip="::1")
    )


def chain(length: int, error: type[Exception], *arguments: object) -> list[Exception]:
    """Errors of which each caused the one before, and the first the last."""
    errors = [error(*arguments) for _ in range(length)]
    for index, one in enumerate(errors):
        one.__cause__ = errors[(index + 1) % length]
    return errors


@pytest.mark.parametrize("length", [1, 2, 3])
def test_causes_that_lead_back_are_each_seen_once_and_the_error_comes_out_as_it_went_in(
    tmp_path: Path, length: int
) -> None:
    errors = chain(length, ValueError, "what went wrong")
    assert list(causes_of(errors[0])) == errors
    with pytest.raises(ValueError, match="what went wrong") as raised, explain_disk(tmp_path):
        raise errors[0]
    assert raised.value is errors[0]


def test_a_full_disk_is_found_behind_a_circle_of_causes(tmp_path: Path) -> None:
    errors = chain(2, ValueError, "wrapped")
    errors[1].__cause__ = full = OSError(errno.ENOSPC, "No space left on device")
    full.__cause__ = errors[0]
    with pytest.raises(RunError, match="no space is left"), explain_disk(tmp_path):
        raise errors[0]


def test_a_pydantic_error_names_every_field_and_no_link() -> None:
    line = one_line(refused())
    assert line.startswith(
        "ValidationError: 2 validation errors for Engine max_model_len Input should be a valid integer"
    )
    assert "dtype Input should be a valid string" in line
    assert "http" not in line


def test_an_error_in_an_actors_start_is_the_one_under_its_last_traceback() -> None:
    assert one_line(raised_in_an_actor(refused())) == one_line(refused())
    with pytest.raises(OSError) as torn:
        torn_weights()
    assert one_line(raised_in_an_actor(torn.value)) == "OSError: the weights are torn"
    with pytest.raises(AssertionError) as bare:
        raise AssertionError
    assert one_line(raised_in_an_actor(bare.value)) == "AssertionError"
    with pytest.raises(UserError) as ours:
        raise UserError("model.reference: no such folder; name one")
    assert one_line(raised_in_an_actor(ours.value)) == "model.reference: no such folder; name one"


def test_an_actor_that_does_not_start_and_a_rank_that_refuses_a_command_say_that_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = one_line(refused())

    def lost(*_: object, **__: object) -> None:
        raise raised_in_an_actor(refused())

    def refuses(rank: Rank) -> None:
        raise refused()

    monkeypatch.setattr("ray.get", lost)
    with pytest.raises(RunError) as raised:
        wait_for_actor(None, deadline_s=1.0, actor_name="engine rollout-0")
    assert f"engine rollout-0 failed to start after 0 s: {line}; " in str(raised.value)
    assert _perform(refuses, None, first=True).message == line  # type: ignore[arg-type]


def torn_weights() -> None:
    try:
        int("x")
    except ValueError as first:
        raise OSError("the weights are torn\nSee https://example.org/docs for more") from first


def test_an_actor_that_was_killed_says_so() -> None:
    assert one_line(ActorDiedError(None)) == "ActorDiedError: The actor died unexpectedly before finishing this task."


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (None, "without an error"),
        (RuntimeError(), "RuntimeError"),
        (RuntimeError(" \n\n"), "RuntimeError"),
        (KeyError("lr"), "KeyError: 'lr'"),
        (RunError("round 2: no space"), "round 2: no space"),
        (ValueError("ValueError: said twice"), "ValueError: said twice"),
        (
            RuntimeError("CUDA error: out of memory\n\nFor more information see https://example.org/cuda\nset X=1"),
            "RuntimeError: CUDA error: out of memory set X=1",
        ),
        (
            ValueError("(sqlite) no such table: a\n[SQL: SELECT 1]\n(Background on this error at: https://example.org/e3q8)"),
            "ValueError: (sqlite) no such table: a [SQL: SELECT 1]",
        ),
        (OSError("404 for url: https://example.org/model/config.json"), "OSError: 404 for url: https://example.org/model/config.json"),
    ],
)  # fmt: skip
def test_one_line_of_other_errors(error: BaseException | None, line: str) -> None:
    assert one_line(error) == line


def test_a_long_error_keeps_its_beginning() -> None:
    line = one_line(ValueError("word " * 500))
    assert len(line) == LONGEST_LINE
    assert line.startswith("ValueError: word word")
