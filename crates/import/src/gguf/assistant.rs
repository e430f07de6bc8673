//! Lowers a GGUF file of the architecture `gemma4-assistant`: a draft head that attends to the keys and values of a Gemma 4 model.

use super::architecture::GEMMA4_ASSISTANT;
use super::architecture_keys::Keys;
use super::file::Gguf;
use super::spec::{SpecReader, TrackedTensors};
use crate::error::{ImportError, ImportErrorDetail};
use crate::lowered::{DraftHead, FeatureLayers, HeadKind, ImportOptions, LoweredModel, Method};
use crate::model_facts::ModelFacts;
use crate::transformer::{AttentionSpec, KvSource, TransformerSpec, build_assistant};

pub(super) const ARCHITECTURE: &str = GEMMA4_ASSISTANT.name;

/// Lowers a head to the one method `forward`. Logits are computed for all tokens, also if the model was trained with an output matrix
/// of clusters: files do not have the clusters, and the text does not depend on them.
///
/// # Errors
/// `Value` if layers of one kind differ in the size of their keys and values.
pub(super) fn lower(file: &Gguf, options: &ImportOptions) -> Result<LoweredModel, ImportError> {
    let source = TrackedTensors::new(file);
    let reader = SpecReader {
        architecture: GEMMA4_ASSISTANT,
        keys: Keys {
            metadata: &file.metadata,
            prefix: ARCHITECTURE,
        },
        source: &source,
    };
    let target_hidden_size = reader.keys.size("embedding_length_out")?;
    let options = ImportOptions {
        context_length: options.context_length,
        ..ImportOptions::default()
    };
    let (mut spec, context_length) = reader.read_blocks(&options, reader.block_count()?)?;
    spec.final_softcap = None;
    let target_caches = given_caches(&spec)?;
    let weight = |name: &str| source.weight(name);
    let graph = build_assistant(&spec, target_hidden_size, &target_caches, &weight)?;
    // Read by the spec, not by the builder.
    source.weight("rope_freqs.weight");
    if let Some(name) = source.unused() {
        let (name, architecture) = (name.to_owned(), ARCHITECTURE.to_owned());
        return Err(ImportErrorDetail::UnusedTensor { name, architecture }.into());
    }
    let windowed = target_caches.iter().map(|cache| cache.window.is_some());
    let target_layers = FeatureLayers::WithKeysAndValues(windowed.collect());
    let mut facts = ModelFacts::of(&spec, context_length, None);
    facts.caches = target_caches.clone();
    for cache in &mut facts.caches {
        // transformers' window of an assistant includes both ends.
        cache.window = cache.window.map(|window| window.saturating_add(1));
    }
    // The head has no tokens of its own: runners of decoders refuse it.
    facts.vocab_size = 0;
    Ok(LoweredModel {
        name: file.metadata.str("general.name")?.map(str::to_owned),
        architecture: ARCHITECTURE.to_owned(),
        methods: vec![Method {
            name: graph.name().to_owned(),
            graph,
        }],
        shaped: vec![],
        facts,
        draft_head: Some(DraftHead {
            kind: HeadKind::Assistant,
            target_layers,
            target_hidden_size,
            target_caches,
            target_tokens: (0..u32::try_from(spec.vocab_size).unwrap_or(0)).collect(),
        }),
    })
}

/// The caches that the layers name, as the target has them.
fn given_caches(spec: &TransformerSpec) -> Result<Vec<kv::LayerConfig>, ImportError> {
    let mut caches: Vec<Option<kv::LayerConfig>> = vec![None; 2];
    for (i, layer) in spec.layers.iter().enumerate() {
        let (KvSource::Given(cache), Some(attention)) = (layer.kv, layer.attention()) else {
            continue;
        };
        let AttentionSpec {
            kv_heads,
            key_dim,
            value_dim,
            window,
            ..
        } = *attention;
        let config = kv::LayerConfig {
            kv_heads,
            key_dim,
            value_dim,
            window,
            sinks: 0,
        };
        let known = caches[cache].get_or_insert(config);
        if *known != config {
            let reason = "has other keys and values than a layer of its kind before it";
            return Err(ImportError::value(format!("layer {i}"), reason));
        }
    }
    Ok(caches.into_iter().flatten().collect())
}
