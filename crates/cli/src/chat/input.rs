//! Input of messages: a line editor on a terminal, plain lines otherwise.

use super::completion::Completion;
use crate::{interrupt, output};
use anyhow::{Context, Result};
use kvark::catalogue::ModelStore;
use rustyline::config::{Behavior, CompletionType, Config};
use rustyline::error::ReadlineError;
use rustyline::history::{DefaultHistory, History};
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

const PROMPT: &str = "> ";
/// The prompt of the further lines of a message in [`FENCE`]s.
const CONTINUED: &str = ". ";
/// Begins and ends a message of several lines.
const FENCE: &str = "\"\"\"";

/// A line that the user typed or piped in.
pub(super) enum Entry {
    /// One line: a command or a message.
    Line(String),
    /// A message of several lines.
    Block(String),
}

pub(super) enum Input {
    Terminal(Box<Editor>),
    Pipe(Lines),
}

/// Lines read by a thread, so that Ctrl-C takes effect while no line arrives.
pub(super) struct Lines {
    read: Receiver<io::Result<Vec<u8>>>,
    count: usize,
}

/// Interval at which Ctrl-C is polled while no line arrives.
const PATIENCE: Duration = Duration::from_millis(50);

/// The line editor and its history file.
pub(super) struct Editor {
    editor: rustyline::Editor<Completion, DefaultHistory>,
    history: Option<PathBuf>,
}

impl Input {
    pub(super) fn open() -> Input {
        if io::stdin().is_terminal()
            && let Ok(editor) = Editor::new()
        {
            return Input::Terminal(Box::new(editor));
        }
        Input::Pipe(Lines::new())
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(_))
    }

    /// The next entry, or the error of reading it; `None` at the end of the input and after Ctrl-C. `branches` are completed
    /// by Tab.
    pub(super) fn entry(&mut self, branches: &[String]) -> Result<Option<Result<Entry, String>>> {
        let line = match self {
            Input::Terminal(editor) => editor.line(branches)?.map(Ok),
            Input::Pipe(lines) => lines.next()?,
        };
        let line = match line {
            Some(Ok(line)) => line,
            Some(Err(error)) => return Ok(Some(Err(error))),
            None => return Ok(None),
        };
        let Some(first) = line.trim_start().strip_prefix(FENCE) else {
            return Ok(Some(Ok(Entry::Line(line))));
        };
        let mut text = first.trim_end_matches(['\r', '\n']).to_owned();
        loop {
            if let Some(text) = text.trim_end().strip_suffix(FENCE) {
                let text = text.trim_matches('\n').to_owned();
                return Ok(Some(Ok(Entry::Block(text))));
            }
            let line = match self {
                Input::Terminal(editor) => match editor.read(CONTINUED, "")? {
                    Read::Line(line) => Some(Ok(line)),
                    Read::End => None,
                    // Ctrl-C drops the message.
                    Read::Interrupted => return Ok(Some(Ok(Entry::Line(String::new())))),
                },
                Input::Pipe(lines) => lines.next()?,
            };
            match line {
                Some(Ok(line)) => {
                    text.push('\n');
                    text.push_str(line.trim_end_matches(['\r', '\n']));
                }
                Some(Err(error)) => return Ok(Some(Err(error))),
                None => {
                    let error = format!("the message that {FENCE} began has no {FENCE} at its end");
                    return Ok(Some(Err(error)));
                }
            }
        }
    }

    /// Lets the user change a text; `None` if the user gave up, or without a terminal.
    pub(super) fn edit(&mut self, text: &str) -> Result<Option<String>> {
        match self {
            Input::Terminal(editor) => match editor.read(PROMPT, text)? {
                Read::Line(line) => Ok(Some(line)),
                Read::End | Read::Interrupted => Ok(None),
            },
            Input::Pipe(_) => Ok(None),
        }
    }
}

/// The result of the line editor.
enum Read {
    Line(String),
    /// Ctrl-D.
    End,
    /// Ctrl-C.
    Interrupted,
}

impl Lines {
    fn new() -> Lines {
        let (send, read) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            loop {
                let mut line = Vec::new();
                let read = io::stdin().lock().read_until(b'\n', &mut line);
                let ended = matches!(read, Ok(0));
                if ended || send.send(read.map(|_| line)).is_err() {
                    return;
                }
            }
        });
        Lines { read, count: 0 }
    }

    fn next(&mut self) -> Result<Option<Result<String, String>>> {
        let line = loop {
            match self.read.recv_timeout(PATIENCE) {
                _ if interrupt::requested() => return Ok(None),
                Ok(line) => break line.context("cannot read standard input")?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        };
        self.count += 1;
        let text = String::from_utf8(line);
        let wrong = |_| format!("line {} of standard input is not UTF-8", self.count);
        Ok(Some(text.map_err(wrong)))
    }
}

impl Editor {
    fn new() -> Result<Editor> {
        // If stdout is redirected, prompts must not be written to it.
        let behavior = if io::stdout().is_terminal() {
            Behavior::Stdio
        } else {
            Behavior::PreferTerm
        };
        let config = Config::builder()
            .behavior(behavior)
            .completion_type(CompletionType::List)
            .build();
        let mut editor = rustyline::Editor::with_config(config)?;
        editor.set_helper(Some(Completion::default()));
        // The chat also works without a history file.
        let home = ModelStore::from_env().ok();
        let history = home
            .filter(|home| std::fs::create_dir_all(home.root()).is_ok())
            .map(|home| home.root().join("history"));
        if let Some(path) = &history {
            let _ = editor.load_history(path);
        }
        Ok(Editor { editor, history })
    }

    fn line(&mut self, branches: &[String]) -> Result<Option<String>> {
        // A Ctrl-C that arrived after the end of the answer does not end the chat.
        interrupt::reset();
        if let Some(completion) = self.editor.helper_mut() {
            completion.branches = branches.to_vec();
        }
        let mut interrupted = false;
        loop {
            match self.read(PROMPT, "")? {
                Read::Line(line) => return Ok(Some(line)),
                Read::End => return Ok(None),
                // While no line is edited, the terminal sends a signal instead.
                Read::Interrupted if interrupted || interrupt::requested() => {
                    interrupt::ask();
                    return Ok(None);
                }
                Read::Interrupted => {
                    interrupted = true;
                    output::note("(Ctrl-C again or Ctrl-D to leave)");
                }
            }
        }
    }

    /// Reads one line, which begins as `initial`.
    fn read(&mut self, prompt: &str, initial: &str) -> Result<Read> {
        loop {
            match self.editor.readline_with_initial(prompt, (initial, "")) {
                Ok(line) => {
                    self.remember(&line);
                    return Ok(Read::Line(line));
                }
                Err(ReadlineError::Eof) => return Ok(Read::End),
                Err(ReadlineError::Interrupted) => return Ok(Read::Interrupted),
                Err(ReadlineError::Signal(_)) => {}
                Err(error) => return Err(error).context("cannot read from the terminal"),
            }
        }
    }

    fn remember(&mut self, line: &str) {
        if line.trim().is_empty() || !self.editor.add_history_entry(line).unwrap_or(false) {
            return;
        }
        if let Some(path) = &self.history {
            let _ = self.editor.history_mut().append(path);
        }
    }
}
