//! `ChatAnswer`: the events of a chat's generations, with tool calls separated from text.

use crate::answer::Answer;
use crate::chat_response::call_object;
use crate::conversations::ConversationTurn;
use crate::error::ApiError;
use crate::registry::LoadedModel;
use kvark::engine::{GeneratedToken, RequestEvent, RequestOutput, TokenLogprobs};
use kvark::generate::FinishReason;
use kvark::speculative::RoundTrace;
use kvark::text::tools::{ToolCall, ToolFormat, ToolParser};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

/// What happened to a choice of a chat.
pub(crate) enum ChatEvent {
    /// A token was generated; the text may be empty.
    Text {
        choice: usize,
        text: String,
        logprobs: Option<Value>,
    },
    /// A round of speculation was verified: its tree, as an object.
    Round { choice: usize, round: Value },
    /// A tool call is complete.
    Call {
        choice: usize,
        index: usize,
        id: String,
        call: ToolCall,
    },
    /// The choice ended.
    End {
        choice: usize,
        called: bool,
        output: Box<RequestOutput>,
    },
    /// The choice failed.
    Failed(ApiError),
}

/// The generations of a chat.
pub(crate) struct ChatAnswer {
    answer: Answer,
    choices: Vec<Choice>,
    ready: VecDeque<ChatEvent>,
    model: Arc<LoadedModel>,
    /// The conversation that the first choice continues.
    conversation: Option<ConversationTurn>,
    /// The beginning of the ids of tool calls.
    call_prefix: String,
}

struct Choice {
    /// `None` after the end.
    parser: Option<ToolParser>,
    /// The tool calls so far, as they stand in a message.
    calls: Vec<Value>,
    text: String,
}

impl ChatAnswer {
    pub(crate) fn new(
        answer: Answer,
        choices: usize,
        model: Arc<LoadedModel>,
        tools: (ToolFormat, &[Value]),
        conversation: Option<ConversationTurn>,
        call_prefix: String,
    ) -> ChatAnswer {
        let choice = |_| Choice {
            parser: Some(ToolParser::new(tools.0, tools.1)),
            calls: vec![],
            text: String::new(),
        };
        ChatAnswer {
            answer,
            choices: (0..choices).map(choice).collect(),
            ready: VecDeque::new(),
            model,
            conversation,
            call_prefix,
        }
    }

    /// The next event of any choice; `None` after all have ended.
    pub(crate) async fn next(&mut self) -> Option<ChatEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let (choice, event) = self.answer.next().await?;
            match event {
                RequestEvent::Started(_) | RequestEvent::PromptProgress(_) => {}
                RequestEvent::Token(token) => self.token(choice, token),
                RequestEvent::Round(round) => {
                    let round = round_object(&self.model, &round);
                    self.ready.push_back(ChatEvent::Round { choice, round });
                }
                RequestEvent::Finished(output) => self.end(choice, output),
                RequestEvent::Failed(error) => {
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
        let logprobs = token
            .logprobs
            .map(|logprobs| logprobs_object(&self.model, token.id, &logprobs));
        let state = &mut self.choices[choice];
        let parser = state.parser.as_mut().expect("the choice has not ended");
        let (text, calls) = parser.push(&token.text);
        self.text(choice, text, logprobs);
        self.calls(choice, calls);
    }

    fn text(&mut self, choice: usize, text: String, logprobs: Option<Value>) {
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
            let index = state.calls.len();
            let id = format!("{}-{choice}-{index}", self.call_prefix);
            state.calls.push(call_object(&id, &call));
            self.ready.push_back(ChatEvent::Call {
                choice,
                index,
                id,
                call,
            });
        }
    }

    fn end(&mut self, choice: usize, output: Box<RequestOutput>) {
        let parser = self.choices[choice].parser.take();
        let mut parser = parser.expect("a choice ends once");
        let (text, calls) = parser.push(&output.rest);
        self.text(choice, text, None);
        self.calls(choice, calls);
        let (text, calls) = parser.finish();
        self.text(choice, text, None);
        self.calls(choice, calls);
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

/// OpenAI's object for a token's log-probabilities.
pub(crate) fn logprobs_object(model: &LoadedModel, id: u32, logprobs: &TokenLogprobs) -> Value {
    let token = |id: u32, logprob: f32| {
        let bytes = model.model.tokenizer().ok().and_then(|t| t.token_bytes(id));
        let bytes = bytes.unwrap_or_default();
        json!({
            "token": String::from_utf8_lossy(bytes),
            "id": id,
            "bytes": bytes,
            "logprob": logprob,
        })
    };
    let top = logprobs
        .top
        .iter()
        .map(|(id, logprob)| token(*id, *logprob));
    let top: Vec<Value> = top.collect();
    let mut object = token(id, logprobs.logprob);
    object["top_logprobs"] = top.into();
    object
}
