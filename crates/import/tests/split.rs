//! A model that is split over several files is the model in one file.

#[path = "common/splitter.rs"]
mod splitter;

use import::gguf::{Gguf, GgufErrorKind, SplitName};
use import::{ImportErrorKind, ModelFile};
use splitter::{part_name, split};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder with a model in parts; removed on drop.
struct Parts {
    folder: PathBuf,
    count: usize,
}

impl Parts {
    fn new(name: &str, count: usize) -> Parts {
        let folder =
            std::env::temp_dir().join(format!("kvark-split-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let parts = Parts { folder, count };
        for (number, bytes) in (1..).zip(split(&fs::read(whole()).unwrap(), count)) {
            fs::write(parts.path(number), bytes).unwrap();
        }
        parts
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(part_name("tiny", number, self.count))
    }

    fn error(&self, number: usize) -> String {
        let error = Gguf::open(&self.path(number)).unwrap_err();
        assert_eq!(error.kind(), GgufErrorKind::Split, "{error}");
        let imported = import::open(&self.path(number)).unwrap_err();
        assert_eq!(imported.kind(), ImportErrorKind::Malformed, "{imported}");
        assert_eq!(imported.to_string(), error.to_string());
        error.to_string()
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn whole() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decoder/llama_plain.gguf")
}

#[test]
fn any_part_opens_the_whole_model() {
    let whole = import::open(&whole()).unwrap();
    let ModelFile::Gguf(one) = &whole.file else {
        panic!("a GGUF file")
    };
    for count in [2, 3, 7] {
        let parts = Parts::new("good", count);
        for number in 1..=count {
            let joined = import::open(&parts.path(number)).unwrap();
            let ModelFile::Gguf(file) = &joined.file else {
                panic!("a GGUF file")
            };
            let names = |file: &Gguf| -> Vec<String> {
                file.tensors.iter().map(|t| t.name.clone()).collect()
            };
            assert_eq!(names(file), names(one));
            for tensor in &one.tensors {
                let other = file.tensor(&tensor.name).unwrap();
                assert_eq!((&*other.data, &other.shape), (&*tensor.data, &tensor.shape));
            }
            // The metadata is that of the first part, with its keys of the split.
            assert_eq!(file.metadata.len(), one.metadata.len() + 3);
            assert_eq!(joined.facts.context_length, whole.facts.context_length);
        }
    }
}

#[test]
fn a_missing_part_is_named() {
    let parts = Parts::new("missing", 3);
    fs::remove_file(parts.path(2)).unwrap();
    for number in [1, 3] {
        let want = "tiny-00002-of-00003.gguf is missing: the model is split over 3 files, and this is number 2";
        let error = parts.error(number);
        assert!(error.ends_with(want), "{error}");
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let parts = Parts::new("wrong", 3);
    fs::copy(parts.path(3), parts.path(2)).unwrap();
    let error = parts.error(1);
    assert!(error.contains("the name says part 2 of 3"), "{error}");

    let other = Parts::new("other", 3);
    let bytes = split(&fs::read(whole()).unwrap(), 3).swap_remove(0);
    let renamed = other.folder.join("renamed.gguf");
    fs::write(&renamed, &bytes).unwrap();
    let error = Gguf::open(&renamed).unwrap_err().to_string();
    assert!(
        error.contains("-00001-of-00003.gguf or the like"),
        "{error}"
    );

    // A part without one of its tensors: its directory is shorter by one.
    let file = fs::read(whole()).unwrap();
    let mut fewer = split(&file, 3).swap_remove(2);
    let count = u64::from_le_bytes(fewer[8..16].try_into().unwrap());
    fewer[8..16].copy_from_slice(&(count - 1).to_le_bytes());
    fs::write(other.path(3), fewer).unwrap();
    let error = Gguf::open(&other.path(1)).unwrap_err();
    let kind = error.kind();
    assert!(
        kind == GgufErrorKind::Split || kind == GgufErrorKind::Layout,
        "{error}"
    );
}

#[test]
fn names_of_parts() {
    let name = SplitName::parse("Q8_0/a-b-00002-of-00013.GGUF").unwrap();
    assert_eq!(
        (name.stem(), name.number(), name.count()),
        ("Q8_0/a-b", 2, 13)
    );
    assert_eq!(name.part(1), "Q8_0/a-b-00001-of-00013.GGUF");
    for name in [
        "model.gguf",
        "a-00001-of-00002.bin",
        "a-1-of-2.gguf",
        "a-00000-of-00002.gguf",
        "a-00003-of-00002.gguf",
        "a-0000x-of-00002.gguf",
    ] {
        assert_eq!(SplitName::parse(name), None, "{name}");
    }
}
