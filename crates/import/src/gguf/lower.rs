//! Lowers a GGUF file to one graph.

use super::architecture::Architecture;
use super::architecture_keys::Keys;
use super::assistant;
use super::eagle3;
use super::error::GgufError;
use super::file::Gguf;
use super::mtp;
use super::spec::{SpecReader, TrackedTensors};
use super::split;
use crate::error::{ImportError, ImportErrorDetail};
use crate::lowered::{FeatureLayers, ImportOptions, LoweredModel, Method};
use crate::model_facts::{ModelFacts, Pooling};
use crate::transformer::{self, TransformerSpec};

/// Lowers a file to a model with the one method `forward` (see [`transformer`]).
///
/// Every tensor of the file must be used: an unused one means that the file's model differs from the one built.
pub fn lower(file: &Gguf, options: &ImportOptions) -> Result<LoweredModel, ImportError> {
    if file.metadata.str("general.architecture")? == Some(eagle3::ARCHITECTURE) {
        return eagle3::lower(file);
    }
    if file.metadata.str("general.architecture")? == Some(assistant::ARCHITECTURE) {
        return assistant::lower(file, options);
    }
    if options.mtp_head {
        return mtp::lower(file, options);
    }
    let ModelDescription {
        architecture,
        spec,
        context_length,
        pooling,
        carries_mtp,
    } = describe(file, options)?;
    let source = TrackedTensors::new(file);
    let layers = match &options.feature_layers {
        FeatureLayers::Mtp if !carries_mtp => vec![],
        layers => layers.resolve(spec.layers.len())?,
    };
    let caches = match &options.feature_layers {
        FeatureLayers::WithKeysAndValues(caches) => &caches[..],
        _ => &[],
    };
    let weight = |name: &str| source.weight(name);
    let graph = transformer::build_with_features(&spec, &layers, caches, &weight)?;
    // Read by the spec, not by the builder.
    for name in ["rope_freqs", "rope_factors_long", "rope_factors_short"] {
        source.weight(&format!("{name}.weight"));
    }
    // Blocks that predict further tokens are no part of the model.
    if file
        .metadata
        .usize(&format!("{architecture}.nextn_predict_layers"))?
        .is_some_and(|n| n > 0)
    {
        source.skip_blocks(spec.layers.len());
    }
    if options.hidden_states {
        // The head is not part of a graph that returns hidden states.
        source.weight("output.weight");
        source.weight("output.bias");
    }
    if let Some(name) = source.unused() {
        let (name, architecture) = (name.to_owned(), architecture);
        return Err(ImportErrorDetail::UnusedTensor { name, architecture }.into());
    }

    let name = file.metadata.str("general.name")?.map(str::to_owned);
    let facts = ModelFacts::of(&spec, context_length, pooling);
    let method = Method {
        name: graph.name().to_owned(),
        graph,
    };
    Ok(LoweredModel {
        name,
        architecture,
        methods: vec![method],
        shaped: vec![],
        facts,
        draft_head: None,
    })
}

/// Model description read from a file's metadata.
struct ModelDescription {
    architecture: String,
    spec: TransformerSpec,
    /// Maximum number of positions.
    context_length: usize,
    /// Pooling, for models that return hidden states.
    pooling: Option<Pooling>,
    /// The file has an MTP head that can be lowered.
    carries_mtp: bool,
}

/// The reader of a file's description.
pub(super) fn architecture_reader<'a>(
    file: &'a Gguf,
    source: &'a TrackedTensors<'a>,
) -> Result<SpecReader<'a>, ImportError> {
    let parts = split::stated_count(&file.metadata)?;
    if parts != file.parts {
        let what = format!("one part of a model split over {parts} files, without the others,");
        return Err(ImportError::unsupported(what));
    }
    let key = "general.architecture";
    let name = file.metadata.str(key)?;
    let name = name.ok_or_else(|| GgufError::missing(key))?;
    let Some(mut architecture) = Architecture::find(name) else {
        let (name, known) = (name.to_owned(), Architecture::names());
        return Err(ImportErrorDetail::UnknownArchitecture { name, known }.into());
    };
    architecture.rope = file.rope.or(architecture.rope);
    Ok(SpecReader {
        architecture,
        keys: Keys {
            metadata: &file.metadata,
            prefix: name,
        },
        source,
    })
}

fn describe(file: &Gguf, options: &ImportOptions) -> Result<ModelDescription, ImportError> {
    let source = TrackedTensors::new(file);
    let reader = architecture_reader(file, &source)?;
    let (spec, context_length) = reader.read(options)?;
    let pooling = match spec.decodes() {
        true => None,
        false => Some(reader.pooling()?),
    };
    Ok(ModelDescription {
        architecture: reader.keys.prefix.to_owned(),
        spec,
        context_length,
        pooling,
        carries_mtp: reader.architecture.mtp && reader.mtp_block()?.is_some(),
    })
}

#[cfg(test)]
mod tests;
