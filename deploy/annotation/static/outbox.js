// Answers on their way to the server. Each has a key made once, and is one entry of local storage until the server has
// it or the person deletes it. What cannot be sent now is sent again as often as it takes; the same key twice is one
// answer, so nothing is ever doubled. What the server refuses for good is kept and shown, with the reason.
//
//   waiting ──sent──► gone          no network, signed out, somebody else's session, server busy: stays waiting
//      │ └──refused──► refused ──try again──► waiting
//      │                  └──delete──► gone

import { ApiProblem, BASE, call } from "./api.js";

// Several runs on one server share the browser's storage: each has its own entries.
const PLACE = BASE === "/" ? "pddpo-outbox:" : `pddpo-outbox:${BASE}:`;
const RETRY_MS = 3000;
const LATER = [401, 408, 425, 429, 503];

export class Outbox {
  constructor(person, { onReceipt, onRefused, onState }) {
    this.place = `${PLACE}${person}:`;
    this.onReceipt = onReceipt;
    this.onRefused = onRefused;
    this.onState = onState;
    this.sending = null;
    this.timer = null;
    this.closed = false;
    this.online = () => this.send();
    addEventListener("online", this.online);
  }

  // Somebody signs in anew: the next outbox of the same person finds what this one leaves.
  close() {
    this.closed = true;
    clearTimeout(this.timer);
    removeEventListener("online", this.online);
  }

  get entries() {
    const keys = Object.keys(localStorage).filter((name) => name.startsWith(this.place));
    return keys.map((name) => JSON.parse(localStorage.getItem(name))).sort((a, b) => a.number - b.number);
  }

  get waiting() {
    return this.entries.filter((entry) => !entry.problem);
  }

  get refused() {
    return this.entries.filter((entry) => entry.problem);
  }

  add(body) {
    const number = 1 + Math.max(0, ...this.entries.map((entry) => entry.number));
    this.put({ key: crypto.randomUUID ? crypto.randomUUID() : randomKey(), number, body });
    return this.send();
  }

  put(entry) {
    localStorage.setItem(this.place + entry.key, JSON.stringify(entry));
  }

  remove(key) {
    localStorage.removeItem(this.place + key);
  }

  tryAgain() {
    for (const { problem, ...entry } of this.refused) this.put(entry);
    return this.send();
  }

  deleteRefused() {
    for (const { key } of this.refused) this.remove(key);
    this.onRefused(this.refused);
  }

  // Sends everything in order; resolves when nothing waits or nothing can be sent now.
  send() {
    this.sending ??= this.run().finally(() => { this.sending = null; });
    return this.sending;
  }

  async run() {
    clearTimeout(this.timer);
    while (this.waiting.length && !this.closed) {
      const [entry] = this.waiting;
      try {
        this.onReceipt(await call("PUT", "/answers/" + entry.key, entry.body));
        this.remove(entry.key);
      } catch (problem) {
        const refused = problem instanceof ApiProblem && !LATER.includes(problem.status) && problem.status < 500;
        if (refused) this.put({ ...entry, problem: problem.message });
        else {
          this.onState(this.waiting.length, problem);
          if (!this.closed && problem.status !== 401) this.timer = setTimeout(() => this.send(), RETRY_MS);
          return;
        }
      }
    }
    this.onRefused(this.refused);
    this.onState(0, null);
  }
}

// crypto.randomUUID exists only on https and localhost.
function randomKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
