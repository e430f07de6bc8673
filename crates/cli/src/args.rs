//! Arguments that several commands share.

use crate::catalogue::{self, HubArgs};
use crate::device::{DeviceArgs, HostExpertArgs};
use crate::named_value::NamedValue;
use crate::output;
use crate::prompt::Conversations;
use anyhow::{Context, Result, bail};
use clap::Args;
use kvark::backend::{CompileOptions, ExecutorKind, Precision, RunMode};
use kvark::cache::{KvPolicy, KvStorage};
use kvark::graph::PassSelection;
use kvark::hub::ModelRef;
use kvark::memory::MemoryLimit;
use kvark::model::gguf::SplitName;
use kvark::model::{FeatureLayers, ModelFacts, OpenOptions};
use kvark::speculative::DraftSource;
use kvark::text::Message;
use kvark::{BatchRunner, Model, Runner, RunnerOptions};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Selects the model.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// Path, catalogue name, hf:OWNER/REPO[:QUANT], ollama:NAME or https address; SmolLM2-135M-Instruct when left out
    #[arg(value_name = "MODEL", conflicts_with = "hf_repo")]
    pub(crate) positional: Option<String>,
    /// The model, as a flag
    #[arg(short, long, value_name = "MODEL", conflicts_with = "positional")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

impl ModelArgs {
    /// The model with this name.
    pub(crate) fn named(model: Option<String>) -> ModelArgs {
        ModelArgs {
            positional: None,
            model,
            hub: HubArgs { hf_repo: None },
        }
    }

    /// Whether a model was named.
    pub(crate) fn is_named(&self) -> bool {
        self.given().is_some()
    }

    /// The path, name or reference that was given.
    fn given(&self) -> Option<String> {
        let named = self.model.as_ref().or(self.positional.as_ref());
        named.cloned().or_else(|| self.hub.reference())
    }

    /// Opens the model for the context that will be used.
    pub(crate) fn open(&self, engine: &EngineArgs) -> Result<Model> {
        self.open_with_features(engine, FeatureLayers::None)
    }

    /// Opens the model so that its steps return the inputs of these layers too.
    pub(crate) fn open_with_features(
        &self,
        engine: &EngineArgs,
        feature_layers: FeatureLayers,
    ) -> Result<Model> {
        let options = OpenOptions {
            feature_layers,
            context: engine.ctx_size.map(|n| n as usize),
            passes: engine.graph.passes()?,
            ..OpenOptions::default()
        };
        let model = Model::open_with(&self.path()?, &options)?;
        warn_of_context(model.facts(), engine.ctx_size);
        Ok(model)
    }

    /// Display name of the model: the file's stem, or the folder's name if the stem is generic (`model`, `decoder`).
    pub(crate) fn name(&self) -> Result<String> {
        let given = self.given().unwrap_or_default();
        if let Ok(ModelRef::Ollama { name, tag }) = given.parse() {
            return Ok(format!("{name}:{tag}"));
        }
        let path = self.path()?;
        // A link is named by its own name: what it leads to may be called by a checksum.
        let path = match path.file_name() {
            Some(_) => std::path::absolute(path)?,
            None => path.canonicalize()?,
        };
        let stem = |path: &Path| match path.is_dir() {
            true => path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
            false => path
                .file_stem()
                .map(|name| name.to_string_lossy().into_owned()),
        };
        let generic = ["model", "decoder", "model.safetensors.index"];
        let own = stem(&path).filter(|name| !generic.contains(&&**name));
        let name = own.or_else(|| stem(path.parent()?)).or_else(|| stem(&path));
        let split = name
            .as_deref()
            .and_then(|name| SplitName::parse(&format!("{name}.gguf")));
        let name = split.map(|split| split.stem().to_owned()).or(name);
        Ok(name.unwrap_or_else(|| "the model".to_owned()))
    }

    /// Path of the model file. Downloads a model that is not present.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        match self.given() {
            Some(name) => model_path(&name),
            None => match DEFAULT_MODEL.get() {
                Some(name) => model_path(name),
                None => catalogue::ensure(kvark::catalogue::default_entry()),
            },
        }
    }
}

/// The default model of the configuration, if it names one.
static DEFAULT_MODEL: OnceLock<String> = OnceLock::new();

/// Sets the model of commands that name none. Only the first call has an effect.
pub(crate) fn set_default_model(name: String) {
    let _ = DEFAULT_MODEL.set(name);
}

/// Resolves a path, a name or a reference to a file. Downloads a model that is not present.
pub(crate) fn model_path(name: &str) -> Result<PathBuf> {
    catalogue::resolve(&name.parse()?)
}

/// The path of a draft's file, or the name that stands for the head that the model itself carries.
pub(crate) fn draft_path(name: &str) -> Result<PathBuf> {
    match name {
        DraftSource::MTP => Ok(name.into()),
        _ => model_path(name),
    }
}

/// Warns if the requested context is longer than the trained one. Loading rejects a context above the model's limit.
pub(crate) fn warn_of_context(facts: &ModelFacts, asked: Option<u32>) {
    let trained = facts.context_length;
    let possible = facts.context_limit.unwrap_or(usize::MAX);
    let longer = |asked: u32| (trained + 1..=possible).contains(&(asked as usize));
    if facts.context_stated && asked.is_some_and(longer) {
        output::warn(&format!(
            "the model was trained for a context of {trained} tokens: text after them may be incoherent (-c {trained})"
        ));
    }
}

/// Number of threads to use: the requested number, limited to the number of cores. With more threads than cores, every
/// barrier waits for a thread that is not running.
pub(crate) fn threads(asked: Option<u32>) -> Option<usize> {
    let asked = asked? as usize;
    let cores = std::thread::available_parallelism().map_or(asked, usize::from);
    if asked > cores {
        output::warn(&format!(
            "{asked} threads were requested, but this machine has {cores} cores: using {cores} (-t {cores})"
        ));
    }
    Some(asked.min(cores))
}

/// Value of `--threads`: one number of threads, or several to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadCounts(Vec<u32>);

impl ThreadCounts {
    /// The first number.
    pub(crate) fn first(&self) -> u32 {
        self.0[0]
    }

    /// Each number as a value of its own.
    pub(crate) fn each(self) -> impl Iterator<Item = Option<ThreadCounts>> {
        self.0.into_iter().map(|n| Some(ThreadCounts(vec![n])))
    }
}

fn thread_counts(text: &str) -> Result<ThreadCounts, String> {
    let number = |text: &str| {
        let number = text.trim().parse().ok().filter(|n: &u32| *n > 0);
        number.ok_or_else(|| format!("{text} is not in 1.."))
    };
    Ok(ThreadCounts(
        text.split(',').map(number).collect::<Result<_, _>>()?,
    ))
}

/// Options of the engine that runs the model.
#[derive(Args)]
pub(crate) struct EngineArgs {
    /// Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]
    #[arg(short, long, value_name = "N", value_parser = context_size)]
    pub(crate) ctx_size: Option<u32>,
    /// Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = thread_counts)]
    pub(crate) threads: Option<ThreadCounts>,
    /// Maximum number of tokens in one step of prompt processing
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch_size: u32,
    /// Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h
    #[arg(long, value_name = "TYPE", default_value = "f16", hide_possible_values = true, value_parser = storage_names())]
    pub(crate) cache_type_k: KvStorage,
    /// Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h
    #[arg(long, value_name = "TYPE", default_value = "f16", hide_possible_values = true, value_parser = storage_names())]
    pub(crate) cache_type_v: KvStorage,
    /// How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as
    /// "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them
    #[arg(long, value_name = "POLICY", value_parser = kv_policy)]
    kv_policy: Option<KvPolicy>,
    /// Allocate all keys and values before the first token, as one region, instead of growing with the context
    #[arg(long)]
    preallocate: bool,
    /// Most memory that snapshots of recurrent layers' states may take, such as 64M; a model of attention alone has none
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = byte_size)]
    state_budget: u64,
    /// Storage type of recurrent layers' states: f32 or f16 (half the memory, rounded after every token)
    #[arg(long, value_name = "TYPE", default_value = "f32", hide_possible_values = true, value_parser = state_storage_names())]
    state_type: KvStorage,
    /// Keep a snapshot of recurrent layers' states after every N tokens of a prompt, where conversations can be continued
    /// differently; 0 keeps them only where prompts begin and end
    #[arg(long, value_name = "N", default_value_t = 256)]
    state_interval: u32,
    /// Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of
    /// packed weights [default: all, or as many as fit]
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    expert_budget: Option<u64>,
    /// Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    mem_limit: Option<u64>,
    /// Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also
    /// takes all) [default: full]. Results do not depend on the mode
    #[arg(long, value_name = "MODE", hide_possible_values = true, value_parser = run_modes(), conflicts_with_all = ["executor", "interpret"])]
    pub(crate) run_mode: Option<ModeArg>,
    /// How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where
    /// they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token's bits depend on
    /// the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs
    #[arg(long, value_name = "NAME", default_value = "high", hide_possible_values = true, value_parser = precisions())]
    pub(crate) precision: Precision,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    host_experts: HostExpertArgs,
    #[command(flatten)]
    pub(crate) graph: GraphArgs,
}

/// The parser of precisions.
fn precisions() -> NamedValue<Precision> {
    NamedValue::new(Precision::ALL.map(Precision::name), |text| {
        text.parse()
            .map_err(|error: kvark::backend::UnknownPrecision| error.to_string())
    })
}

/// Value of `--run-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModeArg {
    One(RunMode),
    All,
}

impl std::str::FromStr for ModeArg {
    type Err = kvark::backend::UnknownRunMode;

    fn from_str(text: &str) -> Result<ModeArg, kvark::backend::UnknownRunMode> {
        match text {
            "all" => Ok(ModeArg::All),
            name => Ok(ModeArg::One(name.parse()?)),
        }
    }
}

/// The parser of run modes.
fn run_modes() -> NamedValue<ModeArg> {
    let names = RunMode::ALL.map(RunMode::name).into_iter().chain(["all"]);
    NamedValue::new(names, |text| {
        text.parse()
            .map_err(|error: kvark::backend::UnknownRunMode| error.to_string())
    })
}

/// Options of graph optimisation and execution.
#[derive(Args)]
pub(crate) struct GraphArgs {
    /// compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node
    #[arg(long, value_name = "NAME", value_parser = ["compiled", "interpreted"])]
    executor: Option<String>,
    /// Same as --executor interpreted
    #[arg(long, conflicts_with = "executor")]
    interpret: bool,
    /// Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    passes: Option<String>,
    /// Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start
    #[arg(long)]
    no_packed_file: bool,
}

/// Environment variable that selects passes if `--passes` is not given.
const PASSES_VARIABLE: &str = "KVARK_PASSES";

impl GraphArgs {
    /// Passes selected by the flag or the environment.
    pub(crate) fn passes(&self) -> Result<PassSelection> {
        let named = |variable: &str| std::env::var(variable).ok().filter(|v| !v.is_empty());
        match (&self.passes, named(PASSES_VARIABLE)) {
            (Some(list), _) => PassSelection::parse(list).context("--passes"),
            (None, Some(list)) => PassSelection::parse(&list).context(PASSES_VARIABLE),
            (None, None) => Ok(PassSelection::default()),
        }
    }

    /// Compile options for `threads` threads. `traced` requires the interpreted executor.
    pub(crate) fn compile(&self, threads: Option<u32>, traced: bool) -> Result<CompileOptions> {
        let executor = match self.executor.as_deref() {
            Some("compiled") if traced => {
                bail!(
                    "--trace needs the interpreted executor; it cannot be used with --executor compiled"
                )
            }
            Some("compiled") => ExecutorKind::Compiled,
            None if !self.interpret && !traced => ExecutorKind::Compiled,
            _ => ExecutorKind::Interpreted,
        };
        let packed_folder = match self.no_packed_file {
            true => None,
            false => packed_folder(),
        };
        Ok(CompileOptions {
            threads: self::threads(threads),
            executor,
            run_mode: None,
            expert_budget: None,
            host_expert_layers: 0,
            packed_folder,
            record_all: false,
            precision: Precision::default(),
            progress: Some(output::loading()),
        })
    }
}

/// A size as a number of bytes in memory.
pub(crate) fn as_bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// The folder of packed weights, if the store's home is known.
pub(crate) fn packed_folder() -> Option<std::path::PathBuf> {
    let home = kvark::catalogue::ModelStore::from_env().ok();
    home.map(|home| home.packed_folder())
}

/// Parses a size in bytes with an optional unit: k, M, G or T (decimal), or with an i (binary, as in 2GiB).
pub(crate) fn byte_size(text: &str) -> Result<u64, String> {
    let wrong = || "must be a number of bytes, such as 800M, 2G or 1.5GiB".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let unit = text[digits.len()..].to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (letter, base) = match unit.strip_suffix('i') {
        Some(letter) => (letter, 1024f64),
        None => (unit, 1000.0),
    };
    let power = ["", "k", "m", "g", "t"].iter().position(|u| *u == letter);
    let bytes = number * base.powi(power.ok_or_else(wrong)? as i32);
    let fits = bytes.is_finite() && (0.0..1e18).contains(&bytes);
    fits.then_some(bytes as u64).ok_or_else(wrong)
}

/// Parses a length of a context: a number of tokens, or one of units of 1024, as in 8k.
pub(crate) fn context_size(text: &str) -> Result<u32, String> {
    let wrong = || "must be a number of tokens of at least 1, such as 4096 or 8k".to_owned();
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: u32 = digits.parse().map_err(|_| wrong())?;
    let tokens = number.checked_mul(unit).filter(|tokens| *tokens > 0);
    tokens.ok_or_else(wrong)
}

/// The parser of storage types.
pub(crate) fn storage_names() -> NamedValue<KvStorage> {
    NamedValue::new(KvStorage::ALL.map(KvStorage::name), storage)
}

/// Parses a cache policy, or reads the file that it names.
pub(crate) fn kv_policy(text: &str) -> Result<KvPolicy, String> {
    kvark::cache::read_policy(text).map_err(|error| error.to_string())
}

/// The types that states are stored in.
const STATE_STORAGES: [KvStorage; 2] = [KvStorage::F32, KvStorage::F16];

pub(crate) fn state_storage_names() -> NamedValue<KvStorage> {
    NamedValue::new(STATE_STORAGES.map(KvStorage::name), |name| {
        let known = STATE_STORAGES
            .into_iter()
            .find(|known| known.name() == name);
        known.ok_or_else(|| "must be one of f32, f16".to_owned())
    })
}

fn storage(name: &str) -> Result<KvStorage, String> {
    KvStorage::from_name(name).ok_or_else(|| {
        format!(
            "must be one of {}",
            KvStorage::ALL.map(KvStorage::name).join(", ")
        )
    })
}

impl EngineArgs {
    /// All run modes if `--run-mode all` was given.
    pub(crate) fn compared_modes(&self) -> Option<[RunMode; 5]> {
        (self.run_mode == Some(ModeArg::All)).then_some(RunMode::ALL)
    }

    /// Rejects `--run-mode all` and several numbers of threads in commands that run one.
    pub(crate) fn check_one_mode(&self) -> Result<()> {
        if self.compared_modes().is_some() {
            bail!("--run-mode all is only supported by kvark bench; name one mode");
        }
        if self
            .threads
            .as_ref()
            .is_some_and(|counts| counts.0.len() > 1)
        {
            bail!("several numbers of threads are only supported by kvark bench; name one (-t)");
        }
        Ok(())
    }

    pub(crate) fn runner_options(&self) -> Result<RunnerOptions> {
        let run_mode = self.run_mode.and_then(|mode| match mode {
            ModeArg::One(mode) => Some(mode),
            ModeArg::All => None,
        });
        Ok(RunnerOptions {
            context: self.ctx_size.map(|n| n as usize),
            max_step_tokens: self.batch_size as usize,
            key_storage: self.cache_type_k,
            value_storage: self.cache_type_v,
            kv_policy: self.kv_policy.clone().unwrap_or_default(),
            preallocate: self.preallocate,
            state_bytes: as_bytes(self.state_budget),
            state_interval: self.state_interval,
            state_storage: self.state_type,
            memory: self
                .mem_limit
                .map_or(MemoryLimit::Machine, MemoryLimit::Bytes),
            compile: CompileOptions {
                run_mode,
                precision: self.precision,
                expert_budget: self.expert_budget.map(as_bytes),
                host_expert_layers: self.host_experts.layers(),
                ..self
                    .graph
                    .compile(self.threads.as_ref().map(ThreadCounts::first), false)?
            },
            ..RunnerOptions::default()
        })
    }

    /// Whether the policy of the cache says that sequences are streams.
    pub(crate) fn is_stream(&self) -> bool {
        let policy = self.kv_policy.as_ref();
        policy.is_some_and(|policy| policy.stream.is_some())
    }

    /// A runner for the model on the chosen device.
    pub(crate) fn runner(&self, model: &Model) -> Result<Runner> {
        let backend = self.device.backend()?;
        Ok(Runner::new(model, &*backend, &self.runner_options()?)?)
    }

    /// Stores all keys and values in f16 instead.
    pub(crate) fn cache_in_f16(&mut self) {
        (self.cache_type_k, self.cache_type_v) = (KvStorage::F16, KvStorage::F16);
        let policy = self.kv_policy.take();
        self.kv_policy = policy.map(|policy| policy.without_types());
    }

    /// A runner whose steps return the logits of every token.
    pub(crate) fn scorer(&self, model: &Model) -> Result<Runner> {
        let runner_options = self.runner_options()?;
        let step = runner_options.max_step_tokens.min(Runner::MAX_SCORED_STEP);
        let runner_options = RunnerOptions {
            max_step_tokens: step,
            max_logit_rows: step,
            ..runner_options
        };
        Ok(Runner::new(
            model,
            &*self.device.backend()?,
            &runner_options,
        )?)
    }
}

/// Options for a full context.
#[derive(Args)]
pub(crate) struct ShiftArgs {
    /// When the context is full, drop the older half of the tokens after the first --keep and continue
    #[arg(long)]
    pub(crate) context_shift: bool,
    /// Number of first tokens that --context-shift keeps [default: the system message, or the first token]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    keep: Option<usize>,
}

impl ShiftArgs {
    /// Number of first tokens that shifts keep, or `None` without `--context-shift`. `preamble` has the messages of a chat
    /// before its first turn.
    ///
    /// # Errors
    /// If `--keep` was given without `--context-shift`, or is not below `capacity`: no token could be dropped.
    pub(crate) fn keep(
        &self,
        capacity: usize,
        preamble: Option<(&Conversations<'_>, &[Message])>,
    ) -> Result<Option<usize>> {
        if !self.context_shift {
            if self.keep.is_some() {
                bail!("--keep needs --context-shift");
            }
            return Ok(None);
        }
        if let Some(keep) = self.keep.filter(|keep| *keep >= capacity) {
            bail!(
                "--keep {keep} leaves no tokens to drop: the context has {capacity} tokens, and --context-shift drops some of those \
                 after the kept ones; --keep must be below {capacity}"
            );
        }
        Ok(Some(self.keep.unwrap_or(beginning(preamble)?.max(1))))
    }

    /// Enables the context shifts of a runner: those of `--context-shift`, or those of a stream, which keeps `preamble` too. Returns the
    /// number of first tokens that shifts keep, or `None` without `--context-shift`.
    ///
    /// # Errors
    /// Those of [`keep`](ShiftArgs::keep), and if `--context-shift` was given for a stream.
    pub(crate) fn enable(
        &self,
        runner: &mut BatchRunner,
        preamble: Option<(&Conversations<'_>, &[Message])>,
    ) -> Result<Option<usize>> {
        if runner.stream_window().is_some() {
            self.check_no_stream(true)?;
            runner.keep_in_streams(beginning(preamble)?)?;
            return Ok(None);
        }
        let keep = self.keep(runner.capacity()?, preamble)?;
        keep.map_or(Ok(()), |keep| runner.enable_context_shift(keep))?;
        Ok(keep)
    }

    /// Returns an error if shifts are given for a stream.
    pub(crate) fn check_no_stream(&self, is_stream: bool) -> Result<()> {
        let given = match (self.context_shift, self.keep) {
            (true, _) => "--context-shift",
            (false, Some(_)) => "--keep",
            _ => return Ok(()),
        };
        if is_stream {
            bail!("{given} is not for streams: the rule of --kv-policy says what stays (sinks N)");
        }
        Ok(())
    }

    /// Advice to the user when the context is full.
    pub(crate) fn advice(&self) -> &'static str {
        match self.context_shift {
            true => {
                "--context-shift has no more tokens to drop; use a smaller --keep or a larger --ctx-size"
            }
            false => "use --context-shift to continue, or a larger --ctx-size",
        }
    }
}

/// The number of tokens of the messages of a chat before its first turn.
fn beginning(preamble: Option<(&Conversations<'_>, &[Message])>) -> Result<usize> {
    let known = preamble.map(|(conversations, messages)| conversations.beginning(messages));
    Ok(known.transpose()?.map_or(0, |tokens| tokens.len()))
}

/// Parses an integer of at least 0.
pub(crate) fn whole<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    let parsed = text.parse();
    parsed.map_err(|_| "must be a whole number of at least 0".to_owned())
}

/// Parses a seed; -1 draws one.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    match text {
        "-1" => Ok(kvark::generate::random_seed()),
        _ => whole(text).map_err(|error| format!("{error}, or -1")),
    }
}

/// The reason of a clap error, without usage and advice.
pub(crate) fn reason(error: &clap::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => {
            let text = error.to_string();
            let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let first = lines.next().unwrap_or_default();
            let values = lines.find(|line| line.starts_with("[possible values"));
            let first = first.strip_prefix("error: ").unwrap_or(first);
            values.map_or(first.to_owned(), |values| format!("{first} {values}"))
        }
    }
}

/// Parses a number of tokens to generate; -1 is no limit.
pub(crate) fn predict(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(n) if n == -1 || n > 0 => Ok(n),
        _ => Err("must be a number of at least 1, or -1 for no limit".into()),
    }
}

/// Parses token ids separated by commas, spaces or line ends.
pub(crate) fn token_ids(text: &str) -> Result<Vec<u32>, String> {
    let separators = |c: char| c == ',' || c.is_whitespace();
    let ids = text.split(separators).filter(|part| !part.is_empty());
    ids.map(|id| id.parse().map_err(|_| format!("{id:?} is not a token id")))
        .collect()
}
