// The admin's part of the lead's page: accounts, control questions, guidelines. Nothing here is parsed as HTML.

import { $, BASE, call, make, named, row } from "./api.js";
import { isUnsent, sent, shown } from "./drafts.js";
import { showVersions } from "./guidelines.js";
import { headed, place } from "./place.js";
import { refused } from "./problem.js";
import { readings } from "./readings.js";

function button(words, doing) {
  const one = make("button", { type: "button" }, words);
  one.addEventListener("click", () => act(doing));
  return one;
}

const accounts = readings();

// Also after a refusal everything shown is as it is on the server.
async function act(doing) {
  let said = await accounts.change(doing);
  await refreshAdmin().catch((problem) => { said ||= problem.message; });
  refused(said);
}

function token(handle, made) {
  $("new-token").textContent = `${handle} signs in with this token, which is shown only now: ${made}`;
}

const ROLES = ["annotator", "lead", "admin"];

function account(one) {
  const change = (values) => call("PATCH", `/people/${one.id}`, values);
  const buttons = make("span", { class: "actions" },
    button(one.active ? "Pause" : "Resume", () => change({ active: !one.active })),
    button(one.sees_harmful ? "Mild texts only" : "All texts", () => change({ sees_harmful: !one.sees_harmful })),
    button("Data", () => { location.href = `${BASE}api/v1/people/${one.id}/data`; }), // a download: the page stays
    button("Erase", () => askToErase(one)),
    button("New token", async () => token(one.handle, (await call("POST", `/people/${one.id}/token`)).token)));
  const sends = (field, values) => {
    field.addEventListener("change", () => {
      sent(field);
      act(() => change(values(field.value)));
    });
    return field;
  };
  const typed = (words, value, attributes, values) =>
    sends(shown(make("input", { class: "short", "aria-label": `${words} of ${one.handle}`, ...attributes }), value), values);
  const dose = typed("Unsafe answers a day", one.harmful_cap, { type: "number", min: 0, max: 100000 }, (value) => ({ harmful_cap: Number(value) }));
  const spoken = typed("Languages", one.languages.join(" "), { placeholder: "all" }, (value) => ({ languages: codes(value) }));
  const cap = typed("Answers a day", one.daily_cap, { type: "number", min: 1, max: 100000 }, (value) => ({ daily_cap: Number(value) }));
  const pay = typed("Pay per hour", one.hourly_rate ?? "", { type: "number", min: 0, max: 1000000, step: 0.01, placeholder: "none" },
    (value) => ({ hourly_rate: value === "" ? null : Number(value) }));
  const roles = make("select", { "aria-label": `Role of ${one.handle}` }, ...ROLES.map((name) => make("option", {}, name)));
  const role = sends(shown(roles, one.role), (value) => ({ role: value }));
  return named(one.id, row(one.handle, role, cap, dose, pay, spoken, one.sees_harmful ? "yes" : "no", one.active ? "active" : "paused", buttons));
}

// What names a person cannot come back: the name is typed again before anything is erased.
function askToErase(one) {
  $("erase").dataset.person = one.id;
  $("erase").dataset.handle = one.handle;
  $("erase-title").textContent = `Erase what names ${one.handle}?`;
  for (const id of ["erase-name", "erase-reason"]) $(id).value = "";
  $("erase-problem").textContent = "";
  $("erase").showModal();
}

async function eraseNow() {
  const { person, handle } = $("erase").dataset;
  if ($("erase-name").value.trim() !== handle) throw new Error(`Type the name as it is shown: ${handle}`);
  const done = await call("POST", `/people/${person}/erase`, { reason: $("erase-reason").value.trim() });
  $("erase").close();
  const mentions = done.mentions.length ? ` Reasons in the audit log that hold the name stay: entries ${done.mentions.join(", ")}.` : "";
  $("new-token").textContent = `${done.answers} answers stay, under ${done.name}; ${done.notes} comments are gone.${mentions}`;
  await refreshAdmin();
}

const known = (gold) => Object.entries(gold).map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`).join(", ");

function control(one) {
  const change = one.retired ? "" : button(one.answered ? "Retire" : "Delete", () => call("DELETE", `/gold/${one.id}`));
  return named(one.id, row(one.prompt.slice(0, 60), known(one.gold), one.answered ? `${one.right} / ${one.answered}` : "–", one.retired ? "retired" : "asked", change));
}

const codes = (text) => text.split(/[\s,]+/).filter(Boolean);
const invited = () => ({
  handle: $("handle").value.trim(), role: $("role").value, sees_harmful: $("new-harmful").checked, languages: codes($("new-languages").value),
  daily_cap: Number($("new-cap").value), harmful_cap: Number($("new-dose").value),
});

// The code's modules as one path: white around it in either colour scheme, or cameras do not read it.
function square({ side, path }, words) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${side} ${side}`, class: "qr", role: "img", "aria-label": words })) svg.setAttribute(name, value);
  const dark = document.createElementNS("http://www.w3.org/2000/svg", "path");
  dark.setAttribute("d", path);
  svg.append(dark);
  return svg;
}

function invitation(one) {
  return make("p", { class: "muted" }, `${one.handle} (${one.role}) is invited until ${new Date(one.expires_ms).toLocaleString()}`);
}

export async function refreshAdmin() {
  const isNewest = accounts.begin();
  const [{ invitations }, { people }, { gold }] = await Promise.all(["/invitations", "/people", "/gold"].map((path) => call("GET", path)));
  if (!isNewest()) return;
  $("invitations").replaceChildren(...invitations.map(invitation));
  showAccounts(people.filter((one) => one.role !== "service"));
  place($("gold"), ...gold.map(control));
}

// Fields stay the ones that they are: another in its place would take away what is typed and what is selected.
function showAccounts(people) {
  const rows = $("accounts").rows, before = new Map([...rows].map((one) => [one.dataset.name, one]));
  const now = people.map((one) => renewed(before.get(String(one.id)), account(one)));
  for (const one of [...rows]) if (!now.includes(one)) one.remove();
  now.forEach((one, n) => { if (rows[n] !== one) $("accounts").insertBefore(one, rows[n] ?? null); });
  headed($("accounts"));
}

function renewed(line, fresh) {
  if (!line) return fresh;
  [...line.cells].forEach((cell, n) => {
    const [field, read] = [cell, fresh.cells[n]].map((one) => one.querySelector("input, select"));
    if (!field) return place(cell, ...fresh.cells[n].childNodes);
    field.setAttribute("aria-label", read.getAttribute("aria-label")); // an erased person has another name
    if (!isUnsent(field) && field.value !== read.value) shown(field, read.value);
  });
  return line;
}

// A file is looked at first: the server says of every line what an import does with it. Then the good ones are added.
const FATES = { refused: "is refused", there: "stays as it is", added: "is added" }; // in this order
let lines = [], good = [];

async function checkGold() {
  lines = (await $("gold-file").files[0].text()).trimEnd().split("\n");
  const found = await call("POST", "/gold/preview", { lines });
  good = found.rows.filter((one) => one.fate === "added").map((one) => lines[one.line - 1]);
  place($("gold-lines"), ...Object.keys(FATES).flatMap((fate) => found.rows.filter((one) => one.fate === fate).map(lineOf)));
  $("gold-said").textContent = `${found.added} would be added, ${found.there} are there already, ${found.refused} are refused`;
  $("gold-add").textContent = `Add ${found.added} control question${found.added === 1 ? "" : "s"}`;
  $("gold-add").disabled = !found.added;
  $("gold-preview").hidden = false;
}

function lineOf(one) {
  const fate = make("span", { class: one.fate === "refused" ? "flagged" : "" }, FATES[one.fate]);
  const line = row(String(one.line), one.prompt.slice(0, 60), one.gold ? known(one.gold) : "–", make("span", {}, fate, one.why && `: ${one.why}`));
  for (const cell of [line.children[1], line.children[3]]) cell.className = "note";
  return line;
}

async function addGold() {
  const { added } = await call("POST", "/gold", { questions: good.map((line) => JSON.parse(line)) });
  hidePreview();
  $("gold-import").reset();
  $("gold-said").textContent = `${added} control question${added === 1 ? "" : "s"} added`;
}

function hidePreview() {
  $("gold-preview").hidden = true;
  $("gold-said").textContent = "";
}

function onSubmit(form, doing) {
  $(form).addEventListener("submit", (event) => {
    event.preventDefault();
    act(doing);
  });
}

export async function showAdmin() {
  for (const panel of document.querySelectorAll("[data-admin]")) panel.hidden = false;
  onSubmit("invite", async () => {
    const { handle, link, qr } = await call("POST", "/invitations", { ...invited(), page: location.origin + BASE });
    $("new-token").textContent = `Send ${handle} this link. It works once, for seven days: ${link}`;
    $("new-qr").replaceChildren(square(qr, `QR code of the link for ${handle}`));
    $("handle").value = "";
  });
  $("make-token").addEventListener("click", () => $("invite").reportValidity() && act(async () => {
    const person = invited();
    token(person.handle, (await call("POST", "/people", person)).token);
    $("new-qr").replaceChildren();
    $("handle").value = "";
  }));
  $("erase-back").addEventListener("click", () => $("erase").close());
  $("erase-form").addEventListener("submit", (event) => {
    event.preventDefault();
    eraseNow().catch((problem) => { $("erase-problem").textContent = problem.message; });
  });
  onSubmit("gold-import", checkGold);
  $("gold-file").addEventListener("change", hidePreview); // what is shown is of another file
  $("gold-add").addEventListener("click", () => act(addGold));
  $("gold-back").addEventListener("click", hidePreview);
  onSubmit("guidelines-form", async () => {
    const { version } = await call("PUT", "/guidelines", { markdown: $("guidelines-markdown").value });
    $("guidelines-said").textContent = `version ${version} is what people read now`;
    await showVersions();
  });
  $("guidelines-markdown").value = (await call("GET", "/guidelines")).markdown;
  await refreshAdmin();
}
