use super::*;
use crate::{Runner, RunnerOptions, RuntimeErrorKind};
use backend::reference::Reference;
use std::path::PathBuf;

fn fixture(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Model::open(&folder.join(name), None).unwrap()
}

fn runner(model: &Model, runner_options: &RunnerOptions) -> Runner {
    Runner::new(model, &Reference::new(), runner_options).unwrap()
}

fn tokens(n: u32) -> Vec<u32> {
    (0..n).map(|i| i * 7 % 61).collect()
}

/// A file that is removed on drop.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        let name = format!("kvark-snapshot-{}-{name}", std::process::id());
        Temporary(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn saved(model: &Model, runner_options: &RunnerOptions, name: &str) -> Vec<u8> {
    let file = Temporary::new(name);
    let mut runner = runner(model, runner_options);
    runner.feed(&tokens(40), |_| true).unwrap();
    runner.save(model, &file.0, b"notes").unwrap();
    std::fs::read(&file.0).unwrap()
}

fn kind(bytes: &[u8]) -> String {
    match Snapshot::parse(Bytes::from(bytes)) {
        Ok(_) => "whole".into(),
        Err(error) => {
            let kind = format!("{:?}", error.kind());
            kind.split([' ', '(']).next().unwrap().to_owned()
        }
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let model = fixture("gemma3.gguf");
    let runner_options = RunnerOptions {
        context: Some(48),
        max_step_tokens: 4,
        ..RunnerOptions::default()
    };
    let whole = saved(&model, &runner_options, "flips");
    let snapshot = Snapshot::parse(Bytes::from(&whole[..])).unwrap();
    assert_eq!(
        (snapshot.tokens(), snapshot.notes()),
        (&tokens(40)[..], &b"notes"[..])
    );
    assert_eq!(snapshot.restorable().longest(1), 0, "gemma3 has windows");
    let step = (whole.len() / 4000).max(1) | 1;
    for at in (0..700.min(whole.len())).chain((700..whole.len()).step_by(step)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        let expect: &[&str] = match at {
            0..8 => &["NotASnapshot"],
            8..12 => &["Version"],
            16..24 => &["Length"],
            _ => &["Damaged"],
        };
        let found = kind(&bytes);
        assert!(expect.contains(&&*found), "byte {at}: {found}");
        assert_ne!(kind(&whole[..at]), "whole", "cut at {at}");
    }
    assert_eq!(kind(&[&whole[..], b"\0"].concat()), "Length");
    assert_eq!(kind(b""), "NotASnapshot");
    assert_eq!(kind(b"KVARKSNP"), "Length");
    assert_eq!(kind(&b"hello".repeat(100)), "NotASnapshot");
}

#[test]
fn impossible_numbers_behind_right_checksums_are_refused() {
    let model = fixture("llama_plain.gguf");
    let runner_options = RunnerOptions {
        context: Some(48),
        ..RunnerOptions::default()
    };
    let whole = saved(&model, &runner_options, "numbers");
    let rows = whole.len() - {
        let layers = Snapshot::parse(Bytes::from(&whole[..])).unwrap().layers;
        layers
            .iter()
            .flat_map(|l| &l.sides)
            .map(|s| s.0.len())
            .sum::<usize>()
    };
    let layer = HEADER_BYTES + 40 * 4;
    for at in [12, 32, 40, 48, 60, layer, layer + 4, layer + 8, layer + 16] {
        for value in [0u32, 1, 39, 41, 1 << 23, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            if bytes == whole {
                continue;
            }
            let sum = xxh64(&bytes[..rows - 8], 0);
            bytes[rows - 8..rows].copy_from_slice(&sum.to_le_bytes());
            assert_ne!(kind(&bytes), "whole", "{value} at {at}");
        }
    }
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() {
    let (model, other) = (fixture("llama_plain.gguf"), fixture("llama_biases.gguf"));
    let runner_options = RunnerOptions {
        context: Some(48),
        ..RunnerOptions::default()
    };
    assert_eq!(
        model.fingerprint(),
        fixture("llama_plain.gguf").fingerprint()
    );
    assert_ne!(model.fingerprint(), other.fingerprint());
    let bytes = saved(&model, &runner_options, "fit");
    let snapshot = Snapshot::parse(Bytes::from(&bytes[..])).unwrap();
    let short = RunnerOptions {
        context: Some(39),
        ..runner_options.clone()
    };
    let quantised = RunnerOptions {
        key_storage: KvStorage::F32,
        ..runner_options.clone()
    };
    for (model, runner_options, says) in [
        (&other, &runner_options, "another model"),
        (&model, &short, "it has 40 tokens, and the context holds 39"),
        (
            &model,
            &quantised,
            "its keys are f16 and its values f16, and the session stores f32 and f16",
        ),
    ] {
        let mut runner = runner(model, runner_options);
        runner.feed(&[5, 6, 7], |_| true).unwrap();
        let before = runner.logits().to_vec();
        let error = runner.restore(model, &snapshot, 40).unwrap_err();
        assert!(matches!(error.kind(), RuntimeErrorKind::Snapshot(_)));
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(
            (runner.tokens(), runner.logits()),
            (&[5, 6, 7][..], &before[..])
        );
        runner.feed(&[8], |_| true).unwrap();
    }
    // A prefix that fits can be restored.
    let mut runner = runner(&model, &short);
    assert_eq!(runner.resume(&model, &snapshot, &tokens(30)).unwrap(), 29);
    assert_eq!(runner.resume(&model, &snapshot, &[1, 2]).unwrap(), 0);
}

#[test]
fn a_stale_unfinished_file_is_no_obstacle() {
    let model = fixture("llama_plain.gguf");
    let runner_options = RunnerOptions {
        context: Some(48),
        ..RunnerOptions::default()
    };
    let file = Temporary::new("stale");
    let name = file.0.file_name().unwrap().to_str().unwrap();
    let partial = Temporary(file.0.with_file_name(format!(".{name}.partial")));
    std::fs::write(&partial.0, vec![1; 1 << 20]).unwrap();
    let mut runner = runner(&model, &runner_options);
    runner.feed(&tokens(3), |_| true).unwrap();
    runner.save(&model, &file.0, b"").unwrap();
    assert_eq!(Snapshot::open(&file.0).unwrap().tokens(), tokens(3));
    assert!(!partial.0.exists());
    let error = runner.save(&model, &file.0.join("x"), b"").unwrap_err();
    assert!(error.to_string().contains("kvark-snapshot"), "{error}");
}
