//! `ModelDescription`: the metadata of a model file.

use std::collections::BTreeMap;

/// The metadata of a model file for people. Formats other than ONNX have a name alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelDescription {
    /// The graph's name.
    pub graph_name: String,
    /// The graph's documentation.
    pub graph_description: String,
    /// Name of the tool that wrote the file.
    pub producer_name: String,
    /// The model's namespace.
    pub domain: String,
    /// The model's own version.
    pub version: i64,
    /// The model's documentation.
    pub description: String,
    /// Metadata properties.
    pub properties: BTreeMap<String, String>,
}
