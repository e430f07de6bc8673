//! A conversation: exact token ids and the turns that they are.

use crate::access::Owner;
use kvark::engine::{BranchCells, MovedTokens};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// A conversation.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Conversation {
    /// The id on the wire. It cannot be guessed.
    pub(crate) id: String,
    /// Whose conversation it is: nobody else sees it.
    pub(crate) owner: Owner,
    pub(crate) parent: Option<u64>,
    /// The number of tokens that it had when it was forked.
    pub(crate) at: usize,
    pub(crate) model: String,
    /// The bytes of the model's file: tokens mean nothing to another one.
    pub(crate) model_bytes: u64,
    /// The exact tokens, without those of a running answer. Copies of the conversation share them.
    #[serde(skip)]
    pub(crate) tokens: Arc<Vec<u32>>,
    /// The cells that it holds.
    #[serde(skip)]
    pub(crate) cells: BranchCells,
    #[serde(rename = "turns")]
    pub(crate) messages: Vec<Turn>,
    /// Whether its rows may be those that an edit has moved, which are an approximation.
    #[serde(default)]
    pub(crate) approximate: bool,
    /// The tokens whose rows the last such edit moves, for the request that computes the others.
    #[serde(skip)]
    pub(crate) moved: Option<Arc<MovedTokens>>,
    /// Whether the tokens after the last turn are those of an answer that is being generated.
    #[serde(skip)]
    pub(crate) answering: bool,
    pub(crate) created: i64,
    /// The response of OpenAI's API that the conversation was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) response: Option<StoredResponse>,
}

/// A stored response: its conversation holds the messages and their tokens.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct StoredResponse {
    /// The system message that it was asked for with.
    pub(crate) instructions: Option<String>,
    /// The items that it was asked for with, without those of the responses before it.
    pub(crate) input: Vec<Value>,
    /// The response object; null while it is generated.
    pub(crate) object: Value,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Turn {
    pub(crate) message: Value,
    /// The number of tokens up to its end. Those of the header of an answer belong to the message before it.
    pub(crate) end: usize,
    /// Whether the tokens are those of a generated answer, which end before the template's end of a message.
    pub(crate) generated: bool,
    /// Whether it is an answer that can go on: it was cut by a limit, a client or a fork.
    pub(crate) partial: bool,
}

impl Conversation {
    /// The conversation cut after its first turns, with cells of its own.
    pub(crate) fn cut_at_turn(&self, turns: usize) -> Conversation {
        let mut cut = self.fork();
        cut.messages.truncate(turns);
        cut.truncate_tokens(cut.turns_end());
        cut
    }

    /// The messages, without the system message of the response that it was made for.
    pub(crate) fn messages_after_instructions(&self) -> Vec<Value> {
        let response = self.response.as_ref();
        let instructions = response.is_some_and(|it| it.instructions.is_some());
        let turns = self.messages.iter().skip(usize::from(instructions));
        turns.map(|turn| turn.message.clone()).collect()
    }

    /// A conversation with the same tokens that shares this one's cells.
    fn fork(&self) -> Conversation {
        Conversation {
            cells: self.cells.fork(),
            answering: false,
            response: None,
            ..self.clone()
        }
    }

    fn truncate_tokens(&mut self, len: usize) {
        if len < self.tokens.len() {
            self.tokens = Arc::new(self.tokens[..len].to_vec());
        }
    }

    /// Appends tokens.
    pub(crate) fn extend_tokens(&mut self, tokens: &[u32]) {
        Arc::make_mut(&mut self.tokens).extend_from_slice(tokens);
    }

    /// The conversation cut after its first tokens. If these end within an answer, the answer's beginning is its last turn;
    /// `decode` gives its text.
    pub(crate) fn cut_at_token(
        &self,
        at: usize,
        decode: impl FnOnce(&[u32]) -> String,
    ) -> Conversation {
        let mut cut = self.fork();
        let whole = self.messages.iter().take_while(|turn| turn.end <= at);
        let whole = whole.count();
        cut.messages.truncate(whole);
        cut.truncate_tokens(at);
        let start = cut.turns_end();
        let is_answer = match self.messages.get(whole) {
            Some(turn) => turn.message["role"] == "assistant",
            // Or the rest of a message that an earlier cut has left.
            None => self.answering,
        };
        if at > start && is_answer {
            let text = decode(&cut.tokens[start..]);
            cut.end_turn(json!({ "role": "assistant", "content": text }), true);
        }
        cut
    }

    /// The number of tokens up to the end of the last turn.
    pub(crate) fn turns_end(&self) -> usize {
        self.messages.last().map_or(0, |turn| turn.end)
    }

    /// The number of tokens before the last answer, if it can go on, or before the next one.
    pub(crate) fn answer_start(&self) -> usize {
        match self.messages.split_last() {
            Some((last, before)) if last.partial => before.last().map_or(0, |turn| turn.end),
            _ => self.turns_end(),
        }
    }

    /// Begins a completion: its prompt, and the messages that are new in it.
    pub(crate) fn begin_turn(&mut self, tokens: Arc<Vec<u32>>, messages: &[Value]) {
        // A template that renders earlier messages otherwise than before has changed their tokens.
        let same = kvark::generate::common_prefix_len(&self.tokens, &tokens);
        for turn in &mut self.messages {
            turn.end = turn.end.min(same);
        }
        let end = tokens.len();
        let known = self.messages.len();
        let turn = |message: &Value| Turn {
            message: message.clone(),
            end,
            generated: false,
            partial: false,
        };
        self.messages.extend(messages.iter().skip(known).map(turn));
        if messages.len() > known
            && let Some(last) = known.checked_sub(1)
        {
            self.messages[last].partial = false;
        }
        self.tokens = tokens;
        self.answering = true;
    }

    /// Ends the running answer, whose tokens are there. An answer that went on is one turn with its beginning.
    pub(crate) fn end_turn(&mut self, message: Value, partial: bool) {
        self.answering = false;
        let end = self.tokens.len();
        match self.messages.last_mut().filter(|turn| turn.partial) {
            Some(last) => {
                for name in ["content", "reasoning_content"] {
                    let text =
                        |message: &Value| message[name].as_str().unwrap_or_default().to_owned();
                    let whole = text(&last.message) + &text(&message);
                    if name == "content" || !whole.is_empty() {
                        last.message[name] = whole.into();
                    }
                }
                if let Some(calls) = message.get("tool_calls") {
                    last.message["tool_calls"] = calls.clone();
                }
                (last.end, last.partial) = (end, partial);
            }
            None => self.messages.push(Turn {
                message,
                end,
                generated: true,
                partial,
            }),
        }
    }

    /// The conversation as an object, with those that were forked from it.
    pub(crate) fn object<'a>(
        &self,
        parent: Option<&str>,
        children: impl Iterator<Item = &'a Conversation>,
    ) -> Value {
        let mut start = 0;
        let turns = self.messages.iter().enumerate().map(|(index, turn)| {
            let tokens = turn.end.saturating_sub(start);
            start = turn.end;
            let mut object = json!({
                "index": index,
                "role": turn.message["role"],
                "content": turn.message["content"],
                "tokens": tokens,
                "end": turn.end,
                "partial": turn.partial,
            });
            for name in ["tool_calls", "reasoning_content"] {
                if let Some(value) = turn.message.get(name) {
                    object[name] = value.clone();
                }
            }
            object
        });
        let turns: Vec<Value> = turns.collect();
        let child = |child: &Conversation| json!({ "id": child.id, "at": child.at, "tokens": child.tokens.len() });
        json!({
            "id": self.id,
            "object": "kvark.conversation",
            "created": self.created,
            "model": self.model,
            "parent": parent,
            "at": self.at,
            "tokens": self.tokens.len(),
            "turns": turns,
            "children": children.map(child).collect::<Vec<Value>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(role: &str, content: &str, end: usize) -> Turn {
        Turn {
            message: json!({ "role": role, "content": content }),
            end,
            generated: role == "assistant",
            partial: false,
        }
    }

    fn conversation() -> Conversation {
        Conversation {
            id: "conv-1".into(),
            owner: Owner::default(),
            parent: None,
            at: 0,
            model: "tiny".into(),
            model_bytes: 1,
            tokens: Arc::new((0..12).collect()),
            cells: BranchCells::default(),
            messages: vec![
                turn("system", "s", 2),
                turn("user", "u", 5),
                turn("assistant", "a", 9),
                turn("user", "v", 12),
            ],
            approximate: false,
            moved: None,
            answering: false,
            created: 0,
            response: None,
        }
    }

    #[test]
    fn a_cut_keeps_whole_turns_and_the_beginning_of_an_answer() {
        let it = conversation();
        let roles = |it: &Conversation| -> Vec<String> {
            let role = |turn: &Turn| turn.message["role"].as_str().unwrap().to_owned();
            it.messages.iter().map(role).collect()
        };
        let decode = |ids: &[u32]| format!("{ids:?}");
        for (at, tokens, expected, partial) in [
            (12, 12, &["system", "user", "assistant", "user"][..], false),
            (9, 9, &["system", "user", "assistant"], false),
            (7, 7, &["system", "user", "assistant"], true),
            (5, 5, &["system", "user"], false),
            // Within a user's message, its tokens stay without a turn.
            (4, 4, &["system"], false),
            (0, 0, &[], false),
        ] {
            let cut = it.cut_at_token(at, decode);
            assert_eq!(
                (cut.tokens.len(), roles(&cut)),
                (tokens, expected.iter().map(|r| (*r).to_owned()).collect())
            );
            assert_eq!(
                cut.messages.last().is_some_and(|turn| turn.partial),
                partial,
                "{at}"
            );
        }
        assert_eq!(
            it.cut_at_token(7, decode).messages[2].message["content"],
            "[5, 6]"
        );
        // What is left of a user's message is no answer, in a copy of the copy either; what is being generated is one.
        let left = it.cut_at_token(4, decode);
        let again = left.cut_at_token(4, decode);
        assert_eq!((again.messages.len(), again.tokens.len()), (1, 4));
        let mut running = it.clone();
        running.begin_turn(Arc::new((0..14).collect()), &[]);
        assert!(running.cut_at_token(14, decode).messages[4].partial);
        for turns in 0..=4 {
            let cut = it.cut_at_turn(turns);
            assert_eq!(cut.messages[..], it.messages[..turns]);
            assert_eq!(cut.tokens.len(), [0, 2, 5, 9, 12][turns]);
        }
    }

    #[test]
    fn answers_go_on_only_if_they_were_cut() {
        let mut it = conversation();
        let answer = |text: &str| json!({ "role": "assistant", "content": text });
        it.extend_tokens(&[12, 13]);
        it.end_turn(answer("one "), true);
        assert_eq!((it.messages.len(), it.messages[4].end), (5, 14));
        it.begin_turn(it.tokens.clone(), &[]);
        it.extend_tokens(&[14]);
        it.end_turn(answer("two"), false);
        assert_eq!((it.messages.len(), it.messages[4].end), (5, 15));
        assert_eq!(it.messages[4].message["content"], "one two");
        it.end_turn(answer("three"), false);
        assert_eq!(
            it.messages.len(),
            6,
            "a finished answer is a turn of its own"
        );
    }

    #[test]
    fn a_prompt_that_changes_earlier_tokens_moves_their_ends() {
        let mut it = conversation();
        let messages: Vec<Value> = it
            .messages
            .iter()
            .map(|turn| turn.message.clone())
            .collect();
        let new = json!({ "role": "user", "content": "w" });
        let tokens = Arc::new(vec![0, 1, 2, 3, 99, 100]);
        it.begin_turn(tokens, &[messages, vec![new]].concat());
        let ends: Vec<usize> = it.messages.iter().map(|turn| turn.end).collect();
        assert_eq!(ends, [2, 4, 4, 4, 6]);
        let tokens = it.object(None, [].into_iter())["turns"][1]["tokens"].clone();
        assert_eq!(tokens, 2);
    }
}
