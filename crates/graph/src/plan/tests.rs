use super::*;
use crate::ops::{Activation, Binary, BinaryFunction, Op, Reshape, Scale, Unary};
use crate::{Dim, GraphBuilder, Symbol};
use base::DType;
use proptest::prelude::*;

fn add() -> Binary {
    Binary {
        function: BinaryFunction::Add,
    }
}

fn no_scratch(_: usize) -> usize {
    0
}

#[test]
fn chains_run_in_place_and_aliases_cost_nothing() {
    let mut b = GraphBuilder::new("g");
    let t = b.symbol("T");
    let x = b.input("x", DType::F32, [t, Dim::from(16)]);
    let view = b
        .node(
            "view",
            Reshape {
                shape: vec![t, 4.into(), 4.into()],
            },
            &[x],
        )
        .unwrap();
    let a = b
        .node(
            "a",
            Unary {
                function: Activation::Silu.into(),
            },
            &[view],
        )
        .unwrap();
    let c = b.node("c", Scale { factor: 2.0 }, &[a]).unwrap();
    let y = b
        .node(
            "y",
            Reshape {
                shape: vec![t, 16.into()],
            },
            &[c],
        )
        .unwrap();
    let graph = b.finish(&[y]).unwrap();
    let plan = MemoryPlan::new(&graph, Bindings::default().with(Symbol(0), 3), no_scratch).unwrap();
    assert_eq!(
        plan.place(view),
        Place::Input {
            index: 0,
            offset: 0
        }
    );
    assert_eq!(
        plan.place(a),
        Place::Arena(Slot {
            offset: 0,
            len: 192
        })
    );
    assert_eq!(plan.place(y), plan.place(a));
    assert_eq!((plan.arena_bytes, plan.lower_bound), (192, 192));
}

#[test]
fn what_is_read_later_is_not_overwritten() {
    let mut b = GraphBuilder::new("g");
    let x = b.input("x", DType::F32, [Dim::from(16)]);
    let a = b.node("a", Scale { factor: 2.0 }, &[x]).unwrap();
    let view = b
        .node(
            "view",
            Reshape {
                shape: vec![4.into(), 4.into()],
            },
            &[a],
        )
        .unwrap();
    let s = b.node("s", Scale { factor: 3.0 }, &[a]).unwrap();
    let flat = b
        .node(
            "flat",
            Reshape {
                shape: vec![16.into()],
            },
            &[view],
        )
        .unwrap();
    let y = b.node("y", add(), &[s, flat]).unwrap();
    let graph = b.finish(&[y]).unwrap();
    let plan = MemoryPlan::new(&graph, Bindings::default(), no_scratch).unwrap();
    assert_ne!(plan.place(s), plan.place(a), "a lives on through its view");
}

#[test]
fn scratch_lasts_one_step() {
    let mut b = GraphBuilder::new("g");
    let x = b.input("x", DType::F32, [Dim::from(16)]);
    let a = b.node("a", Scale { factor: 2.0 }, &[x]).unwrap();
    let y = b.node("y", Scale { factor: 2.0 }, &[a]).unwrap();
    let graph = b.finish(&[y]).unwrap();
    let plan = MemoryPlan::new(&graph, Bindings::default(), |_| 100).unwrap();
    assert_eq!(plan.scratch(0), plan.scratch(1));
    assert_eq!(plan.arena_bytes, 64 + 128);
}

proptest! {
    /// Executes random graphs symbolically: every byte range remembers which tensor last wrote it, and no operand may
    /// have been overwritten before it is read.
    #[test]
    fn no_live_tensor_is_overwritten(
        nodes in prop::collection::vec((0usize..4, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..40),
        scratch in 0usize..200,
    ) {
        let mut b = GraphBuilder::new("g");
        let mut all = vec![b.input("x", DType::F32, [Dim::from(32)])];
        for (i, (kind, a, c)) in nodes.iter().enumerate() {
            let (a, c) = (*a.get(&all), *c.get(&all));
            let name = format!("n{i}");
            let node = match kind {
                0 => b.node(&name, add(), &[a, c]),
                1 => b.node(&name, Scale { factor: 2.0 }, &[a]),
                2 => b.node(&name, Reshape { shape: vec![32.into()] }, &[a]),
                _ => b.node(&name, crate::ops::RmsNorm { eps: 1e-5 }, &[a, c]),
            };
            all.push(node.unwrap());
        }
        let outputs = [all[all.len() - 1], all[all.len() / 2]];
        let graph = b.finish(&outputs).unwrap();
        let plan = MemoryPlan::new(&graph, Bindings::default(), |_| scratch).unwrap();
        prop_assert!(plan.lower_bound <= plan.arena_bytes);

        // content[offset / 64] = the tensor whose elements are there now.
        let mut content = vec![None; plan.arena_bytes / ALIGNMENT + 1];
        let lines = |slot: Slot| slot.offset / ALIGNMENT..(slot.offset + slot.len).div_ceil(ALIGNMENT);
        let mut same: Vec<TensorId> = (0..graph.tensors().len() as u32).map(TensorId).collect();
        for (i, node) in graph.nodes().iter().enumerate() {
            for id in &node.inputs {
                if let Place::Arena(slot) = plan.place(*id) {
                    for line in lines(slot) {
                        prop_assert_eq!(content[line], Some(same[id.0 as usize]), "node {} reads a lost tensor", i);
                    }
                }
            }
            if let Some(slot) = plan.scratch(i) {
                for id in node.inputs.iter().chain([&node.output]) {
                    if let Place::Arena(used) = plan.place(*id) {
                        prop_assert!(lines(slot).all(|line| !lines(used).contains(&line)), "scratch overlaps");
                    }
                }
                lines(slot).for_each(|line| content[line] = None);
            }
            if let Op::Reshape(_) = node.op {
                same[node.output.0 as usize] = same[node.inputs[0].0 as usize];
            } else if let Place::Arena(slot) = plan.place(node.output) {
                lines(slot).for_each(|line| content[line] = Some(node.output));
            }
        }
        for id in outputs {
            if let Place::Arena(slot) = plan.place(id) {
                prop_assert!(lines(slot).all(|line| content[line] == Some(same[id.0 as usize])));
            }
        }
    }
}
