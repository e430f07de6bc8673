//! `Generator`: runs the steps of sequences on the caller's thread.

use crate::batch_runner::{BatchRunner, SequenceHandle};
use crate::decode::{DecodeStep, MaskWorker, Owned, Sequence, StepEvent};
use crate::generation::{FinishReason, GenerateEvent, GenerateOptions, GenerateOutput};
use crate::{Model, RuntimeError, Sampler};
use kv::SeqId;
use std::collections::VecDeque;
use std::time::Instant;

/// A generation whose events the caller pulls: an iterator over prompt progress and text.
///
/// A call of `next` computes at most one step: a chunk of the prompt, or a decode. The generated tokens stay in the sequences. The
/// last one of each is pending ([`SequenceHandle`]): it is fed by whoever continues the sequence. [`finish`](Generator::finish)
/// returns the whole output, [`pause`](Generator::pause) leaves the runner to the caller for a while.
pub struct Generator<'r, 's> {
    runner: &'r mut BatchRunner,
    model: &'r Model,
    state: PausedGeneration<'s>,
}

/// A generation between two steps, without its runner: [`Generator::pause`] makes it.
///
/// The caller may read the sequences before it resumes the generation, and must not change them.
pub struct PausedGeneration<'a> {
    /// The sequences that have not ended, with their places among the outputs.
    running: Vec<(usize, Sequence<'a>)>,
    outputs: Vec<Option<GenerateOutput>>,
    /// Events that are computed but not yet pulled.
    events: VecDeque<(SeqId, GenerateEvent)>,
    masks: MaskWorker,
}

/// Receives events as they are computed. Returns false to end the generation.
type Sink<'s> = dyn FnMut(SeqId, GenerateEvent) -> bool + 's;

impl<'r, 's> Generator<'r, 's> {
    /// Appends `prompt` to a sequence and generates a continuation. Nothing is computed before the first `next`.
    ///
    /// # Errors
    /// Those of [`of`](Generator::of).
    pub fn new(
        sequence: impl Into<SequenceHandle<'r>>,
        model: &'r Model,
        prompt: &[u32],
        sampler: impl Into<Owned<'s, Sampler>>,
        options: &GenerateOptions,
    ) -> Result<Generator<'r, 's>, RuntimeError> {
        let SequenceHandle { runner, seq } = sequence.into();
        let sequence = Sequence::new(seq, prompt, sampler, options)
            .with_message_ends(&model.message_ends(prompt));
        Generator::of(runner, model, vec![sequence])
    }

    /// Generates on several sequences of a runner, one forward for all in each step. Nothing is computed before the first `next`.
    ///
    /// # Errors
    /// `EmptyPrompt` if a sequence has no prompt and neither a pending token nor outputs to sample from, `InvalidOptions` if it
    /// speculates and the runner cannot.
    pub fn of(
        runner: &'r mut BatchRunner,
        model: &'r Model,
        mut sequences: Vec<Sequence<'s>>,
    ) -> Result<Generator<'r, 's>, RuntimeError> {
        for sequence in &mut sequences {
            sequence.begin(runner)?;
        }
        let state = PausedGeneration {
            outputs: vec![None; sequences.len()],
            running: sequences.into_iter().enumerate().collect(),
            events: VecDeque::new(),
            masks: MaskWorker::new(model.facts().vocab_size),
        };
        Ok(Generator {
            runner,
            model,
            state,
        })
    }

    /// Ends the borrow of the runner without ending the generation.
    pub fn pause(self) -> PausedGeneration<'s> {
        self.state
    }

    /// Ends the generation. Events that are computed already still follow.
    pub fn interrupt(&mut self) {
        self.state.interrupt();
    }

    /// Interrupts the generation if it still runs, and returns the output of its first sequence.
    pub fn finish(self) -> GenerateOutput {
        self.state.finish()
    }

    /// Runs the generation to its end and returns the outputs of its sequences. `on_event` receives the events as they are
    /// computed, each with its sequence, and returns false to cancel.
    pub fn run(
        mut self,
        mut on_event: impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> Result<Vec<GenerateOutput>, RuntimeError> {
        while self.state.is_running() {
            self.compute(&mut on_event)?;
        }
        Ok(self.state.finish_all())
    }

    /// The next event of any sequence.
    pub fn next_of_all(&mut self) -> Option<Result<(SeqId, GenerateEvent), RuntimeError>> {
        while self.state.events.is_empty() && self.state.is_running() {
            let mut events = std::mem::take(&mut self.state.events);
            let computed = self.compute(&mut |seq, event| {
                events.push_back((seq, event));
                true
            });
            self.state.events = events;
            if let Err(error) = computed {
                self.interrupt();
                return Some(Err(error));
            }
        }
        self.state.events.pop_front().map(Ok)
    }

    /// Runs one step of the running sequences.
    fn compute(&mut self, on_event: &mut Sink<'_>) -> Result<(), RuntimeError> {
        let state = &mut self.state;
        let now = Instant::now();
        let running = state.running.iter_mut().map(|(_, sequence)| sequence);
        let mut running: Vec<&mut Sequence<'s>> = running.collect();
        for sequence in running.iter_mut().filter(|s| s.is_late(now)) {
            sequence.finish = Some(FinishReason::Deadline);
        }
        let mut go_on = true;
        let mut failure = None;
        if let Some(mut counts) = plan(self.runner, &mut running)? {
            let sequences: Vec<SeqId> = running.iter().map(|s| s.seq).collect();
            let mut step = DecodeStep {
                context: self.runner.sequence_limit()?,
                runner: self.runner,
                tokenizer: self.model.tokenizer().ok(),
                masks: &state.masks,
                // The sequence holds what the caller has seen.
                samples_after_prompt: false,
            };
            let report = step.run(&mut running, &mut counts, &mut |index, event| {
                let event = match event {
                    StepEvent::PromptProgress(done) => GenerateEvent::PromptProgress(done),
                    StepEvent::Token(token) => GenerateEvent::Text(token.text),
                    StepEvent::Round(_) => return true,
                };
                let more = on_event(sequences[index], event);
                go_on &= more;
                more
            });
            failure = report.failures.into_iter().next();
        }
        if !go_on {
            for sequence in &mut running {
                sequence.finish.get_or_insert(FinishReason::Interrupted);
            }
        }
        state.end_finished(on_event);
        match failure {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

/// How many rows each sequence feeds in the next step; `None` if every one has ended. Shifts contexts that are full, and ends the
/// decoding sequences if that makes no room.
fn plan(
    runner: &mut BatchRunner,
    running: &mut [&mut Sequence<'_>],
) -> Result<Option<Vec<usize>>, RuntimeError> {
    let is_running = |s: &&mut Sequence<'_>| s.finish.is_none();
    let decoding = running.iter().filter(|s| is_running(s) && s.is_decoding());
    let pending: Vec<SeqId> = decoding
        .map(|s| s.seq)
        .filter(|seq| runner.is_pending(*seq))
        .collect();
    if !runner.make_room(&pending, pending.len())? {
        let decoding = running.iter_mut().filter(|s| s.is_decoding());
        decoding.for_each(|s| _ = s.finish.get_or_insert(FinishReason::Context));
    }
    let mut prompts = running
        .iter()
        .filter(|s| is_running(s) && !s.is_decoding())
        .count();
    let mut budget = runner.max_step_tokens().saturating_sub(pending.len());
    let mut counts = vec![0; running.len()];
    for (count, sequence) in counts.iter_mut().zip(running.iter()) {
        if !is_running(sequence) {
            continue;
        }
        if sequence.is_decoding() {
            *count = 1;
            continue;
        }
        let room = runner.stream_room(sequence.seq)?;
        let handle = runner.sequence(sequence.seq);
        handle.check(sequence.remaining())?;
        let rows = usize::from(handle.is_pending()) + sequence.remaining().len();
        *count = rows.min(budget.div_ceil(prompts)).min(room);
        budget -= *count;
        prompts -= 1;
    }
    Ok(counts.iter().any(|count| *count > 0).then_some(counts))
}

impl Iterator for Generator<'_, '_> {
    type Item = Result<GenerateEvent, RuntimeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = self.next_of_all()?;
        Some(event.map(|(_, event)| event))
    }
}

impl<'s> PausedGeneration<'s> {
    /// Continues the generation on its runner, with its model.
    pub fn resume<'r>(self, runner: &'r mut BatchRunner, model: &'r Model) -> Generator<'r, 's> {
        Generator {
            runner,
            model,
            state: self,
        }
    }

    fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Ends the sequences that have a reason to.
    fn end_finished(&mut self, on_event: &mut Sink<'_>) {
        let is_ended = |(_, sequence): &mut (usize, Sequence<'_>)| sequence.finish.is_some();
        for (index, sequence) in self.running.extract_if(.., is_ended) {
            let seq = sequence.seq;
            let (output, rest) = sequence.end();
            self.outputs[index] = Some(output);
            if !rest.is_empty() {
                on_event(seq, GenerateEvent::Text(rest));
            }
        }
    }

    fn interrupt(&mut self) {
        for (_, sequence) in &mut self.running {
            sequence.finish.get_or_insert(FinishReason::Interrupted);
        }
        let mut events = std::mem::take(&mut self.events);
        self.end_finished(&mut |seq, event| {
            events.push_back((seq, event));
            true
        });
        self.events = events;
    }

    /// Interrupts the generation if it still runs, and returns the output of its first sequence.
    pub fn finish(self) -> GenerateOutput {
        let first = self.finish_all().into_iter().next();
        first.expect("a generation has a sequence")
    }

    fn finish_all(mut self) -> Vec<GenerateOutput> {
        self.interrupt();
        let outputs = self.outputs.into_iter();
        outputs
            .map(|output| output.expect("it has ended"))
            .collect()
    }
}

impl BatchRunner {
    /// Generates on several sequences to their ends; see [`Generator::of`] and [`Generator::run`].
    pub fn generate(
        &mut self,
        model: &Model,
        sequences: Vec<Sequence<'_>>,
        on_event: impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> Result<Vec<GenerateOutput>, RuntimeError> {
        Generator::of(self, model, sequences)?.run(on_event)
    }
}

/// Appends `prompt` to a sequence and generates a continuation: a [`Generator`] that runs to its end.
///
/// `on_event` receives progress and text as they arrive and returns false to cancel. The generated tokens stay in the
/// sequence; the last one is pending ([`SequenceHandle`]).
pub fn generate<'a>(
    sequence: impl Into<SequenceHandle<'a>>,
    model: &'a Model,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    mut on_event: impl FnMut(GenerateEvent) -> bool,
) -> Result<GenerateOutput, RuntimeError> {
    let generator = Generator::new(sequence, model, prompt, sampler, options)?;
    let outputs = generator.run(|_, event| on_event(event))?;
    Ok(outputs
        .into_iter()
        .next()
        .expect("one sequence, one output"))
}
