//! `NgramProposer`: prompt lookup. It proposes what followed earlier occurrences of the last tokens.

use super::proposal::Proposal;
use super::tree_proposal::TreeProposal;
use std::collections::{BinaryHeap, HashMap};

/// The shortest repetition that is continued.
const MIN_MATCH: u32 = 2;
/// Occurrences are counted in this many states after each token: those of its longest suffixes.
const MAX_COUNTED_SUFFIXES: usize = 24;

/// Proposes the continuations of earlier occurrences of the last tokens, from a suffix automaton over prompt and history.
pub(super) struct NgramProposer {
    automaton: SuffixAutomaton,
    /// Tokens before the history, which it is expected to repeat.
    prediction: Vec<u32>,
    history: Vec<u32>,
}

impl NgramProposer {
    /// A proposer that also knows these tokens.
    pub(super) fn new(prediction: &[u32]) -> NgramProposer {
        let mut automaton = SuffixAutomaton::new();
        prediction.iter().for_each(|token| automaton.push(*token));
        NgramProposer {
            automaton,
            prediction: prediction.to_vec(),
            history: vec![],
        }
    }

    /// Appends the tokens that are new; begins again if the history is another one.
    fn follow(&mut self, history: &[u32]) {
        let known = self.history.len();
        if history.len() < known || history[..known] != self.history[..] {
            *self = NgramProposer::new(&self.prediction);
        }
        for &token in &history[self.history.len()..] {
            self.automaton.push(token);
            self.history.push(token);
        }
    }

    /// Proposes a tree of continuations.
    pub(super) fn propose(&mut self, proposal: &Proposal<'_>) -> TreeProposal {
        let mut tree = TreeProposal::new(proposal.root());
        self.follow(proposal.history);
        let automaton = &self.automaton;
        let mut open = BinaryHeap::new();
        // The longest suffix that occurred before, and shorter ones that may have other continuations.
        let mut state = automaton.states[automaton.last].link;
        let mut trust = 1.0;
        for _ in 0..3 {
            let Some(known) = state.filter(|s| automaton.states[*s].len >= MIN_MATCH) else {
                break;
            };
            let matched = automaton.states[known].len;
            let sure = trust * (1.0 - 0.75 / matched as f32);
            open.push(Branch {
                likelihood: sure,
                node: 0,
                state: known,
            });
            trust *= 0.4;
            state = automaton.states[known].link;
        }
        // Best first: the branch with the highest likelihood grows next.
        while let Some(branch) = open.pop() {
            let depth = tree.depths()[branch.node as usize] as usize;
            if tree.len() > proposal.max_candidates || depth >= proposal.max_depth {
                continue;
            }
            let next = automaton.continuations(branch.state, proposal.top_k);
            for (token, state, share) in next {
                if tree.len() > proposal.max_candidates {
                    break;
                }
                let given_parent = match branch.node {
                    0 => branch.likelihood * share,
                    _ => 0.98 * share,
                };
                let node = tree.push(branch.node, token, given_parent);
                open.push(Branch {
                    likelihood: branch.likelihood * share,
                    node,
                    state,
                });
            }
        }
        tree
    }
}

/// A node of the tree that can grow.
struct Branch {
    likelihood: f32,
    node: u32,
    state: usize,
}

impl Ord for Branch {
    fn cmp(&self, other: &Branch) -> std::cmp::Ordering {
        let likelihood = self.likelihood.total_cmp(&other.likelihood);
        likelihood.then(other.node.cmp(&self.node))
    }
}

impl PartialOrd for Branch {
    fn partial_cmp(&self, other: &Branch) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Branch {
    fn eq(&self, other: &Branch) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Branch {}

/// The suffix automaton of a token sequence: a state for every set of substrings with the same ends. It grows by a token in
/// constant amortised time.
struct SuffixAutomaton {
    states: Vec<State>,
    /// The state of the whole sequence.
    last: usize,
    tokens: u32,
}

#[derive(Clone, Default)]
struct State {
    /// The length of its longest substring.
    len: u32,
    /// The state of the longest suffix that has other ends too.
    link: Option<usize>,
    next: HashMap<u32, usize>,
    /// Occurrences, as far as they were counted.
    count: u32,
    /// The end of the last counted occurrence.
    seen: u32,
}

impl SuffixAutomaton {
    fn new() -> SuffixAutomaton {
        SuffixAutomaton {
            states: vec![State::default()],
            last: 0,
            tokens: 0,
        }
    }

    fn push(&mut self, token: u32) {
        let new = self.states.len();
        self.tokens += 1;
        self.states.push(State {
            len: self.states[self.last].len + 1,
            ..State::default()
        });
        let mut at = Some(self.last);
        while let Some(state) = at.filter(|s| !self.states[*s].next.contains_key(&token)) {
            self.states[state].next.insert(token, new);
            at = self.states[state].link;
        }
        self.states[new].link = Some(match at {
            None => 0,
            Some(state) => {
                let target = self.states[state].next[&token];
                match self.states[target].len == self.states[state].len + 1 {
                    true => target,
                    false => self.split(state, target, token),
                }
            }
        });
        self.last = new;
        self.count_suffixes();
    }

    /// Separates the substrings of `target` that end `state` and `token` into a state of their own.
    fn split(&mut self, state: usize, target: usize, token: u32) -> usize {
        let clone = self.states.len();
        let copy = State {
            len: self.states[state].len + 1,
            ..self.states[target].clone()
        };
        self.states.push(copy);
        self.states[target].link = Some(clone);
        let mut at = Some(state);
        while let Some(state) = at.filter(|s| self.states[*s].next.get(&token) == Some(&target)) {
            self.states[state].next.insert(token, clone);
            at = self.states[state].link;
        }
        clone
    }

    /// Counts an occurrence of the longest suffixes.
    fn count_suffixes(&mut self) {
        let mut at = Some(self.last);
        for _ in 0..MAX_COUNTED_SUFFIXES {
            let Some(state) = at.filter(|state| *state != 0) else {
                break;
            };
            let state = &mut self.states[state];
            state.count += 1;
            state.seen = self.tokens;
            at = state.link;
        }
    }

    /// The tokens that followed a state, with their states and shares: the most frequent first, then the most recent.
    fn continuations(&self, state: usize, max: usize) -> Vec<(u32, usize, f32)> {
        let next = self.states[state].next.iter();
        let mut all: Vec<(u32, usize)> = next.map(|(token, state)| (*token, *state)).collect();
        let rank = |(token, state): &(u32, usize)| {
            let state = &self.states[*state];
            (std::cmp::Reverse((state.count, state.seen)), *token)
        };
        all.sort_unstable_by_key(rank);
        let count = |state: usize| self.states[state].count.max(1) as f32;
        let total: f32 = all.iter().map(|(_, state)| count(*state)).sum();
        all.truncate(max);
        all.into_iter()
            .map(|(token, state)| (token, state, count(state) / total))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(history: &[u32]) -> Proposal<'_> {
        Proposal {
            history,
            max_candidates: 6,
            max_depth: 4,
            top_k: 3,
            min_likelihood: 0.0,
            features: None,
        }
    }

    fn tree(proposer: &mut NgramProposer, history: &[u32]) -> TreeProposal {
        proposer.propose(&proposal(history))
    }

    #[test]
    fn a_repetition_is_continued() {
        let mut proposer = NgramProposer::new(&[]);
        let found = tree(&mut proposer, &[1, 2, 3, 4, 5, 9, 2, 3]);
        assert_eq!(found.tokens(), [3, 4, 5, 9, 2]);
        assert_eq!(found.max_depth(), 4);
        assert_eq!(tree(&mut proposer, &[1, 2, 3, 4, 5, 9, 2, 3, 8]).len(), 1);
    }

    #[test]
    fn several_continuations_make_a_tree_with_the_frequent_one_first() {
        let history = [1, 2, 5, 1, 2, 5, 1, 2, 6, 1, 2];
        let found = tree(&mut NgramProposer::new(&[]), &history);
        let children: Vec<u32> = found
            .children(0)
            .map(|n| found.tokens()[n as usize])
            .collect();
        assert_eq!(children, [5, 6]);
        assert!(found.probabilities()[1] > found.probabilities()[2]);
        assert!(found.len() <= 7);
    }

    #[test]
    fn another_history_begins_again() {
        let mut proposer = NgramProposer::new(&[]);
        tree(&mut proposer, &[1, 2, 3, 1, 2]);
        let found = tree(&mut proposer, &[7, 8, 9, 7, 8]);
        assert_eq!(found.tokens()[..2], [8, 9]);
    }

    /// The state of a suffix has exactly the continuations that a search of the history finds.
    #[test]
    fn the_automaton_finds_what_a_search_finds() {
        let mut seed = 1u64;
        for _ in 0..200 {
            let mut history = vec![];
            let mut automaton = SuffixAutomaton::new();
            for _ in 0..40 {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let token = (seed >> 33) as u32 % 3;
                history.push(token);
                automaton.push(token);
            }
            let state = automaton.states[automaton.last].link.unwrap();
            let len = automaton.states[state].len as usize;
            let suffix = &history[history.len() - len..];
            let follows = |n: usize| -> Vec<u32> {
                let suffix = &history[history.len() - n..];
                let starts = 0..history.len() - n;
                let mut all: Vec<u32> = starts
                    .filter(|i| &history[*i..i + n] == suffix)
                    .map(|i| history[i + n])
                    .collect();
                all.sort_unstable();
                all.dedup();
                all
            };
            assert!(follows(len + 1).is_empty(), "{suffix:?} is the longest");
            let mut found: Vec<u32> = automaton.states[state].next.keys().copied().collect();
            found.sort_unstable();
            assert_eq!(found, follows(len));
        }
    }

    #[test]
    fn a_prediction_is_proposed_before_the_answer_has_any_of_it() {
        let mut proposer = NgramProposer::new(&[1, 2, 7, 8, 9]);
        assert_eq!(tree(&mut proposer, &[5, 1, 2]).tokens()[1..3], [7, 8]);
        // The history counts too, also when it is another one.
        assert_eq!(tree(&mut proposer, &[5, 7, 8]).tokens()[1..2], [9]);
        assert_eq!(tree(&mut NgramProposer::new(&[]), &[5, 1, 2]).len(), 1);
    }
}
