//! A parsed `.pte` file.

use base::Bytes;

/// An ExecuTorch program.
#[derive(Clone, Debug)]
pub struct Pte {
    /// The version of the schema.
    pub version: u32,
    /// The methods, with constant ones.
    pub plans: Vec<Plan>,
}

/// One method.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// The values that instructions read and write.
    pub(super) values: Vec<EValue>,
    /// Indices of the inputs.
    pub(super) inputs: Vec<usize>,
    /// Indices of the outputs.
    pub(super) outputs: Vec<usize>,
    pub(super) calls: Vec<KernelCall>,
}

impl Plan {
    /// The number of kernel calls.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// The number of calls of each op, as `aten::mm.out`.
    pub fn ops(&self) -> std::collections::BTreeMap<&str, usize> {
        let mut ops = std::collections::BTreeMap::new();
        for call in &self.calls {
            *ops.entry(&*call.op).or_default() += 1;
        }
        ops
    }

    /// The constant tensors: name, type, shape and bytes.
    pub fn tensors(&self) -> impl Iterator<Item = &PteTensor> {
        self.values.iter().filter_map(|value| match value {
            EValue::Tensor(tensor) if tensor.data.is_some() => Some(tensor),
            _ => None,
        })
    }
}

/// A call of a kernel. Its arguments end with the results.
#[derive(Clone, Debug)]
pub(super) struct KernelCall {
    /// Name and overload: `aten::mm.out`.
    pub(super) op: String,
    /// Indices of values.
    pub(super) args: Vec<usize>,
}

/// A value of a plan.
#[derive(Clone, Debug)]
pub(super) enum EValue {
    None,
    Int(i64),
    Bool(bool),
    Double(f64),
    Text(String),
    Tensor(PteTensor),
    /// Indices of values that are integers.
    Ints(Vec<usize>),
    Doubles(Vec<f64>),
    Bools,
    /// Indices of tensors.
    Tensors(Vec<usize>),
    /// Indices of tensors and of `None`.
    OptionalTensors(Vec<usize>),
}

/// A tensor of a plan.
#[derive(Clone, Debug)]
pub struct PteTensor {
    /// The name in the module, if the file has it.
    pub name: Option<String>,
    /// ExecuTorch's code of the element type.
    pub(super) dtype: u8,
    /// Sizes; upper bounds if the tensor is dynamic.
    pub sizes: Vec<usize>,
    pub(super) is_dynamic: bool,
    /// Where its elements are: the number of a memory and an offset.
    pub(super) place: Option<(u32, u64)>,
    /// The elements of a constant.
    pub data: Option<Bytes>,
}

impl PteTensor {
    /// The name of the element type.
    pub fn type_name(&self) -> &'static str {
        super::types::name(self.dtype)
    }
}
