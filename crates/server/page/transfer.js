// Conversations as a file: all of them out, and those of a file in, with their trees.

import * as api from "./api.js";
import * as names from "./names.js";

const base = "/v1/kvark/conversations";
const FORMAT = "kvark conversations";

const message = ({ role, content, reasoning_content, tool_calls }) => ({ role, content, reasoning_content, tool_calls });

// The conversations of the server as text.
export function text(conversations) {
  const all = conversations.map(({ id, parent, model, created, turns }) => ({
    id,
    parent,
    model,
    created,
    name: names.of(id),
    messages: turns.map(message),
  }));
  return file(all);
}

export const file = (conversations) => JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);

export function save(conversations) {
  const url = URL.createObjectURL(new Blob([text(conversations)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `kvark-conversations-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  URL.revokeObjectURL(url);
}

const same = (a, b) => JSON.stringify(message(a)) === JSON.stringify(message(b));

function read(json) {
  let file;
  try {
    file = JSON.parse(json);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("The file has no conversations of kvark.");
  for (const { messages } of file.conversations) {
    const whole = Array.isArray(messages) && messages.every((one) => typeof one?.role === "string");
    if (!whole) throw new Error("The file has a conversation without messages.");
  }
  return file.conversations;
}

// Makes the conversations of a file. Forks share what they have in common. Returns how many there are.
export async function load(json, model) {
  const all = read(json);
  const ids = new Set(all.map((one) => one.id));
  const made = new Map();
  const make = async (one, parent) => {
    const id = parent ? await forked(parent, one.messages) : (await api.post(base, { model, messages: one.messages })).id;
    if (one.name) names.set(id, one.name);
    made.set(one.id ?? id, { id, messages: one.messages });
  };
  // Parents come before their forks. What is left then are forks of one another, which are made on their own.
  for (let left = all; left.length; ) {
    const ready = left.filter((one) => !ids.has(one.parent) || made.has(one.parent));
    for (const one of ready.length ? ready : left) await make(one, made.get(one.parent));
    left = ready.length ? left.filter((one) => !ready.includes(one)) : [];
  }
  return all.length;
}

async function forked(parent, messages) {
  let shared = 0;
  while (shared < messages.length && parent.messages[shared] && same(messages[shared], parent.messages[shared])) shared++;
  const { id } = await api.post(`${base}/${parent.id}/fork`, { at: { turn: shared } });
  const rest = messages.slice(shared);
  if (rest.length) await api.post(`${base}/${id}/splice`, { from: shared, to: shared, messages: rest });
  return id;
}
