//! A program for inputs of given shapes: numbers in the place of its dynamic sizes.

use std::collections::{BTreeMap, HashMap};

use super::Program;
use super::lower::user_inputs;
use super::schema::{Argument, SymInt, SymIntArgument, TensorMeta};
use super::size_expr::SizeExpr;
use super::size_tree::SizeTree;
use super::tensor;
use crate::by_shape::ShapedMethod;
use crate::error::ImportError;
use crate::stored_type::StoredType;
use crate::tensor_info::{TensorDim, TensorInfo};

/// The values of dynamic sizes, by the file's names.
type Sizes = BTreeMap<String, i64>;

impl Program {
    /// The method in the place of a graph for all shapes, which failed with `error`.
    pub(crate) fn shaped_method(&self, error: ImportError) -> Result<ShapedMethod, ImportError> {
        let inputs = user_inputs(self).ok().and_then(|names| {
            let infos = names.into_iter().map(|name| self.info(name));
            infos.collect::<Option<Vec<_>>>()
        });
        let outputs = self.graph.outputs.iter().flat_map(Argument::names);
        let outputs = outputs.map(|name| self.info(name)).collect::<Option<_>>();
        match inputs.zip(outputs) {
            Some((inputs, outputs)) => {
                ShapedMethod::in_place_of(error, &self.name, inputs, outputs)
            }
            None => Err(error),
        }
    }

    /// The element types of the inputs and outputs, by name.
    pub(crate) fn declared_types(&self) -> BTreeMap<String, StoredType> {
        let inputs = user_inputs(self).into_iter().flatten();
        let outputs = self.graph.outputs.iter().flat_map(Argument::names);
        let kind = |name: &str| tensor::kind(self.graph.tensor_values.get(name)?.dtype).ok();
        let declared = inputs.chain(outputs);
        let declared = declared.filter_map(|name| Some((name.to_owned(), kind(name)?)));
        declared.collect()
    }

    /// Name, type and shape of a tensor; `None` if the file does not state them.
    fn info(&self, name: &str) -> Option<TensorInfo> {
        let meta = self.graph.tensor_values.get(name)?;
        let dim = |size: &SymInt| {
            Some(match size {
                SymInt::AsInt(n) => TensorDim::Fixed(usize::try_from(*n).ok()?),
                SymInt::AsExpr(expr) => {
                    let tree = SizeTree::parse(&expr.expr_str).ok()?;
                    TensorDim::Dynamic(tree.renamed(&self.size_names).to_string())
                }
            })
        };
        let declared = tensor::kind(meta.dtype).ok()?;
        Some(TensorInfo {
            name: name.to_owned(),
            dtype: declared.dtype(),
            declared,
            shape: meta.sizes.iter().map(dim).collect::<Option<_>>()?,
        })
    }

    /// The program for inputs of these shapes, in the order of its signature. Sizes that depend on data stay expressions.
    ///
    /// # Errors
    /// `Value` if a shape contradicts the program's sizes or their ranges.
    pub(super) fn with_shapes(&self, shapes: &[&[usize]]) -> Result<Program, ImportError> {
        let sizes = self.sizes(shapes)?;
        let mut program = self.clone();
        program.ranges.clear();
        let graph = &mut program.graph;
        for TensorMeta {
            sizes: shape,
            strides,
            storage_offset,
            ..
        } in graph.tensor_values.values_mut()
        {
            let all = shape.iter_mut().chain(strides).chain([storage_offset]);
            all.for_each(|size| bind(size, &sizes));
        }
        for size in graph.sym_int_values.values_mut() {
            bind(size, &sizes);
        }
        let numbers = &graph.sym_int_values;
        for node in &mut graph.nodes {
            for input in &mut node.inputs {
                bind_argument(&mut input.arg, numbers);
            }
        }
        Ok(program)
    }

    /// The values of the dynamic sizes with inputs of these shapes.
    fn sizes(&self, shapes: &[&[usize]]) -> Result<Sizes, ImportError> {
        let names = user_inputs(self)?;
        let mut given = vec![];
        for (name, shape) in names.iter().zip(shapes) {
            let meta = self.graph.tensor_values.get(*name);
            let own = meta.map_or(&[][..], |meta| &meta.sizes);
            for (size, given_size) in own.iter().zip(*shape) {
                if let SymInt::AsExpr(expr) = size {
                    let number = i64::try_from(*given_size).unwrap_or(i64::MAX);
                    given.push((*name, &expr.expr_str[..], number));
                }
            }
        }
        let mut sizes = Sizes::new();
        // A size may be known only when those beside it in an expression are.
        loop {
            let known = sizes.len();
            for (_, text, number) in &given {
                if let Some((symbol, value)) = solve(text, *number, &sizes) {
                    sizes.insert(symbol, value);
                }
            }
            if sizes.len() == known {
                break;
            }
        }
        for (name, text, number) in given {
            let wrong = |reason: String| {
                ImportError::value(format!("input {name:?} of {}", self.name), reason)
            };
            let tree = SizeTree::parse(text)
                .map_err(|reason| wrong(format!("has a size that {reason}")))?;
            let value = tree.value(&|symbol| sizes.get(symbol).copied());
            if value.as_ref() != Ok(&number) {
                let tree = tree.renamed(&self.size_names);
                let reason = match value {
                    Ok(value) => format!("was given {number} for {tree}, must be {value}"),
                    Err(_) => format!("was given {number} for {tree}, which has no such value"),
                };
                return Err(wrong(reason));
            }
        }
        for (symbol, value) in &sizes {
            let (least, most) = self.ranges.get(symbol).copied().unwrap_or((0, i64::MAX));
            if !(least..=most).contains(value) {
                let shown = self.size_names.get(symbol).unwrap_or(symbol);
                let what = format!("the size {shown} of {}", self.name);
                let reason = format!("is {value}, must be from {least} to {most}");
                return Err(ImportError::value(what, reason));
            }
        }
        Ok(sizes)
    }
}

/// The one symbol without a value that an expression has, and the value that makes the expression `number`.
fn solve(text: &str, number: i64, sizes: &Sizes) -> Option<(String, i64)> {
    let sum = SizeExpr::parse(text).ok()?;
    let (mut unknown, mut factor, mut rest) = (None, 0i64, number);
    for (names, coefficient) in sum.terms() {
        let (mut product, mut own) = (coefficient, None);
        for name in names {
            match sizes.get(name) {
                Some(size) => product = product.checked_mul(*size)?,
                None if own.replace(name).is_some() => return None,
                None => {}
            }
        }
        match (own, unknown) {
            (None, _) => rest = rest.checked_sub(product)?,
            (Some(own), None) => (unknown, factor) = (Some(own), product),
            (Some(own), Some(other)) if own == other => factor = factor.checked_add(product)?,
            _ => return None,
        }
    }
    let value = rest
        .checked_div(factor)
        .filter(|value| value.checked_mul(factor) == Some(rest));
    Some((unknown?.clone(), value?))
}

fn bind(size: &mut SymInt, sizes: &Sizes) {
    if let SymInt::AsExpr(expr) = size
        && let Ok(tree) = SizeTree::parse(&expr.expr_str)
        && let Ok(number) = tree.value(&|symbol| sizes.get(symbol).copied())
    {
        *size = SymInt::AsInt(number);
    }
}

/// Replaces the names of sizes in an argument by their numbers.
fn bind_argument(argument: &mut Argument, sizes: &HashMap<String, SymInt>) {
    let number = |name: &str| match sizes.get(name) {
        Some(SymInt::AsInt(n)) => Some(*n),
        _ => None,
    };
    match argument {
        Argument::AsSymInt(SymIntArgument::AsName(name)) => {
            if let Some(n) = number(name) {
                *argument = Argument::AsInt(n);
            }
        }
        Argument::AsSymInts(list) => {
            for size in list {
                if let SymIntArgument::AsName(name) = size
                    && let Some(n) = number(name)
                {
                    *size = SymIntArgument::AsInt(n);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_solved_one_at_a_time() {
        let known = Sizes::from([("b".to_owned(), 3)]);
        let table: [(&str, i64, Option<i64>); 8] = [
            ("a", 7, Some(7)),
            ("Mul(Integer(4), a)", 8, Some(2)),
            ("Mul(Integer(4), a)", 9, None),
            ("Add(Mul(b, a), a, Integer(1))", 9, Some(2)),
            ("Mul(a, a)", 9, None),
            ("Mul(a, c)", 9, None),
            ("b", 3, None),
            ("FloorDiv(a, Integer(2))", 3, None),
        ];
        for (text, number, expect) in table {
            let expect = expect.map(|value| ("a".to_owned(), value));
            assert_eq!(solve(text, number, &known), expect, "{text}");
        }
    }
}
