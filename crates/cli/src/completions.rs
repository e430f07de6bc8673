//! `kvark completions`: scripts that complete kvark's command line in a shell.

use anyhow::{Context, Result};
use clap::Args;
use clap_complete::{Generator, Shell};
use std::io::Write;
use std::path::PathBuf;

/// Print a script that completes commands and flags in your shell
#[derive(Args)]
#[command(
    after_help = "The archive of a release has the scripts in completions/, and so has kvark's source.

Examples:
  kvark completions bash > ~/.local/share/bash-completion/completions/kvark
  kvark completions zsh > ~/.zfunc/_kvark        with fpath+=~/.zfunc before compinit in ~/.zshrc
  kvark completions fish > ~/.config/fish/completions/kvark.fish
  kvark completions powershell >> $PROFILE"
)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
    /// Write the script to a file of its usual name in DIR instead
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Completions {
    pub(crate) fn execute(self) -> Result<()> {
        let mut command = crate::command();
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, &name, &mut script);
        let Some(dir) = self.dir else {
            return Ok(std::io::stdout().write_all(&script)?);
        };
        let path = dir.join(self.shell.file_name(&name));
        std::fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))
    }
}
