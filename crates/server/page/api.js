// The server's API: JSON requests and streams of server-sent events.

// An answer that is an error. `status` is 0 if there was no answer.
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const UNREACHABLE = "The server does not answer. The page connects again by itself.";
const BROKEN_OFF = "The connection broke off before the answer was complete.";

function headers() {
  const key = sessionStorage.getItem("key");
  const all = { "content-type": "application/json" };
  if (key) all.authorization = `Bearer ${key}`;
  return all;
}

// The listeners are told whether the server answers.
const reached = new EventTarget();
export const onReach = (listener) => reached.addEventListener("reach", (event) => listener(event.detail));
const tell = (state) => reached.dispatchEvent(new CustomEvent("reach", { detail: state }));

// Runs a part of a request. The browser's own words for a lost connection say nothing to a reader.
async function reach(action, words) {
  try {
    return await action();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    tell("lost");
    throw new ApiError(words);
  }
}

async function checked(response) {
  tell(response.status === 401 ? "locked" : "there");
  if (response.ok) return response;
  const text = await response.text();
  let message = text || response.statusText;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // The body is not an error object: show it as it is.
  }
  throw new ApiError(message, response.status);
}

export async function request(method, path, body, signal) {
  const options = { method, headers: headers(), signal };
  if (body !== undefined) options.body = JSON.stringify(body);
  return checked(await reach(() => fetch(path, options), UNREACHABLE));
}

async function json(method, path, body) {
  const response = await request(method, path, body);
  return reach(() => response.json(), BROKEN_OFF);
}

export const get = (path) => json("GET", path);
export const post = (path, body) => json("POST", path, body ?? {});
export const remove = (path) => json("DELETE", path);

// Yields the data of every event until the stream ends.
export async function* events(method, path, body, signal) {
  const response = await request(method, path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reach(() => reader.read(), BROKEN_OFF);
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n").filter((line) => line.startsWith("data: "));
      const data = lines.map((line) => line.slice(6)).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
