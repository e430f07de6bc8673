// Sampling settings, kept in the browser.

const numbers = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens"];
const field = (name) => document.getElementById(name);

export function load() {
  const kept = JSON.parse(localStorage.getItem("kvark-settings") ?? "{}");
  for (const name of [...numbers, "system"]) {
    if (kept[name] !== undefined) field(name).value = kept[name];
  }
  field("probabilities").checked = kept.probabilities ?? false;
  field("key").value = sessionStorage.getItem("key") ?? "";
}

export function save() {
  const kept = { system: field("system").value, probabilities: field("probabilities").checked };
  for (const name of numbers) kept[name] = field(name).value;
  localStorage.setItem("kvark-settings", JSON.stringify(kept));
  const key = field("key").value;
  if (key) sessionStorage.setItem("key", key);
  else sessionStorage.removeItem("key");
}

// The parameters of a completion.
export function parameters() {
  const all = {};
  for (const name of numbers) {
    const value = field(name).value;
    if (value !== "" && field(name).checkValidity()) all[name] = Number(value);
  }
  if (field("probabilities").checked) {
    all.logprobs = true;
    all.top_logprobs = 5;
  }
  return all;
}

export const system = () => field("system").value.trim();
