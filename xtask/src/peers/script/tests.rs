use super::*;
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

const SCRIPTS: [&Script; 11] = [
    &IK_BENCH,
    &MISTRALRS_BENCH,
    &CONVERT,
    &OPENVINO_BENCH,
    &LLAMA_LOOKUP,
    &TRUTH,
    &TORCH_BENCH,
    &ONNX_BENCH,
    &GREEDY,
    &ONNX_MODELS,
    &EMBEDDINGS,
];

/// Modules that Python brings.
const STANDARD: [&str; 28] = [
    "__future__",
    "abc",
    "argparse",
    "asyncio",
    "collections",
    "contextlib",
    "ctypes",
    "dataclasses",
    "importlib",
    "inspect",
    "json",
    "logging",
    "math",
    "os",
    "pathlib",
    "pickle",
    "platform",
    "random",
    "signal",
    "struct",
    "subprocess",
    "sys",
    "threading",
    "time",
    "typing",
    "warnings",
    "zipfile",
    "zlib",
];

/// Modules that are imported only where they are installed.
const OPTIONAL: [&str; 2] = ["executorch", "kvark"];

/// Packages that a library imports only when it is called like this, and so does not depend on.
const LAZY: [(&str, &[&str]); 2] = [
    // transformers, for a GGUF file.
    ("gguf_file=", &["accelerate", "gguf"]),
    ("MatMulNBitsQuantizer(", &["onnx-ir"]),
];

/// Distributions whose module has another name, besides `_` for `-`.
const MODULES: [(&str, &str); 3] = [
    ("ik-llama-cpp-python", "ik_llama_cpp"),
    ("llama-cpp-python", "llama_cpp"),
    ("mobius-onnx", "mobius"),
];

/// Folders that the scripts import modules of the tree from, besides their own.
const FOLDERS: [&str; 2] = ["python", "crates/kvark/tests/onnx"];

fn module(distribution: &str) -> String {
    let other = MODULES.iter().find(|(name, _)| *name == distribution);
    other.map_or_else(|| distribution.replace('-', "_"), |(_, it)| (*it).into())
}

/// Name and version of every package of a list.
fn versions(list: &str) -> BTreeMap<String, String> {
    let pins = pins(&shell::root().join(list)).unwrap();
    let pairs = pins.iter().map(|pin| {
        let (name, version) = pin
            .split_once("==")
            .unwrap_or_else(|| panic!("{list}: {pin} is no NAME==VERSION"));
        (name.to_owned(), version.to_owned())
    });
    pairs.collect()
}

/// The files of Python source in a folder, and in those below.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    let python = |path: &PathBuf| path.extension().is_some_and(|e| e == "py");
    let mut all: Vec<_> = files.into_iter().filter(python).collect();
    all.extend(folders.iter().flat_map(|folder| sources(folder)));
    all
}

/// The first names of the modules that a source imports, without those of its own package.
fn imports(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in source.lines().map(str::trim) {
        if let Some(list) = line.strip_prefix("import ") {
            let names = list
                .split(',')
                .filter_map(|it| it.split_whitespace().next());
            found.extend(names);
        } else if let Some((name, _)) = line
            .strip_prefix("from ")
            .and_then(|rest| rest.split_once(" import "))
        {
            found.push(name);
        }
    }
    let first = |name: &&'_ str| !name.starts_with('.') && !name.contains(' ');
    let found = found.into_iter().filter(first);
    found.map(|name| name.split('.').next().unwrap()).collect()
}

/// The distributions and modules that some files need, and those that the files of the tree which they import need.
fn needs(files: Vec<PathBuf>) -> BTreeSet<String> {
    let mut needs = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut left = files;
    while let Some(file) = left.pop() {
        if !seen.insert(file.clone()) {
            continue;
        }
        let source = std::fs::read_to_string(&file).unwrap();
        for (call, packages) in LAZY {
            if source.contains(call) {
                needs.extend(packages.iter().map(|name| module(name)));
            }
        }
        for name in imports(&source) {
            if OPTIONAL.contains(&name) {
                continue;
            }
            let folders = FOLDERS.map(|folder| shell::root().join(folder));
            let folders = file.parent().map(Path::to_owned).into_iter().chain(folders);
            let own = folders.map(|folder| folder.join(name));
            let own: Vec<_> = own
                .flat_map(|path| match path.is_dir() {
                    true => sources(&path),
                    false => vec![path.with_extension("py")],
                })
                .filter(|path| path.is_file())
                .collect();
            if !own.is_empty() {
                left.extend(own);
            } else if !STANDARD.contains(&name) {
                needs.insert(name.to_owned());
            }
        }
    }
    needs
}

#[test]
fn imports_are_read_from_the_source() {
    let source = "\"\"\"Reads data\nfrom the same file.\n\"\"\"\nimport a, b.c as d\nfrom e.f import g\nfrom . import h\n    \
                  from .i import j\n    import k";
    assert_eq!(imports(source), ["a", "b", "e", "k"]);
}

/// Every command runs in an environment that was made from its own list and nothing else.
#[test]
fn lists_name_all_that_their_scripts_import() {
    let mut problems = Vec::new();
    for script in SCRIPTS {
        let mut files = vec![shell::root().join(script.file)];
        if script.requirements.starts_with("python/") {
            // The exporter, and its tests. Clients of the server have lists of their own, and the program for ONNX Runtime
            // has that of the ONNX fixtures.
            for folder in ["python/kvark_export", "python/tests"] {
                let all = sources(&shell::root().join(folder)).into_iter();
                files.extend(
                    all.filter(|path| !path.components().any(|c| c.as_os_str() == "ort_script")),
                );
            }
        }
        let listed = versions(script.requirements);
        let listed: BTreeSet<String> = listed.keys().map(|name| module(name)).collect();
        let missing = needs(files);
        let missing = missing.difference(&listed);
        problems.extend(missing.map(|name| format!("{} lacks {name}", script.requirements)));
    }
    assert_eq!(problems, Vec::<String>::new());
}

/// The environments are one folder, where the list that was installed last would win.
#[test]
fn lists_agree_on_versions() {
    let mut all: BTreeMap<String, (String, &str)> = BTreeMap::new();
    for script in SCRIPTS {
        for (name, version) in versions(script.requirements) {
            let (first, list) = all
                .entry(name.clone())
                .or_insert((version.clone(), script.requirements));
            assert_eq!(
                *first, version,
                "{name} in {list} and in {}",
                script.requirements
            );
        }
    }
}

/// `pip install ".[export,test]"` and the list that `kvark export` names install the same.
#[test]
fn the_exporters_manifest_repeats_its_list() {
    let text = std::fs::read_to_string(shell::root().join("pyproject.toml")).unwrap();
    let manifest: Table = text.parse().unwrap();
    let project = &manifest["project"];
    let lists = [
        &project["optional-dependencies"]["export"],
        &project["optional-dependencies"]["test"],
    ];
    let lists = lists.into_iter().filter_map(Value::as_array).flatten();
    let manifest: Vec<&str> = lists.filter_map(Value::as_str).collect();
    let list = pins(&shell::root().join("python/requirements.txt")).unwrap();
    assert_eq!(manifest, list);
}
