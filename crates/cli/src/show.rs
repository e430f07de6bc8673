//! `kvark show`: what a model is, in a few lines.

use crate::args::ModelArgs;
use crate::{list, output};
use anyhow::{Context, Result};
use clap::Args;
use kvark::Model;
use kvark::catalogue::{self, CatalogueEntry};
use kvark::model::{ModelFile, OpenOptions};
use serde_json::{Value, json};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Show what a model is: size, context, template, licence, defaults
#[derive(Args)]
#[command(
    after_help = "Weights are not read. kvark inspect has all metadata and tensors, kvark plan the memory of a run.

Examples:
  kvark show
  kvark show qwen2.5-coder
  kvark show model.gguf --template
  kvark show smollm2 --json"
)]
pub(crate) struct Show {
    #[command(flatten)]
    model: ModelArgs,
    /// Print the chat template and nothing else
    #[arg(long, conflicts_with = "json")]
    template: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The facts of a model, in the order in which they are shown.
struct Facts {
    name: String,
    path: PathBuf,
    format: &'static str,
    architecture: String,
    parameters: Option<u64>,
    quantisation: Option<String>,
    bytes: Option<u64>,
    context: Option<usize>,
    vocabulary: usize,
    layers: usize,
    template: Option<String>,
    licence: Option<String>,
    /// Sampling options that apply if no flag sets them.
    defaults: Vec<(&'static str, String)>,
}

impl Show {
    pub(crate) fn execute(self) -> Result<()> {
        let facts = Facts::read(&self.model)?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        if self.template {
            let template = facts.template.context("the model has no chat template")?;
            writeln!(out, "{}", template.trim_end_matches('\n'))?;
        } else if self.json {
            writeln!(out, "{}", facts.json())?;
        } else {
            facts.print(&mut out)?;
        }
        Ok(out.flush()?)
    }
}

impl Facts {
    fn read(args: &ModelArgs) -> Result<Facts> {
        let path = args.path()?;
        let model = Model::open_with(&path, &OpenOptions::default())?;
        let artifact = model.artifact();
        let facts = model.facts();
        let (parameters, stated) = match &artifact.file {
            ModelFile::Gguf(file) => {
                let tensors = file.tensors.iter().map(|tensor| tensor.len() as u64);
                let licence = file.metadata.str("general.license").ok().flatten();
                (Some(tensors.sum()), licence.map(str::to_owned))
            }
            ModelFile::Safetensors { model, .. } => {
                let tensors = model.tensors.iter().map(|tensor| tensor.shape.iter());
                let elements = tensors.map(|sizes| sizes.product::<usize>() as u64);
                (Some(elements.sum()), None)
            }
            _ => (None, None),
        };
        let entry = catalogue_entry(&path);
        let sampling = model.default_sampling();
        Ok(Facts {
            name: args.name()?,
            format: artifact.file.format().name(),
            architecture: artifact.architecture.clone(),
            parameters,
            quantisation: list::facts(&path).0,
            bytes: path
                .metadata()
                .ok()
                .filter(|m| m.is_file())
                .map(|m| m.len()),
            context: facts.context_stated.then_some(facts.context_length),
            vocabulary: facts.vocab_size,
            layers: facts.caches.len(),
            template: model
                .chat_template()
                .ok()
                .map(|t| t.source_text().to_owned()),
            licence: stated.or_else(|| entry.map(|entry| entry.licence.to_owned())),
            defaults: vec![
                ("temp", sampling.temperature.to_string()),
                ("top-k", sampling.top_k.to_string()),
                ("top-p", sampling.top_p.to_string()),
                ("min-p", sampling.min_p.to_string()),
                ("repeat-penalty", sampling.repeat_penalty.to_string()),
            ],
            path,
        })
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "not stated".to_owned());
        let parameters = self.parameters.map(|n| format!("{:.1} M", n as f64 / 1e6));
        let size = self.bytes.map(output::bytes);
        let weights = [self.quantisation.clone(), size].into_iter().flatten();
        let weights = weights.collect::<Vec<_>>().join(", ");
        let template = match &self.template {
            Some(template) => format!("{} characters (--template prints it)", template.len()),
            None => "none: it completes text, and chats with --chat-template only".to_owned(),
        };
        let defaults = self
            .defaults
            .iter()
            .map(|(name, value)| format!("--{name} {value}"));
        let rows = [
            ("architecture", self.architecture.clone()),
            ("parameters", or_none(parameters)),
            ("weights", weights),
            ("context", or_none(self.context.map(output::tokens))),
            ("vocabulary", output::tokens(self.vocabulary)),
            ("layers", self.layers.to_string()),
            ("chat template", template),
            ("licence", or_none(self.licence.clone())),
            ("defaults", defaults.collect::<Vec<_>>().join(" ")),
            ("file", format!("{} ({})", self.path.display(), self.format)),
        ];
        writeln!(out, "{}", self.name)?;
        for (name, value) in rows {
            writeln!(out, "  {name:<14}  {value}")?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let defaults = self.defaults.iter();
        let number = |text: &str| text.parse::<f64>().map_or(Value::Null, Value::from);
        let defaults: serde_json::Map<String, Value> = defaults
            .map(|(name, value)| (name.replace('-', "_"), number(value)))
            .collect();
        json!({
            "name": self.name,
            "path": self.path,
            "format": self.format,
            "architecture": self.architecture,
            "parameters": self.parameters,
            "quantisation": self.quantisation,
            "bytes": self.bytes,
            "context": self.context,
            "vocabulary": self.vocabulary,
            "layers": self.layers,
            "chat_template": self.template,
            "licence": self.licence,
            "defaults": defaults,
        })
    }
}

/// The entry of the catalogue whose file this is.
fn catalogue_entry(path: &Path) -> Option<&'static CatalogueEntry> {
    let home = catalogue::ModelStore::from_env().ok()?;
    let same = |entry: &&CatalogueEntry| home.model_path(entry) == path;
    catalogue::MODELS.iter().find(same)
}
