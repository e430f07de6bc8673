//! Checks of the documents: what they name is there.

use crate::shell;

/// The paths that a document names between backticks: those of the tree that begin in its root or in `crates/`.
fn paths(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| {
        let file = word.ends_with(".rs") || word.ends_with(".py") || word.ends_with(".md");
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        word.contains('/') && (file || word.ends_with('/')) && word.chars().all(plain)
    };
    quoted.filter(is_path).collect()
}

#[test]
fn every_path_that_a_document_names_is_there() {
    for name in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(shell::root().join(name)).unwrap();
        let paths = paths(&text);
        assert!(paths.len() > 3, "{name} names {} paths", paths.len());
        for path in paths {
            let places = [
                shell::root().join(path),
                shell::root().join("crates").join(path),
            ];
            assert!(places.iter().any(|place| place.exists()), "{name}: {path}");
        }
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut files = vec![shell::root().join("README.md")];
    for folder in ["docs", "docs/design", "docs/benchmarks"] {
        let entries = std::fs::read_dir(shell::root().join(folder)).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|e| e == "md"))
    {
        let text = std::fs::read_to_string(file).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split([')', '#']).next().unwrap();
            if !link.is_empty() && !link.contains("://") {
                let target = file.parent().unwrap().join(link);
                assert!(target.exists(), "{}: {link}", file.display());
            }
        }
    }
}
