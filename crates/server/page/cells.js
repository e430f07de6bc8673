// The live map of the cache: one square a cell, coloured by owner, striped where several hold it.
// Holes and cells that were never used have colours of their own; cells that window layers no longer see are pale.

import * as api from "./api.js";
import { summarise } from "./dashboard.js";
import { describe } from "./figures.js";

const canvas = document.getElementById("cells");
const info = document.getElementById("cell-info");

let state = null;
let cells = [];
let shown = 0;
let columns = 1;
let size = 6;
let chosen = null;
const texts = new Map();

export const color = (seq) => `hsl(${(seq * 137.5) % 360} 60% 50%)`;

// The owners of every cell up to the last one in use.
function holders() {
  const all = Array.from({ length: state.high_water }, () => []);
  for (const sequence of state.sequences) {
    for (const [cell, position, len] of sequence.runs) {
      for (let i = 0; i < len && cell + i < all.length; i++) {
        all[cell + i].push([sequence.seq, position + i]);
      }
    }
  }
  return all;
}

// Whether the cell's token is out of the window of all its owners.
function outside(held) {
  if (!state.window || !held.length) return false;
  return held.every(([seq, position]) => {
    const tokens = state.sequences.find((s) => s.seq === seq)?.tokens ?? 0;
    return position < tokens - state.window;
  });
}

// Diagonal stripes of the first owners' colours; halves where a cell is too small for them.
function stripes(pen, x, y, side, held) {
  const colors = held.slice(0, 3).map(([seq]) => color(seq));
  pen.save();
  pen.beginPath();
  pen.rect(x, y, side, side);
  pen.clip();
  const step = side < 6 ? side / colors.length : side / 3;
  for (let i = 0; i * step < side * 2; i++) {
    pen.fillStyle = colors[i % colors.length];
    pen.beginPath();
    pen.moveTo(x + i * step, y);
    pen.lineTo(x + (i + 1) * step, y);
    pen.lineTo(x + (i + 1) * step - side, y + side);
    pen.lineTo(x + i * step - side, y + side);
    pen.fill();
  }
  pen.restore();
}

function draw() {
  const width = canvas.clientWidth;
  // The panel is closed on a narrow screen.
  if (!state || !width) return;
  // All cells that matter fit in about 400 pixels of height.
  shown = Math.max(256, Math.min(state.capacity, Math.ceil(state.high_water * 1.25)));
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
  const hole = styles.getPropertyValue("--hole");
  cells = holders();
  const side = size > 3 ? size - 1 : size;
  let striped = 0;
  let faded = 0;
  for (let cell = 0; cell < shown; cell++) {
    const x = (cell % columns) * size;
    const y = Math.floor(cell / columns) * size;
    const held = cells[cell] ?? [];
    const pale = outside(held);
    if (pale) faded++;
    pen.globalAlpha = pale ? 0.35 : 1;
    if (held.length > 1) {
      stripes(pen, x, y, side, held);
      striped++;
      continue;
    }
    pen.fillStyle = held.length ? color(held[0][0]) : cell < cells.length ? hole : free;
    pen.fillRect(x, y, side, side);
  }
  pen.globalAlpha = 1;
  if (chosen !== null && chosen < shown) {
    pen.strokeStyle = styles.getPropertyValue("--text");
    pen.lineWidth = 2;
    pen.strokeRect((chosen % columns) * size, Math.floor(chosen / columns) * size, side, side);
  }
  Object.assign(canvas.dataset, { used: state.used, striped, faded, columns, size });
  canvas.setAttribute("aria-label", `Map of cells: ${state.used} of ${state.capacity} in use, ${striped} shared`);
}

// Tells what the chosen cell holds.
async function tell() {
  const cell = chosen;
  const held = cells[cell] ?? [];
  if (!held.length) {
    info.textContent = cell < cells.length ? `cell ${cell}: hole` : `cell ${cell}: not used yet`;
    return;
  }
  const [seq, position] = held[0];
  const key = `${seq}/${state.sequences.find((s) => s.seq === seq)?.tokens}`;
  if (!texts.has(key)) {
    texts.clear();
    texts.set(key, api.get(`/v1/kvark/cache/${seq}?model=${encodeURIComponent(state.model)}`));
  }
  try {
    const { texts: list, ids } = await texts.get(key);
    if (cell !== chosen) return;
    // Special tokens have no text.
    const token = list[position] ? JSON.stringify(list[position]) : `number ${ids[position]}`;
    const shared = held.length > 1 ? `, shared by ${held.length}` : "";
    const gone = outside(held) ? ", outside the window" : "";
    info.textContent = `cell ${cell}: token ${token} at position ${position}${shared}${gone}`;
  } catch (error) {
    texts.clear();
    info.textContent = error.message;
  }
}

function choose(cell) {
  if (!state || cell < 0 || cell >= shown || cell === chosen) return;
  chosen = cell;
  draw();
  tell();
}

function point(event) {
  const box = canvas.getBoundingClientRect();
  const x = Math.floor((event.clientX - box.left - canvas.clientLeft) / size);
  const y = Math.floor((event.clientY - box.top - canvas.clientTop) / size);
  if (x >= 0 && x < columns) choose(y * columns + x);
}

canvas.addEventListener("pointermove", point);
canvas.addEventListener("pointerdown", point);
canvas.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
  if (!step) return;
  event.preventDefault();
  choose(chosen === null ? 0 : chosen + step);
});
new ResizeObserver(draw).observe(canvas);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

// Follows the cache of a model until `signal` aborts. Connects again when the connection ends. `changed` is called when
// requests began or ended.
export async function follow(model, signal, changed) {
  const path = `/v1/kvark/events?model=${encodeURIComponent(model)}`;
  let requests = null;
  while (!signal.aborted) {
    try {
      for await (const next of api.events("GET", path, undefined, signal)) {
        const before = state?.model === next.model ? state : null;
        state = next;
        draw();
        describe(state, before, color);
        summarise(state);
        const now = JSON.stringify(state.sequences.map((sequence) => sequence.request));
        if (requests !== null && requests !== now) changed();
        requests = now;
      }
    } catch (error) {
      // With a key the page begins anew.
      if (signal.aborted || error.status === 401) return;
    }
    info.textContent = "No connection to the server: trying again.";
    await new Promise((resume) => setTimeout(resume, 400));
  }
}

document.getElementById("clear-cache").addEventListener("click", async () => {
  if (!state) return;
  try {
    await api.remove(`/v1/kvark/cache?model=${encodeURIComponent(state.model)}`);
  } catch (error) {
    info.textContent = error.message;
  }
});
