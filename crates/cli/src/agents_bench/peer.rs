//! `Peer`: a server that a trace is replayed against, over OpenAI's API or Ollama's.

use anyhow::{Context, Result, bail};
use kvark::hub::{Heard, HubError, HubErrorKind, PlainHttp};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often a server is asked how far it is with a prompt that will be given up.
const ASK_PROGRESS: Duration = Duration::from_millis(40);
/// The longest wait for a server to notice that a request was given up.
const UNTIL_IDLE: Duration = Duration::from_secs(60);

/// The API that a server is asked over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    OpenAi,
    Ollama,
}

impl Api {
    pub(super) fn name(self) -> &'static str {
        match self {
            Api::OpenAi => "openai",
            Api::Ollama => "ollama",
        }
    }
}

/// A server.
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) api: Api,
    pub(super) model: String,
    http: PlainHttp,
    /// Whether it says how many tokens of a prompt were reused.
    pub(super) states_cached: bool,
    /// Whether it tells the tokens of a prompt (`/apply-template` and `/tokenize`).
    pub(super) tells_tokens: bool,
    /// Whether it tells how far a prompt is (`/slots`).
    tells_progress: bool,
}

/// A request.
pub(super) struct Ask<'a> {
    pub(super) messages: &'a [Value],
    pub(super) tools: &'a [Value],
    pub(super) max_tokens: usize,
    /// Tokens that the server must hold for the conversation.
    pub(super) context: usize,
    pub(super) give_up: Option<GiveUp>,
}

/// When a request is given up: once this many tokens of its prompt are computed or reused, or, where the server does not tell, after
/// this time.
#[derive(Clone, Copy, Debug)]
pub(super) struct GiveUp {
    pub(super) tokens: usize,
    pub(super) after: Option<Duration>,
}

/// The answer of a server to one request.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) prompt_tokens: Option<usize>,
    pub(super) cached_tokens: Option<usize>,
    /// From the request to the first text.
    pub(super) first: Option<Duration>,
    pub(super) total: Duration,
    /// If it was given up: the tokens that were computed or reused by then, where the server tells.
    pub(super) given_up: Option<Option<usize>>,
}

impl Peer {
    /// Finds out what a server is and what it tells, with two short chats, which also make it load its model.
    pub(super) fn connect(
        name: String,
        http: PlainHttp,
        api: Option<Api>,
        model: Option<&str>,
        context: usize,
    ) -> Result<Peer> {
        // A server without a name of its own is named by its address, which errors have.
        let named = (!name.starts_with("http://")).then(|| name.clone());
        let connected = Peer::introduce(name, http, api, model, context);
        match named {
            Some(name) => connected.context(name),
            None => connected,
        }
    }

    fn introduce(
        name: String,
        http: PlainHttp,
        api: Option<Api>,
        model: Option<&str>,
        context: usize,
    ) -> Result<Peer> {
        let api = match api {
            Some(api) => api,
            None => detect(&http)?,
        };
        let model = match model {
            Some(model) => model.to_owned(),
            None => first_model(&http, api)?,
        };
        let mut peer = Peer {
            name,
            api,
            model,
            http,
            states_cached: false,
            tells_tokens: false,
            tells_progress: false,
        };
        let words = "one two three four five six seven eight nine ten ".repeat(6);
        let messages = [json!({ "role": "user", "content": words })];
        let ask = Ask {
            messages: &messages,
            tools: &[],
            max_tokens: 1,
            context,
            give_up: None,
        };
        peer.ask(&ask)?;
        peer.states_cached = peer.ask(&ask)?.cached_tokens.is_some();
        if peer.api == Api::OpenAi {
            peer.tells_tokens = peer.tokens(&[], &messages).is_ok_and(|ids| !ids.is_empty());
            peer.tells_progress = peer.slots().is_some();
        }
        Ok(peer)
    }

    pub(super) fn address(&self) -> String {
        self.http.address()
    }

    /// The tokens of a prompt.
    pub(super) fn tokens(&self, tools: &[Value], messages: &[Value]) -> Result<Vec<u64>> {
        let mut body = json!({ "model": self.model, "messages": messages });
        if !tools.is_empty() {
            body["tools"] = tools.into();
        }
        let rendered = self.http.post_json("/apply-template", &body)?;
        let text = rendered["prompt"].as_str();
        let text = text.context("/apply-template returns no prompt")?;
        let body = json!({ "model": self.model, "content": text, "add_special": true, "parse_special": true });
        let tokens = self.http.post_json("/tokenize", &body)?;
        let ids = tokens["tokens"].as_array();
        let ids = ids.context("/tokenize returns no tokens")?;
        let ids: Option<Vec<u64>> = ids.iter().map(Value::as_u64).collect();
        ids.context("/tokenize returns no numbers")
    }

    /// Sends a request and measures the answer.
    pub(super) fn ask(&self, ask: &Ask<'_>) -> Result<Answer> {
        let (path, body) = match self.api {
            Api::OpenAi => ("/v1/chat/completions", self.openai_body(ask)),
            Api::Ollama => ("/api/chat", self.ollama_body(ask)),
        };
        let begun = Instant::now();
        let mut answer = Answer::default();
        let mut failure = None;
        let mut ended = false;
        let mut asked = begun;
        let whole = self
            .http
            .post_lines(path, &body, &mut |heard| match heard {
                Heard::Line(line) => {
                    let part = match self.api {
                        Api::OpenAi => line.strip_prefix("data:").unwrap_or("").trim(),
                        Api::Ollama => line.trim(),
                    };
                    if part.is_empty() || part == "[DONE]" {
                        return true;
                    }
                    match serde_json::from_str(part) {
                        Ok(part) => {
                            ended |= answer.hear(self.api, &part, begun.elapsed());
                            failure = part.get("error").map(Value::to_string);
                        }
                        Err(error) => failure = Some(format!("{part:?} is no JSON: {error}")),
                    }
                    failure.is_none()
                }
                Heard::Nothing => {
                    let Some(give_up) = ask.give_up else {
                        return true;
                    };
                    if !self.tells_progress {
                        let is_time = give_up.after.is_some_and(|after| begun.elapsed() >= after);
                        answer.given_up = is_time.then_some(None);
                    } else if asked.elapsed() >= ASK_PROGRESS {
                        asked = Instant::now();
                        let done = self.progress().filter(|done| *done >= give_up.tokens);
                        answer.given_up = done.map(Some);
                    }
                    answer.given_up.is_none()
                }
            })?;
        if let Some(failure) = failure {
            bail!("{}{path}: {failure}", self.address());
        }
        answer.total = begun.elapsed();
        if whole && !ended {
            bail!("{}{path}: the answer has no end", self.address());
        }
        if answer.given_up.is_some() {
            self.wait_until_idle()?;
        }
        Ok(answer)
    }

    fn openai_body(&self, ask: &Ask<'_>) -> Value {
        let mut body = json!({
            "model": self.model,
            "messages": ask.messages,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if !ask.tools.is_empty() {
            body["tools"] = ask.tools.into();
        }
        body
    }

    fn ollama_body(&self, ask: &Ask<'_>) -> Value {
        let mut messages = ask.messages.to_vec();
        // There, arguments are objects.
        let calls = messages
            .iter_mut()
            .filter_map(|message| message.get_mut("tool_calls")?.as_array_mut())
            .flatten();
        for call in calls {
            let arguments = &mut call["function"]["arguments"];
            let text = arguments.as_str().unwrap_or_default();
            *arguments = serde_json::from_str(text).unwrap_or_else(|_| json!({}));
        }
        let options = json!({
            "num_predict": ask.max_tokens,
            "num_ctx": ask.context,
            "temperature": 0,
        });
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "stream": true,
            "options": options,
        });
        if !ask.tools.is_empty() {
            body["tools"] = ask.tools.into();
        }
        body
    }

    fn slots(&self) -> Option<Vec<Value>> {
        let path = format!("/slots?model={}", percent_encoded(&self.model));
        self.http.get_json(&path).ok()?.as_array().cloned()
    }

    /// Tokens of the prompt that is being computed, reused ones included.
    fn progress(&self) -> Option<usize> {
        let slots = self.slots()?;
        let busy = slots.iter().find(|slot| slot["is_processing"] == true)?;
        let number = |field: &str| busy[field].as_u64();
        let done = number("n_past").or_else(|| {
            let cached = number("n_prompt_tokens_cache").unwrap_or(0);
            Some(number("n_prompt_tokens_processed")? + cached)
        });
        done.map(|n| n as usize)
    }

    /// Waits until a server that tells has noticed that nobody reads its answers.
    fn wait_until_idle(&self) -> Result<()> {
        let begun = Instant::now();
        while let Some(slots) = self.slots().filter(|_| self.tells_progress) {
            if slots.iter().all(|slot| slot["is_processing"] != true) {
                break;
            }
            if begun.elapsed() > UNTIL_IDLE {
                bail!(
                    "{} goes on with a request that was given up",
                    self.address()
                );
            }
            std::thread::sleep(ASK_PROGRESS);
        }
        Ok(())
    }

    /// The state of the cache of kvark's server; `None` for other servers.
    pub(super) fn cache(&self) -> Option<Value> {
        let path = format!("/v1/kvark/cache?model={}", percent_encoded(&self.model));
        let mut state = self.http.get_json(&path).ok()?;
        let fields = [
            "rungs",
            "reuse",
            "evictions",
            "evicted",
            "counters",
            "memory",
        ];
        let kept = fields.map(|field| (field.to_owned(), state[field].take()));
        Some(Value::Object(kept.into_iter().collect()))
    }
}

impl Answer {
    /// Takes in a part of an answer. Returns whether the answer has ended.
    fn hear(&mut self, api: Api, part: &Value, now: Duration) -> bool {
        let number = |path: &str| {
            part.pointer(path)
                .and_then(Value::as_u64)
                .map(|n| n as usize)
        };
        let said = |message: &Value| {
            let text = ["content", "reasoning_content", "reasoning", "thinking"];
            let has_text = |field: &&str| message[*field].as_str().is_some_and(|t| !t.is_empty());
            text.iter().any(has_text) || message["tool_calls"].is_array()
        };
        let (speaks, ended) = match api {
            Api::OpenAi => {
                let choice = &part["choices"][0];
                (said(&choice["delta"]), choice["finish_reason"].is_string())
            }
            Api::Ollama => (said(&part["message"]), part["done"] == true),
        };
        if speaks || ended {
            self.first.get_or_insert(now);
        }
        let (prompt, cached) = match api {
            Api::OpenAi => {
                let cached = number("/usage/prompt_tokens_details/cached_tokens");
                let cached = cached.or_else(|| number("/timings/cache_n"));
                let computed = number("/timings/prompt_n");
                let both = computed.zip(number("/timings/cache_n"));
                let prompt = number("/usage/prompt_tokens");
                (prompt.or(both.map(|(a, b)| a + b)), cached)
            }
            Api::Ollama => {
                let cached = number("/prompt_eval_cached_count");
                (number("/prompt_eval_count"), cached)
            }
        };
        self.prompt_tokens = prompt.or(self.prompt_tokens);
        self.cached_tokens = cached.or(self.cached_tokens);
        ended
    }
}

/// Ollama has a page with its version, and other servers have not.
fn detect(http: &PlainHttp) -> Result<Api> {
    let version = http.get_json("/api/version");
    match version {
        Ok(version) if version["version"].is_string() => return Ok(Api::Ollama),
        Err(error) if !answers(&error) => return Err(error.into()),
        _ => {}
    }
    match http.get_json("/v1/models") {
        Ok(models) if models["data"].is_array() => Ok(Api::OpenAi),
        Err(error) if matches!(error.kind(), HubErrorKind::Interrupted) => Err(error.into()),
        Err(error) if is_refusal(&error) => Err(error.into()),
        _ => bail!(
            "{} has neither OpenAI's API (/v1/models) nor Ollama's (/api/version)",
            http.address()
        ),
    }
}

/// Whether the error is an answer of a server.
fn answers(error: &HubError) -> bool {
    match error.kind() {
        HubErrorKind::Status { .. } => true,
        HubErrorKind::NoAnswer { message, .. } => message.contains("no JSON"),
        _ => false,
    }
}

/// Whether the server wants a key.
fn is_refusal(error: &HubError) -> bool {
    matches!(
        error.kind(),
        HubErrorKind::Status {
            status: 401 | 403,
            ..
        }
    )
}

/// The model that a server lists first.
fn first_model(http: &PlainHttp, api: Api) -> Result<String> {
    let (path, list, field) = match api {
        Api::OpenAi => ("/v1/models", "data", "id"),
        Api::Ollama => ("/api/tags", "models", "name"),
    };
    let models = http.get_json(path)?;
    let first = models[list][0][field].as_str();
    let first = first.with_context(|| format!("{}{path} lists no model", http.address()))?;
    Ok(first.to_owned())
}

/// A name as a part of an address.
fn percent_encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let byte = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    name.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(api: Api, parts: &[Value]) -> (Answer, bool) {
        let mut answer = Answer::default();
        let mut ended = false;
        for (i, part) in parts.iter().enumerate() {
            ended |= answer.hear(api, part, Duration::from_secs(i as u64));
        }
        (answer, ended)
    }

    #[test]
    fn counts_come_from_usage_or_timings_or_ollamas_fields() {
        let chunk = |delta: Value, finish: Value| json!({ "choices": [{ "delta": delta, "finish_reason": finish }] });
        let begin = chunk(json!({ "role": "assistant", "content": "" }), Value::Null);
        let text = chunk(json!({ "content": "a" }), Value::Null);
        let end = chunk(json!({}), json!("length"));
        let usage = json!({ "choices": [], "usage": { "prompt_tokens": 9, "prompt_tokens_details": { "cached_tokens": 7 } } });
        let timings = json!({ "choices": [], "timings": { "prompt_n": 2, "cache_n": 7 } });
        for counts in [usage, timings] {
            let parts = [begin.clone(), text.clone(), end.clone(), counts];
            let (answer, ended) = heard(Api::OpenAi, &parts);
            assert!(ended);
            assert_eq!(
                (answer.prompt_tokens, answer.cached_tokens),
                (Some(9), Some(7))
            );
            assert_eq!(answer.first, Some(Duration::from_secs(1)));
        }
        let silent = json!({ "choices": [], "usage": { "prompt_tokens": 9 } });
        let (answer, _) = heard(Api::OpenAi, &[begin, end, silent]);
        assert_eq!(
            (answer.prompt_tokens, answer.cached_tokens),
            (Some(9), None)
        );
        let text = json!({ "message": { "content": "a" }, "done": false });
        let end = json!({ "message": { "content": "" }, "done": true, "prompt_eval_count": 9, "prompt_eval_cached_count": 7 });
        let (answer, ended) = heard(Api::Ollama, &[text, end]);
        assert!(ended);
        assert_eq!(
            (answer.prompt_tokens, answer.cached_tokens),
            (Some(9), Some(7))
        );
    }

    #[test]
    fn ollama_gets_arguments_as_objects() {
        let http = PlainHttp::new("http://localhost:1", None, || false).unwrap();
        let peer = Peer {
            name: String::new(),
            api: Api::Ollama,
            model: "m".to_owned(),
            http,
            states_cached: true,
            tells_tokens: false,
            tells_progress: false,
        };
        let call = json!({ "function": { "name": "f", "arguments": "{\"a\": 1}" } });
        let messages = [json!({ "role": "assistant", "content": "", "tool_calls": [call] })];
        let body = peer.ollama_body(&Ask {
            messages: &messages,
            tools: &[],
            max_tokens: 3,
            context: 99,
            give_up: None,
        });
        let arguments = body.pointer("/messages/0/tool_calls/0/function/arguments");
        assert_eq!(arguments, Some(&json!({ "a": 1 })));
        assert_eq!(body["options"]["num_ctx"], 99);
        assert_eq!(percent_encoded("a b/c"), "a%20b%2Fc");
    }
}
