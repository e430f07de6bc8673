//! The calls of ops that graphs of hidden states and draft heads need beside those of decoders.

use crate::arguments::{PairArgs, PlainAttentionArgs, StridedArgs};
use crate::calls::CallMaker;
use crate::compile::Unit;
use crate::launch::Launch;
use backend::BackendError;
use base::DType;
use graph::ops::{Attention, Binary, BinaryFunction, Compare, CompareFunction, Op, Permute, Slice};
use graph::{Node, TensorId};

/// Threads of a block.
const THREADS: u32 = 128;

/// A function of pairs of integers or truth values, numbered as in the kernel.
#[derive(Clone, Copy)]
enum PairFunction {
    Equal = 0,
    Less = 1,
    Difference = 2,
    And = 3,
}

/// Elements from an index of each axis to the next.
fn strides(shape: &[usize]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as u64;
    }
    strides
}

/// The strides of a tensor that broadcasts to two axes, the last of which are its own.
fn pair_strides(shape: &[usize]) -> Option<[u64; 2]> {
    let own = strides(shape);
    let axis = |back: usize| {
        let axis = shape.len().checked_sub(back);
        axis.filter(|axis| shape[*axis] > 1)
            .map_or(0, |axis| own[axis])
    };
    let outer = shape.len().saturating_sub(2);
    let fits = shape[..outer].iter().all(|size| *size == 1);
    fits.then(|| [axis(2), axis(1)])
}

impl CallMaker<'_> {
    /// The calls of an op that decoders do not have.
    pub(crate) fn uncached(&self, node: &Node) -> Result<Vec<Launch>, BackendError> {
        use PairFunction::{And, Difference, Equal, Less};
        match &node.op {
            Op::Attention(op) => self.plain_attention(node, op),
            Op::Permute(op) => self.permute(node, op),
            Op::Concat(op) => self.concat(node, op.axis),
            Op::Slice(op) => self.slice(node, op),
            Op::Compare(Compare { function }) => match function {
                CompareFunction::Eq => self.pairs(node, DType::I32, Equal),
                CompareFunction::Lt => self.pairs(node, DType::I32, Less),
                _ => Err(self.unsupported(node, "it has no kernel for this comparison")),
            },
            Op::Binary(Binary { function }) => match function {
                BinaryFunction::Sub => self.pairs(node, DType::I32, Difference),
                BinaryFunction::And => self.pairs(node, DType::Bool, And),
                _ => Err(self.unsupported(node, "it has no kernel for this function")),
            },
            _ => Err(self.unsupported(node, "it has no kernel for this op")),
        }
    }

    fn dtype(&self, id: TensorId) -> DType {
        self.graph.tensor(id).ty.dtype
    }

    fn plain_attention(&self, node: &Node, op: &Attention) -> Result<Vec<Launch>, BackendError> {
        let shapes: Vec<Vec<usize>> = node.inputs.iter().map(|id| self.shape(*id)).collect();
        let result = self.shape(node.output);
        if shapes[..3].iter().any(|shape| shape.len() != 3) {
            return Err(self.unsupported(node, "only three axes are attended to"));
        }
        // The axes of tokens and heads.
        let [token, head] = match op.token_major {
            true => [0, 1],
            false => [1, 0],
        };
        let (queries, heads) = (shapes[0][token], shapes[0][head]);
        let keys = shapes[1][token];
        let mask = match node.inputs.get(3) {
            None => None,
            Some(id) => {
                let strides = pair_strides(&shapes[3]).filter(|_| self.dtype(*id) == DType::Bool);
                let strides = strides.ok_or_else(|| {
                    self.unsupported(node, "only masks of truth values for all heads are known")
                })?;
                Some((self.address(*id), strides))
            }
        };
        // Reads of several elements at once may touch whole vectors.
        let shared = (keys * size_of::<f32>()).next_multiple_of(16);
        if shared > self.device.facts.shared_memory {
            return Err(self.unsupported(node, "the text has too many tokens"));
        }
        let [q, k, v] = [0, 1, 2].map(|i| strides(&shapes[i]));
        let out = strides(&result);
        let [mask_query, mask_key] = mask.map_or([0, 0], |(_, strides)| strides);
        let arguments = PlainAttentionArgs {
            q: self.address(node.inputs[0]),
            k: self.address(node.inputs[1]),
            v: self.address(node.inputs[2]),
            mask: mask.map_or(0, |(address, _)| address),
            out: self.address(node.output),
            q_token: q[token],
            q_head: q[head],
            k_token: k[token],
            k_head: k[head],
            v_token: v[token],
            v_head: v[head],
            out_token: out[token],
            out_head: out[head],
            mask_query,
            mask_key,
            keys: keys as u32,
            group: (heads / shapes[1][head].max(1)).max(1) as u32,
            dim: shapes[0][2] as u32,
            value_dim: shapes[2][2] as u32,
            causal: op.causal.into(),
            scale: op.scale,
            softcap: op.softcap.unwrap_or(0.0),
            unused: 0,
        };
        let function = self.device.function(Unit::General, "plain_attention")?;
        let grid = [queries as u32, heads as u32];
        let launch = Launch::new(function, grid, THREADS, shared as u32, &arguments);
        Ok(vec![launch])
    }

    fn permute(&self, node: &Node, op: &Permute) -> Result<Vec<Launch>, BackendError> {
        let from = strides(&self.shape(node.inputs[0]));
        let shape = self.shape(node.output);
        if shape.len() > 3 {
            return Err(self.unsupported(node, "only three axes are permuted"));
        }
        let moved: Vec<u64> = op.axes.iter().map(|axis| from[*axis]).collect();
        let to = strides(&shape);
        self.copy(
            node,
            [(node.inputs[0], 0), (node.output, 0)],
            &shape,
            [&moved, &to],
        )
    }

    fn concat(&self, node: &Node, axis: usize) -> Result<Vec<Launch>, BackendError> {
        let result = self.shape(node.output);
        let inner: usize = result[axis + 1..].iter().product();
        let row = (result[axis] * inner) as u64;
        let mut launches = vec![];
        let mut at = 0;
        for id in &node.inputs {
            let shape = self.shape(*id);
            let (outer, own) = (shape[..axis].iter().product(), shape[axis] * inner);
            let (from, to) = ([own as u64, 1], [row, 1]);
            let places = [(*id, 0), (node.output, at)];
            let calls = self.copy(node, places, &[outer, own], [&from, &to]);
            launches.extend(calls?);
            at += own;
        }
        Ok(launches)
    }

    fn slice(&self, node: &Node, op: &Slice) -> Result<Vec<Launch>, BackendError> {
        let shape = self.shape(node.inputs[0]);
        let (outer, inner) = (&shape[..op.axis], &shape[op.axis + 1..]);
        let (outer, inner): (usize, usize) = (outer.iter().product(), inner.iter().product());
        let size = shape[op.axis];
        let range = op.resolve(size, &self.memory.bindings);
        let (start, len) = range.map_err(|reason| self.unsupported(node, &reason))?;
        let from = [size * inner, op.step * inner, 1].map(|stride| stride as u64);
        let to = [len * inner, inner, 1].map(|stride| stride as u64);
        let places = [(node.inputs[0], start * inner), (node.output, 0)];
        self.copy(node, places, &[outer, len, inner], [&from, &to])
    }

    /// Copies elements of 4 bytes of up to three axes, from an element of a tensor to one of another.
    fn copy(
        &self,
        node: &Node,
        [(from, from_at), (to, to_at)]: [(TensorId, usize); 2],
        dims: &[usize],
        [from_strides, to_strides]: [&[u64]; 2],
    ) -> Result<Vec<Launch>, BackendError> {
        if !matches!(self.dtype(to), DType::F32 | DType::I32) {
            return Err(self.unsupported(node, "only elements of 32 bits are moved"));
        }
        let three = |own: &[u64], filler: u64| {
            let mut all = [filler; 3];
            all[3 - own.len()..].copy_from_slice(own);
            all
        };
        let sizes: Vec<u64> = dims.iter().map(|size| *size as u64).collect();
        let arguments = StridedArgs {
            from: self.address(from) + 4 * from_at as u64,
            to: self.address(to) + 4 * to_at as u64,
            dims: three(&sizes, 1),
            from_strides: three(from_strides, 0),
            to_strides: three(to_strides, 0),
        };
        let blocks = dims.iter().product::<usize>().div_ceil(THREADS as usize);
        self.general("copy_strided", blocks, THREADS, &arguments)
    }

    fn pairs(
        &self,
        node: &Node,
        dtype: DType,
        function: PairFunction,
    ) -> Result<Vec<Launch>, BackendError> {
        let &[a, b] = &node.inputs[..] else {
            unreachable!("inferred with two operands")
        };
        if [a, b].iter().any(|id| self.dtype(*id) != dtype) {
            return Err(self.unsupported(node, &format!("only {dtype} is computed")));
        }
        let shape = self.shape(node.output);
        let both = [a, b].map(|id| pair_strides(&self.shape(id)));
        let ([Some(first), Some(second)], Some(_)) = (both, pair_strides(&shape)) else {
            return Err(self.unsupported(node, "only two axes are broadcast"));
        };
        let columns = shape.last().copied().unwrap_or(1);
        let elements: usize = shape.iter().product();
        let arguments = PairArgs {
            a: self.address(a),
            b: self.address(b),
            out: self.address(node.output),
            rows: (elements / columns.max(1)) as u64,
            columns: columns as u64,
            a_row: first[0],
            a_column: first[1],
            b_row: second[0],
            b_column: second[1],
            function: function as u32,
            unused: 0,
        };
        let blocks = elements.div_ceil(THREADS as usize);
        self.general("map_pairs", blocks, THREADS, &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_count_elements_and_repeat_what_is_broadcast() {
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
        assert!(strides(&[]).is_empty());
        assert_eq!(pair_strides(&[5, 7]), Some([7, 1]));
        assert_eq!(pair_strides(&[5, 1]), Some([1, 0]));
        assert_eq!(pair_strides(&[1, 7]), Some([0, 1]));
        assert_eq!(pair_strides(&[7]), Some([0, 1]));
        assert_eq!(pair_strides(&[1]), Some([0, 0]));
        assert_eq!(pair_strides(&[1, 1, 5, 7]), Some([7, 1]));
        assert_eq!(pair_strides(&[2, 5, 7]), None);
    }
}
