//! GGUF files written in another quantisation.

use std::fs;
use std::path::{Path, PathBuf};

use base::{DType, quant};
use import::gguf::{Gguf, QUANTISATIONS, Quantisation, QuantisePlan, Value};

fn fixture(name: &str) -> Gguf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decoder");
    Gguf::open(&folder.join(format!("{name}.gguf"))).unwrap()
}

/// A file that is removed on drop.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        let name = format!("kvark-quantise-{name}-{}.gguf", std::process::id());
        Temporary(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn values(file: &Gguf, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    let mut out = vec![0.0; tensor.len()];
    quant::dequantise(tensor.dtype, &tensor.data, &mut out).unwrap();
    out
}

#[test]
fn every_quantisation_is_written_and_read() {
    let file = fixture("llama_plain");
    let embedding = values(&file, "token_embd.weight");
    let power: f32 = embedding.iter().map(|x| x * x).sum();
    for to in QUANTISATIONS {
        let path = Temporary::new(to.name);
        let plan = QuantisePlan::new(&file, Some(to), false).unwrap();
        let mut done = vec![];
        let further = vec![("general.note".to_owned(), Value::String("é".to_owned()))];
        plan.write(&path.0, further, 2, &mut |bytes| {
            done.push(bytes);
            true
        })
        .unwrap();
        let bytes: usize = file.tensors.iter().map(|t| t.data.len()).sum();
        assert_eq!(
            (done.len(), done.last()),
            (file.tensors.len(), Some(&(bytes as u64)))
        );
        let written = Gguf::open(&path.0).unwrap();
        let file_type = written.metadata.u32("general.file_type").unwrap();
        assert_eq!(file_type, Some(to.file_type), "{}", to.name);
        assert_eq!(written.metadata.str("general.note").unwrap(), Some("é"));
        for (key, value) in file.metadata.iter() {
            assert_eq!(written.metadata.get(key), Some(value), "{key}");
        }
        for (tensor, planned) in written.tensors.iter().zip(&plan.tensors) {
            let found = (tensor.dtype, tensor.data.len(), &tensor.name);
            assert_eq!(found, (planned.to, planned.to_bytes, &planned.name));
        }
        let norm = "blk.0.attn_norm.weight";
        assert_eq!(values(&written, norm), values(&file, norm));
        let found = values(&written, "token_embd.weight");
        let error: f32 = found
            .iter()
            .zip(&embedding)
            .map(|(a, b)| (a - b).powi(2))
            .sum();
        // Rows of 32 are no whole blocks of 256.
        assert!(error <= 0.011 * power, "{}: {}", to.name, error / power);
        import::open(&path.0).unwrap();
    }
}

#[test]
fn what_loses_more_must_be_asked_for() {
    let file = fixture("phi3_q8_0");
    let to = Quantisation::find("q4_0").unwrap();
    let error = QuantisePlan::new(&file, Some(to), false).err().unwrap();
    assert!(error.to_string().contains("is q8_0 already"), "{error}");
    let plan = QuantisePlan::new(&file, Some(to), true).unwrap();
    let qkv = plan
        .tensors
        .iter()
        .find(|t| t.name.contains("qkv"))
        .unwrap();
    assert_eq!((qkv.from, qkv.to), (DType::Q8_0, DType::Q4_0));
    // The same type is no loss: the bytes are copied.
    let same = Quantisation::find("Q8_0").unwrap();
    let path = Temporary::new("same");
    let plan = QuantisePlan::new(&file, Some(same), false).unwrap();
    plan.write(&path.0, vec![], 1, &mut |_| true).unwrap();
    let written = Gguf::open(&path.0).unwrap();
    for (a, b) in file.tensors.iter().zip(&written.tensors) {
        assert!(a.data[..] == b.data[..], "{}", a.name);
    }
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let path = Temporary::new("interrupted");
    let file = fixture("llama_plain");
    let plan = QuantisePlan::new(&file, Quantisation::find("Q8_0"), false).unwrap();
    let error = plan.write(&path.0, vec![], 2, &mut |_| false).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
    assert!(!path.0.exists());
}
