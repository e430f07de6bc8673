//! One forward, described once.

use crate::{KvError, KvErrorKind, SeqId};

/// One forward: its tokens in order, and the rows whose outputs are wanted.
///
/// The runtime builds a step, or a session's operations ([`begin_step`](crate::SeqCache::begin_step),
/// [`propose`](crate::TreeCache::propose)) declare one and the positions of the forward complete it. A cache plans it
/// ([`CacheManager::plan`](crate::CacheManager::plan)), and a backend encodes it into the inputs of its graph.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    tokens: Vec<StepToken>,
    rows: Vec<u32>,
    /// Tokens that are padding.
    padding: usize,
    /// Rows at the end that are padding.
    row_padding: usize,
    /// Tokens after which recurrent layers keep their states, ascending.
    kept_states: Vec<u32>,
}

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepToken {
    /// The token's id in the vocabulary.
    pub id: u32,
    /// Its position. A graph may hand in any number; planning checks it.
    pub position: i32,
    /// The sequence it belongs to.
    pub seq: SeqId,
    /// What becomes of it.
    pub role: Role,
}

impl StepToken {
    /// Returns an error if the position is not the one that continues the sequence.
    pub(crate) fn check_position(&self, index: usize, expected: u32) -> Result<(), KvError> {
        match i64::from(self.position) == i64::from(expected) {
            true => Ok(()),
            false => Err(KvErrorKind::Position {
                index,
                found: self.position.into(),
                expected,
            }
            .into()),
        }
    }
}

/// What becomes of a token once its step has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is appended to its sequence: later tokens attend it.
    Next,
    /// It is a candidate: held until a path of candidates is committed.
    Candidate {
        /// Its parent among all candidates since the last commit; `None` for one that follows the committed tokens.
        parent: Option<u32>,
    },
    /// It only fills the step up to a captured size. It is written nowhere, sees nothing and is not held. In a static
    /// buffer it is written after the valid rows and overwritten by the next step.
    Padding,
}

impl Clone for Step {
    fn clone(&self) -> Step {
        let mut step = Step::default();
        step.clone_from(self);
        step
    }

    /// Keeps the memory, so that a plan can copy its step without allocating.
    fn clone_from(&mut self, source: &Step) {
        self.tokens.clone_from(&source.tokens);
        self.rows.clone_from(&source.rows);
        self.kept_states.clone_from(&source.kept_states);
        (self.padding, self.row_padding) = (source.padding, source.row_padding);
    }
}

impl Step {
    /// A step of tokens that continue sequence 0 from `position` on.
    pub fn sequence(ids: &[u32], position: u32) -> Step {
        let mut step = Step::default();
        step.extend(0, position, ids);
        step
    }

    /// Removes all tokens and rows and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.rows.clear();
        self.kept_states.clear();
        (self.padding, self.row_padding) = (0, 0);
    }

    /// Appends a token and returns its index, which is also its row.
    pub fn push(&mut self, token: StepToken) -> u32 {
        self.padding += usize::from(token.role == Role::Padding);
        self.tokens.push(token);
        self.tokens.len() as u32 - 1
    }

    /// Appends tokens that continue a sequence from `position` on.
    pub fn extend(&mut self, seq: SeqId, position: u32, ids: &[u32]) {
        for (position, &id) in (position as i32..).zip(ids) {
            self.push(StepToken {
                id,
                position,
                seq,
                role: Role::Next,
            });
        }
    }

    /// Asks for the outputs of a row. Outputs come in the order in which rows were asked for.
    pub fn want(&mut self, row: u32) {
        self.rows.push(row);
    }

    /// Asks recurrent layers to keep their states after a token, so that its sequence can be rewound or forked there. Tokens are named in
    /// order. A pool without room keeps fewer.
    pub fn keep_state(&mut self, token: u32) {
        self.kept_states.push(token);
    }

    /// The next token, from one on, after which states are asked for.
    pub(crate) fn next_kept_state(&self, token: usize) -> Option<usize> {
        let at = (self.kept_states).partition_point(|kept| (*kept as usize) < token);
        let kept = self.kept_states.get(at).map(|kept| *kept as usize);
        kept.filter(|kept| *kept < self.tokens.len())
    }

    /// Asks for the outputs of the last token.
    pub fn want_last(&mut self) {
        let last = self.tokens.len().saturating_sub(1);
        self.want(last as u32);
    }

    /// Fills the step up with padding tokens, and the rows with the last row.
    pub fn pad_to(&mut self, tokens: usize, rows: usize) {
        while self.tokens.len() < tokens {
            self.push(StepToken {
                id: 0,
                position: 0,
                seq: 0,
                role: Role::Padding,
            });
        }
        let last = self.tokens.len().saturating_sub(1) as u32;
        self.row_padding += rows.saturating_sub(self.rows.len());
        self.rows.resize(self.rows.len().max(rows), last);
    }

    /// The tokens in order, padding included.
    pub fn tokens(&self) -> &[StepToken] {
        &self.tokens
    }

    /// The tokens of a declared step, for the cache to set their sequences and roles.
    pub(crate) fn tokens_mut(&mut self) -> &mut [StepToken] {
        &mut self.tokens
    }

    /// The rows whose outputs are computed: the wanted ones, and padding after them.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// How many rows are wanted.
    pub fn wanted_rows(&self) -> usize {
        self.rows.len() - self.row_padding
    }

    /// Tokens in the step, padding included.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the step has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens that are no padding.
    pub fn real_len(&self) -> usize {
        self.tokens.len() - self.padding
    }

    /// The tokens before the padding, which must be the last tokens.
    ///
    /// # Errors
    /// `EmptyStep` when nothing but padding is there, `PadBefore` when a token follows padding.
    pub(crate) fn real(&self) -> Result<&[StepToken], KvError> {
        let (real, padding) = self.tokens.split_at(self.real_len());
        if real.is_empty() {
            return Err(KvErrorKind::EmptyStep.into());
        }
        let stray = padding.iter().position(|token| token.role != Role::Padding);
        if let Some(stray) = stray {
            let (index, seq) = (real.len() + stray, padding[stray].seq);
            return Err(KvErrorKind::PadBefore { index, seq }.into());
        }
        Ok(real)
    }

    /// Makes this the step of tokens at these positions, all of them continuing sequence 0.
    pub(crate) fn at(&mut self, positions: &[i32]) {
        self.clear();
        for &position in positions {
            self.push(StepToken {
                id: 0,
                position,
                seq: 0,
                role: Role::Next,
            });
        }
    }
}

/// Refuses candidates in a cache that holds none.
pub(crate) fn no_candidates(tokens: &[StepToken]) -> Result<(), KvError> {
    let candidate = |token: &StepToken| matches!(token.role, Role::Candidate { .. });
    match tokens.iter().position(candidate) {
        Some(index) => Err(KvErrorKind::NoCandidates { index }.into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_fills_tokens_and_rows_behind_the_real_ones() {
        let mut step = Step::sequence(&[7, 8, 9], 4);
        step.want_last();
        step.pad_to(5, 2);
        assert_eq!((step.len(), step.real_len()), (5, 3));
        assert_eq!((step.rows(), step.wanted_rows()), (&[2, 4][..], 1));
        assert_eq!(step.real().unwrap().len(), 3);
        let token = |t: &StepToken| (t.id, t.position, t.role);
        let found: Vec<_> = step.tokens().iter().map(token).collect();
        assert_eq!(found[2], (9, 6, Role::Next));
        assert_eq!(found[3], (0, 0, Role::Padding));
        step.pad_to(2, 1);
        assert_eq!(
            (step.len(), step.rows().len()),
            (5, 2),
            "nothing is cut off"
        );
        step.clear();
        assert_eq!(step, Step::default());
    }

    #[test]
    fn padding_comes_last_and_not_alone() {
        let mut step = Step::default();
        step.pad_to(2, 0);
        assert_eq!(step.real().unwrap_err().kind(), &KvErrorKind::EmptyStep);
        step.extend(3, 0, &[1]);
        let stray = KvErrorKind::PadBefore { index: 2, seq: 3 };
        assert_eq!(step.real().unwrap_err().kind(), &stray);
    }
}
