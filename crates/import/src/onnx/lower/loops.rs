//! `Loop` and `Scan`, unrolled: the number of iterations must be known at import time.

use base::{Bytes, DType};
use graph::ops::Scalar;
use graph::{Dim, TensorId};

use super::call::Call;
use super::context::OnnxLowering;
use super::control::{Bound, Operand};
use crate::lowering::LoweringBuilder;
use crate::onnx::file::{Branch, Node};
use crate::stored_type::StoredType;

/// The elements that the iterations of a loop append to one result.
#[derive(Default)]
struct Gathered {
    elements: Vec<TensorId>,
    kind: Option<StoredType>,
}

impl Gathered {
    fn push(&mut self, lower: &mut OnnxLowering<'_>, name: &str) -> Result<(), String> {
        self.elements.push(lower.value(name)?);
        self.kind = lower.kind_of(name);
        Ok(())
    }

    /// The elements along a new axis.
    fn stacked(
        self,
        lower: &mut OnnxLowering<'_>,
        axis: i64,
        backwards: bool,
    ) -> Result<Bound, String> {
        let mut elements = self.elements;
        if backwards {
            elements.reverse();
        }
        let first = elements.first();
        let first = first
            .ok_or("runs no iteration, so the shapes of its scan outputs cannot be determined")?;
        let axis = LoweringBuilder::axis(axis, lower.rank(*first) + 1)?;
        for element in &mut elements {
            let mut shape = lower.shape(*element);
            shape.insert(axis, Dim::from(1));
            *element = lower.reshape(*element, shape)?;
        }
        let stacked = lower.concat(&elements, axis)?;
        Ok(Bound {
            operand: Operand::Tensor(stacked),
            kind: self.kind,
        })
    }
}

/// The body of a loop.
fn body_of(node: &Node) -> Result<&Branch, String> {
    let body = node.branches.iter().find(|branch| branch.name == "body");
    body.ok_or_else(|| "has no body".into())
}

/// The operand with this index, which must be given.
fn given(node: &Node, index: usize) -> Result<&str, String> {
    let name = node.inputs.get(index).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| format!("has no operand {index}"))?;
    Ok(name)
}

pub(super) fn unroll_loop<'a>(lower: &mut OnnxLowering<'a>, node: &'a Node) -> Result<(), String> {
    let body = body_of(node)?;
    let carried = body.inputs.len().checked_sub(2);
    let carried = carried.filter(|count| body.outputs.len() > *count);
    let carried = carried.ok_or("its body has too few operands or results")?;
    let count = match given(node, 0) {
        Err(_) => None,
        Ok(name) => {
            let id = lower.value(name)?;
            let known = lower.numbers(id);
            match known
                .map_err(|_| "its trip count depends on data; only constants are supported")?[..]
            {
                [count] => Some(count),
                _ => return Err("its trip count must be a single integer".into()),
            }
        }
    };
    let conditional = given(node, 1).is_ok();
    if count.is_none() && !conditional {
        return Err("never ends".into());
    }
    let depends = "its condition depends on data; only constants are supported";
    let mut running = match given(node, 1) {
        Err(_) => true,
        Ok(name) => {
            let id = lower.value(name)?;
            lower.known_bool(id).ok_or(depends)?
        }
    };
    let mut states = vec![];
    for index in 0..carried {
        states.push(lower.bound(given(node, 2 + index)?)?);
    }
    let mut gathered: Vec<Gathered> = body.outputs[1 + carried..]
        .iter()
        .map(|_| Gathered::default())
        .collect();
    let mut iteration = 0;
    while running && count.is_none_or(|count| iteration < count) {
        let label = format!("{}#{}", node.label, lower.unrolled);
        lower.begin_node(&label);
        let number = lower.constant(DType::I64, &[], Bytes::from_slice(&[iteration]))?;
        let going = lower.scalar(Scalar::Bool(true), DType::Bool)?;
        let scalar = |id, kind| Bound {
            operand: Operand::Tensor(id),
            kind: Some(kind),
        };
        lower.bind(&body.inputs[0], scalar(number, StoredType::I64));
        lower.bind(&body.inputs[1], scalar(going, StoredType::Bool));
        states = iterate(lower, body, &body.inputs[2..], states, 1, &mut gathered)?;
        if conditional {
            let id = lower.value(&body.outputs[0])?;
            // The name stands for another tensor in every iteration.
            lower.loop_depth += 1;
            let known = lower.known_bool(id);
            lower.loop_depth -= 1;
            running = known.ok_or(depends)?;
        }
        iteration += 1;
    }
    lower.begin_node(&node.label);
    for (name, state) in node.outputs.iter().zip(states) {
        lower.bind(name, state);
    }
    let results = node.outputs.iter().skip(carried);
    for (name, elements) in results.zip(gathered) {
        if !name.is_empty() {
            let stacked = elements.stacked(lower, 0, false)?;
            lower.bind(name, stacked);
        }
    }
    Ok(())
}

/// Lowers one iteration, whose results from `first` on are the new states and what it appends to `gathered`.
fn iterate<'a>(
    lower: &mut OnnxLowering<'a>,
    body: &'a Branch,
    names: &[String],
    states: Vec<Bound>,
    first: usize,
    gathered: &mut [Gathered],
) -> Result<Vec<Bound>, String> {
    let count = states.len();
    for (name, state) in names.iter().zip(states) {
        lower.bind(name, state);
    }
    lower.count_unrolled()?;
    lower.loop_depth += 1;
    let lowered = lower.body(body);
    lower.loop_depth -= 1;
    lowered?;
    let (kept, appended) = body.outputs[first..].split_at(count);
    for (elements, name) in gathered.iter_mut().zip(appended) {
        elements.push(lower, name)?;
    }
    kept.iter().map(|name| lower.bound(name)).collect()
}

pub(super) fn unroll_scan<'a>(lower: &mut OnnxLowering<'a>, node: &'a Node) -> Result<(), String> {
    let call = Call { node };
    if call.version() < 9 {
        return Err("of opset 8 has a batch axis, which is not supported".into());
    }
    let body = body_of(node)?;
    let scanned = call.count("num_scan_inputs")?.filter(|count| *count > 0);
    let scanned = scanned.ok_or("has no num_scan_inputs")?;
    let carried = body.inputs.len().checked_sub(scanned);
    let carried = carried.filter(|count| body.outputs.len() >= *count);
    let carried = carried.ok_or("its body has too few operands or results")?;
    let listed = |name: &str, count: usize| -> Result<Vec<i64>, String> {
        match call.ints(name)? {
            None => Ok(vec![0; count]),
            Some(list) if list.len() == count => Ok(list.to_vec()),
            Some(list) => Err(format!("{name} has {} numbers, not {count}", list.len())),
        }
    };
    let results = body.outputs.len() - carried;
    let axes = listed("scan_input_axes", scanned)?;
    let directions = listed("scan_input_directions", scanned)?;
    let result_axes = listed("scan_output_axes", results)?;
    let result_directions = listed("scan_output_directions", results)?;
    let mut states = vec![];
    for index in 0..carried {
        states.push(lower.bound(given(node, index)?)?);
    }
    let mut inputs = vec![];
    let mut count = None;
    for (index, axis) in axes.iter().enumerate() {
        let name = given(node, carried + index)?;
        let (id, kind) = (lower.value(name)?, lower.kind_of(name));
        let axis = LoweringBuilder::axis(*axis, lower.rank(id))?;
        let size = lower.shape(id).get(axis).and_then(Dim::as_const);
        let size = size
            .ok_or("the size of the axis that it scans is dynamic; only constants are supported")?;
        if count.is_some_and(|count| count != size) {
            return Err("the axes that it scans have different sizes".into());
        }
        count = Some(size);
        inputs.push((id, kind, axis));
    }
    let count = count.unwrap_or(0);
    let mut gathered: Vec<Gathered> = (0..results).map(|_| Gathered::default()).collect();
    for iteration in 0..count {
        let label = format!("{}#{}", node.label, lower.unrolled);
        lower.begin_node(&label);
        let operands = body.inputs[carried..].iter().zip(&inputs).zip(&directions);
        for ((name, (id, kind, axis)), direction) in operands {
            let at = match direction {
                0 => iteration,
                _ => count - 1 - iteration,
            };
            let element = lower.slice(*id, *axis, Dim::from(at), Dim::from(1))?;
            let mut shape = lower.shape(element);
            shape.remove(*axis);
            let element = lower.reshape(element, shape)?;
            let operand = Operand::Tensor(element);
            lower.bind(
                name,
                Bound {
                    operand,
                    kind: *kind,
                },
            );
        }
        states = iterate(
            lower,
            body,
            &body.inputs[..carried],
            states,
            0,
            &mut gathered,
        )?;
    }
    lower.begin_node(&node.label);
    for (name, state) in node.outputs.iter().zip(states) {
        lower.bind(name, state);
    }
    let names = node.outputs.iter().skip(carried);
    let along = result_axes.iter().zip(result_directions);
    for ((name, elements), (axis, direction)) in names.zip(gathered).zip(along) {
        if !name.is_empty() {
            let stacked = elements.stacked(lower, *axis, direction != 0)?;
            lower.bind(name, stacked);
        }
    }
    Ok(())
}
