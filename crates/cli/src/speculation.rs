//! Speculative decoding on the command line: its options, and the runner whose sequences use it or not.

use crate::args::{self, EngineArgs, ModelArgs};
use crate::default_head;
use crate::named_value::NamedValue;
use crate::prefix::GivenPrefix;
use anyhow::{Context, Result, bail};
use clap::Args;
use kvark::memory::CacheKind;
use kvark::model::FeatureLayers;
use kvark::speculative::{
    DraftSource, Drafter, SpecOptions, SpecStats, SpecType, Speculator, VerifyCosts,
};
use kvark::{BatchRunner, Model};
use std::path::PathBuf;

/// Options of speculative decoding. The text is the same with and without it.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Speculative decoding")]
pub(crate) struct SpecArgs {
    /// Source of candidate tokens, which the model verifies several at a time: ngram (repetitions of the prompt and the
    /// answer), draft (a smaller model, -md), eagle3 (a head on the model's features, -md), mtp (the head that the model itself carries, or a gemma4-assistant, -md), auto (what is there, where it pays) or none
    /// [default: none, or the kind of -md]
    #[arg(long, value_name = "TYPE", hide_possible_values = true, value_parser = spec_types())]
    spec_type: Option<SpecChoice>,
    /// Smaller model with the same vocabulary, Eagle3 head or gemma4-assistant that proposes tokens; -md too. A head beside the model, named
    /// NAME.eagle3.gguf, is found without it, and the default model has one. mtp is the head that the model itself carries. A head is a GGUF file, a safetensors file with its
    /// config.json, or their folder
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
    /// Write a page that draws the tree of every round, with what was accepted
    #[arg(long, value_name = "FILE.html")]
    spec_trace: Option<PathBuf>,
}

/// The value of `--spec-type`; `None` is `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpecChoice(Option<SpecType>);

/// The parser of types.
fn spec_types() -> NamedValue<SpecChoice> {
    let names = SpecType::ALL.map(SpecType::name).into_iter();
    NamedValue::new(names.chain(["none"]), spec_type)
}

fn spec_type(name: &str) -> Result<SpecChoice, String> {
    if name == "none" {
        return Ok(SpecChoice(None));
    }
    let known = SpecType::from_name(name);
    let names = SpecType::ALL.map(SpecType::name).join(", ");
    let known = known.ok_or_else(|| format!("must be one of {names}, none"))?;
    Ok(SpecChoice(Some(known)))
}

/// A draft that was opened before its target, which must give it features.
pub(crate) struct OpenDraft(Option<DraftSource>);

impl OpenDraft {
    /// The target's layers whose inputs the draft needs.
    pub(crate) fn feature_layers(&self) -> FeatureLayers {
        let source = self.0.as_ref();
        source.map(DraftSource::feature_layers).unwrap_or_default()
    }

    /// Loads the draft.
    pub(crate) fn load(
        &self,
        target: &Model,
        engine: &EngineArgs,
        sequences: usize,
    ) -> Result<Option<Drafter>> {
        let Some(draft) = &self.0 else {
            return Ok(None);
        };
        let backend = engine.device.backend()?;
        let options = engine.runner_options()?;
        Ok(draft.load(target, &*backend, &options, sequences)?)
    }
}

impl SpecArgs {
    /// Whether speculation was asked for.
    pub(crate) fn is_on(&self) -> bool {
        match self.spec_type {
            Some(SpecChoice(kind)) => kind.is_some(),
            None => self.model_draft.is_some(),
        }
    }

    /// Opens the draft: the named one or, for types that use a head, the one beside the model.
    pub(crate) fn open_draft(&self, model: &ModelArgs, engine: &EngineArgs) -> Result<OpenDraft> {
        let kind = self.spec_type.and_then(|SpecChoice(kind)| kind);
        let path = match (&self.model_draft, kind) {
            (_, Some(SpecType::Ngram)) => None,
            (Some(name), _) if self.is_on() => Some(args::draft_path(name)?),
            (None, Some(SpecType::Mtp)) => Some(DraftSource::MTP.into()),
            (None, Some(SpecType::Eagle3)) => default_head::beside(&model.path()?)?,
            // Without a head, other proposers are left.
            (None, Some(SpecType::Auto)) => default_head::beside(&model.path()?).unwrap_or(None),
            _ => None,
        };
        let context = engine.ctx_size.map(|n| n as usize);
        let source = path.map(|path| DraftSource::open(&path, context));
        Ok(OpenDraft(match (source.transpose()?, kind) {
            (None, Some(SpecType::Auto)) => Some(DraftSource::MtpIfCarried),
            (source, _) => source,
        }))
    }

    /// The options, or `None` for plain decoding.
    pub(crate) fn options(&self, draft: &OpenDraft) -> Result<Option<SpecOptions>> {
        let drafted = draft.0.as_ref().map(DraftSource::kind);
        let kind = match self.spec_type {
            Some(SpecChoice(kind)) => kind,
            None => drafted,
        };
        let Some(kind) = kind else {
            let sizes = [self.spec_tree, self.spec_depth, self.spec_topk];
            if sizes.iter().any(Option::is_some) {
                bail!("--spec-tree, --spec-depth and --spec-topk need --spec-type");
            }
            return Ok(None);
        };
        match (kind, drafted) {
            (SpecType::Draft, None) => {
                bail!("--spec-type draft needs a draft model: name it with --model-draft")
            }
            (SpecType::Draft, Some(SpecType::Eagle3)) => {
                bail!("--model-draft is an Eagle3 head: use --spec-type eagle3")
            }
            (SpecType::Eagle3, None) => bail!(
                "--spec-type eagle3 needs a head: name it with --model-draft, or put it beside the model as NAME.eagle3.gguf"
            ),
            (SpecType::Draft | SpecType::Eagle3, Some(SpecType::Mtp)) => {
                bail!("--model-draft is an MTP head: use --spec-type mtp")
            }
            (SpecType::Mtp, Some(SpecType::Draft | SpecType::Eagle3)) => {
                bail!(
                    "--spec-type mtp uses an MTP head, which --model-draft is not: leave --model-draft out for the one that the model carries"
                )
            }
            (SpecType::Eagle3, Some(SpecType::Draft)) => {
                bail!("--model-draft is not an Eagle3 head: use --spec-type draft")
            }
            (SpecType::Ngram, _) if self.model_draft.is_some() => {
                bail!("--spec-type ngram uses no draft: leave --model-draft out, or use auto")
            }
            _ => {}
        }
        let defaults = SpecOptions::default();
        Ok(Some(SpecOptions {
            kind,
            max_candidates: self.spec_tree.unwrap_or(defaults.max_candidates),
            max_depth: self.spec_depth.unwrap_or(defaults.max_depth),
            top_k: self.spec_topk.unwrap_or(defaults.top_k),
            trace: self.spec_trace.is_some(),
            ..defaults
        }))
    }

    /// Writes the page of `--spec-trace`.
    pub(crate) fn write_trace(&self, model: &Model, stats: &SpecStats) -> Result<()> {
        let Some(file) = &self.spec_trace else {
            return Ok(());
        };
        let page = crate::spec_trace::page(model, stats);
        std::fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Fails before any work if the page of `--spec-trace` could not be written in the end.
    pub(crate) fn check_trace(&self) -> Result<()> {
        let Some(file) = &self.spec_trace else {
            return Ok(());
        };
        if !self.is_on() {
            bail!("--spec-trace needs --spec-type");
        }
        let opened = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file);
        opened.with_context(|| format!("cannot write {}", file.display()))?;
        Ok(())
    }
}

/// A runner, and what its sequences share when they speculate.
pub(crate) struct Pool {
    pub(crate) runner: BatchRunner,
    speculation: Option<Speculation>,
}

struct Speculation {
    options: SpecOptions,
    costs: VerifyCosts,
    draft: Option<Drafter>,
}

impl Pool {
    /// The speculation of one more sequence, if it was asked for.
    pub(crate) fn speculator(&self) -> Result<Option<Speculator>> {
        let made = self.speculation.as_ref().map(|shared| {
            let draft = shared.draft.as_ref();
            Speculator::new(&shared.options, &shared.costs, draft)
        });
        Ok(made.transpose()?)
    }

    /// Whether proposals need the model's features, also those of the prompt.
    pub(crate) fn needs_features(&self) -> bool {
        let shared = self.speculation.as_ref();
        let draft = shared.and_then(|shared| shared.draft.as_ref());
        draft.is_some_and(Drafter::needs_features)
    }
}

/// A runner on a cache of this kind, and the speculation of its sequences if it was asked for.
pub(crate) fn open_pool(
    model: &Model,
    engine: &EngineArgs,
    spec: &SpecArgs,
    draft: &OpenDraft,
    kind: CacheKind,
    prefix: Option<&GivenPrefix>,
) -> Result<Pool> {
    let backend = engine.device.backend()?;
    let mut runner_options = engine.runner_options()?;
    let shared = prefix.map(|prefix| prefix.file.shared(model, &*backend, &runner_options));
    runner_options.prefix = shared.transpose()?;
    let options = spec.options(draft)?;
    let candidates = options.as_ref().map_or(0, |options| options.max_candidates);
    if let Some(options) = &options {
        options.check(runner_options.max_step_tokens)?;
    }
    let mut runner =
        BatchRunner::with_cache_kind(model, &*backend, &runner_options, kind, candidates)?;
    let Some(options) = options else {
        return Ok(Pool {
            runner,
            speculation: None,
        });
    };
    if candidates >= runner.capacity()? {
        bail!(
            "a tree of {candidates} candidates does not fit in a context of {} tokens",
            runner.capacity()?
        );
    }
    let sequences = match kind {
        CacheKind::Cells { sequences } => sequences as usize,
        _ => 1,
    };
    let draft = draft.load(model, engine, sequences)?;
    let costs = match options.kind {
        SpecType::Auto => {
            let file = VerifyCosts::file(model, &*backend, &runner_options);
            runner.verify_costs(file.as_deref(), candidates)?
        }
        _ => VerifyCosts::default(),
    };
    let speculation = Some(Speculation {
        options,
        costs,
        draft,
    });
    Ok(Pool {
        runner,
        speculation,
    })
}

/// The counts of speculation as one line for people.
pub(crate) fn spec_note(stats: &SpecStats) -> String {
    let mean = stats.mean_accepted_length().unwrap_or(0.0);
    format!(
        "[speculation: {} rounds, {} of {} candidates accepted, {mean:.2} tokens a round]",
        stats.rounds, stats.accepted, stats.drafted
    )
}
