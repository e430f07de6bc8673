// The live map of the cache: one square a cell, coloured by owner, striped where several hold it.

import * as api from "./api.js";

const canvas = document.getElementById("cells");
const info = document.getElementById("cell-info");
const figures = document.getElementById("figures");
const owners = document.getElementById("owners");

let state = null;
let columns = 1;
let size = 6;
let before = null;
const texts = new Map();

const color = (seq) => `hsl(${(seq * 137.5) % 360} 60% 50%)`;
const bytes = (n) => {
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  while (n >= 1000 && unit < 3) {
    n /= 1000;
    unit++;
  }
  return `${n < 10 && unit ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
};

// The owners of every cell up to the last one in use.
function holders() {
  const cells = Array.from({ length: state.high_water }, () => []);
  for (const sequence of state.sequences) {
    for (const [cell, position, len] of sequence.runs) {
      for (let i = 0; i < len && cell + i < cells.length; i++) {
        cells[cell + i].push([sequence.seq, position + i]);
      }
    }
  }
  return cells;
}

function draw() {
  const width = canvas.clientWidth || 280;
  // All cells that matter fit in about 400 pixels of height.
  const shown = Math.max(256, Math.min(state.capacity, Math.ceil(state.high_water * 1.25)));
  size = Math.max(2, Math.min(10, Math.floor(Math.sqrt((width * 400) / shown))));
  columns = Math.max(1, Math.floor(width / size));
  const rows = Math.ceil(shown / columns);
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = rows * size * scale;
  canvas.style.height = `${rows * size}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const styles = getComputedStyle(document.documentElement);
  const free = styles.getPropertyValue("--free");
  const cells = holders();
  const gap = size > 3 ? 1 : 0;
  for (let cell = 0; cell < shown; cell++) {
    const x = (cell % columns) * size;
    const y = Math.floor(cell / columns) * size;
    const held = cells[cell] ?? [];
    pen.fillStyle = held.length ? color(held[0][0]) : free;
    pen.fillRect(x, y, size - gap, size - gap);
    if (held.length > 1) {
      pen.fillStyle = color(held[1][0]);
      pen.fillRect(x, y + Math.floor(size / 2), size - gap, Math.max(1, Math.floor(size / 3)));
    }
  }
  canvas.dataset.used = state.used;
  canvas.setAttribute("aria-label", `Map of cells: ${state.used} of ${state.capacity} in use`);
}

function show(name, value) {
  const term = document.createElement("dt");
  const data = document.createElement("dd");
  term.textContent = name;
  data.textContent = value;
  figures.append(term, data);
}

function describe() {
  figures.replaceChildren();
  const counters = state.counters;
  const rate = counters.prompt_tokens ? counters.cached_tokens / counters.prompt_tokens : 0;
  let speed = 0;
  if (before && state.uptime > before.uptime) {
    const tokens = counters.generated_tokens - before.counters.generated_tokens;
    speed = tokens / (state.uptime - before.uptime);
  }
  show("Cells in use", `${state.used} of ${state.capacity}`);
  show("Shared", state.shared);
  show("Holes", Math.max(0, state.high_water - state.used));
  show("Prompt tokens reused", `${(rate * 100).toFixed(1)} %`);
  show("Tokens per second", speed.toFixed(1));
  show("Waiting", state.waiting);
  show("Evicted prefixes", state.evictions);
  const memory = state.memory;
  const total = memory.weights + memory.packed + memory.kv + memory.arena;
  show("Keys and values", bytes(memory.kv));
  show("Memory", memory.limit ? `${bytes(total)} of ${bytes(memory.limit)}` : bytes(total));
  if (state.disk.files) show("On disk", `${state.disk.files} (${bytes(state.disk.bytes)})`);
  owners.replaceChildren();
  for (const sequence of state.sequences.slice(0, 40)) {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = color(sequence.seq);
    const what = sequence.request === null ? "retained" : `request ${sequence.request}`;
    const pending = sequence.pending > 1 ? `, ${sequence.pending} to compute` : "";
    item.append(swatch, `${what}: ${sequence.tokens} tokens${pending}`);
    owners.append(item);
  }
}

async function point(event) {
  if (!state) return;
  const box = canvas.getBoundingClientRect();
  const x = Math.floor((event.clientX - box.left) / size);
  const y = Math.floor((event.clientY - box.top) / size);
  const cell = y * columns + x;
  const held = (cell < state.high_water && holders()[cell]) || [];
  if (!held.length) {
    info.textContent = `cell ${cell}: free`;
    return;
  }
  const [seq, position] = held[0];
  const key = `${seq}/${state.sequences.find((s) => s.seq === seq)?.tokens}`;
  if (!texts.has(key)) {
    texts.clear();
    texts.set(key, api.get(`/v1/kvark/cache/${seq}?model=${encodeURIComponent(state.model)}`));
  }
  try {
    const { texts: list } = await texts.get(key);
    const token = JSON.stringify(list[position] ?? "");
    const shared = held.length > 1 ? `, held by ${held.length}` : "";
    info.textContent = `cell ${cell}: token ${token} at position ${position}${shared}`;
  } catch (error) {
    texts.clear();
    info.textContent = error.message;
  }
}

canvas.addEventListener("pointermove", point);
canvas.addEventListener("pointerdown", point);
window.addEventListener("resize", () => state && draw());

// Follows the cache of a model until `signal` aborts. Connects again when the connection ends.
export async function follow(model, signal) {
  const path = `/v1/kvark/events?model=${encodeURIComponent(model)}`;
  while (!signal.aborted) {
    try {
      for await (const next of api.events("GET", path, undefined, signal)) {
        before = state && state.model === next.model ? state : null;
        state = next;
        draw();
        describe();
      }
    } catch {
      if (signal.aborted) return;
    }
    await new Promise((resume) => setTimeout(resume, 1000));
  }
}

document.getElementById("clear-cache").addEventListener("click", async () => {
  if (state) await api.remove(`/v1/kvark/cache?model=${encodeURIComponent(state.model)}`);
});
