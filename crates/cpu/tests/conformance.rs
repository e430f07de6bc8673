//! Every tier and both executors against the reference backend.

use backend::reference::Reference;
use backend::{CompileOptions, ExecutorKind};
use cpu::{Cpu, Isa};

#[test]
fn every_tier_and_executor_agrees_with_the_reference() {
    for (i, isa) in Isa::available().into_iter().enumerate() {
        // Every tier with both executors and both numbers of threads, two combinations a tier.
        let executors = [ExecutorKind::Compiled, ExecutorKind::Interpreted];
        for (executor, threads) in executors.into_iter().zip([[1, 3], [3, 1]][i % 2]) {
            let options = CompileOptions {
                threads: Some(threads),
                executor,
                ..CompileOptions::default()
            };
            // On matrix tiles, attention rounds queries and weights to seventeen bits.
            let tolerance = if isa.name() == "amx" { 1e-5 } else { 2e-6 };
            let cases = conformance::run(&Cpu::with_isa(isa), &options, tolerance)
                .unwrap_or_else(|e| panic!("{isa}, {executor:?}, {threads} threads: {e}"));
            assert!(cases > 400, "the suite ran only {cases} cases");
        }
    }
}

/// `KVARK_HISTORIES=N` runs N histories instead of a few.
#[test]
fn attention_agrees_with_the_reference_over_random_histories() {
    let histories = std::env::var("KVARK_HISTORIES").ok();
    let histories = histories.and_then(|n| n.parse().ok()).unwrap_or(800);
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    let cpu = Cpu::new().unwrap();
    conformance::random_histories(&cpu, &options, 2e-5, histories).unwrap();
}

/// `KVARK_HISTORIES=N` runs N histories instead of a few.
#[test]
fn states_have_the_bits_of_cold_runs_over_random_histories() {
    let histories = std::env::var("KVARK_HISTORIES").ok();
    let histories = histories.and_then(|n| n.parse().ok()).unwrap_or(150);
    let options = CompileOptions {
        threads: Some(2),
        ..CompileOptions::default()
    };
    conformance::states(&Cpu::new().unwrap(), &options, histories).unwrap();
}

#[test]
fn the_reference_agrees_with_itself() {
    conformance::run(&Reference::new(), &CompileOptions::default(), 0.0).unwrap();
}
