//! `kvark completions`: scripts that complete kvark's command line in a shell.

use anyhow::{Context, Result};
use clap::{Args, Command};
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
        let script = with_models(self.shell, &command, String::from_utf8(script)?);
        let Some(dir) = self.dir else {
            return Ok(std::io::stdout().write_all(script.as_bytes())?);
        };
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let path = dir.join(self.shell.file_name(&name));
        std::fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The first names of the catalogue's models, which shells complete beside files.
fn model_names() -> String {
    let names = kvark::catalogue::MODELS.iter();
    let names = names.map(|entry| entry.aliases.first().unwrap_or(&entry.name));
    names.copied().collect::<Vec<_>>().join(" ")
}

/// Makes a script complete models by file and by name. The generator knows only one of them, and in bash it offers flags where
/// a model belongs.
fn with_models(shell: Shell, command: &Command, script: String) -> String {
    let takes_model = |command: &&Command| {
        let mut first = command.get_positionals().take(1);
        let is_model = first.any(|arg| {
            let names = arg.get_value_names().unwrap_or_default();
            names.iter().any(|name| name.contains("MODEL"))
        });
        is_model
            && command
                .get_arguments()
                .any(|arg| arg.get_long() == Some("model"))
    };
    let commands = command.get_subcommands().filter(takes_model);
    let names = model_names();
    match shell {
        Shell::Bash => {
            let known =
                format!("$(compgen -f -- \"${{cur}}\") $(compgen -W \"{names}\" -- \"${{cur}}\")");
            let models = format!("COMPREPLY=({known})");
            let mut script = script;
            for command in commands {
                let label = command.get_name().replace('-', "__subcmd__");
                let label = format!("kvark__subcmd__{label})\n");
                let Some(at) = script.rfind(&label) else {
                    continue;
                };
                let (before, own) = script.split_at(at);
                let end = own
                    .find("\n            ;;\n        kvark__")
                    .unwrap_or(own.len());
                let (own, after) = own.split_at(end);
                let own = own.replace(
                    "            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then",
                    &format!(
                        "            if [[ ${{cur}} != -* && ${{COMP_CWORD}} -eq 2 ]] ; then\n                {models}\n                \
                         return 0\n            fi\n            if [[ ${{cur}} == -* ]] ; then"
                    ),
                );
                let files = "COMPREPLY=($(compgen -f \"${cur}\"))";
                let own = ["--model", "-m", "--model-draft"]
                    .iter()
                    .fold(own, |own, flag| {
                        let case = format!("                {flag})\n                    ");
                        own.replace(&format!("{case}{files}"), &format!("{case}{models}"))
                    });
                script = format!("{before}{own}{after}");
            }
            script
        }
        Shell::Zsh => {
            let function = format!(
                "(( $+functions[_kvark_models] )) ||\n_kvark_models() {{\n    _alternative 'files:file:_files' 'models:model:({names})'\n}}\n\n"
            );
            let script = script.replace(":MODEL:_default'", ":MODEL:_kvark_models'");
            let positional = ["'::model_or_", "'::positional", "'*::positional"];
            let line = |line: &str| match positional.iter().any(|id| line.starts_with(id)) {
                true => line.replace(":_default'", ":_kvark_models'") + "\n",
                false => format!("{line}\n"),
            };
            let script: String = script.lines().map(line).collect();
            match script.rfind("if [ \"$funcstack[1]\"") {
                Some(at) => format!("{}{function}{}", &script[..at], &script[at..]),
                None => script,
            }
        }
        Shell::Fish => {
            let lines = commands.map(|command| {
                let name = command.get_name();
                format!("complete -c kvark -n \"__fish_kvark_using_subcommand {name}\" -F -a \"{names}\" -d 'Model'\n")
            });
            script + &lines.collect::<String>()
        }
        _ => script,
    }
}
