// What the page knows about an answer and the server does not keep: notes and token probabilities. They survive a reload.

const STORE = "kvark-answers";
const MOST = 40;

let known = new Map();
try {
  known = new Map(JSON.parse(sessionStorage.getItem(STORE)) ?? []);
} catch {
  // Not a list: begin anew.
}

const name = (conversation, index) => `${conversation.id}/${index}`;

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
  const { content, partial } = conversation.turns[index];
  if (answer?.text === content) return answer;
  // An answer that was stopped may have gone on for a moment after the page had left.
  return partial && answer && content.startsWith(answer.text) ? { ...answer, tokens: [] } : undefined;
}

// A fork has the turns of its parent.
export function copy(parent, fork) {
  fork.turns.forEach((_, index) => {
    const answer = known.get(name(parent, index));
    if (answer) known.set(name(fork, index), answer);
  });
  write();
}
