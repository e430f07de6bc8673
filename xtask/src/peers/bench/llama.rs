//! The llama.cpp side: a process that stays loaded and sleeps between its measurements.

use crate::peers::script;
use crate::peers::turns::{Case, Driver, text};
use crate::peers::venv::Build;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// llama.cpp with a model and one storage of keys and values.
pub(super) struct Llama {
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

impl Llama {
    /// The interpreter that has such a build, which is made if need be.
    pub(super) fn prepare(build: Build) -> Result<PathBuf> {
        script::LLAMA_BENCH.python(build)
    }

    pub(super) fn start(model: &Path, context: usize, cache: &str, build: Build) -> Result<Llama> {
        let mut command = script::LLAMA_BENCH.command_with(build)?;
        let mut driver = Driver::start("llama.cpp", &mut command)?;
        let hello = driver.ask(&json!({ "model": model, "context": context, "cache": cache }))?;
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
        Ok(Llama {
            driver,
            cache: cache.to_owned(),
            about,
            rested: Instant::now(),
        })
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
            .with_context(|| format!("the llama.cpp driver measured nothing: {answer}"))
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
