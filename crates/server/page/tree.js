// The tree of branches: every conversation with its forks.

const root = document.getElementById("tree");
const none = document.getElementById("no-branches");

const words = (text, most) => (text ?? "").trim().replace(/\s+/g, " ").slice(0, most);
const last = (conversation, role) => conversation.turns.filter((turn) => turn.role === role).pop()?.content;

// The beginning of the last question.
export function title(conversation) {
  return words(last(conversation, "user"), 80) || words(last(conversation, "system"), 80) || "empty";
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

function branch(conversation, children, current, act) {
  const item = document.createElement("li");
  const line = document.createElement("div");
  const chosen = conversation.id === current;
  line.className = chosen ? "branch current" : "branch";
  line.dataset.id = conversation.id;
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
  line.append(name, verbs);
  item.append(line);
  const own = children.get(conversation.id) ?? [];
  if (own.length) {
    const list = document.createElement("ul");
    own.forEach((child) => list.append(branch(child, children, current, act)));
    item.append(list);
  }
  return item;
}

// Draws all conversations; `act` receives a verb and an id.
export function draw(conversations, current, act) {
  const ids = new Set(conversations.map((conversation) => conversation.id));
  const children = new Map();
  const roots = [];
  for (const conversation of conversations) {
    if (conversation.parent && ids.has(conversation.parent)) {
      const list = children.get(conversation.parent) ?? [];
      list.push(conversation);
      children.set(conversation.parent, list);
    } else {
      roots.push(conversation);
    }
  }
  // The tree is drawn anew; the keyboard stays where it was.
  const focused = document.activeElement?.closest?.("#tree .branch");
  const place = focused && [focused.dataset.id, document.activeElement.className];
  root.replaceChildren(...roots.reverse().map((top) => branch(top, children, current, act)));
  none.hidden = roots.length > 0;
  if (place) {
    const line = root.querySelector(`.branch[data-id="${CSS.escape(place[0])}"]`);
    [...(line?.querySelectorAll("button") ?? [])].find((b) => b.className === place[1])?.focus();
  }
}
