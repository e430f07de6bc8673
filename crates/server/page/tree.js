// The tree of branches: every conversation with its forks.

const root = document.getElementById("tree");

// The first words of a conversation.
export function title(conversation) {
  const first = conversation.turns.filter((turn) => turn.role === "user").pop() ?? conversation.turns[0];
  const text = (first?.content ?? "").trim().replace(/\s+/g, " ");
  return text ? text.slice(0, 40) : "empty";
}

function branch(conversation, children, current, act) {
  const item = document.createElement("li");
  item.setAttribute("role", "treeitem");
  item.setAttribute("aria-selected", conversation.id === current);
  const line = document.createElement("div");
  line.className = conversation.id === current ? "branch current" : "branch";
  line.dataset.id = conversation.id;
  const name = document.createElement("button");
  name.className = "name";
  name.textContent = title(conversation);
  name.title = `${conversation.id}: ${conversation.tokens} tokens`;
  name.addEventListener("click", () => act("switch", conversation.id));
  line.append(name);
  for (const [verb, text, hint] of [
    ["fork", "fork", "Fork this branch"],
    ["keep", "keep", "Delete all other branches of this tree"],
    ["delete", "×", "Delete this branch"],
  ]) {
    const button = document.createElement("button");
    button.className = `small ${verb}`;
    button.textContent = text;
    button.title = hint;
    button.setAttribute("aria-label", `${hint}: ${title(conversation)}`);
    button.addEventListener("click", () => act(verb, conversation.id));
    line.append(button);
  }
  item.append(line);
  const own = children.get(conversation.id) ?? [];
  if (own.length) {
    const list = document.createElement("ul");
    list.setAttribute("role", "group");
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
  root.replaceChildren(...roots.map((top) => branch(top, children, current, act)));
}
