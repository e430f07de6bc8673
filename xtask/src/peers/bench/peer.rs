//! The other side: a process that stays loaded and sleeps between its measurements.

use crate::peers::script::{self, Script};
use crate::peers::turns::{Case, Driver, text};
use crate::peers::venv::Build;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// The runtime that kvark is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PeerKind {
    /// llama.cpp by its Python bindings.
    #[value(name = "llama.cpp")]
    Llama,
    /// OpenVINO GenAI, which reads the same GGUF file. It stores keys and values as it likes.
    Openvino,
}

impl PeerKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            PeerKind::Llama => "llama.cpp",
            PeerKind::Openvino => "OpenVINO GenAI",
        }
    }

    fn script(self) -> &'static Script {
        match self {
            PeerKind::Llama => &script::LLAMA_BENCH,
            PeerKind::Openvino => &script::OPENVINO_BENCH,
        }
    }

    /// Makes the environment of its script if need be.
    pub(super) fn prepare(self, build: Build) -> Result<()> {
        self.script().python(build).map(|_| ())
    }
}

/// A peer with a model and one storage of keys and values.
pub(super) struct Peer {
    kind: PeerKind,
    driver: Driver,
    pub(super) cache: String,
    pub(super) about: About,
    rested: Instant,
}

/// Facts about such a process, for the report.
pub(super) struct About {
    pub(super) version: String,
    /// The instruction sets that it was built for.
    pub(super) build: String,
    /// How the model's weights are stored.
    pub(super) weights: String,
    /// Seconds between its turns.
    pub(super) waited: f64,
    /// CPU seconds that it took meanwhile.
    pub(super) busy: f64,
}

impl Peer {
    /// A peer that has loaded the model, or why it cannot.
    pub(super) fn start(
        kind: PeerKind,
        model: &Path,
        context: usize,
        cache: &str,
        build: Build,
    ) -> Result<Result<Peer, String>> {
        let mut command = kind.script().command_with(build)?;
        let mut driver = Driver::start(kind.name(), &mut command)?;
        let hello = json!({ "model": model, "context": context, "cache": cache });
        // A peer that cannot start leaves its section out, not the whole record.
        let hello = match driver.ask(&hello) {
            Ok(hello) => hello,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        if let Some(reason) = hello["unsupported"].as_str() {
            return Ok(Err(format!("{}: {reason}", kind.name())));
        }
        let about = About {
            version: text(&hello, "version")?,
            build: text(&hello, "system_info")?,
            weights: text(&hello, "weights")?,
            waited: 0.0,
            busy: 0.0,
        };
        if build == Build::Avx2 && is_above_avx2(&about.build) {
            bail!(
                "expected a llama.cpp built for AVX2 only, found one built for {} (see {})",
                about.build,
                build.variable()
            );
        }
        Ok(Ok(Peer {
            kind,
            driver,
            cache: cache.to_owned(),
            about,
            rested: Instant::now(),
        }))
    }

    /// Tokens per second of a test.
    pub(super) fn measure(&mut self, case: Case) -> Result<f64> {
        let Case {
            kind,
            n,
            depth,
            threads,
        } = case;
        self.about.waited += self.rested.elapsed().as_secs_f64();
        let question = json!({ "kind": kind, "n": n, "depth": depth, "threads": threads });
        let answer = self.driver.ask(&question)?;
        self.about.busy += answer["idle_cpu_seconds"].as_f64().unwrap_or(0.0);
        self.rested = Instant::now();
        answer["tokens_per_second"]
            .as_f64()
            .with_context(|| format!("{} measured nothing: {answer}", self.kind.name()))
    }
}

fn is_above_avx2(build: &str) -> bool {
    ["AVX512", "VNNI", "AMX"]
        .iter()
        .any(|feature| build.contains(feature))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_for_more_than_avx2_is_known() {
        assert!(!is_above_avx2(
            "SSE3, SSSE3, AVX, AVX2, F16C, FMA, BMI2, REPACK"
        ));
        assert!(is_above_avx2("AVX, AVX_VNNI, AVX2"));
        assert!(is_above_avx2("AVX2, AVX512"));
    }
}
