// What went wrong, at the head of the lead's page. A refusal stays until something else is done; reading the page again takes
// away only what an earlier reading said.

import { $ } from "./api.js";

const words = { done: "", read: "" };

function show(kind, said) {
  words[kind] = said;
  $("problem").textContent = words.done || words.read;
}

export const refused = (said) => show("done", said);
export const unread = (said) => show("read", said);
