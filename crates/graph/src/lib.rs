//! The graph IR: single-output nodes over typed tensors, a closed set of ops, the passes that rewrite a graph, and the
//! memory planner that assigns arena offsets.
//!
//! ```
//! use graph::{Dim, GraphBuilder, ops::{Activation, Unary}};
//! use base::DType;
//!
//! let mut b = GraphBuilder::new("silu");
//! let tokens = b.symbol("T");
//! let x = b.input("x", DType::F32, [tokens, Dim::from(4)]);
//! let y = b.node("y", Unary { function: Activation::Silu.into() }, &[x]).unwrap();
//! let graph = b.finish(&[y]).unwrap();
//! assert_eq!(graph.to_string(), "\
//! graph silu(x: f32[T, 4])
//!   y: f32[T, 4] = unary(x) {function: silu}
//!   return y
//! ");
//! ```
#![forbid(unsafe_code)]

mod builder;
mod data_sized;
mod dim;
mod element_count;
mod error;
mod graph;
pub mod ops;
pub mod passes;
mod pieces;
pub mod plan;
mod tensor_type;
mod text;
mod value;
mod verify;

pub use builder::GraphBuilder;
pub use data_sized::{DataSized, NonMaxSuppression, Unique};
pub use dim::{Bindings, Dim, MAX_SYMBOLS, Symbol};
pub use error::{GraphError, GraphErrorKind};
pub use graph::{Graph, Node, NodeId, StateInfo, SymbolInfo, Tensor, TensorId, TensorKind};
pub use pieces::Piece;
pub use tensor_type::TensorType;
pub use value::{Data, DataMut, DataRef, Value, ValueRef};
