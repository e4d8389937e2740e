// Puts what was read again in the place of what is shown. The focus of the keyboard stays where the Tab key led.

const REACHED = "a, button, input, select, summary";

export function place(within, ...content) {
  const name = within.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  within.replaceChildren(...content);
  headed(within);
  if (name) [...within.querySelectorAll(REACHED)].find((one) => nameOf(one) === name)?.focus();
}

// Each cell knows its heading: on a phone a row is a list of both.
export function headed(within) {
  const heads = within.closest("table")?.tHead.rows[0].cells ?? [];
  for (const line of within.rows ?? []) [...line.cells].forEach((cell, index) => { cell.dataset.head = heads[index]?.textContent ?? ""; });
}

// Its place in the row that holds it; a row is known by data-name, or by what its first cell says.
function nameOf(one) {
  const row = one.closest("[data-name], tr");
  return `${row.dataset.name ?? row.cells[0].textContent} ${[...row.querySelectorAll(REACHED)].indexOf(one)}`;
}
