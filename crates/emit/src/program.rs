//! A program: the sources and weights of a model, made from its graph and memory plan.

use crate::calls::Calls;
use crate::error::{EmitError, EmitErrorKind};
use crate::folder;
use crate::plan::{EmitOptions, ProgramKind, ProgramPlan, StateLayout};
use crate::sources;
use crate::tokenizer::TokenizerProgram;
use crate::weights::Weights;
use graph::Graph;
use kv::KvStorage;
use std::path::Path;

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
            Some(tokenizer) => Some(TokenizerProgram::new(tokenizer, &plan.title())?),
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

fn check(plan: &ProgramPlan<'_>) -> Result<(), EmitError> {
    let refuse = |reason: String| Err(EmitErrorKind::Graph(reason).into());
    if i32::try_from(plan.context).is_err() {
        return refuse(format!("a context of {} tokens", plan.context));
    }
    if let Some(state) = plan.graph.states().first() {
        return refuse(format!(
            "it writes to its buffer {:?}, which the program would have to keep between calls",
            state.name
        ));
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
