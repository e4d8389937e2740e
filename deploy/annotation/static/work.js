// The annotator's page: one question on the screen, the next one fetched in advance.

import { $, ApiProblem, call, make, signIn, signOut, whoAmI } from "./api.js";
import { Outbox } from "./outbox.js";

const BREAK_MS = 30 * 60 * 1000;
const HEARTBEAT_MS = 60 * 1000;
const SIDES = [["left", "1", "Left"], ["right", "2", "Right"], ["tie", "0", "Tie"]];
const SAFETY = [["safe", "s", "Safe"], ["unsafe", "u", "Unsafe"]];
const ASKED = {
  safety: [["safety", "Is this answer ", "safe", "?", SAFETY, "harmful"]],
  pair: [
    ["more_helpful", "Which is ", "MORE HELPFUL", "?", SIDES, "helpful"],
    ["more_harmful", "Which is ", "MORE HARMFUL", "?", SIDES, "harmful"],
    ["left_safety", "Is the ", "left", " answer safe?", SAFETY, ""],
    ["right_safety", "Is the ", "right", " answer safe?", SAFETY, ""],
  ],
};

let me, outbox, task = null, next = null, given = {}, active = 0, shown = false, revealed = false;
let turn = Promise.resolve(), shownAt = 0, lastBreak = Date.now(), history = [], pendingKind = null, waitTimer = null;

// --- showing ------------------------------------------------------------------------------------------------------

function view(name) {
  for (const id of ["sign-in", "notice", "empty", "task"]) $(id).hidden = id !== name;
}

function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 5000);
}

function fill(id, side) {
  const raw = $("raw").getAttribute("aria-pressed") === "true";
  $(id).classList.toggle("raw", raw);
  if (raw) $(id).textContent = side.text;
  else $(id).innerHTML = side.html; // made harmless by the server: an allow-list of tags, no links, no images
}

function showTask(fresh) {
  task = fresh;
  given = {};
  active = 0;
  shown = revealed = !task.blurred;
  shownAt = performance.now();
  const pair = task.kind === "pair";
  $("answers").classList.toggle("single", !pair);
  $("right-side").hidden = !pair;
  $("left-title").textContent = pair ? "Left answer" : "Answer";
  showTexts();
  veil();
  buildQuestions();
  view("task");
  $("main").focus({ preventScroll: true });
  scrollTo(0, 0);
}

function showTexts() {
  fill("prompt", task.prompt);
  fill("left", task.left);
  if (task.right) fill("right", task.right);
}

function veil() {
  for (const id of ["left", "right"]) {
    $(id).classList.toggle("veiled", !shown);
    $(id).inert = !shown; // hidden from screen readers and the Tab key too
  }
  $("veil-note").hidden = !task.blurred;
  $("veil-hint").hidden = shown;
  $("reveal").firstChild.textContent = shown ? "Hide the text " : "Show the text ";
}

function buildQuestions() {
  $("questions").replaceChildren(...ASKED[task.kind].map(([name, before, strong, after, options, look], number) => {
    const buttons = options.map(([value, key, label]) => {
      const button = make("button", { type: "button", "aria-pressed": "false", "data-value": value }, label + " ", make("kbd", {}, key));
      button.addEventListener("click", () => choose(number, value));
      return button;
    });
    const legend = make("legend", {}, before, make("b", {}, strong), after);
    return make("fieldset", { class: "question " + look, "data-name": name }, legend, make("div", { class: "options" }, ...buttons));
  }));
  paint();
}

function paint() {
  const asked = ASKED[task.kind];
  $("questions").querySelectorAll("fieldset").forEach((fieldset, number) => {
    fieldset.classList.toggle("active", number === active && asked.length > 1);
    for (const button of fieldset.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(given[asked[number][0]] === button.dataset.value));
    }
  });
  const complete = asked.every(([name]) => name in given);
  $("submit").hidden = task.kind === "safety";
  $("submit").disabled = !complete;
}

// --- answering ----------------------------------------------------------------------------------------------------

function choose(number, value) {
  if (!shown) return toast("Show the text first (r), or skip it (x).");
  const asked = ASKED[task.kind];
  given[asked[number][0]] = value;
  const open = asked.findIndex(([name], place) => place > number && !(name in given));
  active = open >= 0 ? open : Math.min(number + 1, asked.length - 1);
  paint();
  if (task.kind === "safety") submit("label");
}

function submit(kind, reason = "") {
  const body = {
    lease: task.lease,
    kind,
    given: kind === "label" ? given : {},
    reason,
    ms_spent: Math.round(performance.now() - shownAt),
    revealed,
  };
  history.push(task.lease);
  $("undo").disabled = false;
  outbox.add(body);
  task = null;
  if (!next) empty("One moment", "The next question is on its way.");
  advance();
}

function refuse(kind) {
  pendingKind = kind;
  $("reasons-title").textContent = kind === "skip" ? "Skip: why?" : "Flag for the lead: why?";
  $("reasons").showModal();
}

async function advance() {
  if (next) showNext();
  else if (!(await inTurn(fetchFirst))) return refreshProgress();
  remindOfBreak();
  await outbox.send();
  await inTurn(fetchAhead);
  refreshProgress();
}

function showNext() {
  const ready = next;
  next = null;
  showTask(ready);
  return true;
}

// One request for a question at a time, or the server would hand out the same one twice.
function inTurn(fetching) {
  turn = turn.then(fetching, fetching);
  return turn;
}

async function fetchFirst() {
  if (task) return true;
  if (next) return showNext();
  await outbox.send();
  return fetchTask(showTask);
}

async function fetchAhead() {
  return !next && task ? fetchTask((fresh) => { next = fresh; }, true) : false;
}

// Gives the next question to `use`; says why there is none and asks again later. Returns whether there was one.
async function fetchTask(use, silent = false) {
  clearTimeout(waitTimer);
  const held = [task, next].filter(Boolean).map((one) => one.lease);
  const holding = [...held, ...outbox.waiting.map((entry) => entry.body.lease)].slice(0, 10);
  try {
    const answer = await call("POST", "/lease", { holding });
    if (answer.task) {
      use(answer.task);
      return true;
    }
    if (!silent) waitFor(answer.reason, answer.retry_s);
  } catch (problem) {
    if (problem instanceof ApiProblem && problem.status === 401) return signedOut();
    if (silent) return false;
    if (problem instanceof ApiProblem && problem.status === 429) empty("Enough for now", problem.message);
    else waitFor("network", 3);
  }
  return false;
}

function waitFor(reason, seconds) {
  const texts = {
    paused: ["Paused", "The lead has paused the work. This page goes on by itself."],
    none: ["All done for now", "There is nothing for you at the moment. New questions appear here by themselves."],
    network: ["No connection", "Your answers are kept. This page goes on by itself."],
  };
  empty(...(texts[reason] || texts.none));
  waitTimer = setTimeout(advance, seconds * 1000);
}

function empty(title, text) {
  $("empty-title").textContent = title;
  $("empty-text").textContent = text;
  view("empty");
}

function undo() {
  const lease = history.pop();
  $("undo").disabled = !history.length;
  return lease && inTurn(() => takeBack(lease));
}

// In turn: a question asked for meanwhile would be the one that is open again, and be shown twice.
async function takeBack(lease) {
  await outbox.send();
  try {
    const answer = await call("POST", `/leases/${lease}/undo`);
    if (task) next = task;
    clearTimeout(waitTimer);
    showTask(answer.task);
    toast("Taken back. Answer it again.");
    refreshProgress();
  } catch (problem) {
    history.push(lease);
    $("undo").disabled = false;
    toast(problem.message);
  }
}

async function refreshProgress() {
  try {
    const numbers = await call("GET", "/progress");
    $("progress").textContent = `${numbers.today} today · ${numbers.total} in all · up to ${numbers.daily_cap} a day`;
  } catch { /* the banner tells about a lost connection */ }
}

function remindOfBreak() {
  if (Date.now() - lastBreak > BREAK_MS) {
    lastBreak = Date.now();
    toast("Half an hour has passed. A short break is a good idea.");
  }
}

// --- keys ---------------------------------------------------------------------------------------------------------

const ACTIONS = {
  r: () => { shown = !shown; revealed ||= shown; $("toast").hidden = true; veil(); },
  c: () => submit("abstain"),
  x: () => refuse("skip"),
  f: () => refuse("flag"),
  t: () => {
    $("raw").setAttribute("aria-pressed", String($("raw").getAttribute("aria-pressed") !== "true"));
    showTexts();
  },
  b: () => {
    if (task.kind !== "pair") return;
    choose(2, "unsafe");
    if (shown) choose(3, "unsafe");
  },
  ArrowUp: () => { active = Math.max(active - 1, 0); paint(); },
  ArrowDown: () => { active = Math.min(active + 1, ASKED[task.kind].length - 1); paint(); },
  Enter: () => { if (task.kind === "pair" && !$("submit").disabled) submit("label"); },
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  if ($("reasons").open) {
    const button = $("reasons").querySelectorAll("[data-reason]")[Number(event.key) - 1];
    if (button) button.click();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  // Enter and space press the button that has the focus, as everywhere.
  if (event.key === "Enter" && event.target.matches("button, a")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key === "z") undo();
  else if (key === "g") showGuidelines();
  else if (key === "?") $("help").showModal();
  else if (task && !$("task").hidden) {
    const option = ASKED[task.kind][active][4].find(([, letter]) => letter === key);
    if (option) choose(active, option[0]);
    else if (ACTIONS[key]) ACTIONS[key]();
    else return;
  } else return;
  event.preventDefault();
}

async function showGuidelines() {
  try {
    $("guidelines-text").innerHTML = (await call("GET", "/guidelines")).html; // harmless, as above
    $("guidelines").showModal();
  } catch (problem) {
    toast(problem.message);
  }
}

// --- beginning and end --------------------------------------------------------------------------------------------

async function begin() {
  $("sign-out").hidden = false;
  $("lead-link").hidden = !["lead", "admin"].includes(me.role);
  outbox = new Outbox(me.id, {
    onReceipt: (receipt) => { if (receipt.outcome === "surplus" || receipt.late) toast(receipt.message); },
    onRefused: (problem) => toast(problem.message),
    onState: (waiting, problem) => {
      $("banner").hidden = !problem;
      if (problem?.status === 401) signedOut();
      $("banner").textContent = `No connection. ${waiting} answer${waiting === 1 ? " is" : "s are"} kept here and will be sent.`;
    },
  });
  refreshProgress();
  if (localStorage.getItem("pddpo-notice") === "read") {
    await outbox.send();
    advance();
  } else view("notice");
}

function signedOut() {
  view("sign-in");
  $("token").focus();
  return false;
}

$("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    me = await signIn($("token").value.trim());
    $("token").value = "";
    $("sign-in-error").textContent = "";
    begin();
  } catch (problem) {
    $("sign-in-error").textContent = problem instanceof ApiProblem ? problem.message : "No connection to the server.";
  }
});
$("begin").addEventListener("click", () => { localStorage.setItem("pddpo-notice", "read"); advance(); });
$("sign-out").addEventListener("click", async () => { await outbox.send(); await signOut(); location.reload(); });
$("reveal").addEventListener("click", ACTIONS.r);
$("submit").addEventListener("click", () => submit("label"));
$("abstain").addEventListener("click", ACTIONS.c);
$("skip").addEventListener("click", ACTIONS.x);
$("flag").addEventListener("click", ACTIONS.f);
$("raw").addEventListener("click", ACTIONS.t);
$("undo").addEventListener("click", undo);
$("guidelines-button").addEventListener("click", showGuidelines);
$("help-button").addEventListener("click", () => $("help").showModal());
$("reasons").addEventListener("click", (event) => {
  const reason = event.target.closest("[data-reason]")?.dataset.reason;
  if (!reason) return;
  $("reasons").close();
  submit(pendingKind, reason);
});
document.addEventListener("keydown", onKey);
setInterval(() => {
  for (const one of [task, next]) if (one) call("POST", `/leases/${one.lease}/heartbeat`).catch(() => {});
}, HEARTBEAT_MS);

whoAmI().then((found) => { me = found; begin(); }, signedOut);
