// Versions of the guidelines on the lead's page: who wrote which, when, and the text of any, as Markdown.

import { $, call, make, row } from "./api.js";
import { place } from "./place.js";
import { refused } from "./problem.js";

function line(one, newest) {
  const show = make("button", { type: "button", "aria-label": `Show version ${one.version}` }, "Show");
  show.addEventListener("click", () => showVersion(one).catch((problem) => refused(problem.message)));
  return row(one.version === newest ? `${one.version} (read now)` : String(one.version), one.by ?? "comes with the package",
    one.at_ms === null ? "–" : new Date(one.at_ms).toLocaleString(), String(one.answers), show);
}

async function showVersion(one) {
  $("version-title").textContent = `Guidelines, version ${one.version}`;
  $("version-text").textContent = (await call("GET", `/guidelines/versions/${one.version}`)).markdown;
  $("version").showModal();
}

export async function showVersions() {
  const { versions } = await call("GET", "/guidelines/versions");
  place($("versions"), ...versions.map((one) => line(one, versions[0].version)));
}

$("version-back").addEventListener("click", () => $("version").close());
