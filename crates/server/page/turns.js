// The turns of a conversation on the page.

import { divide } from "./attachments.js";
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

// A file of a message.
function folded({ name, text }) {
  const box = document.createElement("details");
  box.className = "file";
  const summary = document.createElement("summary");
  summary.textContent = name;
  const code = document.createElement("pre");
  code.textContent = text;
  box.append(summary, code);
  return box;
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
    if (this.role === "assistant") {
      render(this.body, this.text);
      return;
    }
    const { text, files } = divide(this.text);
    this.body.replaceChildren(text, ...files.map(folded));
  }

  setTokens(n) {
    this.count.textContent = n === 1 ? "1 token" : n ? `${n} tokens` : "";
  }

  setVerbs(verbs) {
    this.verbs.replaceChildren(
      ...verbs.map(([label, hint, action]) => button(label, hint, (event) => action(this, event.currentTarget))),
    );
  }

  // Appends text, drawn once a frame; follows the end if the reader is there.
  append(text) {
    if (this.reasoning && !this.text) this.reasoning.open = false;
    this.text += text;
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      if (this.waiting) this.flush();
    });
  }

  // Appends reasoning, which stands folded before the answer. It is open while it comes.
  think(text, whole = false) {
    if (!this.thought) {
      this.reasoning = document.createElement("details");
      this.reasoning.className = "reasoning";
      this.reasoning.open = !whole;
      const summary = document.createElement("summary");
      summary.textContent = "Reasoning";
      this.thought = document.createElement("div");
      this.thought.className = "thought";
      this.reasoning.append(summary, this.thought);
      this.body.before(this.reasoning);
    }
    const follows = this.follows();
    this.thought.append(text);
    if (follows) toEnd();
  }

  // Adds a tool call, or the next part of one. Arguments are shown as they are written.
  call({ index = 0, id, function: { name, arguments: written } = {} }) {
    this.calls ??= [];
    let shown = this.calls[index];
    if (!shown) {
      const box = document.createElement("details");
      box.className = "call";
      box.open = true;
      if (id) box.dataset.call = id;
      const summary = document.createElement("summary");
      const code = document.createElement("code");
      box.append(summary, code);
      (this.calls.at(-1)?.box ?? this.body).after(box);
      shown = this.calls[index] = { box, summary, code };
    }
    if (name) shown.summary.textContent = `Calls ${name}`;
    if (written) shown.code.append(typeof written === "string" ? written : JSON.stringify(written));
  }

  // Whether the reader is at the end.
  follows() {
    return list.scrollTop + list.clientHeight >= list.scrollHeight - 40;
  }

  // Draws text that waits for its frame.
  flush() {
    const follows = this.follows();
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
