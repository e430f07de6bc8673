// The tree of branches: every conversation with its forks. A chain of single forks has no indents, and long ones are folded.

import * as names from "./names.js";

const root = document.getElementById("tree");
const none = document.getElementById("no-branches");
const notFound = document.getElementById("none-found");
const search = document.getElementById("search");

// A chain with more branches than this shows its ends only.
const UNFOLDED = 6;

const words = (text, most) => (text ?? "").trim().replace(/\s+/g, " ").slice(0, most);
const last = (conversation, role) => conversation.turns.filter((turn) => turn.role === role).pop()?.content;

let shown = null;
// The chains that the reader has opened, by their first branch.
const unfolded = new Set();

// The name that the reader gave, or the beginning of the last question.
export function title(conversation) {
  const given = names.of(conversation.id);
  return given || words(last(conversation, "user"), 80) || words(last(conversation, "system"), 80) || "empty";
}

function button(verb, text, hint, label, action) {
  const made = document.createElement("button");
  made.className = `small ${verb}`;
  made.textContent = text;
  made.title = hint;
  made.setAttribute("aria-label", `${hint}: ${label}`);
  made.addEventListener("click", action);
  return made;
}

// A field in the place of a name.
function rename(name, conversation) {
  const field = document.createElement("input");
  field.className = "rename";
  field.value = title(conversation);
  field.setAttribute("aria-label", "Name of the branch");
  let done = false;
  const end = (keep) => {
    if (done) return;
    done = true;
    if (keep) names.set(conversation.id, words(field.value, 80));
    redraw();
  };
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") end(false);
  });
  field.addEventListener("blur", () => end(true));
  name.replaceWith(field);
  field.select();
}

function line(conversation) {
  const { current, act } = shown;
  const made = document.createElement("div");
  const chosen = conversation.id === current;
  made.className = chosen ? "branch current" : "branch";
  made.dataset.id = conversation.id;
  const name = document.createElement("button");
  name.className = "name";
  name.title = `${conversation.id}: ${conversation.tokens} tokens`;
  if (chosen) name.setAttribute("aria-current", "true");
  const question = document.createElement("span");
  question.className = "question";
  question.textContent = title(conversation);
  const answer = document.createElement("span");
  answer.className = "answer";
  answer.textContent = words(last(conversation, "assistant"), 80) || `${conversation.tokens} tokens`;
  name.append(question, answer);
  name.addEventListener("click", () => act("switch", conversation.id));
  const verbs = document.createElement("span");
  verbs.className = "verbs";
  for (const [verb, text, hint] of [
    ["fork", "fork", "Fork this branch"],
    ["keep", "keep", "Delete all other branches of this tree"],
    ["delete", "delete", "Delete this branch"],
  ]) {
    verbs.append(button(verb, text, hint, title(conversation), () => act(verb, conversation.id)));
  }
  verbs.append(button("title", "name", "Name this branch", title(conversation), () => rename(name, conversation)));
  made.append(name, verbs);
  return made;
}

function item(...children) {
  const made = document.createElement("li");
  made.append(...children);
  return made;
}

// A branch and those that follow it one by one, up to the one with several forks or none.
function chainFrom(conversation, children) {
  const chain = [conversation];
  for (let own; (own = children.get(chain.at(-1).id) ?? []).length === 1; ) chain.push(own[0]);
  return chain;
}

// Appends a branch with all that was forked from it to a list.
function append(list, first, children) {
  const chain = chainFrom(first, children);
  const folds = chain.length > UNFOLDED && !unfolded.has(first.id);
  const chosen = chain.findIndex((one) => one.id === shown.current);
  // The ends of a chain and the branch that is shown stay.
  const stays = (i) => !folds || i < 2 || i >= chain.length - 2 || Math.abs(i - chosen) <= (chosen < 0 ? -1 : 1);
  let hidden = 0;
  const fold = () => {
    if (!hidden) return;
    const more = document.createElement("button");
    more.className = "small unfold";
    more.textContent = `… ${hidden} more`;
    more.title = "Show these branches";
    more.addEventListener("click", () => {
      unfolded.add(first.id);
      redraw();
    });
    list.append(item(more));
    hidden = 0;
  };
  let bottom;
  chain.forEach((one, i) => {
    if (!stays(i)) {
      hidden++;
      return;
    }
    fold();
    bottom = item(line(one));
    list.append(bottom);
  });
  const forks = children.get(chain.at(-1).id) ?? [];
  if (forks.length) {
    const inner = document.createElement("ul");
    forks.forEach((fork) => append(inner, fork, children));
    bottom.append(inner);
  }
}

const contains = (conversation, wanted) =>
  title(conversation).toLowerCase().includes(wanted) ||
  conversation.turns.some((turn) => (turn.content ?? "").toLowerCase().includes(wanted));

function redraw() {
  const { conversations } = shown;
  const wanted = search.value.trim().toLowerCase();
  const list = document.createDocumentFragment();
  const roots = [];
  if (wanted) {
    const found = conversations.filter((conversation) => contains(conversation, wanted));
    found.reverse().forEach((conversation) => list.append(item(line(conversation))));
    notFound.hidden = found.length > 0;
  } else {
    notFound.hidden = true;
    const ids = new Set(conversations.map((conversation) => conversation.id));
    const children = new Map();
    for (const conversation of conversations) {
      if (conversation.parent && ids.has(conversation.parent)) {
        const own = children.get(conversation.parent) ?? [];
        own.push(conversation);
        children.set(conversation.parent, own);
      } else {
        roots.push(conversation);
      }
    }
    roots.reverse().forEach((top) => append(list, top, children));
  }
  none.hidden = conversations.length > 0;
  // The tree is drawn anew; the keyboard stays where it was.
  const focused = document.activeElement?.closest?.("#tree .branch");
  const place = focused && [focused.dataset.id, document.activeElement.className];
  root.replaceChildren(list);
  if (place) {
    const again = root.querySelector(`.branch[data-id="${CSS.escape(place[0])}"]`);
    [...(again?.querySelectorAll("button") ?? [])].find((b) => b.className === place[1])?.focus();
  }
}

// What of the conversations is drawn.
const seen = (conversations, current) =>
  JSON.stringify([current, conversations.map((one) => [one.id, one.parent, one.tokens, one.turns.length, title(one), last(one, "assistant")])]);

// Draws all conversations, if they look otherwise than before; `act` receives a verb and an id.
export function draw(conversations, current, act) {
  const before = shown && seen(shown.conversations, shown.current);
  shown = { conversations, current, act };
  // A name that is being written stays.
  if (before !== seen(conversations, current) && !root.querySelector(".rename")) redraw();
}

search.addEventListener("input", () => shown && redraw());
