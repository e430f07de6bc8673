//! DRY ("don't repeat yourself"): a penalty on tokens that would extend a repetition of earlier text. It grows exponentially
//! with the length of the repetition.

use super::SamplerOptions;
use super::candidates::Candidates;
use super::chain::{self, Effect, Link};
use std::collections::HashMap;

/// The DRY stage with its sequence breakers and scratch.
#[derive(Clone)]
pub(super) struct DryPenalty {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: usize,
    /// Sequence breakers by their first token; the values are the tokens after it.
    breakers: HashMap<u32, Vec<Vec<u32>>>,
    /// Scratch: the recent tokens, the last one first.
    reversed: Vec<u32>,
    /// Scratch: at each index, how many tokens from there on equal the first ones of `reversed`.
    matches: Vec<usize>,
    /// Scratch: the length of the longest repetition that a token would extend.
    longest: HashMap<u32, usize>,
}

pub(super) fn link(options: &SamplerOptions) -> Option<Box<dyn Link>> {
    let mut dry = DryPenalty::new(options)?;
    chain::link(Effect::Adjusts, move |candidates, history, _| {
        dry.apply(candidates, history)
    })
}

impl DryPenalty {
    /// The stage of these options; `None` if they turn it off.
    pub(super) fn new(options: &SamplerOptions) -> Option<DryPenalty> {
        let on = options.dry_multiplier != 0.0
            && options.dry_base >= 1.0
            && options.dry_penalty_last_n > 0;
        if !on {
            return None;
        }
        let mut breakers: HashMap<u32, Vec<Vec<u32>>> = HashMap::new();
        for breaker in &options.dry_breaker_tokens {
            if let Some((first, rest)) = breaker.split_first() {
                breakers.entry(*first).or_default().push(rest.to_vec());
            }
        }
        Some(DryPenalty {
            multiplier: options.dry_multiplier,
            base: options.dry_base,
            allowed_length: options.dry_allowed_length,
            last_n: options.dry_penalty_last_n,
            breakers,
            reversed: Vec::new(),
            matches: Vec::new(),
            longest: HashMap::new(),
        })
    }

    /// Subtracts the penalties of the tokens that would extend a repetition.
    pub(super) fn apply(&mut self, candidates: &mut Candidates<'_>, history: &[u32]) {
        self.find_repetitions(history);
        for (id, length) in &self.longest {
            if let Some(logit) = candidates.logit_mut(*id) {
                let beyond = (length - self.allowed_length) as f32;
                let penalty = self.multiplier * self.base.powf(beyond);
                *logit -= penalty.min(f32::MAX);
            }
        }
    }

    /// Fills `longest`.
    fn find_repetitions(&mut self, history: &[u32]) {
        self.longest.clear();
        let recent = &history[history.len().saturating_sub(self.last_n)..];
        if recent.len() <= self.allowed_length {
            return;
        }
        self.reversed.clear();
        self.reversed.extend(recent.iter().rev());
        let limit = self.tokens_since_breaker();
        if limit < self.allowed_length {
            return;
        }
        self.find_matches();
        // The token before an earlier occurrence, in the reversed order, is the one that followed it in the text.
        for (next, length) in self.reversed.iter().zip(&self.matches[1..]) {
            let length = (*length).min(limit);
            if length >= self.allowed_length {
                let longest = self.longest.entry(*next).or_default();
                *longest = (*longest).max(length);
            }
        }
    }

    /// Number of tokens after the last sequence breaker: repetitions are not followed across one.
    fn tokens_since_breaker(&self) -> usize {
        let tokens = &self.reversed;
        for (i, token) in tokens.iter().enumerate() {
            let follows = |rest: &&Vec<u32>| {
                rest.len() <= i && rest.iter().eq(tokens[i - rest.len()..i].iter().rev())
            };
            let found = self.breakers.get(token).into_iter().flatten();
            if let Some(longest) = found.filter(follows).map(Vec::len).max() {
                return i - longest;
            }
        }
        tokens.len()
    }

    /// Fills `matches` by the Z algorithm, in a time linear in the number of tokens.
    fn find_matches(&mut self) {
        let tokens = &self.reversed;
        let matches = &mut self.matches;
        matches.clear();
        matches.resize(tokens.len(), 0);
        // The match found so far that ends furthest right.
        let (mut start, mut end) = (0, 0);
        for i in 1..tokens.len() {
            let known = match i < end {
                true => matches[i - start].min(end - i),
                false => 0,
            };
            let more = tokens[i + known..].iter().zip(&tokens[known..]);
            let length = known + more.take_while(|(a, b)| a == b).count();
            matches[i] = length;
            if i + length > end {
                (start, end) = (i, i + length);
            }
        }
    }
}
