//! Speculative decoding: proposers guess a tree of tokens, and the target verifies the whole tree in one forward.
//!
//! Every token is the target's own choice, by the same sampler with the same random numbers as without speculation. So the
//! text is that of plain decoding; a wrong guess costs time, never a token.

mod adaptive;
mod costs;
mod draft;
mod eagle3;
mod level_search;
mod ngram;
mod options;
mod proposer;
mod speculator;
mod stats;
mod tree_proposal;

pub use costs::VerifyCosts;
pub use draft::DraftModel;
pub use eagle3::EagleHead;
pub use options::{SpecOptions, SpecType};
pub(crate) use proposer::FeatureRows;
pub use speculator::{Drafter, Speculator};
pub use stats::{DepthStats, RoundTrace, SpecStats};
pub use tree_proposal::{TreeProposal, VerifyResult, verify_tree};
