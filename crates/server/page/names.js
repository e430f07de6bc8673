// Names that a reader gives to branches, kept in the browser.

const STORE = "kvark-names";

let names = {};
try {
  names = JSON.parse(localStorage.getItem(STORE)) ?? {};
} catch {
  // Not JSON: begin anew.
}

export const of = (id) => names[id];

export function set(id, name) {
  if (name) names[id] = name;
  else delete names[id];
  localStorage.setItem(STORE, JSON.stringify(names));
}
