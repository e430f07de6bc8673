//! The backend on a GPU, against the reference backend. Without a GPU the tests say so and pass; `KVARK_REQUIRE_CUDA=1`
//! makes them fail.

use backend::{CompileOptions, ExecutorKind, conformance};
use cuda::Cuda;
use std::io::Write;

/// The GPU, if there is one.
fn device() -> Option<Cuda> {
    let folder = std::env::var_os("KVARK_CUBIN").map(Into::into);
    match Cuda::new(folder) {
        Ok(cuda) => {
            let facts = cuda.facts();
            let _ = writeln!(
                std::io::stderr(),
                "on {} ({}), driver for CUDA {}",
                facts.name,
                facts.arch,
                facts.driver
            );
            Some(cuda)
        }
        Err(error) if std::env::var_os("KVARK_REQUIRE_CUDA").is_some() => panic!("{error}"),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            None
        }
    }
}

/// Sums on tensor cores are rounded otherwise than those of the reference.
const TOLERANCE: f32 = 2e-5;

#[test]
fn decoders_agree_with_the_reference() {
    let Some(cuda) = device() else { return };
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

/// `KVARK_HISTORIES=N` runs N histories instead of a few.
#[test]
fn attention_agrees_with_the_reference_over_random_histories() {
    let Some(cuda) = device() else { return };
    let histories = std::env::var("KVARK_HISTORIES").ok();
    let histories = histories.and_then(|n| n.parse().ok()).unwrap_or(400);
    let options = CompileOptions::default();
    conformance::random_histories(&cuda, &options, 1e-5, histories).unwrap();
}

#[test]
fn an_op_without_a_kernel_is_refused_by_name() {
    let Some(cuda) = device() else { return };
    let error = conformance::primitives(&cuda, &CompileOptions::default(), TOLERANCE).unwrap_err();
    assert!(
        error.contains("the cuda backend does not support"),
        "{error}"
    );
}
