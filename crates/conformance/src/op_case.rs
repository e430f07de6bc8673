//! `OpCase`: one op on random operands.

use crate::TestRng;
use backend::{Backend, CompileOptions};
use base::DType;
use graph::ops::{Binary, BinaryFunction, Conv, Linear, Op, Scale, Unary, UnaryFunction};
use graph::{Data, Dim, Graph, GraphBuilder, Node, Symbol, Value};
use std::sync::Arc;

/// One op on random operands, in a graph with the symbol `T`.
pub(super) struct OpCase {
    pub(super) name: String,
    graph: Arc<Graph>,
    inputs: Vec<Value>,
    /// The same case without its activation.
    pub(super) without_activation: Option<Box<OpCase>>,
}

/// An operand of a case's op.
#[derive(Debug)]
pub(super) enum Operand {
    /// An f32 input `[T, ..]`.
    Rows(Vec<usize>),
    /// An input `[T]` of numbers below a limit.
    Index(DType, u64),
    /// A constant.
    Weight(DType, Vec<usize>),
    /// An input of any shape; [`SYMBOL_T`] stands for the symbol.
    Tensor(DType, Vec<usize>, Values),
}

/// The size that stands for the symbol `T` in an operand's shape.
pub(super) const SYMBOL_T: usize = usize::MAX;

/// The range of an input's elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum Values {
    /// Around zero; both values for booleans.
    Any,
    /// Above zero.
    Positive,
    /// Integers from the first (inclusive) to the second (exclusive).
    Whole(i64, i64),
}

/// The symbol as a dimension.
pub(super) fn tokens() -> Dim {
    Symbol(0).into()
}

impl OpCase {
    /// Whether the case has a product with a quantised weight.
    pub(super) fn has_quantised_weight(&self) -> bool {
        let quantised = |node: &Node| {
            let weights = match node.op {
                Op::Linear(_) => &node.inputs[1..],
                Op::Experts(_) => &node.inputs[2..],
                _ => &[],
            };
            let mut types = weights.iter().map(|id| self.graph.tensor(*id).ty.dtype);
            types.any(DType::is_quantised)
        };
        self.graph.nodes().iter().any(quantised)
    }

    pub(super) fn new(op: impl Into<Op>, tokens: usize, operands: &[Operand], seed: u64) -> OpCase {
        let op = op.into();
        let without_activation: Option<Op> = match &op {
            Op::Linear(Linear {
                activation: Some(_),
            }) => Some(Linear::default().into()),
            Op::Conv(conv) if conv.activation.is_some() => {
                let activation = None;
                Some(
                    Conv {
                        activation,
                        ..conv.clone()
                    }
                    .into(),
                )
            }
            Op::Gated(_) => {
                let function = BinaryFunction::Mul;
                Some(Binary { function }.into())
            }
            Op::Unary(Unary {
                function: UnaryFunction::Activation(_),
            }) => Some(Scale { factor: 1.0 }.into()),
            _ => None,
        };
        let without_activation =
            without_activation.map(|op| Box::new(OpCase::new(op, tokens, operands, seed)));
        let mut noise = TestRng::new(seed);
        let mut b = GraphBuilder::new("case");
        let t = b.symbol("T");
        // Binds the symbol if no operand has it.
        b.input("tokens", DType::Bool, [t]);
        let mut inputs = vec![Value::bool([tokens], vec![false; tokens])];
        let mut ids = Vec::new();
        for (i, operand) in operands.iter().enumerate() {
            let name = format!("x{i}");
            let (dtype, shape, values) = match operand {
                Operand::Weight(dtype, shape) => {
                    let data = noise.weights(*dtype, shape.iter().product());
                    let constant = b.constant(&name, *dtype, shape, data);
                    ids.push(constant.expect("a whole constant"));
                    continue;
                }
                Operand::Rows(shape) => {
                    let shape = std::iter::once(SYMBOL_T)
                        .chain(shape.iter().copied())
                        .collect();
                    (DType::F32, shape, Values::Any)
                }
                Operand::Index(dtype, limit) => {
                    (*dtype, vec![SYMBOL_T], Values::Whole(0, *limit as i64))
                }
                Operand::Tensor(dtype, shape, values) => (*dtype, shape.clone(), *values),
            };
            let dims: Vec<Dim> = shape
                .iter()
                .map(|n| if *n == SYMBOL_T { t } else { (*n).into() })
                .collect();
            let full: Vec<usize> = shape
                .iter()
                .map(|n| if *n == SYMBOL_T { tokens } else { *n })
                .collect();
            let data = elements(&mut noise, dtype, full.iter().product(), values);
            inputs.push(Value { shape: full, data });
            ids.push(b.input(&name, dtype, dims));
        }
        let name = format!(
            "{} {:?} T={tokens} {operands:?}",
            op.name(),
            op.attributes(&|dim| format!("{dim:?}"))
        );
        let out = b
            .node("y", op, &ids)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        OpCase {
            name,
            graph: Arc::new(b.finish(&[out]).expect("a valid graph")),
            inputs,
            without_activation,
        }
    }

    pub(super) fn evaluate(
        &self,
        backend: &dyn Backend,
        options: &CompileOptions,
    ) -> Result<Value, String> {
        let mut executable = backend
            .compile(self.graph.clone(), options)
            .map_err(|e| e.to_string())?;
        let mut outputs = executable
            .run(&self.inputs, None, None)
            .map_err(|e| e.to_string())?;
        Ok(outputs.remove(0))
    }
}

fn elements(noise: &mut TestRng, dtype: DType, len: usize, values: Values) -> Data {
    let mut number = || match values {
        Values::Any => noise.unit() * 3.0,
        Values::Positive => noise.unit().abs() * 3.0 + 0.1,
        Values::Whole(low, high) => (low + (noise.bits() >> 33) as i64 % (high - low)) as f32,
    };
    match dtype {
        DType::F32 => Data::F32((0..len).map(|_| number()).collect()),
        DType::I32 => Data::I32((0..len).map(|_| number() as i32).collect()),
        DType::I64 => Data::I64((0..len).map(|_| number() as i64).collect()),
        DType::Bool => Data::Bool((0..len).map(|_| number() > 0.0).collect()),
        dtype => unreachable!("no input is {dtype}"),
    }
}
