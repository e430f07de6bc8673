//! Trees of candidates, as plain data: what caches store, and what the plan of a step carries.

use crate::{KvError, KvErrorKind, SeqId};

/// A candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) parent: Option<u32>,
    /// 0 for a candidate that follows the committed tokens.
    pub(crate) depth: u32,
}

impl Node {
    /// The next candidate after `nodes`, with this parent.
    pub(crate) fn behind(nodes: &[Node], parent: Option<u32>) -> Result<Node, KvError> {
        let depth = match parent.map(|p| nodes.get(p as usize)) {
            None => 0,
            Some(Some(parent)) => parent.depth + 1,
            Some(None) => {
                let (node, parent) = (nodes.len() as u32, parent.unwrap_or_default());
                return Err(KvErrorKind::Parent { node, parent }.into());
            }
        };
        Ok(Node { parent, depth })
    }
}

/// The candidates of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CandidateTree {
    /// The position of a candidate that follows the committed tokens.
    pub(crate) base: u32,
    pub(crate) nodes: Vec<Node>,
}

/// The candidates of one sequence after a planned step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepTree {
    pub(crate) seq: SeqId,
    pub(crate) tree: CandidateTree,
    /// Candidates from before the step.
    pub(crate) computed: usize,
}

impl CandidateTree {
    pub(crate) fn len(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Returns an error if there are candidates.
    pub(crate) fn check_empty(&self) -> Result<(), KvError> {
        let candidates = self.len();
        match candidates {
            0 => Ok(()),
            _ => Err(KvErrorKind::TreeActive { candidates }.into()),
        }
    }
}

impl StepTree {
    /// Whether this is the tree of a sequence.
    pub(crate) fn is_of(&self, seq: SeqId) -> bool {
        self.seq == seq
    }
}
