//! Speculative decoding on the command line: its options, and the runner of one sequence that uses it or not.

use crate::args::{self, EngineArgs};
use anyhow::{Result, bail};
use clap::Args;
use kvark::generate::{GenerateEvent, GenerateOptions, GenerateOutput, Sampler};
use kvark::memory::MemoryUsage;
use kvark::model::OpenOptions;
use kvark::snapshot::Snapshot;
use kvark::speculative::{
    DepthStats, DraftModel, SpecOptions, SpecStats, SpecType, Speculator, VerifyCosts,
};
use kvark::{BatchRunner, Model, Runner};
use serde_json::{Value, json};
use std::path::Path;

/// Options of speculative decoding. The text is the same with and without it.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Speculative decoding")]
pub(crate) struct SpecArgs {
    /// What proposes tokens that the model then verifies, several in one forward: ngram (repetitions of the prompt and the
    /// answer), draft (a smaller model, -md), auto (what is there, where it pays) or none [default: none, or draft with -md]
    #[arg(long, value_name = "TYPE", value_parser = spec_type)]
    spec_type: Option<SpecChoice>,
    /// Smaller model with the same vocabulary that proposes tokens; -md too
    #[arg(long, value_name = "MODEL")]
    model_draft: Option<String>,
    /// Most candidates of a round [default: 8]
    #[arg(long, value_name = "N", value_parser = args::whole::<usize>)]
    spec_tree: Option<usize>,
    /// Most candidates that a round can accept: the depth of the tree [default: 8]
    #[arg(long, visible_alias = "spec-draft-n-max", value_name = "D", value_parser = args::whole::<usize>)]
    spec_depth: Option<usize>,
    /// Most children of a candidate; 1 proposes a chain [default: 3]
    #[arg(long, value_name = "K", value_parser = args::whole::<usize>)]
    spec_topk: Option<usize>,
}

/// The value of `--spec-type`; `None` is `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpecChoice(Option<SpecType>);

fn spec_type(name: &str) -> Result<SpecChoice, String> {
    if name == "none" {
        return Ok(SpecChoice(None));
    }
    let known = SpecType::from_name(name);
    let names = SpecType::ALL.map(SpecType::name).join(", ");
    let known = known.ok_or_else(|| format!("must be one of {names}, none"))?;
    Ok(SpecChoice(Some(known)))
}

impl SpecArgs {
    /// The options, or `None` for plain decoding.
    pub(crate) fn options(&self) -> Result<Option<SpecOptions>> {
        let kind = match (self.spec_type, &self.model_draft) {
            (Some(SpecChoice(kind)), _) => kind,
            (None, Some(_)) => Some(SpecType::Draft),
            (None, None) => None,
        };
        let Some(kind) = kind else {
            let sizes = [self.spec_tree, self.spec_depth, self.spec_topk];
            if sizes.iter().any(Option::is_some) {
                bail!("--spec-tree, --spec-depth and --spec-topk need --spec-type");
            }
            return Ok(None);
        };
        if kind == SpecType::Draft && self.model_draft.is_none() {
            bail!("--spec-type draft needs a draft model: name it with --model-draft");
        }
        if kind == SpecType::Ngram && self.model_draft.is_some() {
            bail!("--spec-type ngram uses no draft model: leave --model-draft out, or use auto");
        }
        let defaults = SpecOptions::default();
        Ok(Some(SpecOptions {
            kind,
            max_candidates: self.spec_tree.unwrap_or(defaults.max_candidates),
            max_depth: self.spec_depth.unwrap_or(defaults.max_depth),
            top_k: self.spec_topk.unwrap_or(defaults.top_k),
            trace: false,
        }))
    }

    /// Loads the draft model, if one was named.
    pub(crate) fn draft(
        &self,
        target: &Model,
        engine: &EngineArgs,
        sequences: usize,
    ) -> Result<Option<DraftModel>> {
        let Some(name) = &self.model_draft else {
            return Ok(None);
        };
        let options = OpenOptions {
            context: engine.ctx_size.map(|n| n as usize),
            ..OpenOptions::default()
        };
        let draft = Model::open_with(&args::model_path(name)?, &options)?;
        let backend = engine.device.backend()?;
        let options = engine.runner_options()?;
        let draft = DraftModel::new(&draft, target, &*backend, &options, sequences)?;
        Ok(Some(draft))
    }
}

/// A runner of one sequence, with speculation or without.
pub(crate) enum SingleRunner {
    Plain(Box<Runner>),
    Speculative(Box<SpecRunner>),
}

/// A pool with one sequence, and its speculation.
pub(crate) struct SpecRunner {
    runner: BatchRunner,
    speculator: Speculator,
}

impl SingleRunner {
    pub(crate) fn new(model: &Model, engine: &EngineArgs, spec: &SpecArgs) -> Result<SingleRunner> {
        let Some(options) = spec.options()? else {
            return Ok(SingleRunner::Plain(Box::new(engine.runner(model)?)));
        };
        let backend = engine.device.backend()?;
        let runner_options = engine.runner_options()?;
        options.check(runner_options.max_step_tokens)?;
        let candidates = options.max_candidates;
        let mut runner =
            BatchRunner::with_trees(model, &*backend, &runner_options, 1, 0, candidates)?;
        if candidates >= runner.capacity()? {
            bail!(
                "a tree of {candidates} candidates does not fit in a context of {} tokens",
                runner.capacity()?
            );
        }
        let draft = spec.draft(model, engine, 1)?;
        let costs = VerifyCosts::default();
        if options.kind == SpecType::Auto {
            runner.measure_verify_costs(&costs, candidates)?;
        }
        let speculator = Speculator::new(&options, &costs, draft.as_ref())?;
        Ok(SingleRunner::Speculative(Box::new(SpecRunner {
            runner,
            speculator,
        })))
    }

    pub(crate) fn capacity(&self) -> Result<usize> {
        Ok(match self {
            SingleRunner::Plain(runner) => runner.capacity()?,
            SingleRunner::Speculative(spec) => spec.runner.capacity()?,
        })
    }

    pub(crate) fn enable_context_shift(&mut self, keep: usize) -> Result<()> {
        Ok(match self {
            SingleRunner::Plain(runner) => runner.enable_context_shift(keep)?,
            SingleRunner::Speculative(spec) => spec.runner.enable_context_shift(keep)?,
        })
    }

    pub(crate) fn resume(
        &mut self,
        model: &Model,
        snapshot: &Snapshot,
        prompt: &[u32],
    ) -> Result<usize> {
        Ok(match self {
            SingleRunner::Plain(runner) => runner.resume(model, snapshot, prompt)?,
            SingleRunner::Speculative(spec) => spec.runner.resume(model, 0, snapshot, prompt)?,
        })
    }

    pub(crate) fn generate(
        &mut self,
        model: &Model,
        prompt: &[u32],
        sampler: &mut Sampler,
        options: &GenerateOptions,
        on_event: impl FnMut(GenerateEvent<'_>) -> bool,
    ) -> Result<GenerateOutput> {
        Ok(match self {
            SingleRunner::Plain(runner) => {
                runner.generate(model, prompt, sampler, options, on_event)?
            }
            SingleRunner::Speculative(spec) => {
                let SpecRunner { runner, speculator } = &mut **spec;
                let both = (sampler, speculator);
                runner.generate_speculative(model, 0, prompt, both, options, on_event)?
            }
        })
    }

    pub(crate) fn save(&self, model: &Model, file: &Path) -> Result<()> {
        Ok(match self {
            SingleRunner::Plain(runner) => runner.save(model, file, b"")?,
            SingleRunner::Speculative(spec) => spec.runner.save(model, 0, file, b"")?,
        })
    }

    pub(crate) fn memory(&self) -> Result<MemoryUsage> {
        Ok(match self {
            SingleRunner::Plain(runner) => runner.memory()?,
            SingleRunner::Speculative(spec) => spec.runner.memory()?,
        })
    }

    /// What speculation did.
    pub(crate) fn stats(&self) -> Option<&SpecStats> {
        match self {
            SingleRunner::Plain(_) => None,
            SingleRunner::Speculative(spec) => Some(spec.speculator.stats()),
        }
    }
}

/// What speculation did, as an object of `--json`.
pub(crate) fn spec_object(stats: &SpecStats) -> Value {
    let depth = |d: &DepthStats| json!({ "drafted": d.drafted, "accepted": d.accepted });
    json!({
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "rounds": stats.rounds,
        "mean_accepted_length": stats.mean_accepted_length(),
        "by_depth": stats.by_depth.iter().map(depth).collect::<Vec<_>>(),
        "propose_ms": stats.propose_time.as_secs_f64() * 1e3,
        "verify_ms": stats.verify_time.as_secs_f64() * 1e3,
    })
}

/// What speculation did, for people.
pub(crate) fn spec_note(stats: &SpecStats) -> String {
    let mean = stats.mean_accepted_length().unwrap_or(0.0);
    format!(
        "[speculation: {} rounds, {} of {} candidates accepted, {mean:.2} tokens a round]",
        stats.rounds, stats.accepted, stats.drafted
    )
}
