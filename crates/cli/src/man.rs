//! `kvark man`: manual pages, made of the same text as `--help`.

use crate::nearest::nearest;
use anyhow::{Context, Result, bail};
use clap::Args;
use clap_mangen::roff::{Roff, roman};
use std::io::Write;
use std::path::PathBuf;

/// The heading of the examples in `--help`.
const EXAMPLES: &str = "Examples:\n";

/// Print a manual page
#[derive(Args)]
#[command(
    after_help = "The pages have the text of --help. The archive of a release has them in man/, and so has kvark's source.

Examples:
  kvark man run | man -l -
  kvark man --dir ~/.local/share/man/man1"
)]
pub(crate) struct Man {
    /// The command that the page is about [default: kvark itself]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    page: Option<String>,
    /// Write all pages to files in DIR instead
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(crate) fn execute(self) -> Result<()> {
        // Pages refer to each other; `kvark help` has no page.
        let mut command = crate::command().disable_help_subcommand(true);
        command.build();
        let Some(dir) = self.dir else {
            let page = match self.page.as_deref() {
                None => &command,
                Some(name) => match command.find_subcommand(name) {
                    Some(subcommand) => subcommand,
                    None => {
                        let names = command.get_subcommands().map(clap::Command::get_name);
                        match nearest(name, names, 2) {
                            Some(near) => bail!("no such command: {name}; did you mean {near}?"),
                            None => bail!("no such command: {name} (see kvark help)"),
                        }
                    }
                },
            };
            return Ok(std::io::stdout().write_all(&render(page)?)?);
        };
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        for page in std::iter::once(&command).chain(command.get_subcommands()) {
            let path = dir.join(format!("{}.1", page_name(page)));
            std::fs::write(&path, render(page)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// The name of a page: `kvark` or `kvark-run`.
fn page_name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn render(command: &clap::Command) -> Result<Vec<u8>> {
    let man = clap_mangen::Man::new(command.clone())
        .source(concat!("kvark ", env!("CARGO_PKG_VERSION")))
        .manual("kvark's manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    notes_and_examples(command).to_writer(&mut page)?;
    Ok(page)
}

/// The text that `--help` prints after the options.
fn notes_and_examples(command: &clap::Command) -> Roff {
    let text = command.get_after_long_help().or(command.get_after_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    let (examples, notes): (Vec<&str>, Vec<&str>) = text
        .split("\n\n")
        .filter(|paragraph| !paragraph.is_empty())
        .partition(|paragraph| paragraph.starts_with(EXAMPLES));
    let mut roff = Roff::new();
    for (heading, paragraphs) in [("NOTES", notes), ("EXAMPLES", examples)] {
        if !paragraphs.is_empty() {
            roff.control("SH", [heading]);
        }
        for paragraph in paragraphs {
            roff.control("PP", []);
            add_paragraph(&mut roff, paragraph.trim_start_matches(EXAMPLES));
        }
    }
    roff
}

/// Adds running text, or the lines of a list as they are.
fn add_paragraph(roff: &mut Roff, text: &str) {
    if !text.lines().any(|line| line.starts_with("  ")) {
        roff.text([roman(text)]);
        return;
    }
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}
