//! `ProgramPlan`: the graph and the plans that a program is emitted from. `StateLayout`: offsets in its state.

use base::DType;
use graph::Graph;
use graph::plan::MemoryPlan;
use kv::KvLayout;
use text::Tokenizer;

/// Bytes between two regions of the state; a debug build checks that nobody writes them.
pub(crate) const GUARD_BYTES: usize = 64;

/// The model and the plans that [`Program::new`](crate::Program::new) emits.
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
    /// The first words of every source.
    pub(crate) fn title(&self) -> String {
        let name: String = self.name.chars().filter(|c| !c.is_control()).collect();
        format!("{} by kvark emit-c", name.replace("*/", "* /"))
    }

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

/// Offsets of the state's regions that `ProgramPlan::regions` does not have.
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
    pub(crate) fn new(plan: &ProgramPlan<'_>) -> StateLayout {
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
