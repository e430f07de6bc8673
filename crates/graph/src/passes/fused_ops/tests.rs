use super::{FusedKind, FusionSupport, NoFusion, fuse};
use crate::graph::{Graph, TensorId};
use crate::ops::{
    Activation, Gated, LayerNorm, Linear, Op, RmsNorm, Rope, RopeLayout, UpdateAndAttend,
};
use crate::passes::testing::{TestGraphBuilder, tokens};
use crate::{Bindings, Dim};
use base::DType;

/// The support of a backend that fuses everything.
struct Everything;

impl FusionSupport for Everything {
    fn max_products(&self) -> usize {
        3
    }

    fn shares_rows(&self, _: usize, _: usize) -> bool {
        true
    }

    fn norm(&self, _: usize, _: &Op) -> bool {
        true
    }

    fn gate(&self, _: usize) -> bool {
        true
    }

    fn residual(&self, _: usize, _: bool) -> bool {
        true
    }

    fn rotation(&self, _: usize) -> bool {
        true
    }
}

/// Three tokens.
const BINDINGS: Bindings = Bindings([3, 0, 0, 0]);

/// The ops in text form, after a check that every node is in one.
fn fused(graph: &Graph, support: &dyn FusionSupport) -> String {
    let ops = fuse(graph, &BINDINGS, support);
    let nodes: Vec<usize> = ops.iter().flat_map(|op| op.nodes.clone()).collect();
    assert!(nodes.into_iter().eq(0..graph.nodes().len()));
    let lines: Vec<String> = ops.iter().map(|op| op.text(graph) + "\n").collect();
    lines.concat()
}

fn linear(s: &mut TestGraphBuilder, name: &str, x: TensorId, n: usize) -> TensorId {
    let depth = s.shape(x).last().and_then(Dim::as_const).unwrap();
    let weight = s.weight(name, &[n, depth]);
    s.op(Linear::default(), &[x, weight])
}

fn rope(s: &mut TestGraphBuilder, x: TensorId, table: TensorId) -> TensorId {
    let layout = RopeLayout::Halves;
    s.op(Rope { layout }, &[x, table])
}

/// A layer of a decoder: attention and a gated feed-forward block.
fn layer() -> Graph {
    let mut s = TestGraphBuilder::new();
    let t = tokens(&mut s);
    let x = s.input("x", [t, 8.into()]);
    let table = s.input("table", [t, 4.into()]);
    let position = s.builder.input("position", DType::I32, [t]);
    let ones = s.weight("ones", &[8]);
    let normed = s.op(RmsNorm { eps: 1e-5 }, &[x, ones]);
    let heads = |s: &mut TestGraphBuilder, x| s.reshape(x, [t, 2.into(), 4.into()]);
    let q = linear(&mut s, "wq", normed, 8);
    let q = heads(&mut s, q);
    let k = linear(&mut s, "wk", normed, 8);
    let k = heads(&mut s, k);
    let v = linear(&mut s, "wv", normed, 8);
    let v = heads(&mut s, v);
    let (q, k) = (rope(&mut s, q, table), rope(&mut s, k, table));
    let attend = UpdateAndAttend {
        cache_id: 0,
        scale: 1.0,
        softcap: None,
    };
    let y = s.op(attend, &[q, k, v, position]);
    let y = s.reshape(y, [t, 8.into()]);
    let y = linear(&mut s, "wo", y, 8);
    let x = s.add(y, x);
    let normed = s.op(RmsNorm { eps: 1e-5 }, &[x, ones]);
    let up = linear(&mut s, "up", normed, 16);
    let gate = linear(&mut s, "gate", normed, 16);
    let function = Activation::Silu;
    let y = s.op(Gated { function }, &[gate, up]);
    let y = linear(&mut s, "down", y, 8);
    let y = s.add(x, y);
    s.finish(&[y])
}

#[test]
fn a_layer_is_five_ops() {
    let expect = "\
n2, n4, n6 = product(x) {rms_norm, linear × 3}
n7: f32[T, 2, 4] = reshape(n6)
n10: f32[T, 2, 4] = update_and_attend(n8, n9, n7, position) {cache_id: 0, scale: 1} {rotates: n8, n9}
n11: f32[T, 8] = reshape(n10)
n13 = product(n11) {linear × 1, add x}
n17 = product(n13) {rms_norm, linear × 2, gated}
n19 = product(n17) {linear × 1, add n13}
";
    let graph = layer();
    assert_eq!(fused(&graph, &Everything), expect);
    let alone = fuse(&graph, &BINDINGS, &NoFusion);
    assert!(alone.iter().all(|op| op.nodes.len() == 1));
    let products = alone
        .iter()
        .filter(|op| matches!(op.kind, FusedKind::Product(_)));
    assert_eq!(products.count(), 7);
}

/// A backend without one kernel.
struct Without(fn(&str) -> bool);

impl FusionSupport for Without {
    fn max_products(&self) -> usize {
        if self.0("products") { 1 } else { 3 }
    }

    fn shares_rows(&self, _: usize, _: usize) -> bool {
        true
    }

    fn norm(&self, _: usize, _: &Op) -> bool {
        !self.0("norm")
    }

    fn gate(&self, _: usize) -> bool {
        !self.0("gate")
    }

    fn residual(&self, _: usize, gated: bool) -> bool {
        !gated && !self.0("residual")
    }

    fn rotation(&self, operand: usize) -> bool {
        operand == 1 || !self.0("queries")
    }
}

#[test]
fn a_backend_says_what_it_cannot() {
    let graph = layer();
    for (without, expect) in [
        (
            (|what| what == "products") as fn(&str) -> bool,
            "n2 = product(n1) {linear × 1}\n",
        ),
        (
            |what| what == "norm",
            "n2, n4, n6 = product(n1) {linear × 3}\n",
        ),
        (
            |what| what == "gate",
            "n15, n16 = product(n13) {rms_norm, linear × 2}\n",
        ),
        (
            |what| what == "residual",
            "n12 = product(n11) {linear × 1}\n",
        ),
        (|what| what == "queries", "{rotates: n9}\n"),
    ] {
        let text = fused(&graph, &Without(without));
        assert!(text.contains(expect), "{expect}{text}");
    }
}

#[test]
fn what_others_read_is_stored() {
    let mut s = TestGraphBuilder::new();
    let t = tokens(&mut s);
    let x = s.input("x", [t, 8.into()]);
    let (ones, zeros) = (s.weight("ones", &[8]), s.weight("zeros", &[8]));
    let normed = s.op(LayerNorm { eps: 1e-5 }, &[x, ones, zeros]);
    let a = linear(&mut s, "a", normed, 8);
    let b = linear(&mut s, "b", normed, 8);
    let function = Activation::Relu;
    let gated = s.op(Gated { function }, &[a, b]);
    // A row that is added to all rows is no residual.
    let c = linear(&mut s, "c", gated, 8);
    let shifted = s.add(c, ones);
    let expect = "\
n1: f32[T, 8] = layer_norm(x, ones, zeros) {eps: 1e-5}
n2, n3 = product(n1) {linear × 2}
n4: f32[T, 8] = gated(n2, n3) {function: relu}
n5 = product(n4) {linear × 1}
n6: f32[T, 8] = add(n5, ones)
";
    assert_eq!(fused(&s.finish(&[normed, a, shifted]), &Everything), expect);
}

/// A sum may overwrite its residual, while other threads still read the product's rows.
#[test]
fn rows_are_no_residual_of_their_product() {
    let mut s = TestGraphBuilder::new();
    let t = tokens(&mut s);
    let x = s.input("x", [t, 8.into()]);
    let ones = s.weight("ones", &[8]);
    let a = linear(&mut s, "a", x, 8);
    let sum = s.add(a, x);
    let normed = s.op(RmsNorm { eps: 1e-5 }, &[sum, ones]);
    let b = linear(&mut s, "b", normed, 8);
    let sum = s.add(b, sum);
    let expect = "\
n1 = product(x) {linear × 1}
n2: f32[T, 8] = add(n1, x)
n3: f32[T, 8] = rms_norm(n2, ones) {eps: 1e-5}
n5 = product(n3) {linear × 1, add n2}
";
    assert_eq!(fused(&s.finish(&[sum]), &Everything), expect);
}

/// Attention rotates its keys from where they are: nothing between may overwrite them.
#[test]
fn a_rotation_waits_only_if_its_operand_does() {
    for shares_values in [false, true] {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let x = s.input("x", [t, 2.into(), 4.into()]);
        let table = s.input("table", [t, 4.into()]);
        let position = s.builder.input("position", DType::I32, [t]);
        let ones = s.weight("ones", &[4]);
        let keys = s.op(RmsNorm { eps: 1e-5 }, &[x, ones]);
        let k = rope(&mut s, keys, table);
        let from = if shares_values { keys } else { x };
        let v = s.op(RmsNorm { eps: 1e-6 }, &[from, ones]);
        let attend = UpdateAndAttend {
            cache_id: 0,
            scale: 1.0,
            softcap: None,
        };
        let y = s.op(attend, &[x, k, v, position]);
        let text = fused(&s.finish(&[y]), &Everything);
        assert_eq!(text.contains("rotates: n2"), !shares_values, "{text}");
    }
}
