//! Arguments that several commands share.

use crate::device::DeviceArgs;
use crate::prompt::Conversations;
use crate::{catalogue, output};
use anyhow::{Context, Result, bail};
use clap::Args;
use kvark::{
    CompileOptions, ExecutorKind, MemoryLimit, Message, Model, ModelFacts, OpenOptions,
    PassSelection, Policy, RunMode, Runner, SamplerOptions, Storage,
};
use std::path::{Path, PathBuf};

/// Which model.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// Path or catalogue name; SmolLM2-135M-Instruct when left out
    #[arg(value_name = "MODEL")]
    pub(crate) positional: Option<String>,
    /// The model, as a flag
    #[arg(short, long, value_name = "MODEL", conflicts_with = "positional")]
    pub(crate) model: Option<String>,
}

impl ModelArgs {
    /// Opens the model for the context that will be used.
    pub(crate) fn open(&self, engine: &EngineArgs) -> Result<Model> {
        let options = OpenOptions {
            context: engine.ctx_size.map(|n| n as usize),
            passes: engine.graph.passes()?,
            ..OpenOptions::default()
        };
        let model = Model::open_with(&self.path()?, &options)?;
        warn_of_context(model.facts(), engine.ctx_size);
        Ok(model)
    }

    /// A name for people: that of the file, or of its folder where the file's says nothing.
    pub(crate) fn name(&self) -> Result<String> {
        let path = self.path()?;
        let path = path.canonicalize().unwrap_or(path);
        let stem = |path: &Path| match path.is_dir() {
            true => path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
            false => path
                .file_stem()
                .map(|name| name.to_string_lossy().into_owned()),
        };
        let own = stem(&path).filter(|name| !["model", "decoder"].contains(&&**name));
        let name = own.or_else(|| stem(path.parent()?)).or_else(|| stem(&path));
        Ok(name.unwrap_or_else(|| "the model".to_owned()))
    }

    /// Where the model's file is; models of the catalogue are fetched if they are not there.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        match self.model.as_ref().or(self.positional.as_ref()) {
            Some(name) => model_path(name),
            None => catalogue::ensure(kvark::catalogue::default_entry()),
        }
    }
}

/// The file that a path or a catalogue name stands for; models of the catalogue are fetched if they are not there.
pub(crate) fn model_path(name: &str) -> Result<PathBuf> {
    let path = PathBuf::from(name);
    if path.exists() {
        return Ok(path);
    }
    match kvark::catalogue::find(name) {
        Some(entry) => catalogue::ensure(entry),
        None => bail!("no such file or catalogue model: {name} (see kvark list)"),
    }
}

/// Warns of a context that is longer than the model was trained for; one that is not possible at all is refused later.
pub(crate) fn warn_of_context(facts: &ModelFacts, asked: Option<u32>) {
    let trained = facts.context_length;
    let possible = facts.context_limit.unwrap_or(usize::MAX);
    let longer = |asked: u32| (trained + 1..=possible).contains(&(asked as usize));
    if facts.context_stated && asked.is_some_and(longer) {
        output::warn(&format!(
            "the model was trained for a context of {trained} tokens: text behind them may make no sense (-c {trained})"
        ));
    }
}

/// The number of threads to use: as asked for, but no more than the machine has cores, because threads that wait for a core
/// hold up all others.
pub(crate) fn threads(asked: Option<u32>) -> Option<usize> {
    let asked = asked? as usize;
    let cores = std::thread::available_parallelism().map_or(asked, usize::from);
    if asked > cores {
        output::warn(&format!(
            "{asked} threads are more than this machine's cores: {cores} are used (-t {cores})"
        ));
    }
    Some(asked.min(cores))
}

/// How to run it.
#[derive(Args)]
pub(crate) struct EngineArgs {
    /// Most tokens in the context; what the model was made for when left out
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ctx_size: Option<u32>,
    /// Threads to compute with, at most one for each core; all cores when left out
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) threads: Option<u32>,
    /// Most tokens in one step of prompt processing
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch_size: u32,
    /// How keys are stored in the cache
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = storage)]
    pub(crate) cache_type_k: Storage,
    /// How values are stored in the cache
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = storage)]
    pub(crate) cache_type_v: Storage,
    /// Refuse a run that needs more memory, such as 800M or 2G, or more than the machine has free
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    mem_limit: Option<u64>,
    /// How steps are run: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all); full when
    /// left out. The results are the same
    #[arg(long, value_name = "MODE", conflicts_with_all = ["executor", "interpret"])]
    pub(crate) run_mode: Option<ModeArg>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) graph: GraphArgs,
}

/// The modes that a command runs steps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModeArg {
    One(RunMode),
    All,
}

impl std::str::FromStr for ModeArg {
    type Err = kvark::UnknownRunMode;

    fn from_str(text: &str) -> Result<ModeArg, kvark::UnknownRunMode> {
        match text {
            "all" => Ok(ModeArg::All),
            name => Ok(ModeArg::One(name.parse()?)),
        }
    }
}

/// How graphs are optimised and run.
#[derive(Args)]
pub(crate) struct GraphArgs {
    /// compiled replays a tape, interpreted runs every node on its own
    #[arg(long, value_name = "NAME", value_parser = ["compiled", "interpreted"])]
    executor: Option<String>,
    /// The same as --executor interpreted
    #[arg(long, conflicts_with = "executor")]
    interpret: bool,
    /// Passes over the graph: all, none, some (fold,dead_code) or all but some (-fuse_dag); KVARK_PASSES when left out
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    passes: Option<String>,
    /// Pack weights anew, and keep nothing in $KVARK_HOME/packed to make the next start shorter
    #[arg(long)]
    no_packed_file: bool,
}

/// The environment variable that chooses passes.
const PASSES_VARIABLE: &str = "KVARK_PASSES";

impl GraphArgs {
    /// The passes that the flag or the environment chooses.
    pub(crate) fn passes(&self) -> Result<PassSelection> {
        let named = |variable: &str| std::env::var(variable).ok().filter(|v| !v.is_empty());
        match (&self.passes, named(PASSES_VARIABLE)) {
            (Some(list), _) => PassSelection::parse(list).context("--passes"),
            (None, Some(list)) => PassSelection::parse(&list).context(PASSES_VARIABLE),
            (None, None) => Ok(PassSelection::default()),
        }
    }

    /// How graphs are compiled for so many threads; a trace needs the interpreted executor.
    pub(crate) fn compile(&self, threads: Option<u32>, traced: bool) -> Result<CompileOptions> {
        let executor = match self.executor.as_deref() {
            Some("compiled") if traced => {
                bail!("--trace shows what the interpreted executor computes, not the compiled one")
            }
            Some("compiled") => ExecutorKind::Compiled,
            None if !self.interpret && !traced => ExecutorKind::Compiled,
            _ => ExecutorKind::Interpreted,
        };
        let home = || kvark::catalogue::Home::locate().ok();
        let packed_folder = match self.no_packed_file {
            true => None,
            false => home().map(|home| home.packed()),
        };
        Ok(CompileOptions {
            threads: self::threads(threads),
            executor,
            run_mode: None,
            packed_folder,
            loading: Some(output::loading()),
        })
    }
}

/// Bytes with a unit: k, M, G or T, binary with an i (2GiB), with or without B.
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

pub(crate) fn storage(name: &str) -> Result<Storage, String> {
    Storage::from_name(name).ok_or_else(|| {
        format!(
            "must be one of {}",
            Storage::ALL.map(Storage::name).join(", ")
        )
    })
}

impl EngineArgs {
    /// The run modes that are compared, when all of them are.
    pub(crate) fn compared_modes(&self) -> Option<[RunMode; 5]> {
        (self.run_mode == Some(ModeArg::All)).then_some(RunMode::ALL)
    }

    /// Refuses to compare run modes in a command that runs only once.
    pub(crate) fn check_one_mode(&self) -> Result<()> {
        if self.compared_modes().is_some() {
            bail!("--run-mode all compares the modes in kvark bench; name one of them");
        }
        Ok(())
    }

    pub(crate) fn policy(&self) -> Result<Policy> {
        let run_mode = self.run_mode.and_then(|mode| match mode {
            ModeArg::One(mode) => Some(mode),
            ModeArg::All => None,
        });
        Ok(Policy {
            context: self.ctx_size.map(|n| n as usize),
            batch: self.batch_size as usize,
            key_storage: self.cache_type_k,
            value_storage: self.cache_type_v,
            memory: self
                .mem_limit
                .map_or(MemoryLimit::Machine, MemoryLimit::Bytes),
            compile: CompileOptions {
                run_mode,
                ..self.graph.compile(self.threads, false)?
            },
            ..Policy::default()
        })
    }

    /// A runner for the model on the chosen device.
    pub(crate) fn runner(&self, model: &Model) -> Result<Runner> {
        let backend = self.device.backend()?;
        Ok(Runner::new(model, &*backend, &self.policy()?)?)
    }

    /// A runner whose steps give the logits of all their tokens.
    pub(crate) fn scorer(&self, model: &Model) -> Result<Runner> {
        let policy = self.policy()?;
        let step = policy.batch.min(Runner::SCORED_STEP);
        let policy = Policy {
            batch: step,
            logit_rows: step,
            ..policy
        };
        Ok(Runner::new(model, &*self.device.backend()?, &policy)?)
    }
}

/// How a conversation becomes a prompt.
#[derive(Args)]
pub(crate) struct TemplateArgs {
    /// The chat template to take in the place of the model's own: chatml, gemma, llama3, mistral-v1, mistral-v3, mistral-v7,
    /// phi3, phi4, vicuna, zephyr, or a file that holds one in Jinja
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) chat_template: Option<String>,
    /// Read control tokens such as <|im_end|> in the text that is given, too; they are plain letters otherwise
    #[arg(long)]
    pub(crate) special: bool,
}

/// What happens when the context is full.
#[derive(Args)]
pub(crate) struct ShiftArgs {
    /// Go on when the context is full: forget the older half of what lies behind the tokens to keep
    #[arg(long)]
    pub(crate) context_shift: bool,
    /// Tokens at the beginning that --context-shift keeps; when left out, the system message, or the first token
    #[arg(long, value_name = "N", requires = "context_shift", value_parser = whole::<usize>)]
    keep: Option<usize>,
}

impl ShiftArgs {
    /// How many tokens shifts keep, if there are to be any; of a chat, `preamble` has the messages before its first turn.
    ///
    /// # Errors
    /// When --keep leaves nothing in a context of `capacity` tokens that could go.
    pub(crate) fn keep(
        &self,
        capacity: usize,
        preamble: Option<(&Conversations<'_>, &[Message])>,
    ) -> Result<Option<usize>> {
        if !self.context_shift {
            return Ok(None);
        }
        if let Some(keep) = self.keep.filter(|keep| *keep >= capacity) {
            bail!(
                "--keep {keep} leaves no room: the context has {capacity} tokens, and --context-shift takes out some of those \
                 behind the ones to keep; --keep must be below {capacity}"
            );
        }
        let known = preamble.map(|(conversations, messages)| conversations.beginning(messages));
        let known = known.transpose()?.map_or(1, |tokens| tokens.len());
        Ok(Some(self.keep.unwrap_or(known.max(1))))
    }

    /// What a person can do about a full context.
    pub(crate) fn advice(&self) -> &'static str {
        match self.context_shift {
            true => {
                "--context-shift finds nothing more that can go; a smaller --keep or a larger --ctx-size gives room"
            }
            false => "--context-shift goes on, --ctx-size gives it more room",
        }
    }
}

/// How tokens are chosen.
#[derive(Args)]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token. When left out, what the model's genai_config.json says, or 0.8
    #[arg(long, value_name = "T", value_parser = at_least_zero)]
    pub(crate) temp: Option<f32>,
    /// Only the K most likely tokens; 0 or -1 for all. When left out, the model's own, or 40
    #[arg(long, value_name = "K", value_parser = top_k)]
    pub(crate) top_k: Option<usize>,
    /// Only the most likely tokens whose probabilities add up to P. When left out, the model's own, or 0.95
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub(crate) top_p: Option<f32>,
    /// Only tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = fraction)]
    pub(crate) min_p: f32,
    /// Make tokens of the last --repeat-last-n less likely; 1 for no penalty. When left out, the model's own, or 1
    #[arg(long, value_name = "X", value_parser = positive)]
    pub(crate) repeat_penalty: Option<f32>,
    /// How many tokens the repetition penalty looks back; -1 for all
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = repeat_last_n)]
    pub(crate) repeat_last_n: usize,
    /// Seed of the random choices; drawn from the clock when left out or -1, and shown
    #[arg(long, value_name = "N", value_parser = seed)]
    pub(crate) seed: Option<u64>,
}

fn number(text: &str, allowed: impl Fn(f32) -> bool, what: &str) -> Result<f32, String> {
    text.parse()
        .ok()
        .filter(|x: &f32| allowed(*x))
        .ok_or_else(|| format!("must be {what}"))
}

/// A whole number from 0 on, or what -1 stands for.
fn count_or<T: std::str::FromStr>(text: &str, minus_one: impl FnOnce() -> T) -> Result<T, String> {
    match text {
        "-1" => Ok(minus_one()),
        _ => whole(text).map_err(|error| format!("{error}, or -1")),
    }
}

/// A whole number from 0 on.
pub(crate) fn whole<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    let parsed = text.parse();
    parsed.map_err(|_| "must be a whole number of at least 0".to_owned())
}

fn top_k(text: &str) -> Result<usize, String> {
    count_or(text, || 0)
}

fn repeat_last_n(text: &str) -> Result<usize, String> {
    count_or(text, || usize::MAX)
}

/// A seed; -1 draws one from the clock.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    count_or(text, clock_seed)
}

/// A seed of 32 bits: people copy it, and some readers of JSON lose digits of longer numbers.
fn clock_seed() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::from((now.as_micros() as u32) ^ now.subsec_nanos().rotate_left(16))
}

fn at_least_zero(text: &str) -> Result<f32, String> {
    number(
        text,
        |x| x.is_finite() && x >= 0.0,
        "a number of at least 0",
    )
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, |x| x.is_finite() && x > 0.0, "a number above 0")
}

fn fraction(text: &str) -> Result<f32, String> {
    number(text, |x| (0.0..=1.0).contains(&x), "a number from 0 to 1")
}

impl SamplingArgs {
    pub(crate) fn options(&self, model: &Model) -> SamplerOptions {
        let own = model.sampling();
        if let Some(config) = &model.artifact().sidecars.genai
            && !config.not_honoured.is_empty()
        {
            let settings = config.not_honoured.join(", ");
            output::warn(&format!(
                "genai_config.json has settings that are not honoured: {settings}"
            ));
        }
        SamplerOptions {
            temperature: self.temp.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty.unwrap_or(own.repeat_penalty),
            repeat_last_n: self.repeat_last_n,
            seed: self.seed.unwrap_or_else(clock_seed),
        }
    }
}

/// Text given on the command line, in a file, or as token ids.
#[derive(Args)]
#[group(id = "text", multiple = false)]
pub(crate) struct TextArgs {
    /// The text
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// A file that holds the text; - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

impl TextArgs {
    /// The text, if any was given.
    pub(crate) fn read(&self) -> Result<Option<String>> {
        match (&self.prompt, &self.file) {
            (Some(text), _) => Ok(Some(text.clone())),
            (None, Some(path)) => Ok(Some(read_text(path)?)),
            (None, None) => Ok(None),
        }
    }
}

/// A whole text file, which must be UTF-8.
pub(crate) fn read_text(path: &std::path::Path) -> Result<String> {
    let name = path.display();
    let bytes = if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes)
            .context("cannot read standard input")?;
        bytes
    } else {
        std::fs::read(path).with_context(|| format!("cannot read {name}"))?
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => bail!(
            "{name} is not UTF-8: byte {} is invalid",
            error.utf8_error().valid_up_to()
        ),
    }
}

/// Token ids separated by commas or spaces.
pub(crate) fn token_ids(text: &str) -> Result<Vec<u32>, String> {
    let ids = text.split([',', ' ']).filter(|part| !part.is_empty());
    ids.map(|id| id.parse().map_err(|_| format!("{id:?} is not a token id")))
        .collect()
}
