//! `ExportedEncoder`: an encoder with the inputs and outputs that it was exported with, from ONNX or PyTorch.

use crate::inference::{InferenceOptions, InferenceSession, TensorDim, TensorInfo};
use crate::{RuntimeError, RuntimeErrorKind};
use backend::{Backend, CompileOptions};
use base::DType;
use graph::{Data, Value};
use import::Artifact;

/// An encoder that takes token ids of one text as a tensor and returns a hidden state for each, or one embedding.
pub(super) struct ExportedEncoder {
    session: InferenceSession,
    inputs: Vec<(TensorInfo, TextInput)>,
    /// The output with the hidden states or the embedding.
    output: usize,
    /// Elements of a hidden state.
    pub(super) width: usize,
    /// The number of tokens of every text, if the export fixes it: shorter ones are padded.
    pub(super) tokens: Option<usize>,
}

/// What an input holds for each token of a text.
#[derive(Clone, Copy)]
enum TextInput {
    Ids,
    /// 1, and 0 for padding.
    Mask,
    /// 0: all tokens are of the first text.
    Type,
    Position,
}

impl TextInput {
    fn of_name(name: &str) -> Option<TextInput> {
        match name {
            "input_ids" | "tokens" => Some(TextInput::Ids),
            "attention_mask" => Some(TextInput::Mask),
            "token_type_ids" => Some(TextInput::Type),
            "position_ids" => Some(TextInput::Position),
            _ => None,
        }
    }
}

impl ExportedEncoder {
    /// Compiles the graph of an encoder.
    ///
    /// # Errors
    /// `NoEmbedding` if its inputs are not those of an encoder, or no output is a hidden state.
    pub(super) fn new(
        artifact: &Artifact,
        backend: &dyn Backend,
        compile: &CompileOptions,
    ) -> Result<ExportedEncoder, RuntimeError> {
        let refused = |reason: String| {
            let model = format!("{}: {reason}", artifact.architecture);
            RuntimeError::from(RuntimeErrorKind::NoEmbedding(model))
        };
        let method = artifact.method("forward").or(artifact.methods.first());
        let method = method.ok_or_else(|| refused("it has no method".to_owned()))?;
        let options = InferenceOptions {
            compile: compile.clone(),
            ..InferenceOptions::default()
        };
        let session = InferenceSession::from_graph(method.graph.clone(), backend, &options)?;
        let mut inputs = vec![];
        let mut tokens = None;
        for info in session.inputs() {
            let kind = TextInput::of_name(&info.name);
            let whole = matches!(info.dtype, DType::I32 | DType::I64 | DType::Bool);
            let (Some(kind), 2, true) = (kind, info.shape.len(), whole) else {
                return Err(refused(format!("it takes {info}")));
            };
            if let TensorDim::Fixed(n) = info.shape[1] {
                tokens = Some(n);
            }
            inputs.push((info.clone(), kind));
        }
        if !inputs
            .iter()
            .any(|(_, kind)| matches!(kind, TextInput::Ids))
        {
            return Err(refused("it takes no input_ids".to_owned()));
        }
        let found = |rank: usize| {
            let outputs = session.outputs().iter().enumerate();
            let mut fitting = outputs
                .filter(move |(_, info)| info.dtype == DType::F32 && info.shape.len() == rank);
            fitting.find_map(|(index, info)| match info.shape.last() {
                Some(TensorDim::Fixed(width)) if *width > 0 => Some((index, *width)),
                _ => None,
            })
        };
        // Hidden states are pooled as the caller wants; an export may return the embedding only.
        let (output, width) = found(3)
            .or_else(|| found(2))
            .ok_or_else(|| refused("no output is a hidden state".to_owned()))?;
        Ok(ExportedEncoder {
            session,
            inputs,
            output,
            width,
            tokens,
        })
    }

    pub(super) fn arena_bytes(&self) -> usize {
        self.session.arena_bytes()
    }

    /// The hidden states of a text, one row a token; one row for an export that returns the embedding.
    pub(super) fn hidden(&mut self, text: &[u32]) -> Result<Vec<f32>, RuntimeError> {
        let len = self.tokens.unwrap_or(text.len());
        let inputs = self.inputs.iter().map(|(info, kind)| {
            let number = |i: usize| match (kind, text.get(i)) {
                (TextInput::Ids, id) => i64::from(id.copied().unwrap_or(0)),
                (TextInput::Mask, id) => i64::from(id.is_some()),
                (TextInput::Type, _) => 0,
                (TextInput::Position, _) => i as i64,
            };
            let numbers = (0..len).map(number);
            let data = match info.dtype {
                DType::I32 => Data::I32(numbers.map(|n| n as i32).collect()),
                DType::Bool => Data::Bool(numbers.map(|n| n != 0).collect()),
                _ => Data::I64(numbers.collect()),
            };
            let shape = vec![1, len];
            (info.name.clone(), Value { shape, data })
        });
        let inputs: Vec<(String, Value)> = inputs.collect();
        let outputs = self.session.run(inputs)?;
        let (_, output) = &outputs[self.output];
        let values = output.as_f32().unwrap_or_default();
        let rows = match output.shape.len() {
            3 => text.len(),
            _ => 1,
        };
        Ok(values[..rows * self.width].to_vec())
    }
}
