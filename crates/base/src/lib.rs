//! The types that all crates of kvark share: element types, quantised block formats and mapped weight bytes.
//!
//! ```
//! use base::DType;
//! // A row of 64 Q4_1 weights is two blocks of 20 bytes.
//! assert_eq!(DType::Q4_1.row_bytes(64), Some(40));
//! ```
#![deny(unsafe_code)]

mod atomic_write;
mod bytes;
mod dtype;
mod fallible;
mod file_identity;
pub mod gate;
mod memory;
mod named_enum;
pub mod parallel;
pub mod quant;
mod size;
mod string_table;
mod xxh64;

pub use atomic_write::atomic_write;
pub use bytes::{Bytes, MapError};
pub use dtype::DType;
pub use fallible::{fallible, is_fallible};
pub use file_identity::FileIdentity;
pub use memory::{AvailableMemory, MemoryBound, available_memory};
pub use size::size_text;
pub use string_table::StringTable;
pub use xxh64::xxh64;
