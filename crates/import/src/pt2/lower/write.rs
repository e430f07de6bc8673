//! Sorting, and ops that write into a copy of their operand.

use base::DType;
use graph::ops::{BinaryFunction as B, Scalar, Scatter, ScatterFunction as S};
use graph::{Dim, TensorId};

use super::call::{Call, SizeArg};
use super::context::Pt2Lowering;
use super::op_traits;
use crate::lowering::LoweringBuilder;

type Results = Result<Vec<TensorId>, String>;

pub(super) fn topk(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axis = LoweringBuilder::axis(call.int("dim", -1)?, lower.rank(x))?;
    let count = lower.dim(call.size("k")?.unwrap_or(SizeArg::Number(1)))?;
    let largest = call.flag("largest", true)?;
    Ok(lower.sorted(x, axis, count, largest)?.to_vec())
}

pub(super) fn sort(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let axis = LoweringBuilder::axis(call.int("dim", -1)?, lower.rank(x))?;
    let count = *lower.shape(x).get(axis).ok_or("its operand is a scalar")?;
    let descending = call.flag("descending", false)?;
    let [values, index] = lower.sorted(x, axis, count, descending)?;
    Ok(match call.op.starts_with("aten.argsort") {
        true => vec![index],
        false => vec![values, index],
    })
}

/// `x[i, :, j] = values`.
pub(super) fn index_put(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let dtype = lower.dtype(x);
    let values = lower.tensor(call, "values")?;
    let values = lower.cast(values, dtype)?;
    let function = match call.flag("accumulate", false)? {
        true => S::Add,
        false => S::Replace,
    };
    let rank = lower.rank(x);
    let (mut axes, mut indices) = (vec![], vec![]);
    for (axis, name) in call.tensors("indices")?.into_iter().enumerate() {
        let Some(name) = name else { continue };
        let id = lower.value(name)?;
        if lower.dtype(id) == DType::Bool {
            return masked(lower, x, axis, id, values, function);
        }
        axes.push(axis);
        indices.push(id);
    }
    let Some(&first) = axes.first() else {
        return Err("has no index".into());
    };
    if axes.iter().any(|axis| *axis >= rank) {
        return Err("has more indices than axes".into());
    }
    let rest: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
    let order: Vec<usize> = axes.iter().chain(&rest).copied().collect();
    let shape = lower.shape(x);
    // Indices in the middle stay there, and the values have their axes there too.
    let neighbours = axes.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let mut values = values;
    if neighbours && first > 0 {
        let common = common_shape(lower, &indices)?;
        let dims = |axes: &[usize]| axes.iter().map(|axis| shape[*axis]).collect::<Vec<Dim>>();
        let full = [dims(&rest[..first]), common.clone(), dims(&rest[first..])].concat();
        values = lower.expand(values, full.clone())?;
        let order = (first..first + common.len())
            .chain(0..first)
            .chain(first + common.len()..full.len());
        values = lower.permute(values, order.collect())?;
    }
    let moved = lower.permute(x, order.clone())?;
    let mut operands = vec![moved];
    operands.extend(indices);
    operands.push(values);
    let written = lower.emit(Scatter { function }, &operands)?;
    let mut back = vec![0; rank];
    for (to, from) in order.iter().enumerate() {
        back[*from] = to;
    }
    Ok(vec![lower.permute(written, back)?])
}

/// The shape that all indices broadcast to.
fn common_shape(lower: &Pt2Lowering<'_>, indices: &[TensorId]) -> Result<Vec<Dim>, String> {
    let rank = indices.iter().map(|id| lower.rank(*id)).max().unwrap_or(0);
    let mut common = vec![Dim::from(1); rank];
    for id in indices {
        let shape = lower.shape(*id);
        let tail = rank - shape.len();
        for (to, size) in common[tail..].iter_mut().zip(shape) {
            match *to == Dim::from(1) {
                true => *to = size,
                false if size == *to || size == Dim::from(1) => {}
                false => return Err("its indices do not broadcast".into()),
            }
        }
    }
    Ok(common)
}

/// `x[mask] = value`, for one value.
fn masked(
    lower: &mut Pt2Lowering<'_>,
    x: TensorId,
    axis: usize,
    mask: TensorId,
    value: TensorId,
    function: S,
) -> Results {
    let one = lower.shape(value).iter().all(|d| *d == Dim::from(1));
    if !one || axis != 0 || function != S::Replace {
        return Err("writes many values by a mask: use torch.where".into());
    }
    let value = lower.reshape(value, vec![])?;
    let mut shape = lower.shape(mask);
    shape.resize(lower.rank(x), Dim::from(1));
    let mask = lower.reshape(mask, shape)?;
    Ok(vec![lower.choose(mask, value, x)?])
}

/// How `scatter` and its relatives combine elements.
fn function(call: &Call<'_>) -> Result<S, String> {
    if call.op.starts_with("aten.scatter_add") {
        return Ok(S::Add);
    }
    if !call.flag("include_self", true)? {
        return Err("include_self=False is not supported".into());
    }
    Ok(match call.text("reduce")? {
        None => S::Replace,
        Some("add" | "sum") => S::Add,
        Some("multiply" | "prod") => S::Mul,
        Some("amax") => S::Max,
        Some("amin") => S::Min,
        Some(other) => return Err(format!("the reduction {other:?} is not supported")),
    })
}

pub(super) fn scatter(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let index = lower.tensor(call, "index")?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    let dtype = lower.dtype(x);
    let mut values = match call.get("src") {
        Some(_) => lower.tensor(call, "src")?,
        None => lower.operand(call, "value", dtype)?,
    };
    values = lower.cast(values, dtype)?;
    // The values may be larger than the indices.
    for (at, size) in lower.shape(index).into_iter().enumerate() {
        let own = lower.shape(values).get(at).copied();
        if own.is_some_and(|own| own != size) {
            values = lower.slice(values, at, Dim::from(0), size)?;
        }
    }
    let function = function(call)?;
    Ok(vec![
        lower.scatter_elements(x, axis, index, values, function)?,
    ])
}

/// `index_copy`, `index_add` and `index_fill`: whole slices along an axis.
pub(super) fn index_write(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let index = lower.tensor(call, "index")?;
    let (rank, dtype) = (lower.rank(x), lower.dtype(x));
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, rank)?;
    let order: Vec<usize> = [axis]
        .into_iter()
        .chain((0..rank).filter(|i| *i != axis))
        .collect();
    let mut values = match call.get("source") {
        Some(_) => {
            let source = lower.tensor(call, "source")?;
            lower.permute(source, order.clone())?
        }
        None => lower.operand(call, "value", dtype)?,
    };
    let function = match call.op.starts_with("aten.index_add") {
        true => S::Add,
        false => S::Replace,
    };
    let alpha = call.number("alpha", Scalar::I64(1))?;
    if alpha.to_f32() != 1.0 {
        values = lower.with_number(B::Mul, values, alpha.to_f32())?;
    }
    let values = lower.cast(values, dtype)?;
    let moved = lower.permute(x, order.clone())?;
    let written = lower.emit(Scatter { function }, &[moved, index, values])?;
    let mut back = vec![0; rank];
    for (to, from) in order.iter().enumerate() {
        back[*from] = to;
    }
    Ok(vec![lower.permute(written, back)?])
}

/// `slice_scatter` and `select_scatter`: the parts of the operand before and after, and the new part between them.
pub(super) fn slice_scatter(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let x = lower.tensor(call, "self")?;
    let source = lower.tensor(call, "src")?;
    let dtype = lower.dtype(x);
    let mut source = lower.cast(source, dtype)?;
    let axis = LoweringBuilder::axis(call.int("dim", 0)?, lower.rank(x))?;
    let size = *lower.shape(x).get(axis).ok_or("its operand is a scalar")?;
    let one = call.op.starts_with("aten.select_scatter");
    if call.int("step", 1)? != 1 {
        return Err("a step other than 1 is not supported".into());
    }
    let start = match call.size(if one { "index" } else { "start" })? {
        None => Dim::from(0),
        Some(SizeArg::Number(n)) if n < 0 => size + Dim::constant(n),
        Some(at) => lower.dim(at)?,
    };
    if one {
        let mut shape = lower.shape(source);
        shape.insert(axis.min(shape.len()), Dim::from(1));
        source = lower.reshape(source, shape)?;
    }
    Ok(vec![with_part(lower, x, axis, start, source)?])
}

/// `x` with `part` from `start` on along an axis.
fn with_part(
    lower: &mut Pt2Lowering<'_>,
    x: TensorId,
    axis: usize,
    start: Dim,
    part: TensorId,
) -> Result<TensorId, String> {
    let size = *lower.shape(x).get(axis).ok_or("its operand is a scalar")?;
    let len = lower.shape(part).get(axis).copied();
    let end = start + len.ok_or("its source has too few axes")?;
    let mut parts = vec![];
    if start != Dim::from(0) {
        parts.push(lower.slice(x, axis, Dim::from(0), start)?);
    }
    parts.push(part);
    if end != size {
        parts.push(lower.slice(x, axis, end, size - end)?);
    }
    lower.concat(&parts, axis)
}

impl<'a> Pt2Lowering<'a> {
    /// Gives `target`, into which node `index` wrote, its new elements, and all tensors that share its memory and are read
    /// later.
    pub(super) fn write_back(
        &mut self,
        target: &'a str,
        new: TensorId,
        index: usize,
    ) -> Result<(), String> {
        let mut stale = self.aliases.read_later(target, index);
        // Tensors that do not exist yet will be made from the new elements.
        stale.retain(|name| {
            self.values.contains_key(*name) || self.program.tensors.contains_key(*name)
        });
        stale.retain(|name| self.values.get(*name) != Some(&new));
        self.values.insert(target.to_owned(), new);
        let (mut name, mut new) = (target, new);
        // A damaged file may have views of themselves.
        let mut steps = self.aliases.makers.len();
        while !stale.is_empty() {
            let refused = || {
                format!(
                    "writes into {target}, which shares memory with {}: export with `run_decompositions()`",
                    stale[0]
                )
            };
            steps = steps.checked_sub(1).ok_or_else(refused)?;
            let node = *self.aliases.makers.get(name).ok_or_else(refused)?;
            let base = op_traits::first_name(node).ok_or_else(refused)?;
            let call = Call {
                node,
                op: node.op().to_owned(),
            };
            new = match op_traits::written(node) {
                Some(_) => new,
                None => replaced(self, &call, new)?.ok_or_else(refused)?,
            };
            self.values.insert(base.to_owned(), new);
            stale.retain(|other| *other != base);
            name = base;
        }
        Ok(())
    }
}

/// The operand of a view whose elements were replaced; `None` if the op is not known to be a view.
pub(super) fn replaced(
    lower: &mut Pt2Lowering<'_>,
    view: &Call<'_>,
    new: TensorId,
) -> Result<Option<TensorId>, String> {
    let x = lower.tensor(view, "self")?;
    let shape = lower.shape(x);
    let name = view.op.split('.').nth(1).unwrap_or_default();
    Ok(Some(match name {
        "view" | "unsqueeze" | "squeeze" | "alias" | "detach" => lower.reshape(new, shape)?,
        "select" | "slice" if view.int("step", 1)? == 1 => {
            let axis = LoweringBuilder::axis(view.int("dim", 0)?, shape.len())?;
            let size = *shape.get(axis).ok_or("its operand is a scalar")?;
            let start = match view.size(if name == "select" { "index" } else { "start" })? {
                Some(bound) => super::shape::from_start(lower, size, bound)?,
                None => Dim::from(0),
            };
            let mut part = new;
            if name == "select" {
                let mut shape = lower.shape(new);
                shape.insert(axis.min(shape.len()), Dim::from(1));
                part = lower.reshape(new, shape)?;
            }
            with_part(lower, x, axis, start, part)?
        }
        _ => return Ok(None),
    }))
}

pub(super) fn copy(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let (x, source) = (lower.tensor(call, "self")?, lower.tensor(call, "src")?);
    let (dtype, shape) = (lower.dtype(x), lower.shape(x));
    let source = lower.cast(source, dtype)?;
    Ok(vec![lower.expand(source, shape)?])
}
