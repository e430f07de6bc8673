//! The closed set of ops. Each file defines one op: attributes, type inference, buffer reuse and reference evaluator.

mod activation;
mod arg_sort;
mod attention;
mod binary;
mod cast;
mod causal_conv;
mod compare;
mod concat;
mod conv;
mod cum_sum;
mod elementwise;
mod expand;
mod experts;
mod fill;
mod gated;
mod gather;
mod gather_elements;
mod gather_rows;
mod grid_sample;
mod index;
mod layer_norm;
mod linear;
mod linear_attention;
mod mat_mul;
mod operands;
mod permute;
mod pool;
mod range;
mod reduce;
mod reshape;
mod rms_norm;
mod rope;
mod rope_table;
mod route_experts;
mod scale;
mod scatter;
mod size;
mod slice;
mod soft_cap;
mod softmax;
mod strided;
mod triangle;
mod unary;
mod update_and_attend;
mod where_;
mod windows;

pub use activation::Activation;
pub use arg_sort::ArgSort;
pub use attention::Attention;
pub use binary::{Binary, BinaryFunction};
pub use cast::Cast;
pub use causal_conv::CausalConv;
pub use compare::{Compare, CompareFunction};
pub use concat::Concat;
pub use conv::Conv;
pub use cum_sum::CumSum;
pub use expand::Expand;
pub use experts::{ExpertGate, Experts};
pub use fill::{Fill, Scalar};
pub use gated::Gated;
pub use gather::Gather;
pub use gather_elements::GatherElements;
pub use gather_rows::GatherRows;
pub use grid_sample::{GridSample, MAX_SAMPLE_AXES, MAX_TAPS, SampleMode, SamplePadding, Taps};
pub use index::Index;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use linear_attention::{HeadSharing, LinearAttention};
pub use mat_mul::MatMul;
pub use permute::Permute;
pub use pool::{Pool, PoolFunction};
pub use range::Range;
pub use reduce::{Reduce, ReduceFunction};
pub use reshape::Reshape;
pub use rms_norm::RmsNorm;
pub use rope::{Rope, RopeLayout};
pub use rope_table::RopeTable;
pub use route_experts::{ExpertGroups, ExpertScores, RouteExperts};
pub use scale::Scale;
pub use scatter::{Scatter, ScatterFunction};
pub use size::Size;
pub use slice::Slice;
pub use soft_cap::SoftCap;
pub use softmax::Softmax;
pub use strided::{broadcast_strides, strides};
pub use triangle::Triangle;
pub use unary::{Unary, UnaryFunction};
pub use update_and_attend::{
    AttendedRow, ScoreParams, UpdateAndAttend, attend_row, attend_row_with_sink,
};
pub use where_::Where;
pub use windows::{WindowAxis, Windows};

use crate::tensor_type::TensorType;
use crate::{Bindings, Dim, Value};

/// Whether an op's result needs its own buffer, aliases operand 0, or may overwrite an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferReuse {
    /// The result needs its own buffer.
    None,
    /// The result is a view of operand 0 at a byte offset; nothing is computed.
    Alias {
        /// Bytes of operand 0 before the result.
        offset: usize,
    },
    /// The result may overwrite any of the first `n` operands that has its size and is not needed later.
    InPlace(usize),
}

impl BufferReuse {
    /// A view of all of operand 0.
    pub const ALIAS: BufferReuse = BufferReuse::Alias { offset: 0 };
}

/// The elements of the operands that an element of the result depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dependence {
    /// Those at its own place, as the operands broadcast.
    Element,
    /// The row at its own place in operand 0, along the last axis. The other operands are the same for all rows.
    Row,
    /// Any.
    All,
}

/// How a node uses the cache that is bound at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// Index of the cache.
    pub id: u32,
    /// The operand with the positions of the tokens.
    pub position: usize,
    /// Heads, elements of a key (0 for a state) and elements of a value or a state, if they are constants.
    pub dims: Option<[usize; 3]>,
}

/// Formats a dimension with the graph's symbol names.
pub type DimFormatter<'a> = &'a dyn Fn(&Dim) -> String;

/// Trait that every op implements. Errors are reasons only; the caller adds the node's name.
pub(crate) trait OpDefinition {
    /// Name in text form.
    fn name(&self) -> &'static str;

    /// Attributes in text form, `key: value` each.
    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        Vec::new()
    }

    /// Infers the type of the result, or returns the reason why the operands do not fit.
    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String>;

    /// Buffer reuse under concrete symbols, or the reason why the op cannot run with them.
    fn sharing(&self, _: &[&TensorType], _: &Bindings) -> Result<BufferReuse, String> {
        Ok(BufferReuse::None)
    }

    /// The elements of the operands that one element of the result is computed from.
    fn dependence(&self) -> Dependence {
        Dependence::All
    }

    /// How a node with these operands uses the cache; `None` if the op has no memory.
    fn cache(&self, _inputs: &[&TensorType]) -> Option<CacheUse> {
        None
    }

    /// Whether the result is operand 0 unchanged if it has its type. `is_number` returns whether an operand is a constant of one
    /// element with this value.
    fn keeps_operand(&self, _is_number: &dyn Fn(usize, i64) -> bool) -> bool {
        false
    }

    /// Reference evaluator in plain f32 loops. Operands have the inferred types, dequantised if they were quantised.
    fn evaluate(
        &self,
        inputs: &[&Value],
        shape: &[usize],
        bindings: &Bindings,
    ) -> Result<Value, String>;
}

macro_rules! ops {
    ($($op:ident),*) => {
        /// An op with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant is documented at its struct")]
        pub enum Op { $($op($op)),* }

        $(impl From<$op> for Op {
            fn from(op: $op) -> Op {
                Op::$op(op)
            }
        })*

        impl Op {
            fn definition(&self) -> &dyn OpDefinition {
                match self { $(Op::$op(op) => op),* }
            }
        }
    };
}

ops!(
    ArgSort,
    Attention,
    Binary,
    Cast,
    CausalConv,
    Compare,
    Concat,
    Conv,
    CumSum,
    Expand,
    Experts,
    Fill,
    Gated,
    Gather,
    GatherElements,
    GatherRows,
    GridSample,
    Index,
    LayerNorm,
    Linear,
    LinearAttention,
    MatMul,
    Permute,
    Pool,
    Range,
    Reduce,
    Reshape,
    RmsNorm,
    Rope,
    RopeTable,
    RouteExperts,
    Scale,
    Scatter,
    Size,
    Slice,
    SoftCap,
    Softmax,
    Triangle,
    Unary,
    UpdateAndAttend,
    Where,
    Windows
);

impl Op {
    /// Name in text form.
    pub fn name(&self) -> &'static str {
        self.definition().name()
    }

    /// Attributes in text form, `key: value` each.
    pub fn attributes(&self, dim: DimFormatter<'_>) -> Vec<String> {
        self.definition().attributes(dim)
    }

    /// Infers the type of the result, or returns the reason why the operands do not fit.
    pub fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        self.definition().infer(inputs)
    }

    /// Buffer reuse with operands of these types under concrete symbols, or the reason why the op cannot run with them.
    pub fn sharing(&self, inputs: &[&TensorType], at: &Bindings) -> Result<BufferReuse, String> {
        self.definition().sharing(inputs, at)
    }

    /// The elements of the operands that one element of the result is computed from.
    pub(crate) fn dependence(&self) -> Dependence {
        self.definition().dependence()
    }

    /// How a node with these operands uses the cache that is bound at run time; `None` if the op has no memory.
    pub fn cache(&self, inputs: &[&TensorType]) -> Option<CacheUse> {
        self.definition().cache(inputs)
    }

    /// Whether the op reads and writes the cache: equal nodes are not the same, and none is without effect.
    pub fn has_memory(&self) -> bool {
        self.cache(&[]).is_some()
    }

    /// Whether the result is operand 0 unchanged if it has its type. `is_number` returns whether an operand is a constant of one
    /// element with this value.
    pub(crate) fn keeps_operand(&self, is_number: &dyn Fn(usize, i64) -> bool) -> bool {
        self.definition().keeps_operand(is_number)
    }

    /// Runs the reference evaluator; `shape` is the result's shape under concrete symbols.
    pub fn evaluate(
        &self,
        inputs: &[&Value],
        shape: &[usize],
        bindings: &Bindings,
    ) -> Result<Value, String> {
        self.definition().evaluate(inputs, shape, bindings)
    }
}
