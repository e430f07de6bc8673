//! Input of messages: a line editor on a terminal, plain lines otherwise.

use super::colours;
use super::completion::Completion;
#[cfg(unix)]
use super::typeahead::Typeahead;
use crate::interrupt;
use anyhow::{Context, Result};
use kvark::catalogue::ModelStore;
use rustyline::config::{Behavior, CompletionType, Config};
use rustyline::error::ReadlineError;
use rustyline::history::{DefaultHistory, History};
use rustyline::{Cmd, ConditionalEventHandler, Event, EventContext, EventHandler, KeyEvent};
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// The prompt of the further lines of a message in [`FENCE`]s.
const CONTINUED: &str = ". ";
/// Begins and ends a message of several lines.
pub(super) const FENCE: &str = "\"\"\"";

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
    /// The [`LeavingKey`] that ended the last line.
    pressed: Arc<AtomicU8>,
    /// Restores the terminal at the end.
    #[cfg(unix)]
    _typeahead: Option<Typeahead>,
}

const NO_KEY: u8 = 0;
const CTRL_C: u8 = 1;
const CTRL_D: u8 = 2;

/// A key that ends a line without entering it. The editor would return an error and drop the keys that follow; so the line
/// is accepted, and the key is noted.
struct LeavingKey {
    key: u8,
    pressed: Arc<AtomicU8>,
}

impl ConditionalEventHandler for LeavingKey {
    fn handle(&self, _: &Event, _: u16, _: bool, line: &EventContext) -> Option<Cmd> {
        // Ctrl-D deletes a character of a line that has some.
        if self.key == CTRL_D && !line.line().is_empty() {
            return None;
        }
        self.pressed.store(self.key, Ordering::SeqCst);
        Some(Cmd::AcceptLine)
    }
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

    /// The next entry, or the error of reading it; `None` at the end of the input and after Ctrl-C. On a terminal, `prompt` is
    /// shown and `branches` are completed by Tab.
    pub(super) fn entry(
        &mut self,
        prompt: &str,
        branches: &[String],
    ) -> Result<Option<Result<Entry, String>>> {
        let line = match self {
            Input::Terminal(editor) => editor.line(prompt, branches)?.map(Ok),
            Input::Pipe(lines) => lines.next()?,
        };
        let line = match line {
            Some(Ok(line)) => line,
            Some(Err(error)) => return Ok(Some(Err(error))),
            None => return Ok(None),
        };
        if !line.trim_start().starts_with(FENCE) {
            self.remember(&line);
            return Ok(Some(Ok(Entry::Line(line))));
        }
        let mut typed = line.trim_start().trim_end_matches(['\r', '\n']).to_owned();
        loop {
            if let Some(text) = fenced(&typed) {
                let text = text.trim_matches('\n').to_owned();
                self.remember(&typed);
                return Ok(Some(Ok(Entry::Block(text))));
            }
            let line = match self {
                Input::Terminal(editor) => match editor.read(CONTINUED, "")? {
                    Read::Line(line) => Some(Ok(line)),
                    Read::End => None,
                    // Ctrl-C drops the message.
                    Read::Interrupted { .. } => return Ok(Some(Ok(Entry::Line(String::new())))),
                },
                Input::Pipe(lines) => lines.next()?,
            };
            match line {
                Some(Ok(line)) => {
                    typed.push('\n');
                    typed.push_str(line.trim_end_matches(['\r', '\n']));
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
    pub(super) fn edit(&mut self, prompt: &str, text: &str) -> Result<Option<String>> {
        let Input::Terminal(editor) = self else {
            return Ok(None);
        };
        match editor.read(prompt, text)? {
            Read::Line(line) => {
                editor.remember(&line);
                Ok(Some(line))
            }
            Read::End | Read::Interrupted { .. } => Ok(None),
        }
    }

    /// Asks a question that is answered by yes or no. Without a terminal the answer is no.
    pub(super) fn confirm(&mut self, question: &str) -> Result<Confirmed> {
        let Input::Terminal(editor) = self else {
            return Ok(Confirmed::No);
        };
        let Read::Line(line) = editor.read(&format!("{question} [y/N] "), "")? else {
            return Ok(Confirmed::No);
        };
        Ok(match &*line.trim().to_lowercase() {
            "y" | "yes" => Confirmed::Yes,
            "" | "n" | "no" => Confirmed::No,
            _ => Confirmed::Other(line),
        })
    }

    fn remember(&mut self, typed: &str) {
        if let Input::Terminal(editor) = self {
            editor.remember(typed);
        }
    }
}

/// The answer to a question.
pub(super) enum Confirmed {
    Yes,
    No,
    /// A line that is no answer, such as the next one of a text that was pasted.
    Other(String),
}

/// The text between the [`FENCE`]s; `None` if the second one has not been typed.
fn fenced(typed: &str) -> Option<&str> {
    let rest = typed.strip_prefix(FENCE)?;
    rest.trim_end().strip_suffix(FENCE)
}

/// The result of the line editor.
enum Read {
    Line(String),
    /// Ctrl-D.
    End,
    /// Ctrl-C, in a line that was empty or not.
    Interrupted {
        empty: bool,
    },
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
        let pressed = Arc::new(AtomicU8::new(NO_KEY));
        for (event, key) in [('C', CTRL_C), ('\\', CTRL_C), ('D', CTRL_D)] {
            let pressed = pressed.clone();
            let handler = EventHandler::Conditional(Box::new(LeavingKey { key, pressed }));
            editor.bind_sequence(KeyEvent::ctrl(event), handler);
        }
        // The chat also works without a history file.
        let home = ModelStore::from_env().ok();
        let history = home
            .filter(|home| std::fs::create_dir_all(home.root()).is_ok())
            .map(|home| home.root().join("history"));
        if let Some(path) = &history {
            let _ = editor.load_history(path);
        }
        Ok(Editor {
            editor,
            history,
            pressed,
            #[cfg(unix)]
            _typeahead: Typeahead::begin(),
        })
    }

    fn line(&mut self, prompt: &str, branches: &[String]) -> Result<Option<String>> {
        // A Ctrl-C that arrived after the end of the answer does not end the chat.
        interrupt::reset();
        if let Some(completion) = self.editor.helper_mut() {
            completion.branches = branches.to_vec();
        }
        let mut interrupted = false;
        loop {
            match self.read(prompt, "")? {
                Read::Line(line) => return Ok(Some(line)),
                Read::End => return Ok(None),
                Read::Interrupted { empty: false } => interrupted = false,
                Read::Interrupted { empty: true } if interrupted => {
                    interrupt::ask();
                    return Ok(None);
                }
                Read::Interrupted { empty: true } => {
                    interrupted = true;
                    colours::note("(Ctrl-C again or Ctrl-D to leave)");
                }
            }
        }
    }

    /// Reads one line, which begins as `initial`.
    fn read(&mut self, prompt: &str, initial: &str) -> Result<Read> {
        loop {
            let Some(_idle) = interrupt::idle() else {
                return Ok(Read::End);
            };
            self.pressed.store(NO_KEY, Ordering::SeqCst);
            match self.editor.readline_with_initial(prompt, (initial, "")) {
                Ok(line) => {
                    return Ok(match self.pressed.load(Ordering::SeqCst) {
                        CTRL_C => Read::Interrupted {
                            empty: line.is_empty(),
                        },
                        CTRL_D => Read::End,
                        _ => Read::Line(line),
                    });
                }
                Err(ReadlineError::Eof) => return Ok(Read::End),
                // Another key than Ctrl-C, named by stty: whether the line was empty is not known.
                Err(ReadlineError::Interrupted) => return Ok(Read::Interrupted { empty: false }),
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
