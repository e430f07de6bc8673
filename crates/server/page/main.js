// The page: chat on branches, beside the live map of the cache.

import * as api from "./api.js";
import { follow } from "./cells.js";
import * as settings from "./settings.js";
import * as tree from "./tree.js";
import { Turn, clear, toEnd } from "./turns.js";

const $ = (id) => document.getElementById(id);
const base = "/v1/kvark/conversations";

let current = null;
let running = null;
let followed = null;

function status(text, error = false) {
  $("status").textContent = text;
  $("status").className = error ? "error" : "";
}

// Runs an action and shows its error.
async function attempt(action) {
  try {
    status("");
    return await action();
  } catch (error) {
    if (error.name !== "AbortError") status(error.message, true);
    return undefined;
  }
}

function followCache() {
  followed?.abort();
  followed = new AbortController();
  follow($("model").value, followed.signal);
}

async function refreshTree() {
  const { data } = await api.get(base);
  tree.draw(data, current, act);
  return data;
}

const verbs = {
  async switch(id) {
    await open(id);
  },
  async fork(id) {
    const fork = await api.post(`${base}/${id}/fork`);
    await open(fork.id);
  },
  async keep(id) {
    await api.post(`${base}/${id}/keep`);
    await open(id);
  },
  async delete(id) {
    await api.remove(`${base}/${id}`);
    if (id === current) await start();
    else await refreshTree();
  },
};

function act(verb, id) {
  $("tree-panel").classList.remove("open");
  return attempt(() => verbs[verb](id));
}

// Forks before a turn of the user and sends another text there.
function resend(index, ask) {
  return (turn) =>
    attempt(async () => {
      const text = ask ? window.prompt("Edit the message", turn.text) : turn.text;
      if (text === null || !text.trim()) return;
      const fork = await api.post(`${base}/${current}/fork`, { at: { turn: index } });
      await open(fork.id);
      await send(text);
    });
}

function rewind(count) {
  return () =>
    attempt(async () => {
      await api.post(`${base}/${current}/rewind`, { at: { turn: count } });
      await open(current);
    });
}

// The buttons of a turn.
function verbsOf(turns, index) {
  const turn = turns[index];
  const list = [];
  if (turn.role === "user") list.push(["edit", "Edit and send again on a fork", resend(index, true)]);
  if (turn.role === "assistant") {
    const asked = index - 1;
    if (turns[asked]?.role === "user") {
      const again = resend(asked, false);
      list.push(["again", "Answer again on a fork", () => again({ text: turns[asked].content })]);
    }
    list.push(["rewind", "Remove everything after this turn", rewind(index + 1)]);
  }
  return list;
}

// Shows a conversation.
async function open(id) {
  stop();
  const conversation = await api.get(`${base}/${id}`);
  current = id;
  history.replaceState(null, "", `#${id}`);
  clear();
  conversation.turns.forEach((turn, index) => {
    const shown = new Turn(turn.role, turn.content ?? "", verbsOf(conversation.turns, index));
    shown.setTokens(turn.tokens);
  });
  toEnd();
  await refreshTree();
}

// Begins a conversation with the system message of the settings.
async function start() {
  const system = settings.system();
  const messages = system ? [{ role: "system", content: system }] : [];
  const conversation = await api.post(base, { model: $("model").value, messages });
  await open(conversation.id);
  $("input").focus();
}

function stop() {
  running?.abort();
}

function setRunning(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
}

// Sends a message and streams the answer.
async function send(text) {
  if (!current) await start();
  const controller = new AbortController();
  running = controller;
  setRunning(true);
  new Turn("user", text);
  const answer = new Turn("assistant", "");
  toEnd();
  const tokens = [];
  let finish = null;
  try {
    const body = {
      ...settings.parameters(),
      conversation: current,
      messages: [{ role: "user", content: text }],
      stream: true,
    };
    for await (const chunk of api.events("POST", "/v1/chat/completions", body, controller.signal)) {
      if (chunk.error) throw new api.ApiError(chunk.error.message);
      if (chunk.kvark) {
        const cache = chunk.kvark.cache;
        answer.note(`${cache.cached_tokens} of ${cache.prompt_tokens} prompt tokens reused (${cache.source})`);
      }
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      if (choice.delta.content) answer.append(choice.delta.content);
      tokens.push(...(choice.logprobs?.content ?? []));
      if (choice.finish_reason) {
        finish = choice.finish_reason;
        const speed = chunk.timings?.predicted_per_second ?? 0;
        answer.note(`${chunk.timings?.predicted_n} tokens, ${speed.toFixed(1)} per second`);
      }
    }
    if (finish === "length") answer.note("The answer was cut (Settings: most tokens of an answer).");
  } catch (error) {
    if (error.name === "AbortError") answer.note("Stopped.");
    else answer.note(error.message, true);
  } finally {
    if (running === controller) {
      running = null;
      setRunning(false);
    }
  }
  if (tokens.length) answer.showTokens(tokens);
  if (controller.signal.aborted) {
    // The server learns of the stop when the connection ends: the turn is there a moment later.
    await new Promise((resume) => setTimeout(resume, 150));
  }
  const shown = current;
  await attempt(async () => {
    if (tokens.length || controller.signal.aborted) await refreshTree();
    else if (shown === current) await open(current);
  });
}

function toggle(button, panel) {
  $(button).addEventListener("click", () => {
    const open = $(panel).classList.toggle("open");
    $(button).setAttribute("aria-expanded", open);
  });
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("input").value.trim();
  if (!text || running) return;
  $("input").value = "";
  attempt(() => send(text));
});
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", () => attempt(start));
$("model").addEventListener("change", () => {
  followCache();
  attempt(start);
});
$("toggle-settings").addEventListener("click", () => $("settings").showModal());
$("settings").addEventListener("close", () => {
  settings.save();
  attempt(refreshTree);
});
toggle("toggle-tree", "tree-panel");
toggle("toggle-cache", "cache-panel");
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) stop();
  if (event.altKey && event.key.toLowerCase() === "n") attempt(start);
});

settings.load();
attempt(async () => {
  const { data } = await api.get("/v1/models");
  for (const model of data) $("model").append(new Option(model.id, model.id));
  followCache();
  const all = await refreshTree();
  const wanted = location.hash.slice(1);
  const known = all.find((conversation) => conversation.id === wanted);
  if (known) await open(known.id);
  else await start();
});
// Other tabs may have changed the tree.
window.addEventListener("focus", () => attempt(refreshTree));
