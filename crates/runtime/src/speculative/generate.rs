//! The generation loop with speculation: each round verifies a tree for every sequence in one forward.

use super::speculator::Speculator;
use super::tree_proposal::verify_tree;
use crate::batch_runner::BatchRunner;
use crate::detokenizer::IncrementalDetokenizer;
use crate::generation::{FinishReason, GenerateEvent, GenerateOptions, GenerateOutput};
use crate::generator::{Decode, Generator, Sink, can_sample, feed_chunk};
use crate::lane::{DecodeContext, Lane};
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use backend::Wanted;
use kv::SeqId;
use std::time::Instant;

/// A sequence that generates with speculation.
struct SpecLane<'l, 'a> {
    lane: &'l mut Lane<'a>,
    speculator: &'l mut Speculator,
}

/// Rounds of speculation on one sequence.
struct SpecDecode<'a> {
    runner: &'a mut BatchRunner,
    seq: SeqId,
    speculator: &'a mut Speculator,
    /// The last token of the prompt, until the others are fed: it is the root of the first tree.
    root: Option<u32>,
}

impl SpecDecode<'_> {
    /// Makes the last token of the prompt the pending one.
    fn append_root(&mut self) -> Result<(), RuntimeError> {
        if let Some(root) = self.root {
            // Only a prompt of one token follows a pending token.
            self.runner
                .sequence(self.seq)
                .feed_wanted(&[], Wanted::Argmax, &mut |_| true)?;
            self.runner.append(self.seq, root);
            self.root = None;
        }
        Ok(())
    }
}

impl Decode for SpecDecode<'_> {
    fn prompt_len(&self, prompt: &[u32]) -> usize {
        // The last token of the prompt is the root of the first tree.
        prompt.len().saturating_sub(1)
    }

    fn feed_chunk(&mut self, tokens: &[u32]) -> Result<usize, RuntimeError> {
        let fed = feed_chunk(&mut self.runner.sequence(self.seq), tokens, Wanted::Argmax)?;
        if fed == tokens.len() {
            self.append_root()?;
        }
        Ok(fed)
    }

    fn round(&mut self, lane: &mut Lane<'_>, on_event: &mut Sink<'_>) -> Result<(), RuntimeError> {
        self.append_root()?;
        let mut lane = SpecLane {
            lane,
            speculator: self.speculator,
        };
        let lanes = std::slice::from_mut(&mut lane);
        round(self.runner, lanes, &mut |_, event| on_event(event))
    }
}

impl<'a> Generator<'a> {
    /// Appends `prompt` to a sequence and generates a continuation with speculation. The text is that of plain decoding
    /// with the same sampler. A round computes several events; an interruption between them leaves the tokens of the whole
    /// round in the sequence.
    ///
    /// # Errors
    /// `EmptyPrompt` if there is no prompt and the sequence has no pending token.
    pub fn speculative(
        runner: &'a mut BatchRunner,
        model: &'a Model,
        seq: SeqId,
        prompt: &[u32],
        (sampler, speculator): (&'a mut Sampler, &'a mut Speculator),
        options: &GenerateOptions,
    ) -> Result<Generator<'a>, RuntimeError> {
        let root = prompt.last().copied();
        if root.is_none() && !runner.is_pending(seq) {
            return Err(RuntimeErrorKind::EmptyPrompt.into());
        }
        runner.keep_features(seq, speculator.needs_features())?;
        let history = runner.tokens(seq).iter().chain(prompt);
        let detokenizer = IncrementalDetokenizer::new(options.clone(), history);
        let lane = Lane::new(seq, sampler, model, detokenizer);
        let decode = Box::new(SpecDecode {
            runner,
            seq,
            speculator,
            root,
        });
        Ok(Generator::with(decode, lane, prompt))
    }
}

impl BatchRunner {
    /// Appends `prompt` to a sequence and generates a continuation with speculation. The text is that of plain decoding
    /// with the same sampler. `on_event` returns false to cancel.
    pub fn generate_speculative(
        &mut self,
        model: &Model,
        seq: SeqId,
        prompt: &[u32],
        both: (&mut Sampler, &mut Speculator),
        options: &GenerateOptions,
        on_event: impl FnMut(GenerateEvent) -> bool,
    ) -> Result<GenerateOutput, RuntimeError> {
        Generator::speculative(self, model, seq, prompt, both, options)?.run(on_event)
    }

    /// Generates on several sequences with speculation, as [`generate`](BatchRunner::generate) does without: every sequence
    /// must have logits or a pending token, and each forward verifies a tree for all of them.
    pub fn generate_speculative_batch(
        &mut self,
        model: &Model,
        sequences: &mut [(SeqId, Sampler, Speculator)],
        options: &GenerateOptions,
        mut on_event: impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> Result<Vec<GenerateOutput>, RuntimeError> {
        let start = Instant::now();
        let mut lanes = Vec::new();
        for (seq, sampler, speculator) in sequences {
            self.keep_features(*seq, speculator.needs_features())?;
            if !can_sample(&self.sequence(*seq), sampler.wanted(), model) {
                return Err(RuntimeErrorKind::EmptyPrompt.into());
            }
            let history = self.tokens(*seq).iter();
            let detokenizer = IncrementalDetokenizer::new(options.clone(), history);
            let mut lane = Lane::new(*seq, sampler, model, detokenizer);
            if !self.is_pending(*seq) {
                let (root, go_on) = lane.sample(self.row(*seq), &mut on_event);
                self.append(*seq, root);
                if !go_on {
                    lane.finish = lane.finish.or(Some(FinishReason::Interrupted));
                }
            }
            lanes.push((lane, speculator));
        }
        while lanes.iter().any(|(lane, _)| lane.finish.is_none()) {
            let mut running: Vec<_> = lanes
                .iter_mut()
                .map(|(lane, speculator)| SpecLane { lane, speculator })
                .filter(|lane| lane.lane.finish.is_none())
                .collect();
            round(self, &mut running, &mut on_event)?;
        }
        let lanes = lanes.into_iter();
        let ended = lanes.map(|(lane, _)| lane.end_of_batch(start, &mut on_event));
        Ok(ended.collect())
    }
}

/// Verifies one tree for every lane in one forward, below the pending tokens of their sequences. All lanes must be running.
/// `on_event` returns false to cancel them.
fn round(
    runner: &mut BatchRunner,
    lanes: &mut [SpecLane<'_, '_>],
    on_event: &mut impl FnMut(SeqId, GenerateEvent) -> bool,
) -> Result<(), RuntimeError> {
    let end = |lanes: &mut [SpecLane<'_, '_>], reason| {
        for lane in lanes {
            lane.lane.finish = lane.lane.finish.or(Some(reason));
        }
    };
    let sequences: Vec<SeqId> = lanes.iter().map(|lane| lane.lane.seq).collect();
    if !runner.make_room(&sequences)? {
        end(lanes, FinishReason::Context);
        return Ok(());
    }
    let free = runner.capacity()? - runner.cells_used()?;
    let room = free.min(runner.max_step_tokens()) / lanes.len();
    let others = lanes.len() - 1;
    let wanted = Lane::wanted(lanes.iter().map(|lane| &*lane.lane));
    let mut trees = vec![];
    for lane in lanes.iter_mut() {
        let detokenizer = &lane.lane.detokenizer;
        // More tokens than are wanted need not be proposed.
        let wanted = detokenizer.max_tokens().unwrap_or(usize::MAX) - detokenizer.len();
        let features = runner.features(lane.lane.seq);
        let room = room.max(1).min(wanted);
        let history = detokenizer.history();
        let tree = lane.speculator.propose(history, room, others, features)?;
        trees.push((lane.lane.seq, tree));
    }
    let rows: usize = trees.iter().map(|(_, tree)| tree.len()).sum();
    let begun = Instant::now();
    let taken = sequences.iter().map(|seq| runner.take_pending(*seq));
    let roots: Vec<u32> = taken.map(|root| root.expect("it was appended")).collect();
    debug_assert!(
        trees
            .iter()
            .zip(&roots)
            .all(|((_, tree), root)| tree.tokens()[0] == *root)
    );
    if let Err(error) = runner.step_wanted(&[], &trees, wanted) {
        for (seq, root) in sequences.into_iter().zip(roots) {
            runner.append(seq, root);
        }
        return Err(error);
    }
    let time = begun.elapsed();
    drop(trees);
    let mut go_on = true;
    for SpecLane { lane, speculator } in lanes.iter_mut() {
        let seq = lane.seq;
        let result = verify_tree(speculator.tree(), |node| {
            let row = runner.candidate_row(seq, node);
            let (token, more) = lane.sample(row, on_event);
            go_on &= more;
            Ok::<_, RuntimeError>((token, !more || lane.finish.is_some()))
        })?;
        runner.drop_features(seq, speculator.features_from());
        runner.commit_path(seq, &result.accepted)?;
        runner.append(seq, result.bonus);
        lane.decoded += result.accepted.len();
        speculator.finish_round(&result, rows, time);
    }
    if !go_on {
        end(lanes, FinishReason::Interrupted);
    }
    Ok(())
}
