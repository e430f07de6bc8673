//! `Contents`: the contents of a model file, in one form for all formats.

use super::SHOWN;
use anyhow::Result;
use kvark::model::genai::{self, GenAi, SidecarFiles};
use kvark::model::gguf::{Array, Gguf, GgufTensor, Value as Meta};
use kvark::model::onnx::{Onnx, Port};
use kvark::model::pt2::{Program, Pt2, Pt2Tensor};
use kvark::model::pte::{Plan, Pte, PteTensor};
use kvark::model::safetensors::{Safetensors, SafetensorsTensor};
use kvark::model::{Artifact, Format, ModelFile};
use serde_json::{Value, json};
use std::path::Path;

/// The contents of a model file.
pub(super) struct Contents {
    pub(super) format: Format,
    pub(super) version: String,
    pub(super) architecture: Option<String>,
    /// Key, full value, and value shortened for a line.
    pub(super) metadata: Vec<(String, Value, String)>,
    pub(super) tensors: Vec<TensorRow>,
    /// Exported programs.
    pub(super) programs: Vec<Exported>,
}

/// A tensor of the file.
pub(super) struct TensorRow {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: usize,
}

/// An exported program: its inputs, outputs and ops.
pub(super) struct Exported {
    pub(super) name: String,
    /// Inputs and outputs, if the file states them: name, type and sizes.
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    pub(super) ops: Vec<(String, usize)>,
    pub(super) unknown: Vec<(String, String)>,
}

impl Contents {
    /// Reads the contents of a file or folder, whether it could be imported or not.
    pub(super) fn read(path: &Path, artifact: Option<&Artifact>) -> Result<Contents> {
        let path = &genai::model_file(path)?;
        let mut contents = Contents::of_file(path, artifact)?;
        if contents.format == Format::Onnx
            && let Some(config) = SidecarFiles::find(path)?.genai
        {
            contents.add_configuration(&config);
        }
        Ok(contents)
    }

    fn of_file(path: &Path, artifact: Option<&Artifact>) -> Result<Contents> {
        if let Some(artifact) = artifact {
            return Ok(match &artifact.file {
                ModelFile::Gguf(file) => Contents::of_gguf(file),
                ModelFile::Pt2(file) => Contents::of_pt2(file),
                ModelFile::Pte { program, .. } => Contents::of_pte(program),
                ModelFile::Onnx { model, .. } => Contents::of_onnx(model),
                ModelFile::Safetensors { model, .. } => Contents::of_safetensors(model),
            });
        }
        Ok(match kvark::model::format_of(path)? {
            Format::Pt2 => Contents::of_pt2(&Pt2::open(path)?),
            Format::Pte => Contents::of_pte(&Pte::open(path)?),
            Format::Onnx => Contents::of_onnx(&Onnx::open(path)?),
            Format::Safetensors => Contents::of_safetensors(&Safetensors::open(path)?),
            _ => Contents::of_gguf(&Gguf::open(path)?),
        })
    }

    /// Adds what the configuration of a GenAI folder says.
    fn add_configuration(&mut self, config: &GenAi) {
        self.architecture = Some(config.model_type.clone());
        let search = &config.search;
        let ids = |ids: &[u32]| (!ids.is_empty()).then(|| json!(ids));
        // The decimal number that the file most likely has.
        let real = |x: Option<f32>| x.map(number);
        let settings = [
            (
                "model.context_length",
                config.context_length.map(Value::from),
            ),
            ("model.vocab_size", config.vocab_size.map(Value::from)),
            ("model.bos_token_id", config.bos.map(Value::from)),
            ("model.eos_token_id", ids(&config.eos)),
            ("model.pad_token_id", config.pad.map(Value::from)),
            ("model.decoder.head_size", config.head_size.map(Value::from)),
            ("search.do_sample", search.do_sample.map(Value::from)),
            ("search.temperature", real(search.temperature)),
            ("search.top_k", search.top_k.map(Value::from)),
            ("search.top_p", real(search.top_p)),
            ("search.repetition_penalty", real(search.repetition_penalty)),
            ("search.max_length", search.max_length.map(Value::from)),
        ];
        for (key, value) in settings {
            if let Some(value) = value {
                let shown = value.to_string();
                self.metadata.push((key.to_owned(), value, shown));
            }
        }
        if !config.not_honoured.is_empty() {
            let value = json!(config.not_honoured);
            let shown = config.not_honoured.join(", ");
            self.metadata
                .push(("not supported".to_owned(), value, shown));
        }
    }

    fn of_gguf(file: &Gguf) -> Contents {
        let architecture = file.metadata.str("general.architecture").ok().flatten();
        let row = |t: &GgufTensor| TensorRow {
            name: t.name.clone(),
            dtype: t.dtype.to_string(),
            shape: t.shape.clone(),
            bytes: t.data.len(),
        };
        let metadata = file.metadata.iter();
        Contents {
            format: Format::Gguf,
            version: file.version.to_string(),
            architecture: architecture.map(str::to_owned),
            metadata: metadata
                .map(|(key, value)| (key.to_owned(), json_of(value), short(value)))
                .collect(),
            tensors: file.tensors.iter().map(row).collect(),
            programs: vec![],
        }
    }

    fn of_pt2(file: &Pt2) -> Contents {
        let version = file.programs.first().map(|program| {
            let (major, minor) = program.schema_version;
            format!("{major}.{minor} (torch {})", program.torch_version)
        });
        let metadata = file.extra.metadata.iter().map(cache_metadata);
        let row = |stored: &Pt2Tensor| TensorRow {
            name: stored.name.clone(),
            dtype: stored.type_name().to_owned(),
            shape: stored.shape.clone(),
            bytes: stored.data.len(),
        };
        let stored = file.programs.iter().flat_map(|p| p.tensors.values());
        let mut tensors: Vec<TensorRow> = stored.map(row).collect();
        // Methods share weights.
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors.dedup_by(|a, b| (&a.name, &a.shape) == (&b.name, &b.shape));
        Contents {
            format: Format::Pt2,
            version: version.unwrap_or_default(),
            architecture: file.extra.architecture(),
            metadata: metadata.collect(),
            tensors,
            programs: file.programs.iter().map(exported).collect(),
        }
    }

    fn of_pte(file: &Pte) -> Contents {
        let row = |stored: &PteTensor| TensorRow {
            name: stored.name.clone().unwrap_or_default(),
            dtype: stored.type_name().to_owned(),
            shape: stored.sizes.clone(),
            bytes: stored.data.as_ref().map_or(0, |data| data.len()),
        };
        let mut tensors: Vec<TensorRow> = file.methods().flat_map(Plan::tensors).map(row).collect();
        // Methods share weights.
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors.dedup_by(|a, b| !a.name.is_empty() && (&a.name, &a.shape) == (&b.name, &b.shape));
        let program = |plan: &Plan| Exported {
            name: plan.name.clone(),
            inputs: vec![],
            outputs: vec![],
            ops: plan
                .ops()
                .into_iter()
                .map(|(op, n)| (op.to_owned(), n))
                .collect(),
            unknown: plan
                .unknown_ops()
                .into_iter()
                .map(|op| (op, plan.name.clone()))
                .collect(),
        };
        Contents {
            format: Format::Pte,
            version: format!("schema {}", file.version),
            architecture: None,
            metadata: file.metadata().iter().map(cache_metadata).collect(),
            tensors,
            programs: file.methods().map(program).collect(),
        }
    }

    fn of_onnx(file: &Onnx) -> Contents {
        let opsets = file.opsets.iter();
        let opsets = opsets.map(|(domain, version)| match &domain[..] {
            "" => format!("opset {version}"),
            domain => format!("{domain} {version}"),
        });
        let opsets: Vec<String> = opsets.collect();
        let mut metadata: Vec<(String, Value, String)> = vec![];
        if !file.producer.is_empty() {
            let producer = json!(file.producer);
            metadata.push(("producer".into(), producer.clone(), producer.to_string()));
        }
        let words = file.description.properties.iter();
        metadata.extend(
            words.map(|(key, value)| (key.clone(), json!(value), clip(format!("{value:?}")))),
        );
        let tensors = file.tensors.iter().map(|(name, stored)| TensorRow {
            name: name.clone(),
            dtype: stored.type_name().to_owned(),
            shape: stored.shape.clone(),
            bytes: stored.data.len(),
        });
        let port =
            |port: &Port| format!("{}: {}[{}]", port.name, port.dtype, port.shape.join(", "));
        let text = |(a, b): (&str, &str)| (a.to_owned(), b.to_owned());
        let ops = file.ops().into_iter();
        let program = Exported {
            name: "forward".into(),
            inputs: file.inputs.iter().map(port).collect(),
            outputs: file.outputs.iter().map(port).collect(),
            ops: ops.map(|(op, n)| (op.to_owned(), n)).collect(),
            unknown: file.unknown_ops().into_iter().map(text).collect(),
        };
        Contents {
            format: Format::Onnx,
            version: format!("IR {}, {}", file.ir_version, opsets.join(", ")),
            architecture: None,
            metadata,
            tensors: tensors.collect(),
            programs: vec![program],
        }
    }

    fn of_safetensors(file: &Safetensors) -> Contents {
        let row = |t: &SafetensorsTensor| TensorRow {
            name: t.name.clone(),
            dtype: t.dtype.to_string(),
            shape: t.shape.clone(),
            bytes: t.data.len(),
        };
        let texts = file.metadata.iter().map(|(key, text)| (key, json!(text)));
        let config = file.config.iter().map(|(key, value)| (key, value.clone()));
        let metadata = texts.chain(config);
        let architecture = file
            .config
            .get("architectures")
            .and_then(|list| list.get(0));
        Contents {
            format: Format::Safetensors,
            version: "with config.json".to_owned(),
            architecture: architecture.and_then(Value::as_str).map(str::to_owned),
            metadata: metadata
                .map(|(key, value)| (key.clone(), value.clone(), clip(value.to_string())))
                .collect(),
            tensors: file.tensors.iter().map(row).collect(),
            programs: vec![],
        }
    }

    /// Unsupported ops: program, op and the first node that uses it.
    pub(super) fn unknown_ops(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let programs = self.programs.iter();
        programs.flat_map(|p| {
            p.unknown
                .iter()
                .map(|(op, node)| (&p.name[..], &op[..], &node[..]))
        })
    }

    pub(super) fn parameters(&self) -> usize {
        self.tensors
            .iter()
            .map(|t| t.shape.iter().product::<usize>())
            .sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes as u64).sum()
    }
}

/// Key, value and shortened value of cache metadata.
fn cache_metadata(
    (key, value): (&String, &kvark::cache::MetadataValue),
) -> (String, Value, String) {
    let json = match value {
        kvark::cache::MetadataValue::Int(n) => json!(n),
        kvark::cache::MetadataValue::Ints(list) => json!(list),
    };
    (key.clone(), json.clone(), clip(json.to_string()))
}

fn exported(program: &Program) -> Exported {
    let text = |(a, b): (&str, &str)| (a.to_owned(), b.to_owned());
    Exported {
        name: program.name.clone(),
        inputs: vec![],
        outputs: vec![],
        ops: program
            .ops()
            .into_iter()
            .map(|(op, n)| (op.to_owned(), n))
            .collect(),
        unknown: program.unknown_ops().into_iter().map(text).collect(),
    }
}

/// The decimal number that an `f32` was most likely written as; `null` when it is not finite.
fn number(x: f32) -> Value {
    x.to_string()
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}

/// A full metadata value.
fn json_of(value: &Meta) -> Value {
    match value {
        Meta::F32(x) => number(*x),
        Meta::F64(x) => json!(x),
        Meta::Bool(x) => json!(x),
        Meta::String(x) => json!(x),
        Meta::Array(array) => elements(array, usize::MAX).into(),
        Meta::U64(x) => json!(x),
        integer => json!(integer.as_integer().and_then(|i| i64::try_from(i).ok())),
    }
}

/// The first `most` elements.
fn elements(array: &Array, most: usize) -> Vec<Value> {
    macro_rules! list {
        ($v:expr) => {
            $v.iter().take(most).map(|x| json!(x)).collect()
        };
    }
    match array {
        Array::U8(v) => list!(v),
        Array::I8(v) => list!(v),
        Array::U16(v) => list!(v),
        Array::I16(v) => list!(v),
        Array::U32(v) => list!(v),
        Array::I32(v) => list!(v),
        Array::U64(v) => list!(v),
        Array::I64(v) => list!(v),
        Array::F32(v) => v.iter().take(most).map(|x| number(*x)).collect(),
        Array::F64(v) => list!(v),
        Array::Bool(v) => list!(v),
        Array::String(v) => list!(v),
    }
}

/// A metadata value shortened for a line.
fn short(value: &Meta) -> String {
    let most_elements = SHOWN.0;
    match value {
        Meta::String(text) => clip(format!("{text:?}")),
        Meta::Array(array) => {
            let shown = elements(array, most_elements);
            let shown: Vec<String> = shown.iter().map(|v| clip(v.to_string())).collect();
            let more = if array.len() > most_elements {
                ", ..."
            } else {
                ""
            };
            let (len, kind) = (array.len(), array.type_name());
            format!("[{}{more}] ({len} of {kind})", shown.join(", "))
        }
        other => json_of(other).to_string(),
    }
}

/// A text shortened for a line.
fn clip(text: String) -> String {
    match text.char_indices().nth(SHOWN.1) {
        Some((end, _)) => format!("{}... ({} characters)", &text[..end], text.chars().count()),
        None => text,
    }
}
