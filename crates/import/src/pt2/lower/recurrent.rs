//! The operands of `lstm`, `gru` and `rnn`, of one or more layers.

use base::DType;
use graph::ops::{Activation, Linear};
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::Pt2Lowering;
use crate::lowering::{Cell, Direction, State};

type Results = Result<Vec<TensorId>, String>;

/// The weights of a direction of a layer: `[gates · hidden, width]`, `[gates · hidden, hidden]`, and perhaps two biases.
type Weights<'w> = &'w [TensorId];

pub(super) fn recurrent(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    if !call.op.ends_with(".input") {
        return Err("packed sequences are not supported".into());
    }
    let (cell, last) = match &call.op[..] {
        op if op.contains("lstm") => (Cell::Lstm, Activation::Tanh),
        op if op.contains("gru") => (Cell::Gru, Activation::Tanh),
        op if op.contains("rnn_relu") => (Cell::Rnn, Activation::Relu),
        _ => (Cell::Rnn, Activation::Tanh),
    };
    if call.flag("train", false)? && call.float("dropout", 0.0)? != 0.0 {
        return Err("has dropout in training mode: export the model for inference".into());
    }
    let layers = usize::try_from(call.int("num_layers", 1)?);
    let layers = layers.map_err(|_| "has a negative number of layers")?;
    let directions = match call.flag("bidirectional", false)? {
        true => &[false, true][..],
        false => &[false],
    };
    let per_direction = match call.flag("has_biases", true)? {
        true => 4,
        false => 2,
    };
    let weights = operands(lower, call, "params")?;
    if layers == 0 || weights.len() != layers * directions.len() * per_direction {
        return Err(format!("has {} weights for {layers} layers", weights.len()));
    }
    let first = match cell {
        Cell::Lstm => operands(lower, call, "hx")?,
        _ => vec![lower.tensor(call, "hx")?],
    };
    let by_batch = call.flag("batch_first", false)?;
    let mut x = lower.tensor(call, "input")?;
    x = lower.cast(x, DType::F32)?;
    // Without a batch axis one is added, as PyTorch's own module does.
    if lower.rank(x) != 3 || first.iter().any(|state| lower.rank(*state) != 3) {
        return Err("its input and its states must have three axes".into());
    }
    if by_batch {
        x = lower.permute(x, vec![1, 0, 2])?;
    }
    let (mut last_h, mut last_c) = (vec![], vec![]);
    for (layer, weights) in weights.chunks(directions.len() * per_direction).enumerate() {
        let mut outputs = vec![];
        for (index, weights) in weights.chunks(per_direction).enumerate() {
            let row = layer * directions.len() + index;
            let h = state(lower, first.first(), row)?;
            let c = match first.get(1) {
                Some(c) => state(lower, Some(c), row)?,
                None => h,
            };
            let kind = (cell, last, directions[index]);
            let (output, state) = one_direction(lower, kind, weights, x, State { h, c })?;
            outputs.push(output);
            last_h.push(state.h);
            last_c.push(state.c);
        }
        x = lower.concat(&outputs, 2)?;
    }
    if by_batch {
        x = lower.permute(x, vec![1, 0, 2])?;
    }
    let mut results = vec![x, stacked(lower, &last_h)?];
    if cell == Cell::Lstm {
        results.push(stacked(lower, &last_c)?);
    }
    Ok(results)
}

/// A list of tensors, none of which may be missing.
fn operands(lower: &mut Pt2Lowering<'_>, call: &Call<'_>, name: &str) -> Results {
    let names = call.tensors(name)?;
    let tensor = |name: &Option<&str>| {
        let name = name.ok_or_else(|| "one of its operands is missing".to_owned())?;
        let x = lower.value(name)?;
        lower.cast(x, DType::F32)
    };
    names.iter().map(tensor).collect()
}

/// The first state of a direction, `[batch, hidden]`.
fn state(
    lower: &mut Pt2Lowering<'_>,
    all: Option<&TensorId>,
    row: usize,
) -> Result<TensorId, String> {
    let all = lower.cast(*all.ok_or("has no first state")?, DType::F32)?;
    let one = lower.slice(all, 0, Dim::from(row), Dim::from(1))?;
    let shape = lower.shape(one)[1..].to_vec();
    lower.reshape(one, shape)
}

/// States along a new first axis.
fn stacked(lower: &mut Pt2Lowering<'_>, list: &[TensorId]) -> Result<TensorId, String> {
    let mut rows = vec![];
    for state in list {
        let shape = [&[Dim::from(1)], &lower.shape(*state)[..]].concat();
        rows.push(lower.reshape(*state, shape)?);
    }
    lower.concat(&rows, 0)
}

/// The hidden values `[steps, batch, hidden]` of a direction, and its last state.
fn one_direction(
    lower: &mut Pt2Lowering<'_>,
    (cell, last, backwards): (Cell, Activation, bool),
    weights: Weights<'_>,
    x: TensorId,
    first: State,
) -> Result<(TensorId, State), String> {
    let hidden = lower.shape(weights[1]).last().and_then(Dim::as_const);
    let hidden = hidden.filter(|n| *n > 0 && *n <= 1 << 20);
    let hidden = hidden.ok_or("its recurrent weights have no constant size")?;
    if lower.shape(first.h).last() != Some(&Dim::from(hidden)) {
        return Err("states that are projected are not supported".into());
    }
    let rows = Dim::from(cell.counts().0 * hidden);
    if weights[..2]
        .iter()
        .any(|weight| lower.shape(*weight)[0] != rows)
    {
        return Err("its weights do not have a row for each gate and hidden value".into());
    }
    let operands: Vec<_> = [x, weights[0]]
        .into_iter()
        .chain(weights.get(2).copied())
        .collect();
    let inputs = lower.emit(Linear::default(), &operands)?;
    let (sigmoid, tanh) = (Activation::Sigmoid.into(), Activation::Tanh.into());
    let direction = Direction {
        cell,
        hidden,
        order: match cell {
            Cell::Rnn => [0; 4],
            Cell::Gru => [1, 0, 2, 0],
            Cell::Lstm => [0, 3, 1, 2],
        },
        backwards,
        activations: match cell {
            Cell::Rnn => vec![last.into()],
            Cell::Gru => vec![sigmoid, tanh],
            Cell::Lstm => vec![sigmoid, tanh, tanh],
        },
        clip: None,
        linear_before_reset: true,
        weight: weights[1],
        scale: None,
        bias: weights.get(3).copied(),
        peepholes: None,
        input_forget: false,
    };
    let steps = lower.steps(x)?;
    let (list, state) = lower.run_direction(&direction, inputs, steps, None, first)?;
    let mut times = vec![];
    for h in list {
        let shape = [&[Dim::from(1)], &lower.shape(h)[..]].concat();
        times.push(lower.reshape(h, shape)?);
    }
    Ok((lower.concat(&times, 0)?, state))
}
