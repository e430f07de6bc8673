//! The operands of `RNN`, `GRU`, `LSTM` and `DynamicQuantizeLSTM`.

use base::DType;
use graph::ops::{Activation, BinaryFunction as B, Linear, Scalar, UnaryFunction as U};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::{Cell, Direction, State};
use crate::stored_type::StoredType;

pub(super) fn recurrent(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let cell = match call.op() {
        "GRU" => Cell::Gru,
        "LSTM" | "DynamicQuantizeLSTM" => Cell::Lstm,
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
    let [_, batch, _] = lower.shape(x)[..] else {
        return Err("its input must have three axes".into());
    };
    let steps = lower.steps(x)?;
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
    if lengths.is_some() && call.op() == "DynamicQuantizeLSTM" {
        return Err("sequences that are shorter than others are not supported".into());
    }
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
        // Those of `DynamicQuantizeLSTM` are transposed.
        let by_column = call.op() == "DynamicQuantizeLSTM";
        let (weights, recurrent) = (self.real(call, 1)?, self.real(call, 2)?);
        let mut shapes = [self.shape(weights), self.shape(recurrent)];
        for shape in &mut shapes {
            if shape.len() != 3 || shape[0] != Dim::from(count) {
                return Err("its weights do not have three axes, the first for directions".into());
            }
            shape[1..].rotate_right(by_column.into());
        }
        let hidden = shapes[1][2].as_const();
        let hidden = hidden.filter(|n| *n > 0 && *n <= 1 << 20);
        let hidden = hidden.ok_or("its recurrent weights have no constant size")?;
        let rows = Dim::from(gates * hidden);
        if shapes.iter().any(|shape| shape[1] != rows) {
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
        let (mut weights, mut weight) = (self.part(weights, index)?, self.part(recurrent, index)?);
        let mut scale = None;
        let inputs = match by_column {
            false => {
                let operands: Vec<_> = [x, weights].into_iter().chain(own).collect();
                self.emit(Linear::default(), &operands)?
            }
            true => {
                let own_scale;
                (weights, own_scale) = self.quantised_weights(call, weights, (1, 8), index)?;
                let (centred, of_rows) = self.quantised_weights(call, weight, (2, 10), index)?;
                (weight, scale) = (centred, Some(of_rows));
                let product = self.quantised_product(x, weights, own_scale)?;
                match own {
                    Some(own) => self.binary(B::Add, product, own)?,
                    None => product,
                }
            }
        };
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
            order: [0, 1, 2, 3],
            backwards,
            activations: activations[index * functions..(index + 1) * functions].to_vec(),
            clip: call.float("clip")?,
            linear_before_reset: call.flag("linear_before_reset", false)?,
            weight,
            scale,
            bias,
            peepholes,
            input_forget: call.flag("input_forget", false)?,
        };
        Ok((direction, inputs))
    }

    /// 8-bit weights of a direction minus their zero points, a row for each gate and hidden value, and their scale or scales; `scale` is
    /// the operand of scales, which that of zero points follows.
    fn quantised_weights(
        &mut self,
        call: &Call<'_>,
        weights: TensorId,
        (operand, scale): (usize, usize),
        index: usize,
    ) -> Result<(TensorId, TensorId), String> {
        match self.operand_kind(call, operand) {
            Some(StoredType::U8 | StoredType::I8) => {}
            _ => return Err(format!("operand {operand} must have 8-bit integers")),
        }
        let mut weights = weights;
        if call.name(scale + 1).is_some() {
            let zero = self.real(call, scale + 1)?;
            let zero = self.part(zero, index)?;
            weights = self.binary(B::Sub, weights, zero)?;
        }
        let scale = self.real(call, scale)?;
        Ok((self.transposed(weights)?, self.part(scale, index)?))
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
        if call.name(operand).is_none() || operand == 6 && !call.op().ends_with("LSTM") {
            return self.fill(Scalar::F32(0.0), DType::F32, vec![batch, Dim::from(hidden)]);
        }
        let mut given = self.real(call, operand)?;
        if by_batch && self.rank(given) == 3 {
            given = self.permute(given, vec![1, 0, 2])?;
        }
        self.part(given, index)
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
