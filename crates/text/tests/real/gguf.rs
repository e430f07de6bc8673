//! Vocabularies from GGUF files.

use std::path::{Path, PathBuf};

use base::StringTable;
use import::gguf::{Gguf, Metadata};
use text::{TextError, Tokenizer, Vocab, VocabSource};

/// A file's metadata as a source of vocabularies.
struct Source<'a>(&'a Metadata);

impl VocabSource for Source<'_> {
    fn string(&self, key: &str) -> Option<String> {
        self.0.str(key).ok()?.map(str::to_owned)
    }
    fn strings(&self, key: &str) -> Option<StringTable> {
        self.0.strings(key).ok()?.cloned()
    }
    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        self.0.f32s(key).ok()?.map(|floats| floats.into_owned())
    }
    fn ints(&self, key: &str) -> Option<Vec<i64>> {
        let ints = self.0.i32s(key).ok()??;
        Some(ints.iter().map(|&int| int.into()).collect())
    }
    fn int(&self, key: &str) -> Option<i64> {
        self.0.get(key)?.as_integer()?.try_into().ok()
    }
    fn flag(&self, key: &str) -> Option<bool> {
        self.0.bool(key).ok()?
    }
}

/// The file's metadata and its tokenizer.
pub(crate) fn load(path: &Path) -> (Metadata, Tokenizer) {
    let vocab = vocab(path).unwrap();
    (open(path).metadata, Tokenizer::new(vocab).unwrap())
}

/// The file's vocabulary.
pub(crate) fn vocab(path: &Path) -> Result<Vocab, TextError> {
    Vocab::from_source(&Source(&open(path).metadata))
}

fn open(path: &Path) -> Gguf {
    Gguf::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folder of vocabulary fixtures, if there is one.
pub(crate) fn vocab_folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    let root = std::env::var_os("KVARK_FIXTURES").map_or(beside, PathBuf::from);
    Some(root.join("vocab")).filter(|folder| folder.is_dir())
}

/// The SmolLM2 file that `KVARK_TEST_MODEL` names, if it does.
pub(crate) fn smollm2() -> Option<PathBuf> {
    std::env::var_os("KVARK_TEST_MODEL").map(PathBuf::from)
}
