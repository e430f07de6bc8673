//! Exported programs, optimised: what is left of them, and how much memory they need.

use graph::plan::MemoryPlan;
use graph::{Bindings, Graph};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Arenas may be this much larger than the largest set of bytes alive at once.
const SLACK: f64 = 1.05;

/// Or this many bytes: what rounding to cache lines costs graphs of a few numbers.
const SMALL: usize = 512;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pt2")
}

/// Every method of every fixture that can be imported, optimised.
fn graphs() -> Vec<(String, Graph)> {
    let mut graphs = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "pt2") {
            continue;
        }
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if stem.starts_with("refused_") {
            continue;
        }
        for method in &import::open(&path).unwrap().methods {
            let mut graph = method.graph.clone();
            graph::passes::optimise(&mut graph).unwrap();
            graphs.push((format!("{stem}/{}", graph.name()), graph));
        }
    }
    assert!(graphs.len() > 20);
    graphs
}

#[test]
fn arenas_are_close_to_the_smallest() {
    for (name, graph) in graphs() {
        for size in [1, 7, 16, 64] {
            let mut values = [0; graph::MAX_SYMBOLS];
            for (value, symbol) in values.iter_mut().zip(graph.symbols()) {
                *value = size.clamp(*symbol.range.start(), *symbol.range.end());
            }
            let Ok(plan) = MemoryPlan::new(&graph, Bindings(values), |_| 0) else {
                panic!("{name} has no plan with {values:?}");
            };
            let (arena, bound) = (plan.arena_bytes, plan.lower_bound);
            let allowed = (bound as f64 * SLACK) as usize;
            assert!(
                arena <= allowed.max(bound + SMALL),
                "{name} with {values:?}: {arena} bytes, at least {bound}\n{}",
                plan.report(&graph)
            );
        }
    }
}

/// Ops but for those that move nothing.
fn ops(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for node in graph.nodes() {
        *counts.entry(node.op.name()).or_default() += 1;
    }
    counts.remove("reshape");
    counts
}

#[test]
fn exports_end_as_the_ops_of_their_models() {
    let graphs: BTreeMap<String, Graph> = graphs().into_iter().collect();
    let expect = |name: &str, wanted: &[(&'static str, usize)]| {
        let wanted: BTreeMap<_, _> = wanted.iter().copied().collect();
        let graph = &graphs[&format!("{name}/forward")];
        assert_eq!(ops(graph), wanted, "{name}\n{graph}");
    };
    // What `decoder::build` makes of the same models.
    let decoder = [
        ("add", 4),
        ("gated", 2),
        ("gather_rows", 2),
        ("linear", 15),
        ("rms_norm", 5),
        ("rope", 4),
        ("rope_table", 1),
        ("update_and_attend", 2),
    ];
    expect("decoder_llama", &decoder);
    expect("decoder_qwen2", &decoder);
    let with = |changes: &[(&'static str, usize)]| {
        let mut ops: BTreeMap<_, _> = decoder.into_iter().collect();
        ops.extend(changes.iter().copied());
        ops.into_iter().collect::<Vec<_>>()
    };
    expect("decoder_qwen3", &with(&[("rms_norm", 9)]));
    expect(
        "decoder_gemma3",
        &with(&[("rms_norm", 13), ("rope_table", 2), ("scale", 1)]),
    );
    for attention in ["sdpa", "softmax", "naive"] {
        for causal in ["", "_causal"] {
            let name = format!("block_{attention}{causal}");
            let ops = [
                ("add", 2),
                ("attention", 1),
                ("layer_norm", 2),
                ("linear", 6),
            ];
            expect(&name, &ops);
            let text = graphs[&format!("{name}/forward")].to_string();
            assert_eq!(
                text.contains(", causal, token_major}"),
                !causal.is_empty(),
                "{text}"
            );
        }
    }
}
