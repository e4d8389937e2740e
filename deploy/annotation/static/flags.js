// What a lead does about a flagged person: the flags with their evidence, and a choice with its reason.

import { $, call, make } from "./api.js";

const WORDS = { agreement: "agrees too rarely", controls: "misses control questions", side: "one side", speed: "too fast to have read" };
const MEANS = {
  "hold-back": ["Hold back", "They get no questions, and no further answer counts until you let them continue. Labels that count now still count."],
  "ask-again": ["Ask others again", "Their labels in open batches are taken out of the count, and others are asked. They keep working."],
  "exclude": ["Exclude from now on", "Their account is closed and they are signed out. Labels that count now still count."],
  "go-on": ["Let them continue", "They get questions again; answers of theirs that waited count where a label is still needed."],
};
let person = null, chosen = null, done = null;

// The cell of one person in the table of people.
export function flagCell(one, after) {
  const cell = make("span", {});
  for (const flag of one.flags) cell.append(make("span", { class: "flagged", title: flag.evidence }, WORDS[flag.name]), make("span", { class: "muted evidence" }, ` ${flag.evidence} `));
  if (one.decided) cell.append(make("span", { class: "muted" }, `${MEANS[one.decided.decision][0]} (${one.decided.by}: ${one.decided.reason}) `));
  if (one.active === false && !one.flags.length) return cell;
  const choices = [...(one.flags.length && one.active ? ["hold-back", "ask-again", "exclude"] : []), ...(one.held ? ["go-on"] : [])];
  if (choices.length) {
    const button = make("button", { type: "button", "aria-label": `Decide about ${one.handle}` }, "Decide");
    button.addEventListener("click", () => ask(one, choices.filter((name) => name !== "hold-back" || !one.held), after));
    cell.append(button);
  }
  return cell;
}

function ask(one, choices, after) {
  [person, chosen, done] = [one, null, after];
  $("judge-title").textContent = `What about ${one.handle}?`;
  $("judge-evidence").replaceChildren(...one.flags.map((flag) => make("li", {}, `${WORDS[flag.name]}: ${flag.evidence}`)));
  $("judge-choices").replaceChildren(...choices.map((name) => {
    const option = make("input", { type: "radio", name: "judge", id: `judge-${name}`, value: name });
    option.addEventListener("change", () => { chosen = name; });
    return make("p", {}, option, " ", make("label", { for: `judge-${name}` }, make("b", {}, MEANS[name][0]), ` ${MEANS[name][1]}`));
  }));
  $("judge-reason").value = "";
  $("judge-problem").textContent = "";
  $("judge").showModal();
}

$("judge-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!chosen) { $("judge-problem").textContent = "Choose one of them."; return; }
  const evidence = person.flags.map((flag) => `${flag.name}: ${flag.evidence}`).join("; ");
  try {
    await call("POST", `/people/${person.id}/flags`, { decision: chosen, reason: $("judge-reason").value.trim(), evidence });
    $("judge").close();
    done();
  } catch (problem) {
    $("judge-problem").textContent = problem.message;
  }
});
$("judge-back").addEventListener("click", () => $("judge").close());
