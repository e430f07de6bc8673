// Sampling settings, kept in the browser. An empty field leaves the choice to the server.

const numbers = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens"];
const field = (name) => document.getElementById(name);

export function load() {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem("kvark-settings")) ?? {};
  } catch {
    // Not JSON: another program wrote it. The defaults stay.
  }
  for (const name of [...numbers, "system", "spec_type"]) {
    if (kept[name] !== undefined) field(name).value = kept[name];
  }
  field("probabilities").checked = kept.probabilities ?? false;
  field("key").value = sessionStorage.getItem("key") ?? "";
}

export function save() {
  const kept = { system: field("system").value, spec_type: field("spec_type").value, probabilities: field("probabilities").checked };
  for (const name of numbers) kept[name] = field(name).value;
  localStorage.setItem("kvark-settings", JSON.stringify(kept));
  const key = field("key").value;
  if (key) sessionStorage.setItem("key", key);
  else sessionStorage.removeItem("key");
}

// Shows the model's own sampling in the empty fields.
export function showDefaults(defaults) {
  for (const name of numbers) {
    if (defaults[name] !== undefined) field(name).placeholder = Number(defaults[name].toFixed(3));
  }
}

// The parameters of a completion.
export function parameters() {
  const all = {};
  for (const name of numbers) {
    const value = field(name).value;
    if (value !== "" && field(name).checkValidity()) all[name] = Number(value);
  }
  const speculation = field("spec_type").value;
  if (speculation) {
    all.spec_type = speculation;
    all.spec_trace = true;
  }
  if (probabilities()) {
    all.logprobs = true;
    all.top_logprobs = 5;
  }
  return all;
}

export const probabilities = () => field("probabilities").checked;
export const system = () => field("system").value.trim();
