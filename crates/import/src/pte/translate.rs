//! Turns a method into the typed program that `.pt2` files hold, so that one set of rules lowers both.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::call::PlanCall;
use super::file::{EValue, KernelCall, Plan, PteTensor};
use super::sizes::{Size, Sizes, is_view};
use super::types::torch_code;
use crate::by_shape::ShapedMethod;
use crate::error::{ImportError, ImportErrorDetail};
use crate::pt2::Program;
use crate::pt2::Pt2Tensor;
use crate::pt2::schema::{
    Argument, Float, Graph, InputSpec, Named, NamedArgument, Node, OptionalTensor, STRIDED,
    ScalarType, Signature, SymExpr, SymInt, SymIntArgument, TensorMeta,
};

/// Arguments that change no value, or repeat what the results' types say.
const IGNORED: [&str; 7] = [
    "dtype",
    "memory_format",
    "layout",
    "device",
    "pin_memory",
    "non_blocking",
    "dim_order",
];

/// The program of a method.
pub(super) fn program(plan: &Plan) -> Result<Program, ImportError> {
    Translation::new(plan, Sizes::of(plan)).program()
}

/// The method in the place of a program for all shapes, which failed with `error`.
pub(super) fn shaped_method(plan: &Plan, error: ImportError) -> Result<ShapedMethod, ImportError> {
    if plan
        .calls
        .iter()
        .any(|call| call.op.starts_with("kvcache::"))
    {
        return Err(error);
    }
    let translation = Translation::new(plan, Sizes::of(plan));
    translation.with_nodes(vec![])?.shaped_method(error)
}

/// The program of a method for inputs of these shapes.
pub(super) fn program_for(plan: &Plan, shapes: &[&[usize]]) -> Result<Program, ImportError> {
    let wrong = |reason: String| {
        ImportError::value(
            format!("method {:?}", plan.name),
            format!("has no sizes: {reason}"),
        )
    };
    let sizes = Sizes::exact(plan, shapes).map_err(wrong)?;
    Translation::new(plan, sizes).program()
}

/// Calls whose op has no lowering rule, each once.
pub(super) fn unknown_ops(plan: &Plan) -> Vec<String> {
    let unknown = plan.calls.iter().filter(|call| {
        !is_assertion(&call.op) && !is_integer(&call.op) && PlanCall::new(plan, call).is_none()
    });
    let mut ops: Vec<String> = unknown.map(|call| call.op.clone()).collect();
    ops.sort();
    ops.dedup();
    ops
}

fn is_assertion(op: &str) -> bool {
    op.starts_with("aten::_assert") || op.starts_with("aten::sym_constrain_range")
}

/// Whether an op computes with sizes; its results are known beforehand.
fn is_integer(op: &str) -> bool {
    op.starts_with("aten::sym_") || (op.starts_with("executorch_prim::") && !op.contains("et_view"))
}

struct Translation<'a> {
    plan: &'a Plan,
    sizes: Sizes,
    /// The name of every value in the program.
    names: Vec<String>,
    /// The values that a call or the method's caller reads.
    read: HashSet<usize>,
    /// The integers that calls compute.
    computed: HashSet<usize>,
}

impl<'a> Translation<'a> {
    fn new(plan: &'a Plan, sizes: Sizes) -> Translation<'a> {
        let known = |call: &'a KernelCall| PlanCall::new(plan, call);
        let read = plan.calls.iter().filter_map(known).flat_map(|call| {
            let values = call
                .arguments()
                .flat_map(|(name, value)| [&[value], call.list(name)].concat());
            values.collect::<Vec<_>>()
        });
        let integers = plan.calls.iter().filter(|call| is_integer(&call.op));
        Translation {
            plan,
            sizes,
            names: names(plan),
            read: read.chain(plan.outputs.iter().copied()).collect(),
            computed: integers
                .filter_map(|call| call.args.last().copied())
                .collect(),
        }
    }

    fn program(&self) -> Result<Program, ImportError> {
        let plan = self.plan;
        let unknown = unknown_ops(plan);
        if !unknown.is_empty() {
            let ops = format!("{} (of {})", unknown.join(", "), plan.name);
            return Err(ImportErrorDetail::UnknownOps { ops }.into());
        }
        let mut nodes = vec![];
        for call in &plan.calls {
            if let Some(call) = PlanCall::new(plan, call).filter(|_| !is_integer(&call.op)) {
                nodes.push(self.node(&call)?);
            }
        }
        self.with_nodes(nodes)
    }

    /// The program with these nodes.
    fn with_nodes(&self, nodes: Vec<Node>) -> Result<Program, ImportError> {
        let plan = self.plan;
        let wrong =
            |reason: String| ImportError::malformed(format!("method {:?}", plan.name), reason);
        let mut tensors = BTreeMap::new();
        let mut specs = vec![];
        let mut metas = HashMap::new();
        for (index, value) in plan.values.iter().enumerate() {
            let EValue::Tensor(tensor) = value else {
                continue;
            };
            let meta = self.meta(index, tensor).map_err(wrong)?;
            let name = self.name(index);
            if let Some(data) = &tensor.data {
                let shown = tensor.name.clone().unwrap_or_else(|| name.clone());
                let stored = Pt2Tensor::new(&shown, &meta, data);
                tensors.insert(name.clone(), stored.map_err(wrong)?);
                specs.push(InputSpec::Buffer {
                    arg: Named { name: name.clone() },
                    buffer_name: shown,
                });
            }
            metas.insert(name, meta);
        }
        let mut inputs = vec![];
        for index in &plan.inputs {
            let arg = self.argument(*index);
            inputs.push(arg.clone());
            specs.push(InputSpec::UserInput { arg });
        }
        let integers = (0..plan.values.len()).filter_map(|value| {
            let size = self.sizes.integer(value)?;
            Some((self.name(value), sym_int(&size)))
        });
        let outputs: Vec<Argument> = plan.outputs.iter().map(|v| self.argument(*v)).collect();
        let ranges = self.sizes.bounds().enumerate();
        Ok(Program::from_parts(
            plan.name.clone(),
            tensors,
            ranges
                .map(|(n, bound)| (symbol(n), (1, bound as i64)))
                .collect(),
            Graph {
                inputs,
                nodes,
                outputs,
                tensor_values: metas,
                sym_int_values: integers.collect(),
            },
            Signature {
                input_specs: specs,
                output_specs: vec![],
            },
        ))
    }

    fn name(&self, value: usize) -> String {
        self.names[value].clone()
    }

    fn meta(&self, value: usize, tensor: &PteTensor) -> Result<TensorMeta, String> {
        let sizes: Vec<Size> = match &tensor.data {
            Some(_) => tensor.sizes.iter().map(|n| Size::Constant(*n)).collect(),
            None => self.sizes.tensor(value),
        };
        let mut strides = vec![];
        let mut stride = 1usize;
        for size in tensor.sizes.iter().rev() {
            strides.push(SymInt::AsInt(stride as i64));
            stride = stride.saturating_mul((*size).max(1));
        }
        strides.reverse();
        Ok(TensorMeta {
            dtype: ScalarType(torch_code(tensor.dtype)?),
            sizes: sizes.iter().map(sym_int).collect(),
            strides,
            storage_offset: SymInt::AsInt(0),
            layout: STRIDED,
        })
    }

    fn node(&self, call: &PlanCall<'_>) -> Result<Node, ImportError> {
        let arguments = call.arguments();
        // The size of a view is its result's.
        let ignored = |name: &str| IGNORED.contains(&name) || name == "size" && is_view(&call.name);
        let arguments: Vec<_> = arguments.filter(|(name, _)| !ignored(name)).collect();
        let mut results = call.results();
        for (name, value) in &arguments {
            if self.is_unknown_integer(*value) {
                return Err(ImportErrorDetail::Op {
                    node: self.name(results[0]),
                    op: call.target.clone(),
                    reason: format!(
                        "its {name} is computed from sizes in a way that is not supported"
                    ),
                }
                .into());
            }
        }
        let inputs = arguments.into_iter().map(|(name, value)| NamedArgument {
            name: name.to_owned(),
            arg: match self.element_type(name, value) {
                Some(code) => Argument::AsScalarType(code),
                None => self.argument(value),
            },
        });
        // Further results that nobody reads, such as the mean of a normalisation.
        while results.len() > 1 && !self.read.contains(&results[results.len() - 1]) {
            results.pop();
        }
        let outputs = results.into_iter().map(|v| self.argument(v));
        let (inputs, outputs) = (inputs.collect(), outputs.collect());
        Ok(Node::new(call.target.clone(), inputs, outputs))
    }

    /// The element type of an argument that is one; programs have its number.
    fn element_type(&self, name: &str, value: usize) -> Option<ScalarType> {
        let EValue::Int(code) = self.plan.values[value] else {
            return None;
        };
        let code = u8::try_from(code).ok().filter(|_| name == "out_dtype")?;
        torch_code(code).ok().map(ScalarType)
    }

    /// Whether a value is, or a list has, an integer that a call computes and that is not known.
    fn is_unknown_integer(&self, value: usize) -> bool {
        let unknown = |value: usize| {
            matches!(self.plan.values[value], EValue::Int(_))
                && self.sizes.integer(value).is_none()
                && self.computed.contains(&value)
        };
        match &self.plan.values[value] {
            EValue::Ints(list) => list.iter().any(|value| unknown(*value)),
            _ => unknown(value),
        }
    }

    fn argument(&self, value: usize) -> Argument {
        let named = |value: usize| Named {
            name: self.name(value),
        };
        if self.sizes.integer(value).is_some() {
            return Argument::AsSymInt(SymIntArgument::AsName(self.name(value)));
        }
        match &self.plan.values[value] {
            EValue::None => Argument::AsNone(serde::de::IgnoredAny),
            EValue::Int(n) => Argument::AsInt(*n),
            EValue::Bool(b) => Argument::AsBool(*b),
            EValue::Double(x) => Argument::AsFloat(Float(*x)),
            EValue::Text(text) => Argument::AsString(text.clone()),
            EValue::Tensor(_) => Argument::AsTensor(named(value)),
            EValue::Doubles(list) => Argument::AsFloats(list.iter().map(|x| Float(*x)).collect()),
            EValue::Bools => Argument::AsBools(serde::de::IgnoredAny),
            EValue::Ints(list) => self.integers(list),
            EValue::Tensors(list) => Argument::AsTensors(list.iter().map(|v| named(*v)).collect()),
            EValue::OptionalTensors(list) => {
                let tensor = |value: &usize| match self.plan.values[*value] {
                    EValue::Tensor(_) => OptionalTensor::AsTensor(named(*value)),
                    _ => OptionalTensor::AsNone(serde::de::IgnoredAny),
                };
                Argument::AsOptionalTensors(list.iter().map(tensor).collect())
            }
        }
    }

    fn integers(&self, list: &[usize]) -> Argument {
        let number = |value: &usize| match self.plan.values[*value] {
            EValue::Int(n) => n,
            _ => 0,
        };
        if list
            .iter()
            .all(|value| self.sizes.integer(*value).is_none())
        {
            return Argument::AsInts(list.iter().map(number).collect());
        }
        let size = |value: &usize| match self.sizes.integer(*value) {
            Some(_) => SymIntArgument::AsName(self.name(*value)),
            None => SymIntArgument::AsInt(number(value)),
        };
        Argument::AsSymInts(list.iter().map(size).collect())
    }
}

/// The names of all values: those of weights where they are unique, `input_N`, or `vN`.
fn names(plan: &Plan) -> Vec<String> {
    let own = |value: &'_ EValue| match value {
        EValue::Tensor(tensor) => tensor.name.clone(),
        _ => None,
    };
    let mut counts: HashMap<String, usize> = HashMap::new();
    for name in plan.values.iter().filter_map(own) {
        *counts.entry(name).or_default() += 1;
    }
    let inputs: HashMap<usize, usize> = plan.inputs.iter().copied().zip(0..).collect();
    let name = |(index, value): (usize, &EValue)| match own(value) {
        Some(name) if counts[&name] == 1 => name,
        _ => match inputs.get(&index) {
            Some(place) => format!("input_{place}"),
            None => format!("v{index}"),
        },
    };
    plan.values.iter().enumerate().map(name).collect()
}

fn symbol(number: usize) -> String {
    format!("s{number}")
}

fn sym_int(size: &Size) -> SymInt {
    let expression = |expr_str| SymInt::AsExpr(SymExpr { expr_str });
    match size {
        Size::Constant(n) => SymInt::AsInt(*n as i64),
        Size::Product(factor, symbols) => {
            let factor = (*factor != 1).then(|| format!("Integer({factor})"));
            let symbols = symbols.iter().map(|number| symbol(*number));
            let factors: Vec<String> = factor.into_iter().chain(symbols).collect();
            match &factors[..] {
                [single] => expression(single.clone()),
                all => expression(format!("Mul({})", all.join(", "))),
            }
        }
    }
}

/// The values of constant methods: integers, and one-dimensional tensors of integers.
pub(super) fn constants(plans: &[Plan]) -> kv::metadata::Metadata {
    use kv::metadata::MetadataValue;
    let mut metadata = kv::metadata::Metadata::new();
    for plan in plans.iter().filter(|plan| is_constant(plan)) {
        let value = match plan.outputs.first().map(|output| &plan.values[*output]) {
            Some(EValue::Int(n)) => MetadataValue::Int(*n),
            Some(EValue::Ints(list)) => {
                let number = |value: &usize| match plan.values[*value] {
                    EValue::Int(n) => Some(n),
                    _ => None,
                };
                match list.iter().map(number).collect() {
                    Some(list) => MetadataValue::Ints(list),
                    None => continue,
                }
            }
            Some(EValue::Tensor(PteTensor {
                dtype,
                data: Some(data),
                ..
            })) => match (dtype, data.len()) {
                (3, _) => {
                    let numbers = data.as_chunks().0.iter();
                    let numbers = numbers.map(|b| i64::from(i32::from_le_bytes(*b)));
                    MetadataValue::Ints(numbers.collect())
                }
                (4, _) => {
                    let numbers = data.as_chunks().0.iter();
                    MetadataValue::Ints(numbers.map(|b| i64::from_le_bytes(*b)).collect())
                }
                _ => continue,
            },
            _ => continue,
        };
        metadata.insert(plan.name.clone(), value);
    }
    metadata
}

/// Whether a method only returns constants.
pub(super) fn is_constant(plan: &Plan) -> bool {
    plan.calls.is_empty() && plan.inputs.is_empty()
}

/// The names of the methods that compute, without duplicates.
pub(super) fn computing(plans: &[Plan]) -> impl Iterator<Item = &Plan> {
    let mut seen = HashSet::new();
    plans
        .iter()
        .filter(|plan| !is_constant(plan))
        .filter(move |plan| seen.insert(&plan.name))
}
