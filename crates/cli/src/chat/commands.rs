//! The commands of a chat: lines that begin with a slash.

use super::conversation::{Branch, Conversation};
use super::files::FileToWrite;
use super::{Next, Session, colours, map, migrate, statistics, transcript};
use crate::output;
use anyhow::{Result, bail};
use kvark::generate::SpliceReport;
use std::path::Path;

/// Every command with its argument and what it does.
pub(super) const COMMANDS: [(&str, &str, &str); 21] = [
    ("regen", "", "answer the last message again"),
    (
        "edit",
        "[TEXT]",
        "change the last message and answer it again",
    ),
    (
        "set",
        "[NAME [VALUE]]",
        "change an option, such as temp or predict, or show it; alone it lists them",
    ),
    (
        "system",
        "[TEXT]",
        "change the system message of this branch; \"\" removes it",
    ),
    (
        "stats",
        "",
        "show the time and tokens of the last answer and of the chat",
    ),
    (
        "fork",
        "[NAME]",
        "start a branch with the history so far, and switch to it",
    ),
    ("branches", "", "list the branches"),
    ("switch", "NAME", "switch to another branch"),
    ("history", "", "show what was said in this branch"),
    (
        "rewind",
        "[N]",
        "remove the last N turns of this branch (default 1)",
    ),
    (
        "cut",
        "N[-M] [approximate]",
        "remove turn N, or turns N to M; with approximate, later turns are moved instead of computed again",
    ),
    ("keep", "", "delete all other branches"),
    ("drop", "NAME", "delete another branch"),
    (
        "cache",
        "[WHAT TO]",
        "show which cells of the cache the branches hold, or change it: type q8, type q8 q4 (keys, values), policy RULES, kind tree, device cuda",
    ),
    (
        "save",
        "FILE",
        "save this branch to a file; asks before it replaces a snapshot, /save! does not",
    ),
    (
        "export",
        "FILE.md",
        "write this branch as Markdown; asks before it replaces a file, /export! does not",
    ),
    ("load", "FILE", "replace this branch by a saved one"),
    ("clear", "", "remove all turns of this branch"),
    ("help", "", "this list"),
    ("exit", "", "leave, as Ctrl-D does"),
    ("quit", "", "the same"),
];

/// The list of commands, each line after `indent`.
fn list(indent: &str) -> String {
    let line = |(name, argument, what): &(&str, &str, &str)| {
        let usage = format!("/{name} {argument}");
        format!("{indent}{usage:<18}{what}\n")
    };
    COMMANDS.iter().map(line).collect()
}

/// The help on input that is not a command. `indent` begins each line.
fn other_input(indent: &str) -> String {
    format!(
        "{indent}\"\"\"               begin a message of several lines, and end it\n\
         {indent}//TEXT            send a text that begins with a slash; so does a space before it\n\
         {indent}Tab               complete commands, branches, options and files\n\
         {indent}Ctrl-C            stop the answer, or clear the line; twice in an empty line to leave"
    )
}

/// Help of the command line.
pub(super) fn after_help() -> String {
    format!(
        "In the conversation:\n{}{}

Lines piped to stdin are messages; only answers are written to stdout. The exit code is 1 when a message was not answered, \
or a file not saved, exported or loaded; 143 after SIGTERM and 129 after SIGHUP, as a shell has it.

Examples:
  kvark chat
  kvark chat model.gguf --system \"Answer in one sentence.\" -p \"Why is the sky blue?\"
  printf 'Hello!\\nAnd in French?\\n' | kvark chat --temp 0",
        list("  "),
        other_input("  ")
    )
}

/// Runs the command of a line, which is given without its slash.
pub(super) fn run(session: &mut Session<'_>, line: &str) -> Result<Next> {
    let (name, rest) = match line.split_once(char::is_whitespace) {
        Some((name, rest)) => (name, rest.trim()),
        None => (line, ""),
    };
    let conversation = &mut session.conversation;
    // The argument of these may have spaces.
    let said = match name {
        "save" | "save!" | "export" | "export!" | "load" if rest.is_empty() => {
            format!("/{name} takes the name of a file")
        }
        "save" | "save!" => {
            let file = FileToWrite::snapshot(rest);
            return Ok(file.write_or_ask(session, name == "save!"));
        }
        "export" | "export!" => {
            let file = FileToWrite::markdown(rest);
            return Ok(file.write_or_ask(session, name == "export!"));
        }
        "load" => match conversation.load(Path::new(rest)) {
            Ok(turns) => {
                colours::note(&format!("[turns loaded: {turns}]"));
                session.show_last_turns();
                return Ok(Next::Line);
            }
            Err(error) => {
                colours::note(&format!("{error:#}"));
                return Ok(Next::Failed);
            }
        },
        "switch" if !rest.is_empty() && !rest.contains(char::is_whitespace) => {
            if let Err(error) = conversation.switch(rest) {
                format!("{error:#}")
            } else {
                colours::note(&format!("[now in {rest}]"));
                session.show_last_turns();
                return Ok(Next::Line);
            }
        }
        "history" if rest.is_empty() && !conversation.turns().is_empty() => {
            transcript::show(conversation, usize::MAX);
            return Ok(Next::Line);
        }
        "regen" | "edit" if conversation.last_message().is_none() => {
            format!("/{name} needs a message, and there is none in this branch")
        }
        "edit" if rest.is_empty() && session.terminal => return Ok(Next::Edit),
        "edit" if rest.is_empty() => {
            "/edit takes the new text of the message, as in /edit Why is the sky blue?".to_owned()
        }
        "edit" => return session.replace(rest),
        "regen" if rest.is_empty() => {
            let last = conversation.last_message().unwrap_or_default().to_owned();
            return session.replace(&last);
        }
        "cut" => message_of(cut(conversation, rest)),
        "cache" if !rest.is_empty() => message_of(migrate::run(session, rest)),
        "set" => message_of(session.settings.set(rest, conversation)),
        "system" => system(session, rest)?,
        _ => match plain(conversation, name, rest)? {
            Some(said) => said,
            None => return Ok(Next::Exit),
        },
    };
    colours::note(&said);
    Ok(Next::Line)
}

/// Runs a command that takes at most one word, and returns what it says; `None` to leave.
fn plain(conversation: &mut Conversation<'_>, name: &str, rest: &str) -> Result<Option<String>> {
    if rest.contains(char::is_whitespace) {
        return Ok(Some(format!(
            "/{name} takes at most one word after it; /help lists the commands"
        )));
    }
    let said = match (name, Some(rest).filter(|word| !word.is_empty())) {
        ("exit" | "quit" | "bye", None) => return Ok(None),
        ("help", None) => list("") + &other_input(""),
        ("clear", None) => {
            conversation.clear()?;
            "[the conversation was cleared]".to_owned()
        }
        ("stats", None) => stats(conversation)?,
        ("rewind", argument) => rewind(conversation, argument.unwrap_or("1"))?,
        ("fork", name) => message_of(
            conversation
                .fork(name)
                .map(|name| format!("[now in {name}]")),
        ),
        ("history", None) => "[nothing was said in this branch]".to_owned(),
        ("drop", Some(name)) => message_of(
            conversation
                .drop_branch(name)
                .map(|()| format!("[{name} was dropped]")),
        ),
        ("keep", None) => message_of(
            conversation
                .keep()
                .map(|n| format!("[branches dropped: {n}]")),
        ),
        ("branches", None) => branches(conversation),
        ("cache", None) => map::draw(conversation)?,
        ("switch" | "drop", None) => {
            format!("/{name} takes the name of a branch; /branches lists them")
        }
        (name, Some(_)) if COMMANDS.iter().any(|(known, ..)| *known == name) => {
            format!("/{name} takes nothing after it")
        }
        _ => format!(
            "unknown command /{name}; /help lists the commands, //{name} sends it as a message"
        ),
    };
    Ok(Some(said))
}

/// Message for the result of a command, or its error.
fn message_of(result: Result<String>) -> String {
    result.unwrap_or_else(|error| format!("{error:#}"))
}

fn rewind(conversation: &mut Conversation<'_>, turns: &str) -> Result<String> {
    let Ok(n) = turns.parse() else {
        return Ok("/rewind takes a number of turns, such as /rewind 2".to_owned());
    };
    Ok(match conversation.rewind(n)? {
        Ok(left) => format!("[turns left: {left}]"),
        Err(turns) => format!("cannot rewind by {n}; turns so far: {turns}"),
    })
}

/// Removes turns from the middle of the current branch.
fn cut(conversation: &mut Conversation<'_>, rest: &str) -> Result<String> {
    const USAGE: &str =
        "/cut takes a turn or two, such as /cut 2 or /cut 2-4, and then approximate or nothing";
    let (turns, approximate) = match rest.split_once(char::is_whitespace) {
        None => (rest, false),
        Some((turns, word)) if word.trim() == "approximate" => (turns, true),
        Some(_) => bail!(USAGE),
    };
    let (first, last) = turns.split_once('-').unwrap_or((turns, turns));
    let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
        bail!(USAGE);
    };
    let count = conversation.turns().len() / 2;
    if first == 0 || first > last || last > count {
        bail!("there are turns 1 to {count}, and /cut {turns} names others");
    }
    let report = conversation.cut(first - 1..last, approximate)?;
    let left = format!("turns left: {}", count - (last + 1 - first));
    Ok(match report {
        None => format!("[{left}; those after the cut are computed again with the next message]"),
        Some(SpliceReport {
            kept,
            computed,
            moved,
        }) => {
            format!(
                "[{left}; tokens kept: {kept}, computed: {computed}, moved, an approximation: {moved}]"
            )
        }
    })
}

/// Shows or changes the system message.
fn system(session: &mut Session<'_>, text: &str) -> Result<String> {
    let conversation = &mut session.conversation;
    if text.is_empty() {
        return Ok(match conversation.system() {
            Some(text) => text.to_owned(),
            None => "[there is no system message; /system TEXT sets one]".to_owned(),
        });
    }
    let text = Some(text).filter(|text| *text != "\"\"");
    if let Err(error) = conversation.set_system(text)? {
        return Ok(format!("[{error}]"));
    }
    conversation.enable_context_shift(session.shift)?;
    Ok(match text {
        Some(_) => "[the system message was changed]",
        None => "[the system message was removed]",
    }
    .to_owned())
}

fn stats(conversation: &Conversation<'_>) -> Result<String> {
    let cells = conversation.cells();
    let (prompt, generated) = conversation.total_tokens();
    let last = match conversation.last_answer() {
        Some(answer) => format!("last answer: {}\n", statistics(answer)),
        None => String::new(),
    };
    Ok(format!(
        "{last}this chat: prompt {}, generated {}\ncontext: {} of {} cells in use, KV {}",
        output::tokens(prompt),
        output::tokens(generated),
        cells.cells_used()?,
        cells.capacity()?,
        output::bytes(cells.memory()?.kv as u64),
    ))
}

fn branches(conversation: &Conversation<'_>) -> String {
    let (list, current) = conversation.branches();
    let line = |(i, branch): (usize, &Branch)| {
        let mark = if i == current { '*' } else { ' ' };
        let tokens = conversation.cells().tokens(branch.id).len();
        format!(
            "{mark} {:<12} {}, {}",
            branch.name,
            output::count(branch.turns(), "turn"),
            output::tokens(tokens)
        )
    };
    list.iter()
        .enumerate()
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}
