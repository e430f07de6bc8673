//! Texts of flags, files and standard input.

use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};

/// Text from the command line or a file.
#[derive(Args)]
#[group(id = "text", multiple = false)]
pub(crate) struct TextArgs {
    /// The text; - for standard input
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// File with the text; - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

impl TextArgs {
    /// The text, if any was given.
    pub(crate) fn read(&self) -> Result<Option<String>> {
        match (&self.prompt, &self.file) {
            (Some(text), _) if text == STDIN => Ok(Some(read_stdin()?)),
            (Some(text), _) => Ok(Some(text.clone())),
            (None, Some(path)) if path.as_os_str() == STDIN => Ok(Some(read_stdin()?)),
            (None, Some(path)) => Ok(Some(read_text(path)?)),
            (None, None) => Ok(None),
        }
    }

    /// Whether a flag names the text.
    pub(crate) fn is_given(&self) -> bool {
        self.prompt.is_some() || self.file.is_some()
    }
}

/// Name of standard input as a text or a file.
const STDIN: &str = "-";

/// Reads a text from standard input. The line end that `echo` and editors put at the end of a text is not part of it.
pub(crate) fn read_stdin() -> Result<String> {
    let mut text = read_text(Path::new(STDIN))?;
    if text.ends_with('\n') {
        text.pop();
        text.truncate(text.strip_suffix('\r').unwrap_or(&text).len());
    }
    Ok(text)
}

/// Reads a UTF-8 text file.
pub(crate) fn read_text(path: &std::path::Path) -> Result<String> {
    let name = path.display();
    let bytes = if path.as_os_str() == STDIN {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes)
            .context("cannot read standard input")?;
        bytes
    } else {
        std::fs::read(path).with_context(|| format!("cannot read {name}"))?
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => bail!(
            "{name} is not UTF-8: byte {} is invalid",
            error.utf8_error().valid_up_to()
        ),
    }
}
