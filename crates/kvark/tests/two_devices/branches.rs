//! Models with recurrent layers and with routed experts on the device: branches, batches and rewinds have the bits of cold runs there,
//! and agree with the CPU.

use super::*;
use crate::common::GenerateForms;
use kvark::BatchRunner;
use kvark::backend::RunMode;
use kvark::generate::{BatchToken, Sampler};
use kvark::speculative::{SpecOptions, SpecType, Speculator, VerifyCosts};

const RECURRENT: [&str; 10] = [
    "granitehybrid",
    "granitehybrid_moe",
    "lfm2",
    "lfm2moe",
    "mamba2",
    "mamba2_groups",
    "nemotron_h",
    "qwen35",
    "qwen35moe",
    "qwen3next",
];

const EXPERTS: [&str; 12] = [
    "deepseek2_lite",
    "deepseek3",
    "gemma4_moe",
    "glm47_flash",
    "glm4moe",
    "mixtral",
    "qwen2moe",
    "qwen3moe",
    "olmoe",
    "granitemoe",
    "granitemoe_shared",
    "gpt_oss",
];

const MODES: [RunMode; 3] = [RunMode::Full, RunMode::Piecewise, RunMode::None];
const SEQUENCES: u32 = 4;
const CONTEXT: usize = 128;
/// The most tokens of a sequence; all sequences share the context's cells.
const MAX_TOKENS: usize = 80;
const OPERATIONS: usize = 24;

fn branch_options() -> RunnerOptions {
    RunnerOptions {
        pool_cells: Some(SEQUENCES as usize * CONTEXT),
        max_step_tokens: 32,
        // Rings would refuse rewinds past their window.
        ring_layers: false,
        state_interval: 16,
        ..options(CONTEXT)
    }
}

/// A linear congruential generator.
struct Noise(u64);

impl Noise {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }

    fn tokens(&mut self, n: usize, vocabulary: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(vocabulary) as u32).collect()
    }
}

/// Random operations on the sequences of one runner.
struct History<'a> {
    name: &'a str,
    vocabulary: usize,
    noise: Noise,
    runner: BatchRunner,
    /// Cold runs on the device and on the CPU.
    cold: Runner,
    host: Runner,
    /// Differences from the CPU.
    differences: Vec<f32>,
}

impl History<'_> {
    fn run(&mut self) {
        for _ in 0..OPERATIONS {
            let seq = self.noise.below(SEQUENCES as usize) as u32;
            match self.noise.below(7) {
                0..3 => self.step(),
                3..5 => self.feed(seq),
                5 => self.fork(seq),
                _ => self.rewind(seq),
            }
        }
    }

    /// One token for each of some sequences, in one step.
    fn step(&mut self) {
        let mut seqs: Vec<u32> = (0..SEQUENCES).collect();
        seqs.retain(|seq| self.noise.below(3) > 0 && self.has_room(*seq, 1));
        let tokens = self.noise.tokens(seqs.len(), self.vocabulary);
        let tokens = seqs.iter().zip(tokens).map(|(seq, id)| BatchToken {
            seq: *seq,
            id,
            logits: true,
        });
        let tokens: Vec<BatchToken> = tokens.collect();
        if tokens.is_empty() {
            return;
        }
        self.runner.step(&tokens).unwrap();
        for seq in seqs {
            self.compare(seq);
        }
    }

    fn feed(&mut self, seq: u32) {
        let count = 1 + self.noise.below(40);
        if self.has_room(seq, count) {
            let tokens = self.noise.tokens(count, self.vocabulary);
            self.runner.sequence(seq).feed(&tokens, |_| true).unwrap();
            self.compare(seq);
        }
    }

    fn fork(&mut self, src: u32) {
        let dst = (src + 1 + self.noise.below(SEQUENCES as usize - 1) as u32) % SEQUENCES;
        let len = self.noise.below(self.runner.tokens(src).len() + 1);
        self.runner.remove(dst).unwrap();
        self.runner.fork_prefix(src, dst, len).unwrap();
        assert_eq!(self.runner.tokens(dst), &self.runner.tokens(src)[..len]);
    }

    fn rewind(&mut self, seq: u32) {
        let len = self.noise.below(self.runner.tokens(seq).len() + 1);
        self.runner.rewind(seq, len).unwrap();
    }

    fn has_room(&self, seq: u32, tokens: usize) -> bool {
        self.runner.tokens(seq).len() + tokens <= MAX_TOKENS
    }

    /// Compares the logits of a sequence with those of cold runs.
    fn compare(&mut self, seq: u32) {
        let tokens = self.runner.tokens(seq).to_vec();
        for cold in [&mut self.cold, &mut self.host] {
            cold.rewind(0).unwrap();
            cold.feed(&tokens, |_| true).unwrap();
        }
        let found = self.runner.logits(seq);
        let same = found.iter().zip(self.cold.logits());
        let same = same.filter(|(a, b)| a.to_bits() == b.to_bits()).count();
        let (name, len) = (self.name, tokens.len());
        assert_eq!(
            same,
            found.len(),
            "{name}: {len} tokens of sequence {seq} are not the cold run's"
        );
        self.differences.push(difference(found, self.host.logits()));
    }
}

#[test]
fn branches_have_the_bits_of_cold_runs_and_the_logits_of_the_cpu() {
    let (cpu, device) = (cpu(), device());
    for name in RECURRENT.into_iter().chain(EXPERTS) {
        let model = fixture(name);
        let options = branch_options();
        for (seed, mode) in MODES.into_iter().enumerate() {
            let mut runner =
                BatchRunner::with_trees(&model, &*device, &options, SEQUENCES as usize, 0, 0)
                    .unwrap();
            runner.set_run_mode(mode).unwrap();
            let [cold, host] = [&device, &cpu].map(|b| Runner::new(&model, &**b, &options));
            let mut history = History {
                name,
                vocabulary: model.facts().vocab_size,
                noise: Noise(seed as u64 * 7 + 3),
                runner,
                cold: cold.unwrap(),
                host: host.unwrap(),
                differences: vec![],
            };
            history.run();
            check_differences(
                &format!("{name} in branches, {mode:?}"),
                history.differences,
            );
        }
    }
}

#[test]
fn speculation_on_states_and_experts_gives_the_tokens_of_plain_decoding() {
    let device = device();
    for name in RECURRENT.into_iter().chain(EXPERTS) {
        let model = fixture(name);
        let half = Noise(5).tokens(20, model.facts().vocab_size);
        let prompt = [half.clone(), half].concat();
        let mut plain = Runner::new(&model, &*device, &branch_options()).unwrap();
        let expect = plain
            .generate(
                &model,
                &prompt,
                &mut Sampler::new(greedy()),
                &exactly(40),
                |_| true,
            )
            .unwrap();
        let spec = SpecOptions {
            kind: SpecType::Ngram,
            ..SpecOptions::default()
        };
        let candidates = spec.max_candidates;
        let mut runner =
            BatchRunner::with_trees(&model, &*device, &branch_options(), 1, 0, candidates).unwrap();
        let mut speculator = Speculator::new(&spec, &VerifyCosts::default(), None).unwrap();
        let both = (&mut Sampler::new(greedy()), &mut speculator);
        let found = runner.generate_speculative(&model, 0, &prompt, both, &exactly(40), |_| true);
        assert_eq!(found.unwrap().tokens, expect.tokens, "{name}");
    }
}
