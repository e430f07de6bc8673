// The turns of a conversation on the page.

import { render } from "./markdown.js";

const list = document.getElementById("turns");

export class Turn {
  constructor(role, text, verbs = []) {
    this.text = text;
    this.role = role;
    this.element = document.createElement("article");
    this.element.className = `turn ${role}`;
    const head = document.createElement("div");
    head.className = "head";
    const name = document.createElement("span");
    name.className = "role";
    name.textContent = role;
    this.count = document.createElement("span");
    const place = document.createElement("span");
    place.className = "verbs";
    for (const [label, hint, action] of verbs) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.title = hint;
      button.addEventListener("click", () => action(this));
      place.append(button);
    }
    head.append(name, this.count, place);
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
    this.count.textContent = n ? `${n} tokens` : "";
  }

  // Appends text; follows the end if the reader is there.
  append(text) {
    const at_end = list.scrollTop + list.clientHeight >= list.scrollHeight - 40;
    this.text += text;
    this.draw();
    if (at_end) list.scrollTop = list.scrollHeight;
  }

  // Shows every token with its probability: the less likely, the redder.
  showTokens(tokens) {
    const pre = document.createElement("div");
    pre.style.whiteSpace = "pre-wrap";
    for (const token of tokens) {
      const span = document.createElement("span");
      span.className = "token";
      span.textContent = token.token;
      const probability = Math.exp(token.logprob);
      span.style.background = `hsl(${Math.round(probability * 120)} 70% 50% / .25)`;
      const others = token.top_logprobs.map(
        (other) => `${JSON.stringify(other.token)} ${(Math.exp(other.logprob) * 100).toFixed(1)} %`,
      );
      span.title = `${(probability * 100).toFixed(1)} %\n${others.join("\n")}`;
      pre.append(span);
    }
    this.body.replaceChildren(pre);
  }

  note(text, error = false) {
    const note = document.createElement("div");
    note.className = error ? "note error" : "note";
    note.textContent = text;
    this.element.append(note);
  }
}

export function clear() {
  list.replaceChildren();
}

export function toEnd() {
  list.scrollTop = list.scrollHeight;
}
