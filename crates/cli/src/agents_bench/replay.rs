//! Replaying a trace, and counting which tokens were computed again.

use super::peer::{Answer, Ask, GiveUp, Peer};
use super::trace::{Trace, TracedRequest};
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;

/// The tokens and times of one request.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) conversation: String,
    pub(super) kind: String,
    /// Tokens of the prompt, if the server said so or the request was given up.
    pub(super) prompt_tokens: Option<usize>,
    /// Those of them that the server reused, if it says so.
    pub(super) cached_tokens: Option<usize>,
    /// Those of them that the server had computed before.
    pub(super) known_tokens: usize,
    pub(super) first: Option<Duration>,
    pub(super) total: Duration,
    pub(super) cancelled: bool,
    /// Whether the server counts other tokens than it tells for the prompt.
    pub(super) differs: bool,
}

impl Measured {
    /// Tokens that the server computed.
    pub(super) fn computed(&self) -> Option<usize> {
        Some(self.prompt_tokens?.saturating_sub(self.cached_tokens?))
    }

    /// Tokens that the server computed although it had computed them before.
    pub(super) fn again(&self) -> Option<usize> {
        Some(self.known_tokens.saturating_sub(self.cached_tokens?))
    }
}

/// Sends all requests of a trace to a server. `done` hears after each how many are done.
pub(super) fn replay(
    peer: &Peer,
    trace: &Trace,
    done: &mut dyn FnMut(usize),
) -> Result<Vec<Measured>> {
    let mut history = History::default();
    let mut all: Vec<Measured> = vec![];
    for group in &trace.groups {
        let prompts = group
            .iter()
            .map(|request| Prompt::new(peer, trace, request));
        let prompts: Vec<Prompt> = prompts.collect::<Result<_>>()?;
        let known: Vec<f64> = prompts.iter().map(|prompt| history.share(prompt)).collect();
        let ask = |i: usize| {
            let request = &group[i];
            let give_up = request.cancel.map(|share| {
                let len = prompts[i].len();
                let kept = known[i] * len;
                GiveUp {
                    tokens: (kept + (len - kept) * share) as usize,
                    after: time_for(&all, (len - kept) * share),
                }
            });
            let answer = peer.ask(&Ask {
                messages: &request.messages,
                tools: &trace.tools,
                max_tokens: trace.max_tokens,
                context: trace.context,
                give_up,
            });
            let of = || format!("{}, a request of {:?}", peer.name, request.conversation);
            answer.with_context(of)
        };
        let answers: Vec<Result<Answer>> = match group.len() {
            1 => vec![ask(0)],
            n => std::thread::scope(|scope| {
                let ask = &ask;
                let threads: Vec<_> = (0..n).map(|i| scope.spawn(move || ask(i))).collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                    thread.join().expect("a client does not panic")
                };
                threads.into_iter().map(join).collect()
            }),
        };
        let parts = group.iter().zip(prompts).zip(known);
        for (((request, prompt), known), answer) in parts.zip(answers) {
            let answer = answer?;
            all.push(measured(request, &prompt, known, &answer));
            history.add(prompt, answer.given_up);
            done(all.len());
        }
    }
    Ok(all)
}

fn measured(request: &TracedRequest, prompt: &Prompt, known: f64, answer: &Answer) -> Measured {
    let told = prompt.tokens.as_ref().map(Vec::len);
    let prompt_tokens = answer.prompt_tokens.or(told);
    let len = prompt_tokens.unwrap_or(0);
    Measured {
        conversation: request.conversation.clone(),
        kind: request.kind.clone(),
        prompt_tokens,
        cached_tokens: answer.cached_tokens,
        // The last token is always computed: the next one comes out of it.
        known_tokens: ((known * len as f64).round() as usize).min(len.saturating_sub(1)),
        first: answer.first,
        total: answer.total,
        cancelled: answer.given_up.is_some(),
        differs: answer.prompt_tokens.zip(told).is_some_and(|(a, b)| a != b),
    }
}

/// The time that a server needs for this many new tokens, by what it needed so far.
fn time_for(so_far: &[Measured], tokens: f64) -> Option<Duration> {
    let counted = so_far.iter().filter(|one| !one.cancelled);
    let pairs = counted.filter_map(|one| {
        let computed = one.computed().or(one.prompt_tokens)?;
        Some((computed as f64, one.first?.as_secs_f64()))
    });
    let (computed, seconds) = pairs.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    (computed > 0.0).then(|| Duration::from_secs_f64(seconds / computed * tokens))
}

/// A prompt as a server sees it: its tokens if the server tells them, otherwise its text.
struct Prompt {
    tokens: Option<Vec<u64>>,
    text: String,
}

impl Prompt {
    fn new(peer: &Peer, trace: &Trace, request: &TracedRequest) -> Result<Prompt> {
        let tokens = match peer.tells_tokens {
            true => {
                let tokens = peer.tokens(&trace.tools, &request.messages);
                Some(tokens.with_context(|| peer.name.clone())?)
            }
            false => None,
        };
        let text = match &tokens {
            Some(_) => String::new(),
            None => text_of(&trace.tools, &request.messages),
        };
        Ok(Prompt { tokens, text })
    }

    /// Its tokens, or its bytes where the server does not tell.
    fn len(&self) -> f64 {
        let len = self.tokens.as_ref().map_or(self.text.len(), Vec::len);
        len.max(1) as f64
    }
}

/// All that is told to the model, in order.
fn text_of(tools: &[Value], messages: &[Value]) -> String {
    let mut text = String::new();
    for tool in tools {
        text += &tool.to_string();
    }
    for message in messages {
        let role = message["role"].as_str().unwrap_or_default();
        let content = message["content"].as_str().unwrap_or_default();
        text += &format!("\u{1}{role}\n{content}");
        if let Some(calls) = message.get("tool_calls") {
            text += &calls.to_string();
        }
    }
    text
}

/// The prompts that a server has computed.
#[derive(Default)]
struct History {
    tokens: Vec<Vec<u64>>,
    texts: Vec<String>,
}

impl History {
    /// The share of a prompt that the server has computed before.
    fn share(&self, prompt: &Prompt) -> f64 {
        let shared = match &prompt.tokens {
            Some(tokens) => longest(self.tokens.iter().map(|t| &t[..]), tokens),
            None => longest(
                self.texts.iter().map(|t| t.as_bytes()),
                prompt.text.as_bytes(),
            ),
        };
        shared as f64 / prompt.len()
    }

    /// Adds a prompt. Of one that was given up, the tokens count that the server said it had.
    fn add(&mut self, prompt: Prompt, given_up: Option<Option<usize>>) {
        match (prompt.tokens, given_up) {
            (Some(mut tokens), Some(done)) => {
                tokens.truncate(done.unwrap_or(0));
                self.tokens.push(tokens);
            }
            (Some(tokens), None) => self.tokens.push(tokens),
            (None, Some(_)) => {}
            (None, None) => self.texts.push(prompt.text),
        }
    }
}

/// The longest beginning of `wanted` that one of the others has.
fn longest<'a, T: PartialEq + 'a>(others: impl Iterator<Item = &'a [T]>, wanted: &[T]) -> usize {
    let shared = |other: &[T]| other.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    others.map(shared).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_again_is_what_was_known_and_not_reused() {
        let request = TracedRequest {
            conversation: "a".to_owned(),
            kind: "turn".to_owned(),
            messages: vec![],
            cancel: None,
        };
        let mut history = History::default();
        let prompt = |tokens: &[u64]| Prompt {
            tokens: Some(tokens.to_vec()),
            text: String::new(),
        };
        let answer = |cached| Answer {
            cached_tokens: cached,
            ..Answer::default()
        };
        let mut again = |tokens: &[u64], cached, given_up| {
            let prompt = prompt(tokens);
            let known = history.share(&prompt);
            let one = measured(&request, &prompt, known, &answer(cached));
            history.add(prompt, given_up);
            (one.known_tokens, one.again())
        };
        assert_eq!(again(&[1, 2, 3, 4], Some(0), None), (0, Some(0)));
        // The last token of a prompt is computed even if all is known.
        assert_eq!(again(&[1, 2, 3, 4], Some(3), None), (3, Some(0)));
        assert_eq!(again(&[1, 2, 3, 4, 5], Some(1), None), (4, Some(3)));
        assert_eq!(again(&[1, 2, 7, 8, 9, 9], None, Some(Some(4))), (2, None));
        assert_eq!(again(&[1, 2, 7, 8, 9, 9], Some(4), None), (4, Some(0)));
        assert_eq!(again(&[6, 6], None, Some(None)), (0, None));
        assert_eq!(again(&[6, 6, 6], Some(0), None), (0, Some(0)));
    }

    #[test]
    fn texts_stand_for_tokens_that_a_server_does_not_tell() {
        let message = |role: &str, text: &str| serde_json::json!({ "role": role, "content": text });
        let first = [message("system", "be brief"), message("user", "one")];
        let second = [message("system", "be brief"), message("user", "two")];
        let (a, b) = (text_of(&[], &first), text_of(&[], &second));
        let mut history = History::default();
        let of = |text: &str| Prompt {
            tokens: None,
            text: text.to_owned(),
        };
        history.add(of(&a), None);
        assert!((history.share(&of(&a)) - 1.0).abs() < 1e-9);
        let share = history.share(&of(&b));
        assert!(share > 0.7 && share < 1.0, "{share}");
    }
}
