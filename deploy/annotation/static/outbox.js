// Answers on their way to the server. Each has a key made once; it is kept in local storage until the server has
// confirmed it and sent again as often as it takes. The same key twice is one answer, so nothing is ever doubled.

import { ApiProblem, call } from "./api.js";

const PLACE = "pddpo-outbox:";
const RETRY_MS = 3000;

export class Outbox {
  constructor(person, { onReceipt, onRefused, onState }) {
    this.place = PLACE + person;
    this.onReceipt = onReceipt;
    this.onRefused = onRefused;
    this.onState = onState;
    this.sending = null;
    this.timer = null;
    addEventListener("online", () => this.send());
  }

  get waiting() {
    return JSON.parse(localStorage.getItem(this.place) || "[]");
  }

  add(body) {
    const entry = { key: crypto.randomUUID ? crypto.randomUUID() : randomKey(), body };
    localStorage.setItem(this.place, JSON.stringify([...this.waiting, entry]));
    return this.send();
  }

  remove(key) {
    localStorage.setItem(this.place, JSON.stringify(this.waiting.filter((entry) => entry.key !== key)));
  }

  // Sends everything in order; resolves when the box is empty or the network is gone.
  send() {
    this.sending ??= this.run().finally(() => { this.sending = null; });
    return this.sending;
  }

  async run() {
    clearTimeout(this.timer);
    while (this.waiting.length) {
      const [{ key, body }] = this.waiting;
      try {
        this.onReceipt(await call("PUT", "/answers/" + key, body));
        this.remove(key);
      } catch (problem) {
        const final = problem instanceof ApiProblem && ![401, 429, 503].includes(problem.status) && problem.status < 500;
        if (final) {
          this.remove(key);
          this.onRefused(problem);
        } else {
          this.onState(this.waiting.length, problem);
          this.timer = setTimeout(() => this.send(), RETRY_MS);
          return;
        }
      }
    }
    this.onState(0, null);
  }
}

// crypto.randomUUID exists only on https and localhost.
function randomKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
