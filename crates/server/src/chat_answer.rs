//! `ChatAnswer`: the events of an answer's generations, with a chat's tool calls separated from text.

use crate::answer::Answer;
use crate::answer_store::History;
use crate::app::App;
use crate::chat::PreparedAnswer;
use crate::conversations::ConversationTurn;
use crate::error::ApiError;
use crate::openai_answer::call_object;
use crate::registry::LoadedModel;
use kvark::engine::{GeneratedToken, RequestEvent, RequestOutput, TokenLogprobs};
use kvark::generate::FinishReason;
use kvark::speculative::RoundTrace;
use kvark::text::tools::{CallPiece, ToolCall};
use kvark::text::{AnswerParser, AnswerPart};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

/// What happened to a choice of an answer.
pub(crate) enum ChatEvent {
    /// Its prompt is being computed.
    Started { choice: usize },
    /// The server has computed this many tokens of its prompt.
    Progress { choice: usize, tokens: usize },
    /// A token was generated; the text may be empty. Text after the last token has none.
    Text {
        choice: usize,
        text: String,
        token: Option<(u32, Option<TokenLogprobs>)>,
    },
    /// Reasoning was generated.
    Reasoning { choice: usize, text: String },
    /// A round of speculation was verified: its tree, as an object.
    Round { choice: usize, round: Value },
    /// A piece of a tool call that goes on.
    CallPiece {
        choice: usize,
        id: String,
        piece: CallPiece,
    },
    /// A tool call is complete. If it was streamed, all its pieces came before.
    Call {
        choice: usize,
        id: String,
        call: ToolCall,
        streamed: bool,
    },
    /// The choice ended.
    End {
        choice: usize,
        called: bool,
        /// The number of tokens that are reasoning.
        reasoning_tokens: usize,
        output: Box<RequestOutput>,
    },
    /// A choice failed, which ends the answer.
    Failed(ApiError),
}

/// A generated token and its log-probabilities, if it has them.
type Token = Option<(u32, Option<TokenLogprobs>)>;

/// The generations of an answer.
pub(crate) struct ChatAnswer {
    app: Arc<App>,
    answer: Answer,
    choices: Vec<Choice>,
    ready: VecDeque<ChatEvent>,
    failed: bool,
    model: Arc<LoadedModel>,
    /// The conversation that the first choice continues.
    conversation: Option<ConversationTurn>,
    /// The prompt and its messages, if answers are stored.
    prompt: Option<(History, Arc<Vec<u32>>)>,
    /// The beginning of the ids of tool calls.
    call_prefix: String,
}

struct Choice {
    /// `None` after the end, and for an answer that is no chat.
    parser: Option<AnswerParser>,
    /// The tool calls so far, as they stand in a message.
    calls: Vec<Value>,
    /// Whether pieces of the next call came.
    call_begun: bool,
    text: String,
    reasoning: String,
    reasoning_tokens: usize,
}

impl Choice {
    /// The answer as a message.
    fn message(&self) -> Value {
        let mut message = json!({ "role": "assistant", "content": self.text });
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.clone().into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.clone().into();
        }
        message
    }
}

impl ChatAnswer {
    pub(crate) fn new(
        app: &Arc<App>,
        answer: Answer,
        of: &PreparedAnswer,
        conversation: Option<ConversationTurn>,
    ) -> ChatAnswer {
        let parser = |format| {
            let mut parser = AnswerParser::new(format, &of.prompt.tools);
            parser.begin_after(&of.opened);
            parser
        };
        let choice = |_| Choice {
            parser: of.answer_format.map(parser),
            calls: vec![],
            call_begun: false,
            text: String::new(),
            reasoning: String::new(),
            reasoning_tokens: 0,
        };
        let prompt = of.history.clone().map(|it| (it, of.tokens.clone()));
        ChatAnswer {
            app: app.clone(),
            prompt,
            answer,
            choices: (0..of.answers()).map(choice).collect(),
            ready: VecDeque::new(),
            failed: false,
            model: of.model.clone(),
            conversation,
            call_prefix: app.new_id("call"),
        }
    }

    /// The next event of any choice; `None` after all have ended or one has failed.
    pub(crate) async fn next(&mut self) -> Option<ChatEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.failed {
                return None;
            }
            let (choice, event) = self.answer.next().await?;
            match event {
                RequestEvent::Started(_) => self.ready.push_back(ChatEvent::Started { choice }),
                RequestEvent::PromptProgress(tokens) => {
                    self.ready.push_back(ChatEvent::Progress { choice, tokens });
                }
                RequestEvent::Token(token) => self.token(choice, token),
                RequestEvent::Round(round) => {
                    let round = round_object(&self.model, &round);
                    self.ready.push_back(ChatEvent::Round { choice, round });
                }
                RequestEvent::Finished(output) => self.end(choice, output),
                RequestEvent::Failed(error) => {
                    self.failed = true;
                    self.ready.push_back(ChatEvent::Failed(error.into()));
                }
            }
        }
    }

    fn token(&mut self, choice: usize, token: GeneratedToken) {
        if choice == 0
            && let Some(turn) = &self.conversation
        {
            turn.push_token(token.id);
        }
        self.generated(choice, token.text, Some((token.id, token.logprobs)));
    }

    /// Adds generated text.
    fn generated(&mut self, choice: usize, text: String, token: Token) {
        let own = &mut self.choices[choice];
        let parts = match &mut own.parser {
            Some(parser) => {
                let before = parser.in_reasoning();
                let parts = parser.push(&text);
                own.reasoning_tokens += usize::from(before || parser.in_reasoning());
                parts
            }
            None => vec![AnswerPart::Content(text)],
        };
        self.parts(choice, parts, token);
    }

    /// Adds the parts that a token completed.
    fn parts(&mut self, choice: usize, parts: Vec<AnswerPart>, mut token: Token) {
        for part in parts {
            match part {
                AnswerPart::Reasoning(text) => {
                    self.choices[choice].reasoning.push_str(&text);
                    self.ready.push_back(ChatEvent::Reasoning { choice, text });
                }
                AnswerPart::Content(text) => self.text(choice, text, token.take()),
                AnswerPart::CallPiece(piece) => self.call_piece(choice, piece),
                AnswerPart::Call(call) => self.call(choice, call),
            }
        }
        if token.is_some() {
            self.text(choice, String::new(), token);
        }
    }

    fn text(&mut self, choice: usize, text: String, token: Token) {
        let own = &mut self.choices[choice];
        own.text.push_str(&text);
        let has_logprobs = token
            .as_ref()
            .is_some_and(|(_, logprobs)| logprobs.is_some());
        // A chat's tokens without text are marks, or parts of calls.
        let is_shown = own.parser.is_none() && token.is_some();
        if !text.is_empty() || has_logprobs || is_shown {
            self.ready.push_back(ChatEvent::Text {
                choice,
                text,
                token,
            });
        }
    }

    /// The id of a choice's next call.
    fn call_id(&self, choice: usize) -> String {
        let number = self.choices[choice].calls.len();
        format!("{}-{choice}-{number}", self.call_prefix)
    }

    fn call_piece(&mut self, choice: usize, piece: CallPiece) {
        let id = self.call_id(choice);
        self.choices[choice].call_begun = true;
        self.ready
            .push_back(ChatEvent::CallPiece { choice, id, piece });
    }

    fn call(&mut self, choice: usize, call: ToolCall) {
        let id = self.call_id(choice);
        let state = &mut self.choices[choice];
        let streamed = std::mem::take(&mut state.call_begun);
        state.calls.push(call_object(&id, &call));
        self.ready.push_back(ChatEvent::Call {
            choice,
            id,
            call,
            streamed,
        });
    }

    fn end(&mut self, choice: usize, output: Box<RequestOutput>) {
        let reasoning_tokens = self.choices[choice].reasoning_tokens;
        self.generated(choice, output.rest.clone(), None);
        if let Some(parser) = self.choices[choice].parser.take() {
            self.parts(choice, parser.finish(), None);
        }
        let state = &self.choices[choice];
        let called = !state.calls.is_empty();
        if choice == 0
            && let Some(turn) = self.conversation.take()
        {
            turn.finish(state.message(), output.finish != FinishReason::Stop);
        }
        // The tokens of a stop string are no part of the message.
        let whole = output.stop_string.is_none() && (called || !state.text.trim().is_empty());
        if let Some((history, prompt)) = self.prompt.as_ref().filter(|_| whole) {
            let tokens = [&prompt[..], &output.tokens].concat();
            self.app.answers.insert(history, &state.message(), tokens);
        }
        self.ready.push_back(ChatEvent::End {
            choice,
            called,
            reasoning_tokens,
            output,
        });
    }
}

impl Drop for ChatAnswer {
    /// An answer that was stopped in the middle is a turn of its conversation too.
    fn drop(&mut self) {
        if let Some(turn) = self.conversation.take() {
            if let Some(parser) = self.choices[0].parser.take() {
                self.parts(0, parser.finish(), None);
            }
            turn.finish(self.choices[0].message(), true);
        }
    }
}

/// A round of speculation: the tokens of its tree with their parents and estimates, and what was accepted.
fn round_object(model: &LoadedModel, round: &RoundTrace) -> Value {
    let text = |id: &u32| {
        let bytes = model.model.tokenizer().ok()?.token_bytes(*id)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    json!({
        "proposer": round.proposer,
        "tokens": round.tokens.iter().map(text).collect::<Vec<_>>(),
        "parents": round.parents,
        "probabilities": round.probabilities,
        "accepted": round.accepted,
        "bonus": text(&round.bonus),
        "propose_ms": round.propose_time.as_secs_f64() * 1e3,
        "verify_ms": round.verify_time.as_secs_f64() * 1e3,
    })
}
