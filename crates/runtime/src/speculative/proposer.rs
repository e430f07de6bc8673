//! `Proposer`: what guesses the next tokens.

use super::tree_proposal::TreeProposal;
use crate::RuntimeError;

/// What a proposer works from.
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

/// Proposes trees of candidates for one sequence.
pub(crate) trait Proposer: Send {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Adds candidates below the root of `tree`.
    fn propose(
        &mut self,
        proposal: &Proposal<'_>,
        tree: &mut TreeProposal,
    ) -> Result<(), RuntimeError>;

    /// The position of the first token whose features are still needed.
    fn features_from(&self) -> usize {
        usize::MAX
    }

    /// Whether proposals need the target's features.
    fn needs_features(&self) -> bool {
        false
    }
}
