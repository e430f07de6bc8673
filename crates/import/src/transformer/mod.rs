//! Transformers of one stack, decoders and encoders: one description and one builder for all architectures.
//!
//! A [`TransformerSpec`] is plain data; [`build`] turns it and a lookup of weights into the graph `forward`:
//!
//! ```text
//! graph forward(tokens: i32[T], position: i32[T], rows: i32[R]) -> logits: f32[R, vocab]
//! ```
//!
//! `T` is the number of tokens in the step and `R` the number of rows whose logits are wanted; `rows` indexes the step's
//! tokens. With an uncached context there is no cache and no head, and a step may hold several texts, each with its own
//! number in `text` and positions from 0:
//!
//! ```text
//! graph forward(tokens: i32[T], position: i32[T], text: i32[T]) -> hidden: f32[T, width]
//! ```
//!
//! Weights carry the names they have in GGUF files (`blk.3.attn_q.weight`), nodes the same without `.weight`.

mod assistant;
mod attention;
mod attention_block;
mod build;
mod check;
mod eagle3;
mod experts;
mod latent;
mod linear;
mod mtp;
mod per_layer_input;
mod recurrent;
mod rope;
mod spec;
mod weights;

pub(crate) use assistant::build_assistant;
pub use build::{build, build_with_features};
pub(crate) use eagle3::{Eagle3Spec, build_eagle3};
pub(crate) use mtp::build_mtp;
pub use rope::{RopeScaling, RopeSpec};
pub use spec::{
    AttentionSpec, Biases, ContextMode, ExpertsSpec, KvSource, LatentSpec, LayerSpec, Mixer, Mlp,
    Norm, NormKind, NormPlacement, QkNorm, ScanRule, ScanSpec, TransformerSpec,
};
pub use weights::Weight;
pub(crate) use weights::floats;
