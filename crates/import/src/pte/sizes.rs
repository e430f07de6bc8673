//! Finds out which sizes of a plan are dynamic.
//!
//! A program states an upper bound for every size of a dynamic tensor, and not which of them vary. The ops do: sizes that an op
//! makes equal are one class, a class with a constant is constant, and the other classes of the inputs are the symbols.

mod exact;

use std::collections::HashMap;

use super::call::PlanCall;
use super::file::{EValue, Plan};

/// A class of equal sizes.
#[derive(Clone, Debug)]
struct Class {
    parent: usize,
    /// The constant, if it is one.
    known: Option<usize>,
    bound: usize,
    /// A factor times the product of other classes.
    product: Option<(usize, Vec<usize>)>,
}

/// The sizes of all values of a plan.
#[derive(Default)]
pub(super) struct Sizes {
    classes: Vec<Class>,
    /// The classes of the dimensions of each tensor.
    tensors: HashMap<usize, Vec<usize>>,
    /// The classes of integers that calls compute from sizes.
    integers: HashMap<usize, usize>,
    symbols: Vec<usize>,
}

/// A size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Constant(usize),
    /// A factor times the product of the symbols with these numbers.
    Product(usize, Vec<usize>),
}

impl Size {
    fn times(self, other: Size) -> Size {
        match (self, other) {
            (Size::Constant(a), Size::Constant(b)) => Size::Constant(a.saturating_mul(b)),
            (Size::Constant(n), Size::Product(factor, symbols))
            | (Size::Product(factor, symbols), Size::Constant(n)) => {
                Size::Product(n.saturating_mul(factor), symbols)
            }
            (Size::Product(a, mut symbols), Size::Product(b, others)) => {
                symbols.extend(others);
                Size::Product(a.saturating_mul(b), symbols)
            }
        }
    }
}

impl Sizes {
    /// The sizes of a plan.
    pub(super) fn of(plan: &Plan) -> Sizes {
        let mut sizes = Sizes::default();
        for (index, value) in plan.values.iter().enumerate() {
            let EValue::Tensor(tensor) = value else {
                continue;
            };
            let varies = tensor.is_dynamic && tensor.data.is_none();
            let dims = tensor.sizes.iter().map(|size| {
                let known = (!varies || *size <= 1).then_some(*size);
                sizes.class(*size, known)
            });
            let dims = dims.collect();
            sizes.tensors.insert(index, dims);
        }
        for call in &plan.calls {
            if let Some(call) = PlanCall::new(plan, call) {
                sizes.relate(&call);
            }
        }
        // Views are solved last: they merge dimensions into products of sizes that the other ops have determined by
        // then.
        for call in plan
            .calls
            .iter()
            .filter_map(|call| PlanCall::new(plan, call))
        {
            if is_view(&call.name) {
                sizes.solve_view(&call);
            }
        }
        for input in &plan.inputs {
            for class in sizes.tensors.get(input).cloned().unwrap_or_default() {
                let root = sizes.root(class);
                if sizes.classes[root].known.is_none() && !sizes.symbols.contains(&root) {
                    sizes.symbols.push(root);
                }
            }
        }
        sizes
    }

    /// The upper bounds of the symbols.
    pub(super) fn bounds(&self) -> impl Iterator<Item = usize> {
        self.symbols.iter().map(|root| self.classes[*root].bound)
    }

    /// The sizes of a tensor.
    pub(super) fn tensor(&self, value: usize) -> Vec<Size> {
        let dims = self.tensors.get(&value).map_or(&[][..], Vec::as_slice);
        dims.iter().map(|class| self.size(*class)).collect()
    }

    /// An integer that a call computes from sizes.
    pub(super) fn integer(&self, value: usize) -> Option<Size> {
        Some(self.size(*self.integers.get(&value)?))
    }

    fn size(&self, class: usize) -> Size {
        let root = self.root(class);
        let symbol = |root: usize| self.symbols.iter().position(|symbol| *symbol == root);
        match &self.classes[root] {
            Class {
                known: Some(size), ..
            } => Size::Constant(*size),
            Class {
                product: Some((factor, of)),
                ..
            } => of.iter().fold(Size::Constant(*factor), |all, class| {
                all.times(self.size(*class))
            }),
            // A size that no input has, and nothing makes vary.
            class => {
                symbol(root).map_or(Size::Constant(class.bound), |s| Size::Product(1, vec![s]))
            }
        }
    }

    fn class(&mut self, bound: usize, known: Option<usize>) -> usize {
        self.classes.push(Class {
            parent: self.classes.len(),
            known,
            bound,
            product: None,
        });
        self.classes.len() - 1
    }

    fn root(&self, mut class: usize) -> usize {
        while self.classes[class].parent != class {
            class = self.classes[class].parent;
        }
        class
    }

    /// Makes two sizes equal. Sizes with other bounds cannot be.
    fn equal(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if a == b || self.classes[a].bound != self.classes[b].bound {
            return;
        }
        let known = self.classes[a].known.or(self.classes[b].known);
        self.classes[b].parent = a;
        self.classes[a].known = known;
    }

    fn dims(&self, value: Option<usize>) -> Vec<usize> {
        value
            .and_then(|value| self.tensors.get(&value))
            .cloned()
            .unwrap_or_default()
    }

    fn equal_all(&mut self, a: &[usize], b: &[usize]) {
        for (a, b) in a.iter().zip(b) {
            self.equal(*a, *b);
        }
    }

    /// Equates sizes that broadcast, from the last dimension on.
    fn broadcast(&mut self, a: &[usize], b: &[usize]) {
        for (a, b) in a.iter().rev().zip(b.iter().rev()) {
            self.equal(*a, *b);
        }
    }

    /// Adds what an op says about sizes.
    fn relate(&mut self, call: &PlanCall<'_>) {
        let out = self.dims(call.results().first().copied());
        let x = self.dims(call.tensor("self").or_else(|| call.tensor("input")));
        match &*call.name {
            "permute" => {
                for (i, dim) in call.ints("dims").into_iter().flatten().enumerate() {
                    if let (Some(out), Some(dim)) = (out.get(i), at(&x, dim)) {
                        self.equal(*out, dim);
                    }
                }
            }
            "transpose" | "t" => {
                let mut turned = x.clone();
                let (a, b) = match &*call.name {
                    "t" => (0, 1),
                    _ => (call.int("dim0").unwrap_or(0), call.int("dim1").unwrap_or(1)),
                };
                if let (Some(a), Some(b)) = (axis(&x, a), axis(&x, b)) {
                    turned.swap(a, b);
                }
                self.equal_all(&turned, &out);
            }
            "mm" | "bmm" | "addmm" | "baddbmm" | "linear" | "matmul" => self.product(call, &out),
            "embedding" => {
                let (weight, indices) = (
                    self.dims(call.tensor("weight")),
                    self.dims(call.tensor("indices")),
                );
                self.equal_all(&indices, &out);
                if let (Some(width), Some(last)) = (weight.last(), out.last()) {
                    self.equal(*width, *last);
                }
            }
            "cat" | "stack" => {
                for tensor in call.tensors("tensors") {
                    let dims = self.dims(Some(tensor));
                    self.equal_all_but(&dims, &out, call.int("dim").unwrap_or(0));
                }
            }
            "slice" | "index_select" | "select" | "split_with_sizes" | "split" | "unbind"
            | "index" | "gather" => self.selection(call, &x),
            "mean" | "sum" | "amax" | "amin" | "argmax" | "argmin" | "any" | "all" | "var"
            | "prod" | "logsumexp" => {
                let reduced: Vec<usize> = match call.ints("dim") {
                    Some(dims) => dims.iter().filter_map(|d| axis(&x, *d)).collect(),
                    None => call
                        .int("dim")
                        .and_then(|d| axis(&x, d))
                        .into_iter()
                        .collect(),
                };
                match x.len() == out.len() {
                    true => {
                        for i in (0..x.len()).filter(|i| !reduced.contains(i)) {
                            self.equal(x[i], out[i]);
                        }
                    }
                    false => {
                        let kept = (0..x.len()).filter(|i| !reduced.contains(i));
                        let kept: Vec<usize> = kept.map(|i| x[i]).collect();
                        self.equal_all(&kept, &out);
                    }
                }
            }
            "update_and_attend" => {
                let [q, k, v] = ["q", "k", "v"].map(|name| self.dims(call.tensor(name)));
                let position = self.dims(call.tensor("position"));
                self.equal_all(&q[..q.len().min(3)], &out);
                for (a, b) in [(&v, &out), (&q, &k)] {
                    if let (Some(a), Some(b)) = (a.last(), b.last()) {
                        self.equal(*a, *b);
                    }
                }
                for side in [&k, &v] {
                    if let (Some(a), Some(b)) = (q.get(2), side.get(2)) {
                        self.equal(*a, *b);
                    }
                }
                if let (Some(a), Some(b)) = (q.get(2), position.first()) {
                    self.equal(*a, *b);
                }
            }
            "sym_size" => {
                let dim = call.int("dim").and_then(|dim| at(&x, dim));
                if let (Some(dim), Some(out)) = (dim, call.results().first()) {
                    self.integers.insert(*out, dim);
                }
            }
            "full" | "zeros" | "ones" | "empty" => self.given(call, &out),
            "arange" => {
                let end = call.argument("end").and_then(|end| self.integers.get(&end));
                if let (Some(class), Some(out)) = (end.copied(), out.first()) {
                    self.equal(class, *out);
                }
            }
            name if is_view(name) => {
                self.given(call, &out);
                self.view(&x, &out);
            }
            "convolution" => {
                let weight = self.dims(call.tensor("weight"));
                let (of_out, of_in) = match call.flag("transposed") {
                    true => (1, 0),
                    false => (0, 1),
                };
                let one_group = call.int("groups") == Some(1);
                for (a, b, sure) in [
                    (out.get(1), weight.get(of_out), of_out == 0 || one_group),
                    (x.get(1), weight.get(of_in), of_in == 0 || one_group),
                    (x.first(), out.first(), true),
                ] {
                    if let (Some(a), Some(b), true) = (a, b, sure) {
                        self.equal(*a, *b);
                    }
                }
                self.windowed(call, &x, &out, x.len().saturating_sub(2));
            }
            name if name.contains("_pool") || name.starts_with("upsample_") => {
                let axes =
                    1 + usize::from(name.contains("2d")) + 2 * usize::from(name.contains("3d"));
                for result in call.results() {
                    let out = self.dims(Some(result));
                    self.equal_all(&x[..x.len().saturating_sub(axes)], &out);
                    if name.contains("_pool") && !name.contains("adaptive") {
                        self.windowed(call, &x, &out, axes);
                    }
                }
            }
            // The operands beside the first have a size a channel.
            name if name.contains("batch_norm") || name.contains("group_norm") => {
                self.equal_all(&x, &out);
            }
            "constant_pad_nd" => self.equal_all(&x, &out),
            // All others work element by element.
            _ => {
                for tensor in call.all_tensors() {
                    let dims = self.dims(Some(tensor));
                    for result in call.results() {
                        let result = self.dims(Some(result));
                        self.broadcast(&dims, &result);
                    }
                }
            }
        }
    }

    /// Equates the last `axes` sizes of an operand with those of the result if windows keep them: they do where the bounds are equal
    /// and no step is longer than one.
    fn windowed(&mut self, call: &PlanCall<'_>, x: &[usize], out: &[usize], axes: usize) {
        let steps = call.ints("stride").unwrap_or_default();
        if x.len() == out.len() && !steps.is_empty() && steps.iter().all(|step| *step == 1) {
            let first = x.len().saturating_sub(axes);
            self.equal_all(&x[first..], &out[first..]);
        }
    }

    /// Equates the sizes of a result with integers that the call takes them from.
    fn given(&mut self, call: &PlanCall<'_>, out: &[usize]) {
        for (value, out) in call.list("size").iter().zip(out) {
            if let Some(class) = self.integers.get(value).copied() {
                self.equal(class, *out);
            }
        }
    }

    fn product(&mut self, call: &PlanCall<'_>, out: &[usize]) {
        let named = |a: &str, b: &str| Some((call.tensor(a)?, call.tensor(b)?));
        let operands = named("mat1", "mat2")
            .or_else(|| named("batch1", "batch2"))
            .or_else(|| named("self", "mat2"))
            .or_else(|| named("self", "other"))
            .or_else(|| named("input", "weight"));
        let Some((a, b)) = operands else { return };
        let (a, mut b) = (self.dims(Some(a)), self.dims(Some(b)));
        if call.name == "linear" {
            b.reverse();
        }
        let ([outer @ .., inner], [batch @ .., rows, columns]) = (&a[..], &b[..]) else {
            return;
        };
        self.equal(*inner, *rows);
        if let Some((last, leading)) = out.split_last() {
            self.equal(*columns, *last);
            self.broadcast(outer, leading);
            if batch.len() + 2 == a.len() {
                self.equal_all(batch, &a);
            }
        }
    }

    /// Ops that take some of a tensor's elements along a dimension.
    fn selection(&mut self, call: &PlanCall<'_>, x: &[usize]) {
        let dim = call.int("dim").unwrap_or(0);
        for result in call.results() {
            let out = self.dims(Some(result));
            match &*call.name {
                "select" | "unbind" => {
                    let mut left = x.to_vec();
                    if let Some(dim) = axis(x, dim) {
                        left.remove(dim);
                    }
                    self.equal_all(&left, &out);
                }
                "gather" => {
                    let index = self.dims(call.tensor("index"));
                    self.equal_all(&index, &out);
                }
                "index" => {
                    let indices = call.list("indices");
                    let given: Vec<(usize, usize)> = (0..)
                        .zip(indices)
                        .filter(|(_, value)| self.tensors.contains_key(value))
                        .map(|(at, value)| (at, *value))
                        .collect();
                    if let [(place, index)] = given[..] {
                        let (before, after) = x.split_at(place.min(x.len()));
                        let index = self.dims(Some(index));
                        let after = after.get(1..).unwrap_or_default();
                        let all = [before, &index[..], after].concat();
                        self.equal_all(&all, &out);
                    }
                }
                "index_select" => {
                    self.equal_all_but(x, &out, dim);
                    let index = self.dims(call.tensor("index"));
                    if let (Some(index), Some(out)) = (index.first(), at(&out, dim)) {
                        self.equal(*index, out);
                    }
                }
                "slice" => {
                    self.equal_all_but(x, &out, dim);
                    // A slice of everything keeps the size; a shorter one has a constant size.
                    if let (Some(x), Some(out)) = (at(x, dim), at(&out, dim)) {
                        let (root, same) = (self.root(out), self.classes[self.root(x)].bound);
                        match self.classes[root].bound == same {
                            true => self.equal(x, out),
                            false => {
                                let bound = self.classes[root].bound;
                                self.classes[root].known.get_or_insert(bound);
                            }
                        }
                    }
                }
                _ => self.equal_all_but(x, &out, dim),
            }
        }
    }

    fn equal_all_but(&mut self, a: &[usize], b: &[usize], dim: i64) {
        let skipped = axis(b, dim);
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            if Some(i) != skipped {
                self.equal(*a, *b);
            }
        }
    }

    /// Equates the sizes of a view that stand for the same elements.
    fn view(&mut self, x: &[usize], out: &[usize]) {
        for (x, out) in self.segments(x, out) {
            if let ([x], [out]) = (&x[..], &out[..]) {
                self.equal(*x, *out);
            }
        }
    }

    /// Solves the sizes of a view that the ops leave open: a constant where all others are, or a product.
    fn solve_view(&mut self, call: &PlanCall<'_>) {
        let x = self.dims(call.tensor("self"));
        let out = self.dims(call.results().first().copied());
        for (x, out) in self.segments(&x, &out) {
            for (open, other) in [(&out, &x), (&x, &out)] {
                self.solve_segment(open, other);
            }
        }
    }

    fn solve_segment(&mut self, open: &[usize], other: &[usize]) {
        let is_known = |sizes: &Sizes, class: &usize| sizes.classes[sizes.root(*class)].known;
        if other.iter().all(|class| is_known(self, class).is_some()) {
            for class in open {
                let root = self.root(*class);
                let bound = self.classes[root].bound;
                self.classes[root].known.get_or_insert(bound);
            }
            return;
        }
        let [single] = open else { return };
        let varying = other.iter().filter(|class| is_known(self, class).is_none());
        let varying: Vec<usize> = varying.map(|class| self.root(*class)).collect();
        let root = self.root(*single);
        if let Some((_, known)) = self.classes[root].product.clone() {
            // The rows of a tensor, taken apart again.
            if known.len() == varying.len() {
                self.equal_all(&known, &varying);
            }
            return;
        }
        let is_plain = |of: &usize| *of != root && self.classes[*of].product.is_none();
        if self.classes[root].known.is_none() && varying.iter().all(is_plain) {
            let bounds = varying.iter().map(|of| self.classes[*of].bound);
            let all = bounds.fold(1usize, usize::saturating_mul);
            let factor = self.classes[root].bound / all.max(1);
            self.classes[root].product = Some((factor, varying));
        }
    }

    /// Groups of dimensions of both sides with the same product of bounds, without dimensions of size one.
    fn segments(&self, x: &[usize], out: &[usize]) -> Vec<(Vec<usize>, Vec<usize>)> {
        let bound = |class: &usize| self.classes[self.root(*class)].bound;
        let long = |dims: &[usize]| -> Vec<usize> {
            dims.iter().copied().filter(|c| bound(c) != 1).collect()
        };
        let (x, out) = (long(x), long(out));
        let (mut a, mut b) = (0, 0);
        let mut segments = vec![];
        while a < x.len() && b < out.len() {
            let (first_a, first_b) = (a, b);
            let (mut left, mut right) = (bound(&x[a]), bound(&out[b]));
            (a, b) = (a + 1, b + 1);
            while left != right {
                if left < right && a < x.len() {
                    left = left.saturating_mul(bound(&x[a]));
                    a += 1;
                } else if right < left && b < out.len() {
                    right = right.saturating_mul(bound(&out[b]));
                    b += 1;
                } else {
                    return segments;
                }
            }
            segments.push((x[first_a..a].to_vec(), out[first_b..b].to_vec()));
        }
        segments
    }
}

/// Whether an op only changes the shape.
pub(super) fn is_view(name: &str) -> bool {
    matches!(
        name,
        "view"
            | "et_view"
            | "_unsafe_view"
            | "reshape"
            | "flatten"
            | "unflatten"
            | "unsqueeze"
            | "squeeze"
    )
}

fn axis(dims: &[usize], dim: i64) -> Option<usize> {
    let rank = dims.len() as i64;
    let dim = if dim < 0 { dim + rank } else { dim };
    usize::try_from(dim).ok().filter(|dim| *dim < dims.len())
}

fn at(dims: &[usize], dim: i64) -> Option<usize> {
    Some(dims[axis(dims, dim)?])
}
