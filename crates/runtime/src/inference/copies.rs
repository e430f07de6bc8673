//! `SessionCopies`: further sessions on the graphs and weights of one, so that several threads run it at once.

use super::by_shape::ShapedRuns;
use super::{InferenceSession, Runs};
use crate::RuntimeError;
use backend::{Backend, CompileOptions, Runnable};
use graph::Graph;
use graph::passes::PassSelection;
use import::{Artifact, ModelDescription, ShapedMethod, TensorInfo};
use std::sync::Arc;

/// Makes copies of a session. A copy shares graph, weights and threads with it, and has an arena of its own.
#[derive(Clone)]
pub struct SessionCopies {
    pub(super) source: CopySource,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) compile: CompileOptions,
}

/// The graph or the method that a copy is compiled from.
#[derive(Clone)]
pub(super) enum CopySource {
    /// An optimised graph for inputs of all shapes.
    Planned(Arc<Graph>),
    /// A method whose graphs are made for the shapes of the inputs.
    ByShape(Arc<Artifact>, Box<ShapedMethod>, PassSelection),
}

impl SessionCopies {
    /// A session that runs as the one with these inputs and outputs does.
    pub fn make(
        &self,
        inputs: &[TensorInfo],
        outputs: &[TensorInfo],
    ) -> Result<InferenceSession, RuntimeError> {
        let runs = match &self.source {
            CopySource::Planned(graph) => {
                let executable = self.backend.compile(graph.clone(), &self.compile)?;
                let runnable = Runnable::bind(graph.clone(), executable, None)?;
                Runs::Planned(Box::new(runnable))
            }
            CopySource::ByShape(artifact, method, passes) => {
                let (artifact, method) = (artifact.clone(), (**method).clone());
                let backend = &*self.backend;
                let runs = ShapedRuns::new(artifact, method, backend, &self.compile, passes)?;
                Runs::ByShape(Box::new(runs))
            }
        };
        Ok(InferenceSession {
            runs,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            states: vec![],
            description: ModelDescription::default(),
            copies: None,
            cache: None,
            free_memory: None,
        })
    }
}
