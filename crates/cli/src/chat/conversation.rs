//! `Conversation`: the branches of a chat, which share one pool of cells.

use crate::args::ShiftArgs;
use crate::output_format::Constraints;
use crate::prompt::Conversations;
use anyhow::{Error, Result, bail};
use kvark::generate::{
    ContextShift, FinishReason, GenerateEvent, GenerateOptions, Generator, SPLICE_SHARE, Sampler,
    SamplerOptions, SeqId, Sequence, SpliceReport, Timings, common_prefix_len,
};
use kvark::speculative::{SpecStats, Speculator};
use kvark::text::{AnswerPart, Message, TextError};
use kvark::{BatchRunner, Model};

/// The branches of a conversation and the cells that hold their tokens. One branch is the current one.
pub(super) struct Conversation<'a> {
    pub(super) conversations: &'a Conversations<'a>,
    pub(super) cells: BatchRunner,
    sampler: Sampler,
    options: GenerateOptions,
    pub(super) branches: Vec<Branch>,
    pub(super) current: usize,
    last: Option<Answer>,
    /// Prompt tokens fed and tokens generated since the start.
    total_tokens: (usize, usize),
    /// Number of first tokens that a context shift keeps; `None` without `--context-shift`.
    keep: Option<usize>,
    /// The current branch when it was saved or resumed.
    pub(super) saved: Option<Branch>,
    /// Speculation of the answers. Its proposers follow the branch that is answered.
    speculator: Option<Speculator>,
    /// Makes the grammar constraint of each answer.
    constraints: Option<Constraints>,
}

/// One branch of the conversation.
#[derive(Clone)]
pub(super) struct Branch {
    pub(super) name: String,
    pub(super) id: SeqId,
    pub(super) messages: Vec<Message>,
    /// Number of messages before the first turn.
    pub(super) preamble: usize,
    /// The context shifts of its tokens, in order.
    pub(super) shifts: Vec<ContextShift>,
}

impl Branch {
    /// Number of turns.
    pub(super) fn turns(&self) -> usize {
        (self.messages.len() - self.preamble) / 2
    }

    /// Whether a snapshot of the other branch has the same messages and tokens.
    pub(super) fn says_the_same(&self, other: &Branch) -> bool {
        self.messages == other.messages
            && self.preamble == other.preamble
            && self.shifts == other.shifts
            && self.name == other.name
    }

    /// The tokens of the branch's messages without those that context shifts dropped.
    fn without_shifted(&mut self, all: Vec<u32>) -> Vec<u32> {
        let mut tokens = all.clone();
        if self.shifts.iter().all(|shift| shift.apply(&mut tokens)) {
            return tokens;
        }
        // The conversation was rewound to before the dropped tokens.
        self.shifts.clear();
        all
    }
}

/// The text of an answer, shown while it is generated.
pub(super) enum Shown {
    /// This many tokens of the prompt are in the cache.
    Progress(usize),
    /// Reasoning.
    Reasoning(String),
    /// Text of the answer.
    Text(String),
}

impl Shown {
    fn of(part: AnswerPart) -> Option<Shown> {
        match part {
            AnswerPart::Reasoning(text) => Some(Shown::Reasoning(text)),
            AnswerPart::Content(text) => Some(Shown::Text(text)),
            // No tools are offered.
            AnswerPart::CallPiece(_) | AnswerPart::Call(_) => None,
        }
    }
}

/// How an answer ended and what it took.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    pub(super) finish: FinishReason,
    pub(super) timings: Timings,
}

/// The outcome of a message.
pub(super) enum Reply {
    /// It was answered, fully or in part. Message and answer are added to the conversation.
    Answered(Answer),
    /// The conversation does not fit in the context; the message is discarded.
    NoRoom { needed: usize, room: usize },
    /// The chat template rejects the conversation; the message is discarded.
    Refused(Error),
    /// The caller cancelled before the answer began; the message is discarded.
    Stopped,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(
        conversations: &'a Conversations<'a>,
        cells: BatchRunner,
        sampler: Sampler,
        options: GenerateOptions,
        system: Option<Message>,
    ) -> Conversation<'a> {
        let messages = Vec::from_iter(system);
        let preamble = messages.len();
        let branches = vec![Branch {
            name: "main".into(),
            id: 0,
            messages,
            preamble,
            shifts: vec![],
        }];
        Conversation {
            conversations,
            cells,
            sampler,
            options,
            branches,
            current: 0,
            last: None,
            total_tokens: (0, 0),
            keep: None,
            saved: None,
            speculator: None,
            constraints: None,
        }
    }

    /// Generates answers with speculation from now on, or without.
    pub(super) fn speculate(&mut self, speculator: Option<Speculator>) {
        self.speculator = speculator;
    }

    /// Makes every answer follow a grammar from now on, or none.
    pub(super) fn constrain(&mut self, constraints: Option<Constraints>) {
        self.constraints = constraints;
    }

    /// The counts of speculation since the start.
    pub(super) fn spec_stats(&self) -> Option<&SpecStats> {
        self.speculator.as_ref().map(Speculator::stats)
    }

    /// Enables context shifts if `--context-shift` was given or branches are streams.
    pub(super) fn enable_context_shift(&mut self, shift: &ShiftArgs) -> Result<()> {
        let branch = &self.branches[self.current];
        let preamble = &branch.messages[..branch.preamble];
        let preamble = Some((self.conversations, preamble));
        self.keep = shift.enable(&mut self.cells, preamble)?;
        Ok(())
    }

    /// The pool that holds all branches.
    pub(super) fn cells(&self) -> &BatchRunner {
        &self.cells
    }

    /// All branches, and the index of the current one.
    pub(super) fn branches(&self) -> (&[Branch], usize) {
        (&self.branches, self.current)
    }

    /// Names of all branches.
    pub(super) fn branch_names(&self) -> Vec<String> {
        self.branches.iter().map(|b| b.name.clone()).collect()
    }

    /// The model.
    pub(super) fn model(&self) -> &'a Model {
        self.conversations.model
    }

    /// The options of the sampler.
    pub(super) fn sampling(&self) -> &SamplerOptions {
        self.sampler.options()
    }

    /// Changes the options of the sampler; with `restart`, its random numbers begin again at the seed.
    pub(super) fn set_sampling(&mut self, options: SamplerOptions, restart: bool) {
        match restart {
            true => self.sampler = Sampler::new(options),
            false => self.sampler.set_options(options),
        }
    }

    /// Changes the maximum number of tokens of an answer; `None` for no limit.
    pub(super) fn set_max_tokens(&mut self, limit: Option<usize>) {
        self.options.max_tokens = limit;
    }

    /// The last answer of any branch.
    pub(super) fn last_answer(&self) -> Option<&Answer> {
        self.last.as_ref()
    }

    /// Prompt tokens fed and tokens generated since the start.
    pub(super) fn total_tokens(&self) -> (usize, usize) {
        self.total_tokens
    }

    /// All messages of the current branch.
    pub(super) fn messages(&self) -> &[Message] {
        &self.branches[self.current].messages
    }

    /// The messages and answers of the current branch, without its system message.
    pub(super) fn turns(&self) -> &[Message] {
        let branch = &self.branches[self.current];
        &branch.messages[branch.preamble..]
    }

    /// The user's last message in the current branch.
    pub(super) fn last_message(&self) -> Option<&str> {
        let branch = &self.branches[self.current];
        let message = branch.messages[branch.preamble..].iter().rev().nth(1)?;
        Some(&message.content)
    }

    /// The system message of the current branch.
    pub(super) fn system(&self) -> Option<&str> {
        let branch = &self.branches[self.current];
        let first = branch.messages[..branch.preamble].first()?;
        Some(&first.content)
    }

    /// Replaces the system message of the current branch, or removes it. If the template rejects the conversation then, it stays
    /// as it was, and the reason is returned.
    pub(super) fn set_system(&mut self, text: Option<&str>) -> Result<Result<(), Error>> {
        let branch = &mut self.branches[self.current];
        let before = branch.clone();
        let system = text.map(|text| Message::new("system", text));
        branch.preamble = usize::from(system.is_some());
        branch.messages.splice(..before.preamble, system);
        branch.shifts.clear();
        if let Err(error) = self.conversations.beginning(&branch.messages) {
            *branch = before;
            return Ok(Err(error));
        }
        self.forget()?;
        Ok(Ok(()))
    }

    /// Removes all turns of the current branch.
    pub(super) fn clear(&mut self) -> Result<()> {
        let branch = &mut self.branches[self.current];
        branch.messages.truncate(branch.preamble);
        branch.shifts.clear();
        self.forget()
    }

    /// Removes the last `n` turns and returns how many are left; if there are fewer than `n`, returns their number as the
    /// error and removes none.
    pub(super) fn rewind(&mut self, n: usize) -> Result<Result<usize, usize>> {
        let branch = &mut self.branches[self.current];
        let turns = branch.turns();
        let Some(left) = turns.checked_sub(n) else {
            return Ok(Err(turns));
        };
        branch.messages.truncate(branch.preamble + 2 * left);
        self.forget()?;
        Ok(Ok(left))
    }

    /// Removes turns, counted from 0. With `approximate`, the rows of later turns are moved, and the report says how many tokens of them;
    /// otherwise those turns are computed again with the next message.
    ///
    /// # Errors
    /// If the template rejects the turns that are left, or the model's rows cannot be moved. Nothing has changed then.
    pub(super) fn cut(
        &mut self,
        turns: std::ops::Range<usize>,
        approximate: bool,
    ) -> Result<Option<SpliceReport>> {
        if approximate {
            self.cells.check_splice()?;
        }
        let branch = &mut self.branches[self.current];
        let before = branch.messages.clone();
        let cut = branch.preamble + 2 * turns.start..branch.preamble + 2 * turns.end;
        branch.messages.drain(cut);
        let beginning = match branch.messages.is_empty() {
            true => Ok(vec![]),
            false => self.conversations.beginning(&branch.messages),
        };
        let new = match beginning {
            Ok(new) => new,
            Err(error) => {
                branch.messages = before;
                return Err(error);
            }
        };
        // The positions of a branch whose context was shifted are not those of its text.
        if !approximate || !branch.shifts.is_empty() {
            branch.shifts.clear();
            self.forget()?;
            return Ok(None);
        }
        let seq = branch.id;
        let report = self.cells.splice(seq, &new, SPLICE_SHARE, |_| true)?;
        Ok(Some(report))
    }

    /// Removes tokens from the cache that the messages of the current branch no longer contain. If layers lack
    /// what a rewind needs, removes more: the next message computes them again.
    pub(super) fn forget(&mut self) -> Result<()> {
        let branch = &mut self.branches[self.current];
        let beginning = match branch.messages.is_empty() {
            true => vec![],
            // If the template rejects the remaining conversation, no token of it is kept.
            false => {
                let beginning = self.conversations.beginning(&branch.messages);
                beginning.unwrap_or_default()
            }
        };
        let kept = branch.without_shifted(beginning);
        let known = common_prefix_len(self.cells.tokens(branch.id), &kept);
        let known = self.cells.restorable(branch.id, known)?;
        self.cells.rewind(branch.id, known)?;
        Ok(())
    }

    /// Creates a branch with the history of the current one and switches to it. No cell is copied.
    pub(super) fn fork(&mut self, name: Option<&str>) -> Result<String> {
        let name = match name {
            Some(name) if self.find(name).is_some() => bail!("there is a branch {name} already"),
            Some(name) => name.to_owned(),
            None => (1..)
                .map(|i| format!("fork{i}"))
                .find(|n| self.find(n).is_none())
                .expect("names do not run out"),
        };
        let taken: Vec<SeqId> = self.branches.iter().map(|b| b.id).collect();
        let Some(id) = self.cells.free_sequence(&taken) else {
            bail!(
                "there are {} branches, and no more are possible: /drop one",
                taken.len()
            );
        };
        let from = &self.branches[self.current];
        self.cells.fork(from.id, id)?;
        let branch = Branch {
            name: name.clone(),
            id,
            messages: from.messages.clone(),
            preamble: from.preamble,
            shifts: from.shifts.clone(),
        };
        self.branches.push(branch);
        self.current = self.branches.len() - 1;
        Ok(name)
    }

    /// Switches to another branch.
    pub(super) fn switch(&mut self, name: &str) -> Result<()> {
        match self.find(name) {
            Some(index) => self.current = index,
            None => bail!("there is no branch {name}; /branches lists them"),
        }
        Ok(())
    }

    /// Removes a branch that is not the current one and frees the cells that only it holds.
    pub(super) fn drop_branch(&mut self, name: &str) -> Result<()> {
        let Some(index) = self.find(name) else {
            bail!("there is no branch {name}; /branches lists them")
        };
        if index == self.current {
            bail!("{name} is the branch you are in: /switch to another first");
        }
        self.cells.remove(self.branches[index].id)?;
        self.branches.remove(index);
        self.current -= usize::from(index < self.current);
        Ok(())
    }

    /// Removes all branches except the current one and compacts its cells.
    pub(super) fn keep(&mut self) -> Result<usize> {
        let kept = self.branches.swap_remove(self.current);
        let dropped = self.branches.len();
        self.cells.keep_only(kept.id)?;
        self.cells.compact()?;
        (self.branches, self.current) = (vec![kept], 0);
        Ok(dropped)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.branches.iter().position(|b| b.name == name)
    }

    /// Sends `text` and generates the answer. `show` receives the number of tokens that are not yet in the cache with every
    /// event.
    pub(super) fn say(
        &mut self,
        text: &str,
        show: impl FnMut(usize, Shown) -> bool,
    ) -> Result<Reply> {
        self.branches[self.current]
            .messages
            .push(Message::new("user", text));
        let reply = self.answer(show);
        if !matches!(reply, Ok(Reply::Answered(_))) {
            self.branches[self.current].messages.pop();
            self.forget()?;
        }
        reply
    }

    /// Sends `text` instead of the last message and generates the answer. Without an answer the last turn stays.
    pub(super) fn replace_last(
        &mut self,
        text: &str,
        show: impl FnMut(usize, Shown) -> bool,
    ) -> Result<Reply> {
        let branch = &mut self.branches[self.current];
        let before = branch.messages.len().saturating_sub(2).max(branch.preamble);
        let last = branch.messages.split_off(before);
        let reply = self.say(text, show);
        if !matches!(reply, Ok(Reply::Answered(_))) {
            self.branches[self.current].messages.extend(last);
        }
        reply
    }

    /// The tokens of the current branch that context shifts did not drop, up to the start of the assistant's answer.
    fn tokens(&mut self) -> Result<Vec<u32>> {
        let branch = &mut self.branches[self.current];
        let all = self.conversations.tokens(&branch.messages)?;
        Ok(branch.without_shifted(all))
    }

    /// Drops tokens of the current branch to make room: cached tokens or, if none of those can be dropped, new ones.
    /// Returns false if no token can be dropped.
    fn make_room(&mut self, new: &mut Vec<u32>) -> Result<bool> {
        let Some(keep) = self.keep else {
            return Ok(false);
        };
        let branch = &mut self.branches[self.current];
        if let Some(shift) = self.cells.shift_context(branch.id)? {
            self.cells.take_shifts(branch.id);
            branch.shifts.push(shift);
            return Ok(true);
        }
        let held = self.cells.tokens(branch.id).len();
        let keep = keep.max(held);
        // The last token is kept: its logits begin the answer.
        let rest = (held + new.len()).saturating_sub(keep + 1);
        let dropped = rest.div_ceil(2);
        let apart = ContextShift {
            keep: keep - held,
            dropped,
        };
        let made = dropped > 0 && apart.apply(new);
        branch
            .shifts
            .extend(made.then_some(ContextShift { keep, dropped }));
        Ok(made)
    }

    /// Makes the current branch a fork of the frozen prefix, if there is one, that has more of these tokens than the branch.
    fn begin_with_prefix(&mut self, tokens: &[u32]) -> Result<()> {
        let seq = self.branches[self.current].id;
        let Some(prefix) = self.cells.prefix() else {
            return Ok(());
        };
        let frozen = self.cells.tokens(prefix);
        let held = common_prefix_len(self.cells.tokens(seq), tokens);
        if tokens.len() > frozen.len() && tokens.starts_with(frozen) && held < frozen.len() {
            self.cells.remove(seq)?;
            self.cells.begin_with_prefix(seq)?;
        }
        Ok(())
    }

    fn answer(&mut self, mut show: impl FnMut(usize, Shown) -> bool) -> Result<Reply> {
        let mut tokens = match self.tokens() {
            Ok(tokens) => tokens,
            Err(error) if error.is::<TextError>() => return Ok(Reply::Refused(error)),
            Err(error) => return Err(error),
        };
        let prompt = tokens.clone();
        self.begin_with_prefix(&tokens)?;
        let branch = &self.branches[self.current];
        // Logits come from feeding, so the last token is fed even if it is in the cache.
        let most = tokens.len().saturating_sub(1);
        let known = common_prefix_len(self.cells.tokens(branch.id), &tokens).min(most);
        // Layers may lack what is needed to go on just there; then more tokens are computed again.
        let known = self.cells.restorable(branch.id, known)?;
        let mut new = tokens.split_off(known);
        let seq = branch.id;
        self.cells.rewind(seq, known)?;
        // A stream makes room while it is fed.
        let is_stream = self.cells.stream_window().is_some();
        while !is_stream && !self.cells.can_extend(new.len())? {
            if !self.make_room(&mut new)? {
                let room = self.cells.capacity()? - self.cells.cells_used()?;
                return Ok(Reply::NoRoom {
                    needed: new.len() + usize::from(self.cells.is_pending(seq)),
                    room,
                });
            }
        }
        let branch = &mut self.branches[self.current];
        let model = self.conversations.model;
        let constraint = self.constraints.as_ref().map(Constraints::constraint);
        let constrained = constraint.is_some();
        let mut parser = Some(self.conversations.parser(&prompt, constrained)?);
        let options = GenerateOptions {
            shown: self.conversations.marks()?,
            reasoning: self.conversations.reasoning_budget(&prompt)?,
            ..self.options.clone()
        };
        let sequence = Sequence::new(seq, &new[..], &mut self.sampler, &options)
            .with_constraint(constraint.transpose()?)
            .with_speculator(self.speculator.as_mut());
        let mut generator = Generator::of(&mut self.cells, model, vec![sequence])?;
        let (mut text, mut pushed) = (String::new(), 0);
        let mut shown = |part: Shown| {
            if let Shown::Text(part) = &part {
                text.push_str(part);
            }
            show(new.len(), part)
        };
        while let Some(event) = generator.next() {
            let go_on = match (event?, &mut parser) {
                (GenerateEvent::Text(piece), Some(parser)) => {
                    pushed += piece.len();
                    let parts = parser.push(&piece);
                    let quiet = parts.is_empty();
                    // A token without a part to show is an event too: the caller may stop the answer.
                    let mut all = true;
                    for part in parts.into_iter().filter_map(Shown::of) {
                        all &= shown(part);
                    }
                    all && (!quiet || shown(Shown::Text(String::new())))
                }
                (GenerateEvent::PromptProgress(done), _) => shown(Shown::Progress(done)),
                _ => true,
            };
            if !go_on {
                generator.interrupt();
            }
        }
        let generated = generator.finish();
        if let Some(mut parser) = parser.take() {
            let rest = generated.text.get(pushed..).unwrap_or_default();
            let mut parts = parser.push(rest);
            parts.extend(parser.finish());
            let parts = parts.into_iter().filter_map(Shown::of);
            parts.for_each(|part| _ = shown(part));
        }
        branch.shifts.extend(self.cells.take_shifts(branch.id));
        if generated.tokens.is_empty() {
            return Ok(Reply::Stopped);
        }
        branch.messages.push(Message::new("assistant", text));
        let whole = generated.stop_string.is_none() && branch.shifts.is_empty();
        if whole && generated.finish == FinishReason::Stop {
            let tokens = [prompt, generated.tokens].concat();
            self.conversations.keep_answer(&branch.messages, tokens);
        }
        let answer = Answer {
            finish: generated.finish,
            timings: generated.timings,
        };
        self.last = Some(answer);
        self.total_tokens.0 += answer.timings.prompt_tokens;
        self.total_tokens.1 += answer.timings.generated_tokens;
        Ok(Reply::Answered(answer))
    }
}
