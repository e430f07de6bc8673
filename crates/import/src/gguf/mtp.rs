//! Lowers the MTP head that a model's file carries: the block behind the last layer, as a draft head of the model.

use super::file::Gguf;
use super::lower::architecture_reader;
use super::spec::{TrackedTensors, mtp_tensor};
use crate::error::{ImportError, ImportErrorDetail};
use crate::lowered::{DraftHead, FeatureLayers, HeadKind, ImportOptions, LoweredModel, Method};
use crate::model_facts::ModelFacts;
use crate::transformer::build_mtp;

/// Lowers the head to the one method `forward`. Of several such blocks, the first one is the head.
///
/// # Errors
/// `Value` with what is missing if the file carries no head, and `Unsupported` if heads of its architecture are not known.
pub(super) fn lower(file: &Gguf, options: &ImportOptions) -> Result<LoweredModel, ImportError> {
    let source = TrackedTensors::new(file);
    let reader = architecture_reader(file, &source)?;
    let architecture = reader.keys.prefix;
    let Some(block) = reader.mtp_block()? else {
        let key = reader.keys.name("nextn_predict_layers");
        let tensor = mtp_tensor(reader.layer_count()?);
        let reason = format!("carries no MTP head: it needs {key} and tensor {tensor}");
        return Err(ImportError::value("the model", reason));
    };
    if !reader.architecture.mtp {
        let what = format!("the MTP head of the architecture {architecture}");
        return Err(ImportError::unsupported(what));
    }
    let (spec, context_length) = reader.read_mtp(options)?;
    let graph = build_mtp(&spec, block, &|name| source.weight(name))?;
    let prefix = format!("blk.{block}.");
    let unused = source.unused_of(|name| name.starts_with(&prefix));
    if let Some(name) = unused {
        let (name, architecture) = (name.to_owned(), architecture.to_owned());
        return Err(ImportErrorDetail::UnusedTensor { name, architecture }.into());
    }
    let mut facts = ModelFacts::of(&spec, context_length, None);
    // The head has no tokens of its own: runners of decoders refuse it.
    facts.vocab_size = 0;
    Ok(LoweredModel {
        name: file.metadata.str("general.name")?.map(str::to_owned),
        architecture: architecture.to_owned(),
        methods: vec![Method {
            name: graph.name().to_owned(),
            graph,
        }],
        shaped: vec![],
        facts,
        draft_head: Some(DraftHead {
            kind: HeadKind::Mtp,
            target_layers: FeatureLayers::Mtp,
            target_hidden_size: spec.hidden_size,
            target_caches: vec![],
            target_tokens: (0..u32::try_from(spec.vocab_size).unwrap_or(0)).collect(),
        }),
    })
}
