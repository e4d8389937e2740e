// Reading two long answers: they scroll together, words of one alone are marked, and on a phone one is shown at a time.

import { $, make } from "./api.js";

const MOST_WORDS = 1500; // of one answer; a comparison takes the product of both

const pieces = (text) => text.match(/\s+|[^\s]+/g) || [];

// Which words of each text belong to a longest sequence that both have, in this order.
export function common(left, right) {
  const [a, b] = [left, right].map((text) => pieces(text).filter((one) => one.trim()).slice(0, MOST_WORDS));
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  }
  const [inA, inB] = [new Set(), new Set()];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) { inA.add(i++); inB.add(j++); } else if (table[i + 1][j] >= table[i][j + 1]) i++; else j++;
  }
  return [inA, inB];
}

// The text as nodes, with the words that are not in `shared` marked.
function marked(text, shared) {
  let word = 0;
  return pieces(text).map((one) => {
    if (!one.trim()) return one;
    const number = word++;
    return shared.has(number) || number >= MOST_WORDS ? one : make("mark", {}, one);
  });
}

export function showDifference(left, right) {
  const [inLeft, inRight] = common(left.text, right.text);
  for (const [id, side, shared] of [["left", left, inLeft], ["right", right, inRight]]) {
    $(id).classList.add("raw");
    $(id).replaceChildren(...marked(side.text, shared));
  }
}

// One answer follows the other by the share that was scrolled, as long as the button is pressed.
let led = null;

function follow(from, to) {
  if ($("together").getAttribute("aria-pressed") !== "true" || led === $(from)) { led = null; return; }
  const [a, b] = [$(from), $(to)];
  const [ways, other] = [a.scrollHeight - a.clientHeight, b.scrollHeight - b.clientHeight];
  const top = ways > 0 ? Math.round((a.scrollTop / ways) * other) : 0;
  if (other <= 0 || Math.abs(b.scrollTop - top) < 1) return;
  led = b; // its own event is not an order to scroll back
  b.scrollTop = top;
}

$("left").addEventListener("scroll", () => follow("left", "right"));
$("right").addEventListener("scroll", () => follow("right", "left"));

const SPEAKERS = { user: "User", assistant: "Assistant", system: "Instructions" };

// A prompt that is a conversation, turn by turn.
export function showTurns(turns, raw) {
  $("prompt").classList.toggle("raw", raw);
  $("prompt").replaceChildren(...turns.map((turn) => {
    const words = make("div", {});
    if (raw) words.textContent = turn.text;
    else words.innerHTML = turn.html; // made harmless by the server, as all texts
    return make("section", { class: `turn ${turn.role}` }, make("h3", {}, SPEAKERS[turn.role] || turn.role), words);
  }));
}

export function showSide(side) {
  $("answers").dataset.shown = side;
  for (const one of ["left", "right"]) $(`tab-${one}`).setAttribute("aria-pressed", String(one === side));
}

for (const side of ["left", "right"]) $(`tab-${side}`).addEventListener("click", () => showSide(side));
