//! The whole pipeline on blocks as `torch.export` spells them.

use super::optimise;
use super::testing::{TestGraphBuilder, after, op_counts, tokens};
use crate::graph::{Graph, TensorId};
use crate::ops::{
    Activation, Attention, Binary, BinaryFunction, Cast, Compare, CompareFunction, Concat, Expand,
    GatherRows, LayerNorm, MatMul, Op, Permute, Range, Reduce, ReduceFunction, Reshape, RmsNorm,
    Scale, Slice, Softmax, Triangle, Unary, UnaryFunction, UpdateAndAttend, Where,
};
use crate::{Dim, GraphError, Value};
use base::DType;
use proptest::prelude::*;

fn everything(graph: &mut Graph) -> Result<bool, GraphError> {
    optimise(graph).map(|()| true)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Spelling {
    Fused,
    Softmax,
    ByHand,
}

/// The transformer block of the seed, with attention in one of three spellings.
fn block(spelling: Spelling) -> Graph {
    let (heads, dim, width) = (2usize, 4usize, 8usize);
    let mut s = TestGraphBuilder::new();
    let t = tokens(&mut s);
    let x = s.input("x", [Dim::from(2), t, width.into()]);
    let norm = |s: &mut TestGraphBuilder, name: &str, x: TensorId| {
        let weight = s.weight(&format!("{name}.weight"), &[width]);
        let bias = s.weight(&format!("{name}.bias"), &[width]);
        s.op(LayerNorm { eps: 1e-5 }, &[x, weight, bias])
    };
    let normed = norm(&mut s, "norm1", x);
    let mut split = |name: &str| {
        let y = s.linear(name, normed, width, true);
        let y = s.reshape(y, [2.into(), t, heads.into(), dim.into()]);
        s.permute(y, &[0, 2, 1, 3])
    };
    let (q, k, v) = (split("q"), split("k"), split("v"));
    let attended = match spelling {
        Spelling::Fused => {
            let op = Attention {
                scale: 0.5,
                causal: false,
                softcap: None,
                token_major: false,
            };
            s.op(op, &[q, k, v])
        }
        _ => {
            let k = s.transpose(k);
            let scores = s.mat_mul(q, k);
            let two = s.number(2.0);
            let scores = s.binary(BinaryFunction::Div, scores, two);
            let weights = match spelling {
                Spelling::ByHand => {
                    let max = s.reduce(ReduceFunction::Max, scores);
                    let around = s.binary(BinaryFunction::Sub, scores, max);
                    let weight = s.unary(UnaryFunction::Exp, around);
                    let sum = s.reduce(ReduceFunction::Sum, weight);
                    s.binary(BinaryFunction::Div, weight, sum)
                }
                _ => s.softmax(scores),
            };
            s.mat_mul(weights, v)
        }
    };
    let joined = s.permute(attended, &[0, 2, 1, 3]);
    let joined = s.reshape(joined, [2.into(), t, width.into()]);
    let mixed = s.linear("o", joined, width, true);
    let x = s.add(x, mixed);
    let normed = norm(&mut s, "norm2", x);
    let up = s.linear("up", normed, 16, true);
    let up = s.unary(Activation::Relu, up);
    let down = s.linear("down", up, width, true);
    let y = s.add(x, down);
    s.finish(&[y])
}

#[test]
fn three_spellings_end_as_one_attention() {
    let expect = [
        ("add", 2),
        ("attention", 1),
        ("layer_norm", 2),
        ("linear", 6),
    ];
    let expect = expect.map(|(name, count)| (name.to_owned(), count));
    for spelling in [Spelling::Fused, Spelling::Softmax, Spelling::ByHand] {
        let text = after(block(spelling), everything);
        assert_eq!(op_counts(&text), expect, "{spelling:?}\n{text}");
        assert!(
            text.contains("attention(") && text.contains("{scale: 0.5, token_major}"),
            "{text}"
        );
        assert!(text.contains("{activation: relu}"), "{text}");
    }
}

/// A Llama as `torch.export` writes it around the cache op; norms and gates spelled out or not.
fn llama(layers: usize, spelled_out: bool) -> Graph {
    let (heads, kv_heads, dim, width) = (4usize, 2usize, 8usize, 32usize);
    let mut s = TestGraphBuilder::new();
    let t = tokens(&mut s);
    let r = s.builder.symbol("R");
    let ids = s.builder.input("tokens", DType::I64, [t]);
    let position = s.builder.input("position", DType::I64, [t, 1.into()]);
    let rows = s.builder.input("rows", DType::I32, [r]);
    let table = s.weight("embed", &[16, width]);
    let x = s.op(GatherRows, &[table, ids]);
    let mut x = s.reshape(x, [1.into(), t, width.into()]);

    let frequency = s.weight("inv_freq", &[dim / 2]);
    let norm = |s: &mut TestGraphBuilder, name: &str, x: TensorId| {
        let weight = s.weight(name, &[width]);
        if !spelled_out {
            return s.op(RmsNorm { eps: 1e-5 }, &[x, weight]);
        }
        let x = s.op(Cast { to: DType::F32 }, &[x]);
        let square = s.power(x, 2.0);
        let mean = s.reduce(ReduceFunction::Mean, square);
        let root = s.plus(mean, 1e-5);
        let inverse = s.unary(UnaryFunction::Rsqrt, root);
        let normed = s.mul(x, inverse);
        s.mul(weight, normed)
    };
    for layer in 0..layers {
        let angle = s.op(Cast { to: DType::F32 }, &[position]);
        let angle = s.mul(angle, frequency);
        let angle = s.op(Concat { axis: 1 }, &[angle, angle]);
        let (cos, sin) = (
            s.unary(UnaryFunction::Cos, angle),
            s.unary(UnaryFunction::Sin, angle),
        );
        let rotated = |s: &mut TestGraphBuilder, x: TensorId| {
            let kept = s.mul(x, cos);
            let second = s.slice(x, 3, dim / 2, dim / 2);
            let second = s.unary(UnaryFunction::Neg, second);
            let first = s.slice(x, 3, 0, dim / 2);
            let turned = s.op(Concat { axis: 3 }, &[second, first]);
            let turned = s.mul(turned, sin);
            s.add(kept, turned)
        };
        let split = |s: &mut TestGraphBuilder, name: &str, x: TensorId, heads: usize| {
            let y = s.linear(&format!("{layer}.{name}"), x, heads * dim, false);
            let y = s.reshape(y, [1.into(), t, heads.into(), dim.into()]);
            s.permute(y, &[0, 2, 1, 3])
        };
        // What lowering makes of the cache op, which takes [1, H, T, D].
        let by_token = |s: &mut TestGraphBuilder, x: TensorId, heads: usize| {
            let x = s.permute(x, &[0, 2, 1, 3]);
            s.reshape(x, [t, heads.into(), dim.into()])
        };
        let normed = norm(&mut s, &format!("{layer}.norm1"), x);
        let q = split(&mut s, "q", normed, heads);
        let q = rotated(&mut s, q);
        let k = split(&mut s, "k", normed, kv_heads);
        let k = rotated(&mut s, k);
        let v = split(&mut s, "v", normed, kv_heads);
        let op = UpdateAndAttend {
            cache_id: layer as u32,
            scale: 0.35,
            softcap: None,
        };
        let operands = [
            by_token(&mut s, q, heads),
            by_token(&mut s, k, kv_heads),
            by_token(&mut s, v, kv_heads),
            position,
        ];
        let attended = s.op(op, &operands);
        let attended = s.reshape(attended, [1.into(), t, heads.into(), dim.into()]);
        let attended = s.permute(attended, &[0, 2, 1, 3]);
        let attended = s.permute(attended, &[0, 2, 1, 3]);
        let attended = s.reshape(attended, [1.into(), t, width.into()]);
        let mixed = s.linear(&format!("{layer}.o"), attended, width, false);
        x = s.add(x, mixed);
        let normed = norm(&mut s, &format!("{layer}.norm2"), x);
        let gate = s.linear(&format!("{layer}.gate"), normed, 48, false);
        let gate = match spelled_out {
            true => {
                let sigmoid = s.unary(Activation::Sigmoid, gate);
                s.mul(gate, sigmoid)
            }
            false => s.silu(gate),
        };
        let up = s.linear(&format!("{layer}.up"), normed, 48, false);
        let inner = s.mul(gate, up);
        let down = s.linear(&format!("{layer}.down"), inner, width, false);
        x = s.add(x, down);
    }
    let normed = norm(&mut s, "norm", x);
    let logits = s.linear("head", normed, 16, false);
    let logits = s.reshape(logits, [t, 16.into()]);
    let y = s.op(GatherRows, &[logits, rows]);
    s.finish(&[y])
}

#[test]
fn an_exported_llama_ends_as_the_decoder_builder_s_ops() {
    for spelled_out in [false, true] {
        let text = after(llama(2, spelled_out), everything);
        let expect = [
            ("add", 4),
            ("gated", 2),
            ("gather_rows", 2),
            ("linear", 15),
            ("rms_norm", 5),
            ("rope", 4),
            ("rope_table", 1),
            ("update_and_attend", 2),
        ];
        let expect = expect.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(op_counts(&text), expect, "\n{text}");
        let chosen = text
            .find("gather_rows(")
            .and_then(|_| text.rfind("gather_rows("));
        assert!(
            chosen < text.rfind("rms_norm("),
            "rows are chosen before the head\n{text}"
        );
    }
}

/// One step of a random graph: which op, on which of the tensors so far, with what attribute.
type Step = (u8, prop::sample::Index, prop::sample::Index, u8);

/// A graph of whatever ops take the tensors that the steps point at.
fn random_graph(steps: &[Step]) -> Graph {
    let mut s = TestGraphBuilder::new();
    let t = tokens(&mut s);
    let mut all = vec![
        s.input("x", [2.into(), t, 4.into()]),
        s.input("y", [2.into(), t, 4.into()]),
        s.weight("w", &[4, 4]),
        s.weight("b", &[4]),
        s.number(0.5),
    ];
    for (i, (kind, first, second, attribute)) in steps.iter().enumerate() {
        let (a, b) = (*first.get(&all), *second.get(&all));
        let shape = s.shape(a);
        let rank = shape.len();
        let axis = rank.saturating_sub(1);
        let op: Op = match kind % 14 {
            0 => Binary {
                function: BinaryFunction::Add,
            }
            .into(),
            1 => Binary {
                function: BinaryFunction::Mul,
            }
            .into(),
            2 => Binary {
                function: BinaryFunction::Sub,
            }
            .into(),
            3 => Unary {
                function: Activation::ALL[*attribute as usize % 6].into(),
            }
            .into(),
            4 => Unary {
                function: UnaryFunction::Neg,
            }
            .into(),
            5 => {
                let mut axes: Vec<usize> = (0..rank).collect();
                axes.rotate_left(*attribute as usize % rank.max(1));
                if rank >= 2 && attribute & 8 != 0 {
                    axes.swap(0, 1);
                }
                Permute { axes }.into()
            }
            6 if rank >= 2 => Permute::transpose(rank).into(),
            7 => {
                let mut shape = shape.clone();
                match attribute % 3 {
                    0 => shape.insert(0, Dim::from(1)),
                    1 if shape.first() == Some(&Dim::from(1)) => drop(shape.remove(0)),
                    _ if rank >= 2 && shape[0].as_const().is_some() => {
                        let n = shape.remove(0).as_const().unwrap();
                        shape[0] = shape[0] * n;
                    }
                    _ => {}
                }
                Reshape { shape }.into()
            }
            8 => MatMul {
                transpose_b: attribute % 2 == 0,
                alpha: 0.5,
            }
            .into(),
            9 => Softmax { axis, log: false }.into(),
            10 => {
                let functions = [
                    ReduceFunction::Mean,
                    ReduceFunction::Max,
                    ReduceFunction::Sum,
                ];
                let function = functions[*attribute as usize % 3];
                Reduce {
                    function,
                    axes: vec![axis],
                    keep: true,
                }
                .into()
            }
            11 if shape.last().is_some_and(|d| d.as_const().is_some()) => {
                let (start, len) = (Dim::from(*attribute as usize % 3), Dim::from(2));
                Slice {
                    axis,
                    start,
                    len,
                    step: 1,
                }
                .into()
            }
            12 => Concat { axis }.into(),
            _ => Scale {
                factor: f32::from(*attribute) / 64.0,
            }
            .into(),
        };
        let binary = matches!(op, Op::Binary(_) | Op::MatMul(_) | Op::Concat(_));
        let inputs = if binary { vec![a, b] } else { vec![a] };
        all.extend(s.builder.node(&format!("r{i}"), op, &inputs));
    }
    let outputs = [all[all.len() - 1], all[all.len() / 2]];
    s.finish(&outputs)
}

/// Attention with a random mask: integers and bools of `T`, 1 or 4 rows and columns, combined in all ways that masks are.
fn random_mask(steps: &[Step], keys: bool) -> Graph {
    let mut s = TestGraphBuilder::new();
    let t = tokens(&mut s);
    let four = Dim::from(4);
    let queries = s.input("q", [2.into(), t, 4.into()]);
    let keys = match keys {
        true => s.input("k", [2.into(), four, 4.into()]),
        false => queries,
    };
    let range = |s: &mut TestGraphBuilder, start: usize, len: Dim| {
        let op = Range {
            start: start.into(),
            step: 1,
            len,
            dtype: DType::I64,
        };
        s.op(op, &[])
    };
    let columns = s.shape(keys)[1];
    let zero = s.value(&Value::i64([], vec![0]));
    let two = s.value(&Value::i64([], vec![2]));
    let low = s.number(f32::NEG_INFINITY);
    let none = s.number(0.0);
    let only_first = (0..4).map(|column| column == 0).collect();
    let first = s.value(&Value::bool([1, 4], only_first));
    let lower = (0..16).map(|at| at % 4 <= at / 4).collect();
    let lower = s.value(&Value::bool([4, 4], lower));
    let mut all = vec![
        range(&mut s, 0, t),
        range(&mut s, 0, columns),
        range(&mut s, 1, columns),
        zero,
        two,
        low,
        none,
        first,
        lower,
    ];
    for i in [0, 1] {
        let len = s.shape(all[i])[0];
        let row = s.reshape(all[i], [len, 1.into()]);
        all.push(row);
    }
    let mut masks = vec![];
    for (i, (kind, first, second, attribute)) in steps.iter().enumerate() {
        let (a, b) = (*first.get(&all), *second.get(&all));
        let (shape, dtype) = (s.shape(a), s.builder.ty(a).dtype);
        let rank = shape.len();
        let axis = *attribute as usize % rank.max(1);
        let step = |start: usize, len: Dim| Slice {
            axis,
            start: start.into(),
            len,
            step: 1,
        };
        let compare = [
            CompareFunction::Le,
            CompareFunction::Lt,
            CompareFunction::Ge,
            CompareFunction::Gt,
            CompareFunction::Eq,
            CompareFunction::Ne,
        ];
        let logic = [BinaryFunction::And, BinaryFunction::Or, BinaryFunction::Xor];
        let sums = [
            BinaryFunction::Add,
            BinaryFunction::Sub,
            BinaryFunction::Mul,
        ];
        let third = all[(*attribute as usize + i) % all.len()];
        let (op, inputs): (Op, Vec<TensorId>) = match kind % 14 {
            0..3 => {
                let function = compare[*attribute as usize % 6];
                (Compare { function }.into(), vec![a, b])
            }
            3 | 4 if dtype == DType::Bool => {
                let function = logic[*attribute as usize % 3];
                (Binary { function }.into(), vec![a, b])
            }
            3 | 4 => {
                let function = sums[*attribute as usize % 3];
                (Binary { function }.into(), vec![a, b])
            }
            5 if dtype == DType::Bool => {
                let function = UnaryFunction::Not;
                (Unary { function }.into(), vec![a])
            }
            5 => {
                let function = UnaryFunction::Neg;
                (Unary { function }.into(), vec![a])
            }
            6 => {
                let mut shape = shape.clone();
                match attribute % 2 {
                    0 => shape.insert(axis, Dim::from(1)),
                    _ => shape.retain(|dim| *dim != Dim::from(1)),
                }
                (Reshape { shape }.into(), vec![a])
            }
            7 if rank >= 2 => (Permute::transpose(rank).into(), vec![a]),
            8 if rank >= 1 && attribute & 4 == 0 => (step(0, 1.into()).into(), vec![a]),
            8 if rank >= 1 && shape[axis] == four => (step(1, 1.into()).into(), vec![a]),
            9 if rank >= 2 => {
                let op = Triangle {
                    upper: attribute & 1 == 0,
                    diagonal: i64::from(*attribute % 4) - 1,
                };
                (op.into(), vec![a])
            }
            10 => (Where.into(), vec![a, b, third]),
            11 => {
                let to = [DType::Bool, DType::I64, DType::F32][*attribute as usize % 3];
                (Cast { to }.into(), vec![a])
            }
            12 if rank >= 1 => (Concat { axis }.into(), vec![a, b]),
            _ => {
                let shape = vec![t, columns];
                (Expand { shape }.into(), vec![a])
            }
        };
        let Ok(id) = s.builder.node(&format!("r{i}"), op, &inputs) else {
            continue;
        };
        all.push(id);
        let attention = Attention {
            scale: 1.0,
            causal: false,
            softcap: None,
            token_major: false,
        };
        let operands = [queries, keys, keys, id];
        masks.extend(s.builder.node(&format!("m{i}"), attention, &operands));
    }
    masks.push(queries);
    s.finish(&masks)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// A mask that a pass replaces by a flag hides what it did.
    #[test]
    fn random_masks_keep_what_they_hide(
        steps in prop::collection::vec(any::<Step>(), 1..16),
        keys in any::<bool>(),
    ) {
        after(random_mask(&steps, keys), everything);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Every pass keeps what random graphs compute.
    #[test]
    fn random_graphs_keep_their_results(
        steps in prop::collection::vec(any::<Step>(), 1..30),
    ) {
        after(random_graph(&steps), everything);
    }
}
