//! `StepOutputs`: the outputs of a step.

use std::cmp::Ordering;

/// Up to this number of tokens, the top-k of a row are found by insertion.
const MAX_INSERTED: usize = 256;

/// The outputs that a caller wants for each requested row of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogitsMode {
    /// All logits.
    #[default]
    Logits,
    /// The tokens with the highest logits, the best first.
    TopK(usize),
    /// The token with the highest logit.
    Argmax,
}

impl LogitsMode {
    /// The least outputs that hold these and those of `other`.
    pub fn and(self, other: LogitsMode) -> LogitsMode {
        match (self.count(), other.count()) {
            (Some(1), Some(1)) => LogitsMode::Argmax,
            (Some(a), Some(b)) => LogitsMode::TopK(a.max(b)),
            _ => LogitsMode::Logits,
        }
    }

    /// The number of tokens of each row; `None` for all logits.
    pub fn count(self) -> Option<usize> {
        match self {
            LogitsMode::Logits => None,
            LogitsMode::TopK(k) => Some(k),
            LogitsMode::Argmax => Some(1),
        }
    }
}

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredToken {
    /// The token's id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

impl ScoredToken {
    /// The order of tokens: the higher logit first, the lower id first among equals. Logits are not NaN.
    pub fn best_first(a: &ScoredToken, b: &ScoredToken) -> Ordering {
        let by_logit = b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
        by_logit.then(a.id.cmp(&b.id))
    }
}

/// The outputs of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowOutputs<'a> {
    /// All logits.
    Logits(&'a [f32]),
    /// The tokens with the highest logits, the best first.
    TopK(&'a [ScoredToken]),
}

impl<'a> RowOutputs<'a> {
    /// All logits; empty if only the most likely tokens are known.
    pub fn logits(self) -> &'a [f32] {
        match self {
            RowOutputs::Logits(logits) => logits,
            RowOutputs::TopK(_) => &[],
        }
    }

    /// Whether nothing was computed.
    pub fn is_empty(self) -> bool {
        match self {
            RowOutputs::Logits(logits) => logits.is_empty(),
            RowOutputs::TopK(topk) => topk.is_empty(),
        }
    }

    /// Whether the row has the wanted outputs; `vocab` is the size of the model's vocabulary.
    pub fn holds(self, wanted: LogitsMode, vocab: usize) -> bool {
        match (self, wanted.count()) {
            (RowOutputs::Logits(logits), _) => !logits.is_empty(),
            (RowOutputs::TopK(topk), Some(k)) => !topk.is_empty() && topk.len() >= k.min(vocab),
            (RowOutputs::TopK(_), None) => false,
        }
    }
}

/// The outputs of a step's wanted rows. Every run fills them again and reuses their memory.
#[derive(Clone, Debug, Default)]
pub struct StepOutputs {
    wanted: LogitsMode,
    /// The kind of the outputs of the last run.
    computed: LogitsMode,
    rows: usize,
    /// Logits per row.
    width: usize,
    logits: Vec<f32>,
    topk: Vec<ScoredToken>,
    /// The features of every token of the step; empty if the graph returns none.
    features: Vec<f32>,
    /// Numbers per token in `features`.
    feature_width: usize,
}

impl StepOutputs {
    /// Empty outputs of this kind.
    pub fn new(wanted: LogitsMode) -> StepOutputs {
        StepOutputs {
            wanted,
            ..StepOutputs::default()
        }
    }

    /// The kind of outputs.
    pub fn wanted(&self) -> LogitsMode {
        self.wanted
    }

    /// Changes the kind of outputs of the next run.
    pub fn want(&mut self, wanted: LogitsMode) {
        self.wanted = wanted;
    }

    /// The number of rows computed.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The outputs of a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> RowOutputs<'_> {
        match self.computed {
            LogitsMode::Logits => {
                RowOutputs::Logits(&self.logits[row * self.width..][..self.width])
            }
            _ => {
                let each = self.topk.len() / self.rows.max(1);
                RowOutputs::TopK(&self.topk[row * each..][..each])
            }
        }
    }

    /// The logits of a row.
    ///
    /// # Panics
    /// If logits were not wanted or there is no such row.
    pub fn logits(&self, row: usize) -> &[f32] {
        match self.row(row) {
            RowOutputs::Logits(logits) => logits,
            RowOutputs::TopK(_) => panic!("only {:?} was wanted", self.computed),
        }
    }

    /// The most likely tokens of a row, in order; only one if [`LogitsMode::Argmax`] was set.
    ///
    /// # Panics
    /// If logits were wanted or there is no such row.
    pub fn topk(&self, row: usize) -> &[ScoredToken] {
        match self.row(row) {
            RowOutputs::TopK(topk) => topk,
            RowOutputs::Logits(_) => panic!("all logits were wanted"),
        }
    }

    /// The features of a token: the second and later outputs of the graph, one after the other. Empty if the graph has
    /// one output.
    ///
    /// # Panics
    /// If the step had no such token.
    pub fn features(&self, token: usize) -> &[f32] {
        &self.features[token * self.feature_width..][..self.feature_width]
    }

    /// Copies the features of the first `tokens` tokens. Each part is an output of the graph, with its numbers per token.
    pub fn fill_features(&mut self, tokens: usize, parts: &[(&[f32], usize)]) {
        self.feature_width = parts.iter().map(|(_, width)| width).sum();
        self.features.clear();
        for token in 0..tokens {
            for (part, width) in parts {
                let row = &part[token * width..][..*width];
                self.features.extend_from_slice(row);
            }
        }
    }

    /// Reads the first `rows` rows of `width` logits and stores the wanted outputs.
    pub fn fill(&mut self, rows: usize, width: usize, logits: &[f32]) {
        self.begin(rows, width);
        let logits = &logits[..rows * width];
        match self.wanted {
            LogitsMode::Logits => self.logits.extend_from_slice(logits),
            _ if rows == 0 => {}
            LogitsMode::Argmax => self.topk.extend(logits.chunks(width).map(most_likely)),
            LogitsMode::TopK(k) => {
                for row in logits.chunks(width) {
                    topk(&mut self.topk, row, k);
                }
            }
        }
    }

    /// Stores the most likely tokens of `rows` rows of `width` logits, which a device has found: as many of each row as are
    /// wanted, at most `width`, in the order of [`ScoredToken::best_first`].
    ///
    /// # Panics
    /// If logits are wanted, or the number of tokens is not `rows` times the number wanted of each row (at most
    /// `width`).
    pub fn fill_topk(
        &mut self,
        rows: usize,
        width: usize,
        topk: impl Iterator<Item = ScoredToken>,
    ) {
        let each = self.wanted.count().expect("some tokens are wanted");
        self.begin(rows, width);
        self.topk.extend(topk);
        assert_eq!(self.topk.len(), rows * each.min(width));
    }

    fn begin(&mut self, rows: usize, width: usize) {
        (self.computed, self.rows, self.width) = (self.wanted, rows, width);
        self.logits.clear();
        self.topk.clear();
    }
}

/// The token with the highest logit, the first of equals; NaN is never the highest.
fn most_likely(row: &[f32]) -> ScoredToken {
    let id = argmax(row);
    let logit = row[id as usize];
    ScoredToken { id, logit }
}

/// The index of the highest logit, the first of equals; 0 if none is above negative infinity.
pub fn argmax(row: &[f32]) -> u32 {
    // Lanes that the compiler turns into vectors; the first lane that holds the highest value is found afterwards.
    const LANES: usize = 16;
    let mut tops = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (top, x) in tops.iter_mut().zip(chunk) {
            *top = if *x > *top { *x } else { *top };
        }
    }
    let all = tops.iter().chain(rest);
    let top = all.fold(f32::NEG_INFINITY, |top, x| if *x > top { *x } else { top });
    if top == f32::NEG_INFINITY {
        // Only NaN and negative infinity, which rank alike.
        return 0;
    }
    let first = row.iter().position(|x| *x == top);
    first.unwrap_or(0) as u32
}

/// Appends the `k` most likely tokens of a row to `tokens`, in the order of [`ScoredToken::best_first`]; all of them if the row has
/// fewer. NaN counts as negative infinity.
pub fn topk(tokens: &mut Vec<ScoredToken>, row: &[f32], k: usize) {
    let start = tokens.len();
    if k == 0 {
        return;
    }
    if k > MAX_INSERTED || k >= row.len() {
        tokens.extend((0..).zip(row).map(scored));
        let list = &mut tokens[start..];
        if k < list.len() {
            list.select_nth_unstable_by(k - 1, ScoredToken::best_first);
            tokens.truncate(start + k);
        }
        tokens[start..].sort_unstable_by(ScoredToken::best_first);
        return;
    }
    // Most chunks have no better token: one vector comparison shows that.
    const CHUNK: usize = 16;
    for (chunk, first) in row.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
        if tokens.len() == start + k {
            let least = tokens[start + k - 1].logit;
            if !chunk.iter().fold(false, |any, x| any | (*x > least)) {
                continue;
            }
        }
        for token in (first..).zip(chunk).map(scored) {
            let kept = &tokens[start..];
            let full = kept.len() == k;
            if full && token.logit <= kept[k - 1].logit {
                continue;
            }
            let at = kept.partition_point(|other| other.logit >= token.logit);
            if full {
                tokens.pop();
            }
            tokens.insert(start + at, token);
        }
    }
}

/// A token whose logit is a number.
fn scored((id, logit): (u32, &f32)) -> ScoredToken {
    let logit = match logit.is_nan() {
        true => f32::NEG_INFINITY,
        false => *logit,
    };
    ScoredToken { id, logit }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: [f32; 6] = [0.5, 3.0, -1.0, 3.0, 2.0, f32::NEG_INFINITY];

    fn filled(wanted: LogitsMode) -> StepOutputs {
        let mut outputs = StepOutputs::new(wanted);
        let second: Vec<f32> = ROW.iter().rev().copied().collect();
        outputs.fill(2, ROW.len(), &[&ROW[..], &second, &ROW].concat());
        outputs
    }

    #[test]
    fn each_row_gives_what_is_wanted() {
        let logits = filled(LogitsMode::Logits);
        assert_eq!((logits.rows(), logits.logits(0)), (2, &ROW[..]));
        let ids = |outputs: &StepOutputs, row| -> Vec<u32> {
            outputs.topk(row).iter().map(|token| token.id).collect()
        };
        let best = filled(LogitsMode::TopK(3));
        assert_eq!(
            (ids(&best, 0), ids(&best, 1)),
            (vec![1, 3, 4], vec![2, 4, 1])
        );
        let all = filled(LogitsMode::TopK(99));
        assert_eq!(ids(&all, 0), [1, 3, 4, 0, 2, 5]);
        let one = filled(LogitsMode::Argmax);
        assert_eq!((ids(&one, 0), ids(&one, 1)), (vec![1], vec![2]));
        assert_eq!(one.topk(0)[0].logit, 3.0);
    }

    #[test]
    fn no_rows_give_nothing() {
        for wanted in [LogitsMode::Logits, LogitsMode::TopK(2), LogitsMode::Argmax] {
            let mut outputs = filled(wanted);
            outputs.fill(0, 6, &[]);
            assert_eq!(outputs.rows(), 0);
        }
    }

    #[test]
    fn a_row_says_which_outputs_it_holds() {
        let (logits, best) = (filled(LogitsMode::Logits), filled(LogitsMode::TopK(3)));
        let every = [
            LogitsMode::Logits,
            LogitsMode::TopK(3),
            LogitsMode::TopK(9),
            LogitsMode::Argmax,
        ];
        assert_eq!(every.map(|w| logits.row(1).holds(w, 6)), [true; 4]);
        let held = every.map(|w| best.row(1).holds(w, 6));
        assert_eq!(held, [false, true, false, true]);
        assert!(
            best.row(0).holds(LogitsMode::TopK(9), 3),
            "a vocabulary of 3"
        );
        assert!(best.row(0).logits().is_empty() && !best.row(0).is_empty());
        assert!(!RowOutputs::Logits(&[]).holds(LogitsMode::Argmax, 6));
    }

    #[test]
    fn outputs_of_a_run_stay_what_was_wanted_of_it() {
        let mut outputs = filled(LogitsMode::TopK(2));
        outputs.want(LogitsMode::Logits);
        assert_eq!(outputs.topk(0).len(), 2);
        outputs.fill(1, ROW.len(), &ROW);
        assert_eq!(outputs.logits(0), ROW);
        outputs.want(LogitsMode::TopK(9));
        let mut expect = vec![];
        topk(&mut expect, &ROW, 9);
        outputs.fill_topk(1, ROW.len(), expect.iter().copied());
        assert_eq!(outputs.row(0), RowOutputs::TopK(&expect));
    }

    #[test]
    fn wanted_outputs_add_up() {
        use LogitsMode::{Argmax, Logits, TopK};
        let table = [
            (Argmax, Argmax, Argmax),
            (Argmax, TopK(40), TopK(40)),
            (TopK(40), TopK(8), TopK(40)),
            (TopK(40), Logits, Logits),
            (Argmax, Logits, Logits),
        ];
        for (a, b, both) in table {
            assert_eq!((a.and(b), b.and(a)), (both, both), "{a:?} and {b:?}");
        }
    }

    /// Both ways to find the most likely tokens agree with a sort, with ties, infinities, zeros of both signs and NaN.
    #[test]
    fn the_most_likely_tokens_are_those_of_a_sort() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(99);
            (state >> 33) % below
        };
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
        for len in [1, 2, 15, 16, 17, 100, 1000] {
            let row: Vec<f32> = (0..len)
                .map(|_| match random(12) {
                    i @ 0..5 => odd[i as usize],
                    _ => random(50) as f32 - 25.0,
                })
                .collect();
            let mut sorted: Vec<ScoredToken> = (0..).zip(&row).map(scored).collect();
            sorted.sort_by(ScoredToken::best_first);
            for k in [0, 1, 2, 16, 40, 256, 257, 999, 1000, 2000] {
                let mut found = vec![ScoredToken { id: 7, logit: 7.0 }];
                topk(&mut found, &row, k);
                assert_eq!(found[0].id, 7, "what was there stays");
                assert_eq!(found[1..], sorted[..k.min(len)], "{k} of {len}");
            }
            assert_eq!(argmax(&row), sorted[0].id, "{row:?}");
        }
    }

    #[test]
    fn argmax_is_the_first_highest_at_every_length() {
        for len in 1..70usize {
            for top in 0..len {
                let mut row = vec![-2.0f32; len];
                row[top] = 1.0;
                row[len - 1] = row[len - 1].max(1.0);
                assert_eq!(argmax(&row), top as u32, "{len}");
                row[0] = f32::NAN;
                let expect = if top == 0 { len - 1 } else { top };
                assert_eq!(argmax(&row), if len == 1 { 0 } else { expect as u32 });
            }
        }
    }
}
