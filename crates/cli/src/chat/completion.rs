//! Tab in a chat: completes commands, branches, options and files.

use super::commands::COMMANDS;
use super::settings::Settings;
use rustyline::completion::Completer;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};
use std::path::{MAIN_SEPARATOR, Path};

/// Completes lines; holds the names of the branches at the time of the line.
#[derive(Default)]
pub(super) struct Completion {
    pub(super) branches: Vec<String>,
}

impl Completion {
    /// The start of the word at the end of `line`, and its completions.
    fn candidates(&self, line: &str) -> (usize, Vec<String>) {
        let none = (line.len(), vec![]);
        let Some(command) = line.strip_prefix('/') else {
            return none;
        };
        let Some((name, rest)) = command.split_once(' ') else {
            let names = COMMANDS.iter().map(|(name, ..)| (*name).to_owned());
            return (1, beginning_with(command, names));
        };
        let start = line.len() - rest.len();
        match name {
            "switch" | "drop" => (start, beginning_with(rest, self.branches.iter().cloned())),
            "set" => (start, beginning_with(rest, Settings::names())),
            "save" | "save!" | "export" | "export!" | "load" => (start, files(rest)),
            _ => none,
        }
    }
}

fn beginning_with(start: &str, names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut found: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with(start))
        .collect();
    found.sort_unstable();
    found
}

/// Paths that begin with `start`. Folders end with a separator, hidden files need a dot.
fn files(start: &str) -> Vec<String> {
    let separators = ['/', MAIN_SEPARATOR];
    let cut = start.rfind(separators).map_or(0, |at| at + 1);
    let (folder, name) = start.split_at(cut);
    let from = match folder {
        "" => Path::new("."),
        folder => Path::new(folder),
    };
    let Ok(entries) = std::fs::read_dir(from) else {
        return vec![];
    };
    let path = |entry: std::fs::DirEntry| {
        let found = entry.file_name().to_str()?.to_owned();
        let hidden = found.starts_with('.') && !name.starts_with('.');
        let end = match entry.path().is_dir() {
            true => MAIN_SEPARATOR.to_string(),
            false => String::new(),
        };
        (!hidden && found.starts_with(name)).then(|| format!("{folder}{found}{end}"))
    };
    let mut found: Vec<String> = entries.flatten().filter_map(path).collect();
    found.sort_unstable();
    found
}

impl Completer for Completion {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.candidates(&line[..position]))
    }
}

impl Hinter for Completion {
    type Hint = String;
}
impl Highlighter for Completion {}
impl Validator for Completion {}
impl Helper for Completion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_candidates() {
        let completion = Completion {
            branches: vec!["main".into(), "maybe".into(), "idea".into()],
        };
        let found = |line: &str| completion.candidates(line);
        assert_eq!(found("/sw"), (1, vec!["switch".to_owned()]));
        assert_eq!(found("/switch ma").1, ["main", "maybe"]);
        assert_eq!(found("/drop i"), (6, vec!["idea".to_owned()]));
        assert_eq!(found("/set temp").1, ["temp"]);
        assert!(found("/set dry-").1.len() >= 5);
        assert_eq!(found("/load src/chat/comp").1, ["src/chat/completion.rs"]);
        assert_eq!(found("/save src/ch").1, ["src/chat.rs", "src/chat/"]);
        assert_eq!(found("/export! src/ch").1, ["src/chat.rs", "src/chat/"]);
        for nothing in ["hello", "//sw", "/rewind m", "/load no/such/folder"] {
            assert!(found(nothing).1.is_empty(), "{nothing}");
        }
    }
}
