//! The Python virtual environment that holds the peers.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names an environment which already holds what is needed.
const VARIABLE: &str = "KVARK_PEERS_VENV";

/// What llama.cpp is built for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// Built for this CPU.
    Whole,
    /// Built for AVX2 and nothing above it.
    Avx2,
}

impl Build {
    /// The peer that a tier of kvark is compared with.
    pub(super) fn of(tier: Option<&str>) -> Build {
        match tier {
            Some("avx2") => Build::Avx2,
            _ => Build::Whole,
        }
    }
}

/// Interpreter of the peers' environment with all packages of a requirements file, created if needed. `pins` are the
/// packages of that list and of those that it includes.
pub(super) fn python(list: &Path, pins: &[String]) -> Result<PathBuf> {
    if let Some(venv) = std::env::var_os(VARIABLE).filter(|venv| !venv.is_empty()) {
        // The link is not resolved: the interpreter finds its environment by the link's location.
        let python = std::path::absolute(venv)?.join("bin/python");
        if !python.exists() {
            bail!(
                "{VARIABLE} names no virtual environment: no {}",
                python.display()
            );
        }
        return Ok(python);
    }
    let flags = build_flags(Build::Whole);
    make("peers-venv", list, pins, &flags, |pip| {
        // A wheel of the cache may have been built with other flags.
        pip.args(["--no-cache-dir", "--no-binary", "llama-cpp-python"])
            .env("CMAKE_ARGS", &flags);
    })
}

/// Interpreter of the environment in a folder of target/ with the packages of a requirements file, created if needed.
/// `flags` are installed anew when they change; `configure` completes the installer's command.
pub(crate) fn make(
    folder: &str,
    list: &Path,
    pins: &[String],
    flags: &str,
    configure: impl FnOnce(&mut Command),
) -> Result<PathBuf> {
    let venv = shell::target().join(folder);
    let python = venv.join("bin/python");
    // The installed list is stored in the environment, so that the next run can skip the installation.
    let name = list.strip_prefix(shell::root()).unwrap_or(list);
    let name = name.to_string_lossy().replace(['/', '\\'], "-");
    let note = venv.join(name).with_extension("installed");
    let wanted = format!("{}\n{flags}", pins.join("\n"));
    if std::fs::read_to_string(&note).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    eprintln!(
        "installing {} into {} (minutes, and more where llama.cpp is compiled)",
        list.display(),
        venv.display()
    );
    shell::run(shell::command("python3").args(["-m", "venv"]).arg(&venv))?;
    let mut pip = shell::command(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--requirement"])
        .arg(list);
    configure(&mut pip);
    shell::run(&mut pip)?;
    std::fs::write(&note, wanted).with_context(|| note.display().to_string())?;
    Ok(python)
}

/// How llama.cpp is built: for what this CPU and the asked build both have, feature by feature.
///
/// Its own detection (`GGML_NATIVE`) also takes AMX where there is some, and that path dies with an illegal instruction
/// in this version, so on x86 the features are named.
pub(crate) fn build_flags(build: Build) -> String {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let features = [
            ("AVX", has!("avx")),
            ("AVX2", has!("avx2")),
            ("FMA", has!("fma")),
            ("F16C", has!("f16c")),
            ("BMI2", has!("bmi2")),
        ];
        let above_avx2 = [
            ("AVX512", has!("avx512bw")),
            ("AVX512_VBMI", has!("avx512vbmi")),
            ("AVX512_VNNI", has!("avx512vnni")),
            ("AVX512_BF16", has!("avx512bf16")),
            ("AVX_VNNI", has!("avxvnni")),
        ]
        .map(|(name, there)| (name, there && build == Build::Whole));
        let on = |(name, there): &(&str, bool)| {
            let value = if *there { "ON" } else { "OFF" };
            format!(" -DGGML_{name}={value}")
        };
        let all = features.iter().chain(&above_avx2);
        "-DGGML_NATIVE=OFF".to_owned() + &all.map(on).collect::<String>()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = build;
        "-DGGML_NATIVE=ON".to_owned()
    }
}
