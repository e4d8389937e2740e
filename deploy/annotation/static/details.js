// Lists of questions on the lead's page: each opens to its texts, and stays open, with what is written in it, when the list is read again.

import { $, make } from "./api.js";
import { drafts, restore } from "./drafts.js";
import { place } from "./place.js";

export const spoken = (given) => Object.entries(given).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");

// The texts of one question, below a line that says what there is to say about it.
export function openable(name, one, summary, ...below) {
  const texts = [["Prompt", one.prompt], ["First", one.first], ["Second", one.second]].filter(([, text]) => text !== null)
    .map(([title, text]) => make("div", {}, make("strong", {}, title), make("pre", { dir: "auto" }, text)));
  return make("details", { "data-name": name }, make("summary", {}, summary), make("div", { class: "pair-texts" }, ...texts), ...below);
}

export function showDetails(id, details, nothing) {
  if ($(id).contains(document.activeElement?.closest("input, select"))) return; // somebody types
  const open = new Set([...$(id).querySelectorAll("details[open]")].map((one) => one.dataset.name));
  const written = drafts($(id));
  for (const one of details) one.open = open.has(one.dataset.name);
  place($(id), ...details);
  restore($(id), written);
  if (!details.length) $(id).append(make("p", { class: "muted" }, nothing));
}
