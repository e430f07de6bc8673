//! What a file says about its model.

use std::collections::BTreeMap;

/// What a file says about its model, in words. Only ONNX files say more than a name.
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
