//! `StepOutputs`: the outputs of a step.

/// The outputs that a caller wants for each requested row of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// All logits.
    #[default]
    Logits,
    /// The tokens with the highest logits, the best first.
    TopK(usize),
    /// The token with the highest logit.
    Argmax,
}

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredToken {
    /// The token's id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

/// The outputs of a step's wanted rows. Every run fills them again and reuses their memory.
#[derive(Clone, Debug, Default)]
pub struct StepOutputs {
    wanted: Wanted,
    rows: usize,
    /// Logits per row.
    width: usize,
    logits: Vec<f32>,
    best: Vec<ScoredToken>,
    /// The features of every token of the step; empty if the graph returns none.
    features: Vec<f32>,
    /// Numbers per token in `features`.
    feature_width: usize,
}

impl StepOutputs {
    /// Empty outputs of this kind.
    pub fn new(wanted: Wanted) -> StepOutputs {
        StepOutputs {
            wanted,
            ..StepOutputs::default()
        }
    }

    /// The kind of outputs.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// Changes the kind of outputs of the next run.
    pub fn want(&mut self, wanted: Wanted) {
        self.wanted = wanted;
    }

    /// The number of rows computed.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The logits of a row.
    ///
    /// # Panics
    /// If logits were not wanted or there is no such row.
    pub fn logits(&self, row: usize) -> &[f32] {
        assert_eq!(
            self.wanted,
            Wanted::Logits,
            "only {:?} was wanted",
            self.wanted
        );
        &self.logits[row * self.width..][..self.width]
    }

    /// The best tokens of a row, the best first; only one if [`Wanted::Argmax`] was set.
    ///
    /// # Panics
    /// If logits were wanted or there is no such row.
    pub fn best(&self, row: usize) -> &[ScoredToken] {
        assert_ne!(self.wanted, Wanted::Logits, "all logits were wanted");
        let each = self.best.len() / self.rows.max(1);
        &self.best[row * each..][..each]
    }

    /// The features of a token: the second and later outputs of the graph, one behind the other. Empty if the graph has
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
        (self.rows, self.width) = (rows, width);
        self.logits.clear();
        self.best.clear();
        let logits = &logits[..rows * width];
        match self.wanted {
            Wanted::Logits => self.logits.extend_from_slice(logits),
            _ if rows == 0 => {}
            Wanted::Argmax => self.best.extend(logits.chunks(self.width).map(best_of)),
            Wanted::TopK(k) => {
                let k = k.min(self.width);
                for row in logits.chunks(self.width) {
                    keep_best(&mut self.best, row, k);
                }
            }
        }
    }
}

/// The token with the highest logit, the first of equals; NaN is never the highest.
fn best_of(row: &[f32]) -> ScoredToken {
    let id = argmax(row);
    let logit = row[id as usize];
    ScoredToken { id, logit }
}

/// The index of the highest logit, the first of equals; 0 when all are NaN.
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
    let first = row.iter().position(|x| *x == top);
    first.unwrap_or(0) as u32
}

/// Appends the `k` best tokens of a row, the best first, the first of equals first.
fn keep_best(best: &mut Vec<ScoredToken>, row: &[f32], k: usize) {
    let start = best.len();
    if k == 0 {
        return;
    }
    for (id, &logit) in (0..).zip(row) {
        // NaN ranks last.
        let logit = if logit.is_nan() {
            f32::NEG_INFINITY
        } else {
            logit
        };
        let kept = &best[start..];
        let full = kept.len() == k;
        if full && logit <= kept[k - 1].logit {
            continue;
        }
        let at = kept.partition_point(|token| token.logit >= logit);
        if full {
            best.pop();
        }
        best.insert(start + at, ScoredToken { id, logit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: [f32; 6] = [0.5, 3.0, -1.0, 3.0, 2.0, f32::NEG_INFINITY];

    fn filled(wanted: Wanted) -> StepOutputs {
        let mut outputs = StepOutputs::new(wanted);
        let second: Vec<f32> = ROW.iter().rev().copied().collect();
        outputs.fill(2, ROW.len(), &[&ROW[..], &second, &ROW].concat());
        outputs
    }

    #[test]
    fn each_row_gives_what_is_wanted() {
        let logits = filled(Wanted::Logits);
        assert_eq!((logits.rows(), logits.logits(0)), (2, &ROW[..]));
        let ids = |outputs: &StepOutputs, row| -> Vec<u32> {
            outputs.best(row).iter().map(|token| token.id).collect()
        };
        let best = filled(Wanted::TopK(3));
        assert_eq!(
            (ids(&best, 0), ids(&best, 1)),
            (vec![1, 3, 4], vec![2, 4, 1])
        );
        let all = filled(Wanted::TopK(99));
        assert_eq!(ids(&all, 0), [1, 3, 4, 0, 2, 5]);
        let one = filled(Wanted::Argmax);
        assert_eq!((ids(&one, 0), ids(&one, 1)), (vec![1], vec![2]));
        assert_eq!(one.best(0)[0].logit, 3.0);
    }

    #[test]
    fn no_rows_give_nothing() {
        for wanted in [Wanted::Logits, Wanted::TopK(2), Wanted::Argmax] {
            let mut outputs = filled(wanted);
            outputs.fill(0, 6, &[]);
            assert_eq!(outputs.rows(), 0);
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
