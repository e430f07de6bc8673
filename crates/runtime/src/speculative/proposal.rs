//! `Proposal`: a request for a tree of candidates.

/// A request for a tree of candidates: the tokens before it and its limits.
pub(crate) struct Proposal<'a> {
    /// All tokens of the sequence; the last one is the root of the tree.
    pub(crate) history: &'a [u32],
    /// The maximum number of nodes below the root.
    pub(crate) max_candidates: usize,
    /// The maximum depth of a node.
    pub(crate) max_depth: usize,
    /// The maximum number of children of a node.
    pub(crate) top_k: usize,
    /// A level whose most likely node is less likely than this is not worth computing.
    pub(crate) min_likelihood: f32,
    /// The target's features of the tokens that it computed since the last proposal.
    pub(crate) features: Option<&'a FeatureRows>,
}

impl Proposal<'_> {
    /// The root of the tree.
    pub(crate) fn root(&self) -> u32 {
        *self.history.last().expect("a sequence has a token")
    }
}

/// Features of the last tokens of a sequence.
#[derive(Clone, Default)]
pub(crate) struct FeatureRows {
    /// The position of the first row.
    pub(crate) first: usize,
    pub(crate) width: usize,
    pub(crate) rows: Vec<f32>,
}

impl FeatureRows {
    /// Appends the features of the token at `position`. Begins again there if it does not follow the last one.
    pub(crate) fn push(&mut self, position: usize, features: &[f32]) {
        let next = self.first + self.rows.len() / self.width.max(1);
        if self.rows.is_empty() || next != position {
            self.rows.clear();
            self.first = position;
        }
        self.width = features.len();
        self.rows.extend_from_slice(features);
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
    }

    /// Forgets the features of tokens from position `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        let kept = len.saturating_sub(self.first) * self.width;
        self.rows.truncate(kept);
    }

    /// Forgets the features of tokens before `position`.
    pub(crate) fn drop_before(&mut self, position: usize) {
        let gone = position.saturating_sub(self.first) * self.width;
        self.rows.drain(..gone.min(self.rows.len()));
        self.first = self.first.max(position);
    }
}
