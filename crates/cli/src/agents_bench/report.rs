//! The report of a replay: a table for each server, or one JSON object.

use super::peer::Peer;
use super::replay::Measured;
use super::trace::Trace;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// A server with what it needed for the requests.
pub(super) struct Replayed {
    pub(super) peer: Peer,
    pub(super) requests: Vec<Measured>,
    /// The state of the cache of kvark's server after the replay; `None` for other servers.
    pub(super) cache: Option<Value>,
}

/// Sums over some requests.
#[derive(Default)]
struct Sums {
    requests: usize,
    prompt: usize,
    computed: Option<usize>,
    again: Option<usize>,
    first: Duration,
    total: Duration,
}

impl Sums {
    fn of<'a>(requests: impl Iterator<Item = &'a Measured>) -> Sums {
        let mut sums = Sums::default();
        for one in requests {
            sums.requests += 1;
            sums.prompt += one.prompt_tokens.unwrap_or(0);
            if let Some((computed, again)) = one.computed().zip(one.again()) {
                sums.computed = Some(sums.computed.unwrap_or(0) + computed);
                sums.again = Some(sums.again.unwrap_or(0) + again);
            }
            sums.first += one.first.unwrap_or_default();
            sums.total += one.total;
        }
        sums
    }

    fn json(&self) -> Value {
        json!({
            "requests": self.requests,
            "prompt_tokens": self.prompt,
            "computed_tokens": self.computed,
            "computed_again": self.again,
            "first_token_seconds": self.first.as_secs_f64(),
            "seconds": self.total.as_secs_f64(),
        })
    }
}

impl Replayed {
    /// The kinds of requests with their sums, in the order of the trace.
    fn kinds(&self) -> Vec<(&str, Sums)> {
        let mut names: Vec<&str> = vec![];
        for one in &self.requests {
            if !names.contains(&&*one.kind) {
                names.push(&one.kind);
            }
        }
        let of = |name| {
            let own = self.requests.iter().filter(|one| one.kind == name);
            (name, Sums::of(own))
        };
        names.into_iter().map(of).collect()
    }

    /// The table of a server.
    pub(super) fn table(&self) -> String {
        let peer = &self.peer;
        let mut out = format!("{} ({}, {})\n", peer.name, peer.address(), peer.model);
        let kinds = self.kinds();
        let width = kinds.iter().map(|(name, _)| name.chars().count());
        let width = width.max().unwrap_or(0).max(14);
        let head = [
            "REQUESTS",
            "PROMPT",
            "COMPUTED",
            "AGAIN",
            "FIRST TOKEN",
            "TOTAL",
        ];
        let [requests, prompt, computed, again, first, total] = head;
        _ = writeln!(
            out,
            "{:<width$}  {requests:>8}  {prompt:>8}  {computed:>8}  {again:>8}  {first:>11}  {total:>9}",
            "KIND"
        );
        let sign = if peer.tells_tokens { "" } else { "~" };
        let number = |n: Option<usize>, sign: &str| match n {
            Some(n) => format!("{sign}{n}"),
            None => "-".to_owned(),
        };
        let all = ("all", Sums::of(self.requests.iter()));
        for (name, sums) in kinds.iter().chain([&all]) {
            _ = writeln!(
                out,
                "{name:<width$}  {:>8}  {:>8}  {:>8}  {:>8}  {:>9.2} s  {:>7.2} s",
                sums.requests,
                sums.prompt,
                number(sums.computed, ""),
                number(sums.again, sign),
                sums.first.as_secs_f64(),
                sums.total.as_secs_f64(),
            );
        }
        for note in self.notes() {
            _ = writeln!(out, "{note}");
        }
        out
    }

    /// Notes under the table on how the counts were obtained.
    fn notes(&self) -> Vec<String> {
        let mut notes = vec![];
        if !self.peer.states_cached {
            notes.push("This server does not say which tokens it reused.".to_owned());
        } else if !self.peer.tells_tokens {
            notes.push(
                "~: this server does not tell the tokens of a prompt; shares of the text stand for them."
                    .to_owned(),
            );
        }
        let differing = self.requests.iter().filter(|one| one.differs).count();
        if differing > 0 {
            notes.push(format!(
                "{differing} prompts had other tokens than /tokenize says."
            ));
        }
        notes
    }

    pub(super) fn json(&self) -> Value {
        let kinds = self.kinds().into_iter();
        let kinds = kinds.map(|(name, sums)| (name.to_owned(), sums.json()));
        let request = |one: &Measured| {
            json!({
                "conversation": one.conversation,
                "kind": one.kind,
                "prompt_tokens": one.prompt_tokens,
                "cached_tokens": one.cached_tokens,
                "known_tokens": one.known_tokens,
                "computed_again": one.again(),
                "first_token_seconds": one.first.map(|time| time.as_secs_f64()),
                "seconds": one.total.as_secs_f64(),
                "cancelled": one.cancelled,
            })
        };
        json!({
            "name": self.peer.name,
            "address": self.peer.address(),
            "api": self.peer.api.name(),
            "model": self.peer.model,
            "states_reuse": self.peer.states_cached,
            "exact": self.peer.tells_tokens,
            "notes": self.notes(),
            "all": Sums::of(self.requests.iter()).json(),
            "kinds": kinds.collect::<Map<String, Value>>(),
            "requests": self.requests.iter().map(request).collect::<Vec<_>>(),
            "cache": self.cache,
        })
    }
}

/// The JSON of all servers.
pub(super) fn report(trace: &Trace, servers: &[Replayed]) -> Value {
    json!({
        "trace": trace.about,
        "requests": trace.requests(),
        "servers": servers.iter().map(Replayed::json).collect::<Vec<_>>(),
    })
}
