//! Recurrent layers, unrolled over a constant number of steps.

use base::DType;
use graph::ops::{BinaryFunction as B, CompareFunction as C, Linear, Scalar, UnaryFunction as U};
use graph::{Dim, TensorId};

use super::LoweringBuilder;

/// Limit on the steps that are unrolled.
const MAX_STEPS: usize = 1024;

/// The kind of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Rnn,
    Gru,
    Lstm,
}

impl Cell {
    /// Gates, and activations of a direction.
    pub(crate) fn counts(self) -> (usize, usize) {
        match self {
            Cell::Rnn => (1, 1),
            Cell::Gru => (3, 2),
            Cell::Lstm => (4, 3),
        }
    }
}

/// One direction of a layer, with weights of its own.
pub(crate) struct Direction {
    pub(crate) cell: Cell,
    pub(crate) hidden: usize,
    /// Where the rows of the weights have the gates: update, reset and new of a GRU; input, output, forget and new of an LSTM.
    pub(crate) order: [usize; 4],
    pub(crate) backwards: bool,
    pub(crate) activations: Vec<U>,
    /// Bound on the operands of activations.
    pub(crate) clip: Option<f32>,
    pub(crate) linear_before_reset: bool,
    /// Recurrent weights `[gates · hidden, hidden]` and bias.
    pub(crate) weight: TensorId,
    /// Scale or scales of the recurrent weights, if they are integers; then hidden values are quantised to eight bits at every step.
    pub(crate) scale: Option<TensorId>,
    pub(crate) bias: Option<TensorId>,
    /// Weights of the cell in the gates i, o and f, `[hidden]` each.
    pub(crate) peepholes: Option<[TensorId; 3]>,
    pub(crate) input_forget: bool,
}

/// The state of a direction: hidden values and, for an LSTM, the cell, `[batch, hidden]` each.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) h: TensorId,
    pub(crate) c: TensorId,
}

impl LoweringBuilder {
    /// The steps of a layer whose input has them as first axis.
    pub(crate) fn steps(&self, x: TensorId) -> Result<usize, String> {
        let steps = self.shape(x)[0].as_const();
        let steps = steps.ok_or("its sequence length is dynamic; only constants are supported")?;
        match steps {
            1..=MAX_STEPS => Ok(steps),
            _ => Err(format!("has {steps} steps; 1 to {MAX_STEPS} are supported")),
        }
    }

    /// The hidden values of all steps in order of time, and the last state.
    pub(crate) fn run_direction(
        &mut self,
        direction: &Direction,
        rows: TensorId,
        steps: usize,
        lengths: Option<TensorId>,
        first: State,
    ) -> Result<(Vec<TensorId>, State), String> {
        let mut state = first;
        let zero = self.scalar(Scalar::F32(0.0), DType::F32)?;
        let mut list = vec![zero; steps];
        for turn in 0..steps {
            let time = if direction.backwards {
                steps - 1 - turn
            } else {
                turn
            };
            let row = self.slice(rows, 0, Dim::from(time), Dim::from(1))?;
            let shape = self.shape(row)[1..].to_vec();
            let row = self.reshape(row, shape)?;
            let next = self.step(direction, row, state)?;
            let Some(lengths) = lengths else {
                (list[time], state) = (next.h, next);
                continue;
            };
            // Behind the end of a sequence its state is kept and its outputs are zero.
            let now = self.scalar(Scalar::I64(time as i64), DType::I64)?;
            let within = self.compare(C::Gt, lengths, now)?;
            list[time] = self.choose(within, next.h, zero)?;
            state = State {
                h: self.choose(within, next.h, state.h)?,
                c: self.choose(within, next.c, state.c)?,
            };
        }
        Ok((list, state))
    }

    /// The state after a step, of which `row` is the input's part of the gates.
    fn step(&mut self, layer: &Direction, row: TensorId, last: State) -> Result<State, String> {
        let gate = |lower: &mut Self, x: TensorId, index: usize| {
            let axis = lower.rank(x) - 1;
            let start = Dim::from(layer.order[index] * layer.hidden);
            lower.slice(x, axis, start, Dim::from(layer.hidden))
        };
        let operands: Vec<_> = [last.h, layer.weight]
            .into_iter()
            .chain(layer.bias)
            .collect();
        match layer.cell {
            Cell::Rnn => {
                let own = self.emit(Linear::default(), &operands)?;
                let sum = self.binary(B::Add, row, own)?;
                let h = self.activated(layer, 0, sum)?;
                Ok(State { h, c: h })
            }
            Cell::Gru => {
                let own = self.emit(Linear::default(), &operands)?;
                let mut sums = vec![];
                for index in 0..2 {
                    let (a, b) = (gate(self, row, index)?, gate(self, own, index)?);
                    let sum = self.binary(B::Add, a, b)?;
                    sums.push(self.activated(layer, 0, sum)?);
                }
                let [update, reset] = [sums[0], sums[1]];
                let own = match layer.linear_before_reset {
                    true => {
                        let own = gate(self, own, 2)?;
                        self.binary(B::Mul, reset, own)?
                    }
                    false => {
                        let h = self.binary(B::Mul, reset, last.h)?;
                        let start = Dim::from(layer.order[2] * layer.hidden);
                        let len = Dim::from(layer.hidden);
                        let weight = self.slice(layer.weight, 0, start, len)?;
                        let bias = layer.bias.map(|bias| self.slice(bias, 0, start, len));
                        let bias = bias.transpose()?;
                        let operands: Vec<_> = [h, weight].into_iter().chain(bias).collect();
                        self.emit(Linear::default(), &operands)?
                    }
                };
                let input = gate(self, row, 2)?;
                let sum = self.binary(B::Add, input, own)?;
                let new = self.activated(layer, 1, sum)?;
                // (1 − z) · new + z · last
                let difference = self.binary(B::Sub, last.h, new)?;
                let part = self.binary(B::Mul, update, difference)?;
                let h = self.binary(B::Add, new, part)?;
                Ok(State { h, c: h })
            }
            Cell::Lstm => {
                let own = match (layer.scale, layer.bias) {
                    (None, _) => self.emit(Linear::default(), &operands)?,
                    (Some(scale), None) => self.quantised_product(last.h, layer.weight, scale)?,
                    (Some(scale), Some(bias)) => {
                        let own = self.quantised_product(last.h, layer.weight, scale)?;
                        self.binary(B::Add, own, bias)?
                    }
                };
                let sums = self.binary(B::Add, row, own)?;
                let peep = |lower: &mut Self, x: TensorId, index: usize, c: TensorId| {
                    let Some(weights) = layer.peepholes else {
                        return Ok(x);
                    };
                    let seen = lower.binary(B::Mul, weights[index], c)?;
                    lower.binary(B::Add, x, seen)
                };
                let i = gate(self, sums, 0)?;
                let i = peep(self, i, 0, last.c)?;
                let i = self.activated(layer, 0, i)?;
                let f = match layer.input_forget {
                    true => {
                        let one = self.scalar(Scalar::F32(1.0), DType::F32)?;
                        self.binary(B::Sub, one, i)?
                    }
                    false => {
                        let f = gate(self, sums, 2)?;
                        let f = peep(self, f, 2, last.c)?;
                        self.activated(layer, 0, f)?
                    }
                };
                let new = gate(self, sums, 3)?;
                let new = self.activated(layer, 1, new)?;
                let (kept, added) = (
                    self.binary(B::Mul, f, last.c)?,
                    self.binary(B::Mul, i, new)?,
                );
                let c = self.binary(B::Add, kept, added)?;
                let o = gate(self, sums, 1)?;
                let o = peep(self, o, 1, c)?;
                let o = self.activated(layer, 0, o)?;
                let shown = self.unary(layer.activations[2], c)?;
                let h = self.binary(B::Mul, o, shown)?;
                Ok(State { h, c })
            }
        }
    }

    /// An activation of clipped values.
    fn activated(
        &mut self,
        layer: &Direction,
        index: usize,
        x: TensorId,
    ) -> Result<TensorId, String> {
        let mut x = x;
        if let Some(bound) = layer.clip {
            x = self.with_number(B::Max, x, -bound)?;
            x = self.with_number(B::Min, x, bound)?;
        }
        self.unary(layer.activations[index], x)
    }
}
