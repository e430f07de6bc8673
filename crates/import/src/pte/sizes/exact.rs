//! The sizes of a plan for inputs of given shapes, computed call by call.

use std::collections::HashMap;

use super::{Class, Sizes, at, axis, is_view};
use crate::pte::call::PlanCall;
use crate::pte::file::{EValue, KernelCall, Plan, PteTensor};

impl Sizes {
    /// The sizes of a plan whose inputs have these shapes.
    ///
    /// # Errors
    /// The reason why a shape cannot be computed or is no shape of the plan.
    pub(in crate::pte) fn exact(plan: &Plan, inputs: &[&[usize]]) -> Result<Sizes, String> {
        let mut exact = ExactSizes::new(plan);
        for (value, shape) in plan.inputs.iter().zip(inputs) {
            if let EValue::Tensor(tensor) = &plan.values[*value] {
                let fits = tensor.sizes.len() == shape.len()
                    && tensor.sizes.iter().zip(*shape).all(|(most, n)| n <= most);
                if !fits {
                    let most = &tensor.sizes;
                    return Err(format!("an input is {shape:?}, must be at most {most:?}"));
                }
                exact.tensors.insert(*value, shape.to_vec());
            }
        }
        for call in &plan.calls {
            exact.follow(call)?;
        }
        Ok(exact.into_sizes())
    }
}

struct ExactSizes<'a> {
    plan: &'a Plan,
    /// Shapes of tensors by their values.
    tensors: HashMap<usize, Vec<usize>>,
    /// Integers that calls have computed.
    integers: HashMap<usize, i64>,
}

impl<'a> ExactSizes<'a> {
    /// The shapes of constants and of tensors whose size is constant.
    fn new(plan: &'a Plan) -> ExactSizes<'a> {
        let tensors = plan.values.iter().enumerate();
        let tensors = tensors.filter_map(|(value, kind)| match kind {
            EValue::Tensor(tensor) if tensor.data.is_some() || !tensor.is_dynamic => {
                Some((value, tensor.sizes.clone()))
            }
            _ => None,
        });
        ExactSizes {
            plan,
            tensors: tensors.collect(),
            integers: HashMap::new(),
        }
    }

    fn into_sizes(self) -> Sizes {
        let mut sizes = Sizes::default();
        let mut constant = |size: usize| {
            sizes.classes.push(Class {
                parent: sizes.classes.len(),
                known: Some(size),
                bound: size,
                product: None,
            });
            sizes.classes.len() - 1
        };
        let mut tensors = HashMap::new();
        for (value, shape) in self.tensors {
            tensors.insert(value, shape.into_iter().map(&mut constant).collect());
        }
        let mut integers = HashMap::new();
        for (value, n) in self.integers {
            if let Ok(size) = usize::try_from(n) {
                integers.insert(value, constant(size));
            }
        }
        (sizes.tensors, sizes.integers) = (tensors, integers);
        sizes
    }

    fn tensor(&self, value: usize) -> Option<&'a PteTensor> {
        match &self.plan.values[value] {
            EValue::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    fn follow(&mut self, call: &KernelCall) -> Result<(), String> {
        if let Some(op) = call.op.strip_prefix("executorch_prim::")
            && let Some((result, operands)) = call.args.split_last()
            && !op.starts_with("et_view")
        {
            let operands = operands.iter().map(|value| self.int(*value));
            let operands: Option<Vec<i64>> = operands.collect();
            if let Some(n) = operands.and_then(|operands| integer(op, &operands)) {
                self.integers.insert(*result, n);
            }
            return Ok(());
        }
        let Some(call) = PlanCall::new(self.plan, call) else {
            return Ok(());
        };
        if call.name == "sym_size" {
            let shape = call.tensor("self").and_then(|x| self.tensors.get(&x));
            let size = shape.zip(call.int("dim"));
            let size = size.and_then(|(shape, dim)| at(shape, dim));
            if let (Some(size), Some(result)) = (size, call.results().first()) {
                self.integers.insert(*result, size as i64);
            }
            return Ok(());
        }
        let results = call.results();
        for (index, result) in results.iter().enumerate() {
            let Some(tensor) = self.tensor(*result) else {
                continue;
            };
            if self.tensors.contains_key(result) {
                continue;
            }
            let shape = self.result(&call, index, tensor);
            let shape = shape.filter(|shape| shape.len() == tensor.sizes.len());
            match shape {
                Some(shape) => {
                    self.tensors.insert(*result, shape);
                }
                // Statistics of a normalisation, which are seldom used.
                None if index > 0 => {}
                None => {
                    return Err(format!(
                        "the size of a result of {} is not known",
                        call.target
                    ));
                }
            }
        }
        Ok(())
    }

    /// A constant or computed integer.
    fn int(&self, value: usize) -> Option<i64> {
        match (self.integers.get(&value), &self.plan.values[value]) {
            (Some(n), _) => Some(*n),
            (None, EValue::Int(n)) => Some(*n),
            _ => None,
        }
    }

    fn argument(&self, call: &PlanCall<'_>, name: &str) -> Option<i64> {
        self.int(call.argument(name)?)
    }

    fn list(&self, call: &PlanCall<'_>, name: &str) -> Option<Vec<i64>> {
        let list = call.list(name);
        let list: Vec<i64> = list
            .iter()
            .map(|value| self.int(*value))
            .collect::<Option<_>>()?;
        Some(list).filter(|list| !list.is_empty())
    }

    fn shape(&self, call: &PlanCall<'_>, name: &str) -> Option<Vec<usize>> {
        self.tensors.get(&call.tensor(name)?).cloned()
    }

    /// The shape of a result; `None` if it is not known.
    fn result(&self, call: &PlanCall<'_>, index: usize, own: &PteTensor) -> Option<Vec<usize>> {
        let x = || {
            self.shape(call, "self")
                .or_else(|| self.shape(call, "input"))
        };
        Some(match &*call.name {
            "permute" => {
                let (x, dims) = (x()?, call.ints("dims")?);
                dims.iter().map(|dim| at(&x, *dim)).collect::<Option<_>>()?
            }
            "transpose" | "t" => {
                let mut x = x()?;
                let (a, b) = match &*call.name {
                    "t" => (0, 1),
                    _ => (call.int("dim0")?, call.int("dim1")?),
                };
                let (a, b) = (axis(&x, a)?, axis(&x, b)?);
                x.swap(a, b);
                x
            }
            "mm" | "bmm" | "addmm" | "baddbmm" | "matmul" | "linear" => self.product(call)?,
            "embedding" => {
                let (weight, mut shape) =
                    (self.shape(call, "weight")?, self.shape(call, "indices")?);
                shape.push(*weight.last()?);
                shape
            }
            "cat" => {
                let shapes = call.tensors("tensors").into_iter();
                let shapes = shapes.map(|tensor| self.tensors.get(&tensor));
                let shapes: Vec<&Vec<usize>> = shapes.collect::<Option<_>>()?;
                let mut shape = (*shapes.first()?).clone();
                let dim = axis(&shape, call.int("dim")?)?;
                shape[dim] = shapes
                    .iter()
                    .map(|shape| shape.get(dim))
                    .sum::<Option<usize>>()?;
                shape
            }
            "slice" => {
                let mut x = x()?;
                let dim = axis(&x, call.int("dim")?)?;
                let size = x[dim] as i64;
                let bound = |name: &str, default: i64| match call.argument(name) {
                    Some(value) if !matches!(self.plan.values[value], EValue::None) => {
                        let at = match self.int(value)? {
                            n if n < 0 => n.saturating_add(size),
                            n => n,
                        };
                        Some(at.clamp(0, size))
                    }
                    _ => Some(default),
                };
                let (start, end) = (bound("start", 0)?, bound("end", size)?);
                let step = usize::try_from(call.int("step")?)
                    .ok()
                    .filter(|step| *step > 0)?;
                x[dim] = usize::try_from(end - start).unwrap_or(0).div_ceil(step);
                x
            }
            "select" | "unbind" => {
                let mut x = x()?;
                let dim = axis(&x, call.int("dim").unwrap_or(0))?;
                x.remove(dim);
                x
            }
            "mean" | "sum" | "amax" | "amin" | "argmax" | "argmin" | "any" | "all" | "var"
            | "prod" => self.reduced(call, x()?, own)?,
            "convolution" => self.convolution(call)?,
            "max_pool2d_with_indices" | "max_pool2d" | "avg_pool2d" | "avg_pool1d" => {
                self.pool(call, x()?)?
            }
            "_adaptive_avg_pool2d"
            | "adaptive_avg_pool2d"
            | "adaptive_avg_pool1d"
            | "upsample_nearest2d"
            | "upsample_bilinear2d"
            | "upsample_nearest1d" => {
                let mut x = x()?;
                let sizes = self.list(call, "output_size")?;
                let first = x.len().checked_sub(sizes.len())?;
                for (own, size) in x[first..].iter_mut().zip(sizes) {
                    *own = usize::try_from(size).ok()?;
                }
                x
            }
            "constant_pad_nd" => {
                let (mut x, pads) = (x()?, self.list(call, "pad")?);
                for (size, pair) in x.iter_mut().rev().zip(pads.chunks_exact(2)) {
                    let padded = (*size as i64).checked_add(pair[0])?.checked_add(pair[1])?;
                    *size = usize::try_from(padded).ok()?;
                }
                x
            }
            "expand" => {
                let (x, sizes) = (x()?, self.list(call, "size")?);
                let first = sizes.len().checked_sub(x.len())?;
                let size = |(i, n): (usize, &i64)| match n {
                    -1 => x.get(i.checked_sub(first)?).copied(),
                    n => usize::try_from(*n).ok(),
                };
                sizes.iter().enumerate().map(size).collect::<Option<_>>()?
            }
            "full" | "zeros" | "ones" | "empty" => {
                let sizes = self.list(call, "size")?.into_iter();
                sizes.map(usize::try_from).collect::<Result<_, _>>().ok()?
            }
            "arange" => {
                let start = self.argument(call, "start").unwrap_or(0);
                let step = self.argument(call, "step").unwrap_or(1);
                let span = self.argument(call, "end")?.checked_sub(start)?;
                let len = usize::try_from(span).unwrap_or(0);
                vec![len.div_ceil(usize::try_from(step).ok().filter(|step| *step > 0)?)]
            }
            name if is_view(name) => self.view(call, &x()?, own)?,
            _ => self.broadcast(call, index)?,
        })
    }

    fn product(&self, call: &PlanCall<'_>) -> Option<Vec<usize>> {
        let named = |a: &str, b: &str| Some((self.shape(call, a)?, self.shape(call, b)?));
        let (mut a, mut b) = named("mat1", "mat2")
            .or_else(|| named("batch1", "batch2"))
            .or_else(|| named("self", "mat2"))
            .or_else(|| named("self", "other"))
            .or_else(|| named("input", "weight"))?;
        if call.name == "linear" {
            b.reverse();
        }
        (a.len() >= 2 && b.len() >= 2).then_some(())?;
        *a.last_mut()? = *b.last()?;
        Some(a)
    }

    fn reduced(&self, call: &PlanCall<'_>, x: Vec<usize>, own: &PteTensor) -> Option<Vec<usize>> {
        let dims = call.ints("dim").or_else(|| Some(vec![call.int("dim")?]));
        let dims = dims.filter(|dims| !dims.is_empty());
        let gone: Vec<usize> = match dims {
            Some(dims) => dims
                .iter()
                .map(|dim| axis(&x, *dim))
                .collect::<Option<_>>()?,
            None => (0..x.len()).collect(),
        };
        let keeps = own.sizes.len() == x.len();
        let kept = x
            .iter()
            .enumerate()
            .filter_map(|(i, size)| match gone.contains(&i) {
                false => Some(*size),
                true => keeps.then_some(1),
            });
        Some(kept.collect())
    }

    /// One number for each of `count` axes.
    fn numbers(
        &self,
        call: &PlanCall<'_>,
        name: &str,
        count: usize,
        default: usize,
    ) -> Option<Vec<usize>> {
        let list = self.list(call, name).unwrap_or_default();
        let list: Vec<usize> = list
            .into_iter()
            .map(usize::try_from)
            .collect::<Result<_, _>>()
            .ok()?;
        match list[..] {
            [] => Some(vec![default; count]),
            [one] => Some(vec![one; count]),
            _ => Some(list).filter(|list| list.len() == count),
        }
    }

    fn convolution(&self, call: &PlanCall<'_>) -> Option<Vec<usize>> {
        let (x, weight) = (self.shape(call, "input")?, self.shape(call, "weight")?);
        let count = weight.len().checked_sub(2)?;
        let numbers = |name: &str, default: usize| self.numbers(call, name, count, default);
        let (stride, padding) = (numbers("stride", 1)?, numbers("padding", 0)?);
        let (dilation, longer) = (numbers("dilation", 1)?, numbers("output_padding", 0)?);
        let first = x.len().checked_sub(count)?;
        let mut shape = x;
        for i in 0..count {
            let size = &mut shape[first + i];
            let span = weight[i + 2].checked_sub(1)?.checked_mul(dilation[i])?;
            let padded = padding[i].checked_mul(2)?;
            *size = match call.flag("transposed") {
                true => {
                    let steps = size.checked_sub(1)?.checked_mul(stride[i])?;
                    (steps.checked_add(span)?.checked_add(longer[i])? + 1).checked_sub(padded)?
                }
                false => {
                    let free = size
                        .checked_add(padded)?
                        .checked_sub(span.checked_add(1)?)?;
                    free.checked_div(stride[i])? + 1
                }
            };
        }
        let channels = match call.flag("transposed") {
            true => weight[1].checked_mul(usize::try_from(call.int("groups")?).ok()?)?,
            false => weight[0],
        };
        *shape.get_mut(first.checked_sub(1)?)? = channels;
        Some(shape)
    }

    fn pool(&self, call: &PlanCall<'_>, x: Vec<usize>) -> Option<Vec<usize>> {
        let count = if call.name.contains("1d") { 1 } else { 2 };
        let numbers = |name: &str, default: usize| self.numbers(call, name, count, default);
        let kernel = numbers("kernel_size", 1)?;
        let stride = match self.list(call, "stride") {
            Some(_) => numbers("stride", 1)?,
            None => kernel.clone(),
        };
        let (padding, dilation) = (numbers("padding", 0)?, numbers("dilation", 1)?);
        let ceil = call.flag("ceil_mode");
        let first = x.len().checked_sub(count)?;
        let mut shape = x;
        for i in 0..count {
            let size = &mut shape[first + i];
            let span = kernel[i].checked_sub(1)?.checked_mul(dilation[i])?;
            let (padded, stride) = (padding[i].checked_mul(2)?, stride[i].max(1));
            let free = size
                .checked_add(padded)?
                .checked_sub(span.checked_add(1)?)?;
            let mut steps = free / stride;
            // The last window starts inside the input or the padding before it.
            if ceil && free % stride != 0 && (steps + 1) * stride < *size + padding[i] {
                steps += 1;
            }
            *size = steps + 1;
        }
        Some(shape)
    }

    fn view(&self, call: &PlanCall<'_>, x: &[usize], own: &PteTensor) -> Option<Vec<usize>> {
        let all = x.iter().try_fold(1usize, |all, n| all.checked_mul(*n))?;
        if let Some(sizes) = self.list(call, "size") {
            let known = sizes.iter().filter(|n| **n != -1);
            let mut known = known.map(|n| usize::try_from(*n).ok());
            let known = known.try_fold(1usize, |all, n| all.checked_mul(n?))?;
            let open = all.checked_div(known);
            let size = |n: &i64| match n {
                -1 => open,
                n => usize::try_from(*n).ok(),
            };
            let shape: Vec<usize> = sizes.iter().map(size).collect::<Option<_>>()?;
            return Some(shape).filter(|shape| shape.iter().product::<usize>() == all);
        }
        match &*call.name {
            "unsqueeze" => {
                let mut shape = x.to_vec();
                let dim = call.int("dim")?;
                let dim = if dim < 0 {
                    dim + x.len() as i64 + 1
                } else {
                    dim
                };
                let dim = usize::try_from(dim).ok().filter(|dim| *dim <= x.len())?;
                shape.insert(dim, 1);
                return Some(shape);
            }
            "squeeze" => {
                let dims = call.ints("dim").or_else(|| Some(vec![call.int("dim")?]))?;
                let gone: Vec<usize> = dims.iter().filter_map(|dim| axis(x, *dim)).collect();
                let kept = (0..x.len()).filter(|i| !gone.contains(i) || x[*i] != 1);
                return Some(kept.map(|i| x[i]).collect());
            }
            _ => {}
        }
        // A view that has no call of its own: its bounds say which dimensions it joins.
        let from = self.tensor(call.tensor("self")?)?;
        joined(x, &from.sizes, &own.sizes)
    }

    fn broadcast(&self, call: &PlanCall<'_>, index: usize) -> Option<Vec<usize>> {
        (index == 0).then_some(())?;
        let mut shape: Vec<usize> = vec![];
        for tensor in call.all_tensors() {
            let own = self.tensors.get(&tensor)?;
            while shape.len() < own.len() {
                shape.insert(0, 1);
            }
            for (size, own) in shape.iter_mut().rev().zip(own.iter().rev()) {
                if *size == 1 {
                    *size = *own;
                }
            }
        }
        Some(shape)
    }
}

/// The shape of a view of `x` that only joins dimensions, by the bounds of both.
fn joined(x: &[usize], from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let mut dims = x.iter().zip(from).peekable();
    let mut shape = vec![];
    for bound in to {
        let (mut size, mut all) = (1usize, 1usize);
        while all < *bound {
            let (own, most) = dims.next()?;
            size = size.checked_mul(*own)?;
            all = all.checked_mul(*most)?;
        }
        // Dimensions of one element are joined with those beside them.
        while *bound > 1 && dims.next_if(|(_, most)| **most == 1).is_some() {}
        (all == *bound).then_some(())?;
        shape.push(size);
    }
    dims.all(|(_, most)| *most == 1).then_some(shape)
}

/// The result of an op on integers.
fn integer(op: &str, operands: &[i64]) -> Option<i64> {
    let name = op.split('.').next()?;
    let [a, b] = match operands {
        [a] if name == "neg" => return a.checked_neg(),
        [a, b] => [*a, *b],
        _ => return None,
    };
    let floor = |a: i64, b: i64| {
        let quotient = a.checked_div(b)?;
        Some(quotient - i64::from(a % b != 0 && (a < 0) != (b < 0)))
    };
    match name {
        "add" => a.checked_add(b),
        "sub" => a.checked_sub(b),
        "mul" => a.checked_mul(b),
        "floordiv" => floor(a, b),
        "mod" | "Mod" => a.checked_sub(floor(a, b)?.checked_mul(b)?),
        "sym_max" => Some(a.max(b)),
        "sym_min" => Some(a.min(b)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_join_dimensions() {
        type Case<'a> = (&'a [usize], &'a [usize], &'a [usize], Option<&'a [usize]>);
        let table: [Case<'_>; 5] = [
            (&[2, 3, 4], &[8, 3, 16], &[24, 16], Some(&[6, 4])),
            (&[2, 1, 4], &[8, 1, 16], &[8, 16], Some(&[2, 4])),
            (&[2, 4], &[8, 16], &[8, 1, 16], Some(&[2, 1, 4])),
            (&[6, 4], &[24, 16], &[8, 3, 16], None),
            (&[2, 3, 1, 1], &[8, 3, 1, 1], &[8, 3], Some(&[2, 3])),
        ];
        for (x, from, to, expect) in table {
            assert_eq!(joined(x, from, to).as_deref(), expect, "{from:?} {to:?}");
        }
    }

    #[test]
    fn integers_are_those_of_python() {
        let table = [
            ("floordiv.Scalar", -7, 2, Some(-4)),
            ("mod.Scalar", -7, 2, Some(1)),
            ("add.Scalar", i64::MAX, 1, None),
            ("floordiv.Scalar", 7, 0, None),
            ("unknown", 7, 1, None),
        ];
        for (op, a, b, expect) in table {
            assert_eq!(integer(op, &[a, b]), expect, "{op}");
        }
    }
}
