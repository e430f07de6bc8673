//! `DraftSource`: where the draft of a model comes from, known before the model is opened.

use super::drafter::Drafter;
use super::options::SpecType;
use crate::options::RunnerOptions;
use crate::{Model, OpenOptions, RuntimeError};
use backend::Backend;
use import::FeatureLayers;
use std::path::Path;

/// Where the draft of a model comes from. A head must be known before its model is opened, which has to give it features.
pub enum DraftSource {
    /// Another model: a smaller one with the same vocabulary, or a head in a file of its own.
    Model(Box<Model>),
    /// The MTP head that the model's file carries.
    Mtp,
    /// The same, if the file carries one; otherwise there is no draft.
    MtpIfCarried,
}

impl DraftSource {
    /// The name that stands for the model's own head where a draft is named.
    pub const MTP: &str = "mtp";

    /// Opens the draft of this name: a file, or [`MTP`](DraftSource::MTP).
    pub fn open(name: &Path, context: Option<usize>) -> Result<DraftSource, RuntimeError> {
        if name == Path::new(DraftSource::MTP) {
            return Ok(DraftSource::Mtp);
        }
        let options = OpenOptions {
            context,
            ..OpenOptions::default()
        };
        let model = Model::open_with(name, &options)?;
        Ok(DraftSource::Model(Box::new(model)))
    }

    /// The kind of speculation that the draft is for.
    pub fn kind(&self) -> SpecType {
        match self {
            DraftSource::Model(model) => Drafter::kind_of(model.artifact()),
            DraftSource::Mtp | DraftSource::MtpIfCarried => SpecType::Mtp,
        }
    }

    /// The features that the model must be opened with.
    pub fn feature_layers(&self) -> FeatureLayers {
        match self {
            DraftSource::Model(model) => {
                let layers = Drafter::feature_layers(model.artifact());
                layers.cloned().unwrap_or_default()
            }
            DraftSource::Mtp | DraftSource::MtpIfCarried => FeatureLayers::Mtp,
        }
    }

    /// Loads the draft for a model that was opened with its features.
    ///
    /// # Errors
    /// Those of [`Drafter::new`], and `Import` with what is missing if the model carries no head.
    pub fn load(
        &self,
        target: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        sequences: usize,
    ) -> Result<Option<Drafter>, RuntimeError> {
        let head;
        let draft = match self {
            DraftSource::Model(model) => &**model,
            DraftSource::MtpIfCarried if !target.gives_features() => return Ok(None),
            DraftSource::Mtp | DraftSource::MtpIfCarried => {
                head = target.mtp_head()?;
                &head
            }
        };
        Drafter::new(draft, target, backend, options, sequences).map(Some)
    }
}
