//! `kvark plan`: the memory plan of a run.

mod compare;
mod map;
mod picture;
mod report;
mod room;
pub(crate) mod scene;
pub(crate) mod svg;

use crate::args::{self, ModelArgs};
use crate::device::{DeviceArgs, HostExpertArgs};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use kvark::RunnerOptions;
use kvark::backend::CompileOptions;
use kvark::cache::{KvPolicy, KvStorage};
use kvark::memory::{CacheKind, MemoryLimit, MemoryPlan, PlannedModel};
use kvark::model::{Blueprint, FeatureLayers, ModelFacts, OpenOptions};
use kvark::speculative::{DraftSource, Drafter};
use room::Room;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Show the memory that a run needs
#[derive(Args)]
#[command(
    after_help = "MODEL may also be a Hugging Face config.json. Weights are not read. The last line says whether the run fits: into the \
free memory, or into what a cgroup or ulimit -v leaves. Several contexts or types make a table.

Examples:
  kvark plan
  kvark plan model.gguf -c 32768 --cache-type-k q8 --cache-type-v q8
  kvark plan config.json -c 1024,8192,131072 --compare f32,f16,q8,q4
  kvark plan model.gguf --model-draft smollm2
  kvark plan model.gguf --map
  kvark plan detector.onnx --dim height=640 --dim width=640
  kvark plan model.gguf --svg plan.svg"
)]
pub(crate) struct Plan {
    #[command(flatten)]
    model: ModelArgs,
    /// Context length in tokens, or several to compare [default: the length the model was trained for]
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = args::context_size)]
    ctx_size: Vec<u32>,
    /// Storage types of keys and values to compare
    #[arg(long, value_name = "TYPES", value_delimiter = ',', hide_possible_values = true, value_parser = args::storage_names())]
    compare: Vec<KvStorage>,
    /// Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h
    #[arg(long, value_name = "TYPE", default_value = "f16", hide_possible_values = true, value_parser = args::storage_names())]
    cache_type_k: KvStorage,
    /// Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h
    #[arg(long, value_name = "TYPE", default_value = "f16", hide_possible_values = true, value_parser = args::storage_names())]
    cache_type_v: KvStorage,
    /// How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as
    /// "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them
    #[arg(long, value_name = "POLICY", value_parser = args::kv_policy)]
    kv_policy: Option<KvPolicy>,
    /// Kind of cache: one sequence, cells shared by --parallel sequences, or a tree of candidates
    #[arg(long, value_name = "KIND", default_value = "sequence")]
    kind: Kind,
    /// Sequences that share a cache of cells
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    parallel: u32,
    /// Maximum number of tokens in one step of prompt processing
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Number of threads, at most one per core [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    host_experts: HostExpertArgs,
    /// Path, name or reference of a draft model, planned with the same options; mtp is the head that the model itself carries
    #[arg(long, visible_alias = "md", value_name = "MODEL")]
    model_draft: Option<String>,
    /// Most memory that snapshots of recurrent layers' states may take, such as 64M; a model of attention alone has none
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = args::byte_size)]
    state_budget: u64,
    /// Storage type of recurrent layers' states: f32 or f16
    #[arg(long, value_name = "TYPE", default_value = "f32", hide_possible_values = true, value_parser = args::state_storage_names())]
    state_type: KvStorage,
    /// Most memory for the experts of a mixture of experts, such as 2G [default: all, or as many as fit]
    #[arg(long, value_name = "SIZE", value_parser = args::byte_size)]
    expert_budget: Option<u64>,
    /// Fail if the plan needs more memory than SIZE, such as 800M or 2G
    #[arg(long, value_name = "SIZE", value_parser = args::byte_size)]
    mem_limit: Option<u64>,
    /// Print every buffer with its arena offset
    #[arg(long)]
    map: bool,
    /// Dynamic size of the inputs, for a model whose graph is made for the shapes of each run's inputs
    #[arg(long = "dim", value_name = "NAME=N", value_parser = crate::exec::dim)]
    dims: Vec<(String, usize)>,
    /// Draw the plan as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "map")]
    json: bool,
}

/// A kind of cache.
#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Sequence,
    Cells,
    Tree,
}

/// A model to plan, from a file or a configuration.
struct Subject {
    name: String,
    source: Source,
}

enum Source {
    File(Box<kvark::model::Artifact>),
    Config(Box<Blueprint>),
}

impl Subject {
    /// The MTP head that a model's file carries.
    fn mtp_head(&self) -> Result<Subject> {
        let Source::File(model) = &self.source else {
            bail!("a configuration carries no MTP head");
        };
        let head = kvark::model::mtp_head(model)?;
        Ok(Subject {
            name: format!("the MTP head of {}", self.name),
            source: Source::File(Box::new(head)),
        })
    }

    /// The features of its target that the model needs, as a draft.
    fn wanted_features(&self) -> FeatureLayers {
        let layers = match &self.source {
            Source::File(draft) => Drafter::feature_layers(draft),
            Source::Config(_) => None,
        };
        layers.cloned().unwrap_or_default()
    }

    fn open(
        path: &Path,
        context: Option<u32>,
        feature_layers: FeatureLayers,
        sizes: &[(String, usize)],
    ) -> Result<Subject> {
        let named = |name: Option<&str>, architecture: &str| {
            let file = path.file_stem().and_then(|stem| stem.to_str());
            let name = name.or(file).unwrap_or("the model");
            format!("{name} ({architecture})")
        };
        if Blueprint::is_config(path) {
            let blueprint = Blueprint::open(path)?;
            return Ok(Subject {
                name: named(None, &blueprint.architecture),
                source: Source::Config(Box::new(blueprint)),
            });
        }
        let options = OpenOptions {
            context: context.map(|n| n as usize),
            feature_layers,
            by_shape: true,
            sizes: sizes.to_vec(),
            ..OpenOptions::default()
        };
        let artifact = kvark::model::open_artifact_with(path, &options)?;
        if let Some(method) = artifact.shaped.first() {
            bail!(
                "the graph of {} is made for the shapes of each run's inputs ({}): set {} with --dim",
                method.name,
                method.reason,
                method.dynamic_sizes().join(", ")
            );
        }
        Ok(Subject {
            name: named(artifact.name.as_deref(), &artifact.architecture),
            source: Source::File(Box::new(artifact)),
        })
    }

    fn planned(&self) -> Result<PlannedModel<'_>> {
        Ok(match &self.source {
            Source::File(artifact) => PlannedModel::try_from(&**artifact)?,
            Source::Config(blueprint) => PlannedModel::from(&**blueprint),
        })
    }
}

impl Plan {
    pub(crate) fn execute(self) -> Result<()> {
        let longest = self.ctx_size.iter().copied().max();
        let open = |path: &Path, features| Subject::open(path, longest, features, &self.dims);
        let path = self.model.path()?;
        let (subject, draft) = match self.model_draft.as_deref() {
            Some(DraftSource::MTP) => {
                let subject = open(&path, FeatureLayers::Mtp)?;
                let head = subject.mtp_head()?;
                (subject, Some(head))
            }
            Some(name) => {
                let draft_path = args::model_path(name)?;
                let draft = Subject::open(&draft_path, longest, FeatureLayers::None, &[])?;
                let subject = open(&path, draft.wanted_features())?;
                (subject, Some(draft))
            }
            None => (open(&path, FeatureLayers::None)?, None),
        };
        args::warn_of_context(subject.planned()?.facts(), longest);
        let backend = self.device.backend()?;
        let plan = |context: Option<u32>, storage: Option<KvStorage>| -> Result<MemoryPlan> {
            let runner_options = self.runner_options(context, storage);
            let shares = self.model_draft.as_deref() == Some(DraftSource::MTP);
            let of = |subject: &Subject, model: Option<&Subject>, draft| {
                let planned = subject.planned()?;
                let planned = match model.filter(|_| shares) {
                    Some(model) => planned.sharing_with(&model.planned()?),
                    None => planned,
                };
                Ok(MemoryPlan::new(
                    &planned,
                    &*backend,
                    &runner_options,
                    self.kind(planned.facts()),
                    draft,
                )?)
            };
            let draft: Option<Result<MemoryPlan>> =
                draft.as_ref().map(|s| of(s, Some(&subject), None));
            of(&subject, None, draft.transpose()?)
        };
        let first = plan(
            self.ctx_size.first().copied(),
            self.compare.first().copied(),
        )?;
        if let Some(limit) = self.mem_limit {
            first.check(MemoryLimit::Bytes(limit), &*backend)?;
        }
        let room = Room::new(&first, &*backend);
        let tables = self.ctx_size.len() > 1 || !self.compare.is_empty();
        let table = match tables {
            true => Some(compare::Table::new(
                &self.ctx_size,
                &self.compare,
                (self.cache_type_k, self.cache_type_v),
                plan,
            )?),
            false => None,
        };
        self.draw(&subject.name, &first)?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        if self.json {
            let mut object = report::json(&subject.name, &first);
            room.add_to(&mut object);
            if let Some(table) = &table {
                object["table"] = table.json();
            }
            writeln!(out, "{object}")?;
        } else if self.map {
            map::print(&mut out, &first)?;
        } else if let Some(table) = &table {
            table.print(&mut out, &subject.name)?;
        } else {
            report::print(&mut out, &subject.name, &first)?;
            room.print(&mut out)?;
        }
        out.flush()?;
        Ok(())
    }

    fn kind(&self, facts: &ModelFacts) -> CacheKind {
        let sequences = self.parallel;
        match self.kind {
            Kind::Sequence if sequences == 1 => CacheKind::of_one_sequence(facts),
            Kind::Sequence | Kind::Cells => CacheKind::Cells { sequences },
            Kind::Tree => CacheKind::Tree,
        }
    }

    fn runner_options(&self, context: Option<u32>, storage: Option<KvStorage>) -> RunnerOptions {
        RunnerOptions {
            context: context.map(|n| n as usize),
            max_step_tokens: self.batch_size as usize,
            key_storage: storage.unwrap_or(self.cache_type_k),
            value_storage: storage.unwrap_or(self.cache_type_v),
            kv_policy: match (&self.kv_policy, storage) {
                (None, _) => KvPolicy::default(),
                (Some(policy), None) => policy.clone(),
                (Some(policy), Some(_)) => policy.without_types(),
            },
            max_logit_rows: self.parallel as usize,
            state_bytes: args::as_bytes(self.state_budget),
            state_storage: self.state_type,
            memory: self
                .mem_limit
                .map_or(MemoryLimit::Machine, MemoryLimit::Bytes),
            compile: CompileOptions {
                threads: args::threads(self.threads),
                expert_budget: self.expert_budget.map(args::as_bytes),
                host_expert_layers: self.host_experts.layers(),
                packed_folder: args::packed_folder(),
                ..CompileOptions::default()
            },
            ..RunnerOptions::default()
        }
    }

    fn draw(&self, name: &str, plan: &MemoryPlan) -> Result<()> {
        let Some(path) = &self.svg else {
            return Ok(());
        };
        if plan.arena.buffers.is_empty() && plan.kv.layers.is_empty() {
            bail!("there is nothing to draw: the model has no cache and computes nothing");
        }
        let picture = svg::text(&picture::draw(name, plan));
        std::fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))
    }
}
