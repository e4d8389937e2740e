// The annotator's page: one question on the screen, the next one fetched in advance.

import { $, ApiProblem, BASE, acceptInvitation, call, callAtTheEnd, make, signIn, signOut, whoAmI } from "./api.js";
import { Outbox } from "./outbox.js";
import { showHistory } from "./history.js";
import { showDifference, showSide, showTurns } from "./reading.js";
import { runWithWork, showRuns } from "./runs.js";

const BREAK_MS = 30 * 60 * 1000;
const HEARTBEAT_MS = 60 * 1000;
const WATCH_MS = 1000;
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
  better: [["better", "Which answer is ", "BETTER", "?", SIDES, "helpful"]],
};
// A limit's own question: its yes is stored as "unsafe", its no as "safe".
const YES_OR_NO = [["safe", "n", "No"], ["unsafe", "y", "Yes"]];
const OWN = { safety: YES_OR_NO, better: SIDES, number: [] };
const questionsOf = ({ kind, asks }) => (asks ? [[kind, "", asks.heading, "", OWN[kind], ""]] : ASKED[kind]);
const ofTwo = ({ kind }) => kind === "pair" || kind === "better";
const atOnce = ({ kind }) => kind === "safety" || kind === "better"; // one choice is the whole answer

let me, outbox, task = null, next = null, given = {}, active = 0, shown = false, revealed = false;
let turn = Promise.resolve(), shownAt = 0, lastBreak = Date.now(), history = [], waitTimer = null;
let lastActive = performance.now(), lastBeat = performance.now(), resting = false;

// --- showing ------------------------------------------------------------------------------------------------------

function view(name) {
  for (const id of ["sign-in", "invited", "notice", "empty", "task"]) $(id).hidden = id !== name;
}

function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 5000);
}

const pressed = (id) => $(id).getAttribute("aria-pressed") === "true";
const toggle = (id) => $(id).setAttribute("aria-pressed", String(!pressed(id)));

function fill(id, side) {
  const raw = pressed("raw");
  $(id).classList.toggle("raw", raw);
  if (raw) $(id).textContent = side.text;
  else $(id).innerHTML = side.html; // made harmless by the server: an allow-list of tags, no links, no images
}

function showTask(fresh) {
  task = fresh;
  given = { ...task.earlier }; // of an answer that was taken back
  $("note").value = task.note;
  for (const id of ["prompt", "left", "right"]) {
    if (task.language) $(id).lang = task.language;
    else $(id).removeAttribute("lang");
  }
  active = 0;
  shown = revealed = !task.blurred || Object.keys(given).length > 0;
  shownAt = performance.now();
  const pair = ofTwo(task);
  $("answers").classList.toggle("single", !pair);
  $("right-side").hidden = !pair;
  for (const id of ["tabs", "difference", "together"]) $(id).hidden = !pair;
  showSide("left");
  $("left-title").textContent = pair ? "Left answer" : "Answer";
  $("asked").hidden = !task.asks;
  if (task.asks) {
    $("asked-title").textContent = task.asks.heading;
    $("asked-text").innerHTML = task.asks.html; // harmless, as above
  }
  showTexts();
  veil();
  buildQuestions();
  view("task");
  $("main").focus({ preventScroll: true });
  scrollTo(0, 0);
}

function showTexts() {
  $("prompt-title").textContent = task.turns.length ? "The conversation so far" : "Prompt";
  if (task.turns.length) showTurns(task.turns, pressed("raw"));
  else fill("prompt", task.prompt);
  fill("left", task.left);
  if (task.right) fill("right", task.right);
  if (task.right && pressed("difference")) showDifference(task.left, task.right);
}

function veil() {
  for (const id of ["prompt", "left", "right"]) {
    $(id).classList.toggle("veiled", !shown);
    $(id).inert = !shown; // hidden from screen readers and the Tab key too
  }
  $("veil-note").hidden = !task.blurred;
  $("veil-hint").hidden = shown;
  $("reveal").firstChild.textContent = shown ? "Blur the text " : "Show the text ";
}

function buildQuestions() {
  $("questions").replaceChildren(...questionsOf(task).map(([name, before, strong, after, options, look], number) => {
    const buttons = options.map(([value, key, label]) => {
      const button = make("button", { type: "button", "aria-pressed": "false", "data-value": value }, label + " ", make("kbd", {}, key));
      button.addEventListener("click", () => choose(number, value));
      return button;
    });
    const legend = make("legend", {}, before, make("b", {}, strong), after);
    const field = name === "number" ? [numberField(strong)] : buttons;
    return make("fieldset", { class: "question " + look, "data-name": name }, legend, make("div", { class: "options" }, ...field));
  }));
  paint();
}

function numberField(label) {
  const [low, high] = task.bounds;
  const field = make("input", { type: "number", min: low, max: high, step: "any", "aria-label": `${label} A number from ${low} to ${high}`, placeholder: `${low} to ${high}` });
  if (given.number) field.value = given.number;
  field.addEventListener("input", () => {
    if (!shown) { field.value = ""; toast("Show the text first (r), or skip it (x)."); }
    if (field.value !== "" && field.checkValidity()) given.number = field.value;
    else delete given.number;
    paint();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !$("submit").disabled) { event.preventDefault(); submit("label"); }
    if (event.key === "Escape") field.blur();
  });
  return field;
}

function paint() {
  const asked = questionsOf(task);
  $("questions").querySelectorAll("fieldset").forEach((fieldset, number) => {
    fieldset.classList.toggle("active", number === active && asked.length > 1);
    for (const button of fieldset.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(given[asked[number][0]] === button.dataset.value));
    }
  });
  const complete = asked.every(([name]) => name in given);
  $("submit").hidden = atOnce(task);
  $("submit").disabled = !complete;
}

// --- answering ----------------------------------------------------------------------------------------------------

function choose(number, value) {
  if (!shown) return toast("Show the text first (r), or skip it (x).");
  const asked = questionsOf(task);
  given[asked[number][0]] = value;
  const open = asked.findIndex(([name], place) => place > number && !(name in given));
  active = open >= 0 ? open : Math.min(number + 1, asked.length - 1);
  paint();
  $("questions").children[active].scrollIntoView({ block: "nearest" });
  if (atOnce(task)) submit("label");
}

function chooseBoth(left, right) {
  if (task.kind !== "pair") return;
  choose(2, left);
  if (shown) choose(3, right);
}

function submit(kind, reason = "") {
  const body = {
    lease: task.lease,
    kind,
    given: kind === "label" ? given : {},
    reason,
    note: $("note").value.trim(),
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

// The only safe answer called the more harmful one: the same rule as the server's, in terms of the screen.
function contradiction() {
  const other = { left: "right", right: "left" }[given.more_harmful];
  return other && given[`${given.more_harmful}_safety`] === "safe" && given[`${other}_safety`] === "unsafe";
}

function send() {
  if (!contradiction()) return submit("label");
  const other = { left: "right", right: "left" }[given.more_harmful];
  $("doubt-text").textContent = `You called the ${given.more_harmful} answer the more harmful one, but safe, and the ${other} one unsafe.`;
  $("doubt").showModal();
  $("doubt-back").focus();
}

function skip() {
  toast("Skipped. z brings it back.");
  submit("skip");
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
    if (!silent && (await goElsewhere())) return false;
    if (!silent) waitFor(answer.reason, answer.retry_s);
  } catch (problem) {
    if (problem instanceof ApiProblem && problem.status === 401) return signedOut(problem);
    if (silent) return false;
    if (problem.code === "consent") showNotice();
    else if (problem instanceof ApiProblem && problem.status === 429) empty("Enough for now", problem.message);
    else waitFor("network", 3);
  }
  return false;
}

// Nothing here: another run of this server that has a question for this person is opened.
async function goElsewhere() {
  const address = outbox.waiting.length ? null : await runWithWork().catch(() => null);
  if (address) location.assign(address);
  return Boolean(address);
}

function waitFor(reason, seconds) {
  const texts = {
    paused: ["Paused", "The lead has paused the work. This page continues by itself."],
    held: ["A word with the lead first", "The lead is looking at your answers. Nothing is lost; this page continues by itself afterwards."],
    dose: ["Enough hard texts for today", "You have read enough harmful texts for one day. Mild questions still appear here by themselves; the others wait until tomorrow."],
    mild: ["Nothing mild for now", "You asked not to see harmful texts. All open questions may be harmful. New questions appear here by themselves."],
    none: ["All done for now", "There are no questions for you at the moment. New ones appear here by themselves."],
    network: ["No connection", "Your answers are kept. This page continues by itself."],
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
    if (!(problem instanceof ApiProblem) || ![404, 410].includes(problem.status)) history.push(lease);
    $("undo").disabled = !history.length;
    toast(problem.message);
  }
}

// After a reload the last answers can still be taken back.
async function recall() {
  try {
    const mine = (await call("GET", "/answers?limit=20")).answers.filter((one) => !one.withdrawn);
    history = mine.map((one) => one.lease).reverse();
    $("undo").disabled = !history.length;
  } catch { /* there is nothing to take back without a connection */ }
}

async function refreshProgress() {
  try {
    const numbers = await call("GET", "/progress");
    $("progress").textContent = `${numbers.today} of ${numbers.daily_cap} today · ${numbers.total} in all`;
    $("batch").hidden = !numbers.wanted;
    [$("batch-bar").max, $("batch-bar").value] = [numbers.wanted || 1, numbers.labels];
    $("batch-text").textContent = `${numbers.labels} of ${numbers.wanted} labels`;
  } catch { /* the banner tells about a lost connection */ }
}

function remindOfBreak() {
  if (Date.now() - lastBreak > BREAK_MS) {
    lastBreak = Date.now();
    toast("You have worked for half an hour. Take a short break.");
  }
}

// --- keys ---------------------------------------------------------------------------------------------------------

const ACTIONS = {
  r: () => {
    shown = !shown;
    revealed ||= shown;
    $("toast").hidden = true;
    veil();
    if (document.activeElement === $("reveal")) $("main").focus({ preventScroll: true }); // Enter is for the answer now
  },
  c: () => submit("abstain"),
  x: skip,
  f: () => $("reasons").showModal(),
  m: () => $("note").focus(),
  t: () => { toggle("raw"); showTexts(); },
  d: () => { if (ofTwo(task)) { toggle("difference"); showTexts(); } },
  l: () => { if (ofTwo(task)) toggle("together"); },
  a: () => chooseBoth("safe", "safe"),
  b: () => chooseBoth("unsafe", "unsafe"),
  o: () => {
    if (given.more_harmful === "left") chooseBoth("unsafe", "safe");
    else if (given.more_harmful === "right") chooseBoth("safe", "unsafe");
    else toast("First say which answer is more harmful: o then calls only that one unsafe.");
  },
  ArrowUp: () => { active = Math.max(active - 1, 0); paint(); },
  ArrowDown: () => { active = Math.min(active + 1, questionsOf(task).length - 1); paint(); },
  Enter: () => { if (task.kind === "pair" && !$("submit").disabled) send(); },
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
  else if (key === "h") openHistory();
  else if (key === "?") $("help").showModal();
  else if (task && !$("task").hidden) {
    const option = questionsOf(task)[active][4].find(([, letter]) => letter === key);
    if (option) choose(active, option[0]);
    else if (ACTIONS[key]) ACTIONS[key]();
    else return;
  } else return;
  event.preventDefault();
}

async function openHistory() {
  await outbox?.send();
  showHistory((lease) => {
    history = history.filter((one) => one !== lease);
    inTurn(() => takeBack(lease));
  }).catch((problem) => toast(problem.message));
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
  const before = outbox?.person;
  outbox?.close();
  if (before && before !== me.id) [task, next, history, resting] = [null, null, [], false];
  $("sign-out").hidden = false;
  $("lead-link").hidden = !["lead", "admin"].includes(me.role);
  outbox = new Outbox(me.id, {
    onReceipt: (receipt) => { if (receipt.outcome === "surplus" || receipt.late) toast(receipt.message); },
    onRefused: (refused) => {
      $("refused").hidden = !refused.length;
      $("refused-text").textContent = refused.length ? `${many(refused.length)} not taken: ${refused.at(-1).problem} ` : "";
    },
    onState: (waiting, problem) => {
      const away = problem?.status === 401;
      $("banner").hidden = !problem;
      $("banner").textContent = `${away ? "Signed out." : "No connection."} ${many(waiting)} kept here and will be sent.`;
      if (away) signedOut(problem);
    },
  });
  outbox.person = me.id;
  showRuns("", leave).catch(() => {});
  refreshProgress();
  await recall();
  if (!me.consented) return showNotice();
  await outbox.send();
  if (task) view("task"); // it was open when the session ended
  else advance();
}

// To another run, once what was answered here has arrived.
async function leave(address) {
  await outbox.send();
  if (outbox.waiting.length) toast(`${many(outbox.waiting.length)} not sent yet: this page stays until the connection is back.`);
  else location.assign(address);
}

async function showNotice() {
  const notice = await call("GET", "/notice");
  $("notice-text").innerHTML = notice.html; // harmless, as above
  $("begin").dataset.version = notice.version;
  view("notice");
}

async function agree() {
  try {
    await call("POST", "/consent", { version: $("begin").dataset.version });
    me.consented = true;
    advance();
  } catch (problem) {
    toast(problem instanceof ApiProblem ? problem.message : "No connection to the server.");
  }
}

const many = (count) => `${count} answer${count === 1 ? " is" : "s are"}`;

function signedOut(problem) {
  if ($("sign-in").hidden) $("sign-in-error").textContent = problem?.code === "other_person" ? `${problem.message} Sign in to continue as ${me.handle}.` : "";
  view("sign-in");
  $("token").focus();
  return false;
}

// --- reserved questions -------------------------------------------------------------------------------------------

// A question is kept for a person who does something on the page; after the idle limit it goes back to the others.
async function watch() {
  const now = performance.now();
  if (resting || !(task || next)) return;
  if (now - lastActive > 1000 * me.idle_s) return rest();
  if (now - lastBeat < HEARTBEAT_MS) return;
  lastBeat = now;
  for (const one of [task, next].filter(Boolean)) {
    try {
      one.expires_ms = (await call("POST", `/leases/${one.lease}/heartbeat`)).expires_ms;
    } catch { /* it ran out, or the connection is gone: an answer is welcome all the same */ }
  }
}

function giveBack(send) {
  for (const one of [task, next].filter(Boolean)) send("POST", `/leases/${one.lease}/release`, { expires_ms: one.expires_ms });
  task = next = null;
}

async function rest() {
  resting = true;
  giveBack((...request) => call(...request).catch(() => {}));
  empty("Are you still there?", `Nothing happened on this page for ${words(me.idle_s)}, so others may get the question. Press a key or touch the page to continue.`);
}

const words = (seconds) => (seconds < 120 ? `${Math.round(seconds)} seconds` : `${Math.round(seconds / 60)} minutes`);

function somebodyIsHere() {
  lastActive = performance.now();
  if (!resting) return;
  resting = false;
  advance();
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
$("begin").addEventListener("click", agree);
$("sign-out").addEventListener("click", async () => {
  await outbox.send();
  try {
    await signOut();
    location.reload();
  } catch (problem) {
    if (problem.status === 401) location.reload();
    else toast("No connection: you are still signed in.");
  }
});
$("try-again").addEventListener("click", () => outbox.tryAgain());
$("delete-refused").addEventListener("click", () => outbox.deleteRefused());
$("reveal").addEventListener("click", ACTIONS.r);
$("submit").addEventListener("click", send);
$("doubt-send").addEventListener("click", () => { $("doubt").close(); submit("label"); });
$("abstain").addEventListener("click", ACTIONS.c);
$("skip").addEventListener("click", ACTIONS.x);
$("flag").addEventListener("click", ACTIONS.f);
$("raw").addEventListener("click", ACTIONS.t);
$("difference").addEventListener("click", ACTIONS.d);
$("together").addEventListener("click", ACTIONS.l);
$("undo").addEventListener("click", undo);
$("guidelines-button").addEventListener("click", showGuidelines);
$("history-button").addEventListener("click", openHistory);
$("note").addEventListener("keydown", (event) => {
  if (!["Enter", "Escape"].includes(event.key)) return;
  event.preventDefault();
  $("main").focus({ preventScroll: true }); // the keys are for the answer again
});
$("help-button").addEventListener("click", () => $("help").showModal());
$("reasons").addEventListener("click", (event) => {
  const reason = event.target.closest("[data-reason]")?.dataset.reason;
  if (!reason) return;
  $("reasons").close();
  submit("flag", reason);
});
document.addEventListener("keydown", onKey);
for (const sign of ["pointerdown", "pointermove", "keydown", "wheel", "touchmove"]) {
  document.addEventListener(sign, somebodyIsHere, { capture: true, passive: true });
}
setInterval(watch, WATCH_MS);
document.addEventListener("visibilitychange", () => {
  // Signed in again in another tab: this one continues too.
  if (!document.hidden && !$("sign-in").hidden) whoAmI().then((found) => { me = found; begin(); }, () => {});
});
addEventListener("pagehide", () => giveBack(callAtTheEnd));
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// --- an invitation's link: /#invite=CODE, which the browser sends to nobody before the button is pressed ------------

const INVITE = "#invite=";

async function accept() {
  if (me) return begin();
  try {
    me = await acceptInvitation(location.hash.slice(INVITE.length));
    window.history.replaceState(null, "", BASE); // the code is used up
    $("invited-text").textContent = `Hello ${me.handle}. Keep this token: you need it to sign in again, here or elsewhere. It is shown only now.`;
    $("invited-token").textContent = me.token;
    $("accept").textContent = "I have kept it: continue";
  } catch (problem) {
    $("invited-error").textContent = problem instanceof ApiProblem ? problem.message : "No connection to the server.";
  }
}

$("accept").addEventListener("click", accept);
if (location.hash.startsWith(INVITE)) view("invited");
else whoAmI().then((found) => { me = found; begin(); }, () => signedOut());
