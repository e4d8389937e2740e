// The labels of a batch one by one, and how a lead takes one out of the count: with a reason, until the run has used it.

import { $, call, make } from "./api.js";
import { openable, showDetails, spoken } from "./details.js";
import { sent } from "./drafts.js";

const PAGE = 20;
let offset = 0, batch = null, again = null;

export function voidButton(label, act) {
  const reason = make("input", { "aria-label": `Why the answer of ${label.handle} should not count`, placeholder: "why", maxlength: 500, class: "why" });
  const take = make("button", { type: "button" }, "Take out");
  take.addEventListener("click", () => act(async () => {
    await call("POST", `/answers/${label.key}/void`, { reason: reason.value.trim() });
    sent(reason);
  }));
  return [reason, " ", take];
}

function below(label, act) {
  const saw = `${new Date(label.at_ms).toLocaleString()}, guidelines version ${label.guideline}${label.note && `: ${label.note}`}`;
  const can = label.state === "taken out" ? [`Taken out by ${label.by}: ${label.reason}`] : label.state === "taken back" ? ["Its author took it back."]
    : label.fixed ? [`It cannot be taken out: ${label.fixed}.`] : voidButton(label, act);
  return [make("p", { class: "muted" }, saw), make("div", { class: "actions" }, ...can)];
}

function choices(people) {
  const chosen = $("labels-of").value;
  $("labels-of").replaceChildren(make("option", { value: "" }, "all people"), ...people.map((one) => make("option", { value: one.id }, one.handle)));
  $("labels-of").value = people.some((one) => one.id === chosen) ? chosen : "";
}

// What is asked for: the page of labels that is open, of the person who is chosen; of another batch, from its beginning.
export function labelsOf(round) {
  if (round !== batch) {
    [batch, offset] = [round, 0];
    $("labels-of").value = "";
  }
  const of = $("labels-of").value;
  return `/rounds/${round}/labels?offset=${offset}&limit=${PAGE}${of && `&person=${of}`}`;
}

export function showLabels({ labels, people, next }, act) {
  again = act;
  if (document.activeElement !== $("labels-of")) choices(people);
  showDetails("labels", labels.map((one) => openable(one.key, one,
    `${one.handle}: ${spoken(one.given)}${one.state === "counts" ? "" : ` (${one.state})`}: ${one.prompt.slice(0, 80)}`, ...below(one, act))), "No labels here.");
  $("labels-newer").disabled = !offset;
  $("labels-older").disabled = next === null;
}

function turn(to) {
  offset = to;
  again?.(() => {}); // everything is read again
}

$("labels-of").addEventListener("change", () => turn(0));
$("labels-newer").addEventListener("click", () => turn(Math.max(offset - PAGE, 0)));
$("labels-older").addEventListener("click", () => turn(offset + PAGE));
