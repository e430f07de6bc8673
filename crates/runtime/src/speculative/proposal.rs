//! `Proposal`: what a tree of candidates is proposed from.

/// What a tree of candidates is proposed from.
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
    pub(crate) features: Option<FeatureRows<'a>>,
}

impl Proposal<'_> {
    /// The root of the tree.
    pub(crate) fn root(&self) -> u32 {
        *self.history.last().expect("a sequence has a token")
    }
}

/// Features of consecutive tokens of a sequence.
#[derive(Clone, Copy)]
pub(crate) struct FeatureRows<'a> {
    /// The position of the first token.
    pub(crate) first: usize,
    /// Numbers per token.
    pub(crate) width: usize,
    /// The features of all of them.
    pub(crate) rows: &'a [f32],
}
