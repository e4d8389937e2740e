// One server may have several runs, each under a path of its own; a person signs in once for all of them.

import { $, BASE, call, make } from "./api.js";

const baseOf = (name) => new URL(`../${name}/`, location.origin + BASE).pathname;

let several = false;

// Links to the runs, where there are several; `page` is "" or "lead". `leave`, if given, is called with the address.
export async function showRuns(page, leave) {
  const { runs } = await call("GET", "/runs");
  several = runs.length > 1;
  $("runs").hidden = !several;
  $("runs").replaceChildren(...runs.map(({ name, here }) => {
    const link = make("a", { href: baseOf(name) + page, ...(here ? { "aria-current": "page" } : {}) }, name);
    if (leave) link.addEventListener("click", (event) => { event.preventDefault(); if (!here) leave(link.pathname); });
    return link;
  }));
}

// The address of another run that has a question for this person; it is reserved there until its page asks for it.
export async function runWithWork() {
  if (!several) return null;
  const { runs } = await call("GET", "/runs");
  for (const { name } of runs.filter((one) => !one.here)) {
    const base = baseOf(name);
    const me = await fetch(`${base}api/v1/me`);
    if (!me.ok) continue;
    const headers = { "Content-Type": "application/json", "X-CSRF-Token": (await me.json()).csrf };
    const reply = await fetch(`${base}api/v1/lease`, { method: "POST", headers, body: "{}" });
    if (reply.ok && (await reply.json()).task) return base;
  }
  return null;
}
