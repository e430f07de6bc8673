//! The record of the last run on a GPU, `docs/benchmarks/cuda.json`.

use serde_json::Value;
use std::io::Write;

/// The record has what it must, and says so when the kernels have changed since it was made.
#[test]
fn the_record_of_a_gpu_is_complete() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/benchmarks/cuda.json"
    );
    let record: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for key in [
        "date",
        "device",
        "driver",
        "kernels",
        "conformance_cases",
        "histories",
    ] {
        assert!(!record[key].is_null(), "{key} is missing");
    }
    let figures = record["figures_us"].as_object().unwrap();
    assert!(figures.values().all(|figure| figure.as_f64() > Some(0.0)));
    let now = format!("{:016x}", cuda::sources_checksum());
    if record["kernels"] != now {
        let date = &record["date"];
        let note = "the CUDA kernels have changed since their record was made on a GPU";
        let _ = writeln!(
            std::io::stderr(),
            "{note} ({date}), to {now}: cargo xtask test-cuda"
        );
    }
}
