//! The backend on a GPU, against the reference backend.

mod gpu;

use backend::reference::Reference;
use backend::{Backend, CompileOptions, Devices, ExecutorKind};
use base::DType;
use conformance::TestRng;
use graph::ops::{Activation, ExpertGate, ExpertScores, Experts, RouteExperts};
use graph::{GraphBuilder, Value};
use std::io::Write;
use std::sync::Arc;

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

/// Experts that the GPU reads from the host's memory have the bits of those in its own, in single rows and in prompts, also when
/// captured graphs are replayed.
#[test]
fn experts_in_the_hosts_memory_change_no_bit() {
    let Some(cuda) = gpu::device() else { return };
    let mut noise = TestRng::new(31);
    for dtype in [DType::Q4_K, DType::Q8_0, DType::BF16] {
        let (count, depth, inner) = (8, 256, 512);
        let mut b = GraphBuilder::new("experts");
        let t = b.symbol("T");
        let mut x = b.input("x", DType::F32, [t, depth.into()]);
        for layer in 0..2 {
            let logits = b.input(&format!("logits.{layer}"), DType::F32, [t, count.into()]);
            let route = RouteExperts {
                used: 2,
                scores: ExpertScores::Softmax,
                normalise: true,
                scale: 1.0,
                groups: None,
            };
            let routes = b.node(&format!("route.{layer}"), route, &[logits]);
            let mut inputs = vec![x, routes.unwrap()];
            for (name, n, k) in [
                ("gate", count * inner, depth),
                ("up", count * inner, depth),
                ("down", count * depth, inner),
            ] {
                let data = noise.weights(dtype, n * k);
                let name = format!("blk.{layer}.ffn_{name}_exps.weight");
                inputs.push(b.constant(&name, dtype, &[n, k], data).unwrap());
            }
            let function = ExpertGate::Gated(Activation::Silu);
            let op = Experts { function, used: 2 };
            x = b.node(&format!("experts.{layer}"), op, &inputs).unwrap();
        }
        let graph = Arc::new(b.finish(&[x]).unwrap());
        let steps: Vec<Vec<Value>> = [1, 1, 1, 40, 1, 40, 7]
            .into_iter()
            .map(|rows| {
                let logits = |noise: &mut TestRng| noise.units(rows * count);
                vec![
                    Value::f32([rows, depth], noise.units(rows * depth)),
                    Value::f32([rows, count], logits(&mut noise)),
                    Value::f32([rows, count], logits(&mut noise)),
                ]
            })
            .collect();
        let mut held = vec![];
        let mut runs = [0, 1, usize::MAX].map(|layers| {
            let options = CompileOptions {
                host_expert_layers: layers,
                ..CompileOptions::default()
            };
            let mut executable = cuda.compile(graph.clone(), &options).unwrap();
            held.push(executable.packed_bytes());
            let bits = |inputs: &Vec<Value>| {
                let outputs = executable.run(inputs, None, None).unwrap();
                let values = outputs[0].as_f32().unwrap();
                values.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            steps.iter().map(bits).collect::<Vec<_>>()
        });
        assert!(held[0] > held[1] && held[1] > held[2], "{held:?}");
        let on_the_device = std::mem::take(&mut runs[0]);
        assert!(
            on_the_device == runs[1] && on_the_device == runs[2],
            "{dtype}"
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

/// Every op, on the GPU where it has a kernel and in the reference otherwise.
#[test]
fn every_op_runs_on_the_gpu_or_behind_it() {
    let Some(cuda) = gpu::device() else { return };
    let devices = Devices::new(vec![Arc::new(cuda), Arc::new(Reference::new())]);
    let options = CompileOptions::default();
    conformance::primitives(&devices, &options, TOLERANCE).unwrap();
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
