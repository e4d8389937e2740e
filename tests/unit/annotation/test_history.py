"""One's own answers can be read again, and changed while that is allowed; the work that is open has a length."""

from __future__ import annotations

import pytest

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.history import History
from pddpo_ray.parts.questions import Question, safety_question
from pddpo_ray.records import Message, Prompt, Response
from tests.support.annotation_api import API, FreshService
from tests.support.annotation_queue import FreshQueue, pair_questions, safety_questions

SAID = {"more_helpful": "left", "more_harmful": "right", "left_safety": "safe", "right_safety": "unsafe"}


def test_answers_are_listed_as_they_were_given_and_say_whether_they_can_be_changed(queue: FreshQueue) -> None:
    status = queue.rounds.open(1, "compare", pair_questions(3), labels_each=1)
    ana, ben = queue.person("ana"), queue.person("ben")
    history = History(queue.store, queue.rules)
    for number in range(2):
        lease = queue.leases.lease(ana)
        assert isinstance(lease, Lease)
        queue.answers.answer(ana, f"key-{number:04d}", lease.id, Submission("label", SAID, note=f"note {number}"))
    newest, first = history.of(ana, None, 10)
    assert newest.given == first.given == SAID, "whichever answer stood on the left"
    assert (newest.note, newest.changeable) == ("note 1", True)
    assert history.of(ana, newest.seq, 10) == [first]
    assert history.of(ben, None, 10) == []
    again = queue.answers.undo(ana, newest.lease)
    assert (again.earlier, again.note) == (SAID, "note 1")
    assert history.of(ana, None, 10) == [first]
    queue.wait(601)
    assert not history.of(ana, None, 10)[0].changeable
    assert queue.rounds.progress() == {"labels": 1, "wanted": 3}
    queue.rounds.cancel(status.id, by="test")
    assert queue.rounds.progress() == {"labels": 0, "wanted": 0}


def test_the_api_shows_history_progress_and_the_turns_of_a_conversation(service: FreshService) -> None:
    turns = (("user", "hello <b>you</b>"), ("assistant", "| a | b |\n|---|---|\n| 1 | 2 |"), ("user", "and now?"))
    asked = Question("safety", "r0", "as one text", "fine", provenance={"policy_version": 1}, turns=turns)
    service.queue.rounds.open(1, "safety", [asked], labels_each=1)
    client = service.client(Role.ANNOTATOR)
    given = client.post(f"{API}/lease", json={}).json()["task"]
    assert [turn["role"] for turn in given["turns"]] == ["user", "assistant", "user"]
    assert "<b>" not in given["turns"][0]["html"]
    assert "<table>" in given["turns"][1]["html"]
    body = {"lease": given["lease"], "kind": "label", "given": {"safety": "safe"}, "note": "fine by me"}
    assert client.put(f"{API}/answers/key-00001", json=body).status_code == 201
    (said,) = client.get(f"{API}/history").json()["answers"]
    assert (said["prompt"], said["given"], said["note"]) == ("as one text", {"safety": "safe"}, "fine by me")
    numbers = client.get(f"{API}/progress").json()
    assert (numbers["today"], numbers["labels"], numbers["wanted"]) == (1, 1, 1)


def test_a_prompt_of_several_messages_is_asked_turn_by_turn_and_stays_the_same_question() -> None:
    messages = (Message("user", "hello"), Message("assistant", "hi"), Message("user", "and now?"))
    told = Response("r0", Prompt("p0", (1,), "as one text", messages), (2,), "fine", 1, 0)
    flat = Response("r0", Prompt("p0", (1,), "as one text", messages[:1]), (2,), "fine", 1, 0)
    assert safety_question(told).turns == (("user", "hello"), ("assistant", "hi"), ("user", "and now?"))
    assert safety_question(flat).turns == ()
    assert safety_question(told).digest() == safety_question(flat).digest()


@pytest.mark.slow
def test_single_questions_have_no_turns(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    lease = queue.leases.lease(queue.person("ana"))
    assert isinstance(lease, Lease)
    assert (lease.turns, lease.language, lease.note) == ((), None, "")
