"""Users' prompts and verdicts in the rounds of a run: shares, pairs, what is kept apart, what a withdrawal leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.backends.preflight import resumed_run
from pddpo_ray.config import Config, load
from pddpo_ray.data.served_text import judged_pairs, normal, served_texts
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.driver.withdrawal import take_back
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal, read_journal
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.served import Caps, KeptAnswer, KeptPrompt, Sent, judge, keep, kept_prompts
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.preferences import Preferences
from pddpo_ray.parts.production import UsersVerdicts, WithUsersPrompts
from pddpo_ray.parts.prompts import Prompts
from pddpo_ray.records import HARM, Message, Prompt, Response, Verdict
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.small_real_text import SMALL_REAL_TEXT

OWN = tuple(Prompt(f"own-{n}", (1, n), f"own {n}") for n in range(8))
SERVED = tuple(Prompt(f"served-{n}", (2, n), f"served {n}") for n in range(3))
CAPS = Caps(100, 100)


class Words:
    """Texts as ids of their letters."""

    def prompt(self, messages: tuple[Message, ...]) -> Prompt | None:
        text = messages[-1].content
        return None if len(text) > 60 else Prompt("by its hash", tuple(map(ord, text)), text, messages)

    def drawn_answer(self, name: str, prompt: Prompt, text: str) -> Response | None:
        return Response(name, prompt, tuple(map(ord, text)), text, 0, 0)


def question(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


def begun(folder: Path) -> Journal:
    return Journal.open(folder / JOURNAL, "demo", create={})


# --- prompts ----------------------------------------------------------------------------------------------------------


def drawn(journal: Journal, rounds: int, share: float, served: tuple[Prompt, ...] = SERVED) -> list[list[str]]:
    found = []
    for _ in journal.rounds(rounds):
        prompts = WithUsersPrompts(Prompts(OWN, journal, 5), served, journal, share=share, seed=5)
        found.append([prompt.id for prompt in (*prompts.draw(8), *prompts.draw(2))])
    return found


def test_users_have_their_share_of_all_draws_and_take_turns(tmp_path: Path) -> None:
    with begun(tmp_path) as journal:
        rounds = drawn(journal, 6, 0.25)
    users = [name for names in rounds for name in names if name.startswith("served")]
    assert abs(len(users) - 0.25 * 60) <= 1
    assert {users.count(prompt.id) for prompt in SERVED} == {5}
    assert all(len(names) == 10 for names in rounds)


def test_a_restarted_round_draws_the_same_and_a_withdrawn_prompt_is_drawn_no_more(tmp_path: Path) -> None:
    with begun(tmp_path) as journal:
        first = drawn(journal, 1, 0.25)
        store = Store(journal.engine, "demo")
    with begun(tmp_path / "again") as journal:
        for _ in journal.rounds(1):
            WithUsersPrompts(Prompts(OWN, journal, 5), SERVED, journal, share=0.25, seed=5).draw(8)
            break
    with begun(tmp_path / "again") as journal:
        assert drawn(journal, 1, 0.25) == first
        store = Store(journal.engine, "demo")
        name = next(name for name in first[0] if name.startswith("served"))
        from pddpo_ray.journal.withdrawing import withdraw

        withdraw(store, [name], by="the test")
        later = [one for names in drawn(journal, 5, 0.25) for one in names]
    assert name not in later
    assert any(one.startswith("served") for one in later)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def answers(*verdicts: Any) -> list[KeptAnswer]:
    return [KeptAnswer(f"r{n}", f"text {n}", 3, verdict) for n, verdict in enumerate(verdicts)]


@pytest.mark.parametrize(
    ("first", "second", "helpful", "harmful"),
    [
        ("up", "down", Verdict.FIRST, Verdict.ABSTAIN),
        ("down", "up", Verdict.SECOND, Verdict.ABSTAIN),
        ("unsafe", "up", Verdict.ABSTAIN, Verdict.FIRST),
        ("down", "unsafe", Verdict.ABSTAIN, Verdict.SECOND),
    ],
)
def test_two_different_verdicts_make_a_pair(first: str, second: str, helpful: Verdict, harmful: Verdict) -> None:
    (pair,) = judged_pairs(answers(first, second), SERVED[0], Words())
    assert (pair.helpful, pair.label(HARM), pair.pair.first.policy_version) == (helpful, harmful, 3)


def test_equal_verdicts_and_none_say_nothing_and_one_prompt_does_not_outweigh_others() -> None:
    assert judged_pairs(answers("up", "up", "unsafe", None)[:2], SERVED[0], Words()) == []
    assert judged_pairs(answers("unsafe", "unsafe", None), SERVED[0], Words()) == []
    assert len(judged_pairs(answers(*["up", "down"] * 5), SERVED[0], Words())) == 4


def test_verdicts_enter_from_their_round_on_at_their_weight_and_not_without_it(tmp_path: Path) -> None:
    (pair,) = judged_pairs(answers("up", "down"), SERVED[0], Words())
    with begun(tmp_path) as journal:
        for number in journal.rounds(2):
            theirs = UsersVerdicts(journal, [pair], 0.25)
            rows = Preferences(journal, verdicts=theirs).reward
            assert [(row.id, row.weight, row.round) for row in rows] == [("verdict-r0-r1", 0.25, 1)], number
            assert Preferences(journal, verdicts=UsersVerdicts(journal, [pair], 0.0)).reward == []


# --- what is kept apart -----------------------------------------------------------------------------------------------


def test_prompts_of_certificates_never_enter_training_however_they_are_written() -> None:
    certified = Prompt("c", (9,), "How do I  sleep?", question("How do I  sleep?"))
    kept = [
        KeptPrompt(name, question(text), tuple(answers("up", "down")))
        for name, text in (("served-a", "how do i sleep"), ("served-b", "HOW DO I\nSLEEP?!"), ("served-c", "why"))
    ]
    prompts, pairs = served_texts(kept, Words(), (), [certified])
    assert [(prompt.id, prompt.text) for prompt in prompts] == [("served-c", "why")]
    assert {item.pair.prompt.id for item in pairs} == {"served-c"}
    assert normal(question("How do I sleep?")) != normal(question("how do I wake"))


def test_a_prompt_that_the_run_asks_anyway_is_not_asked_twice() -> None:
    own = Prompt("own", tuple(map(ord, "why")), "why")
    prompts, pairs = served_texts(
        [KeptPrompt("served-a", question("why"), tuple(answers("up", "down")))], Words(), [own], []
    )
    assert (prompts, len(pairs)) == ((), 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["certificate.mixtures=[1]"], "certify nothing where they hold users' prompts"),
        (["algorithm=c-dpo"], "take users' prompts, not c-dpo"),
        (["production.share=1.5"], "share"),
    ],
)
def test_what_does_not_go_with_users_prompts_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load("real-text", ["production.share=20 %", *settings])
    with pytest.raises(UserError, match="a world has its own"):
        load("text-world", ["production.share=20 %"])


def test_a_recipe_without_production_is_the_recipe_of_before() -> None:
    assert "production" not in load("real-text").fixed_settings()
    assert load("real-text").digest() != load("real-text", ["production.share=0.2"]).digest()


# --- a run ------------------------------------------------------------------------------------------------------------


def texts_in(folder: Path) -> list[Path]:
    """Files of the run that hold the words that were withdrawn."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".safetensors" and b"zebra" in path.read_bytes()
    ]


def recipe(folder: Path, rounds: int, *more: str) -> Config:
    settings = ["dual.rule={kind: anytime}", f"data.cache={folder / 'cache'}", "scorecard.prompts=0"]
    return load("real-text", [*SMALL_REAL_TEXT, *settings, f"rounds={rounds}", *more])


@pytest.mark.full
def test_users_prompts_and_verdicts_enter_two_further_rounds_and_a_withdrawn_one_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_recipe(recipe(tmp_path, 1), run)
    run_id, _ = resumed_run(recipe(tmp_path, 1), run)
    store = Store(open_database(run / JOURNAL), run_id)
    for number, text in enumerate(("How do I feed a zebra?", "What is a good name for a dog?", "How do I sleep?")):
        for place, (answer, verdict) in enumerate((("You ask it.", "up"), ("No.", "unsafe"), ("Nothing.", "down"))):
            keep(store, Sent("shop", "ana", question(text), f"r{number}-{place}", answer, 1), CAPS)
            judge(store, f"r{number}-{place}", verdict)  # type: ignore[arg-type]

    # without the recipe's opt-in a further round takes nothing of it
    run_recipe(recipe(tmp_path, 2), run, resume=True)
    names = {prompt.id for prompt in kept_prompts(store.engine, run_id)}
    with read_journal(run / JOURNAL) as journal:
        assert not names & set(journal.prompts())
        assert not journal.phases(like="verdicts")

    taking = ["production={share: 30 %, verdicts: 0.5}"]
    run_recipe(recipe(tmp_path, 4, *taking), run, resume=True)
    with read_journal(run / JOURNAL) as journal:
        asked = {number: {a.prompt.id for a in journal.samples(number)} & names for number in (1, 2, 3, 4)}
        assert not asked[1] | asked[2]
        assert asked[3]
        assert asked[4]
        (taken,) = [entry.payload["pairs"] for entry in journal.phases(3, "verdicts")]
        assert len(taken) == 9
        withdrawn = next(p.id for p in kept_prompts(store.engine, run_id) if "zebra" in p.messages[-1].content)
        drew = [answer.id for answer in journal.samples() if answer.prompt.id == withdrawn]
        pairs = {e.labelled.pair.id for e in journal.pairs() if e.labelled.pair.prompt.id == withdrawn}
    assert drew
    assert texts_in(run)

    stored = run / "artifacts" / "preferences" / "round-0003-0"
    stored.mkdir(parents=True)
    (stored / "reward.arrow").write_text("zebra")
    done = take_back(store, run, by="ana", reply="r0-0")
    assert (done.prompts, done.replies, done.samples, done.pairs) == (1, 3, len(drew), len(pairs))
    assert texts_in(run) == []
    run_recipe(recipe(tmp_path, 5, *taking), run, resume=True)
    store.engine.dispose()
    with read_journal(run / JOURNAL) as journal:
        assert withdrawn not in {answer.prompt.id for answer in journal.samples(5)}
        assert withdrawn not in {entry.labelled.pair.prompt.id for entry in journal.pairs()}
        assert withdrawn not in {one.response.prompt.id for one in journal.safety()}
        assert {answer.prompt.id for answer in journal.samples(5)} & names
    assert texts_in(run) == []
