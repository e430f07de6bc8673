//! The other sides: `PeerKind` that the user names, its configurations, and the process of one.

use super::llama_bench::LlamaBench;
use crate::peers::script::{self, Script};
use crate::peers::turns::{Case, Driver, text};
use crate::peers::venv::Build;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A runtime that kvark is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PeerKind {
    /// llama.cpp's llama-bench, with repacked weights and without.
    #[value(name = "llama.cpp")]
    Llama,
    /// ik_llama.cpp by its Python bindings, with repacked weights and without.
    #[value(name = "ik_llama.cpp")]
    IkLlama,
    /// OpenVINO GenAI, which reads the same GGUF file. It stores keys and values as it likes.
    Openvino,
    /// mistral.rs by its Python bindings.
    #[value(name = "mistral.rs")]
    MistralRs,
}

impl PeerKind {
    pub(super) const ALL: [PeerKind; 4] = [
        PeerKind::Llama,
        PeerKind::IkLlama,
        PeerKind::Openvino,
        PeerKind::MistralRs,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            PeerKind::Llama => "llama.cpp",
            PeerKind::IkLlama => "ik_llama.cpp",
            PeerKind::Openvino => "OpenVINO GenAI",
            PeerKind::MistralRs => "mistral.rs",
        }
    }

    /// The ways to run it of which the better one counts.
    pub(super) fn configurations(self) -> Vec<Configuration> {
        let both = [false, true].map(|repack| Configuration { kind: self, repack });
        match self {
            PeerKind::Llama | PeerKind::IkLlama => both.to_vec(),
            PeerKind::Openvino | PeerKind::MistralRs => both[..1].to_vec(),
        }
    }

    fn script(self) -> Option<&'static Script> {
        match self {
            PeerKind::Llama => None,
            PeerKind::IkLlama => Some(&script::IK_BENCH),
            PeerKind::Openvino => Some(&script::OPENVINO_BENCH),
            PeerKind::MistralRs => Some(&script::MISTRALRS_BENCH),
        }
    }

    /// Makes what it needs if need be: its build or the environment of its script.
    pub(super) fn prepare(self, build: Build) -> Result<()> {
        match self.script() {
            Some(script) => script.python().map(|_| ()),
            None => LlamaBench::new(build).map(|_| ()),
        }
    }
}

/// One way to run a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Configuration {
    pub(super) kind: PeerKind,
    /// Whether weights are repacked when they are loaded.
    repack: bool,
}

impl Configuration {
    pub(super) fn name(self) -> String {
        let name = self.kind.name();
        match (self.kind, self.repack) {
            (PeerKind::Llama, repack) => format!("{name} --repack {}", u8::from(repack)),
            (_, true) => format!("{name} repacked"),
            (_, false) => name.to_owned(),
        }
    }

    /// How it is kept to the instructions of a tier; an error is why it cannot be.
    fn limit(self, tier: Option<&str>) -> Result<Option<(&'static str, &'static str)>, String> {
        let variable = "ONEDNN_MAX_CPU_ISA";
        match (self.kind, tier) {
            (PeerKind::Openvino, Some("avx2")) => Ok(Some((variable, "AVX2"))),
            (PeerKind::Openvino, Some("avx512vnni")) => Ok(Some((variable, "AVX512_CORE_VNNI"))),
            (PeerKind::MistralRs, Some("avx2")) => {
                Err("it chooses its kernels itself and cannot be kept to AVX2".to_owned())
            }
            _ => Ok(None),
        }
    }
}

/// What a peer is started with.
#[derive(Clone)]
pub(super) struct Setting {
    pub(super) model: PathBuf,
    /// Tokens of its longest test.
    pub(super) context: usize,
    /// How keys and values are stored.
    pub(super) cache: String,
    pub(super) threads: usize,
    /// The tier of kvark that it is compared with.
    pub(super) tier: Option<String>,
    /// The longest time of a measurement.
    pub(super) patience: Duration,
}

/// A configuration of a peer with a model and one storage of keys and values.
pub(super) struct Peer {
    pub(super) about: About,
    setting: Setting,
    process: Option<Process>,
    rested: Instant,
}

enum Process {
    /// A process for every turn.
    PerTurn(LlamaBench),
    /// A process that stays loaded and sleeps between its turns.
    Loaded(Driver),
}

/// Facts about a peer, for the report.
#[derive(Clone)]
pub(super) struct About {
    pub(super) configuration: Configuration,
    /// How keys and values are stored.
    pub(super) cache: String,
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
        configuration: Configuration,
        setting: Setting,
    ) -> Result<Result<Peer, String>> {
        let mut peer = Peer {
            about: About {
                configuration,
                cache: setting.cache.clone(),
                version: String::new(),
                build: String::new(),
                weights: String::new(),
                waited: 0.0,
                busy: 0.0,
            },
            setting,
            process: None,
            rested: Instant::now(),
        };
        Ok(peer.load()?.map(|()| peer))
    }

    /// Starts the process, or says why it cannot run the model.
    fn load(&mut self) -> Result<Result<(), String>> {
        let (kind, tier) = (self.about.configuration.kind, self.setting.tier.as_deref());
        let limit = match self.about.configuration.limit(tier) {
            Ok(limit) => limit,
            Err(reason) => return Ok(Err(reason)),
        };
        let Some(script) = kind.script() else {
            let bench = LlamaBench::new(Build::of(tier))?;
            self.about.version.clone_from(&bench.version);
            self.about.build.clone_from(&bench.features);
            self.process = Some(Process::PerTurn(bench));
            return Ok(Ok(()));
        };
        let mut command = script.command()?;
        command.envs(limit);
        let mut driver = Driver::start(kind.name(), &mut command)?;
        driver.patience = Some(self.setting.patience);
        let hello = json!({
            "model": self.setting.model,
            "context": self.setting.context,
            "cache": self.setting.cache,
            "threads": self.setting.threads,
            "repack": self.about.configuration.repack,
        });
        // A peer that cannot start is left out, not the whole record.
        let hello = match driver.ask(&hello) {
            Ok(hello) => hello,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        if let Some(reason) = hello["unsupported"].as_str() {
            return Ok(Err(reason.to_owned()));
        }
        self.about.version = text(&hello, "version")?;
        self.about.build = match limit {
            Some((_, isa)) => format!("{isa} at most"),
            None => text(&hello, "system_info")?,
        };
        self.about.weights = text(&hello, "weights")?;
        if tier == Some("avx2") && is_above_avx2(&self.about.build) {
            return Ok(Err(format!("it is built for {}", self.about.build)));
        }
        self.process = Some(Process::Loaded(driver));
        Ok(Ok(()))
    }

    /// Tokens per second of a test. After an error the next test starts a process anew.
    pub(super) fn measure(&mut self, case: Case) -> Result<f64> {
        if self.process.is_none()
            && let Err(reason) = self.load()?
        {
            bail!("{reason}");
        }
        self.about.waited += self.rested.elapsed().as_secs_f64();
        let speed = self.ask(case);
        self.rested = Instant::now();
        speed
    }

    fn ask(&mut self, case: Case) -> Result<f64> {
        let Case {
            kind,
            n,
            depth,
            threads,
        } = case;
        let repack = self.about.configuration.repack;
        let patience = self.setting.patience;
        match self.process.as_mut().context("not running")? {
            Process::PerTurn(bench) => {
                let storage = (&self.setting.cache[..], repack);
                let (speed, weights) =
                    bench.measure(&self.setting.model, case, storage, patience)?;
                self.about.weights = weights;
                Ok(speed)
            }
            Process::Loaded(driver) => {
                let question = json!({ "kind": kind, "n": n, "depth": depth, "threads": threads });
                let answer = match driver.ask(&question) {
                    Ok(answer) => answer,
                    Err(error) => {
                        self.process = None;
                        return Err(error);
                    }
                };
                self.about.busy += answer["idle_cpu_seconds"].as_f64().unwrap_or(0.0);
                if let Some(reason) = answer["unsupported"].as_str() {
                    bail!("{reason}");
                }
                let speed = answer["tokens_per_second"].as_f64();
                speed.with_context(|| format!("it measured nothing: {answer}"))
            }
        }
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

    #[test]
    fn every_configuration_has_a_name_of_its_own() {
        let all = PeerKind::ALL.into_iter().flat_map(PeerKind::configurations);
        let names: Vec<String> = all.map(Configuration::name).collect();
        assert_eq!(
            names,
            [
                "llama.cpp --repack 0",
                "llama.cpp --repack 1",
                "ik_llama.cpp",
                "ik_llama.cpp repacked",
                "OpenVINO GenAI",
                "mistral.rs",
            ]
        );
    }

    #[test]
    fn peers_keep_to_the_tier_or_are_left_out() {
        let limit = |kind: PeerKind, tier| kind.configurations()[0].limit(tier);
        assert_eq!(limit(PeerKind::Llama, Some("avx2")), Ok(None), "its build");
        assert_eq!(limit(PeerKind::Openvino, None), Ok(None));
        assert!(limit(PeerKind::Openvino, Some("avx2")).is_ok_and(|limit| limit.is_some()));
        assert!(limit(PeerKind::MistralRs, Some("avx2")).is_err());
    }
}
