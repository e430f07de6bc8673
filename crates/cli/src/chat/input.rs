//! Input of messages: a line editor on a terminal, plain lines otherwise.

use crate::{interrupt, output};
use anyhow::{Context, Result};
use kvark::catalogue::ModelStore;
use rustyline::config::{Behavior, Config};
use rustyline::error::ReadlineError;
use rustyline::{DefaultEditor, history::History};
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

const PROMPT: &str = "> ";

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
    editor: DefaultEditor,
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

    /// The next line, or the error of reading it; `None` at the end of the input and after Ctrl-C.
    pub(super) fn line(&mut self) -> Result<Option<Result<String, String>>> {
        match self {
            Input::Terminal(editor) => Ok(editor.line()?.map(Ok)),
            Input::Pipe(lines) => lines.next(),
        }
    }
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
        let config = Config::builder().behavior(behavior).build();
        let mut editor = DefaultEditor::with_config(config)?;
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

    fn line(&mut self) -> Result<Option<String>> {
        // A Ctrl-C that arrived after the end of the answer does not end the chat.
        interrupt::reset();
        let mut interrupted = false;
        loop {
            match self.editor.readline(PROMPT) {
                Ok(line) => {
                    self.remember(&line);
                    return Ok(Some(line));
                }
                Err(ReadlineError::Eof) => return Ok(None),
                // While no line is edited, the terminal sends a signal instead.
                Err(ReadlineError::Interrupted) if interrupted || interrupt::requested() => {
                    interrupt::ask();
                    return Ok(None);
                }
                Err(ReadlineError::Interrupted) => {
                    interrupted = true;
                    output::note("(Ctrl-C again or Ctrl-D to leave)");
                }
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
