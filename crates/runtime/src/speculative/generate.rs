//! The generation loop with speculation: each round verifies a tree for every sequence in one forward.

use super::speculator::Speculator;
use super::tree_proposal::verify_tree;
use crate::batch_runner::BatchRunner;
use crate::detokenizer::IncrementalDetokenizer;
use crate::generate::{
    DecodeContext, FinishReason, GenerateEvent, GenerateOptions, GenerateOutput, Lane, Timings,
};
use crate::{Model, RuntimeError, RuntimeErrorKind, Sampler};
use kv::SeqId;
use std::time::{Duration, Instant};

/// A sequence that generates with speculation.
struct SpecLane<'a> {
    lane: Lane<'a>,
    speculator: &'a mut Speculator,
    /// The token that is fed next.
    root: u32,
}

impl BatchRunner {
    /// Appends `prompt` to a sequence and generates a continuation with speculation. The text is that of plain decoding
    /// with the same sampler. `on_event` returns false to cancel.
    pub fn generate_speculative(
        &mut self,
        model: &Model,
        seq: SeqId,
        prompt: &[u32],
        (sampler, speculator): (&mut Sampler, &mut Speculator),
        options: &GenerateOptions,
        mut on_event: impl FnMut(GenerateEvent<'_>) -> bool,
    ) -> Result<GenerateOutput, RuntimeError> {
        let Some((root, before)) = prompt.split_last() else {
            return Err(RuntimeErrorKind::EmptyPrompt.into());
        };
        self.keep_features(seq, speculator.needs_features())?;
        let start = Instant::now();
        let history = self.tokens(seq).iter().chain(prompt);
        let detokenizer = IncrementalDetokenizer::new(options.clone(), history);
        // The last token of the prompt is the root of the first tree.
        if !before.is_empty() {
            let mut progress = |done| on_event(GenerateEvent::PromptProgress(done));
            if !self.sequence(seq).feed(before, &mut progress)? {
                return Ok(detokenizer.finish(FinishReason::Interrupted, |_| {}));
            }
        }
        let prompt_time = start.elapsed();
        let start = Instant::now();
        let mut lane = SpecLane {
            lane: Lane::new(seq, sampler, model, detokenizer),
            speculator,
            root: *root,
        };
        let lanes = std::slice::from_mut(&mut lane);
        generate_rounds(self, lanes, |_, event| on_event(event))?;
        let mut generated = lane.lane.end(|text| {
            on_event(GenerateEvent::Text(text));
        });
        generated.timings = Timings {
            prompt_tokens: prompt.len(),
            prompt_time,
            generated_tokens: generated.tokens.len(),
            decode_time: start.elapsed(),
            decoded_tokens: generated.tokens.len(),
            queue_time: Duration::ZERO,
        };
        Ok(generated)
    }

    /// Generates on several sequences with speculation, as [`generate`](BatchRunner::generate) does without: every sequence
    /// must have logits, and each forward verifies a tree for all of them.
    pub fn generate_speculative_batch(
        &mut self,
        model: &Model,
        sequences: &mut [(SeqId, Sampler, Speculator)],
        options: &GenerateOptions,
        mut on_event: impl FnMut(SeqId, GenerateEvent<'_>) -> bool,
    ) -> Result<Vec<GenerateOutput>, RuntimeError> {
        let start = Instant::now();
        let mut lanes = Vec::new();
        for (seq, sampler, speculator) in sequences {
            self.keep_features(*seq, speculator.needs_features())?;
            let vocab = model.facts().vocab_size;
            if !self.row(*seq).holds(sampler.wanted(), vocab) {
                return Err(RuntimeErrorKind::EmptyPrompt.into());
            }
            let history = self.tokens(*seq).iter();
            let detokenizer = IncrementalDetokenizer::new(options.clone(), history);
            let mut lane = Lane::new(*seq, sampler, model, detokenizer);
            let (root, go_on) = lane.sample(self.row(*seq), &mut on_event);
            if !go_on {
                lane.finish = lane.finish.or(Some(FinishReason::Interrupted));
            }
            lanes.push(SpecLane {
                lane,
                speculator,
                root,
            });
        }
        generate_rounds(self, &mut lanes, &mut on_event)?;
        let end = |lane: SpecLane<'_>| {
            let seq = lane.lane.seq;
            let mut generated = lane.lane.end(|text| {
                on_event(seq, GenerateEvent::Text(text));
            });
            generated.timings = Timings {
                generated_tokens: generated.tokens.len(),
                decode_time: start.elapsed(),
                decoded_tokens: generated.decoded(),
                ..Timings::default()
            };
            generated
        };
        Ok(lanes.into_iter().map(end).collect())
    }
}

/// Runs rounds until every lane has ended. `on_event` returns false to cancel all lanes.
fn generate_rounds(
    runner: &mut BatchRunner,
    lanes: &mut [SpecLane<'_>],
    mut on_event: impl FnMut(SeqId, GenerateEvent<'_>) -> bool,
) -> Result<(), RuntimeError> {
    loop {
        let running = lanes.iter().filter(|lane| lane.lane.finish.is_none());
        let running: Vec<SeqId> = running.map(|lane| lane.lane.seq).collect();
        if running.is_empty() {
            return Ok(());
        }
        for seq in &running {
            if runner.can_extend(running.len())? {
                break;
            }
            runner.shift_context(*seq)?;
        }
        if !runner.can_extend(running.len())? {
            for lane in lanes.iter_mut() {
                lane.lane.finish = lane.lane.finish.or(Some(FinishReason::Context));
            }
            return Ok(());
        }
        let free = runner.capacity()? - runner.cells_used()?;
        let room = free.min(runner.max_step_tokens()) / running.len();
        let wanted = Lane::wanted(lanes.iter().map(|lane| &lane.lane));
        let mut trees = vec![];
        for lane in lanes.iter_mut().filter(|lane| lane.lane.finish.is_none()) {
            let detokenizer = &lane.lane.detokenizer;
            // More tokens than are wanted need not be proposed.
            let wanted = detokenizer.max_tokens().unwrap_or(usize::MAX) - detokenizer.len();
            let features = runner.features(lane.lane.seq);
            let room = room.max(1).min(wanted);
            let history = detokenizer.history();
            let tree = lane
                .speculator
                .propose(history, room, running.len() - 1, features)?;
            debug_assert_eq!(tree.tokens()[0], lane.root);
            trees.push((lane.lane.seq, tree));
        }
        let rows: usize = trees.iter().map(|(_, tree)| tree.len()).sum();
        let begun = Instant::now();
        runner.step_wanted(&[], &trees, wanted)?;
        let time = begun.elapsed();
        drop(trees);
        let mut go_on = true;
        for lane in lanes.iter_mut().filter(|lane| lane.lane.finish.is_none()) {
            let SpecLane {
                lane,
                speculator,
                root,
            } = lane;
            let seq = lane.seq;
            let result = verify_tree(speculator.tree(), |node| {
                let row = runner.candidate_row(seq, node);
                let (token, more) = lane.sample(row, &mut on_event);
                go_on &= more;
                Ok::<_, RuntimeError>((token, !more || lane.finish.is_some()))
            })?;
            runner.drop_features(seq, speculator.features_from());
            runner.commit_path(seq, &result.accepted)?;
            *root = result.bonus;
            speculator.finish_round(&result, rows, time);
        }
        if !go_on {
            for lane in lanes.iter_mut() {
                lane.lane.finish = lane.lane.finish.or(Some(FinishReason::Interrupted));
            }
            return Ok(());
        }
    }
}
