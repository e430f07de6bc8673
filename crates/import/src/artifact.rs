//! An imported model of any format: graphs, facts and the parsed file.

use std::path::Path;

use base::Bytes;
use graph::Graph;

use crate::ImportError;
use crate::error::ImportErrorDetail;
use crate::genai::{self, SidecarFiles};
use crate::gguf::{self, Gguf};
use crate::onnx::{self, Onnx};
use crate::pt2::{self, Pt2};
use crate::transformer::TransformerSpec;

/// Context length of a model whose file states none.
pub(crate) const DEFAULT_CONTEXT_LENGTH: usize = 4096;

/// An imported model.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The file's format.
    pub format: Format,
    /// The name the file gives the model.
    pub name: Option<String>,
    /// The architecture, as the file calls it.
    pub architecture: String,
    /// Entry points.
    pub methods: Vec<Method>,
    /// Facts that caches and runners need.
    pub facts: ModelFacts,
    /// The file itself, for its metadata, tokenizer and tensor list, when its format is GGUF.
    pub gguf: Option<Gguf>,
    /// The file itself, for its metadata, tokenizer and tensor list, when its format is `.pt2`.
    pub pt2: Option<Pt2>,
    /// The file itself, for its inputs, outputs and tensor list, when its format is ONNX.
    pub onnx: Option<Onnx>,
    /// Sidecar files; only ONNX models have their tokenizer there.
    pub sidecars: SidecarFiles,
}

/// A format of model files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// llama.cpp's single-file format.
    Gguf,
    /// PyTorch's exported programs.
    Pt2,
    /// The Open Neural Network Exchange.
    Onnx,
}

impl Format {
    /// The name used in messages and by `inspect`.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Gguf => "gguf",
            Format::Pt2 => "pt2",
            Format::Onnx => "onnx",
        }
    }
}

/// One entry point of a model.
#[derive(Clone, Debug)]
pub struct Method {
    /// The name callers use.
    pub name: String,
    /// The computation.
    pub graph: Graph,
}

/// Properties of the model, as opposed to the caller's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// One entry for each cache id.
    pub caches: Vec<kv::LayerConfig>,
    /// Context length in positions.
    pub context_length: usize,
    /// Whether the file states the context length; otherwise it is a default.
    pub context_stated: bool,
    /// Vocabulary size; 0 if the model is not a decoder.
    pub vocab_size: usize,
    /// Width of the residual stream; 0 if the file does not state it.
    pub hidden_size: usize,
    /// Maximum number of tokens per step, if the graph has a limit.
    pub max_step: Option<usize>,
    /// Maximum number of positions that the graph can compute, if its buffers or tables have a limit.
    pub context_limit: Option<usize>,
    /// Pooling of hidden states, for models that return hidden states instead of logits.
    pub embedding: Option<Pooling>,
}

/// How the hidden states of a text are pooled into one embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Mean over all tokens.
    Mean,
    /// First token, the `[CLS]` of BERT.
    Cls,
    /// Last token.
    Last,
}

impl Pooling {
    /// Every pooling.
    pub const ALL: [Pooling; 3] = [Pooling::Mean, Pooling::Cls, Pooling::Last];

    /// The name used in messages and flags.
    pub const fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Last => "last",
        }
    }
}

impl ModelFacts {
    /// Facts of a model that is not a decoder.
    pub(crate) fn none() -> ModelFacts {
        ModelFacts {
            caches: vec![],
            context_length: DEFAULT_CONTEXT_LENGTH,
            context_stated: false,
            vocab_size: 0,
            hidden_size: 0,
            max_step: None,
            context_limit: None,
            embedding: None,
        }
    }

    /// Facts of a transformer; `embedding` is set for models that return hidden states.
    pub(crate) fn of(
        spec: &TransformerSpec,
        context_length: usize,
        embedding: Option<Pooling>,
    ) -> ModelFacts {
        let decodes = spec.decodes();
        ModelFacts {
            caches: spec.caches(),
            context_length,
            context_stated: true,
            vocab_size: if decodes { spec.vocab_size } else { 0 },
            hidden_size: spec.hidden_size,
            max_step: None,
            context_limit: spec.learned_positions.filter(|_| !decodes),
            embedding,
        }
    }

    /// Whether the model computes logits from tokens, as runners require.
    pub fn is_decoder(&self) -> bool {
        self.vocab_size > 0
    }
}

/// Options of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Context length that will be used; `None` for that of the file.
    ///
    /// LongRoPE models (Phi-3 with 128k context) have one set of frequencies for short contexts and one for long ones;
    /// this option selects the set.
    pub context_length: Option<usize>,
    /// Keep the inputs and outputs of exported decoders instead of rewriting them for runners.
    pub as_exported: bool,
    /// Build decoders without head and caches, so that they return hidden states (GGUF only).
    pub hidden_states: bool,
}

impl Artifact {
    /// The method with this name.
    pub fn method(&self, name: &str) -> Option<&Method> {
        self.methods.iter().find(|method| method.name == name)
    }
}

/// Imports the model at `path`, whatever its format.
pub fn open(path: &Path) -> Result<Artifact, ImportError> {
    open_with(path, &ImportOptions::default())
}

/// Imports the model at `path` with the given options.
///
/// The format is detected by the file's first bytes, or else by its extension; a folder stands for the model that its
/// `genai_config.json` names.
pub fn open_with(path: &Path, options: &ImportOptions) -> Result<Artifact, ImportError> {
    let path = &genai::model_file(path)?;
    let import = || {
        let bytes = Bytes::map(path)?;
        match detect_format(path, &bytes)? {
            Format::Gguf => gguf::lower(Gguf::parse(bytes)?, options),
            Format::Pt2 => pt2::lower(Pt2::parse(&bytes)?, options),
            Format::Onnx => {
                let file = Onnx::parse(bytes, path.parent())?;
                onnx::lower(file, SidecarFiles::find(path)?, options)
            }
        }
    };
    import().map_err(|error: ImportError| error.in_file(path))
}

/// The format of the file at `path`, by its first bytes or else by its extension.
pub fn format_of(path: &Path) -> Result<Format, ImportError> {
    let path = &genai::model_file(path)?;
    let find = || detect_format(path, &Bytes::map(path)?);
    find().map_err(|error: ImportError| error.in_file(path))
}

fn detect_format(path: &Path, bytes: &[u8]) -> Result<Format, ImportError> {
    let extension = path.extension().and_then(|e| e.to_str());
    let is = |format: Format| extension.is_some_and(|e| e.eq_ignore_ascii_case(format.name()));
    if bytes.starts_with(b"GGUF") {
        return Ok(Format::Gguf);
    }
    if Pt2::is_zip(bytes) {
        return Ok(Format::Pt2);
    }
    // ONNX files have no magic.
    let formats = [Format::Gguf, Format::Pt2, Format::Onnx];
    let named = formats.into_iter().find(|f| is(*f));
    let known = "gguf, pt2, onnx";
    named.ok_or_else(|| ImportErrorDetail::UnknownFormat { known }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ImportErrorKind as K;

    #[test]
    fn files_that_are_no_models_are_named() {
        let folder = std::env::temp_dir().join(format!("kvark-open-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let table = [
            ("notes.txt", &b"hello"[..], K::UnknownFormat),
            ("model.bin", b"", K::UnknownFormat),
            ("model.gguf", b"hello", K::Malformed),
            ("model.GGUF", b"", K::Malformed),
            ("weights", b"GGUF\x03", K::Malformed),
            ("model.pt2", b"", K::Malformed),
            ("archive", b"PK\x03\x04", K::Malformed),
        ];
        for (name, bytes, kind) in table {
            let path = folder.join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = open(&path).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
        let error = open(&folder.join("absent.gguf")).unwrap_err();
        assert_eq!(error.kind(), K::Io);
        assert_eq!(
            error.to_string().matches("absent.gguf").count(),
            1,
            "{error}"
        );
        assert_eq!(open(&folder).unwrap_err().kind(), K::Malformed);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
