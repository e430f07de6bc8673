//! A few ONNX messages as bytes.

/// A protobuf message under construction.
#[derive(Clone, Default)]
pub(crate) struct Message(pub(crate) Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(crate) fn int(mut self, field: u32, value: i64) -> Message {
        self.varint(u64::from(field) << 3);
        self.varint(value as u64);
        self
    }

    pub(crate) fn bytes(mut self, field: u32, bytes: &[u8]) -> Message {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    pub(crate) fn text(self, field: u32, text: &str) -> Message {
        self.bytes(field, text.as_bytes())
    }

    pub(crate) fn message(self, field: u32, message: &Message) -> Message {
        self.bytes(field, &message.0)
    }

    pub(crate) fn texts(self, field: u32, list: &[&str]) -> Message {
        list.iter()
            .fold(self, |message, text| message.text(field, text))
    }
}

pub(crate) const F32: i64 = 1;
pub(crate) const I64: i64 = 7;

/// A node.
pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let node = Message::default().texts(1, inputs).texts(2, outputs);
    node.text(4, op)
}

/// An attribute of one integer.
pub(crate) fn int_attribute(name: &str, value: i64) -> Message {
    let attribute = Message::default().text(1, name).int(3, value);
    attribute.int(20, 2)
}

/// A tensor with raw data.
pub(crate) fn tensor(name: &str, dims: &[i64], data_type: i64, raw: &[u8]) -> Message {
    let dims = dims
        .iter()
        .fold(Message::default(), |m, dim| m.int(1, *dim));
    dims.int(2, data_type).text(8, name).bytes(9, raw)
}

/// A tensor in another file.
pub(crate) fn external(name: &str, dims: &[i64], place: &[(&str, &str)]) -> Message {
    let dims = dims
        .iter()
        .fold(Message::default(), |m, dim| m.int(1, *dim));
    let tensor = dims.int(2, F32).text(8, name).int(14, 1);
    place.iter().fold(tensor, |tensor, (key, value)| {
        let entry = Message::default().text(1, key).text(2, value);
        tensor.message(13, &entry)
    })
}

/// An input or output; sizes are numbers or names.
pub(crate) fn port(name: &str, data_type: i64, dims: &[&str]) -> Message {
    let shape = dims.iter().fold(Message::default(), |shape, dim| {
        let dim = match dim.parse() {
            Ok(number) => Message::default().int(1, number),
            Err(_) => Message::default().text(2, dim),
        };
        shape.message(1, &dim)
    });
    let tensor = Message::default().int(1, data_type).message(2, &shape);
    let ty = Message::default().message(1, &tensor);
    Message::default().text(1, name).message(2, &ty)
}

/// A model of nodes, initialisers, inputs and outputs.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) nodes: Vec<Message>,
    pub(crate) tensors: Vec<Message>,
    pub(crate) inputs: Vec<Message>,
    pub(crate) outputs: Vec<Message>,
    pub(crate) functions: Vec<Message>,
}

impl Model {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let parts = [
            (1, &self.nodes),
            (5, &self.tensors),
            (11, &self.inputs),
            (12, &self.outputs),
        ];
        let mut graph = Message::default().text(2, "g");
        for (field, list) in parts {
            graph = list
                .iter()
                .fold(graph, |graph, part| graph.message(field, part));
        }
        let model = Message::default().int(1, 10).message(7, &graph);
        let model = model
            .message(8, &opset("", 21))
            .message(8, &opset("test", 1));
        let model = self
            .functions
            .iter()
            .fold(model, |model, f| model.message(25, f));
        model.0
    }
}

pub(crate) fn opset(domain: &str, version: i64) -> Message {
    Message::default().text(1, domain).int(2, version)
}
