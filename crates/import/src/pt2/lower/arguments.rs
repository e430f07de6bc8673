//! Arguments of a node as tensors and sizes, and the declared types of its results.

use base::DType;
use graph::ops::{Scalar, Size};
use graph::{Dim, TensorId};

use super::call::{Call, Operand, SizeArg};
use super::context::Pt2Lowering;
use crate::lowering::LoweringBuilder;
use crate::pt2::schema::SymInt;
use crate::pt2::tensor;
use crate::stored_type::StoredType;

impl<'a> Pt2Lowering<'a> {
    /// The tensor that an argument names.
    pub(super) fn tensor(&mut self, call: &Call<'_>, name: &str) -> Result<TensorId, String> {
        self.value(call.tensor(name)?)
    }

    /// The tensor that an optional argument names.
    pub(super) fn maybe_tensor(
        &mut self,
        call: &Call<'_>,
        name: &str,
    ) -> Result<Option<TensorId>, String> {
        call.maybe_tensor(name)?.map(|n| self.value(n)).transpose()
    }

    /// The axes that an argument lists, in ascending order; all axes if it is absent or empty.
    pub(super) fn axes(call: &Call<'_>, name: &str, rank: usize) -> Result<Vec<usize>, String> {
        let mut axes = match call.ints(name)? {
            Some(list) if !list.is_empty() => list
                .iter()
                .map(|axis| LoweringBuilder::axis(*axis, rank))
                .collect::<Result<Vec<_>, _>>()?,
            _ => (0..rank).collect(),
        };
        axes.sort_unstable();
        axes.dedup();
        axes.retain(|axis| *axis < rank);
        Ok(axes)
    }

    /// A size argument as a dimension.
    pub(super) fn dim(&self, size: SizeArg<'_>) -> Result<Dim, String> {
        match size {
            SizeArg::Number(n) => Ok(Dim::constant(n)),
            SizeArg::Name(name) => match self.graph.sym_int_values.get(name) {
                Some(size) => self.sym_int(size),
                None => Err(format!("size {name} is not defined")),
            },
        }
    }

    /// The shape of a node's result, as the file states it.
    pub(super) fn result_shape(&self, call: &Call<'_>, index: usize) -> Result<Vec<Dim>, String> {
        let meta = self.result_meta(call, index)?;
        meta.sizes.iter().map(|size| self.sym_int(size)).collect()
    }

    /// The element type of a node's result, as the file states it.
    pub(super) fn result_kind(&self, call: &Call<'_>, index: usize) -> Result<StoredType, String> {
        let code = self.result_meta(call, index)?.dtype;
        match self.by_parts && super::complex::is_complex(code) {
            true => Ok(StoredType::F32),
            false => tensor::kind(code),
        }
    }

    /// The compute type of a node's result.
    pub(super) fn result_dtype(&self, call: &Call<'_>, index: usize) -> Result<DType, String> {
        Ok(self.result_kind(call, index)?.dtype())
    }

    /// Whether a tensor is all of its storage, in the order of its elements, as the file states.
    pub(super) fn is_whole_storage(&self, name: &str) -> bool {
        let Some(meta) = self.graph.tensor_values.get(name) else {
            return false;
        };
        let number = |n: &SymInt| match n {
            SymInt::AsInt(n) => Some(*n),
            SymInt::AsExpr(_) => None,
        };
        let list = |list: &[SymInt]| list.iter().map(number).collect::<Option<Vec<i64>>>();
        let (Some(sizes), Some(strides)) = (list(&meta.sizes), list(&meta.strides)) else {
            return false;
        };
        let mut wanted = 1i64;
        let in_order = sizes.iter().zip(&strides).rev().all(|(size, stride)| {
            let fits = *size == 1 || *stride == wanted;
            wanted = wanted.saturating_mul(*size);
            fits
        });
        in_order && number(&meta.storage_offset) == Some(0)
    }

    fn result_meta(
        &self,
        call: &Call<'_>,
        index: usize,
    ) -> Result<&'a crate::pt2::schema::TensorMeta, String> {
        let results = call.results();
        let name = results.get(index).ok_or("has no result")?;
        let meta = self.graph.tensor_values.get(*name);
        meta.ok_or_else(|| format!("the file does not state the type of its result {name}"))
    }

    /// A tensor or number operand, combined with a tensor of type `beside`. A number takes that type unless its own kind is
    /// wider.
    pub(super) fn operand(
        &mut self,
        call: &Call<'_>,
        name: &str,
        beside: DType,
    ) -> Result<TensorId, String> {
        let number = match call.operand(name)? {
            Operand::Tensor(name) => return self.value(name),
            Operand::Size(name) => {
                let value = self.dim(SizeArg::Name(name))?;
                let size = self.emit(Size { value }, &[])?;
                return match beside {
                    DType::Bool | DType::I64 => Ok(size),
                    other => self.cast(size, other),
                };
            }
            Operand::Number(number) => number,
        };
        let dtype = match (number, beside) {
            (Scalar::F32(_), _) => DType::F32,
            (Scalar::I64(_), DType::Bool) => DType::I64,
            _ => beside,
        };
        self.scalar(number, dtype)
    }
}
