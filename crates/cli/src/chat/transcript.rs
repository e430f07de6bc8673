//! The messages of a branch, on the screen and as Markdown.

use super::colours;
use super::conversation::Conversation;
use super::input::FENCE;
use super::wrap::Wrap;
use crate::output;
use kvark::text::Message;

/// Number of turns that are shown when a branch becomes the current one.
pub(super) const LAST_TURNS: usize = 3;

/// Prints the last `most` turns of the current branch to stderr, as they stood on the screen.
pub(super) fn show(conversation: &Conversation<'_>, most: usize) {
    let turns: Vec<&[Message]> = conversation.turns().chunks(2).collect();
    let earlier = turns.len().saturating_sub(most);
    if earlier > 0 {
        let turns = output::count(earlier, "earlier turn");
        colours::note(&format!("[{turns}; /history shows all]"));
    }
    for message in turns[earlier..].iter().flat_map(|turn| turn.iter()) {
        match &*message.role {
            "user" => output::note(&as_typed(&message.content)),
            _ => {
                let mut wrap = Wrap::for_stderr();
                let text = wrap.push(&message.content);
                colours::earlier_answer(&(text + &wrap.finish()));
            }
        }
    }
}

/// A message as it is typed at the prompt.
fn as_typed(text: &str) -> String {
    match text.contains('\n') {
        false => format!("> {text}"),
        true => format!("> {FENCE}{}{FENCE}", text.replace('\n', "\n. ")),
    }
}

/// The current branch as Markdown.
pub(super) fn markdown(conversation: &Conversation<'_>, model: &str) -> String {
    let mut text = format!("# A conversation with {model}\n");
    for message in conversation.messages() {
        let who = match &*message.role {
            "user" => "You",
            "assistant" => "Answer",
            "system" => "System message",
            other => other,
        };
        text += &format!("\n## {who}\n\n{}\n", message.content.trim_end());
    }
    text
}
