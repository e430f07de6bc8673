//! The model that a test runs, and the facts about it that a measurement needs to be understood.

use crate::args::ModelArgs;
use crate::{list, output};
use anyhow::Result;
use kvark::Model;
use kvark::model::ModelFile;
use serde_json::{Value, json};

/// A model that is measured.
pub(super) struct Subject {
    pub(super) name: String,
    architecture: String,
    /// The type of the weights, as the file states it.
    quantisation: Option<String>,
    /// Bytes of the weights.
    pub(super) bytes: u64,
    parameters: Option<u64>,
}

impl Subject {
    pub(super) fn new(args: &ModelArgs, model: &Model, weights_bytes: usize) -> Result<Subject> {
        let parameters = match &model.artifact().file {
            ModelFile::Gguf(file) => {
                let all = file.tensors.iter().map(|tensor| tensor.len() as u64);
                Some(all.sum())
            }
            ModelFile::Safetensors { model, .. } => {
                let tensors = model.tensors.iter().map(|tensor| tensor.shape.iter());
                Some(tensors.map(|sizes| sizes.product::<usize>() as u64).sum())
            }
            _ => None,
        };
        Ok(Subject {
            name: args.name()?,
            architecture: model.artifact().architecture.clone(),
            quantisation: list::facts(&args.path()?).0,
            bytes: weights_bytes as u64,
            parameters,
        })
    }

    /// The type of the weights; the architecture if the file does not state it.
    pub(super) fn kind(&self) -> &str {
        self.quantisation.as_deref().unwrap_or(&self.architecture)
    }

    /// The number of weights in millions.
    pub(super) fn parameters(&self) -> String {
        self.parameters
            .map_or("-".to_owned(), |n| format!("{:.1} M", n as f64 / 1e6))
    }

    pub(super) fn line(&self) -> String {
        let size = output::bytes(self.bytes);
        let Subject {
            name, architecture, ..
        } = self;
        let parameters = match self.parameters {
            Some(_) => format!(", {} parameters", self.parameters()),
            None => String::new(),
        };
        let kind = match &self.quantisation {
            Some(quantisation) => format!("{architecture} {quantisation}"),
            None => architecture.clone(),
        };
        format!("{name}: {kind}, {size}{parameters}")
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "name": self.name,
            "architecture": self.architecture,
            "quantisation": self.quantisation,
            "bytes": self.bytes,
            "parameters": self.parameters,
        })
    }
}
