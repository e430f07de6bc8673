// One answer of the server: streamed into a turn.

import * as api from "./api.js";
import * as settings from "./settings.js";
import * as speculation from "./speculation.js";

// Sends messages to a conversation and appends the answer to the turn `shown`; without messages its last answer goes on. `begun`
// is called when the answer begins. Returns the notes and the tokens of the answer, and whether it failed.
export async function stream(conversation, messages, shown, signal, begun) {
  const answer = { notes: [], tokens: [], error: false };
  const note = (line) => {
    answer.notes.push(line);
    shown.note(line);
  };
  const body = {
    ...settings.parameters(),
    conversation,
    messages,
    stream: true,
  };
  shown.element.classList.add("running");
  speculation.begin();
  try {
    for await (const chunk of api.events("POST", "/v1/chat/completions", body, signal)) {
      if (chunk.error) throw new api.ApiError(chunk.error.message);
      if (chunk.kvark?.round) speculation.add(chunk.kvark.round);
      if (chunk.kvark?.cache) {
        const { cached_tokens: cached, prompt_tokens: prompt, source } = chunk.kvark.cache;
        note(`${cached} of ${prompt} prompt tokens reused${cached ? ` (${source})` : ""}`);
        begun().catch(() => {});
      }
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      if (choice.delta.reasoning_content) shown.think(choice.delta.reasoning_content);
      if (choice.delta.content) shown.append(choice.delta.content);
      choice.delta.tool_calls?.forEach((call) => shown.call(call));
      answer.tokens.push(...(choice.logprobs?.content ?? []));
      if (choice.finish_reason) {
        const { predicted_n: count, predicted_per_second: speed } = chunk.timings ?? {};
        if (speed) note(`${count} tokens, ${speed.toFixed(1)} per second`);
        const spec = chunk.timings?.spec;
        if (spec?.rounds) note(`${spec.accepted} of ${spec.drafted} candidates accepted in ${spec.rounds} rounds`);
        if (choice.finish_reason === "length") note("Cut at the most tokens of an answer (Settings) or the context.");
      }
    }
  } catch (error) {
    if (error.name === "AbortError") {
      note("Stopped.");
    } else {
      answer.error = true;
      shown.note(error.message, true);
    }
  } finally {
    shown.element.classList.remove("running");
  }
  shown.flush();
  // Tokens of a part of an answer are not those of its text.
  if (messages.length && answer.tokens.length) shown.showTokens(answer.tokens);
  return answer;
}
