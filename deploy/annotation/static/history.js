// One's own answers, the newest first; one that is not old is changed by taking it back.

import { $, call, make } from "./api.js";

const KINDS = { abstain: "can't tell", skip: "skipped", flag: "flagged" };

function item(one, change) {
  const said = one.kind === "label" ? Object.entries(one.given).map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`).join(", ") : KINDS[one.kind];
  const row = make("li", {}, make("span", { class: "muted" }, new Date(one.at_ms).toLocaleTimeString()), " ", make("span", { dir: "auto" }, one.prompt.slice(0, 100)),
    make("div", {}, make("b", {}, said), one.note ? ` (${one.note})` : "", make("span", { class: "muted" }, ` guidelines version ${one.guideline}`)));
  if (one.changeable) {
    const button = make("button", { type: "button", "aria-label": `Change the answer to: ${one.prompt.slice(0, 60)}` }, "Change");
    button.addEventListener("click", () => { $("history").close(); change(one.lease); });
    row.append(button);
  }
  return row;
}

export async function showHistory(change) {
  const { answers } = await call("GET", "/history");
  $("history-list").replaceChildren(...answers.map((one) => item(one, change)));
  if (!answers.length) $("history-list").append(make("li", {}, "Nothing yet."));
  $("history").showModal();
}
