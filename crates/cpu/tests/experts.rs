//! Experts under a budget: the bits of a run that holds all of them, and no more memory than the budget.

use backend::{
    Backend, BackendErrorKind, CompileOptions, Executable, ExecutorKind, Footprint,
    FootprintRequest,
};
use base::{Bytes, DType};
use conformance::TestRng;
use cpu::Cpu;
use graph::ops::{Activation, ExpertGate, ExpertScores, Experts, RouteExperts};
use graph::{Bindings, Graph, GraphBuilder, Value};
use kv::CacheConfig;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const COUNT: usize = 16;
const USED: usize = 2;
const WIDTH: usize = 256;
const INNER: usize = 512;
/// The types of gate, up and down of each layer.
const LAYERS: [[DType; 3]; 3] = [
    [DType::Q4_K, DType::Q4_K, DType::Q6_K],
    [DType::Q4_K; 3],
    [DType::BF16; 3],
];

/// A folder with a model file, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("kvark-experts-{name}-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0).unwrap();
        folder
    }

    fn options(&self, budget: Option<usize>) -> CompileOptions {
        CompileOptions {
            threads: Some(2),
            expert_budget: budget,
            packed_folder: Some(self.0.join("packed")),
            ..CompileOptions::default()
        }
    }

    /// Bytes of this process that are mapped from files of this folder and resident.
    #[cfg(target_os = "linux")]
    fn resident(&self) -> usize {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let folder = self.0.to_str().unwrap();
        let (mut own, mut sum) = (false, 0);
        for line in text.lines() {
            if line.contains('/') || line.contains("r--p") || line.contains("rw-p") {
                own = line.contains(folder);
            }
            if let Some(size) = line.strip_prefix("Rss:").filter(|_| own) {
                let size = size.trim().trim_end_matches(" kB");
                sum += size.parse::<usize>().unwrap() * 1024;
            }
        }
        sum
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Three layers of experts whose weights are mapped from a file.
fn model(folder: &Path) -> Arc<Graph> {
    let mut noise = TestRng::new(91);
    let shapes = [
        [COUNT * INNER, WIDTH],
        [COUNT * INNER, WIDTH],
        [COUNT * WIDTH, INNER],
    ];
    let mut file = Vec::new();
    for dtypes in LAYERS {
        for (dtype, [n, k]) in dtypes.into_iter().zip(shapes) {
            file.extend_from_slice(&noise.weights(dtype, n * k));
        }
    }
    let path = folder.join("model.gguf");
    std::fs::write(&path, file).unwrap();
    let file = Bytes::map(&path).unwrap();
    let mut b = GraphBuilder::new("experts");
    let t = b.symbol("T");
    let mut x = b.input("x", DType::F32, [t, WIDTH.into()]);
    let mut at = 0;
    for (layer, dtypes) in LAYERS.into_iter().enumerate() {
        let logits = b.input(&format!("logits.{layer}"), DType::F32, [t, COUNT.into()]);
        let route = RouteExperts {
            used: USED,
            scores: ExpertScores::Softmax,
            normalise: true,
            scale: 1.0,
            groups: None,
        };
        let routes = b.node(&format!("route.{layer}"), route, &[logits]).unwrap();
        let mut inputs = vec![x, routes];
        for ((dtype, [n, k]), name) in dtypes.into_iter().zip(shapes).zip(["gate", "up", "down"]) {
            let len = n * dtype.row_bytes(k).unwrap();
            let data = file.slice(at..at + len).unwrap();
            at += len;
            let name = format!("{name}.{layer}");
            inputs.push(b.constant(&name, dtype, &[n, k], data).unwrap());
        }
        let function = ExpertGate::Gated(Activation::Silu);
        let op = Experts {
            function,
            used: USED,
        };
        x = b.node(&format!("experts.{layer}"), op, &inputs).unwrap();
    }
    Arc::new(b.finish(&[x]).unwrap())
}

fn footprint(graph: &Graph, options: &CompileOptions) -> Footprint {
    let is_weight = |id: graph::TensorId| graph.tensor(id).constant().is_some();
    let cache = CacheConfig::new(1, vec![]);
    let mut bindings = Bindings::default();
    bindings.0[0] = 33;
    let request = FootprintRequest {
        bindings,
        options,
        is_weight: &is_weight,
        cache: (&cache, 1),
    };
    Cpu::new().unwrap().footprint(graph, &request).unwrap()
}

/// The inputs of some steps: of one row and of many.
fn steps() -> Vec<Vec<Value>> {
    let mut noise = TestRng::new(5);
    let rows = [1, 1, 3, 1, 33, 1, 1, 1, 2, 1, 1, 17, 1, 1];
    let step = |rows: usize| {
        let mut inputs = vec![Value::f32([rows, WIDTH], noise.units(rows * WIDTH))];
        for _ in LAYERS {
            inputs.push(Value::f32([rows, COUNT], noise.units(rows * COUNT)));
        }
        inputs
    };
    rows.into_iter().map(step).collect()
}

fn run(executable: &mut dyn Executable, inputs: &[Value]) -> Vec<u32> {
    let outputs = executable.run(inputs, None, None).unwrap();
    let values = outputs[0].as_f32().unwrap();
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_budget_changes_no_bit_and_is_kept() {
    let folder = Folder::new("budget");
    let graph = model(&folder.0);
    let cpu = Cpu::new().unwrap();
    let whole = folder.options(None);
    let experts = footprint(&graph, &whole).experts.unwrap();
    assert_eq!(experts.held, None);
    assert!(experts.minimum * 4 < experts.all);
    let expected: Vec<Vec<u32>> = {
        // Without a file of packed weights.
        let options = CompileOptions {
            packed_folder: None,
            ..whole
        };
        let mut executable = cpu.compile(graph.clone(), &options).unwrap();
        steps()
            .iter()
            .map(|step| run(&mut *executable, step))
            .collect()
    };
    // The run that held all has read one layer where it is mapped.
    let constants = graph
        .tensors()
        .iter()
        .filter_map(|tensor| tensor.constant());
    constants.for_each(Bytes::release);
    for budget in [
        experts.minimum,
        experts.all / 3,
        experts.all / 2,
        experts.all,
    ] {
        for executor in [ExecutorKind::Compiled, ExecutorKind::Interpreted] {
            let options = CompileOptions {
                executor,
                ..folder.options(Some(budget))
            };
            let planned = footprint(&graph, &options);
            let held = planned.experts.unwrap().held;
            assert_eq!(held.is_none(), budget == experts.all);
            assert!(held.is_none_or(|held| held <= budget && budget < held + experts.minimum));
            let mut executable = cpu.compile(graph.clone(), &options).unwrap();
            let packed: usize = planned.packed.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(executable.packed_bytes(), packed + held.unwrap_or(0));
            executable.set_profiling(true);
            for (step, expected) in steps().iter().zip(&expected) {
                assert_eq!(
                    &run(&mut *executable, step),
                    expected,
                    "{budget} {executor:?}"
                );
                // Nothing of the experts' files stays mapped: they are only in their slots.
                #[cfg(target_os = "linux")]
                assert!(
                    held.is_none() || folder.resident() == 0,
                    "{}",
                    folder.resident()
                );
            }
            let uses = executable.profile().into_iter().map(|node| node.experts);
            let (hits, misses) = uses.fold((0, 0), |(h, m), u| (h + u.hits, m + u.misses));
            match held {
                Some(_) => assert!(hits > 0 && misses > 0, "{hits} hits, {misses} misses"),
                None => assert_eq!((hits, misses), (0, 0)),
            }
        }
    }
}

/// More slots mean more hits, and a prompt that uses all experts finds those that have slots.
#[test]
fn a_prompt_finds_the_experts_that_are_held() {
    let folder = Folder::new("prompt");
    let graph = model(&folder.0);
    let cpu = Cpu::new().unwrap();
    let all = footprint(&graph, &folder.options(None))
        .experts
        .unwrap()
        .all;
    let mut noise = TestRng::new(8);
    let rows = 256;
    let mut prompt = vec![Value::f32([rows, WIDTH], noise.units(rows * WIDTH))];
    for _ in LAYERS {
        prompt.push(Value::f32([rows, COUNT], noise.units(rows * COUNT)));
    }
    let options = folder.options(Some(all / 2));
    let mut executable = cpu.compile(graph.clone(), &options).unwrap();
    run(&mut *executable, &prompt);
    executable.set_profiling(true);
    for _ in 0..8 {
        run(&mut *executable, &prompt);
    }
    let uses = executable.profile().into_iter().map(|node| node.experts);
    let (hits, misses) = uses.fold((0, 0), |(h, m), u| (h + u.hits, m + u.misses));
    assert_eq!(hits + misses, 8 * (LAYERS.len() * COUNT) as u64);
    assert!(
        hits * 5 > (hits + misses) * 2,
        "{hits} hits, {misses} misses"
    );
}

/// Experts that follow those of the layer before are prefetched once they were seen together.
#[test]
fn the_next_layers_experts_are_foreseen() {
    let folder = Folder::new("foreseen");
    let graph = model(&folder.0);
    let cpu = Cpu::new().unwrap();
    let minimum = footprint(&graph, &folder.options(None))
        .experts
        .unwrap()
        .minimum;
    let mut executable = cpu
        .compile(graph.clone(), &folder.options(Some(minimum)))
        .unwrap();
    executable.set_profiling(true);
    // Four kinds of tokens in turn, each with two experts of its own in every layer.
    let step = |token: usize| {
        let mut inputs = vec![Value::f32([1, WIDTH], vec![0.5; WIDTH])];
        for layer in 0..LAYERS.len() {
            let mut logits = vec![0.0; COUNT];
            let first = 2 * (token % 4) + layer;
            logits[first % COUNT] = 9.0;
            logits[(first + 7) % COUNT] = 8.0;
            inputs.push(Value::f32([1, COUNT], logits));
        }
        inputs
    };
    let uses = |executable: &dyn Executable| {
        let uses = executable.profile().into_iter().map(|node| node.experts);
        uses.fold((0, 0), |(m, f), u| (m + u.misses, f + u.foreseen))
    };
    for token in 0..8 {
        run(&mut *executable, &step(token));
    }
    let (misses, foreseen) = uses(&*executable);
    for token in 0..32 {
        run(&mut *executable, &step(token));
    }
    let later = uses(&*executable);
    let (misses, foreseen) = (later.0 - misses, later.1 - foreseen);
    assert!(misses > 32, "{misses} misses");
    assert_eq!(foreseen, misses);
}

#[test]
fn a_budget_that_cannot_be_kept_is_refused() {
    let folder = Folder::new("refused");
    let graph = model(&folder.0);
    let cpu = Cpu::new().unwrap();
    let minimum = footprint(&graph, &folder.options(None))
        .experts
        .unwrap()
        .minimum;
    let too_small = folder.options(Some(minimum - 1));
    let no_folder = CompileOptions {
        packed_folder: None,
        ..folder.options(Some(minimum))
    };
    for (options, reason) in [(too_small, "is too small"), (no_folder, "needs the file")] {
        let error = cpu.compile(graph.clone(), &options).err().unwrap();
        assert!(matches!(error.kind(), BackendErrorKind::Options(_)));
        assert!(error.to_string().contains(reason), "{error}");
    }
}
