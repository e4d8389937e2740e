"""Data about a person: all of it is handed out, and what names them can be erased while the labels stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError

from pddpo_ray.annotation.label_rows import label_rows
from pddpo_ray.annotation.people.accounts import Person, Role
from pddpo_ray.annotation.people.invitations import Invitations
from pddpo_ray.annotation.people.personal_data import PersonalData
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.batch_rows import RoundStatus
from pddpo_ray.annotation.queue.queue_rules import QueueError
from pddpo_ray.annotation.review.audit_checks import broken_links, imbalances
from pddpo_ray.cli.main import main
from pddpo_ray.journal.annotation_schema import ERASED, answer, audit_event
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue, safety_questions

NAME, NOTE = "Annabella Quist", "my sister had this once, call me on 555-0173"


def worked(queue: FreshQueue) -> tuple[Person, str, RoundStatus]:
    """A person who came by invitation, wrote a comment and has a second question in their hands."""
    desk = Invitations(queue.store)
    person, token = desk.accept(desk.make(NAME, Role.ANNOTATOR, by="admin"))
    status = queue.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    lease = queue.leases.lease(person)
    assert isinstance(lease, Lease)
    queue.people.sign_in(token)
    queue.answers.answer(person, "key-0001", lease.id, Submission("label", {"safety": "unsafe"}, note=NOTE))
    assert isinstance(queue.leases.lease(person), Lease)
    return person, token, status


def erased_keeps_its_promises(queue: FreshQueue) -> None:
    """The promises on any database: nothing names the person, the labels stay, books and log are sound."""
    person, token, status = worked(queue)
    queue.person("the admin", Role.ADMIN)
    desk = PersonalData(queue.store, queue.rules)
    known = json.dumps(desk.of(person.id))
    assert all(words in known for words in (NAME, NOTE, "prompt 0", "unsafe", "person.create"))
    before = list(label_rows(queue.store))
    done = desk.erase(person.id, by="admin", reason="asked for it")
    assert (done.answers, done.notes, done.events, done.mentions) == (1, 1, 2, [])
    assert not any(words in json.dumps(desk.of(person.id)) for words in (NAME, NOTE))
    assert queue.people.by_token(token) is None
    after = list(label_rows(queue.store))
    assert after == [{**row, "note": ""} for row in before]
    assert after[0]["annotator"] in done.name
    assert queue.rounds.status(status.id).out == 0, "the question in their hands goes to others"
    assert queue.rounds.status(status.id).counted == 1
    assert broken_links(queue.store) == []
    assert imbalances(queue.store) == []
    with pytest.raises(QueueError, match="there is no person called"):
        desk.find(NAME)


def test_erasing_a_person_keeps_their_labels_and_nothing_that_names_them(queue: FreshQueue) -> None:
    erased_keeps_its_promises(queue)


def test_no_byte_of_the_name_stays_in_the_files(queue: FreshQueue) -> None:
    person, _, _ = worked(queue)
    database = Path(str(queue.engine.url.database))

    def bytes_of_all() -> bytes:
        return b"".join(file.read_bytes() for file in database.parent.glob(f"{database.name}*"))

    assert NAME.encode() in bytes_of_all()
    PersonalData(queue.store, queue.rules).erase(person.id, by="admin", reason="asked for it")
    left = bytes_of_all()
    assert NAME.encode() not in left
    assert NOTE.encode() not in left


def test_what_is_left_of_a_log_entry_is_sound_only_if_an_erasure_says_so(queue: FreshQueue) -> None:
    person, _, _ = worked(queue)
    PersonalData(queue.store, queue.rules).erase(person.id, by="admin", reason="asked for it")
    queue.person("ben")
    with queue.engine.begin() as connection:
        last = select(audit_event.c.seq).order_by(audit_event.c.seq.desc()).limit(1)
        seq = connection.execute(last).scalar_one()
        connection.execute(update(audit_event).where(audit_event.c.seq == seq).values(object="", data=ERASED))
    assert broken_links(queue.store) == [seq]
    rewritten = (
        update(audit_event).values(data={"handle": "somebody else"}),
        update(audit_event).values(object="", data=ERASED, actor="x"),
        update(answer).values(note="other words"),
        update(answer).values(note="", kind="skip"),
    )
    for statement in rewritten:
        with pytest.raises(DBAPIError, match="append-only"), queue.engine.begin() as connection:
            connection.execute(statement)


def test_the_last_admin_and_an_erasure_without_a_reason_are_refused(queue: FreshQueue) -> None:
    admin = queue.person("the admin", Role.ADMIN)
    desk = PersonalData(queue.store, queue.rules)
    with pytest.raises(QueueError, match="only admin"):
        desk.erase(admin.id, by="admin", reason="asked for it")
    with pytest.raises(QueueError, match="say why"):
        desk.erase(admin.id, by="admin", reason=" ")
    queue.person("another", Role.ADMIN)
    desk.erase(admin.id, by="admin", reason="left")
    with pytest.raises(QueueError, match="there is no person"):
        desk.erase("nobody", by="admin", reason="left")


def test_a_reason_that_somebody_wrote_with_the_name_in_it_is_named_and_not_lost(queue: FreshQueue) -> None:
    person, _, _ = worked(queue)
    status = queue.rounds.open(2, "safety", safety_questions(1), labels_each=1)
    queue.rounds.extend(status.id, None, by="lead", reason=f"{NAME} is back at noon")
    done = PersonalData(queue.store, queue.rules).erase(person.id, by="admin", reason="asked for it")
    assert len(done.mentions) == 1


def test_admins_alone_export_and_erase_over_the_api(service: FreshService) -> None:
    person, _, _ = worked(service.queue)
    admin, lead = service.client(Role.ADMIN), service.client(Role.LEAD)
    assert is_problem(lead.get(f"{API}/people/{person.id}/data"), 403)
    assert is_problem(lead.post(f"{API}/people/{person.id}/erase", json={"reason": "x"}), 403)
    sent = admin.get(f"{API}/people/{person.id}/data")
    assert sent.json()["account"]["handle"] == NAME
    assert "attachment" in sent.headers["content-disposition"]
    assert is_problem(admin.post(f"{API}/people/{person.id}/erase", json={"reason": ""}), 422)
    done = admin.post(f"{API}/people/{person.id}/erase", json={"reason": "asked for it"})
    assert done.json()["answers"] == 1
    assert NAME not in admin.get(f"{API}/people").text + admin.get(f"{API}/audit").text
    assert is_problem(admin.get(f"{API}/people/nobody/data"), 404)


@pytest.mark.slow
def test_the_commands_write_the_file_and_erase(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ends(*words: str) -> int:
        with pytest.raises(SystemExit) as end:
            main(["annotations", *words, "--run", str(run)])
        return int(end.value.code or 0)

    with pytest.raises(SystemExit):
        main(["annotate", "--run", str(run), "--add", NAME])
    file = tmp_path / "data.json"
    assert ends("data-of", NAME, "--out", str(file)) == 0
    assert json.loads(file.read_text())["account"]["handle"] == NAME
    assert ends("erase", NAME, "--reason", "asked for it") == 0
    assert "erased" in capsys.readouterr().out
    assert ends("erase", NAME, "--reason", "asked for it") == 2
    assert "there is no person called" in capsys.readouterr().err
