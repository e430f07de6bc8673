//! Recognises causal masks by symbolic evaluation and replaces them by the `causal` flag of attention.

mod mask_value;

use super::fuse_chain::MASKED_SCORE;
use super::rewrite::{GraphView, Patch, PatchBuilder, rewrite};
use crate::GraphError;
use crate::graph::{Graph, Node};
use crate::ops::{Attention, Op};
use mask_value::{IndexExpr, MaskValue, Predicate};

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, |view, node| match &node.op {
        Op::Attention(op) => absorbed(view, node, op),
        _ => None,
    })
}

/// Removes a mask that hides nothing, and replaces a causal mask by the flag.
fn absorbed(view: &GraphView<'_>, node: &Node, op: &Attention) -> Option<Patch> {
    let &[q, k, v, mask] = &node.inputs[..] else {
        return None;
    };
    let seen = match MaskValue::of(view, mask)? {
        MaskValue::Predicate(truth) => truth,
        MaskValue::TwoValued { truth, yes, no } if yes == 0.0 && no <= MASKED_SCORE => truth,
        MaskValue::TwoValued { truth, yes, no } if no == 0.0 && yes <= MASKED_SCORE => truth.not(),
        MaskValue::TwoValued { yes, no, .. } if yes == 0.0 && no == 0.0 => Predicate::Always,
        _ => return None,
    };
    let causal = match seen {
        Predicate::Always => op.causal,
        // Column − row ≤ 0.
        Predicate::AtMostZero(affine)
            if affine == IndexExpr::axis(0, 1) + IndexExpr::axis(1, -1) =>
        {
            true
        }
        _ => return None,
    };
    PatchBuilder::new(view, node).replace(
        Attention {
            causal,
            ..op.clone()
        },
        &[q, k, v],
    )
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::graph::{Graph, TensorId};
    use crate::ops::{
        Attention, BinaryFunction, Cast, CompareFunction, Concat, CumSum, Fill, Index, Range,
        Scalar, Slice, Triangle, UnaryFunction, Where,
    };
    use crate::passes::testing::{TestGraphBuilder, after, tokens};
    use crate::{Dim, Value};
    use base::DType;

    /// Attention with a mask for `T` queries and keys.
    fn masked(mask: impl Fn(&mut TestGraphBuilder, Dim) -> TensorId) -> Graph {
        let mut s = TestGraphBuilder::new();
        let t = tokens(&mut s);
        let x = s.input("x", [2.into(), t, 4.into()]);
        let mask = mask(&mut s, t);
        let op = Attention {
            scale: 1.0,
            causal: false,
            softcap: None,
            token_major: false,
        };
        let y = s.op(op, &[x, x, x, mask]);
        s.finish(&[y])
    }

    fn range(s: &mut TestGraphBuilder, len: Dim) -> TensorId {
        let (start, step, dtype) = (Dim::from(0), 1, DType::I64);
        s.op(
            Range {
                start,
                step,
                len,
                dtype,
            },
            &[],
        )
    }

    fn fill(s: &mut TestGraphBuilder, value: Scalar, dtype: DType, t: Dim) -> TensorId {
        let shape = vec![t, t];
        s.op(
            Fill {
                value,
                shape,
                dtype,
            },
            &[],
        )
    }

    /// A constant of 16 by 16, cut to the tokens there are.
    fn cut(s: &mut TestGraphBuilder, value: &Value, t: Dim) -> TensorId {
        let constant = s.value(value);
        let slice = |axis| Slice {
            axis,
            start: 0.into(),
            len: t,
            step: 1,
        };
        let rows = s.op(slice(0), &[constant]);
        s.op(slice(1), &[rows])
    }

    fn places() -> impl Iterator<Item = (usize, usize)> {
        (0..16).flat_map(|row| (0..16).map(move |column| (row, column)))
    }

    const CAUSAL: &str = "\
graph g(x: f32[2, T, 4])
  NODE: f32[2, T, 4] = attention(x, x, x) {scale: 1, causal}
  return NODE
";

    fn expect_causal(mask: impl Fn(&mut TestGraphBuilder, Dim) -> TensorId) {
        let text = after(masked(mask), run);
        let name = text.lines().last().unwrap().trim_start_matches("  return ");
        assert_eq!(text, CAUSAL.replace("NODE", name));
    }

    #[test]
    fn constants_of_both_forms() {
        expect_causal(|s, t| {
            let lower = places().map(|(row, column)| column <= row).collect();
            cut(s, &Value::bool([16, 16], lower), t)
        });
        expect_causal(|s, t| {
            let hidden = |(row, column)| if column > row { f32::NEG_INFINITY } else { 0.0 };
            cut(s, &Value::f32([16, 16], places().map(hidden).collect()), t)
        });
    }

    #[test]
    fn expressions_of_every_kind() {
        // arange(T)[:, None] >= arange(T), as a truth.
        expect_causal(|s, t| {
            let (row, column) = (range(s, t), range(s, t));
            let row = s.reshape(row, [t, 1.into()]);
            s.compare(CompareFunction::Ge, row, column)
        });
        // where(column > row, min, 0), for one batch and all heads.
        expect_causal(|s, t| {
            let (row, column) = (range(s, t), range(s, t));
            let row = s.reshape(row, [t, 1.into()]);
            let future = s.compare(CompareFunction::Gt, column, row);
            let (low, zero) = (s.number(f32::MIN), s.number(0.0));
            let mask = s.op(Where, &[future, low, zero]);
            s.reshape(mask, [1.into(), t, t])
        });
        // tril(ones(T, T)).bool() and triu(full(-inf), 1).
        expect_causal(|s, t| {
            let ones = fill(s, Scalar::F32(1.0), DType::F32, t);
            let lower = Triangle {
                upper: false,
                diagonal: 0,
            };
            let lower = s.op(lower, &[ones]);
            s.op(Cast { to: DType::Bool }, &[lower])
        });
        expect_causal(|s, t| {
            let low = fill(s, Scalar::F32(f32::NEG_INFINITY), DType::F32, t);
            let upper = Triangle {
                upper: true,
                diagonal: 1,
            };
            s.op(upper, &[low])
        });
        // (1 - tril) * -1e9, and not(triu(ones, 1)) and everything.
        expect_causal(|s, t| {
            let ones = fill(s, Scalar::F32(1.0), DType::F32, t);
            let lower = s.op(
                Triangle {
                    upper: false,
                    diagonal: 0,
                },
                &[ones],
            );
            let one = s.number(1.0);
            let hidden = s.binary(BinaryFunction::Sub, one, lower);
            s.times(hidden, -1e9)
        });
        expect_causal(|s, t| {
            let all = fill(s, Scalar::Bool(true), DType::Bool, t);
            let upper = s.op(
                Triangle {
                    upper: true,
                    diagonal: 1,
                },
                &[all],
            );
            let lower = s.unary(UnaryFunction::Not, upper);
            s.binary(BinaryFunction::And, all, lower)
        });
    }

    /// Hugging Face's mask: causal within a run of consecutive positions. Here there is one run.
    #[test]
    fn a_causal_mask_that_looks_for_gaps() {
        expect_causal(|s, t| {
            let position = range(s, t);
            let position = s.reshape(position, [1.into(), t]);
            let one = s.value(&Value::i64([], vec![1]));
            let first = s.slice(position, 1, 0, 1);
            let before = s.binary(BinaryFunction::Sub, first, one);
            let with_before = s.op(Concat { axis: 1 }, &[before, position]);
            let part = |start: usize| Slice {
                axis: 1,
                start: start.into(),
                len: t,
                step: 1,
            };
            let (next, last) = (s.op(part(1), &[with_before]), s.op(part(0), &[with_before]));
            let step = s.binary(BinaryFunction::Sub, next, last);
            let gap = s.compare(CompareFunction::Ne, step, one);
            let gap = s.op(Cast { to: DType::I64 }, &[gap]);
            let part_of = s.op(CumSum { axis: 1 }, &[gap]);
            let (row, column) = (s.reshape(position, [t, 1.into()]), range(s, t));
            let zero = s.value(&Value::i64([], vec![0]));
            let row_part = s.op(Index, &[part_of, zero, row]);
            let column_part = s.op(Index, &[part_of, zero, column]);
            let together = s.compare(CompareFunction::Eq, row_part, column_part);
            let past = s.compare(CompareFunction::Le, column, row);
            s.binary(BinaryFunction::And, past, together)
        });
    }

    fn expect_masked(mask: impl Fn(&mut TestGraphBuilder, Dim) -> TensorId) {
        let text = after(masked(mask), run);
        assert!(
            !text.contains("causal") && text.contains("(x, x, x, "),
            "{text}"
        );
    }

    /// One row for all queries is the same for each of them.
    #[test]
    fn rows_that_are_broadcast_are_not_causal() {
        // attn_mask = [[True, False, False, ...]].
        let first = || (0..16).map(|column| column == 0).collect::<Vec<_>>();
        expect_masked(|s, t| {
            let row = s.value(&Value::bool([1, 16], first()));
            s.op(
                Slice {
                    axis: 1,
                    start: 0.into(),
                    len: t,
                    step: 1,
                },
                &[row],
            )
        });
        // arange(T) <= arange(T)[:1], and the same of rows.
        expect_masked(|s, t| {
            let column = range(s, t);
            let first = s.slice(column, 0, 0, 1);
            s.compare(CompareFunction::Le, column, first)
        });
        expect_masked(|s, t| {
            let (row, column) = (range(s, 1.into()), range(s, t));
            let row = s.reshape(row, [1, 1].map(Dim::from));
            s.compare(CompareFunction::Le, column, row)
        });
        // A triangle of one row.
        expect_masked(|s, t| {
            let shape = vec![Dim::from(1), t];
            let (value, dtype) = (Scalar::Bool(true), DType::Bool);
            let all = s.op(
                Fill {
                    value,
                    shape,
                    dtype,
                },
                &[],
            );
            let (upper, diagonal) = (false, 0);
            s.op(Triangle { upper, diagonal }, &[all])
        });
        // A choice between two bools that are both false hides all.
        expect_masked(|s, t| {
            let (row, column) = (range(s, t), range(s, t));
            let row = s.reshape(row, [t, 1.into()]);
            let past = s.compare(CompareFunction::Le, column, row);
            let never = fill(s, Scalar::Bool(false), DType::Bool, t);
            s.op(Where, &[past, never, never])
        });
    }

    #[test]
    fn integers_divide_as_integers() {
        // (causal · 1) / 2 is 0 everywhere.
        expect_masked(|s, t| {
            let (row, column) = (range(s, t), range(s, t));
            let row = s.reshape(row, [t, 1.into()]);
            let past = s.compare(CompareFunction::Le, column, row);
            let past = s.op(Cast { to: DType::I64 }, &[past]);
            let two = s.value(&Value::i64([], vec![2]));
            let half = s.binary(BinaryFunction::Div, past, two);
            s.op(Cast { to: DType::Bool }, &[half])
        });
    }

    #[test]
    fn other_masks_stay_and_empty_ones_go() {
        let text = after(
            masked(|s, t| {
                let all = fill(s, Scalar::Bool(true), DType::Bool, t);
                s.op(
                    Triangle {
                        upper: false,
                        diagonal: 1,
                    },
                    &[all],
                )
            }),
            run,
        );
        assert!(text.contains("attention(x, x, x, n2) {scale: 1}"), "{text}");
        let text = after(masked(|s, t| fill(s, Scalar::F32(0.0), DType::F32, t)), run);
        assert!(text.contains("attention(x, x, x) {scale: 1}"), "{text}");
    }
}
