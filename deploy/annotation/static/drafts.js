// What somebody has begun to write and has not sent: no reply of the server may take it away.

const fields = (within) => [...within.querySelectorAll("input, select")];

// The field as the server has it.
export function shown(field, value) {
  field.value = value;
  field.dataset.shown = field.value;
  return field;
}

// What is in them now has reached the server.
export function sent(...written) {
  for (const field of written) field.dataset.shown = field.value;
}

export const isUnsent = (field) => field.value !== (field.dataset.shown ?? "");

// What is unsent below each named element, to be put into the elements of the same names that take their place.
export function drafts(within) {
  return new Map(fields(within).filter(isUnsent).map((field) => [placeOf(field), field.value]));
}

export function restore(within, kept) {
  for (const field of fields(within)) if (kept.has(placeOf(field))) field.value = kept.get(placeOf(field));
}

const placeOf = (field) => `${field.closest("[data-name]")?.dataset.name} ${field.getAttribute("aria-label")}`;
