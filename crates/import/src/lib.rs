//! Imports model files as graphs. Each format has a hardened reader (bytes to typed structs) and a lowering (to a graph).
//!
//! ```no_run
//! let model = import::open("model.gguf".as_ref())?;
//! let forward = model.method("forward").expect("every GGUF decoder has it");
//! println!("{} with {} layers", model.architecture, model.facts.caches.len());
//! println!("{}", forward.graph);
//! # Ok::<(), import::ImportError>(())
//! ```

#![forbid(unsafe_code)]

mod artifact;
mod by_shape;
mod cache_configs;
pub mod checkpoint;
mod const_eval;
mod eagle3;
mod error;
pub mod genai;
pub mod gguf;
pub mod hugging_face;
mod lowered;
mod lowering;
mod model_description;
mod model_facts;
pub mod onnx;
pub mod pt2;
pub mod pte;
pub mod safetensors;
mod stages;
mod stored_type;
mod tensor_info;
pub mod transformer;

pub use artifact::{Artifact, Format, ModelFile, format_of, open, open_bytes, open_with};
pub use by_shape::ShapedMethod;
pub use error::{ImportError, ImportErrorKind};
pub use lowered::{DraftHead, FeatureLayers, HeadKind, ImportOptions, LoweredModel, Method};
pub use model_description::ModelDescription;
pub use model_facts::{ModelFacts, Pooling};
pub use stages::{Cut, Stage, StageInputs};
pub use stored_type::StoredType;
pub use tensor_info::{TensorDim, TensorInfo};
