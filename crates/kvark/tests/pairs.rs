//! Every pair of what a generation can do, on the real model: what one door can, every door can.
//!
//! A feature either changes no token (speculation, log-probabilities, a restored prompt, a snapshot in the middle, the kind of
//! cache), so that the run must give the tokens of the run without it; or its effect is checked (a grammar, several branches, a
//! context shift).

mod common;

use kvark::engine::{Engine, Request, RequestEvent, SchedulerOptions};
use kvark::generate::{
    FinishReason, GenerateOptions, GenerateOutput, Sampler, SamplerOptions, Sequence,
};
use kvark::grammar::{GrammarCompiler, GrammarSource};
use kvark::memory::CacheKind;
use kvark::snapshot::Snapshot;
use kvark::speculative::{SpecOptions, SpecType, Speculator, VerifyCosts};
use kvark::text::EncodeOptions;
use kvark::{BatchRunner, Cpu, Model, RunnerOptions};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feature {
    Grammar,
    Speculation,
    Parallel,
    PromptCache,
    ContextShift,
    Logprobs,
    Snapshot,
    Tree,
}
use Feature::*;

const ALL: [Feature; 8] = [
    Grammar,
    Speculation,
    Parallel,
    PromptCache,
    ContextShift,
    Logprobs,
    Snapshot,
    Tree,
];

/// The reason why two features cannot be together.
fn refused(a: Feature, b: Feature) -> Option<&'static str> {
    match (a, b) {
        (Tree, Parallel) | (Parallel, Tree) => Some("a tree cache holds one sequence"),
        _ => None,
    }
}

const TOKENS: usize = 40;
const CONTEXT: usize = 48;
const KEEP: usize = 4;
const PATTERN: &str = "( [a-z]{2,9},){30}";

struct Table {
    model: Arc<Model>,
    cpu: Cpu,
    grammars: GrammarCompiler,
    prompt: Vec<u32>,
    file: PathBuf,
}

fn table(name: &str) -> Option<Table> {
    let path = common::named_by("KVARK_TEST_MODEL")?;
    let model = Arc::new(Model::open(&path, None).unwrap());
    let options = EncodeOptions {
        bos: true,
        ..EncodeOptions::default()
    };
    let text = "red, green, blue, red, green, blue, red, green,";
    let file = format!("kvark-pairs-{name}-{}.kv", std::process::id());
    Some(Table {
        cpu: Cpu::new().unwrap(),
        grammars: GrammarCompiler::new(&model).unwrap(),
        prompt: model.tokenizer().unwrap().encode(text, options),
        model,
        file: std::env::temp_dir().join(file),
    })
}

impl Drop for Table {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.file);
    }
}

fn sampling() -> SamplerOptions {
    SamplerOptions {
        temperature: 0.0,
        ..SamplerOptions::default()
    }
}

fn limits(tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

fn spec_options() -> SpecOptions {
    SpecOptions {
        kind: SpecType::Ngram,
        max_candidates: 6,
        ..SpecOptions::default()
    }
}

impl Table {
    fn source(&self) -> GrammarSource {
        GrammarSource::Regex(PATTERN.to_owned())
    }

    fn runner(&self, features: &[Feature]) -> BatchRunner {
        let has = |feature| features.contains(&feature);
        let options = RunnerOptions {
            context: Some(if has(ContextShift) { CONTEXT } else { 256 }),
            ..RunnerOptions::default()
        };
        let kind = match (has(Tree), has(Parallel) || has(Speculation)) {
            (true, _) => CacheKind::Tree,
            (false, true) => CacheKind::Cells { sequences: 2 },
            (false, false) => CacheKind::Contiguous,
        };
        let mut runner =
            BatchRunner::with_cache_kind(&self.model, &self.cpu, &options, kind, 6).unwrap();
        if has(ContextShift) {
            runner.enable_context_shift(KEEP).unwrap();
        }
        runner
    }

    fn sequence(
        &self,
        features: &[Feature],
        seq: u32,
        prompt: &[u32],
        tokens: usize,
    ) -> Sequence<'static> {
        let has = |feature| features.contains(&feature);
        let spec = || Speculator::new(&spec_options(), &VerifyCosts::default(), None).unwrap();
        let grammar = has(Grammar).then(|| self.grammars.constraint(&self.source()).unwrap());
        Sequence::new(seq, prompt, Sampler::new(sampling()), &limits(tokens))
            .with_constraint(grammar)
            .with_logprobs(has(Logprobs).then_some(2))
            .with_speculator(has(Speculation).then(spec))
    }

    /// Generates on the caller's thread.
    fn inline(&self, features: &[Feature]) -> Vec<GenerateOutput> {
        let has = |feature| features.contains(&feature);
        let (model, prompt) = (&*self.model, &self.prompt[..]);
        let mut runner = self.runner(features);
        let mut rest = prompt;
        if has(PromptCache) {
            runner.sequence(0).feed(&prompt[..9], |_| true).unwrap();
            runner.save(model, 0, &self.file, b"").unwrap();
            runner = self.runner(features);
            let snapshot = Snapshot::open(&self.file).unwrap();
            let reused = runner.resume(model, 0, &snapshot, prompt).unwrap();
            assert_eq!(reused, 9);
            rest = &prompt[reused..];
        }
        let mut sequences = 1;
        if has(Parallel) {
            runner.sequence(0).feed(rest, |_| true).unwrap();
            runner.fork(0, 1).unwrap();
            (rest, sequences) = (&[], 2);
        }
        if !has(Snapshot) {
            let all = (0..sequences).map(|seq| self.sequence(features, seq, rest, TOKENS));
            return runner.generate(model, all.collect(), |_, _| true).unwrap();
        }
        // A grammar's state is not part of a snapshot, so a constrained answer is saved at its end.
        let first = if has(Grammar) { TOKENS } else { 25 };
        let all = (0..sequences).map(|seq| self.sequence(features, seq, rest, first));
        let mut found = runner.generate(model, all.collect(), |_, _| true).unwrap();
        for (seq, output) in (0..).zip(&mut found) {
            runner.save(model, seq, &self.file, b"").unwrap();
            let mut restored = self.runner(features);
            let snapshot = Snapshot::open(&self.file).unwrap();
            restored.restore(model, seq, &snapshot).unwrap();
            if first < TOKENS {
                let last = *output.tokens.last().unwrap();
                let more = self.sequence(features, seq, &[last], TOKENS - first);
                let more = restored.generate(model, vec![more], |_, _| true).unwrap();
                output.tokens.extend(&more[0].tokens);
                output.text.push_str(&more[0].text);
                output.logprobs.extend(more[0].logprobs.clone());
                output.finish = more[0].finish;
            }
        }
        found
    }

    /// Generates in the engine, where features of the caller's runner have no place: `None` for those.
    fn engine(&self, features: &[Feature]) -> Option<Vec<GenerateOutput>> {
        let has = |feature| features.contains(&feature);
        if has(Snapshot) || has(Tree) {
            return None;
        }
        let options = RunnerOptions {
            context: Some(if has(ContextShift) { CONTEXT } else { 256 }),
            pool_cells: Some(1024),
            ..RunnerOptions::default()
        };
        let scheduler = SchedulerOptions {
            context_shift: has(ContextShift).then_some(KEEP),
            ..SchedulerOptions::default()
        };
        let engine = Engine::start(self.model.clone(), &self.cpu, &options, &scheduler).unwrap();
        let request = |prompt: &[u32], tokens| Request {
            sampling: sampling(),
            options: limits(tokens),
            logprobs: has(Logprobs).then_some(2),
            constraint: has(Grammar).then(|| self.grammars.constraint(&self.source()).unwrap()),
            speculation: has(Speculation).then(spec_options),
            ..Request::new(prompt.to_vec())
        };
        if has(PromptCache) {
            let events = engine.handle().generate(request(&self.prompt[..9], 0));
            events.unwrap().for_each(drop);
        }
        let count = if has(Parallel) { 2 } else { 1 };
        let streams = (0..count).map(|_| engine.handle().generate(request(&self.prompt, TOKENS)));
        let streams: Vec<_> = streams.map(Result::unwrap).collect();
        let collect = |events: kvark::engine::Generation| {
            let (mut text, mut logprobs) = (String::new(), vec![]);
            for event in events {
                match event {
                    RequestEvent::Token(token) => {
                        text.push_str(&token.text);
                        logprobs.extend(token.logprobs);
                    }
                    RequestEvent::Finished(end) => {
                        text.push_str(&end.rest);
                        assert!(end.cache.cached_tokens >= if has(PromptCache) { 8 } else { 0 });
                        return GenerateOutput {
                            tokens: end.tokens,
                            text,
                            prompt_logprobs: end.prompt_logprobs,
                            logprobs,
                            finish: end.finish,
                            stop_string: end.stop_string,
                            timings: end.timings,
                            speculation: end.speculation,
                        };
                    }
                    RequestEvent::Failed(error) => panic!("{features:?}: {error}"),
                    _ => {}
                }
            }
            panic!("no end")
        };
        Some(streams.into_iter().map(collect).collect())
    }

    /// What features without an effect on tokens leave of a pair.
    fn check(&self, features: &[Feature], found: &[GenerateOutput], plain: &GenerateOutput) {
        let has = |feature| features.contains(&feature);
        assert_eq!(found.len(), if has(Parallel) { 2 } else { 1 });
        for output in found {
            assert_eq!(output.finish, FinishReason::Length, "{features:?}");
            assert_eq!(output.tokens.len(), TOKENS, "{features:?}");
            // Two branches fill one pool twice as fast, so they are shifted earlier than one.
            if !(has(Parallel) && has(ContextShift)) {
                assert_eq!(output.tokens, plain.tokens, "{features:?}");
                assert_eq!(output.text, plain.text, "{features:?}");
            }
            if has(Grammar) {
                let words = output.text.split(',').map(str::trim);
                let legal = |word: &str| word.chars().all(|c| c.is_ascii_lowercase());
                assert!(words.clone().all(legal), "{:?}", output.text);
            }
            let logprobs = if has(Logprobs) { TOKENS } else { 0 };
            assert_eq!(output.logprobs.len(), logprobs, "{features:?}");
            for (token, logprobs) in output.tokens.iter().zip(&output.logprobs) {
                assert_eq!(logprobs.top.len(), 2);
                let likeliest = logprobs.top[0];
                assert!(has(Grammar) || likeliest == (*token, logprobs.logprob));
            }
            assert_eq!(
                output.speculation.is_some(),
                has(Speculation),
                "{features:?}"
            );
        }
    }
}

/// Runs all pairs on the caller's thread and in the engine, and compares each with the run without what changes no token.
#[test]
fn every_pair_works_or_is_refused_with_a_reason() {
    let Some(table) = table("all") else {
        return;
    };
    let effective = |features: &[Feature]| -> Vec<Feature> {
        let has_effect = |f: &&Feature| matches!(f, Grammar | ContextShift);
        features.iter().filter(has_effect).copied().collect()
    };
    let mut plain: Vec<(Vec<Feature>, GenerateOutput)> = vec![];
    let mut runs = 0;
    for (index, a) in ALL.into_iter().enumerate() {
        for b in ALL.into_iter().skip(index) {
            let features = [a, b];
            if let Some(reason) = refused(a, b).filter(|_| a != b) {
                assert!(!reason.is_empty());
                continue;
            }
            let base = effective(&features);
            let known = plain.iter().position(|(features, _)| *features == base);
            let known = known.unwrap_or_else(|| {
                let output = table.inline(&base).remove(0);
                plain.push((base, output));
                plain.len() - 1
            });
            let expected = plain[known].1.clone();
            table.check(&features, &table.inline(&features), &expected);
            runs += 1;
            if let Some(found) = table.engine(&features) {
                table.check(&features, &found, &expected);
                runs += 1;
            }
        }
    }
    assert!(runs > 45, "{runs}");
}

#[test]
fn what_a_kind_of_cache_cannot_do_is_named() {
    let Some(table) = table("refused") else {
        return;
    };
    let mut tree = table.runner(&[Tree]);
    tree.sequence(0).feed(&table.prompt, |_| true).unwrap();
    let message = |error: kvark::RuntimeError| error.to_string();
    let forked = tree.fork(0, 1).map_err(message);
    assert_eq!(
        forked,
        Err("a tree cache cannot fork a sequence".to_owned())
    );
    let mut plain = table.runner(&[]);
    let sequence = table.sequence(&[Speculation], 0, &table.prompt, 4);
    let refused = plain.generate(&table.model, vec![sequence], |_, _| true);
    let refused = refused.map_err(message).err().unwrap_or_default();
    assert!(refused.contains("cells or tree"), "{refused}");
}
