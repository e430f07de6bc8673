// The turns of a conversation on the page.

import { render } from "./markdown.js";
import * as tokens from "./tokens.js";

const list = document.getElementById("turns");

function button(label, hint, action) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.title = hint;
  made.addEventListener("click", action);
  return made;
}

export class Turn {
  constructor(role, text) {
    this.text = text;
    this.role = role;
    this.waiting = false;
    this.element = document.createElement("article");
    this.element.className = `turn ${role}`;
    const head = document.createElement("div");
    head.className = "head";
    const name = document.createElement("span");
    name.className = "role";
    name.textContent = role;
    this.count = document.createElement("span");
    this.count.className = "count";
    this.verbs = document.createElement("span");
    this.verbs.className = "verbs";
    head.append(name, this.count, this.verbs);
    this.body = document.createElement("div");
    this.body.className = "body";
    this.element.append(head, this.body);
    this.draw();
    list.append(this.element);
  }

  draw() {
    if (this.role === "assistant") render(this.body, this.text);
    else this.body.textContent = this.text;
  }

  setTokens(n) {
    this.count.textContent = n === 1 ? "1 token" : n ? `${n} tokens` : "";
  }

  setVerbs(verbs) {
    this.verbs.replaceChildren(...verbs.map(([label, hint, action]) => button(label, hint, () => action(this))));
  }

  // Appends text, drawn once a frame; follows the end if the reader is there.
  append(text) {
    this.text += text;
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      if (this.waiting) this.flush();
    });
  }

  // Appends reasoning, which stands before the answer.
  think(text) {
    if (!this.thought) {
      this.thought = document.createElement("div");
      this.thought.className = "thought";
      this.body.before(this.thought);
    }
    const follows = list.scrollTop + list.clientHeight >= list.scrollHeight - 40;
    this.thought.append(text);
    if (follows) toEnd();
  }

  // Draws text that waits for its frame.
  flush() {
    const follows = list.scrollTop + list.clientHeight >= list.scrollHeight - 40;
    this.waiting = false;
    this.draw();
    if (follows) toEnd();
  }

  // Shows every token with its probability.
  showTokens(all) {
    this.waiting = false;
    tokens.render(this.body, all);
  }

  note(text, error = false) {
    const note = document.createElement("div");
    note.className = error ? "note error" : "note";
    if (error) note.setAttribute("role", "alert");
    note.textContent = text;
    this.element.append(note);
  }

  // Replaces the text by an editor; `done` receives the new text.
  edit(done) {
    const form = document.createElement("form");
    form.className = "editor";
    const field = document.createElement("textarea");
    field.value = this.text;
    field.rows = Math.min(12, this.text.split("\n").length + 1);
    field.setAttribute("aria-label", "Edit the message");
    const send = button("Send on a fork", "Send the text on a fork of this conversation", () => form.requestSubmit());
    const cancel = button("Cancel", "Leave the message as it is (Escape)", () => this.draw());
    form.append(field, send, cancel);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) done(field.value.trim());
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
      if (event.key === "Escape") {
        event.stopPropagation();
        this.draw();
        this.verbs.querySelector("button")?.focus();
      }
    });
    this.body.replaceChildren(form);
    field.focus();
  }
}

export function clear() {
  list.replaceChildren();
}

// A sentence where turns will be.
export function hint(text) {
  const line = document.createElement("p");
  line.className = "hint";
  line.textContent = text;
  list.append(line);
}

export function toEnd() {
  list.scrollTop = list.scrollHeight;
}
