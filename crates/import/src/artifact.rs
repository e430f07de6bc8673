//! An imported model of any format: graphs, facts and the parsed file.

use std::collections::BTreeMap;
use std::path::Path;

use base::Bytes;
use graph::{Graph, Value};

use crate::by_shape::ShapedMethod;
use crate::error::{ImportError, ImportErrorDetail};
use crate::genai::{self, GenAi, SearchOptions, SidecarFiles};
use crate::gguf::{self, Gguf};
use crate::lowered::{DraftHead, FeatureLayers, ImportOptions, LoweredModel, Method};
use crate::model_description::ModelDescription;
use crate::model_facts::ModelFacts;
use crate::onnx::{self, Onnx};
use crate::pt2::{self, Pt2};
use crate::pte::{self, Pte};
use crate::safetensors::{self, Safetensors};
use crate::stages::{Cut, InputType, Stage, StageInputs};
use crate::stored_type::StoredType;

/// An imported model.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The name the file gives the model.
    pub name: Option<String>,
    /// The architecture, as the file calls it.
    pub architecture: String,
    /// Entry points.
    pub methods: Vec<Method>,
    /// Entry points whose graphs are made for the shapes of a run's inputs; none unless the options accept them.
    pub shaped: Vec<ShapedMethod>,
    /// Facts that caches and runners need.
    pub facts: ModelFacts,
    /// Set if the model is a draft head, which works on the features of another model.
    pub draft_head: Option<DraftHead>,
    /// The file itself, for its metadata, tokenizer and tensor list.
    pub file: ModelFile,
}

/// A parsed model file.
#[derive(Clone, Debug)]
pub enum ModelFile {
    /// A GGUF file.
    Gguf(Gguf),
    /// A `.pt2` archive.
    Pt2(Pt2),
    /// An ExecuTorch program. Its tokenizer is in a sidecar file.
    Pte {
        /// The program.
        program: Pte,
        /// Sidecar files.
        sidecars: Box<SidecarFiles>,
    },
    /// An ONNX model. Its tokenizer and configuration are in sidecar files.
    Onnx {
        /// The model file.
        model: Onnx,
        /// Sidecar files.
        sidecars: Box<SidecarFiles>,
    },
    /// A safetensors file, or several of one index, with their configuration: a folder of Hugging Face, or a draft head.
    Safetensors {
        /// The tensors and the configuration.
        model: Safetensors,
        /// Sidecar files.
        sidecars: Box<SidecarFiles>,
    },
}

impl ModelFile {
    /// The file's format.
    pub fn format(&self) -> Format {
        match self {
            ModelFile::Gguf(_) => Format::Gguf,
            ModelFile::Pt2(_) => Format::Pt2,
            ModelFile::Pte { .. } => Format::Pte,
            ModelFile::Onnx { .. } => Format::Onnx,
            ModelFile::Safetensors { .. } => Format::Safetensors,
        }
    }
}

/// A format of model files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// llama.cpp's single-file format.
    Gguf,
    /// PyTorch's exported programs.
    Pt2,
    /// ExecuTorch's programs.
    Pte,
    /// The Open Neural Network Exchange.
    Onnx,
    /// Hugging Face's files of named tensors.
    Safetensors,
}

impl Format {
    /// The name used in messages and by `inspect`.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Gguf => "gguf",
            Format::Pt2 => "pt2",
            Format::Pte => "pte",
            Format::Onnx => "onnx",
            Format::Safetensors => "safetensors",
        }
    }
}

impl Artifact {
    /// Lowers a parsed file.
    pub fn from_file(file: ModelFile, options: &ImportOptions) -> Result<Artifact, ImportError> {
        let is_gguf = matches!(file, ModelFile::Gguf(_));
        if options.mtp_head && !is_gguf {
            let format = file.format().name();
            let what = format!("an MTP head in a file of the format {format}");
            return Err(ImportError::unsupported(what));
        }
        // Only GGUF files carry MTP heads.
        let without = ImportOptions {
            feature_layers: FeatureLayers::None,
            ..options.clone()
        };
        let options = match options.feature_layers {
            FeatureLayers::Mtp if !is_gguf => &without,
            _ => options,
        };
        let LoweredModel {
            name,
            architecture,
            methods,
            shaped,
            facts,
            draft_head,
        } = match &file {
            ModelFile::Pte { .. } | ModelFile::Onnx { .. }
                if !options.feature_layers.is_empty() =>
            {
                let format = file.format().name();
                let what = format!("a draft head for a model in the format {format}");
                return Err(ImportError::unsupported(what));
            }
            ModelFile::Gguf(file) => gguf::lower(file, options)?,
            ModelFile::Pt2(file) => pt2::lower(file, options)?,
            ModelFile::Pte { program, .. } => pte::lower(program, options)?,
            ModelFile::Onnx { model, sidecars } => {
                onnx::lower(model, sidecars.genai.as_ref(), options)?
            }
            ModelFile::Safetensors { model, .. } => safetensors::lower(model, options)?,
        };
        Ok(Artifact {
            name,
            architecture,
            methods,
            shaped,
            facts,
            draft_head,
            file,
        })
    }

    /// The method with this name.
    pub fn method(&self, name: &str) -> Option<&Method> {
        self.methods.iter().find(|method| method.name == name)
    }

    /// The element types that the file declares for the inputs and outputs of a method, by name (ONNX and `.pt2`).
    pub fn declared_types(&self, method: &str) -> BTreeMap<String, StoredType> {
        match &self.file {
            ModelFile::Onnx { model, .. } => {
                let ports = model.inputs.iter().chain(&model.outputs);
                let declared = ports.filter_map(|port| Some((port.name.clone(), port.declared()?)));
                declared.collect()
            }
            ModelFile::Pt2(file) => {
                let program = file.programs.iter().find(|program| program.name == method);
                program.map_or_else(BTreeMap::new, |program| program.declared_types())
            }
            _ => BTreeMap::new(),
        }
    }

    /// Name, producer and other metadata of the model.
    pub fn description(&self) -> ModelDescription {
        match &self.file {
            ModelFile::Onnx { model, .. } => model.description.clone(),
            _ => ModelDescription {
                graph_name: self.name.clone().unwrap_or_default(),
                ..ModelDescription::default()
            },
        }
    }

    /// Lowers a method of [`shaped`](Artifact::shaped) for inputs of these shapes. The graph has no symbols; its inputs and outputs have
    /// the names of the method's. Inputs in `fixed` become constants, and are no inputs of the graph (ONNX only).
    ///
    /// # Errors
    /// If the shapes are not those of the inputs, or a node cannot be lowered; the message names both.
    pub fn specialise(
        &self,
        method: &ShapedMethod,
        shapes: &[&[usize]],
        fixed: &BTreeMap<String, Value>,
    ) -> Result<Graph, ImportError> {
        method.check(shapes, fixed)?;
        let graph = match &self.file {
            ModelFile::Onnx { model, .. } => onnx::specialise(model, shapes, fixed),
            file if !fixed.is_empty() => {
                let what = format!("a {} file with fixed inputs", file.format().name());
                Err(ImportError::unsupported(what))
            }
            ModelFile::Pt2(file) => pt2::specialise(file, &method.name, shapes),
            ModelFile::Pte { program, .. } => pte::specialise(program, &method.name, shapes),
            ModelFile::Gguf(_) | ModelFile::Safetensors { .. } => {
                let what = format!(
                    "a {} file lowered for given shapes",
                    self.file.format().name()
                );
                Err(ImportError::unsupported(what))
            }
        };
        graph.map_err(|error| error.at_shapes(method.shown(shapes)))
    }

    /// Lowers the first stage of a method of [`shaped`](Artifact::shaped) for inputs of these shapes (ONNX only).
    ///
    /// # Errors
    /// If the shapes are not those of the inputs, or a node cannot be lowered; the message names both.
    pub fn first_stage(
        &self,
        method: &ShapedMethod,
        shapes: &[&[usize]],
    ) -> Result<Stage, ImportError> {
        method.check(shapes, &BTreeMap::new())?;
        let inputs = method.inputs.iter().zip(shapes);
        let inputs = inputs.map(|(input, shape)| InputType {
            dtype: input.dtype,
            shape: shape.to_vec(),
            known: None,
            counted: None,
        });
        let inputs: Vec<InputType> = inputs.collect();
        let stage = self.stage(None, &inputs);
        stage.map_err(|error| error.at_shapes(method.shown(shapes)))
    }

    /// Lowers the stage after a cut, for the inputs that [`Cut::resume`] gives.
    ///
    /// # Errors
    /// If a node cannot be lowered.
    pub fn next_stage(&self, cut: &Cut, inputs: &StageInputs) -> Result<Stage, ImportError> {
        self.stage(Some(cut), &inputs.types())
    }

    fn stage(&self, from: Option<&Cut>, inputs: &[InputType]) -> Result<Stage, ImportError> {
        match &self.file {
            ModelFile::Onnx { model, .. } => onnx::stage(model, from.map(|cut| &cut.start), inputs),
            file => {
                let what = format!("a {} file in stages", file.format().name());
                Err(ImportError::unsupported(what))
            }
        }
    }

    /// Lowers all methods of [`shaped`](Artifact::shaped) for inputs with these dynamic sizes; they are then in
    /// [`methods`](Artifact::methods).
    ///
    /// # Errors
    /// `Value` if none of them has a size of such a name, or one is missing.
    pub fn set_sizes(&mut self, sizes: &[(String, usize)]) -> Result<(), ImportError> {
        let known = |name: &str| {
            let mut methods = self.shaped.iter();
            methods.any(|method| method.dynamic_sizes().contains(&name))
        };
        if let Some((name, _)) = sizes.iter().find(|(name, _)| !known(name)) {
            let names = self.shaped.iter().flat_map(ShapedMethod::dynamic_sizes);
            let names: Vec<&str> = names.collect();
            let reason = match &names[..] {
                [] => "is no size for which a graph is made".to_owned(),
                names => format!("does not exist; the dynamic sizes are {}", names.join(", ")),
            };
            return Err(ImportError::value(format!("the size {name:?}"), reason));
        }
        let named = |name: &str| {
            let found = sizes.iter().rfind(|(own, _)| own == name);
            found.map(|(_, size)| *size)
        };
        let mut methods = vec![];
        for method in &self.shaped {
            let shapes = method.shapes(named)?;
            let shapes: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
            methods.push(Method {
                name: method.name.clone(),
                graph: self.specialise(method, &shapes, &BTreeMap::new())?,
            });
        }
        self.methods.extend(methods);
        self.shaped.clear();
        Ok(())
    }

    /// The default sampling options that files beside the model state.
    pub fn search(&self) -> Option<&SearchOptions> {
        match &self.file {
            ModelFile::Onnx { sidecars, .. } | ModelFile::Safetensors { sidecars, .. } => {
                sidecars.search.as_ref()
            }
            _ => None,
        }
    }

    /// The GenAI configuration next to the model file; only ONNX models have one.
    pub fn genai(&self) -> Option<&GenAi> {
        match &self.file {
            ModelFile::Onnx { sidecars, .. } => sidecars.genai.as_ref(),
            _ => None,
        }
    }
}

/// Imports the model at `path`, whatever its format.
pub fn open(path: &Path) -> Result<Artifact, ImportError> {
    open_with(path, &ImportOptions::default())
}

/// Imports the model at `path` with the given options.
///
/// The format is detected by the file's first bytes, or else by its extension; a folder stands for the model that its
/// `genai_config.json` names, or for its safetensors files.
pub fn open_with(path: &Path, options: &ImportOptions) -> Result<Artifact, ImportError> {
    let path = &genai::model_file(path)?;
    let import = || {
        let bytes = Bytes::map(path)?;
        let file = match detect_format(path, &bytes)? {
            Format::Gguf => ModelFile::Gguf(Gguf::parse_with_parts(bytes, path)?),
            Format::Pt2 => ModelFile::Pt2(Pt2::parse(&bytes)?),
            Format::Pte => ModelFile::Pte {
                program: Pte::parse(&bytes, Some(path))?,
                sidecars: Box::new(SidecarFiles::find(path)?),
            },
            Format::Onnx => {
                let sidecars = Box::new(SidecarFiles::find(path)?);
                let mut model = Onnx::parse(bytes, path.parent())?;
                if let Some(config) = &sidecars.genai {
                    model.set_head_size(config);
                }
                ModelFile::Onnx { model, sidecars }
            }
            Format::Safetensors => ModelFile::Safetensors {
                model: Safetensors::open(path)?,
                sidecars: Box::new(SidecarFiles::of_checkpoint(path)?),
            },
        };
        Artifact::from_file(file, options)
    };
    import().map_err(|error: ImportError| error.in_file(path))
}

/// Imports a model held in `bytes`, without sidecar files. Bytes that begin like no other format are read as ONNX.
pub fn open_bytes(bytes: Bytes, options: &ImportOptions) -> Result<Artifact, ImportError> {
    let file = match format_of_bytes(&bytes) {
        Some(Format::Gguf) => ModelFile::Gguf(Gguf::parse(bytes)?),
        Some(Format::Pt2) => ModelFile::Pt2(Pt2::parse(&bytes)?),
        Some(Format::Pte) => ModelFile::Pte {
            program: Pte::parse(&bytes, None)?,
            sidecars: Box::default(),
        },
        _ => ModelFile::Onnx {
            model: Onnx::parse(bytes, None)?,
            sidecars: Box::default(),
        },
    };
    Artifact::from_file(file, options)
}

/// The format of the file at `path`, by its first bytes or else by its extension.
pub fn format_of(path: &Path) -> Result<Format, ImportError> {
    let path = &genai::model_file(path)?;
    let find = || detect_format(path, &Bytes::map(path)?);
    find().map_err(|error: ImportError| error.in_file(path))
}

fn detect_format(path: &Path, bytes: &[u8]) -> Result<Format, ImportError> {
    let extension = path.extension().and_then(|e| e.to_str());
    let is = |format: Format| extension.is_some_and(|e| e.eq_ignore_ascii_case(format.name()));
    if let Some(format) = format_of_bytes(bytes) {
        return Ok(format);
    }
    if safetensors::index::is_index(path) {
        return Ok(Format::Safetensors);
    }
    let formats = [
        Format::Gguf,
        Format::Pt2,
        Format::Pte,
        Format::Onnx,
        Format::Safetensors,
    ];
    let named = formats.into_iter().find(|f| is(*f));
    let known = "gguf, pt2, pte, onnx, safetensors";
    named.ok_or_else(|| ImportErrorDetail::UnknownFormat { known }.into())
}

/// The format whose files begin like these bytes. ONNX and safetensors files have no magic.
fn format_of_bytes(bytes: &[u8]) -> Option<Format> {
    if bytes.starts_with(b"GGUF") {
        Some(Format::Gguf)
    } else if Pt2::is_zip(bytes) {
        Some(Format::Pt2)
    } else if Pte::is_program(bytes) {
        Some(Format::Pte)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ImportErrorKind as K;

    #[test]
    fn files_that_are_no_models_are_named() {
        let folder = std::env::temp_dir().join(format!("kvark-open-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let table = [
            ("notes.txt", &b"hello"[..], K::UnknownFormat),
            ("model.bin", b"", K::UnknownFormat),
            ("model.gguf", b"hello", K::Malformed),
            ("model.GGUF", b"", K::Malformed),
            ("weights", b"GGUF\x03", K::Malformed),
            ("model.pt2", b"", K::Malformed),
            ("archive", b"PK\x03\x04", K::Malformed),
        ];
        for (name, bytes, kind) in table {
            let path = folder.join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = open(&path).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
        let error = open(&folder.join("absent.gguf")).unwrap_err();
        assert_eq!(error.kind(), K::Io);
        assert_eq!(
            error.to_string().matches("absent.gguf").count(),
            1,
            "{error}"
        );
        assert_eq!(open(&folder).unwrap_err().kind(), K::Malformed);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
