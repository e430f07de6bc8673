//! Speculative decoding: proposers guess a tree of tokens, and the target verifies the whole tree in one forward.
//!
//! Every token is the target's own choice, by the same sampler with the same random numbers as without speculation. So the
//! text is that of plain decoding; a wrong guess costs time, never a token.

mod adaptive;
mod costs;
mod draft;
mod drafter;
mod head;
mod level_search;
mod ngram;
mod options;
mod proposal;
mod source;
mod speculator;
mod stats;
mod tree_proposal;

pub use costs::VerifyCosts;
pub use drafter::Drafter;
pub use options::{SpecOptions, SpecType};
pub(crate) use proposal::FeatureRows;
pub use source::DraftSource;
pub use speculator::Speculator;
pub(crate) use speculator::{RoundInput, propose_trees};
pub use stats::{DepthStats, RoundTrace, SpecStats};
pub use tree_proposal::{TreeProposal, VerifyResult, verify_tree};
