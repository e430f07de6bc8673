// The page: chat on branches, beside the live map of the cache.

import * as answers from "./answers.js";
import * as api from "./api.js";
import * as attachments from "./attachments.js";
import { follow } from "./cells.js";
import { stream } from "./chat.js";
import { watch } from "./connection.js";
import * as fill from "./fill.js";
import * as kept from "./kept.js";
import { copyText } from "./markdown.js";
import { closePanels } from "./panels.js";
import * as settings from "./settings.js";
import * as transfer from "./transfer.js";
import * as tree from "./tree.js";
import { Turn, clear, hint, toEnd } from "./turns.js";

const $ = (id) => document.getElementById(id);
const base = "/v1/kvark/conversations";
const otherTabs = new BroadcastChannel("kvark");

// The conversation that is shown, as the server described it last; null before the first message of a new one.
let current = null;
let running = null;
let followed = null;
let refreshes = 0;

function status(text) {
  $("status").textContent = text;
}

// Runs an action and shows its error.
async function attempt(action) {
  try {
    status("");
    return await action();
  } catch (error) {
    // Lines of their own say that the server is away or wants a key.
    const said = error instanceof api.ApiError && [0, 401].includes(error.status);
    if (error.name !== "AbortError" && !said) status(error.message);
    return undefined;
  }
}

function followCache() {
  followed?.abort();
  followed = new AbortController();
  follow($("model").value, followed.signal, () => attempt(refresh));
}

// Draws the tree, and what others changed in the conversation that is shown.
async function refresh() {
  const before = current;
  const number = ++refreshes;
  const { data } = await api.get(base);
  // A later refresh draws a later list.
  if (number !== refreshes) return data;
  // The list may be older than what was shown meanwhile.
  if (current && current === before && !running) {
    const now = data.find((conversation) => conversation.id === current.id);
    const edits = document.querySelector("#turns .editor");
    if (!now) {
      draft();
      status("The conversation was deleted elsewhere.");
    } else if (!edits && now.turns.length !== current.turns.length) {
      show(now);
    }
  }
  tree.draw(data, current?.id, act);
  kept.follow(data, load);
  return data;
}

// Draws the tree here and in other tabs.
async function changed() {
  otherTabs.postMessage("changed");
  await refresh();
}

const verbs = {
  async switch(id) {
    await open(id);
  },
  async fork(id) {
    await fork(id);
    await changed();
  },
  async keep(id) {
    await api.post(`${base}/${id}/keep`);
    await open(id);
    await changed();
  },
  async delete(id) {
    if (id === current?.id) stop();
    await api.remove(`${base}/${id}`);
    kept.forget(id);
    if (id === current?.id) draft();
    await changed();
  },
};

function act(verb, id) {
  closePanels();
  return attempt(() => verbs[verb](id));
}

// Forks a conversation, everything of it unless `turns` says how many stay, and shows the fork.
async function fork(id, turns) {
  const parent = id === current?.id ? current : await api.get(`${base}/${id}`);
  const made = await api.post(`${base}/${id}/fork`, turns === undefined ? {} : { at: { turn: turns } });
  answers.copy(parent, made);
  stop();
  show(made);
}

// Sends a text in place of a turn of the user, on a fork.
function resend(index, text) {
  return attempt(async () => {
    await fork(current.id, index);
    await send(text);
  });
}

function rewind(count) {
  return attempt(async () => {
    stop();
    show(await api.post(`${base}/${current.id}/rewind`, { at: { turn: count } }));
    await changed();
  });
}

// The buttons of a turn.
function verbsOf(turns, index) {
  const turn = turns[index];
  const copy = async (shown, made) => {
    made.textContent = (await copyText(shown.text)) ? "copied" : "not copied";
  };
  const list = [["copy", "Copy the text", copy]];
  if (turn.role === "user") {
    list.push(["edit", "Edit and send on a fork", (shown) => shown.edit((text) => resend(index, text))]);
  }
  if (turn.role === "assistant") {
    const asked = turns[index - 1];
    if (turn.partial && index + 1 === turns.length) {
      list.push(["continue", "Let the answer go on where it was cut", goOn]);
    }
    if (asked?.role === "user") {
      list.push(["again", "Answer again on a fork", () => resend(index - 1, asked.content)]);
    }
    if (index + 1 < turns.length) {
      list.push(["rewind", "Remove everything after this answer", () => rewind(index + 1)]);
    }
  }
  return list;
}

// Shows a conversation.
function show(conversation) {
  current = conversation;
  history.replaceState(null, "", `#${conversation.id}`);
  clear();
  conversation.turns.forEach((turn, index) => {
    const shown = new Turn(turn.role, turn.content ?? "");
    if (turn.reasoning_content) shown.think(turn.reasoning_content, true);
    turn.tool_calls?.forEach((call, at) => shown.call({ index: at, ...call }));
    shown.setTokens(turn.tokens);
    shown.setVerbs(verbsOf(conversation.turns, index));
    const known = answers.recall(conversation, index);
    if (known?.tokens.length && settings.probabilities()) shown.showTokens(known.tokens);
    known?.notes.forEach((note) => shown.note(note));
  });
  fill.show(conversation.tokens);
  toEnd();
}

async function open(id) {
  stop();
  show(await api.get(`${base}/${id}`));
  await refresh();
}

// Shows a new conversation. The server learns of it with the first message.
function draft() {
  stop();
  current = null;
  history.replaceState(null, "", location.pathname);
  clear();
  fill.show(0);
  if (settings.system()) new Turn("system", settings.system());
  hint("Write a message. Branches appear on one side, the cells of the cache on the other.");
  $("input").focus();
}

function startNew() {
  closePanels();
  return attempt(async () => {
    draft();
    await refresh();
  });
}

function stop() {
  running?.abort();
}

function setRunning(controller) {
  running = controller;
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
}

async function create() {
  const system = settings.system();
  const messages = system ? [{ role: "system", content: system }] : [];
  show(await api.post(base, { model: $("model").value, messages }));
}

// Sends a message and streams the answer.
async function send(text) {
  const controller = new AbortController();
  setRunning(controller);
  const fresh = !current;
  try {
    if (fresh) await create();
    const conversation = current;
    const count = conversation.turns.length;
    new Turn("user", text);
    const shown = new Turn("assistant", "");
    toEnd();
    const messages = [{ role: "user", content: text }];
    const answer = await stream(conversation.id, messages, shown, controller.signal, changed);
    if (answer.error && !shown.text) {
      if (!$("input").value) $("input").value = text;
      await takeBack(conversation, count, fresh);
      return;
    }
    answers.remember(conversation, count + 1, { text: shown.text, ...answer });
    // Something else may be shown by now.
    if (current !== conversation) return;
    const now = await api.get(`${base}/${conversation.id}`);
    if (now.turns.length === count + 2) show(now);
    else current = now;
    fill.show(now.tokens);
  } finally {
    if (running === controller) setRunning(null);
    await quietly(changed);
  }
}

// Lets the last answer go on, also on a fork that was made while it was generated.
function goOn(shown) {
  if (running) return undefined;
  const controller = new AbortController();
  setRunning(controller);
  return attempt(async () => {
    const conversation = current;
    try {
      const answer = await stream(conversation.id, [], shown, controller.signal, changed);
      answers.remember(conversation, conversation.turns.length - 1, { text: shown.text, ...answer, tokens: [] });
      if (!answer.error && current === conversation) show(await api.get(`${base}/${conversation.id}`));
    } finally {
      if (running === controller) setRunning(null);
      await quietly(changed);
    }
  });
}

// Takes back a turn that got no answer, so that sending again does not ask twice. The page goes on showing it.
async function takeBack(conversation, count, fresh) {
  const path = `${base}/${conversation.id}`;
  if (!fresh) await api.post(`${path}/rewind`, { at: { turn: count } });
  else await api.remove(path);
  if (fresh && current === conversation) {
    current = null;
    history.replaceState(null, "", location.pathname);
  }
}

// Runs an action whose failure must not replace another message: the next refresh tries again.
const quietly = (action) => action().catch(() => {});

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("input").value.trim();
  if ((!text && !attachments.any()) || running) return;
  $("input").value = "";
  attempt(() => send(attachments.withFiles(text)));
});
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
$("stop").addEventListener("click", () => {
  stop();
  $("input").focus();
});
$("new").addEventListener("click", startNew);
$("model").addEventListener("change", () => {
  followCache();
  startNew();
});
$("toggle-settings").addEventListener("click", () => $("settings").showModal());
$("settings").addEventListener("close", () => {
  settings.save();
  if (!$("model").options.length) begin();
  else if (!current) draft();
  else if (!running) show(current);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("settings").open) {
    stop();
    closePanels();
  }
  if (event.altKey && event.code === "KeyN") startNew();
});
// Other tabs and other clients may have changed the tree.
otherTabs.addEventListener("message", () => quietly(refresh));
window.addEventListener("focus", () => quietly(refresh));

// Saves all conversations as a file, or adds those of one.
$("export").addEventListener("click", () => attempt(async () => transfer.save((await api.get(base)).data)));
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", async () => {
  const [file] = $("import-file").files;
  if (!file) return;
  const json = await file.text();
  $("import-file").value = "";
  await load(json);
});

function load(json) {
  return attempt(async () => {
    try {
      await transfer.load(json, $("model").value);
    } finally {
      await changed();
    }
  });
}
attachments.listen(status);

function begin() {
  return attempt(async () => {
    const { data } = await api.get("/v1/models");
    const chosen = $("model").value;
    $("model").replaceChildren(...data.map((model) => new Option(model.id, model.id)));
    if (data.some((model) => model.id === chosen)) $("model").value = chosen;
    const wanted = location.hash.slice(1);
    draft();
    const all = await refresh();
    if (all.some((conversation) => conversation.id === wanted)) await open(wanted);
    followCache();
    // A server of several models may have unloaded the first one.
    await quietly(async () => {
      const { default_generation_settings: defaults } = await api.get(`/props?model=${encodeURIComponent($("model").value)}`);
      settings.showDefaults(defaults);
      fill.setContext(defaults.n_ctx);
    });
  });
}

// What the page shows may be old when the server is there again.
watch(() => ($("model").options.length ? attempt(connectAgain) : begin()));

async function connectAgain() {
  status("");
  followCache();
  if (current && !running) {
    const all = await refresh();
    const now = all.find((conversation) => conversation.id === current?.id);
    if (now && !document.querySelector("#turns .editor")) show(now);
  } else {
    await refresh();
  }
}

settings.load();
begin();
