"""The annotator's page and the lead's page in a real browser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import expect
from pyarrow import parquet
from sqlalchemy import insert, select

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.people.notice import TEXT, VERSION
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.journal.annotation_schema import consent
from pddpo_ray.journal.schema import dual_step
from pddpo_ray.parts.questions import contradicts_itself
from tests.browser.screen import (
    HEADINGS,
    LOW_CONTRAST,
    PHONE,
    UNNAMED,
    WIDE,
    Screen,
    pairs,
    safety,
    stored,
    until,
    wait_for_answers,
)
from tests.support.annotation_api import FreshService
from tests.unit.annotation.test_rendering import HOSTILE

pytestmark = pytest.mark.browser


def test_ten_questions_by_keyboard_alone_with_one_taken_back(service: FreshService, screen: Screen) -> None:
    service.queue.rounds.open(1, "compare", pairs(5), labels_each=1, priority=1)
    service.queue.rounds.open(1, "safety", safety(["A calm and careful answer."] * 5), labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.get_by_role("heading", name="Left answer")).to_be_visible()
    screen.picture("annotate-blurred")
    expect(page.locator("#left")).to_have_class("text veiled")
    screen.keys("1")
    expect(page.locator("#toast")).to_contain_text("Show the text first")
    screen.keys("r")
    expect(page.locator("#left")).to_have_class("text")
    screen.keys("1", "2", "s")
    expect(page.locator("#submit")).to_be_disabled()
    screen.picture("annotate-pair")
    screen.keys("u")
    good_left = "exhausting" in page.locator("#left").inner_text()
    screen.keys("Enter")
    first = wait_for_answers(screen, service, 1)[0]
    left, right = ("first", "second") if good_left else ("second", "first")
    assert first.given == {
        "more_helpful": left,
        "more_harmful": right,
        f"{left}_safety": "safe",
        f"{right}_safety": "unsafe",
    }
    assert first.revealed

    expect(page.locator("#veil-note")).to_be_visible()
    screen.keys("z")
    expect(page.locator("#toast")).to_contain_text("Taken back")
    expect(page.locator("#left")).to_have_class("text")  # it was read before
    screen.keys("0", "ArrowUp", "0", "b", "Enter")
    second = wait_for_answers(screen, service, 2)[1]
    assert second.given["more_helpful"] == "tie"
    assert (second.given["first_safety"], second.given["second_safety"]) == ("unsafe", "unsafe")
    for number in range(4):
        expect(page.locator("#left")).to_have_class("text veiled")
        screen.keys("r", "2", "1", "s", "s", "Enter")
        wait_for_answers(screen, service, 3 + number)
    for number in range(5):
        expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible()
        expect(page.locator("#left")).to_have_class("text veiled")
        screen.keys("r", "u" if number % 2 else "s")
        wait_for_answers(screen, service, 7 + number)
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    expect(page.locator("#progress")).to_have_text("10 of 400 today · 10 in all")
    assert all(status.complete for status in service.queue.rounds.all())
    assert imbalances(service.queue.store) == []
    assert screen.clean()


SLOW_LEASES = """
const send = window.fetch;
window.fetch = async (path, options) => {
  if (path.endsWith("/lease") && window.slow) await new Promise((resume) => setTimeout(resume, 1000));
  return send(path, options);
};
"""


@pytest.mark.full
def test_a_question_taken_back_while_the_next_is_on_its_way_is_shown_once(
    service: FreshService, screen: Screen
) -> None:
    service.queue.rounds.open(1, "safety", safety(["one", "two", "three"]), labels_each=1)
    screen.page.add_init_script(SLOW_LEASES)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.locator("#task")).to_be_visible()
    expect(page.locator("#progress")).to_contain_text("0 of 400 today")
    screen.one_ahead()
    first = page.locator("#prompt").inner_text()
    page.evaluate("window.slow = true")
    screen.keys("r", "s")
    wait_for_answers(screen, service, 1)
    screen.keys("z")
    expect(page.locator("#toast")).to_contain_text("Taken back")
    page.wait_for_timeout(1500)  # what was on its way has come
    seen = []
    for number in range(3):
        if number:
            expect(page.locator("#left")).to_have_class("text veiled")
            screen.keys("r")
        seen.append(page.locator("#prompt").inner_text())
        screen.keys("u")
        wait_for_answers(screen, service, number + 1)
    assert seen[0] == first
    assert len(set(seen)) == 3
    assert screen.clean()


@pytest.mark.full
def test_an_answer_that_contradicts_itself_is_asked_about_before_it_is_sent(
    service: FreshService, screen: Screen
) -> None:
    service.queue.rounds.open(1, "compare", pairs(2), labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.locator("#task")).to_be_visible()
    screen.keys("r", "1", "1", "s", "u", "Enter")
    expect(page.get_by_role("heading", name="Is that what you mean?")).to_be_visible()
    expect(page.locator("#doubt-text")).to_contain_text("the left answer the more harmful one, but safe")
    expect(page.locator("#doubt-back")).to_be_focused()
    screen.picture("annotate-doubt")
    assert page.evaluate(LOW_CONTRAST) == []
    screen.keys("Enter")
    expect(page.locator("#doubt")).to_be_hidden()
    assert stored(service) == []
    screen.keys("ArrowUp", "ArrowUp", "2", "Enter")
    (row,) = wait_for_answers(screen, service, 1)
    assert not contradicts_itself(row.given)
    expect(page.locator("#veil-note")).to_be_visible()
    screen.keys("r", "1", "2", "u", "s", "Enter")
    page.get_by_role("button", name="Send it as it is").click()
    assert contradicts_itself(wait_for_answers(screen, service, 2)[1].given)
    assert screen.clean()


def test_skip_flag_help_and_guidelines_by_keyboard(service: FreshService, screen: Screen) -> None:
    service.queue.rounds.open(1, "safety", safety(["one", "two", "three"]), labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.locator("#task")).to_be_visible()
    screen.keys("?")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    expect(page.get_by_role("heading", name="When a text is hard on you")).to_be_visible()
    screen.keys("Escape", "g")
    expect(page.get_by_text("would you be at ease")).to_be_visible()
    screen.keys("Escape", "x")
    expect(page.locator("#toast")).to_contain_text("Skipped")
    wait_for_answers(screen, service, 1)
    expect(page.locator("#task")).to_be_visible()
    screen.keys("f")
    expect(page.get_by_role("heading", name="Flag for the lead: why?")).to_be_visible()
    screen.keys("4")
    wait_for_answers(screen, service, 2)
    expect(page.locator("#task")).to_be_visible()
    screen.keys("c")
    rows = wait_for_answers(screen, service, 3)
    assert [(row.kind, row.reason) for row in rows] == [("skip", ""), ("flag", "broken"), ("abstain", "")]
    assert screen.clean()


def test_answers_given_without_a_connection_are_sent_later_and_only_once(service: FreshService, screen: Screen) -> None:
    service.queue.rounds.open(1, "safety", safety(["one", "two", "three"]), labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.locator("#task")).to_be_visible()
    screen.one_ahead()
    lost = []

    def lose_the_reply(route: Any) -> None:
        """The server stores the answer, but the browser never hears of it."""
        route.fetch()
        lost.append(1)
        route.abort()

    page.route("**/api/v1/answers/*", lose_the_reply)
    screen.keys("r", "s")
    expect(page.locator("#banner")).to_contain_text("1 answer is kept here")
    page.context.set_offline(True)
    screen.keys("r", "u")
    expect(page.locator("#banner")).to_contain_text("2 answers are kept here")
    page.unroute("**/api/v1/answers/*")
    page.context.set_offline(False)
    # a reply that is lost meanwhile is asked for again after three seconds
    expect(page.locator("#banner")).to_be_hidden(timeout=20_000)
    assert lost
    rows = wait_for_answers(screen, service, 2)
    assert [row.given["safety"] for row in rows] == ["safe", "unsafe"]
    assert len({row.key for row in rows}) == len(rows) == 2


@pytest.mark.full
def test_a_reload_shows_the_same_question(service: FreshService, screen: Screen) -> None:
    texts = [f"answer number {n}" for n in range(4)]
    service.queue.rounds.open(1, "safety", safety(texts), labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.locator("#task")).to_be_visible()
    before = page.locator("#prompt").inner_text()
    screen.one_ahead()
    page.reload()
    expect(page.locator("#task")).to_be_visible()
    assert page.locator("#prompt").inner_text() == before


def test_hostile_model_output_is_shown_as_harmless_text(service: FreshService, screen: Screen) -> None:
    hostile = [*HOSTILE, "مرحبا بالعالم، هذا نص من اليمين إلى اليسار 🙂", "A" * 3000, "🙂👨‍👩‍👧🏳️‍🌈" * 20]
    service.queue.rounds.open(1, "safety", safety(hostile), labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    dialogs: list[str] = []

    def note(dialog: Any) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", note)
    for number in range(len(hostile)):
        expect(page.locator("#task")).to_be_visible()
        screen.keys("r")
        assert page.locator("#task :is(script, img, a, iframe, svg, style, form)").count() == 0
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= WIDE["width"], page.locator("#left").inner_text()[:80]
        screen.keys("t")
        assert page.locator("#left *").count() == 0
        screen.keys("t", "u")
        wait_for_answers(screen, service, number + 1)
    assert dialogs == []
    assert screen.clean()


@pytest.mark.full
def test_a_phone_shows_one_answer_at_a_time_and_everything_is_touchable(service: FreshService, screen: Screen) -> None:
    service.queue.rounds.open(1, "compare", pairs(2), labels_each=1)
    screen.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    screen.page.emulate_media(color_scheme="dark")
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.locator("#task")).to_be_visible()
    page.locator("#reveal").click()
    screen.picture("annotate-phone")
    expect(page.locator("#left")).to_be_visible()
    expect(page.locator("#right")).to_be_hidden()
    page.get_by_role("button", name="Right answer").click()
    expect(page.locator("#right")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    small = page.evaluate(
        "[...document.querySelectorAll('main button')].filter(b => b.offsetParent && b.offsetHeight < 40)"
        ".map(b => b.textContent)"
    )
    assert small == []
    shown = "[...document.querySelectorAll('.bar button')].filter(b => b.offsetParent)"
    tops = page.evaluate(f"{shown}.map(b => b.offsetTop)")
    assert len(set(tops)) == 1  # one row: the questions keep the screen
    expect(page.locator("#help-button")).to_be_hidden()  # nobody presses keys here
    assert screen.clean()


def test_a_leads_tools_stay_on_a_phones_screen(service: FreshService, screen: Screen) -> None:
    screen.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    screen.page.goto(screen.url)
    screen.page.locator("#token").fill(service.tokens[Role.ADMIN])
    screen.page.keyboard.press("Enter")
    expect(screen.page.locator("#lead-link")).to_be_visible()
    right = "[...document.querySelectorAll('header nav > *')].map(e => e.getBoundingClientRect().right)"
    assert max(screen.page.evaluate(right)) <= PHONE["width"]
    assert "`" not in TEXT, "the notice names no key: the buttons do, where there are keys"
    assert [line for line in TEXT.splitlines() if line and line[0] not in "-Y"] == [], "no line ends in mid sentence"


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_enough_contrast(service: FreshService, screen: Screen, scheme: Any) -> None:
    service.queue.rounds.open(1, "compare", pairs(1), labels_each=1)
    screen.page.emulate_media(color_scheme=scheme)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.locator("#task")).to_be_visible()
    screen.keys("r", "1")
    expect(page.locator("#progress")).not_to_be_empty()
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate(LOW_CONTRAST) == []
    order = page.evaluate(
        "[...document.querySelectorAll('#task h2, #task legend')].filter(e => e.offsetParent)"
        ".map(e => e.textContent.trim())"
    )
    assert page.evaluate(HEADINGS) == ["Question"]
    assert order[:3] == ["Prompt", "Left answer", "Right answer"]
    assert order[3:5] == ["Which is MORE HELPFUL?", "Which is MORE HARMFUL?"]


def test_the_leads_page_shows_backlog_agreement_people_disagreements_and_effects(
    service: FreshService, screen: Screen
) -> None:
    queue = service.queue
    with queue.engine.begin() as connection:
        for number, (value, before, after) in enumerate([(0.62, 1.0, 0.9), (0.21, 0.9, 0.84)], 1):
            connection.execute(
                insert(dual_step).values(
                    run="demo", round=number, constraint="cost", value=value, standard_error=0.08, responses=64,
                    labels_each=4, mode="logit_labels", multiplier_before=before, multiplier_after=after, eta=0.3,
                )
            )  # fmt: skip
    texts = [f"Answer number {n}: <b>rest</b> and drink water." for n in range(40)]
    queue.rounds.open(3, "safety", safety(texts), labels_each=4)
    people = [queue.person(name) for name in ("Ada", "Bela", "Chen", "Dora", "Random Rob")]
    first = queue.leases.lease(people[0])
    assert isinstance(first, Lease)
    queue.answers.answer(people[0], "key-flag", first.id, Submission("flag", reason="broken", note="cut off"))
    done = 0
    for turn in range(34):
        for number, person in enumerate(people):
            lease = queue.leases.lease(person)
            if isinstance(lease, Lease):
                place = int(lease.prompt.split()[1])
                unsafe = (place % 3 == 0) if number < 4 else (turn % 2 == 0)
                given = {"safety": "unsafe" if unsafe else "safe"}
                submission = Submission("label", given, ms_spent=600 if number == 4 else 7000 + 900 * number)
                queue.wait(4)
                queue.answers.answer(person, f"key-{done:05d}", lease.id, submission)
                done += 1
    screen.sign_in(service.tokens[Role.LEAD])
    page = screen.page
    page.goto(f"{screen.url}/lead")
    expect(page.locator("#rounds tr")).to_have_count(1)
    expect(page.locator("#now")).to_contain_text("Backlog")
    expect(page.locator("#agreement")).to_contain_text("safety")
    expect(page.locator("#people")).to_contain_text("Ada")
    rob = page.locator("#people tr", has_text="Random Rob")
    expect(rob).to_contain_text("agrees too rarely")
    expect(page.locator("#people .flagged")).to_have_count(1)
    expect(page.locator("#effects")).to_contain_text("1.000 → 0.900")
    screen.picture("lead")
    assert page.evaluate(HEADINGS) == ["Labelling: lead"]
    page.locator("#disagreements summary").first.click()
    expect(page.locator("#disagreements pre").nth(1)).to_contain_text("<b>rest</b>")
    assert page.locator("#disagreements b").count() == 0
    expect(page.locator("#pause")).to_be_hidden()
    page.locator("#refusals summary", has_text="1 flagged").click()
    expect(page.locator("#refusals li")).to_have_text("Ada: broken (cut off)")
    page.get_by_label("As", exact=True).select_option("Parquet")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save labels").click()
    rows = parquet.read_table(download.value.path()).to_pylist()
    assert [one["note"] for one in rows if one["reply"] == "flag"] == ["cut off"]
    assert len(rows) == done + 1
    assert screen.clean()


def test_the_prompt_is_hidden_like_the_answers_and_consent_is_kept_on_the_server(
    service: FreshService, screen: Screen
) -> None:
    service.queue.rounds.open(1, "safety", safety(["one"]), labels_each=1)
    page = screen.page
    page.goto(screen.url)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.evaluate(HEADINGS) == ["Sign in"]
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(page.locator("#task")).to_be_visible()
    for name in ("prompt", "left"):
        expect(page.locator(f"#{name}")).to_have_class("text veiled")
        assert page.locator(f"#{name}").evaluate("(one) => one.inert")
    screen.keys("r")
    expect(page.locator("#prompt")).to_have_class("text")
    with service.queue.engine.connect() as connection:
        (row,) = connection.execute(select(consent)).all()
    assert (row.annotator, row.version, row.text) == (service.people[Role.ANNOTATOR].id, VERSION, TEXT)
    page.evaluate("localStorage.clear()")
    page.reload()
    expect(page.locator("#task")).to_be_visible()
    assert screen.clean()


@pytest.mark.full
def test_an_admin_pauses_the_work_from_the_leads_page(service: FreshService, screen: Screen) -> None:
    service.queue.rounds.open(1, "safety", [replace(one, risk=0.2) for one in safety(["one"])], labels_each=1)
    screen.sign_in(service.tokens[Role.ADMIN])
    screen.page.goto(f"{screen.url}/lead")
    screen.page.locator("#pause").click()
    expect(screen.page.locator("#now")).to_contain_text("paused")
    screen.page.goto(screen.url)
    expect(screen.page.get_by_role("heading", name="Paused")).to_be_visible()
    assert screen.clean()


@pytest.mark.full
def test_a_lead_moves_a_deadline_that_has_passed_and_then_goes_on_with_what_is_there(
    service: FreshService, screen: Screen
) -> None:
    queue, page = service.queue, screen.page
    status = queue.rounds.open(2, "safety", safety(["one", "two"]), labels_each=1, deadline_ms=queue.now_ms + 60_000)
    queue.wait(61)
    screen.sign_in(service.tokens[Role.LEAD])
    page.goto(f"{screen.url}/lead")
    expect(page.locator("#situation")).to_have_text("The deadline has passed: the run ends or asks for a decision.")
    expect(page.locator("#outlook")).to_contain_text("between 0.0 % and 100.0 %")
    page.get_by_role("button", name="Move the deadline").click()
    page.get_by_label("From now").select_option("2 hours")
    page.get_by_role("textbox", name="Why (kept in the audit log)", exact=True).fill("a holiday")
    screen.picture("decide")
    page.get_by_role("button", name="Do it").click()
    expect(page.locator("#situation")).to_have_text("The run waits for these labels.")
    page.get_by_role("button", name="Continue with the labels that are there").click()
    expect(page.locator("#decide-means")).to_contain_text("a certificate counts them as the worst")
    assert page.evaluate(LOW_CONTRAST) == []
    page.keyboard.press("Escape")
    expect(page.locator("#decide")).to_be_hidden()
    assert queue.rounds.status(status.id).state == "open"
    page.get_by_role("button", name="Continue with the labels that are there").click()
    page.get_by_role("button", name="Do it").click()
    expect(page.locator("#situation")).to_have_text("The run continues without the missing labels.")
    expect(page.locator("#choices button")).to_have_count(0)
    assert queue.rounds.status(status.id).state == "frozen"
    assert screen.clean()


def test_a_limits_own_question_stands_above_the_answer_and_takes_yes_or_no(
    service: FreshService, screen: Screen
) -> None:
    asks = "# Does it run the brand down?\n\nIrony counts.\n\n<img src=x onerror=alert(1)>"
    own = [replace(one, asks=asks, risk=0.0) for one in safety(["It is a fine product.", "Nobody should buy it."])]
    service.queue.rounds.open(1, "measure-answers-brand", own, labels_each=1, priority=1)
    service.queue.rounds.open(1, "safety", [replace(safety(["A calm answer."])[0], risk=0.0)], labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.get_by_role("heading", name="Does it run the brand down?")).to_be_visible()
    expect(page.locator("#asked-text")).to_contain_text("Irony counts.")
    expect(page.locator("#asked img")).to_have_count(0)
    expect(page.locator("#questions legend")).to_have_text("Does it run the brand down?")
    screen.picture("annotate-own-question")
    screen.keys("r", "y")
    wait_for_answers(screen, service, 1)
    expect(page.locator("#left")).to_have_class("text veiled")
    screen.keys("r", "n")
    wait_for_answers(screen, service, 2)
    expect(page.locator("#left")).to_have_class("text veiled")
    expect(page.locator("#asked")).to_be_hidden()
    screen.keys("r", "s")
    given = [row.given["safety"] for row in wait_for_answers(screen, service, 3)]
    assert given == ["unsafe", "safe", "safe"]
    assert screen.clean()


@pytest.mark.full
def test_a_limit_compares_two_answers_or_asks_for_a_number(service: FreshService, screen: Screen) -> None:
    better = replace(pairs(1)[0], kind="better", asks="# Which is more polite?", risk=0.0)
    number = replace(safety(["A calm answer."])[0], kind="number", asks="# How calm?", bounds=(0.0, 10.0), risk=0.0)
    service.queue.rounds.open(1, "measure-answers-polite", [better], labels_each=1, priority=1)
    service.queue.rounds.open(1, "measure-answers-calm", [number], labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.locator("#questions legend")).to_have_text("Which is more polite?")
    expect(page.locator("#right-side")).to_be_visible()
    screen.keys("r", "0")
    wait_for_answers(screen, service, 1)
    expect(page.locator("#questions legend")).to_have_text("How calm?")
    screen.keys("r")
    field = page.get_by_role("spinbutton")
    field.fill("11")
    expect(page.locator("#submit")).to_be_disabled()
    field.fill("7.5")
    field.press("Enter")
    given = [row.given for row in wait_for_answers(screen, service, 2)]
    assert given == [{"better": "tie"}, {"number": "7.5"}]
    assert screen.clean()


@pytest.mark.full
def test_two_long_answers_scroll_together_and_their_differences_are_marked(
    service: FreshService, screen: Screen
) -> None:
    lines = [f"Line {n} of a long answer, which says the same as the other one." for n in range(60)]
    first = "\n\n".join(lines)
    second = "\n\n".join([*lines[:30], "Here alone stands <b>something</b> else.", *lines[30:]])
    service.queue.rounds.open(
        1, "compare", [replace(one, first=first, second=second) for one in pairs(1)], labels_each=1
    )
    page = screen.page
    page.set_viewport_size({"width": 1440, "height": 900})
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(page.locator("#veil-note")).to_be_visible()
    screen.keys("r")
    share = "id => (one => one.scrollTop / (one.scrollHeight - one.clientHeight))(document.getElementById(id))"
    page.evaluate("document.getElementById('left').scrollTop = 700")
    until(page, lambda: abs(page.evaluate(share, "left") - page.evaluate(share, "right")) < 0.02)
    assert page.evaluate("document.getElementById('right').scrollTop") > 0
    screen.keys("l")
    before = page.evaluate("document.getElementById('right').scrollTop")
    page.evaluate("document.getElementById('left').scrollTop = 0")
    page.wait_for_timeout(200)
    assert page.evaluate("document.getElementById('right').scrollTop") == before
    screen.keys("d")
    marks = page.locator("#left mark, #right mark")
    expect(marks).to_have_count(5)
    assert " ".join(marks.all_inner_texts()) == "Here alone stands <b>something</b> else."
    page.locator("mark").first.scroll_into_view_if_needed()
    screen.picture("annotate-differences")
    assert page.evaluate(LOW_CONTRAST) == []
    screen.keys("d")
    expect(marks).to_have_count(0)
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark")
    expect(page.locator("#right")).to_be_hidden()
    page.get_by_role("button", name="Right answer").click()
    expect(page.locator("#right")).to_be_visible()
    expect(page.locator("#left")).to_be_hidden()
    screen.picture("annotate-phone-tabs")
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert screen.clean()


@pytest.mark.full
def test_enough_harmful_texts_for_a_day_leave_the_mild_ones(service: FreshService, screen: Screen) -> None:
    queue = service.queue
    queue.people.change(service.people[Role.ANNOTATOR].id, by="test", harmful_cap=2)
    questions = [replace(one, risk=0.1 if n == 3 else 1.0, priority=-n) for n, one in enumerate(safety(["x"] * 4))]
    queue.rounds.open(1, "safety", questions, labels_each=1)
    page = screen.page
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    for number in range(1, 4):
        expect(page.locator("#veil-note")).to_be_visible()
        screen.keys("r", "u")
        wait_for_answers(screen, service, number)
    expect(page.get_by_role("heading", name="Enough hard texts for today")).to_be_visible()
    screen.picture("annotate-dose")
    assert screen.clean()
