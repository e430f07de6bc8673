// What the cache did for the requests: what they reused, where it is kept, and what left memory and why.

import { bytes } from "./figures.js";

const reuse = document.getElementById("reuse");
const rungs = document.getElementById("rungs");
const summary = document.getElementById("eviction-summary");
const evictions = document.getElementById("evictions");

const LISTED_EVICTIONS = 8;

// The words for reasons that the server names.
const reasons = { room: "its cells were needed", count: "too many prefixes" };
const misses = {
  new: "new",
  empty: "nothing alike stored",
  differs: "another text",
  evicted: "evicted",
  window_evicted: "out of a window",
  no_state: "no state kept",
  disabled: "reuse turned off",
};

const sum = (counts) => Object.values(counts).reduce((all, n) => all + n, 0);

function figure([key, name, value]) {
  const term = document.createElement("dt");
  term.textContent = name;
  const data = document.createElement("dd");
  data.dataset.figure = key;
  data.textContent = value;
  return [term, data];
}

// A part of a whole, in words.
const share = (part, whole) => (whole ? `${part} (${((part / whole) * 100).toFixed(0)} %)` : "0");

function milliseconds(micros) {
  return micros < 10_000 ? `${(micros / 1000).toFixed(1)} ms` : `${Math.round(micros / 1000)} ms`;
}

function rung({ name, prefixes, tokens, bytes: held, limit }) {
  const item = document.createElement("li");
  item.dataset.rung = name;
  const meter = document.createElement("meter");
  meter.max = Math.max(limit, held, 1);
  meter.value = held;
  const text = document.createElement("span");
  const of = limit ? ` of ${bytes(limit)}` : "";
  text.textContent = `${name}: ${bytes(held)}${of}, ${tokens} tokens, ${prefixes} ${prefixes === 1 ? "prefix" : "prefixes"}`;
  meter.setAttribute("aria-label", text.textContent);
  item.append(text, meter);
  return item;
}

function eviction({ tokens, reason, kept_on, seconds_ago }) {
  const item = document.createElement("li");
  const kept = kept_on ? `kept on ${kept_on}` : "not kept";
  item.textContent = `${tokens} tokens: ${reasons[reason] ?? reason}, ${kept}, ${seconds_ago} s ago`;
  return item;
}

// Shows what a state of the cache says of reuse.
export function summarise(state) {
  const { requests, tokens, computed } = state.reuse;
  const all = sum(requests);
  const figures = [["hits", "Requests that reused", share(all - (requests.none ?? 0), all)]];
  for (const [source, count] of Object.entries(requests)) {
    if (source !== "none") figures.push([`hits-${source}`, `… from ${source}`, `${count} (${tokens[source] ?? 0} tokens)`]);
  }
  figures.push(["saved", "Tokens saved", share(state.counters.cached_tokens, state.counters.prompt_tokens)]);
  for (const [reason, count] of Object.entries(computed)) {
    figures.push([`computed-${reason}`, `Computed: ${misses[reason] ?? reason}`, count]);
  }
  figures.push(["gap", "Longest gap of a stream", milliseconds(state.counters.longest_gap_micros)]);
  reuse.replaceChildren(...figures.flatMap(figure));
  rungs.replaceChildren(...state.rungs.map(rung));
  const { reasons: counts, last } = state.evicted;
  const parts = Object.entries(counts).map(([reason, count]) => `${count} because ${reasons[reason] ?? reason}`);
  summary.textContent = parts.length ? parts.join(", ") : "None so far.";
  evictions.replaceChildren(...last.slice(0, LISTED_EVICTIONS).map(eviction));
}
