//! `DecodeStep`: one forward for many sequences, and what follows from it.

use super::constraint::MaskWorker;
use super::logprobs::GeneratedToken;
use super::sequence::Sequence;
use crate::batch_runner::{Feed, FeedOutputs, KeptStates};
use crate::generation::FinishReason;
use crate::speculative::{RoundInput, RoundTrace, propose_trees, verify_tree};
use crate::{BatchRunner, RuntimeError};
use backend::LogitsMode;
use std::time::{Duration, Instant};
use text::Tokenizer;

/// What a step did for one sequence.
pub(crate) enum StepEvent {
    /// This many tokens of the prompt are in the cache.
    PromptProgress(usize),
    /// A token was generated.
    Token(GeneratedToken),
    /// A round of speculation was verified and traced. Its tokens came before.
    Round(Box<RoundTrace>),
}

/// Receives the index of a sequence and its event. Returns false to end the sequence.
pub(crate) type StepSink<'s> = dyn FnMut(usize, StepEvent) -> bool + 's;

/// What the steps of sequences run on.
pub(crate) struct DecodeStep<'r> {
    pub(crate) runner: &'r mut BatchRunner,
    /// `None` for a model without a tokenizer, which generates ids and no text.
    pub(crate) tokenizer: Option<&'r Tokenizer>,
    /// Computes the masks of constraints while the forward runs.
    pub(crate) masks: &'r MaskWorker,
    /// The maximum number of tokens of a sequence.
    pub(crate) context: usize,
    /// Whether a sequence samples in the step that completes its prompt, or in the next one.
    pub(crate) samples_after_prompt: bool,
}

/// What a step did for all sequences.
#[derive(Default)]
pub(crate) struct StepReport {
    /// Rows of the forward.
    pub(crate) rows: usize,
    /// Rows of prompts among them.
    pub(crate) prompt_rows: usize,
    /// The duration of the forward.
    pub(crate) time: Duration,
    /// Tokens that were generated.
    pub(crate) generated: usize,
    /// The sequences that failed, by index. Their tokens are those from before the step.
    pub(crate) failures: Vec<(usize, RuntimeError)>,
}

impl StepReport {
    fn failed(&self, index: usize) -> bool {
        self.failures.iter().any(|(failed, _)| *failed == index)
    }
}

/// What a sequence feeds in a step.
#[derive(Clone, Copy, Default, PartialEq)]
enum Rows {
    /// Nothing: it does not take part.
    #[default]
    None,
    /// Nothing: it samples from the outputs that are there.
    Outputs,
    /// Its pending token, if there is one, and this many tokens of its prompt.
    Prompt(usize),
    /// Its pending token.
    Token,
    /// A tree below its pending token.
    Tree,
}

impl DecodeStep<'_> {
    /// Advances the sequences whose count is not 0: feeds `counts[i]` rows of sequence `i`, the pending token included, and
    /// samples where the prompt is complete. A sequence that speculates grows its count by the candidates of its tree.
    ///
    /// Sets `finish` of the sequences that end. The tokens of a sequence do not depend on the others.
    pub(crate) fn run(
        &mut self,
        sequences: &mut [&mut Sequence<'_>],
        counts: &mut [usize],
        on_event: &mut StepSink<'_>,
    ) -> StepReport {
        let mut report = StepReport::default();
        let mut rows = vec![Rows::None; sequences.len()];
        for (index, sequence) in sequences.iter_mut().enumerate() {
            let pending = self.runner.is_pending(sequence.seq);
            rows[index] = match counts[index] {
                0 => Rows::None,
                n if !sequence.is_decoding() => {
                    let n = n - usize::from(pending);
                    let most = sequence.most_prompt_tokens();
                    counts[index] = n.min(most) + usize::from(pending);
                    Rows::Prompt(n.min(most))
                }
                _ if !pending => Rows::Outputs,
                _ => Rows::Token,
            };
            if let Some(constraint) = &mut sequence.constraint
                && rows[index] != Rows::None
            {
                self.masks.begin(constraint);
            }
        }
        self.propose(sequences, counts, &mut rows, &mut report);
        for (rows, count) in rows.iter().zip(&*counts) {
            report.rows += count * usize::from(*rows != Rows::Outputs);
            report.prompt_rows += count * usize::from(matches!(rows, Rows::Prompt(_)));
        }
        let begun = Instant::now();
        self.forward(sequences, &mut rows, &mut report);
        report.time = begun.elapsed();
        for (index, sequence) in sequences.iter_mut().enumerate() {
            if rows[index] == Rows::None || report.failed(index) {
                continue;
            }
            let sink = &mut |event| on_event(index, event);
            let generated = match rows[index] {
                Rows::Tree => self.verify(sequence, &report, sink),
                rows => self.sample(sequence, rows, sink),
            };
            let is_prompt = matches!(rows[index], Rows::Prompt(_));
            sequence.add_time(!is_prompt, report.time);
            match generated {
                Ok(generated) => report.generated += generated,
                Err(error) => report.failures.push((index, error)),
            }
        }
        report
    }

    /// Proposes a tree for every sequence that decodes and speculates, in the room that is left beside the other rows of the
    /// step, and sets its count.
    fn propose(
        &mut self,
        sequences: &mut [&mut Sequence<'_>],
        counts: &mut [usize],
        rows: &mut [Rows],
        report: &mut StepReport,
    ) {
        let runner = &*self.runner;
        let speculating = sequences.iter().zip(&*rows);
        let speculating = speculating.filter(|(s, r)| s.speculator.is_some() && **r == Rows::Token);
        let speculating = speculating.count();
        if speculating == 0 {
            return;
        }
        let needed: usize = counts.iter().sum();
        let capacity = runner.capacity().unwrap_or(0);
        let free = capacity - runner.cells_used().unwrap_or(capacity);
        let free = free.min(runner.max_step_tokens());
        let share = free.saturating_sub(needed) / speculating;
        let taken = sequences.iter_mut().enumerate();
        let mut taken: Vec<_> = taken
            .filter(|(index, _)| rows[*index] == Rows::Token)
            .filter_map(|(index, sequence)| Some((index, sequence.speculator.take()?)))
            .collect();
        let rounds = taken.iter_mut().map(|(index, speculator)| {
            let sequence = &sequences[*index];
            let held = runner.fed_tokens(sequence.seq).len();
            let room = (1 + share)
                .min(self.context.saturating_sub(held))
                .min(sequence.left());
            let input = RoundInput {
                history: sequence.history(),
                room: room.max(1),
                others: needed - 1,
                features: runner.features(sequence.seq),
            };
            (&mut **speculator, input)
        });
        let proposed = propose_trees(&mut rounds.collect::<Vec<_>>());
        for ((index, speculator), proposed) in taken.into_iter().zip(proposed) {
            (counts[index], rows[index]) = match proposed {
                Ok(()) => (speculator.tree().len(), Rows::Tree),
                Err(error) => {
                    report.failures.push((index, error));
                    (0, Rows::None)
                }
            };
            sequences[index].speculator = Some(speculator);
        }
    }

    /// Runs the forward. If it fails for several sequences, feeds them one by one, so that only those that fail alone are
    /// reported. The outputs of a tree last until the next forward, so alone a sequence feeds its pending token only.
    fn forward(
        &mut self,
        sequences: &[&mut Sequence<'_>],
        rows: &mut [Rows],
        report: &mut StepReport,
    ) {
        let mut parts = vec![];
        // All rows have the same outputs: as many as the most demanding sequence needs.
        let mut wanted = LogitsMode::Argmax;
        for (index, sequence) in sequences.iter().enumerate() {
            let (seq, remaining) = (sequence.seq, sequence.remaining());
            let tokens = |n: usize| Feed::Tokens {
                seq,
                tokens: &remaining[..n],
                outputs: match n == remaining.len() {
                    _ if sequence.scores_prompt() && n > 0 => FeedOutputs::All,
                    true => FeedOutputs::Last,
                    false => FeedOutputs::None,
                },
                kept_states: sequence.kept_states(),
            };
            let part = match (rows[index], &sequence.speculator) {
                (Rows::None | Rows::Outputs, _) => continue,
                (Rows::Tree, Some(speculator)) => Feed::Tree {
                    seq,
                    tree: speculator.tree(),
                },
                (Rows::Prompt(n), _) => tokens(n),
                _ => tokens(0),
            };
            let without = |outputs| outputs == FeedOutputs::None;
            if !matches!(part, Feed::Tokens { outputs, .. } if without(outputs)) {
                wanted = wanted.and(sequence.wanted());
            }
            parts.push((index, part));
        }
        if parts.is_empty() {
            return;
        }
        let all: Vec<Feed<'_>> = parts.iter().map(|(_, part)| *part).collect();
        let Err(error) = self.runner.forward(&all, wanted) else {
            return;
        };
        if let [(index, _)] = parts[..] {
            report.failures.push((index, error));
            return;
        }
        for (index, part) in parts {
            let alone = match part {
                Feed::Tree { seq, .. } => {
                    rows[index] = Rows::Token;
                    Feed::Tokens {
                        seq,
                        tokens: &[],
                        outputs: FeedOutputs::Last,
                        kept_states: KeptStates::default(),
                    }
                }
                tokens => tokens,
            };
            if let Err(error) = self.runner.forward(&[alone], wanted) {
                report.failures.push((index, error));
            }
        }
    }

    /// Records the rows of a sequence, and samples its next token if its prompt is complete. Returns the number of generated
    /// tokens.
    fn sample(
        &mut self,
        sequence: &mut Sequence<'_>,
        rows: Rows,
        on_event: &mut dyn FnMut(StepEvent) -> bool,
    ) -> Result<usize, RuntimeError> {
        match rows {
            Rows::Prompt(n) => {
                if sequence.scores_prompt() {
                    sequence.score_prompt(n, self.runner.step_rows(sequence.seq))?;
                }
                let done = sequence.advance(n);
                if !on_event(StepEvent::PromptProgress(done)) {
                    sequence.finish = Some(FinishReason::Interrupted);
                    return Ok(0);
                }
            }
            Rows::Token => sequence.add_decoded(1),
            _ => {}
        }
        let waits = matches!(rows, Rows::Prompt(_)) && !self.samples_after_prompt;
        if !sequence.is_decoding() || waits {
            return Ok(0);
        }
        if sequence.is_prefill_only() {
            sequence.finish = Some(FinishReason::Length);
            return Ok(0);
        }
        let token = sequence.sample(self.runner.row(sequence.seq), self.tokenizer)?;
        self.runner.append(sequence.seq, token.id);
        if !on_event(StepEvent::Token(token)) {
            sequence.finish.get_or_insert(FinishReason::Interrupted);
        }
        Ok(1)
    }

    /// Descends the verified tree of a sequence, and samples at every node that is reached. Returns the number of generated
    /// tokens.
    fn verify(
        &mut self,
        sequence: &mut Sequence<'_>,
        report: &StepReport,
        on_event: &mut dyn FnMut(StepEvent) -> bool,
    ) -> Result<usize, RuntimeError> {
        let mut speculator = sequence.speculator.take().expect("it proposed the tree");
        let (runner, seq) = (&mut *self.runner, sequence.seq);
        let result = verify_tree(speculator.tree(), |node| {
            let token = sequence.sample(runner.candidate_row(seq, node), self.tokenizer)?;
            let id = token.id;
            if !on_event(StepEvent::Token(token)) {
                sequence.finish.get_or_insert(FinishReason::Interrupted);
            }
            Ok::<_, RuntimeError>((id, sequence.finish.is_some()))
        });
        let result = result.and_then(|result| {
            runner.drop_features(seq, speculator.features_from());
            runner.commit_path(seq, &result.accepted)?;
            runner.append(seq, result.bonus);
            speculator.finish_round(&result, report.rows, report.time);
            Ok(result.accepted.len())
        });
        match &result {
            Ok(tokens) => {
                sequence.add_decoded(*tokens);
                if let Some(round) = speculator.last_round() {
                    on_event(StepEvent::Round(Box::new(round.clone())));
                }
            }
            // The root is the last token of the sequence again.
            Err(_) => {
                runner.commit_path(seq, &[])?;
                runner.append(seq, speculator.tree().tokens()[0]);
            }
        }
        sequence.speculator = Some(speculator);
        result
    }
}
