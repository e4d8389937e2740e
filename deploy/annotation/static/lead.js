// The lead's page: everything is read again every ten seconds, and nothing here is parsed as HTML.

import { $, ApiProblem, BASE, call, make, named, row, whoAmI } from "./api.js";
import { showAdmin } from "./admin.js";
import { adjudication } from "./adjudicate.js";
import { showDecisions } from "./decisions.js";
import { openable, showDetails, spoken } from "./details.js";
import { flagCell } from "./flags.js";
import { showVersions } from "./guidelines.js";
import { labelsOf, showLabels, voidButton } from "./labels.js";
import { place } from "./place.js";
import { refused, unread } from "./problem.js";
import { readings } from "./readings.js";
import { showRuns } from "./runs.js";

const EVERY_MS = 10000;
const desk = readings();
let me, selected = null, paused = false;

const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const share = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

const until = (ms) => (ms < 0 ? `passed ${duration(-ms / 1000)} ago` : `in ${duration(ms / 1000)}`);

function rows(id, content, columns, nothing) {
  place($(id), ...content);
  if (!content.length) $(id).append(make("tr", {}, make("td", { colspan: columns, class: "muted" }, nothing)));
}

function showRounds(answer) {
  paused = answer.paused;
  $("pause").textContent = paused ? "Resume" : "Pause";
  const open = answer.rounds.filter((one) => one.state === "open");
  if (!answer.rounds.some((one) => one.id === selected)) selected = (open[0] || answer.rounds[0])?.id ?? null;
  const pace = open.reduce((sum, one) => sum + one.labels_per_hour, 0);
  const figures = [
    ["Backlog", `${answer.backlog} labels`], ["Pace", `${Math.round(pace)} / h`],
    ["Time to finish", !answer.backlog ? "done" : pace ? duration((3600 * answer.backlog) / pace) : "–"], ["Work", paused ? "paused" : "open"],
  ];
  $("now").replaceChildren(...figures.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  rows("rounds", answer.rounds.map((one) => {
    const choose = make("button", { type: "button" }, `Round ${one.round}, ${one.purpose}`);
    choose.addEventListener("click", () => { selected = one.id; refresh(); });
    const bar = make("progress", { max: one.wanted, value: one.counted, "aria-label": `${one.counted} of ${one.wanted}` });
    const deadline = one.deadline_ms ? until(one.deadline_ms - answer.now_ms) : "none";
    const line = row(choose, bar, `${one.counted} / ${one.wanted}`, String(one.blocked), String(one.refusals),
      String(Math.round(one.labels_per_hour)), one.state === "open" ? duration(one.seconds_left) : "–", deadline, one.state);
    line.setAttribute("aria-selected", String(one.id === selected));
    return line;
  }), 9, "No questions were asked yet.");
  const shown = answer.rounds.find((one) => one.id === selected);
  showDecisions(shown, acted);
  $("agreement-of").textContent = shown ? `(round ${shown.round}, ${shown.purpose})` : "";
}

function showHeld(answer) {
  rows("held", answer.leases.map((one) => {
    const back = make("button", { type: "button" }, "Recall");
    back.addEventListener("click", () => act(() => call("POST", `/leases/${one.id}/recall`, {})));
    return named(one.id, row(one.handle, `Round ${one.round}, ${one.purpose}`, duration((answer.now_ms - one.leased_ms) / 1000),
      until(one.expires_ms - answer.now_ms), back));
  }), 5, "Nobody holds a question now.");
}

async function act(doing) {
  refused(await desk.change(doing));
  refresh();
}

const acted = () => act(() => {});

function showWork(days) {
  rows("worklog", days.map((one) => row(one.handle, one.day, String(one.answers), String(one.refusals), duration(one.seconds))), 5, "Nobody has worked yet.");
}

function showAgreement(agreement) {
  rows("agreement", Object.entries(agreement).map(([name, one]) => row(name.replaceAll("_", " "), number(one.alpha),
    one.alpha_low === null ? "–" : `${number(one.alpha_low)} … ${number(one.alpha_high)}`, share(one.pairwise), String(one.questions))),
  5, "No question has two labels yet.");
}

function showPeople(people) {
  rows("people", people.map((one) => {
    const standing = one.standing;
    const line = row(one.handle, flagCell(one, acted), String(one.answers), String(one.refusals), duration(one.median_s), share(one.hasty),
      one.gold_total ? `${one.gold_right} / ${one.gold_total}` : "–", share(one.left),
      standing.answers ? `${share(standing.agreement)} (${share(standing.expected)})` : "–",
      !standing.answers ? "–" : standing.p_value < 0.001 ? "< 0.001" : number(standing.p_value, 3));
    line.children[1].className = "note";
    return line;
  }), 10, "Nobody has answered yet.");
}

function showDisagreements(found) {
  showDetails("disagreements", found.map((one) => {
    const votes = one.votes.map((vote) => make("li", {}, `${vote.handle}: ${spoken(vote.given)}`,
      make("span", { class: "muted" }, ` (guidelines version ${vote.guideline})`), " ", ...voidButton(vote, act)));
    return openable(one.task, one, `${share(one.split)} differ: ${one.prompt.slice(0, 80)}`, make("ul", {}, ...votes), ...adjudication(one, act));
  }), "People agree wherever two of them answered.");
}

const REASONS = { too_harmful: "too harmful", cannot_judge: "cannot be judged", language: "not their language", broken: "broken", other: "another reason" };

function showRefusals(found) {
  showDetails("refusals", found.map((one) => {
    const said = [[one.flags.length, "flagged"], [one.skipped, "skipped"], [one.cannot_tell, "can't tell"]].filter(([count]) => count)
      .map(([count, words]) => `${count} ${words}`).join(", ");
    const flags = one.flags.map((flag) => make("li", {}, `${flag.handle}: ${REASONS[flag.reason]}${flag.note && ` (${flag.note})`}`));
    const state = one.state === "blocked" ? "blocked, " : "";
    return openable(one.task, one, `${state}${said}: ${one.prompt.slice(0, 80)}`, make("ul", {}, ...flags));
  }), "Nobody refused a question of this batch.");
}

function showEffects(effects) {
  rows("effects", effects.map((one) => row(`${one.round} (${one.constraint})`, number(one.value),
    one.low === null ? "no interval: bounds unknown" : `${number(one.low)} … ${number(one.high)}`,
    `${number(one.multiplier_before, 3)} → ${number(one.multiplier_after, 3)}`)), 4, "No round has closed yet.");
}

async function refresh() {
  const isNewest = desk.begin();
  const read = async (path, show) => {
    const reply = await call("GET", path);
    if (isNewest()) show(reply);
  };
  try {
    await read("/rounds", showRounds);
    if (selected) {
      await read(`/rounds/${selected}/agreement`, ({ agreement }) => showAgreement(agreement));
      await read(`/rounds/${selected}/disagreements`, ({ disagreements }) => showDisagreements(disagreements));
      await read(labelsOf(selected), (reply) => showLabels(reply, act));
      await read(`/rounds/${selected}/refusals`, ({ refusals }) => showRefusals(refusals));
    }
    await read("/leases", showHeld);
    await read("/quality", ({ people }) => showPeople(people));
    await read("/worklog", ({ days }) => showWork(days));
    await read("/effects", ({ effects }) => showEffects(effects));
    await showVersions();
    $("updated").textContent = `as of ${new Date().toLocaleTimeString()}`;
    unread("");
  } catch (problem) {
    unread(problem instanceof ApiProblem ? problem.message : "No connection to the server.");
  }
}

$("pay").addEventListener("submit", (event) => {
  event.preventDefault();
  location.href = `${BASE}api/v1/worklog.csv?rate=${Number($("rate").value) || 0}`; // a download: the page stays
});
$("save-labels").addEventListener("submit", (event) => {
  event.preventDefault();
  location.href = `${BASE}api/v1/labels?to=${$("save-to").value}&form=${$("save-form").value}`; // a download too
});
$("pause").addEventListener("click", () => act(() => call("PUT", "/campaign", { paused: !paused })));

// A table that is cut off can be scrolled by the keyboard too.
function makeReachable(box) {
  const cut = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
  const says = { tabindex: "0", role: "region", "aria-label": box.firstElementChild.getAttribute("aria-label") };
  for (const [name, value] of Object.entries(says)) cut ? box.setAttribute(name, value) : box.removeAttribute(name);
}

const sizes = new ResizeObserver((changed) => { for (const { target } of changed) makeReachable(target.closest(".scroll")); });
for (const box of document.querySelectorAll(".scroll")) for (const one of [box, box.firstElementChild]) sizes.observe(one);

whoAmI().then((found) => {
  me = found;
  $("pause").hidden = me.role !== "admin";
  if (me.role === "admin") showAdmin();
  showRuns("lead").catch(() => {});
  refresh();
  setInterval(refresh, EVERY_MS);
}, () => { location.href = BASE; });
