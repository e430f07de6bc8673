//! The commands in README.md and docs/: every `sh` block is run by bash with the built command and the default model, in
//! the order of the page, in one folder a page. A block that this test cannot run carries a mark after `sh`.

use crate::support::{Folder, finish};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The marks of blocks that are not run, and why.
const MARKS: [(&str, &str); 6] = [
    ("install", "builds or installs programs"),
    ("network", "downloads a model"),
    ("server", "serves until it is stopped, or asks a server"),
    ("torch", "needs PyTorch"),
    ("gpu", "needs an NVIDIA GPU"),
    ("minutes", "takes minutes"),
];
/// The programs that a block may run. `kvark` is the built command.
const PROGRAMS: [&str; 4] = ["kvark", "printf", "echo", "cat"];

struct Block {
    /// The page and the line of the fence.
    place: String,
    /// The words after the opening fence.
    info: Vec<String>,
    text: String,
}

impl Block {
    fn mark(&self) -> Option<&str> {
        self.info.get(1).map(String::as_str)
    }

    /// The lines that hold commands; a backslash joins a line to the next.
    fn commands(&self) -> Vec<String> {
        let joined = self.text.replace("\\\n", " ");
        let lines = joined.lines().map(str::trim);
        lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(str::to_owned)
            .collect()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages that state commands for users.
fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("docs")).unwrap();
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|e| e == "md"));
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap();
    let name = page.file_name().unwrap().to_str().unwrap();
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for (number, line) in (1..).zip(text.lines()) {
        match line.strip_prefix("```") {
            Some(info) if !open => {
                open = true;
                blocks.push(Block {
                    place: format!("{name}:{number}"),
                    info: info.split_whitespace().map(str::to_owned).collect(),
                    text: String::new(),
                });
            }
            Some(_) => open = false,
            None if open => blocks.last_mut().unwrap().text += &format!("{line}\n"),
            None => {}
        }
    }
    assert!(!open, "{name}: a block has no end");
    blocks
}

#[test]
fn every_block_of_commands_can_be_run_or_says_why_not() {
    for block in pages().iter().flat_map(|page| blocks(page)) {
        let Block { place, info, .. } = &block;
        let language = info.first().map(String::as_str);
        if language != Some("sh") {
            let shown = block.commands();
            let kvark = shown.iter().find(|line| line.starts_with("kvark "));
            assert_eq!(kvark, None, "{place}: commands belong in a block of sh");
            continue;
        }
        if let Some(mark) = block.mark() {
            let known = MARKS.iter().any(|(name, _)| *name == mark) && info.len() == 2;
            assert!(known, "{place}: {info:?} is not one of {MARKS:?}");
            continue;
        }
        for command in block.commands() {
            let first = command.split_whitespace().next().unwrap();
            assert!(
                PROGRAMS.contains(&first),
                "{place}: {command}: only {PROGRAMS:?} are run; mark other blocks with one of {MARKS:?}"
            );
        }
    }
}

/// A folder with the files that pages speak of: models, texts, and `kvark` in `bin`.
fn prepared(model: &str) -> Folder {
    let folder = Folder::new();
    folder.link_default_model(model);
    fs::create_dir(folder.path("bin")).unwrap();
    let link = |target: &Path, name: &str| {
        let target = fs::canonicalize(target).unwrap();
        std::os::unix::fs::symlink(target, folder.path(name)).unwrap();
    };
    link(Path::new(env!("CARGO_BIN_EXE_kvark")), "bin/kvark");
    link(Path::new(model), "model.gguf");
    let crates = root().join("crates");
    let import = crates.join("import/tests/fixtures");
    link(&import.join("encoder/bert.gguf"), "encoder.gguf");
    link(&import.join("pt2/block_sdpa.pt2"), "module.pt2");
    link(&crates.join("kvark/tests/onnx/folder"), "genai-folder");
    let onnx = "kvark/tests/onnx_node/own/gqa_decode/model.onnx";
    link(&crates.join(onnx), "model.onnx");
    folder.file("prompt.txt", "The capital of France is");
    folder.file("texts.txt", "a cat\na kitten\na bank\n");
    folder
}

#[test]
fn the_commands_of_all_pages_run() {
    let Some(model) = crate::real::model() else {
        return;
    };
    let (mut ran, mut left) = (0, Vec::new());
    for page in pages() {
        let folder = prepared(&model);
        for block in blocks(&page) {
            if block.info.first().is_none_or(|language| language != "sh") {
                continue;
            }
            if let Some(mark) = block.mark() {
                left.push(format!("{} ({mark})", block.place));
                continue;
            }
            let path = std::env::var("PATH").unwrap_or_default();
            let mut bash = Command::new("bash");
            bash.args(["-e", "-o", "pipefail", "-c", &block.text])
                .current_dir(folder.path(""))
                .env("PATH", format!("{}:{path}", folder.path("bin").display()))
                .env("KVARK_HOME", folder.path("home"))
                .env_remove("KVARK_ISA")
                .env_remove("KVARK_PASSES");
            let output = finish(&mut bash, "");
            assert_eq!(
                output.code,
                Some(0),
                "{}:\n{}{output:?}",
                block.place,
                block.text
            );
            ran += block.commands().len();
        }
    }
    let note = format!("{ran} commands ran; not run: {}\n", left.join(", "));
    let _ = std::io::Write::write_all(&mut std::io::stderr(), note.as_bytes());
    assert!(ran >= 30, "{note}");
}
