//! `RNN`, `GRU` and `LSTM`, unrolled over a constant number of steps.

use base::DType;
use graph::ops::{
    Activation, BinaryFunction as B, CompareFunction as C, Linear, Scalar, UnaryFunction as U,
};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};

/// Limit on the steps that are unrolled.
const MAX_STEPS: usize = 1024;

/// The kind of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Rnn,
    Gru,
    Lstm,
}

impl Cell {
    /// Gates, and activations of a direction.
    fn counts(self) -> (usize, usize) {
        match self {
            Cell::Rnn => (1, 1),
            Cell::Gru => (3, 2),
            Cell::Lstm => (4, 3),
        }
    }
}

/// One direction of a layer, with weights of its own.
struct Direction {
    cell: Cell,
    hidden: usize,
    backwards: bool,
    activations: Vec<U>,
    /// Bound on the operands of activations.
    clip: Option<f32>,
    linear_before_reset: bool,
    /// Recurrent weights `[gates · hidden, hidden]` and bias.
    weight: TensorId,
    bias: Option<TensorId>,
    /// Weights of the cell in the gates i, o and f, `[hidden]` each.
    peepholes: Option<[TensorId; 3]>,
    input_forget: bool,
}

/// What a direction remembers: hidden values and, for an LSTM, the cell, `[batch, hidden]` each.
#[derive(Clone, Copy)]
struct State {
    h: TensorId,
    c: TensorId,
}

pub(super) fn recurrent(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let cell = match call.op() {
        "GRU" => Cell::Gru,
        "LSTM" => Cell::Lstm,
        _ => Cell::Rnn,
    };
    let by_batch = call.flag("layout", false)?;
    let mut x = lower.real(call, 0)?;
    if lower.rank(x) != 3 {
        return Err("its input must have three axes".into());
    }
    if by_batch {
        x = lower.permute(x, vec![1, 0, 2])?;
    }
    let [steps, batch, _] = lower.shape(x)[..] else {
        return Err("its input must have three axes".into());
    };
    let steps = steps
        .as_const()
        .ok_or("its sequence length is dynamic; only constants are supported")?;
    if steps == 0 || steps > MAX_STEPS {
        return Err(format!("has {steps} steps; 1 to {MAX_STEPS} are supported"));
    }
    let directions: &[bool] = match call.text("direction")?.unwrap_or("forward") {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(format!("the direction {other:?} is not supported")),
    };
    if cell == Cell::Lstm && call.float("clip")?.is_some() {
        return Err("the clip of an LSTM is not supported".into());
    }
    let alpha = [
        call.floats("activation_alpha")?,
        call.floats("activation_beta")?,
    ];
    if alpha.into_iter().flatten().any(|list| !list.is_empty()) {
        return Err("parameters of activations are not supported".into());
    }
    let count = directions.len();
    let lengths = lower.lengths(call, steps)?;
    let (mut outputs, mut last_h, mut last_c) = (vec![], vec![], vec![]);
    for (index, backwards) in directions.iter().enumerate() {
        let (direction, rows) = lower.direction(call, cell, (index, count), *backwards, x)?;
        let state = State {
            h: lower.first_state(call, 5, index, by_batch, batch, direction.hidden)?,
            c: lower.first_state(call, 6, index, by_batch, batch, direction.hidden)?,
        };
        let (list, state) = lower.run_direction(&direction, rows, steps, lengths, state)?;
        let hidden = Dim::from(direction.hidden);
        let list: Vec<TensorId> = list
            .into_iter()
            .map(|h| lower.reshape(h, vec![Dim::from(1), Dim::from(1), batch, hidden]))
            .collect::<Result<_, _>>()?;
        outputs.push(lower.concat(&list, 0)?);
        let alone = vec![Dim::from(1), batch, hidden];
        last_h.push(lower.reshape(state.h, alone.clone())?);
        last_c.push(lower.reshape(state.c, alone)?);
    }
    let mut y = lower.concat(&outputs, 1)?;
    let (mut h, mut c) = (lower.concat(&last_h, 0)?, lower.concat(&last_c, 0)?);
    if by_batch {
        y = lower.permute(y, vec![2, 0, 1, 3])?;
        h = lower.permute(h, vec![1, 0, 2])?;
        c = lower.permute(c, vec![1, 0, 2])?;
    }
    Ok(match cell {
        Cell::Lstm => vec![y, h, c],
        _ => vec![y, h],
    })
}

impl OnnxLowering<'_> {
    /// The sequence lengths `[batch, 1]`, unless all are known to be the number of steps.
    fn lengths(&mut self, call: &Call<'_>, steps: usize) -> Result<Option<TensorId>, String> {
        let Some(id) = self.maybe(call, 4)? else {
            return Ok(None);
        };
        let full = |list: Vec<i64>| list.iter().all(|n| *n == steps as i64);
        if self.numbers(id).is_ok_and(full) {
            return Ok(None);
        }
        let id = self.cast(id, DType::I64)?;
        let mut column = self.shape(id);
        column.push(Dim::from(1));
        Ok(Some(self.reshape(id, column)?))
    }

    /// The part of an operand that belongs to one of its first axis.
    fn part(&mut self, x: TensorId, index: usize) -> Result<TensorId, String> {
        let shape = self.shape(x);
        let (first, rest) = shape.split_first().ok_or("has a scalar as weights")?;
        let part = match first.as_const() {
            Some(1) => x,
            _ => self.slice(x, 0, Dim::from(index), Dim::from(1))?,
        };
        self.reshape(part, rest.to_vec())
    }

    /// A direction, and the products of its input weights with all steps, `[steps, batch, gates · hidden]`.
    fn direction(
        &mut self,
        call: &Call<'_>,
        cell: Cell,
        (index, count): (usize, usize),
        backwards: bool,
        x: TensorId,
    ) -> Result<(Direction, TensorId), String> {
        let (gates, functions) = cell.counts();
        let (weights, recurrent) = (self.real(call, 1)?, self.real(call, 2)?);
        let hidden = self.shape(recurrent).last().and_then(Dim::as_const);
        let hidden = hidden.filter(|n| *n > 0 && *n <= 1 << 20);
        let hidden = hidden.ok_or("its recurrent weights have no constant size")?;
        let rows = Dim::from(gates * hidden);
        let fits = |shape: Vec<Dim>| shape.len() == 3 && shape[..2] == [Dim::from(count), rows];
        if !fits(self.shape(weights)) || !fits(self.shape(recurrent)) {
            return Err("its weights do not have a row for each gate and hidden value".into());
        }
        let (mut own, mut bias) = (None, None);
        if call.name(3).is_some() {
            let both = self.real(call, 3)?;
            if self.shape(both) != [Dim::from(count), rows * 2] {
                return Err("its bias does not match its weights".into());
            }
            let both = self.part(both, index)?;
            own = Some(self.slice(both, 0, Dim::from(0), rows)?);
            bias = Some(self.slice(both, 0, rows, rows)?);
        }
        let weights = self.part(weights, index)?;
        let operands: Vec<_> = [x, weights].into_iter().chain(own).collect();
        let inputs = self.emit(Linear::default(), &operands)?;
        let peepholes = match (cell, call.name(7)) {
            (Cell::Lstm, Some(_)) => {
                let all = self.real(call, 7)?;
                let all = self.part(all, index)?;
                let mut gate =
                    |at: usize| self.slice(all, 0, Dim::from(at * hidden), Dim::from(hidden));
                Some([gate(0)?, gate(1)?, gate(2)?])
            }
            _ => None,
        };
        let activations = activations(call, cell, count)?;
        let direction = Direction {
            cell,
            hidden,
            backwards,
            activations: activations[index * functions..(index + 1) * functions].to_vec(),
            clip: call.float("clip")?,
            linear_before_reset: call.flag("linear_before_reset", false)?,
            weight: self.part(recurrent, index)?,
            bias,
            peepholes,
            input_forget: call.flag("input_forget", false)?,
        };
        Ok((direction, inputs))
    }

    /// An initial state `[batch, hidden]`; zeros if it is not given.
    fn first_state(
        &mut self,
        call: &Call<'_>,
        operand: usize,
        index: usize,
        by_batch: bool,
        batch: Dim,
        hidden: usize,
    ) -> Result<TensorId, String> {
        if call.name(operand).is_none() || operand == 6 && call.op() != "LSTM" {
            return self.fill(Scalar::F32(0.0), DType::F32, vec![batch, Dim::from(hidden)]);
        }
        let mut given = self.real(call, operand)?;
        if by_batch && self.rank(given) == 3 {
            given = self.permute(given, vec![1, 0, 2])?;
        }
        self.part(given, index)
    }

    /// The hidden values of all steps in order of time, and the last state.
    fn run_direction(
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
            let (start, len) = (Dim::from(index * layer.hidden), Dim::from(layer.hidden));
            lower.slice(x, axis, start, len)
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
                        let (start, len) = (Dim::from(2 * layer.hidden), Dim::from(layer.hidden));
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
                let own = self.emit(Linear::default(), &operands)?;
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

/// The activations of all directions.
fn activations(call: &Call<'_>, cell: Cell, count: usize) -> Result<Vec<U>, String> {
    let (_, functions) = cell.counts();
    let (sigmoid, tanh) = (Activation::Sigmoid.into(), Activation::Tanh.into());
    let Some(names) = call.texts("activations")? else {
        let own: &[U] = match cell {
            Cell::Rnn => &[tanh],
            Cell::Gru => &[sigmoid, tanh],
            Cell::Lstm => &[sigmoid, tanh, tanh],
        };
        return Ok(own.repeat(count));
    };
    if names.len() != functions * count {
        return Err(format!(
            "has {} activations, must have {}",
            names.len(),
            functions * count
        ));
    }
    let function = |name: &&str| match &name.to_ascii_lowercase()[..] {
        "sigmoid" => Ok(sigmoid),
        "tanh" => Ok(tanh),
        "relu" => Ok(Activation::Relu.into()),
        "softplus" => Ok(U::Softplus),
        _ => Err(format!("the activation {name:?} is not supported")),
    };
    names.iter().map(function).collect()
}
