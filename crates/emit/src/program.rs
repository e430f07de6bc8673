//! A program: the sources and weights of a model, made from its graph and memory plan.

use crate::calls::Calls;
use crate::error::{EmitError, EmitErrorKind};
use crate::folder;
use crate::sources;
use crate::tokenizer::TokenizerProgram;
use crate::weights::Weights;
use base::DType;
use graph::Graph;
use graph::plan::MemoryPlan;
use kv::{KvLayout, KvStorage};
use std::path::Path;
use text::Tokenizer;

/// Bytes between two regions of the state; a debug build checks that nobody writes them.
pub(crate) const GUARD_BYTES: usize = 64;

/// What a program is made from.
pub struct ProgramPlan<'a> {
    /// The model's name, for comments.
    pub name: &'a str,
    /// The optimised graph of a decoder or an encoder.
    pub graph: &'a Graph,
    /// Where every tensor of the longest step lies.
    pub memory: &'a MemoryPlan,
    /// The layout of the full cache; without layers for an encoder.
    pub kv: &'a KvLayout,
    /// Offsets of the state's regions.
    pub regions: Regions,
    /// The context in tokens.
    pub context: usize,
    /// The most tokens of a step.
    pub max_step: usize,
    /// Logits of a row; zero for an encoder.
    pub vocab: usize,
    /// The tokenizer to emit with the program, which then takes text as well.
    pub tokenizer: Option<&'a Tokenizer>,
}

/// The inputs and outputs of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    /// Logits from tokens, with a cache.
    Decoder,
    /// Hidden states from tokens.
    Encoder,
    /// Outputs from inputs of fixed shapes, such as an encoder of images.
    Tensors,
}

impl ProgramPlan<'_> {
    pub(crate) fn kind(&self) -> ProgramKind {
        let takes_tokens = self.graph.inputs().iter().all(|id| {
            let ty = &self.graph.tensor(*id).ty;
            ty.dtype == DType::I32 && ty.shape.len() == 1
        });
        match (self.vocab, takes_tokens) {
            (0, false) => ProgramKind::Tensors,
            (0, true) => ProgramKind::Encoder,
            _ => ProgramKind::Decoder,
        }
    }
}

/// Offsets of the regions of a state. Between two regions there are at least 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// Keys and values.
    pub kv: usize,
    /// Intermediate results.
    pub arena: usize,
    /// Logits.
    pub logits: usize,
    /// The end of the logits.
    pub end: usize,
}

/// Choices of the caller.
#[derive(Clone, Debug, Default)]
pub struct EmitOptions {
    /// Whether the state is a static buffer of the program instead of its one allocation.
    pub static_state: bool,
    /// The threads of the program, the caller's own included; 0 and 1 are one.
    pub threads: usize,
    /// The most bytes that state and weights may take together.
    pub max_bytes: Option<u64>,
}

/// The sources and weights of a model.
pub struct Program<'a> {
    graph: &'a Graph,
    files: Vec<(&'static str, String)>,
    tokenizer: Option<TokenizerProgram>,
    weights: Weights,
    state_bytes: usize,
}

impl<'a> Program<'a> {
    /// Makes the sources. Nothing is written and no weight is read.
    ///
    /// # Errors
    /// `Node` if a node cannot be emitted, `Graph` if the whole cannot, `TooLarge` if it does not fit in the address space or in
    /// the options' limit.
    pub fn new(plan: &ProgramPlan<'a>, options: &EmitOptions) -> Result<Program<'a>, EmitError> {
        check(plan)?;
        let calls = Calls::new(plan)?;
        let layout = StateLayout::new(plan);
        let tokenizer = match plan.tokenizer {
            Some(_) if plan.kind() == ProgramKind::Tensors => {
                let reason = "it takes no tokens, so it has no tokenizer".to_owned();
                return Err(EmitErrorKind::Graph(reason).into());
            }
            Some(tokenizer) => Some(TokenizerProgram::new(tokenizer, &sources::title(plan))?),
            None => None,
        };
        check_size(&layout, calls.weights.bytes(), tokenizer.as_ref(), options)?;
        let files = sources::all(plan, &calls, &layout, tokenizer.as_ref(), options)?;
        Ok(Program {
            graph: plan.graph,
            files,
            tokenizer,
            weights: calls.weights,
            state_bytes: layout.bytes,
        })
    }

    /// The source files: name and text.
    pub fn files(&self) -> &[(&'static str, String)] {
        &self.files
    }

    /// Bytes of the state.
    pub fn state_bytes(&self) -> usize {
        self.state_bytes
    }

    /// Bytes of `weights.bin`.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Bytes of `tokenizer.bin`; zero without a tokenizer.
    pub fn tokenizer_bytes(&self) -> usize {
        let tables = self
            .tokenizer
            .as_ref()
            .map(|program| program.tables().len());
        tables.unwrap_or(0)
    }

    /// Writes the program to a folder, which is replaced if an earlier program is in it. The folder is written under another
    /// name and renamed when it is whole. `progress` receives the bytes of weights written and the total; it returns false to
    /// cancel.
    ///
    /// # Errors
    /// `NotOurs` if the folder holds other files, `Io` if a file cannot be written, `Interrupted` if `progress` cancels.
    pub fn write(
        &self,
        folder: &Path,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<(), EmitError> {
        let files = self.files.iter();
        let mut files: Vec<(&str, &[u8])> =
            files.map(|(name, text)| (*name, text.as_bytes())).collect();
        if let Some(tokenizer) = &self.tokenizer {
            files.push(("tokenizer.bin", tokenizer.tables()));
        }
        folder::write(folder, &files, |path| {
            let mut write = || {
                let file = std::fs::File::create(path)?;
                let mut out = std::io::BufWriter::with_capacity(1 << 20, file);
                self.weights.write(self.graph, &mut out, progress)?;
                let file = out
                    .into_inner()
                    .map_err(std::io::IntoInnerError::into_error)?;
                file.sync_all()?;
                Ok(())
            };
            write().map_err(|error: crate::weights::WriteError| error.at(path))
        })
    }
}

/// Offsets of the state's regions that a plan does not have.
pub(crate) struct StateLayout {
    pub(crate) token_ids: usize,
    pub(crate) positions: usize,
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
    /// Bytes of the rows' region: the row whose logits are wanted, or the text of every token.
    pub(crate) rows_bytes: usize,
    /// Offsets and bytes of the inputs, for programs without tokens.
    pub(crate) inputs: Vec<(usize, usize)>,
}

impl StateLayout {
    fn new(plan: &ProgramPlan<'_>) -> StateLayout {
        let after = |end: usize| end.saturating_add(GUARD_BYTES).next_multiple_of(64);
        if plan.kind() == ProgramKind::Tensors {
            let mut end = plan.regions.end;
            let mut inputs = Vec::new();
            for id in plan.graph.inputs() {
                let ty = &plan.graph.tensor(*id).ty;
                let bytes = ty.bytes(&plan.memory.bindings).unwrap_or(usize::MAX);
                let offset = after(end);
                end = offset.saturating_add(bytes);
                inputs.push((offset, bytes));
            }
            return StateLayout {
                token_ids: 0,
                positions: 0,
                rows: 0,
                bytes: after(end),
                rows_bytes: 0,
                inputs,
            };
        }
        let ids = plan.context.saturating_mul(size_of::<i32>());
        let rows_bytes = match plan.vocab {
            0 => ids,
            _ => size_of::<i32>(),
        };
        let token_ids = after(plan.regions.end);
        let positions = after(token_ids.saturating_add(ids));
        let rows = after(positions.saturating_add(ids));
        StateLayout {
            token_ids,
            positions,
            rows,
            bytes: after(rows.saturating_add(rows_bytes)),
            rows_bytes,
            inputs: vec![],
        }
    }
}

fn check(plan: &ProgramPlan<'_>) -> Result<(), EmitError> {
    let refuse = |reason: String| Err(EmitErrorKind::Graph(reason).into());
    if i32::try_from(plan.context).is_err() {
        return refuse(format!("a context of {} tokens", plan.context));
    }
    for (i, layer) in plan.kv.layers.iter().enumerate() {
        for side in [&layer.keys, &layer.values] {
            let size = match side.storage {
                KvStorage::F32 => 4,
                KvStorage::F16 => 2,
                KvStorage::F8E4M3 => 1,
                other => {
                    return refuse(format!(
                        "keys and values of {other}; f32, f16 and f8_e4m3 can be emitted"
                    ));
                }
            };
            if !side.offset.is_multiple_of(size) {
                return refuse(format!(
                    "layer {i} has its {} at an odd address; take one type for keys and values",
                    side.storage
                ));
            }
        }
    }
    Ok(())
}

fn check_size(
    layout: &StateLayout,
    weights: usize,
    tokenizer: Option<&TokenizerProgram>,
    options: &EmitOptions,
) -> Result<(), EmitError> {
    let (state, weights) = (layout.bytes as u128, weights as u128);
    let tables = tokenizer.map_or(0, |program| program.tables().len() as u128);
    let needed = state + weights + tables;
    let limit = match options.max_bytes {
        Some(most) if needed > u128::from(most) => match tables {
            0 => format!("--max-bytes allows {most}"),
            _ => format!("{tables} are of tokenizer.bin; --max-bytes allows {most}"),
        },
        _ if needed > isize::MAX as u128 => "no address space holds them".to_owned(),
        _ => return Ok(()),
    };
    Err(EmitErrorKind::TooLarge {
        needed,
        state,
        weights,
        limit,
    }
    .into())
}
