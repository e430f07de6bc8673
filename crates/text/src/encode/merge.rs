//! Repeated merging of neighbours, best pair first: the loop that BPE and SentencePiece share.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A byte range of the text and its token, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// Byte offset of its first byte.
    pub(crate) start: usize,
    /// Byte offset past its last byte.
    pub(crate) end: usize,
    /// Its token, if the vocabulary has it.
    pub(crate) id: Option<u32>,
}

/// The result of merging two neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Lower ranks merge earlier; equal ranks from left to right.
    pub(crate) rank: u32,
    /// The token that results.
    pub(crate) id: u32,
}

/// Merges neighbours until `pair` returns `None` for all of them.
///
/// Calls `pair` fewer than `3 n` times for `n` symbols and takes `O(n log n)` heap steps, however long the word is.
pub(crate) fn merge_all(
    symbols: Vec<Symbol>,
    pair: impl Fn(&Symbol, &Symbol) -> Option<Merge>,
) -> impl Iterator<Item = Symbol> {
    let mut list = SymbolList::new(symbols);
    let mut queue = BinaryHeap::new();
    for left in 0..list.symbols.len().saturating_sub(1) {
        queue.extend(list.candidate(left, &pair));
    }
    while let Some(Reverse(candidate)) = queue.pop() {
        let Some(left) = list.apply(&candidate) else {
            continue;
        };
        queue.extend(list.candidate(left, &pair));
        if let Some(before) = list.links[left].before {
            queue.extend(list.candidate(before, &pair));
        }
    }
    list.into_symbols()
}

/// A merge waiting in the queue, ordered by rank and then by place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MergeCandidate {
    rank: u32,
    left: usize,
    /// The ends of the two parts, to detect stale candidates.
    ends: (usize, usize),
    id: u32,
}

#[derive(Debug, Clone, Copy)]
struct SymbolLink {
    before: Option<usize>,
    after: Option<usize>,
    alive: bool,
}

/// The symbols as a doubly linked list over a vector.
struct SymbolList {
    symbols: Vec<Symbol>,
    links: Vec<SymbolLink>,
}

impl SymbolList {
    fn new(symbols: Vec<Symbol>) -> Self {
        let count = symbols.len();
        let link = |at: usize| SymbolLink {
            before: at.checked_sub(1),
            after: Some(at + 1).filter(|&next| next < count),
            alive: true,
        };
        Self {
            links: (0..count).map(link).collect(),
            symbols,
        }
    }

    fn candidate(
        &self,
        left: usize,
        pair: &impl Fn(&Symbol, &Symbol) -> Option<Merge>,
    ) -> Option<Reverse<MergeCandidate>> {
        let (first, second) = (&self.symbols[left], &self.symbols[self.links[left].after?]);
        let Merge { rank, id } = pair(first, second)?;
        Some(Reverse(MergeCandidate {
            rank,
            left,
            ends: (first.end, second.end),
            id,
        }))
    }

    /// Applies a merge and returns the index of the result; `None` if the candidate is stale.
    fn apply(&mut self, candidate: &MergeCandidate) -> Option<usize> {
        let left = candidate.left;
        let SymbolLink { after, alive, .. } = self.links[left];
        let right = after.filter(|_| alive)?;
        if (self.symbols[left].end, self.symbols[right].end) != candidate.ends {
            return None;
        }
        self.symbols[left].end = self.symbols[right].end;
        self.symbols[left].id = Some(candidate.id);
        let next = self.links[right].after;
        self.links[right].alive = false;
        self.links[left].after = next;
        if let Some(next) = next {
            self.links[next].before = Some(left);
        }
        Some(left)
    }

    fn into_symbols(self) -> impl Iterator<Item = Symbol> {
        let pairs = self.symbols.into_iter().zip(self.links);
        pairs
            .filter(|(_, link)| link.alive)
            .map(|(symbol, _)| symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str, ranked: &[&str]) -> Vec<String> {
        let symbols = text.char_indices().map(|(start, c)| Symbol {
            start,
            end: start + c.len_utf8(),
            id: None,
        });
        let merged = merge_all(symbols.collect(), |left, right| {
            let rank = ranked
                .iter()
                .position(|r| *r == &text[left.start..right.end])? as u32;
            Some(Merge { rank, id: rank })
        });
        merged.map(|s| text[s.start..s.end].to_owned()).collect()
    }

    #[test]
    fn rank_then_place_decide() {
        let cases: [(&str, &[&str], &[&str]); 6] = [
            ("", &[], &[]),
            ("a", &["aa"], &["a"]),
            ("aaa", &["aa"], &["aa", "a"]),
            ("abc", &["bc", "ab"], &["a", "bc"]),
            ("abcd", &["ab", "cd", "abcd"], &["abcd"]),
            // `ab` goes stale when `bc` takes its right half.
            ("abcabc", &["bc", "ab", "abc"], &["abc", "abc"]),
        ];
        for (text, ranked, want) in cases {
            assert_eq!(run(text, ranked), want, "{text}");
        }
    }

    #[test]
    fn later_merges_wait_for_their_rank() {
        // Rank order, not left-to-right order: `aa` twice before `aaaa`.
        assert_eq!(run("aaaaaaa", &["aa", "aaaa"]), ["aaaa", "aa", "a"]);
    }

    /// A merge asks for the pairs on its two sides and for no others, so a long word costs as much as its symbols.
    #[test]
    fn pairs_are_looked_up_in_proportion_to_the_symbols() {
        for text in ["a".repeat(4096), "ab".repeat(2000), "abcabba".repeat(500)] {
            let lookups = std::cell::Cell::new(0);
            let symbols = (0..text.len()).map(|start| Symbol {
                start,
                end: start + 1,
                id: None,
            });
            // Every pair of equal length merges, the shortest first.
            let merged = merge_all(symbols.collect(), |left, right| {
                lookups.set(lookups.get() + 1);
                let len = left.end - left.start;
                let rank = (right.end - right.start == len).then_some(len as u32)?;
                Some(Merge { rank, id: rank })
            });
            assert!(merged.count() < text.len());
            assert!(lookups.get() < 3 * text.len(), "{}", lookups.get());
        }
    }
}
