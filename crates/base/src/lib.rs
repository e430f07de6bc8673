//! Element types, quantised block formats and mapped weight bytes: what every other crate of kvark agrees on.
//!
//! ```
//! use base::DType;
//! // A row of 64 Q4_1 weights is two blocks of 20 bytes.
//! assert_eq!(DType::Q4_1.row_bytes(64), Some(40));
//! ```
#![deny(unsafe_code)]

mod bytes;
mod dtype;
pub mod gate;
mod hash;
mod memory;
mod origin;
pub mod parallel;
pub mod quant;
mod replace;
mod size;
mod texts;

pub use bytes::{Bytes, MapError};
pub use dtype::DType;
pub use hash::xxh64;
pub use memory::available_memory;
pub use origin::Origin;
pub use replace::replace;
pub use size::size_text;
pub use texts::Texts;
