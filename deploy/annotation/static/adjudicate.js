// A lead's word about a pair on which people differ: it is trained on in place of the first label.

import { call, make } from "./api.js";
import { spoken } from "./details.js";
import { sent, shown } from "./drafts.js";

const SIDES = ["first", "second", "tie"], SAFETY = ["safe", "unsafe"];
const ASKED = { more_helpful: SIDES, more_harmful: SIDES, first_safety: SAFETY, second_safety: SAFETY };

// What belongs below the votes of one question; nothing for a question about safety.
export function adjudication(one, act) {
  if (one.second === null) return [];
  const said = one.adjudicated ? [make("p", {}, `Decided by ${one.adjudicated.by}: ${spoken(one.adjudicated.given)} ${one.adjudicated.reason}`)] : [];
  const selects = Object.entries(ASKED).map(([name, values]) => {
    const select = make("select", { name, "aria-label": name.replaceAll("_", " ") }, ...values.map((value) => make("option", {}, value)));
    shown(select, (one.adjudicated?.given || one.votes[0].given)[name]);
    return make("label", {}, `${name.replaceAll("_", " ")} `, select);
  });
  const reason = make("input", { "aria-label": "Reason for this decision", placeholder: "why", maxlength: 500, class: "why" });
  const form = make("form", { class: "actions" }, ...selects, reason, make("button", {}, "Decide"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...form.querySelectorAll("select")].map((select) => [select.name, select.value]));
    document.activeElement?.blur();
    act(async () => {
      await call("POST", `/questions/${one.task}/adjudicate`, { given, reason: reason.value.trim() });
      sent(...form.querySelectorAll("input, select"));
    });
  });
  return [...said, form];
}
