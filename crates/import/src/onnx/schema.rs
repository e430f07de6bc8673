//! ONNX messages as typed structs; fields that kvark does not use are omitted.

use std::collections::BTreeMap;

use base::Bytes;

use super::proto::{Field, Message};

/// Why a message is malformed.
type Reason = String;

#[derive(Clone, Debug, Default)]
pub(super) struct ModelProto {
    pub(super) ir_version: i64,
    pub(super) producer_name: String,
    pub(super) producer_version: String,
    pub(super) domain: String,
    pub(super) model_version: i64,
    pub(super) doc_string: String,
    pub(super) opsets: BTreeMap<String, i64>,
    pub(super) graph: Option<GraphProto>,
    pub(super) functions: Vec<FunctionProto>,
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct GraphProto {
    pub(super) name: String,
    pub(super) doc_string: String,
    pub(super) nodes: Vec<NodeProto>,
    pub(super) initializers: Vec<TensorProto>,
    pub(super) inputs: Vec<ValueInfo>,
    pub(super) outputs: Vec<ValueInfo>,
    pub(super) has_sparse: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct NodeProto {
    pub(super) name: String,
    pub(super) op_type: String,
    pub(super) domain: String,
    pub(super) overload: String,
    /// An empty name stands for an omitted operand.
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    pub(super) attributes: Vec<Attribute>,
}

#[derive(Clone, Debug)]
pub(super) struct Attribute {
    pub(super) name: String,
    pub(super) value: AttributeValue,
}

#[derive(Clone, Debug)]
pub(super) enum AttributeValue {
    Float(f32),
    Int(i64),
    Text(Bytes),
    Tensor(TensorProto),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Texts(Vec<Bytes>),
    /// A reference to an attribute of the enclosing function.
    Reference(String),
    /// The bytes of a graph, which is read when its node is.
    Graph(Bytes),
    /// Sparse tensors, types and lists of graphs and tensors.
    Other,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FunctionProto {
    pub(super) name: String,
    pub(super) domain: String,
    pub(super) overload: String,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    pub(super) defaults: Vec<Attribute>,
    pub(super) nodes: Vec<NodeProto>,
    pub(super) opsets: BTreeMap<String, i64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct TensorProto {
    pub(super) name: String,
    pub(super) dims: Vec<i64>,
    pub(super) data_type: i64,
    pub(super) raw: Option<Bytes>,
    pub(super) floats: Vec<f32>,
    pub(super) doubles: Vec<f64>,
    pub(super) ints: Vec<i64>,
    pub(super) has_text: bool,
    pub(super) segmented: bool,
    /// `external_data`, if the elements are in another file.
    pub(super) external: Option<BTreeMap<String, String>>,
}

/// A graph's input or output.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueInfo {
    pub(super) name: String,
    /// Code of the element type; `None` if this is not a tensor.
    pub(super) data_type: Option<i64>,
    /// `None` if the file does not state the rank.
    pub(super) dims: Option<Vec<DimProto>>,
}

/// A size of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DimProto {
    Number(i64),
    Symbol(String),
    Unknown,
}

/// Calls `read` for every field of a message; `read` ignores fields it does not use.
fn each(
    message: &mut Message,
    mut read: impl FnMut(Field) -> Result<(), Reason>,
) -> Result<(), Reason> {
    while let Some(field) = message.next()? {
        read(field)?;
    }
    Ok(())
}

impl ModelProto {
    pub(super) fn read(bytes: Bytes) -> Result<ModelProto, Reason> {
        let mut model = ModelProto::default();
        each(&mut Message::new(bytes), |field| {
            match field.number {
                1 => model.ir_version = field.int()?,
                2 => model.producer_name = field.text()?,
                3 => model.producer_version = field.text()?,
                4 => model.domain = field.text()?,
                5 => model.model_version = field.int()?,
                6 => model.doc_string = field.text()?,
                7 => model.graph = Some(GraphProto::read(field.message()?)?),
                8 => opset(field.message()?, &mut model.opsets)?,
                14 => entry(field.message()?, &mut model.metadata)?,
                25 => model.functions.push(FunctionProto::read(field.message()?)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(model)
    }
}

fn opset(mut message: Message, opsets: &mut BTreeMap<String, i64>) -> Result<(), Reason> {
    let (mut domain, mut version) = (String::new(), 0);
    each(&mut message, |field| {
        match field.number {
            1 => domain = field.text()?,
            2 => version = field.int()?,
            _ => {}
        }
        Ok(())
    })?;
    opsets.insert(domain, version);
    Ok(())
}

fn entry(mut message: Message, map: &mut BTreeMap<String, String>) -> Result<(), Reason> {
    let (mut key, mut value) = (String::new(), String::new());
    each(&mut message, |field| {
        match field.number {
            1 => key = field.text()?,
            2 => value = field.text()?,
            _ => {}
        }
        Ok(())
    })?;
    map.insert(key, value);
    Ok(())
}

impl GraphProto {
    /// Reads a graph that is an attribute.
    pub(super) fn parse(bytes: Bytes) -> Result<GraphProto, Reason> {
        GraphProto::read(Message::new(bytes))
    }

    fn read(mut message: Message) -> Result<GraphProto, Reason> {
        let mut graph = GraphProto::default();
        each(&mut message, |field| {
            match field.number {
                1 => graph.nodes.push(NodeProto::read(field.message()?)?),
                2 => graph.name = field.text()?,
                5 => {
                    let tensor = TensorProto::read(field.message()?)?;
                    graph.initializers.push(tensor);
                }
                10 => graph.doc_string = field.text()?,
                11 => graph.inputs.push(ValueInfo::read(field.message()?)?),
                12 => graph.outputs.push(ValueInfo::read(field.message()?)?),
                15 => graph.has_sparse = true,
                _ => {}
            }
            Ok(())
        })?;
        Ok(graph)
    }
}

impl NodeProto {
    fn read(mut message: Message) -> Result<NodeProto, Reason> {
        let mut node = NodeProto::default();
        each(&mut message, |field| {
            match field.number {
                1 => node.inputs.push(field.text()?),
                2 => node.outputs.push(field.text()?),
                3 => node.name = field.text()?,
                4 => node.op_type = field.text()?,
                5 => node.attributes.push(Attribute::read(field.message()?)?),
                7 => node.domain = field.text()?,
                8 => node.overload = field.text()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(node)
    }

    /// The op, prefixed by its domain unless that is the default domain.
    pub(super) fn op(&self) -> String {
        match &self.domain[..] {
            "" | "ai.onnx" => self.op_type.clone(),
            domain => format!("{domain}::{}", self.op_type),
        }
    }

    /// The node's name, or that of its first result if it has none.
    pub(super) fn label(&self) -> &str {
        let named = |text: &&str| !text.is_empty();
        let result = self.outputs.iter().map(|name| &name[..]).find(named);
        Some(&self.name[..])
            .filter(named)
            .or(result)
            .unwrap_or("without a name")
    }
}

impl Attribute {
    fn read(mut message: Message) -> Result<Attribute, Reason> {
        let mut name = String::new();
        let mut value = None;
        let (mut floats, mut ints, mut kind) = (vec![], vec![], 0);
        let (mut reference, mut texts) = (String::new(), vec![]);
        each(&mut message, |field| {
            match field.number {
                1 => name = field.text()?,
                2 => value = Some(AttributeValue::Float(field.float()?)),
                3 => value = Some(AttributeValue::Int(field.int()?)),
                4 => value = Some(AttributeValue::Text(field.bytes()?)),
                5 => {
                    let tensor = TensorProto::read(field.message()?)?;
                    value = Some(AttributeValue::Tensor(tensor));
                }
                7 => field.floats(&mut floats)?,
                8 => field.ints(&mut ints)?,
                6 => value = Some(AttributeValue::Graph(field.bytes()?)),
                9 => texts.push(field.bytes()?),
                10 | 11 | 14 | 15 | 22 | 23 => value = Some(AttributeValue::Other),
                20 => kind = field.int()?,
                21 => reference = field.text()?,
                _ => {}
            }
            Ok(())
        })?;
        // An empty list is not encoded; only the attribute type shows that it is a list.
        let value = match (value, kind) {
            _ if !reference.is_empty() => AttributeValue::Reference(reference),
            (_, 6) => AttributeValue::Floats(floats),
            (_, 7) => AttributeValue::Ints(ints),
            (_, 8) => AttributeValue::Texts(texts),
            (Some(value), _) => value,
            (None, _) if !ints.is_empty() => AttributeValue::Ints(ints),
            (None, _) if !floats.is_empty() => AttributeValue::Floats(floats),
            // Encoders may omit zeros and empty strings.
            (None, 1) => AttributeValue::Float(0.0),
            (None, 2) => AttributeValue::Int(0),
            (None, 3) => AttributeValue::Text(Bytes::from(&[][..])),
            (None, _) => AttributeValue::Other,
        };
        Ok(Attribute { name, value })
    }
}

impl FunctionProto {
    fn read(mut message: Message) -> Result<FunctionProto, Reason> {
        let mut function = FunctionProto::default();
        each(&mut message, |field| {
            match field.number {
                1 => function.name = field.text()?,
                4 => function.inputs.push(field.text()?),
                5 => function.outputs.push(field.text()?),
                7 => function.nodes.push(NodeProto::read(field.message()?)?),
                9 => opset(field.message()?, &mut function.opsets)?,
                10 => function.domain = field.text()?,
                11 => {
                    let attribute = Attribute::read(field.message()?)?;
                    function.defaults.push(attribute);
                }
                13 => function.overload = field.text()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(function)
    }
}

impl TensorProto {
    pub(super) fn read(mut message: Message) -> Result<TensorProto, Reason> {
        let mut tensor = TensorProto::default();
        let (mut external, mut location) = (BTreeMap::new(), 0);
        each(&mut message, |field| {
            match field.number {
                1 => field.ints(&mut tensor.dims)?,
                2 => tensor.data_type = field.int()?,
                3 => tensor.segmented = true,
                4 => field.floats(&mut tensor.floats)?,
                5 | 7 | 11 => field.ints(&mut tensor.ints)?,
                6 => tensor.has_text = true,
                8 => tensor.name = field.text()?,
                9 => tensor.raw = Some(field.bytes()?),
                10 => field.doubles(&mut tensor.doubles)?,
                13 => entry(field.message()?, &mut external)?,
                14 => location = field.int()?,
                _ => {}
            }
            Ok(())
        })?;
        tensor.external = (location == 1).then_some(external);
        Ok(tensor)
    }
}

impl ValueInfo {
    fn read(mut message: Message) -> Result<ValueInfo, Reason> {
        let mut info = ValueInfo::default();
        each(&mut message, |field| {
            match field.number {
                1 => info.name = field.text()?,
                2 => each(&mut field.message()?, |field| match field.number {
                    1 => info.read_tensor(field.message()?),
                    _ => Ok(()),
                })?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(info)
    }

    fn read_tensor(&mut self, mut message: Message) -> Result<(), Reason> {
        each(&mut message, |field| {
            match field.number {
                1 => self.data_type = Some(field.int()?),
                2 => {
                    let mut dims = vec![];
                    each(&mut field.message()?, |field| {
                        if field.number == 1 {
                            dims.push(DimProto::read(field.message()?)?);
                        }
                        Ok(())
                    })?;
                    self.dims = Some(dims);
                }
                _ => {}
            }
            Ok(())
        })
    }
}

impl DimProto {
    /// Some exporters write -1 or `?` for a size that they do not know.
    fn read(mut message: Message) -> Result<DimProto, Reason> {
        let mut dim = DimProto::Unknown;
        each(&mut message, |field| {
            match field.number {
                1 => match field.int()? {
                    -1 => {}
                    n => dim = DimProto::Number(n),
                },
                2 => match field.text()? {
                    name if matches!(name.trim(), "" | "?") => {}
                    name => dim = DimProto::Symbol(name),
                },
                _ => {}
            }
            Ok(())
        })?;
        Ok(dim)
    }
}
