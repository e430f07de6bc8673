//! Speculation of the engine's requests: each has a tree of its own, and one forward verifies all of them.

use super::Scheduler;
use super::request::RequestEvent;
use super::running::RunningRequest;
use crate::generation::FinishReason;
use crate::speculative::{SpecType, Speculator, verify_tree};
use crate::{BatchRunner, RuntimeError};
use kv::SeqId;
use std::time::Duration;
use text::Tokenizer;

impl Scheduler {
    /// Prepares the speculation of a request that gets a sequence.
    pub(super) fn begin_speculation(
        &mut self,
        request: &mut RunningRequest,
        seq: SeqId,
    ) -> Result<(), RuntimeError> {
        let Some(options) = &request.speculation else {
            return Ok(());
        };
        options.check(self.runner.max_step_tokens())?;
        if request.speculator.is_none() {
            if options.kind == SpecType::Auto && self.costs.measured().is_empty() {
                let candidates = options.max_candidates;
                let file = self.costs_file.as_deref();
                self.costs = self.runner.verify_costs(file, candidates)?;
            }
            let draft = self.options.draft.as_ref();
            request.speculator = Some(Speculator::new(options, &self.costs, draft)?);
        }
        let speculator = request.speculator.as_ref();
        let needs = speculator.is_some_and(Speculator::needs_features);
        self.runner.keep_features(seq, needs)?;
        Ok(())
    }

    /// Proposes a tree for every request that speculates, in the room that is left beside the other tokens of the step, and
    /// sets its count. Returns the request whose proposer failed.
    pub(super) fn propose(&mut self, counts: &mut [usize]) -> Option<(usize, RuntimeError)> {
        let needed: usize = counts.iter().sum();
        let capacity = self.runner.capacity().unwrap_or(0);
        let free = capacity - self.runner.cells_used().unwrap_or(capacity);
        let free = free.min(self.runner.max_step_tokens());
        let context = self.shared.context();
        let running = self.running.iter_mut().zip(counts).enumerate();
        let mut speculating: Vec<_> = running
            .filter(|(_, (r, n))| r.decoding && r.speculator.is_some() && **n > 0)
            .collect();
        let share = free.saturating_sub(needed) / speculating.len().max(1);
        for (index, (request, count)) in &mut speculating {
            let held = self.runner.tokens(request.seq).len();
            let room = (1 + share).min(context - held).min(request.wanted());
            let mut speculator = request.speculator.take()?;
            let features = self.runner.features(request.seq);
            let tree = speculator.propose(request.history(), room.max(1), needed - 1, features);
            let tree = tree.map(|tree| tree.len());
            request.speculator = Some(speculator);
            match tree {
                Ok(nodes) => **count = nodes,
                Err(error) => return Some((*index, error)),
            }
        }
        None
    }
}

impl RunningRequest {
    /// Descends the verified tree, and samples at every node that is reached. Returns the number of tokens, and the reason
    /// if one of them ends the generation. The forward had `rows` rows for all requests and took `time`.
    pub(super) fn verify(
        &mut self,
        runner: &mut BatchRunner,
        tokenizer: Option<&Tokenizer>,
        context: usize,
        rows: usize,
        time: Duration,
    ) -> Result<(usize, Option<FinishReason>), RuntimeError> {
        let mut speculator = self.speculator.take().expect("the request speculates");
        self.advance(1);
        let seq = self.seq;
        // With the root and the nodes accepted so far, the sequence holds this many tokens.
        let mut held = runner.tokens(seq).len();
        let mut end = None;
        let result = verify_tree(speculator.tree(), |node| {
            end = self.sample(runner.candidate_row(seq, node), tokenizer)?;
            held += 1;
            if end.is_none() && held + 1 > context {
                end = Some(FinishReason::Context);
            }
            Ok::<_, RuntimeError>((self.last_token(), end.is_some()))
        });
        let result = result.and_then(|result| {
            runner.drop_features(seq, speculator.features_from());
            runner.commit_path(seq, &result.accepted)?;
            speculator.finish_round(&result, rows, time);
            for round in speculator.take_trace() {
                self.emit(RequestEvent::Round(Box::new(round)));
            }
            Ok((result.accepted.len(), end))
        });
        self.speculator = Some(speculator);
        result
    }
}
