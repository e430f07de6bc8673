//! `cargo xtask layers`: checks that dependencies follow the layer rules, and that manifests inherit from the workspace.

use crate::shell;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::collections::BTreeSet;
use std::path::Path;
use toml::{Table, Value};

/// Check that dependencies between crates point the right way (the tests do this too)
#[derive(Args)]
pub(crate) struct Layers {}

impl Layers {
    pub(crate) fn execute(self) -> Result<()> {
        let (workspace, crates) = read(shell::root())?;
        let problems = check(&workspace, &crates);
        if !problems.is_empty() {
            bail!("{}", problems.join("\n       "));
        }
        println!(
            "{} crates: all dependencies follow the layer rules",
            crates.len()
        );
        Ok(())
    }
}

/// Layer rules of one crate.
struct Layer {
    name: &'static str,
    /// The crates of this workspace that it may depend on.
    uses: &'static [&'static str],
    /// Those that its tests may use besides.
    tests_use: &'static [&'static str],
    may_be_unsafe: Unsafe,
}

/// Where a crate may hold unsafe code.
#[derive(Clone, Copy, PartialEq)]
enum Unsafe {
    Nowhere,
    /// In this file of `src`.
    In(&'static str),
    Anywhere,
}

const fn layer(name: &'static str, uses: &'static [&'static str]) -> Layer {
    Layer {
        name,
        uses,
        tests_use: &[],
        may_be_unsafe: Unsafe::Nowhere,
    }
}

/// Every crate, innermost first.
const LAYERS: &[Layer] = &[
    Layer {
        may_be_unsafe: Unsafe::In("bytes.rs"),
        ..layer("base", &[])
    },
    layer("kv", &[]),
    Layer {
        // Real vocabularies come out of real files.
        tests_use: &["import"],
        ..layer("text", &["base"])
    },
    layer("graph", &["base"]),
    Layer {
        // What a lowering means is checked by running it on the reference backend.
        tests_use: &["backend"],
        ..layer("import", &["base", "graph", "kv"])
    },
    Layer {
        // Random numbers for tests are in one place.
        tests_use: &["conformance"],
        ..layer("backend", &["base", "graph", "kv"])
    },
    layer("conformance", &["base", "graph", "kv", "backend"]),
    Layer {
        may_be_unsafe: Unsafe::Anywhere,
        tests_use: &["conformance"],
        ..layer("cpu", &["base", "kv", "graph", "backend"])
    },
    Layer {
        may_be_unsafe: Unsafe::Anywhere,
        tests_use: &["conformance"],
        ..layer("cuda", &["base", "kv", "graph", "backend"])
    },
    Layer {
        // The C is compared with the CPU's own results, and with tokenizers of real files.
        tests_use: &["backend", "import"],
        ..layer("emit", &["base", "kv", "text", "graph", "cpu"])
    },
    layer(
        "runtime",
        &["base", "kv", "text", "graph", "import", "backend"],
    ),
    layer("hub", &["base", "import"]),
    layer("grammar", &["text", "runtime"]),
    layer(
        "kvark",
        &[
            "base",
            "kv",
            "text",
            "graph",
            "import",
            "backend",
            "conformance",
            "cpu",
            "cuda",
            "emit",
            "runtime",
            "grammar",
            "hub",
        ],
    ),
    layer("server", &["kvark"]),
    layer("cli", &["kvark", "server"]),
    Layer {
        // The macros of pyo3 expand to unsafe code. None is written there.
        may_be_unsafe: Unsafe::Anywhere,
        ..layer("python", &["kvark", "cli"])
    },
    layer("xtask", &[]),
];

/// A crate in the source tree.
struct Crate {
    /// The folder's name, which is the crate's name among its own.
    name: String,
    manifest: Table,
    /// Name below `src`, text.
    sources: Vec<(String, String)>,
}

/// All violations, one line each.
fn check(workspace: &Table, crates: &[Crate]) -> Vec<String> {
    let mut problems = Vec::new();
    let shared = table(workspace, &["workspace", "dependencies"]);
    let mut used = BTreeSet::new();
    for it in crates {
        let name = &it.name;
        let mut complain = |what: String| problems.push(format!("{name}: {what}"));
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
            complain("has no row in xtask/src/layers.rs".into());
            continue;
        };
        for key in ["version", "edition", "rust-version", "license", "publish"] {
            if !inherits(it.manifest.get("package").and_then(|p| p.get(key))) {
                complain(format!("{key} must be the workspace's"));
            }
        }
        if !inherits(it.manifest.get("lints")) {
            complain("lints must be the workspace's".into());
        }
        for (for_tests, key, dependency) in dependencies(&it.manifest) {
            used.insert(key.clone());
            if !inherits(Some(dependency)) {
                complain(format!("the version of {key} must be the workspace's"));
            }
            let Some(other) = shared.and_then(|all| folder(all.get(&key)?)) else {
                continue;
            };
            let allowed = layer.uses.contains(&other.as_str())
                || for_tests && layer.tests_use.contains(&other.as_str());
            if !allowed {
                let what = if for_tests { "its tests" } else { "it" };
                complain(format!("{what} must not depend on {other}"));
            }
        }
        check_unsafe(layer, &it.sources, complain);
    }
    for layer in LAYERS {
        if !crates.iter().any(|it| it.name == layer.name) {
            problems.push(format!("{}: has a row but no crate", layer.name));
        }
    }
    for key in shared.into_iter().flat_map(Table::keys) {
        if !used.contains(key) {
            problems.push(format!("workspace: no crate uses {key}"));
        }
    }
    problems
}

fn check_unsafe(layer: &Layer, sources: &[(String, String)], mut complain: impl FnMut(String)) {
    let (attribute, free) = match layer.may_be_unsafe {
        Unsafe::Nowhere => ("#![forbid(unsafe_code)]", None),
        Unsafe::In(file) => ("#![deny(unsafe_code)]", Some(file)),
        Unsafe::Anywhere => return,
    };
    for (file, text) in sources {
        let is_root = ["lib.rs", "main.rs"].contains(&file.as_str()) || file.starts_with("bin/");
        if is_root && !text.lines().any(|line| line == attribute) {
            complain(format!("{file} must say {attribute}"));
        }
        // What is forbidden stays so; what is denied can be allowed again. An `allow` may stretch over lines, and then
        // the lint's name has a line of its own.
        let lifts =
            |line: &str| line.contains("allow(unsafe_code") || line.trim() == "unsafe_code,";
        if free.is_some_and(|free| free != file) && text.lines().any(lifts) {
            complain(format!("{file} must not allow unsafe code"));
        }
    }
}

/// All dependencies of a manifest: whether only tests have it, its key, what is said of it.
fn dependencies(manifest: &Table) -> Vec<(bool, String, &Value)> {
    let targets = table(manifest, &["target"])
        .into_iter()
        .flat_map(Table::values);
    let places = std::iter::once(manifest).chain(targets.filter_map(Value::as_table));
    let mut all = Vec::new();
    for place in places {
        for (section, for_tests) in [
            ("dependencies", false),
            ("build-dependencies", false),
            ("dev-dependencies", true),
        ] {
            for (key, value) in table(place, &[section]).into_iter().flatten() {
                all.push((for_tests, key.clone(), value));
            }
        }
    }
    all
}

/// The folder of a dependency that is one of ours.
fn folder(dependency: &Value) -> Option<String> {
    let path = Path::new(dependency.get("path")?.as_str()?);
    Some(path.file_name()?.to_str()?.to_owned())
}

/// Whether a key says `workspace = true`.
fn inherits(value: Option<&Value>) -> bool {
    value.and_then(|value| value.get("workspace")) == Some(&Value::Boolean(true))
}

fn table<'a>(mut inside: &'a Table, keys: &[&str]) -> Option<&'a Table> {
    for key in keys {
        inside = inside.get(*key)?.as_table()?;
    }
    Some(inside)
}

/// The workspace's manifest and all crates.
fn read(root: &Path) -> Result<(Table, Vec<Crate>)> {
    let workspace = manifest(root)?;
    let members = table(&workspace, &["workspace"]).and_then(|w| w.get("members")?.as_array());
    let mut folders = Vec::new();
    for member in members.into_iter().flatten().filter_map(Value::as_str) {
        match member.strip_suffix("/*") {
            Some(parent) => {
                for entry in std::fs::read_dir(root.join(parent))? {
                    folders.push(entry?.path());
                }
            }
            None => folders.push(root.join(member)),
        }
    }
    folders.retain(|folder| folder.join("Cargo.toml").exists());
    folders.sort();
    let crates = folders.iter().map(|folder| {
        let mut sources = Vec::new();
        read_sources(&folder.join("src"), "", &mut sources)?;
        Ok(Crate {
            name: folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into(),
            manifest: manifest(folder)?,
            sources,
        })
    });
    let crates = crates.collect::<Result<_>>()?;
    Ok((workspace, crates))
}

fn manifest(folder: &Path) -> Result<Table> {
    let path = folder.join("Cargo.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
}

fn read_sources(folder: &Path, prefix: &str, out: &mut Vec<(String, String)>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            read_sources(&path, &format!("{prefix}{name}/"), out)?;
        } else if name.ends_with(".rs") {
            out.push((format!("{prefix}{name}"), std::fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
