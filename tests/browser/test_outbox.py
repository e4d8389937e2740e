"""Random histories of the outbox: an answer goes only when the server has it, or when its author deletes it."""

from __future__ import annotations

import pytest

from tests.browser.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.full]

WALKS = """
async (walks) => {
  const { Outbox } = await import("/static/outbox.js");
  const api = await import("/static/api.js");
  const [send, later, seen, broken] = [window.fetch, window.setTimeout, {}, []];
  window.setTimeout = () => 0; // what is sent again is a step of the history
  let seed = 1, world, outbox;
  const random = (below) => { seed = (seed * 48271) % 2147483647; return seed % below; };
  const saw = (what) => { seen[what] = (seen[what] || 0) + 1; };
  const reply = (status, body) => ({ ok: status < 300, status, json: async () => body });

  window.fetch = async (path, { method, headers, body }) => {
    if (world.net === "offline") throw new TypeError("offline");
    if (world.net === "down") return { ok: false, status: 502, json: async () => JSON.parse("<h1>") };
    if (world.net === "busy") return reply(503, { detail: "busy" });
    if (path.endsWith("/session")) {
      world.session = { id: JSON.parse(body).token, handle: "x", csrf: String(++world.tokens) };
      return reply(200, world.session);
    }
    if (!world.session) return reply(401, { code: "unauthorized" });
    if (path.endsWith("/me")) return reply(200, world.session);
    if (headers["X-CSRF-Token"] !== world.session.csrf) return reply(403, { code: "forbidden" });
    const key = path.split("/").at(-1);
    const { lease } = JSON.parse(body);
    if (world.refused.has(lease)) {
      saw("refused");
      world.once.add(lease);
      return reply(410, { detail: "withdrawn" });
    }
    const before = world.stored.get(key);
    if (before && before.body !== body) broken.push(`${key} came with two answers`);
    world.stored.set(key, { body, by: world.session.id });
    if (random(6) === 0) { saw("reply lost"); throw new TypeError("the reply is lost"); }
    return reply(before ? 200 : 201, { outcome: "counted" });
  };

  const open = async (how) => {
    outbox?.close();
    outbox = new Outbox("ana", { onReceipt: () => {}, onRefused: () => {}, onState: () => saw("kept") });
    saw(how);
  };
  const signIn = async () => { await api.signIn("ana").then(() => open("signed in"), () => saw("no sign-in")); };
  const STEPS = {
    answers: async () => {
      const lease = `l${world.leases++}`;
      if (random(5) === 0) world.refused.add(lease);
      outbox.add({ lease, given: { safety: "safe" } });
    },
    offline: async () => { world.net = "offline"; },
    down: async () => { world.net = "down"; },
    busy: async () => { world.net = "busy"; },
    reached: async () => { world.net = "up"; },
    expires: async () => { world.session = null; },
    "another tab": async () => { world.session = { id: "ana", handle: "ana", csrf: String(++world.tokens) }; },
    "another person": async () => { world.session = { id: "ben", handle: "ben", csrf: String(++world.tokens) }; },
    "signs in": signIn,
    reloads: async () => { // for another person the page begins with an outbox of theirs
      if (world.session?.id === "ben") return;
      await api.whoAmI().catch(() => {});
      await open("reloaded");
    },
    "tries again": async () => { saw("tried again"); await outbox.tryAgain(); },
    "takes questions back up": async () => { world.refused.clear(); },
    deletes: async () => {
      for (const one of outbox.refused) { world.deleted.add(one.key); saw("deleted"); }
      outbox.deleteRefused();
    },
  };
  const keys = () => Object.keys(localStorage).filter((name) => name.startsWith("pddpo-outbox"));
  const names = Object.keys(STEPS);
  for (let walk = 0; walk < walks; walk++) {
    localStorage.clear();
    world = { net: "up", session: null, tokens: 0, leases: 0 };
    world = { ...world, stored: new Map(), refused: new Set(), once: new Set(), deleted: new Set() };
    await signIn();
    const said = new Set(), history = [];
    for (let step = 0; step < 25; step++) {
      const name = random(3) === 0 ? "answers" : names[random(names.length)];
      history.push(name);
      await STEPS[name]();
      await outbox.send();
      for (const one of keys()) said.add(one.split(":").at(-1));
      for (const [key, { by }] of world.stored) {
        said.add(key);
        if (by !== "ana") broken.push(`${history}: in the name of ${by}`);
      }
      for (const { body } of outbox.refused) {
        if (!world.once.has(body.lease)) broken.push(`${history}: nobody refused ${body.lease}`);
      }
      for (const key of said) {
        const there = world.stored.has(key) || world.deleted.has(key) || keys().some((one) => one.endsWith(key));
        if (!there) broken.push(`${history}: ${key} is nowhere`);
      }
      if (said.size !== world.leases) broken.push(`${history}: ${world.leases} answers, ${said.size} somewhere`);
    }
    world.net = "up";
    world.refused.clear();
    await signIn();
    for (let again = 0; again < 60 && keys().length; again++) await outbox.tryAgain();
    if (keys().length) broken.push(`${history}: something is kept for ever`);
    const lost = [...said].filter((key) => !world.stored.has(key) && !world.deleted.has(key));
    if (lost.length) broken.push(`${history}: ${lost} is lost`);
  }
  [window.fetch, window.setTimeout] = [send, later];
  return [broken.slice(0, 3), seen];
}
"""


def test_in_every_history_an_answer_is_with_the_server_or_kept_or_deleted_by_its_author(screen: Screen) -> None:
    screen.page.goto(screen.url)
    broken, seen = screen.page.evaluate(WALKS, 300)
    assert broken == []
    met = {"kept", "refused", "reply lost", "tried again", "deleted", "signed in", "no sign-in", "reloaded"}
    assert set(seen) == met, seen
