//! The Python virtual environment that holds the peers.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Names a virtual environment that already holds what is needed.
const VARIABLE: &str = "KVARK_PEERS_VENV";

/// The interpreter of an environment with everything that a file of requirements lists, made if need be.
pub(super) fn python(list: &Path) -> Result<PathBuf> {
    if let Some(venv) = std::env::var_os(VARIABLE).filter(|venv| !venv.is_empty()) {
        // Not resolved further: the interpreter finds its environment by the link's place.
        let python = std::path::absolute(venv)?.join("bin/python");
        if !python.exists() {
            bail!(
                "{VARIABLE} names no virtual environment: no {}",
                python.display()
            );
        }
        return Ok(python);
    }
    let venv = shell::target().join("peers-venv");
    let python = venv.join("bin/python");
    let flags = build_flags();
    // What was installed last is noted in it, so that the next run can skip the installation.
    let name = list.strip_prefix(shell::root()).unwrap_or(list);
    let name = name.to_string_lossy().replace(['/', '\\'], "-");
    let note = venv.join(name).with_extension("installed");
    let wanted =
        std::fs::read_to_string(list).with_context(|| list.display().to_string())? + &flags;
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
    shell::run(pip.env("CMAKE_ARGS", &flags))?;
    std::fs::write(&note, wanted).with_context(|| note.display().to_string())?;
    Ok(python)
}

/// How llama.cpp is built: for this CPU, feature by feature.
///
/// Its own detection (`GGML_NATIVE`) also takes AMX where there is some, and that path dies with an illegal instruction
/// in this version, so on x86 the features are named.
fn build_flags() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let features = [
            ("AVX", is_x86_feature_detected!("avx")),
            ("AVX2", is_x86_feature_detected!("avx2")),
            ("FMA", is_x86_feature_detected!("fma")),
            ("F16C", is_x86_feature_detected!("f16c")),
            ("BMI2", is_x86_feature_detected!("bmi2")),
            ("AVX512", is_x86_feature_detected!("avx512bw")),
            ("AVX512_VBMI", is_x86_feature_detected!("avx512vbmi")),
            ("AVX512_VNNI", is_x86_feature_detected!("avx512vnni")),
            ("AVX512_BF16", is_x86_feature_detected!("avx512bf16")),
            ("AVX_VNNI", is_x86_feature_detected!("avxvnni")),
        ];
        let on = |(name, there): &(&str, bool)| {
            let value = if *there { "ON" } else { "OFF" };
            format!(" -DGGML_{name}={value}")
        };
        "-DGGML_NATIVE=OFF".to_owned() + &features.iter().map(on).collect::<String>()
    }
    #[cfg(not(target_arch = "x86_64"))]
    "-DGGML_NATIVE=ON".to_owned()
}
