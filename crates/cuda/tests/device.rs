//! The backend on a GPU, against the reference backend.

mod gpu;

use backend::{CompileOptions, ExecutorKind};
use std::io::Write;

/// Sums on tensor cores are rounded otherwise than those of the reference.
const TOLERANCE: f32 = 2e-5;
/// Experts multiply twice, and rows between bf16 weights have sixteen bits.
const EXPERT_TOLERANCE: f32 = 4e-5;

#[test]
fn decoders_agree_with_the_reference() {
    let Some(cuda) = gpu::device() else { return };
    for executor in [ExecutorKind::Compiled, ExecutorKind::Interpreted] {
        let options = CompileOptions {
            executor,
            ..CompileOptions::default()
        };
        let cases = conformance::decoder(&cuda, &options, TOLERANCE).unwrap();
        let _ = writeln!(
            std::io::stderr(),
            "{cases} cases with the executor {executor:?}"
        );
        assert!(cases > 400, "the suite ran only {cases} cases");
    }
}

#[test]
fn experts_and_sinks_agree_with_the_reference() {
    let Some(cuda) = gpu::device() else { return };
    for executor in [ExecutorKind::Compiled, ExecutorKind::Interpreted] {
        let options = CompileOptions {
            executor,
            ..CompileOptions::default()
        };
        let cases = conformance::experts(&cuda, &options, EXPERT_TOLERANCE).unwrap();
        let _ = writeln!(
            std::io::stderr(),
            "{cases} cases of experts and sinks with the executor {executor:?}"
        );
    }
}

#[test]
fn states_agree_with_the_reference_and_with_cold_runs() {
    let Some(cuda) = gpu::device() else { return };
    for executor in [ExecutorKind::Compiled, ExecutorKind::Interpreted] {
        let options = CompileOptions {
            executor,
            ..CompileOptions::default()
        };
        conformance::states(&cuda, &options, 90).unwrap();
    }
}

/// `KVARK_HISTORIES=N` runs N histories instead of a few.
#[test]
fn attention_agrees_with_the_reference_over_random_histories() {
    let Some(cuda) = gpu::device() else { return };
    let histories = std::env::var("KVARK_HISTORIES").ok();
    let histories = histories.and_then(|n| n.parse().ok()).unwrap_or(400);
    let options = CompileOptions::default();
    conformance::random_histories(&cuda, &options, 1e-5, histories).unwrap();
}

#[test]
fn an_op_without_a_kernel_is_refused_by_name() {
    let Some(cuda) = gpu::device() else { return };
    let options = CompileOptions::default();
    let error = conformance::primitives(&cuda, &options, TOLERANCE).unwrap_err();
    assert!(
        error.contains("the cuda backend does not support"),
        "{error}"
    );
}
