//! A graph on several devices: one that refuses ops, and the CPU behind it. No GPU is needed: which nodes the GPU has kernels for is known
//! without one.

use kvark::backend::{
    Backend, BackendError, CompileOptions, Cuda, Devices, Executable, ExecutorKind, KvBytes,
};
use kvark::cache::{CacheConfig, KvError};
use kvark::graph::{Graph, Node, TensorId, Value};
use kvark::inference::{InferenceOptions, InferenceSession, RandomInputs};
use kvark::memory::CacheKind;
use kvark::{BatchRunner, Cpu, Model, Runner, RunnerOptions};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The CPU without the kernels of some ops.
struct Limited {
    cpu: Cpu,
    refuses: fn(&str) -> bool,
}

impl Backend for Limited {
    fn id(&self) -> &'static str {
        "limited"
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        let refused = graph.nodes().iter().find(|n| (self.refuses)(n.op.name()));
        assert!(refused.is_none(), "{refused:?} came to this device");
        self.cpu.compile(graph, options)
    }

    fn has_kernel(&self, _: &Graph, node: &Node) -> bool {
        !(self.refuses)(node.op.name())
    }

    fn new_kv(&self, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        self.cpu.new_kv(config)
    }

    fn shared(&self) -> Option<Arc<dyn Backend>> {
        let (cpu, refuses) = (Cpu::new().ok()?, self.refuses);
        Some(Arc::new(Limited { cpu, refuses }))
    }
}

fn devices(refuses: fn(&str) -> bool) -> Devices {
    let cpu = || Cpu::new().unwrap();
    let limited = Limited {
        cpu: cpu(),
        refuses,
    };
    Devices::new(vec![Arc::new(limited), Arc::new(cpu())])
}

fn fixtures(folder: &str, extension: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|own| own == extension));
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The outputs of a graph on random inputs, and its pieces on these devices.
fn outputs(
    path: &Path,
    backend: &dyn Backend,
    method: Option<&str>,
) -> Option<(Vec<(String, Value)>, Graph)> {
    let options = InferenceOptions {
        method: method.map(str::to_owned),
        ..InferenceOptions::default()
    };
    let mut session = InferenceSession::load(path, backend, &options).ok()?;
    let random = RandomInputs {
        seed: 7,
        ..RandomInputs::default()
    };
    let inputs = session.random_inputs(vec![], &random).ok()?;
    let outputs = session.run(inputs).ok()?;
    let graph = session.graph().expect("it ran").clone();
    Some((outputs, graph))
}

fn assert_close(found: &Value, expected: &Value, what: &str) {
    assert_eq!(found.shape, expected.shape, "{what}");
    let (Some(found), Some(expected)) = (found.as_f32(), expected.as_f32()) else {
        assert_eq!(found, expected, "{what}");
        return;
    };
    let largest = expected.iter().fold(1.0f32, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(expected) {
        let same = found == expected || found.is_nan() && expected.is_nan();
        assert!(
            same || (found - expected).abs() <= 1e-4 * largest,
            "{what}: {found} instead of {expected}"
        );
    }
}

#[test]
fn a_divided_graph_has_the_outputs_of_a_whole_one() {
    let refusals: [fn(&str) -> bool; 3] = [
        |op| {
            matches!(
                op,
                "rms_norm" | "layer_norm" | "softmax" | "add" | "permute"
            )
        },
        |op| {
            matches!(
                op,
                "linear" | "mat_mul" | "conv" | "silu" | "gelu" | "reshape"
            )
        },
        // Nodes with caches run where the caches are.
        |op| {
            !matches!(
                op,
                "linear" | "mat_mul" | "conv" | "attention" | "update_and_attend"
            ) && !matches!(op, "causal_conv" | "linear_attention")
        },
    ];
    let mut files = fixtures("../import/tests/fixtures/pt2", "pt2");
    files.extend(
        fixtures("../import/tests/fixtures/decoder", "gguf")
            .into_iter()
            .step_by(5),
    );
    files.extend(fixtures("tests/onnx", "onnx"));
    let (mut compared, mut divided) = (0, 0);
    for path in files {
        let cpu = Cpu::new().unwrap();
        let Some((expected, _)) = outputs(&path, &cpu, None) else {
            continue;
        };
        for refuses in refusals {
            let backend = devices(refuses);
            let (found, graph) = outputs(&path, &backend, None).expect("the CPU runs it");
            let what = path.display().to_string();
            assert_eq!(found.len(), expected.len(), "{what}");
            for ((name, found), (_, expected)) in found.iter().zip(&expected) {
                assert_close(found, expected, &format!("{what}: {name}"));
            }
            let pieces = backend.placement(&graph).unwrap();
            divided += usize::from(pieces.len() > 1);
            compared += 1;
            // Every node runs once, after what it needs.
            let mut ready: BTreeSet<TensorId> = graph.inputs().iter().copied().collect();
            let mut nodes = 0;
            for piece in &pieces {
                assert!(
                    piece.copied[0].iter().all(|id| ready.contains(id)),
                    "{what}"
                );
                ready.extend(&piece.copied[1]);
                nodes += piece.nodes.len();
            }
            assert_eq!(nodes, graph.nodes().len(), "{what}");
        }
    }
    assert!(
        compared > 150 && divided > 60,
        "{divided} of {compared} divided"
    );
}

/// A decoder of which the first device runs a part has the logits of the CPU, in every kind of cache.
#[test]
fn a_divided_decoder_runs_with_every_kind_of_cache() {
    let refuses: fn(&str) -> bool = |op| matches!(op, "rms_norm" | "silu" | "gated");
    let paths = [
        "../import/tests/fixtures/decoder/qwen3.gguf",
        "../import/tests/fixtures/pt2/decoder_llama.pt2",
        "tests/onnx/llama.onnx",
    ];
    let options = RunnerOptions {
        context: Some(16),
        ..RunnerOptions::default()
    };
    let tokens: Vec<u32> = (0..14).map(|i| (i * 7 + 3) % 32).collect();
    for path in paths {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let model = Model::open(&path, Some(16)).unwrap();
        let mut whole = Runner::new(&model, &Cpu::new().unwrap(), &options).unwrap();
        whole.feed(&tokens, |_| true).unwrap();
        let expected = Value::f32([whole.logits().len()], whole.logits().to_vec());
        let kinds = [
            CacheKind::Contiguous,
            CacheKind::Cells { sequences: 2 },
            CacheKind::Tree,
        ];
        for kind in kinds {
            let what = format!("{} in {kind:?}", path.display());
            let mut runner =
                BatchRunner::with_cache_kind(&model, &devices(refuses), &options, kind, 0).unwrap();
            let mut sequence = runner.sequence(0);
            sequence.feed(&tokens[..11], &mut |_| true).unwrap();
            sequence.feed(&tokens[11..], &mut |_| true).unwrap();
            let logits = sequence.logits().to_vec();
            assert_close(&Value::f32([logits.len()], logits), &expected, &what);
        }
    }
}

/// The GPU has a kernel for every node of every decoder, so it runs all of them whole.
#[test]
fn decoders_are_whole_on_the_gpu() {
    for path in fixtures("../import/tests/fixtures/decoder", "gguf") {
        let options = InferenceOptions {
            compile: CompileOptions {
                executor: ExecutorKind::Interpreted,
                ..CompileOptions::default()
            },
            ..InferenceOptions::default()
        };
        let Ok(session) = InferenceSession::load(&path, &Cpu::new().unwrap(), &options) else {
            continue;
        };
        let graph = session.graph().unwrap();
        let missing = graph
            .nodes()
            .iter()
            .find(|n| !Cuda::has_kernel_for(graph, n));
        let missing = missing.map(|node| (graph.node_name(node), node.op.name()));
        assert_eq!(missing, None, "{}", path.display());
    }
}
