// The server's API: JSON requests and streams of server-sent events.

export class ApiError extends Error {}

function headers() {
  const key = sessionStorage.getItem("key");
  const all = { "content-type": "application/json" };
  if (key) all.authorization = `Bearer ${key}`;
  return all;
}

async function checked(response) {
  if (response.ok) return response;
  const text = await response.text();
  let message = text || response.statusText;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // The body is not an error object: show it as it is.
  }
  throw new ApiError(message);
}

export async function request(method, path, body, signal) {
  const options = { method, headers: headers(), signal };
  if (body !== undefined) options.body = JSON.stringify(body);
  return checked(await fetch(path, options));
}

export async function get(path) {
  return (await request("GET", path)).json();
}

export async function post(path, body) {
  return (await request("POST", path, body ?? {})).json();
}

export async function remove(path) {
  return (await request("DELETE", path)).json();
}

// Yields the data of every event until the stream ends.
export async function* events(method, path, body, signal) {
  const response = await request(method, path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
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
