// A copy of the conversations in the browser, for a server that keeps none: after its restart they can be brought back.

import * as transfer from "./transfer.js";

const STORE = "kvark-kept";
const MOST_CHARACTERS = 2_000_000;

const offer = document.getElementById("kept");
const text = document.getElementById("kept-text");

function stored() {
  try {
    return JSON.parse(localStorage.getItem(STORE))?.conversations ?? [];
  } catch {
    // Not JSON: there is nothing.
    return [];
  }
}

function store(conversations) {
  // What belongs to a key stays with those who have the key.
  if (sessionStorage.getItem("key")) return;
  const copy = transfer.text(conversations);
  try {
    if (copy.length <= MOST_CHARACTERS) localStorage.setItem(STORE, copy);
  } catch {
    // The browser's storage is full: the copy before stays.
  }
}

// Copies what the server has. If it has nothing, offers what it had: `bring` receives that as the text of a file.
export function follow(conversations, bring) {
  if (conversations.length) {
    if (offer.hidden) store(conversations);
    return;
  }
  const count = stored().filter((one) => one.messages?.length).length;
  offer.hidden = count === 0;
  text.textContent = count === 1 ? "This browser has kept a conversation." : `This browser has kept ${count} conversations.`;
  document.getElementById("kept-bring").onclick = () => {
    offer.hidden = true;
    bring(localStorage.getItem(STORE));
  };
  document.getElementById("kept-forget").onclick = () => {
    offer.hidden = true;
    localStorage.removeItem(STORE);
  };
}

// A conversation that was deleted does not come back.
export function forget(id) {
  const left = stored().filter((one) => one.id !== id);
  if (left.length) localStorage.setItem(STORE, transfer.file(left));
  else localStorage.removeItem(STORE);
}
