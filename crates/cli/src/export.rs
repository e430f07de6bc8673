//! `kvark export`: runs the Python exporter to write a `.pt2`.

use crate::args::ModelArgs;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Environment variable with the Python interpreter to use.
const VARIABLE: &str = "KVARK_PYTHON";
/// The interpreter to use if none is named.
const PYTHON: &str = if cfg!(windows) { "python" } else { "python3" };
/// The exporter's package.
const PACKAGE: &str = "kvark_export";
/// Pinned requirements of the exporter.
const REQUIREMENTS: &str = include_str!("../../../python/requirements.txt");

/// Export a model to a .pt2 file with PyTorch
#[derive(Args)]
#[command(
    after_help = "MODEL is a Hugging Face folder (config.json, weights, tokenizer), a GGUF file or a catalogue name; \
architectures: llama, qwen2, qwen3, gemma2, gemma3, gpt2. Its tokenizer and chat template go along.

This runs `python -m kvark_export` (python/ in kvark's source, or installed by pip), the only command that needs Python. \
It takes the Python that --python names, else the one in KVARK_PYTHON, else python3. Any other PyTorch module is exported \
from Python by kvark_export.export_module.

Examples:
  python3 -m venv .venv && .venv/bin/pip install -r python/requirements.txt
  kvark export model.gguf -o model.pt2 --python .venv/bin/python
  kvark export path/to/folder -o model.pt2 --features
  kvark chat model.pt2"
)]
pub(crate) struct Export {
    #[command(flatten)]
    model: ModelArgs,
    /// The file to write
    #[arg(short, long, value_name = "FILE.pt2", value_parser = pt2)]
    output: PathBuf,
    /// Add hidden states as a second output, for Eagle3 drafts
    #[arg(long)]
    features: bool,
    /// Maximum number of tokens in one step [default: 2048]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    max_step: Option<u32>,
    /// Python interpreter that has PyTorch
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

fn pt2(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let good = path.extension().is_some_and(|e| e == "pt2");
    good.then_some(path)
        .ok_or_else(|| "must end in .pt2".to_owned())
}

impl Export {
    pub(crate) fn execute(self) -> Result<()> {
        let python = Python::find(self.python.as_deref())?;
        python.check()?;
        let mut command = python.command();
        command.args(["-m", PACKAGE]).arg(self.model.path()?);
        command.arg("--output").arg(&self.output);
        if self.features {
            command.arg("--features");
        }
        if let Some(n) = self.max_step {
            command.arg("--max-step").arg(n.to_string());
        }
        let status = command.status().with_context(|| python.cannot_start())?;
        if !status.success() {
            // The exporter has printed the reason.
            bail!("nothing was exported: the exporter ended with {status}");
        }
        Ok(())
    }
}

/// A Python interpreter and its module path.
struct Python {
    program: PathBuf,
    /// Value for `PYTHONPATH`; `None` leaves it unchanged.
    path: Option<OsString>,
}

impl Python {
    fn find(named: Option<&Path>) -> Result<Python> {
        let variable = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let program = named.map(Path::to_owned).or(variable.map(PathBuf::from));
        let path = match checkout() {
            Some(folder) => {
                let before = std::env::var_os("PYTHONPATH").unwrap_or_default();
                let before = std::env::split_paths(&before).filter(|p| p != Path::new(""));
                let all = std::iter::once(folder.clone()).chain(before);
                let joined = std::env::join_paths(all);
                Some(joined.with_context(|| folder.display().to_string())?)
            }
            None => None,
        };
        Ok(Python {
            program: program.unwrap_or_else(|| PYTHON.into()),
            path,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.stdin(Stdio::null());
        if let Some(path) = &self.path {
            command.env("PYTHONPATH", path);
        }
        command
    }

    /// Fails with instructions if a required module is missing.
    fn check(&self) -> Result<()> {
        let pins = REQUIREMENTS.lines().map(str::trim);
        let pins = pins.filter(|line| !line.is_empty() && !line.starts_with('#'));
        // Modules are named like their distributions; the test runner is not required.
        let pins = pins.filter_map(|pin| Some((pin.split_once("==")?.0, pin)));
        let pins: Vec<(&str, &str)> = pins.filter(|(name, _)| *name != "pytest").collect();
        let asked: Vec<&str> = pins.iter().map(|(name, _)| *name).collect();
        let missing = self.missing(&[&asked[..], &[PACKAGE]].concat())?;
        let there = |name: &str| !missing.iter().any(|m| m == name);
        let mut wanted: Vec<&str> = pins
            .iter()
            .filter(|(name, _)| !there(name))
            .map(|(_, pin)| *pin)
            .collect();
        if !there(PACKAGE) {
            wanted.push("PATH/TO/KVARK");
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let program = self.program.display();
        bail!(
            "{program} has no {}; install what is missing: {program} -m pip install {} (or name another Python by \
             --python or {VARIABLE})",
            missing.join(", "),
            wanted.join(" ")
        )
    }

    /// Returns the modules that cannot be found.
    fn missing(&self, modules: &[&str]) -> Result<Vec<String>> {
        const CODE: &str = "import sys; from importlib.util import find_spec
print(*(name for name in sys.argv[1:] if find_spec(name) is None))";
        let mut command = self.command();
        let output = command.args(["-c", CODE]).args(modules).output();
        let output = output.with_context(|| self.cannot_start())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim().lines().last().unwrap_or("and says nothing");
            let program = self.program.display();
            bail!(
                "{program} is not a working Python 3: {}, {last}",
                output.status
            );
        }
        let list = String::from_utf8_lossy(&output.stdout);
        Ok(list.split_whitespace().map(str::to_owned).collect())
    }

    fn cannot_start(&self) -> String {
        let program = self.program.display();
        format!("cannot start {program}; set a Python interpreter with --python or {VARIABLE}")
    }
}

/// Folder of the exporter in the source tree that this program was built in or is run from.
fn checkout() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let places = [program, std::env::current_dir().ok()];
    let mut above = places.iter().flatten().flat_map(|place| place.ancestors());
    let has = |folder: &PathBuf| {
        folder
            .join(OsStr::new(PACKAGE))
            .join("__main__.py")
            .is_file()
    };
    above.find_map(|folder| Some(folder.join("python")).filter(has))
}
