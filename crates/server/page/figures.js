// The figures beside the map of cells, and the list of owners.

const figures = document.getElementById("figures");
const owners = document.getElementById("owners");

const MOST_OWNERS = 40;

export const bytes = (n) => {
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  while (n >= 1000 && unit < 3) {
    n /= 1000;
    unit++;
  }
  return `${n < 10 && unit ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
};

function show(name, key, value) {
  let data = figures.querySelector(`dd[data-figure="${key}"]`);
  if (!data) {
    const term = document.createElement("dt");
    term.textContent = name;
    data = document.createElement("dd");
    data.dataset.figure = key;
    figures.append(term, data);
  }
  data.textContent = value;
}

function owner(sequence, color) {
  const item = document.createElement("li");
  const swatch = document.createElement("span");
  swatch.className = "swatch";
  swatch.style.background = color(sequence.seq);
  const what = sequence.request === null ? "retained" : `request ${sequence.request}`;
  const pending = sequence.pending > 1 ? `, ${sequence.pending} to compute` : "";
  item.append(swatch, `${what}: ${sequence.tokens} tokens${pending}`);
  return item;
}

// Shows a state of the cache; rates are those since the state `before`.
export function describe(state, before, color) {
  const counters = state.counters;
  const rate = counters.prompt_tokens ? counters.cached_tokens / counters.prompt_tokens : 0;
  let speed = 0;
  if (before && state.uptime > before.uptime) {
    const tokens = counters.generated_tokens - before.counters.generated_tokens;
    speed = tokens / (state.uptime - before.uptime);
  }
  show("Cells in use", "used", `${state.used} of ${state.capacity}`);
  show("Shared cells", "shared", state.shared);
  show("Holes", "holes", Math.max(0, state.high_water - state.used));
  show("Prompt tokens reused", "reused", `${(rate * 100).toFixed(1)} %`);
  show("Tokens per second", "speed", speed.toFixed(1));
  show("Generated tokens", "generated", counters.generated_tokens);
  show("Waiting requests", "waiting", state.waiting);
  const memory = state.memory;
  const total = memory.weights + memory.packed + memory.kv + memory.arena;
  show("Keys and values", "kv", bytes(memory.kv));
  show("Memory", "memory", memory.limit ? `${bytes(total)} of ${bytes(memory.limit)}` : bytes(total));
  const list = state.sequences.slice(0, MOST_OWNERS).map((sequence) => owner(sequence, color));
  owners.replaceChildren(...list);
  if (state.sequences.length > MOST_OWNERS) {
    const more = document.createElement("li");
    more.textContent = `and ${state.sequences.length - MOST_OWNERS} more`;
    owners.append(more);
  }
}
