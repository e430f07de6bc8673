//! Static buffers as tensors, driven by the index stream.

use crate::support::{beside, exact, feed, largest_difference, model, static_decoder};
use kvark::cache::{Cache, CacheConfig, make_scatter_session};
use kvark::inference::{Data, ModuleOptions, Value};
use kvark::{Cpu, Module, Runner};

const IDS: [u32; 9] = [3, 14, 15, 9, 26, 5, 3, 5, 8];

fn rows(logits: &[f32], from: usize, count: usize) -> &[f32] {
    let vocab = 32;
    &logits[from * vocab..(from + count) * vocab]
}

/// Buffers as tensors, and the runner's cache, agree.
#[test]
fn the_literal_form_agrees_with_the_runner() {
    for name in ["llama", "qwen3", "mistral_bias"] {
        let path = beside().join(format!("{name}.onnx"));
        let mut decoder = static_decoder(&path, 1);
        let mut found = feed(&mut decoder, &[&IDS[..5]]).unwrap();
        for id in &IDS[5..] {
            found.extend(feed(&mut decoder, &[&[*id]]).unwrap());
        }
        let model = model(&path);
        let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &exact()).unwrap();
        let mut truth = vec![];
        let keep = |_: usize, row: &[f32]| {
            truth.extend_from_slice(row);
            true
        };
        runner.feed_all_logits(&IDS, keep).unwrap();
        assert!(largest_difference(&found, &truth) < 1e-4, "{name}");
    }
}

/// Two sequences of different lengths, one padded, give the results of each alone, also after a rewind of one.
#[test]
fn sequences_of_unlike_lengths() {
    let path = beside().join("mistral_bias.onnx");
    let mut alone = static_decoder(&path, 1);
    let first = feed(&mut alone, &[&IDS[..6]]).unwrap();
    let mut alone = static_decoder(&path, 1);
    let second = feed(&mut alone, &[&[7, 7, 1, 2]]).unwrap();

    let mut both = static_decoder(&path, 2);
    let step = feed(&mut both, &[&IDS[..4], &[7, 7]]).unwrap();
    assert!(largest_difference(rows(&step, 0, 4), rows(&first, 0, 4)) < 1e-5);
    assert!(largest_difference(rows(&step, 4, 2), rows(&second, 0, 2)) < 1e-5);
    feed(&mut both, &[&[30, 31], &[30, 31]]).unwrap();
    both.rewind(0, 4).unwrap();
    both.rewind(1, 2).unwrap();
    let step = feed(&mut both, &[&IDS[4..6], &[1, 2]]).unwrap();
    assert!(largest_difference(rows(&step, 0, 2), rows(&first, 4, 2)) < 1e-5);
    assert!(largest_difference(rows(&step, 2, 2), rows(&second, 2, 2)) < 1e-5);
}

#[test]
fn overflow_names_the_numbers() {
    let path = beside().join("llama.onnx");
    let mut decoder = static_decoder(&path, 1);
    feed(&mut decoder, &[&[1; 15]]).unwrap();
    let before = decoder.buffers().to_vec();
    let error = feed(&mut decoder, &[&[1; 2]]).unwrap_err();
    assert_eq!(
        error,
        "sequence 0 needs 17 rows, and static buffers have a max_seq_len of 16"
    );
    assert!(decoder.buffers() == before);
    feed(&mut decoder, &[&[1]]).unwrap();

    let model = model(&path);
    let mut runner_options = exact();
    let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
    runner.feed(&[1; 15], |_| true).unwrap();
    let error = runner.feed(&[1; 2], |_| true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the prompt has 2 tokens, and the context has room for 1 of its 16"
    );
    runner_options.context = Some(17);
    let error = Runner::new(&model, &Cpu::new().unwrap(), &runner_options)
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "a context of 17 tokens is not possible: the model's buffers and tables have 16 rows"
    );
}

/// Rows that are not valid are never read, whatever they contain.
#[test]
fn stale_rows_may_hold_anything() {
    for name in ["llama", "mistral_bias"] {
        let path = beside().join(format!("{name}.onnx"));
        let run = |stale: f32| {
            let mut decoder = static_decoder(&path, 1);
            for (_, buffer) in decoder.buffers() {
                let Data::F32(elements) = &mut buffer.data else {
                    unreachable!("caches are f32")
                };
                elements.fill(stale);
            }
            let mut logits = feed(&mut decoder, &[&IDS[..4]]).unwrap();
            logits.extend(feed(&mut decoder, &[&[9]]).unwrap());
            logits
        };
        let clean = run(0.0);
        for stale in [1e30, f32::INFINITY, f32::NAN] {
            assert_eq!(run(stale), clean, "{name} with {stale}");
        }
    }
}

/// The same for rows of a session that are removed by a rewind: NaN rows that a graph stored have no effect.
#[test]
fn forgotten_rows_may_hold_anything() {
    use graph::ops::UpdateAndAttend;
    let mut b = graph::GraphBuilder::new("forward");
    let t = b.symbol("T");
    let x = b.input("x", kvark::inference::DType::F32, [t, 1.into(), 4.into()]);
    let position = b.input("position", kvark::inference::DType::I32, [t]);
    let attend = UpdateAndAttend {
        cache_id: 0,
        scale: 1.0,
        softcap: None,
    };
    let y = b.node("y", attend, &[x, x, x, position]).unwrap();
    let graph = b.finish(&[y]).unwrap();
    let layer = kvark::cache::LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window: None,
        sinks: 0,
    };
    let cpu = Cpu::new().unwrap();
    let config = CacheConfig::uniform(8, 1, layer);
    let (session, backend) = make_scatter_session(Cpu::ID, &config, 1).unwrap();
    let options = kvark::inference::InferenceOptions {
        backend,
        ..Default::default()
    };
    let mut run = kvark::InferenceSession::from_graph(graph, &cpu, &options).unwrap();
    let mut step = |from: i32, rows: &[f32]| {
        let n = rows.len();
        let x = rows.iter().flat_map(|x| [*x; 4]).collect();
        let positions = (from..from + n as i32).collect();
        let inputs = [
            ("x", Value::f32([n, 1, 4], x)),
            ("position", Value::i32([n], positions)),
        ];
        run.run(inputs).unwrap()[0].1.as_f32().unwrap().to_vec()
    };
    step(0, &[0.5, 0.25]);
    let clean = step(2, &[1.0]);
    session.rewind(2).unwrap();
    step(2, &[f32::NAN, f32::INFINITY, f32::NAN]);
    session.rewind(2).unwrap();
    assert_eq!(step(2, &[1.0]), clean);
    let _: Option<(Module, ModuleOptions)> = None;
    assert_eq!(session.with(|index| index.len()).unwrap(), 3);
}
