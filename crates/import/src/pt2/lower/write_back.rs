//! Ops that write into memory that several tensors share: all of them get the new elements.

use std::collections::HashSet;

use graph::{Dim, TensorId};

use super::aliases::Maker;
use super::call::{Call, SizeArg};
use super::context::Pt2Lowering;
use super::write::{inverse, with_part, with_steps};
use super::{op_traits, shape, table};
use crate::lowering::LoweringBuilder;

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
        let mut renewed = HashSet::from([target]);
        let (mut name, mut new) = (target, new);
        // From the written view to the tensor that it is a view of, as far as some tensor needs it.
        while let Some(other) = stale.iter().find(|other| !self.is_view(other, &renewed)) {
            let maker = self.maker(name, target, other)?;
            let call = Call::of(maker.node);
            new = match op_traits::written(maker.node) {
                Some(_) => new,
                None => replaced(self, &call, name, new)?
                    .ok_or_else(|| refused(target, other, maker.node.op()))?,
            };
            let before = self.value(maker.base)?;
            if self.shape(before) != self.shape(new) || self.dtype(before) != self.dtype(new) {
                return Err(refused(target, other, maker.node.op()));
            }
            name = maker.base;
            self.values.insert(name.to_owned(), new);
            if !renewed.insert(name) {
                // A damaged file has views of themselves.
                return Err(refused(target, other, maker.node.op()));
            }
        }
        for other in stale {
            self.renew(other, target, &mut renewed)?;
        }
        Ok(())
    }

    /// Whether a tensor is one of `bases` or a view of one.
    fn is_view(&self, name: &'a str, bases: &HashSet<&str>) -> bool {
        let mut name = name;
        // A damaged file may have views of themselves.
        for _ in 0..=self.aliases.makers.len() {
            if bases.contains(name) {
                return true;
            }
            match self.aliases.makers.get(name) {
                Some(maker) => name = maker.base,
                None => return false,
            }
        }
        false
    }

    /// Makes a view of a tensor with new elements again.
    fn renew(
        &mut self,
        name: &'a str,
        target: &str,
        renewed: &mut HashSet<&'a str>,
    ) -> Result<(), String> {
        // The views from `name` to a tensor with its new elements, the last one first.
        let mut chain = vec![];
        let mut at = name;
        while !renewed.contains(at) {
            let maker = self.maker(at, target, name)?;
            chain.push((at, maker));
            at = maker.base;
            if chain.len() > self.aliases.makers.len() {
                return Err(refused(target, name, maker.node.op()));
            }
        }
        for (name, maker) in chain.into_iter().rev() {
            let call = Call::of(maker.node);
            let id = match op_traits::written(maker.node) {
                Some(_) => self.value(maker.base)?,
                None => {
                    let place = call.results().iter().position(|result| *result == name);
                    let rule = table::rule(&call.op).ok_or("is not supported")?;
                    let results = rule(self, &call)?;
                    let id = place.and_then(|place| results.get(place).copied());
                    id.ok_or_else(|| refused(target, name, maker.node.op()))?
                }
            };
            self.values.insert(name.to_owned(), id);
            renewed.insert(name);
        }
        Ok(())
    }

    /// Where the memory of `name` comes from, for a write into `target` that `other` must see.
    fn maker(&self, name: &str, target: &str, other: &str) -> Result<Maker<'a>, String> {
        let maker = self.aliases.makers.get(name).copied();
        let maker = maker.ok_or_else(|| refused(target, other, "an unknown op"))?;
        match maker.certain {
            true => Ok(maker),
            false => Err(refused(target, other, maker.node.op())),
        }
    }
}

fn refused(target: &str, other: &str, op: &str) -> String {
    format!(
        "writes into {target}, which may share memory with {other} through {op}: export with `run_decompositions()`"
    )
}

/// The operand of a view whose elements were replaced; `None` if that is not supported for the op. `result` is the name of the
/// view among the op's results.
fn replaced(
    lower: &mut Pt2Lowering<'_>,
    view: &Call<'_>,
    result: &str,
    new: TensorId,
) -> Result<Option<TensorId>, String> {
    let base = op_traits::first_name(view.node).ok_or("has no operand")?;
    let x = lower.value(base)?;
    let shape = lower.shape(x);
    let Some(name) = view
        .op
        .strip_prefix("aten.")
        .and_then(|rest| rest.split('.').next())
    else {
        return Ok(None);
    };
    if let Some(order) = shape::order(view, name, shape.len())? {
        return Ok(Some(lower.permute(new, inverse(&order))?));
    }
    let axis = |name: &str| LoweringBuilder::axis(view.int(name, 0)?, shape.len());
    let size = |axis: usize| {
        let size = shape.get(axis).copied();
        size.ok_or_else(|| "its operand is a scalar".to_owned())
    };
    Ok(Some(match name {
        "view" | "_unsafe_view" | "_reshape_alias" | "reshape" | "reshape_as" | "view_as"
        | "flatten" | "ravel" | "unflatten" | "unsqueeze" | "squeeze" | "alias" | "detach"
        | "detach_" | "lift" | "lift_fresh" | "positive" | "resolve_conj" | "resolve_neg"
        | "contiguous" | "to" | "type_as" | "_cast_Float" | "float" | "dropout"
        | "feature_dropout" | "alpha_dropout" => lower.reshape(new, shape)?,
        _ if op_traits::EXPANSIONS.contains(&name) => {
            let long = |shape: &[Dim]| -> Vec<Dim> {
                let sizes = shape.iter().filter(|dim| **dim != Dim::from(1));
                sizes.copied().collect()
            };
            // Elements that the view repeats have no single new value.
            if long(&lower.shape(new)) != long(&shape) {
                return Ok(None);
            }
            lower.reshape(new, shape)?
        }
        "select" => {
            let axis = axis("dim")?;
            let start = match view.size("index")?.ok_or("has no index")? {
                SizeArg::Number(n) if n < 0 => size(axis)? + Dim::constant(n),
                at => lower.dim(at)?,
            };
            let part = with_axis(lower, new, axis)?;
            with_part(lower, x, axis, start, part)?
        }
        "slice" | "narrow" => {
            let axis = axis("dim")?;
            let start = match view.size("start")? {
                Some(bound) => shape::from_start(lower, size(axis)?, bound)?,
                None => Dim::from(0),
            };
            let step = view.int("step", 1)?;
            let step = usize::try_from(step).map_err(|_| "goes backwards")?;
            with_steps(lower, x, axis, start, step, new)?
        }
        "unbind" => {
            let axis = axis("dim")?;
            let place = view.results().iter().position(|other| *other == result);
            let start = Dim::from(place.ok_or("has another result")?);
            let part = with_axis(lower, new, axis)?;
            with_part(lower, x, axis, start, part)?
        }
        _ if op_traits::SPLITS.contains(&name) => {
            let axis = axis("dim")?;
            let mut start = Dim::from(0);
            for (index, _) in view
                .results()
                .iter()
                .enumerate()
                .take_while(|(_, other)| **other != result)
            {
                let part = lower.result_shape(view, index)?;
                let len = part.get(axis).copied();
                start = start + len.ok_or("the file states too few axes for a part")?;
            }
            with_part(lower, x, axis, start, new)?
        }
        _ => return Ok(None),
    }))
}

/// Adds an axis of size 1.
fn with_axis(lower: &mut Pt2Lowering<'_>, x: TensorId, axis: usize) -> Result<TensorId, String> {
    let mut shape = lower.shape(x);
    shape.insert(axis.min(shape.len()), Dim::from(1));
    lower.reshape(x, shape)
}
