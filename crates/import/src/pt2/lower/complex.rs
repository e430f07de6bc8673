//! Complex numbers, as two tensors each: rotary embeddings are written with them.
//!
//! Ops that only rearrange elements, and sums, run on the real and the imaginary parts apart.

use std::collections::HashMap;

use graph::TensorId;
use graph::ops::{BinaryFunction as B, Scalar, UnaryFunction as U};

use super::call::{Call, Operand};
use super::context::Pt2Lowering;
use super::table;
use crate::pt2::schema::ScalarType;
use base::DType;

/// The real and the imaginary parts of a tensor.
pub(super) type Parts = [TensorId; 2];

/// Ops whose result for a complex operand is that for its real parts and that for its imaginary parts.
const BY_PARTS: &[&str] = &[
    "view",
    "_unsafe_view",
    "reshape",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "view_as",
    "permute",
    "transpose",
    "swapaxes",
    "swapdims",
    "movedim",
    "moveaxis",
    "t",
    "expand",
    "expand_as",
    "broadcast_to",
    "slice",
    "narrow",
    "select",
    "split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "cat",
    "concat",
    "stack",
    "index_select",
    "index",
    "repeat",
    "roll",
    "flip",
    "clone",
    "contiguous",
    "detach",
    "alias",
    "lift_fresh_copy",
    "sum",
    "cumsum",
    "neg",
];

/// Whether a type code is one of complex numbers.
pub(super) fn is_complex(code: ScalarType) -> bool {
    (9..=11).contains(&code.0)
}

/// Complex or real numbers.
enum Numbers {
    Complex(Parts),
    Real(TensorId),
}

/// Ops on complex numbers that were given real ones.
pub(super) fn on_reals(
    lower: &mut Pt2Lowering<'_>,
    call: &Call<'_>,
) -> Result<Vec<TensorId>, String> {
    match call.name() {
        "real" | "conj" | "_conj" | "conj_physical" | "_conj_physical" => {
            Ok(vec![lower.tensor(call, "self")?])
        }
        _ => Err("is supported for complex numbers only".into()),
    }
}

impl<'a> Pt2Lowering<'a> {
    /// Lowers a node that has a complex operand or result; false if it is another one.
    pub(super) fn lower_complex(&mut self, call: &Call<'a>) -> Result<bool, String> {
        let operands: Vec<&str> = call
            .node
            .inputs
            .iter()
            .flat_map(|input| input.arg.names())
            .filter(|name| self.has_complex_elements(name))
            .collect();
        let names = call.results();
        let complex_result = names.iter().any(|name| self.has_complex_elements(name));
        if operands.is_empty() && !complex_result {
            return Ok(false);
        }
        let results = match call.name() {
            name if BY_PARTS.contains(&name) => self.by_parts(call, &operands)?,
            _ => vec![self.complex_function(call)?],
        };
        if names.len() != results.len() {
            return Err("has other results on complex numbers than are supported".into());
        }
        for (index, (name, result)) in names.iter().zip(results).enumerate() {
            let shape = self.result_shape(call, index)?;
            let ids = match &result {
                Numbers::Complex(parts) => &parts[..],
                Numbers::Real(id) => std::slice::from_ref(id),
            };
            if ids.iter().any(|id| self.shape(*id) != shape) {
                return Err(format!("has other shapes than the file's {shape:?}"));
            }
            let complex = self.has_complex_elements(name);
            match result {
                Numbers::Complex(parts) if complex => {
                    self.complexes.insert((*name).to_owned(), parts);
                }
                Numbers::Real(id) if !complex => {
                    let dtype = self.result_dtype(call, index)?;
                    let id = self.cast(id, dtype)?;
                    self.own_name(id, name);
                    self.values.insert((*name).to_owned(), id);
                }
                _ => return Err("has a result of another type than the file states".into()),
            }
        }
        Ok(true)
    }

    /// Whether the file states that a tensor's elements are complex numbers.
    pub(super) fn has_complex_elements(&self, name: &str) -> bool {
        let meta = self.graph.tensor_values.get(name);
        let stored = || self.program.tensors.get(name).is_some_and(|t| t.complex);
        meta.is_some_and(|meta| is_complex(meta.dtype)) || stored()
    }

    /// The parts of a tensor, which is in the graph or stored with the file.
    fn parts(&mut self, name: &str) -> Result<Parts, String> {
        if let Some(parts) = self.complexes.get(name) {
            return Ok(*parts);
        }
        let stored = self.program.tensors.get(name);
        let stored = stored.filter(|stored| stored.complex);
        let stored = stored.ok_or_else(|| format!("there are no complex numbers {name}"))?;
        let (dtype, data) = stored.computed()?;
        let pairs = self.builder.constant(name, dtype, &stored.shape, data);
        let pairs = pairs.map_err(|e| e.to_string())?;
        let parts = self.halves(pairs)?;
        self.complexes.insert(name.to_owned(), parts);
        Ok(parts)
    }

    /// The two elements of the last axis.
    fn halves(&mut self, x: TensorId) -> Result<Parts, String> {
        let mut shape = self.shape(x);
        let axis = shape.len().checked_sub(1).ok_or("has a scalar as pairs")?;
        shape.pop();
        let mut half = |at: usize| {
            let half = self.slice(x, axis, at.into(), 1.into())?;
            self.reshape(half, shape.clone())
        };
        Ok([half(0)?, half(1)?])
    }

    /// An operand: complex numbers, or real ones.
    fn either(&mut self, call: &Call<'_>, name: &str) -> Result<Numbers, String> {
        match call.operand(name)? {
            Operand::Tensor(name) if self.has_complex_elements(name) => {
                Ok(Numbers::Complex(self.parts(name)?))
            }
            Operand::Tensor(name) => {
                let id = self.value(name)?;
                Ok(Numbers::Real(self.cast(id, DType::F32)?))
            }
            Operand::Number(number) => {
                let number = Scalar::F32(number.to_f32());
                Ok(Numbers::Real(self.scalar(number, DType::F32)?))
            }
            Operand::Size(_) => Err("combines complex numbers with a size".into()),
        }
    }

    /// Runs an op's rule on the real and on the imaginary parts of its operands.
    fn by_parts(&mut self, call: &Call<'a>, operands: &[&'a str]) -> Result<Vec<Numbers>, String> {
        let rule = table::rule(&call.op).ok_or("is not supported")?;
        let mut pairs: HashMap<&str, Parts> = HashMap::new();
        for name in operands {
            pairs.insert(name, self.parts(name)?);
        }
        let mut run = |part: usize| {
            for (name, parts) in &pairs {
                self.values.insert((*name).to_owned(), parts[part]);
            }
            self.by_parts = true;
            let results = rule(self, call);
            self.by_parts = false;
            for name in pairs.keys() {
                self.values.remove(*name);
            }
            results
        };
        let (real, imaginary) = (run(0)?, run(1)?);
        let pairs = real.into_iter().zip(imaginary);
        Ok(pairs.map(|(a, b)| Numbers::Complex([a, b])).collect())
    }

    fn complex_function(&mut self, call: &Call<'a>) -> Result<Numbers, String> {
        let real = |lower: &mut Self, name: &str| match lower.either(call, name)? {
            Numbers::Real(id) => Ok(id),
            Numbers::Complex(_) => Err(format!("has complex numbers as {name}")),
        };
        let own = |lower: &mut Self| lower.parts(call.tensor("self")?);
        Ok(Numbers::Complex(match call.name() {
            "view_as_complex" => {
                let x = real(self, "self")?;
                self.halves(x)?
            }
            "complex" => {
                let shape = self.result_shape(call, 0)?;
                let (a, b) = (real(self, "real")?, real(self, "imag")?);
                [self.expand(a, shape.clone())?, self.expand(b, shape)?]
            }
            "polar" => {
                let (size, angle) = (real(self, "abs")?, real(self, "angle")?);
                let (cos, sin) = (self.unary(U::Cos, angle)?, self.unary(U::Sin, angle)?);
                [
                    self.binary(B::Mul, size, cos)?,
                    self.binary(B::Mul, size, sin)?,
                ]
            }
            "view_as_real" => {
                let parts = own(self)?;
                let mut shape = self.shape(parts[0]);
                let axis = shape.len();
                shape.push(1.into());
                let a = self.reshape(parts[0], shape.clone())?;
                let b = self.reshape(parts[1], shape)?;
                return Ok(Numbers::Real(self.concat(&[a, b], axis)?));
            }
            "real" => return Ok(Numbers::Real(own(self)?[0])),
            "imag" => return Ok(Numbers::Real(own(self)?[1])),
            "abs" | "absolute" => {
                let [a, b] = own(self)?;
                let (a, b) = (self.binary(B::Mul, a, a)?, self.binary(B::Mul, b, b)?);
                let sum = self.binary(B::Add, a, b)?;
                return Ok(Numbers::Real(self.unary(U::Sqrt, sum)?));
            }
            "angle" => {
                let [a, b] = own(self)?;
                return Ok(Numbers::Real(self.binary(B::Atan2, b, a)?));
            }
            // A conjugate is marked in PyTorch and computed later; here it is computed at once.
            "resolve_conj" => own(self)?,
            "conj" | "_conj" | "_conj_physical" | "conj_physical" => {
                let [a, b] = own(self)?;
                [a, self.unary(U::Neg, b)?]
            }
            "mul" | "multiply" => match (self.either(call, "self")?, self.either(call, "other")?) {
                (Numbers::Complex([a, b]), Numbers::Complex([c, d])) => {
                    let (ac, bd) = (self.binary(B::Mul, a, c)?, self.binary(B::Mul, b, d)?);
                    let (ad, bc) = (self.binary(B::Mul, a, d)?, self.binary(B::Mul, b, c)?);
                    [self.binary(B::Sub, ac, bd)?, self.binary(B::Add, ad, bc)?]
                }
                (Numbers::Complex([a, b]), Numbers::Real(x))
                | (Numbers::Real(x), Numbers::Complex([a, b])) => {
                    [self.binary(B::Mul, a, x)?, self.binary(B::Mul, b, x)?]
                }
                _ => return Err("multiplies real numbers to complex ones".into()),
            },
            "add" | "sub" | "subtract" => {
                if call.number("alpha", Scalar::I64(1))?.to_f32() != 1.0 {
                    return Err("with a factor is not supported for complex numbers".into());
                }
                let function = if call.name() == "add" { B::Add } else { B::Sub };
                match (self.either(call, "self")?, self.either(call, "other")?) {
                    (Numbers::Complex([a, b]), Numbers::Complex([c, d])) => {
                        [self.binary(function, a, c)?, self.binary(function, b, d)?]
                    }
                    _ => return Err("of real and complex numbers is not supported".into()),
                }
            }
            _ => return Err("is not supported for complex numbers".into()),
        }))
    }
}
