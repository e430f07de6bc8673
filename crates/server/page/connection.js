// Whether the server can be used: a line when it does not answer, a field when it wants a key.

import * as api from "./api.js";

const BETWEEN_TRIES = 400;

const lost = document.getElementById("lost");
const locked = document.getElementById("locked");
const field = document.getElementById("locked-key");
let trying = false;

// Asks until the server answers.
async function untilThere() {
  if (trying) return;
  trying = true;
  lost.hidden = false;
  while (trying) {
    try {
      await fetch("/health", { cache: "no-store" });
      trying = false;
    } catch {
      await new Promise((resume) => setTimeout(resume, BETWEEN_TRIES));
    }
  }
  lost.hidden = true;
}

// `again` is called when the server is there again, or has its key.
export function watch(again) {
  api.onReach(async (state) => {
    if (state === "locked") {
      if (!locked.hidden) return;
      locked.hidden = false;
      field.focus();
    }
    if (state === "lost" && !trying) {
      await untilThere();
      again();
    }
  });
  locked.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("key", field.value);
    document.getElementById("key").value = field.value;
    field.value = "";
    locked.hidden = true;
    again();
  });
}
