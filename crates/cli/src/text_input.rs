//! Texts of flags, files and standard input.

use anyhow::{Context, Result, bail};
use clap::Args;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Text from the command line or a file.
#[derive(Args)]
#[group(id = "text", multiple = false)]
pub(crate) struct TextArgs {
    /// The text; - for standard input
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// File with the text, without the line end after it; - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

impl TextArgs {
    /// The text, if any was given.
    pub(crate) fn read(&self) -> Result<Option<String>> {
        match (&self.prompt, &self.file) {
            (Some(text), _) => Ok(Some(argument(text)?)),
            (None, Some(path)) => Ok(Some(read_prompt(path)?)),
            (None, None) => Ok(None),
        }
    }

    /// The flag that names the text.
    pub(crate) fn flag(&self) -> Option<&'static str> {
        match (&self.prompt, &self.file) {
            (Some(_), _) => Some("--prompt"),
            (None, Some(_)) => Some("--file"),
            (None, None) => None,
        }
    }
}

/// Name of standard input as a text or a file.
pub(crate) const STDIN: &str = "-";

/// The text of an argument; that of standard input for `-`.
pub(crate) fn argument(text: &str) -> Result<String> {
    match text {
        STDIN => read_prompt(Path::new(STDIN)),
        text => Ok(text.to_owned()),
    }
}

/// The text that is piped to standard input; `None` if standard input is a terminal or empty.
pub(crate) fn piped() -> Result<Option<String>> {
    if std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let text = read_prompt(Path::new(STDIN))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Reads a text of a file or standard input. The line end that `echo` and editors put at the end of a text is not part of
/// it.
pub(crate) fn read_prompt(path: &Path) -> Result<String> {
    let mut text = read_text(path)?;
    if text.ends_with('\n') {
        text.pop();
        text.truncate(text.strip_suffix('\r').unwrap_or(&text).len());
    }
    Ok(text)
}

/// Reads a UTF-8 text file.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let name = input_name(path);
    let bytes = if path.as_os_str() == STDIN {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let bytes = bytes.with_context(|| format!("cannot read {name}"))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => bail!(
            "{name} is not UTF-8: byte {} is invalid",
            error.utf8_error().valid_up_to()
        ),
    }
}

/// The name of a file, or of standard input, for messages.
pub(crate) fn input_name(path: &Path) -> String {
    match path.as_os_str() == STDIN {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}
