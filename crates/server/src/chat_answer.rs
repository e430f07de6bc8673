//! `ChatAnswer`: the events of an answer's generations, with a chat's tool calls separated from text.

use crate::answer::Answer;
use crate::app::App;
use crate::chat::PreparedAnswer;
use crate::conversations::ConversationTurn;
use crate::error::ApiError;
use crate::openai_answer::call_object;
use crate::registry::LoadedModel;
use kvark::engine::{GeneratedToken, RequestEvent, RequestOutput, TokenLogprobs};
use kvark::generate::FinishReason;
use kvark::speculative::RoundTrace;
use kvark::text::tools::{ToolCall, ToolParser};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

/// What happened to a choice of an answer.
pub(crate) enum ChatEvent {
    /// Its prompt is being computed.
    Started { choice: usize },
    /// A token was generated; the text may be empty.
    Text {
        choice: usize,
        text: String,
        logprobs: Option<(u32, TokenLogprobs)>,
    },
    /// A round of speculation was verified: its tree, as an object.
    Round { choice: usize, round: Value },
    /// A tool call is complete.
    Call {
        choice: usize,
        id: String,
        call: ToolCall,
    },
    /// The choice ended.
    End {
        choice: usize,
        called: bool,
        output: Box<RequestOutput>,
    },
    /// A choice failed, which ends the answer.
    Failed(ApiError),
}

/// The generations of an answer.
pub(crate) struct ChatAnswer {
    answer: Answer,
    choices: Vec<Choice>,
    ready: VecDeque<ChatEvent>,
    failed: bool,
    model: Arc<LoadedModel>,
    /// The conversation that the first choice continues.
    conversation: Option<ConversationTurn>,
    /// The beginning of the ids of tool calls.
    call_prefix: String,
}

struct Choice {
    /// `None` after the end, and for an answer that is no chat.
    parser: Option<ToolParser>,
    /// The tool calls so far, as they stand in a message.
    calls: Vec<Value>,
    text: String,
}

impl ChatAnswer {
    pub(crate) fn new(
        app: &App,
        answer: Answer,
        of: &PreparedAnswer,
        conversation: Option<ConversationTurn>,
    ) -> ChatAnswer {
        let choice = |_| Choice {
            parser: of
                .tools
                .map(|format| ToolParser::new(format, &of.prompt.tools)),
            calls: vec![],
            text: String::new(),
        };
        ChatAnswer {
            answer,
            choices: (0..of.parameters.choices).map(choice).collect(),
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
                RequestEvent::PromptProgress(_) => {}
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
        let logprobs = token.logprobs.map(|logprobs| (token.id, logprobs));
        self.generated(choice, token.text, logprobs);
    }

    /// Adds generated text.
    fn generated(&mut self, choice: usize, text: String, logprobs: Option<(u32, TokenLogprobs)>) {
        let (text, calls) = match &mut self.choices[choice].parser {
            Some(parser) => parser.push(&text),
            None => (text, vec![]),
        };
        self.text(choice, text, logprobs);
        self.calls(choice, calls);
    }

    fn text(&mut self, choice: usize, text: String, logprobs: Option<(u32, TokenLogprobs)>) {
        self.choices[choice].text.push_str(&text);
        if !text.is_empty() || logprobs.is_some() {
            self.ready.push_back(ChatEvent::Text {
                choice,
                text,
                logprobs,
            });
        }
    }

    fn calls(&mut self, choice: usize, calls: Vec<ToolCall>) {
        let state = &mut self.choices[choice];
        for call in calls {
            let id = format!("{}-{choice}-{}", self.call_prefix, state.calls.len());
            state.calls.push(call_object(&id, &call));
            self.ready.push_back(ChatEvent::Call { choice, id, call });
        }
    }

    fn end(&mut self, choice: usize, output: Box<RequestOutput>) {
        self.generated(choice, output.rest.clone(), None);
        if let Some(parser) = self.choices[choice].parser.take() {
            let (text, calls) = parser.finish();
            self.text(choice, text, None);
            self.calls(choice, calls);
        }
        let state = &self.choices[choice];
        let called = !state.calls.is_empty();
        if choice == 0
            && let Some(turn) = self.conversation.take()
        {
            let mut message = json!({ "role": "assistant", "content": state.text });
            if called {
                message["tool_calls"] = state.calls.clone().into();
            }
            turn.finish(message, output.finish != FinishReason::Stop);
        }
        self.ready.push_back(ChatEvent::End {
            choice,
            called,
            output,
        });
    }
}

impl Drop for ChatAnswer {
    /// An answer that was stopped in the middle is a turn of its conversation too.
    fn drop(&mut self) {
        if let Some(turn) = self.conversation.take() {
            let tokens = turn.answer_tokens();
            let tokenizer = self.model.model.tokenizer().ok();
            let text = tokenizer.map(|tokenizer| tokenizer.decode(&tokens, false));
            turn.finish(
                json!({ "role": "assistant", "content": text.unwrap_or_default() }),
                true,
            );
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
