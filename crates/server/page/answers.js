// What the page knows about an answer and the server does not keep: notes and token probabilities. They survive a reload.

const STORE = "kvark-answers";
const MOST = 40;

let known = new Map();
try {
  known = new Map(JSON.parse(sessionStorage.getItem(STORE)) ?? []);
} catch {
  // Not a list: begin anew.
}

// Numbers of conversations begin again when the server restarts; the time of creation tells them apart.
const name = (conversation, index) => `${conversation.id}/${conversation.created}/${index}`;

function write() {
  while (known.size > MOST) known.delete(known.keys().next().value);
  try {
    sessionStorage.setItem(STORE, JSON.stringify([...known]));
  } catch {
    // The browser's storage is full: what was stored before stays, and this page still has everything.
  }
}

// Remembers `{text, notes, tokens}` of a turn.
export function remember(conversation, index, answer) {
  known.set(name(conversation, index), answer);
  write();
}

// What is known of a turn, unless the turn has another text now.
export function recall(conversation, index) {
  const answer = known.get(name(conversation, index));
  return answer?.text === conversation.turns[index].content ? answer : undefined;
}

// A fork has the turns of its parent.
export function copy(parent, fork) {
  fork.turns.forEach((_, index) => {
    const answer = known.get(name(parent, index));
    if (answer) known.set(name(fork, index), answer);
  });
  write();
}
