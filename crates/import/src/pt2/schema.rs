//! The structure of `models/*.json` (schema 8), with PyTorch's names; fields that kvark does not use are omitted.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Deserializer};

/// An exported program.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ExportedProgram {
    pub(crate) graph_module: GraphModule,
    #[serde(default)]
    pub(crate) range_constraints: BTreeMap<String, RangeConstraint>,
    pub(crate) schema_version: SchemaVersion,
    #[serde(default)]
    pub(crate) torch_version: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct SchemaVersion {
    pub(crate) major: u64,
    pub(crate) minor: u64,
}

/// Bounds of a dynamic size; `None` means unbounded.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct RangeConstraint {
    pub(crate) min_val: Option<i64>,
    pub(crate) max_val: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct GraphModule {
    pub(crate) graph: Graph,
    pub(crate) signature: Signature,
}

/// Nodes in execution order, and the metadata of every value.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Graph {
    /// Inputs; for a subgraph, the values that stand for the node's arguments.
    #[serde(default)]
    pub(crate) inputs: Vec<Argument>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) outputs: Vec<Argument>,
    pub(crate) tensor_values: HashMap<String, TensorMeta>,
    #[serde(default)]
    pub(crate) sym_int_values: HashMap<String, SymInt>,
}

/// A call of an op.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) target: String,
    pub(crate) inputs: Vec<NamedArgument>,
    pub(crate) outputs: Vec<Argument>,
    #[serde(default)]
    name: Option<String>,
}

impl Node {
    pub(crate) fn new(target: String, inputs: Vec<NamedArgument>, outputs: Vec<Argument>) -> Node {
        Node {
            target,
            inputs,
            outputs,
            name: None,
        }
    }

    /// A node that gives a value a second name.
    pub(crate) fn alias(value: Argument, result: Argument) -> Node {
        let argument = NamedArgument {
            name: "self".into(),
            arg: value,
        };
        Node {
            target: "torch.ops.aten.alias.default".into(),
            inputs: vec![argument],
            outputs: vec![result],
            name: None,
        }
    }

    /// The op's name without `torch.ops.`.
    pub(crate) fn op(&self) -> &str {
        self.target
            .strip_prefix("torch.ops.")
            .unwrap_or(&self.target)
    }

    /// The node's name, or that of its first result if it has none.
    pub(crate) fn name(&self) -> &str {
        let first = || self.outputs.iter().flat_map(Argument::names).next();
        self.name.as_deref().or_else(first).unwrap_or(&self.target)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NamedArgument {
    pub(crate) name: String,
    pub(crate) arg: Argument,
}

/// An argument or result of a node.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(
    clippy::enum_variant_names,
    reason = "the names are those of the schema"
)]
pub(crate) enum Argument {
    AsNone(serde::de::IgnoredAny),
    AsTensor(Named),
    AsTensors(Vec<Named>),
    AsOptionalTensor(OptionalTensor),
    AsOptionalTensors(Vec<OptionalTensor>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsString(String),
    AsSymInt(SymIntArgument),
    AsSymInts(Vec<SymIntArgument>),
    AsBool(bool),
    AsGraph(GraphArgument),
    AsScalarType(ScalarType),
    // Devices, layouts and memory formats change no value. Other kinds are rejected by the rules that read them.
    AsStrings(serde::de::IgnoredAny),
    AsMemoryFormat(serde::de::IgnoredAny),
    AsLayout(serde::de::IgnoredAny),
    AsDevice(serde::de::IgnoredAny),
    AsBools(serde::de::IgnoredAny),
    AsSymBool(serde::de::IgnoredAny),
    AsSymBools(serde::de::IgnoredAny),
    AsCustomObj(serde::de::IgnoredAny),
    AsOperator(serde::de::IgnoredAny),
    AsSymFloat(serde::de::IgnoredAny),
    AsSymFloats(serde::de::IgnoredAny),
    AsComplex(serde::de::IgnoredAny),
    AsNestedTensors(serde::de::IgnoredAny),
    AsIntLists(serde::de::IgnoredAny),
    AsStringToArgument(serde::de::IgnoredAny),
    AsFloatLists(serde::de::IgnoredAny),
}

impl Argument {
    /// Mutable references to the names of its values.
    pub(crate) fn names_mut(&mut self) -> Vec<&mut String> {
        match self {
            Argument::AsTensor(t) => vec![&mut t.name],
            Argument::AsTensors(list) => list.iter_mut().map(|t| &mut t.name).collect(),
            Argument::AsOptionalTensor(OptionalTensor::AsTensor(t)) => vec![&mut t.name],
            Argument::AsOptionalTensors(list) => list
                .iter_mut()
                .filter_map(|tensor| match tensor {
                    OptionalTensor::AsTensor(tensor) => Some(&mut tensor.name),
                    OptionalTensor::AsNone(_) => None,
                })
                .collect(),
            Argument::AsSymInt(SymIntArgument::AsName(name)) => vec![name],
            Argument::AsSymInts(list) => list
                .iter_mut()
                .filter_map(|size| match size {
                    SymIntArgument::AsName(name) => Some(name),
                    SymIntArgument::AsInt(_) => None,
                })
                .collect(),
            _ => vec![],
        }
    }

    /// The names of its values.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Argument::AsTensor(t) => vec![&t.name],
            Argument::AsTensors(list) => list.iter().map(|t| &t.name[..]).collect(),
            Argument::AsOptionalTensor(OptionalTensor::AsTensor(t)) => vec![&t.name],
            Argument::AsOptionalTensors(list) => {
                list.iter().filter_map(OptionalTensor::name).collect()
            }
            Argument::AsSymInt(SymIntArgument::AsName(name)) => vec![name],
            Argument::AsSymInts(list) => list.iter().filter_map(SymIntArgument::name).collect(),
            _ => vec![],
        }
    }
}

/// A subgraph of a node.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct GraphArgument {
    pub(crate) graph: Graph,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Named {
    pub(crate) name: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OptionalTensor {
    AsTensor(Named),
    AsNone(serde::de::IgnoredAny),
}

impl OptionalTensor {
    fn name(&self) -> Option<&str> {
        match self {
            OptionalTensor::AsTensor(tensor) => Some(&tensor.name),
            OptionalTensor::AsNone(_) => None,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymIntArgument {
    AsName(String),
    AsInt(i64),
}

impl SymIntArgument {
    fn name(&self) -> Option<&str> {
        match self {
            SymIntArgument::AsName(name) => Some(name),
            SymIntArgument::AsInt(_) => None,
        }
    }
}

/// A number, or an expression of dynamic sizes in sympy's notation.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymInt {
    AsInt(i64),
    AsExpr(SymExpr),
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SymExpr {
    pub(crate) expr_str: String,
}

/// A float. JSON has no infinities, so they are strings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Float(pub(crate) f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Float, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Spelling {
            Number(f64),
            Text(String),
        }
        Ok(Float(match Spelling::deserialize(from)? {
            Spelling::Number(number) => number,
            Spelling::Text(text) => match &text[..] {
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                "NaN" => f64::NAN,
                _ => return Err(serde::de::Error::custom("a string that is not a number")),
            },
        }))
    }
}

/// PyTorch's code of an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ScalarType(pub(crate) u32);

/// Element type, sizes and strides of a tensor.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct TensorMeta {
    pub(crate) dtype: ScalarType,
    pub(crate) sizes: Vec<SymInt>,
    pub(crate) strides: Vec<SymInt>,
    pub(crate) storage_offset: SymInt,
    pub(crate) layout: u32,
}

/// PyTorch's code for dense tensors with strides.
pub(crate) const STRIDED: u32 = 7;

/// Roles of the graph's inputs (weights or arguments) and outputs.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Signature {
    pub(crate) input_specs: Vec<InputSpec>,
    pub(crate) output_specs: Vec<OutputSpec>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputSpec {
    UserInput {
        arg: Argument,
    },
    Parameter {
        arg: Named,
        parameter_name: String,
    },
    Buffer {
        arg: Named,
        buffer_name: String,
    },
    TensorConstant {
        arg: Named,
        tensor_constant_name: String,
    },
    ConstantInput(serde::de::IgnoredAny),
    CustomObj(serde::de::IgnoredAny),
    Token(serde::de::IgnoredAny),
}

impl InputSpec {
    /// The tensor of a weight, buffer or constant, and its name in the module; `None` for other inputs.
    pub(crate) fn weight(&self) -> Option<(&Named, &str)> {
        match self {
            InputSpec::Parameter {
                arg,
                parameter_name: name,
            }
            | InputSpec::Buffer {
                arg,
                buffer_name: name,
            }
            | InputSpec::TensorConstant {
                arg,
                tensor_constant_name: name,
            } => Some((arg, name)),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputSpec {
    UserOutput(serde::de::IgnoredAny),
    LossOutput(serde::de::IgnoredAny),
    BufferMutation { buffer_name: String },
    ParameterMutation { parameter_name: String },
    UserInputMutation { user_input_name: String },
    GradientToParameter(serde::de::IgnoredAny),
    GradientToUserInput(serde::de::IgnoredAny),
    Token(serde::de::IgnoredAny),
}

impl OutputSpec {
    /// The name in the module of the weight or buffer whose new elements the output has.
    pub(crate) fn written_weight(&self) -> Option<&str> {
        match self {
            OutputSpec::BufferMutation { buffer_name: name }
            | OutputSpec::ParameterMutation {
                parameter_name: name,
            } => Some(name),
            _ => None,
        }
    }
}

/// `model_weights_config.json` and `model_constants_config.json`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PayloadConfig {
    pub(crate) config: BTreeMap<String, Payload>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Payload {
    pub(crate) path_name: String,
    #[serde(default)]
    pub(crate) use_pickle: bool,
    pub(crate) tensor_meta: Option<TensorMeta>,
}
