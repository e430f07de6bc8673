use super::*;
use crate::ops::{
    Activation, Binary, BinaryFunction, BufferReuse, Concat, Reshape, RmsNorm, Scale, Slice, Unary,
};
use crate::passes::FusedKind;
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

#[test]
fn a_slice_is_a_view_and_reports_its_buffer() {
    let mut b = GraphBuilder::new("g");
    let x = b.input("x", DType::F32, [Dim::from(32)]);
    let a = b.node("a", Scale { factor: 2.0 }, &[x]).unwrap();
    let half = |start: usize| Slice {
        axis: 0,
        start: start.into(),
        len: 16.into(),
        step: 1,
    };
    let low = b.node("low", half(0), &[a]).unwrap();
    let high = b.node("high", half(16), &[a]).unwrap();
    let given = b.node("given", half(8), &[x]).unwrap();
    let sum = b.node("sum", add(), &[low, high]).unwrap();
    let y = b.node("y", add(), &[sum, given]).unwrap();
    let graph = b.finish(&[y]).unwrap();
    let plan = MemoryPlan::new(&graph, Bindings::default(), |i| i * 10).unwrap();
    let at = |offset| Place::Arena(Slot { offset, len: 64 });
    assert_eq!([low, high].map(|id| plan.place(id)), [at(0), at(64)]);
    let (index, offset) = (0, 32);
    assert_eq!(plan.place(given), Place::Input { index, offset });
    assert_ne!(
        plan.place(sum),
        at(0),
        "the other half is read in the same step"
    );
    assert_eq!(plan.place(y), plan.place(sum));
    let report = plan.report(&graph);
    assert!(
        report.contains("           0          128      0      4  a\n"),
        "{report}"
    );
    assert!(report.contains("  scratch of y\n"), "{report}");
}

/// A random graph of tensors of 32 and 16 elements, with views, results in place and copies.
fn random_graph(nodes: &[(usize, prop::sample::Index, prop::sample::Index)]) -> Graph {
    let mut b = GraphBuilder::new("g");
    let mut whole = vec![b.input("x", DType::F32, [Dim::from(32)])];
    let mut halves = vec![b.input("h", DType::F32, [Dim::from(16)])];
    for (i, (kind, first, second)) in nodes.iter().enumerate() {
        let (a, c) = (*first.get(&whole), *second.get(&whole));
        let (p, q) = (*first.get(&halves), *second.get(&halves));
        let name = format!("n{i}");
        let slice = |start: usize| Slice {
            axis: 0,
            start: start.into(),
            len: 16.into(),
            step: 1,
        };
        let shape = |dims: &[usize]| dims.iter().map(|d| Dim::from(*d)).collect();
        match kind {
            0 => whole.push(b.node(&name, add(), &[a, c]).unwrap()),
            1 => whole.push(b.node(&name, Scale { factor: 2.0 }, &[a]).unwrap()),
            2 => whole.push(b.node(&name, RmsNorm { eps: 1e-5 }, &[a, c]).unwrap()),
            3 => halves.push(b.node(&name, slice(first.index(17)), &[a]).unwrap()),
            4 => halves.push(b.node(&name, add(), &[p, q]).unwrap()),
            5 => whole.push(b.node(&name, Concat { axis: 0 }, &[p, q]).unwrap()),
            _ => {
                let square = Reshape {
                    shape: shape(&[2, 16]),
                };
                let square = b.node(&format!("{name}.square"), square, &[a]).unwrap();
                let wide = b.node(&format!("{name}.sum"), add(), &[square, p]).unwrap();
                let flat = Reshape {
                    shape: shape(&[32]),
                };
                whole.push(b.node(&name, flat, &[wide]).unwrap());
            }
        }
    }
    let outputs = [
        whole[whole.len() - 1],
        halves[halves.len() / 2],
        whole[whole.len() / 2],
    ];
    b.finish(&outputs).unwrap()
}

/// What is in every four bytes of the arena: an element of the tensor whose node wrote it.
type Element = Option<(TensorId, usize)>;

/// Executes a graph symbolically: no operand may have been overwritten before it is read.
fn check(graph: &Graph, scratch: usize) -> Result<(), TestCaseError> {
    let plan = MemoryPlan::new(graph, Bindings::default(), |_| scratch).unwrap();
    prop_assert!(plan.lower_bound <= plan.arena_bytes);
    let cells = |slot: Slot| slot.offset / 4..(slot.offset + slot.len).div_ceil(4);
    let mut arena: Vec<Element> = vec![None; plan.arena_bytes / 4];
    // Per tensor, which elements it holds: an alias holds those of its operand.
    let elements = |(i, t): (usize, &crate::Tensor)| -> Vec<Element> {
        let len = t.ty.bytes(&Bindings::default()).unwrap() / 4;
        (0..len).map(|e| Some((TensorId(i as u32), e))).collect()
    };
    let mut held: Vec<Vec<Element>> = graph.tensors().iter().enumerate().map(elements).collect();
    for (i, node) in graph.nodes().iter().enumerate() {
        for id in &node.inputs {
            if let Place::Arena(slot) = plan.place(*id) {
                prop_assert_eq!(
                    &arena[cells(slot)],
                    &held[id.0 as usize][..],
                    "node {} reads a lost tensor",
                    i
                );
            }
        }
        if let Some(slot) = plan.scratch(i) {
            for id in node.inputs.iter().chain([&node.output]) {
                if let Place::Arena(used) = plan.place(*id) {
                    prop_assert!(
                        cells(slot).all(|cell| !cells(used).contains(&cell)),
                        "scratch overlaps"
                    );
                }
            }
            arena[cells(slot)].fill(None);
        }
        let types: Vec<_> = node.inputs.iter().map(|id| &graph.tensor(*id).ty).collect();
        if let BufferReuse::Alias { offset } =
            node.op.sharing(&types, &Bindings::default()).unwrap()
        {
            let len = held[node.output.0 as usize].len();
            held[node.output.0 as usize] =
                held[node.inputs[0].0 as usize][offset / 4..][..len].to_vec();
        } else if let Place::Arena(slot) = plan.place(node.output) {
            arena[cells(slot)].copy_from_slice(&held[node.output.0 as usize]);
        } else {
            prop_assert!(false, "node {} writes what is not its own", i);
        }
    }
    for id in graph.outputs() {
        if let Place::Arena(slot) = plan.place(*id) {
            prop_assert_eq!(
                &arena[cells(slot)],
                &held[id.0 as usize][..],
                "an output is lost"
            );
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_live_tensor_is_overwritten(
        nodes in prop::collection::vec((0usize..7, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..40),
        scratch in 0usize..200,
    ) {
        let mut graph = random_graph(&nodes);
        check(&graph, scratch)?;
        let schedule = crate::passes::PassSelection::parse("schedule").unwrap();
        let before = MemoryPlan::new(&graph, Bindings::default(), no_scratch).unwrap();
        crate::passes::optimise_with(&mut graph, &schedule).unwrap();
        graph.verify().unwrap();
        let after = MemoryPlan::new(&graph, Bindings::default(), no_scratch).unwrap();
        prop_assert!(after.lower_bound <= before.lower_bound);
        check(&graph, scratch)?;
    }
}

#[test]
fn nodes_that_run_as_one_share_no_memory_but_in_place() {
    let mut b = GraphBuilder::new("g");
    let x = b.input("x", DType::F32, [Dim::from(16)]);
    let weight = b.input("w", DType::F32, [Dim::from(16)]);
    let longer = |b: &mut GraphBuilder, name: &str, x| {
        b.node(name, Concat { axis: 0 }, &[x, weight]).unwrap()
    };
    let a = longer(&mut b, "a", x);
    let c = longer(&mut b, "c", a);
    let d = longer(&mut b, "d", c);
    let y = b.node("y", Scale { factor: 2.0 }, &[d]).unwrap();
    let graph = b.finish(&[y]).unwrap();
    let apart = MemoryPlan::new(&graph, Bindings::default(), |_| 64).unwrap();
    assert_eq!(apart.scratch(0), apart.scratch(1));
    let ops = [0..3, 3..4].map(|nodes| FusedOp {
        nodes,
        kind: FusedKind::Node,
    });
    let fused = MemoryPlan::fused(&graph, Bindings::default(), |_| 64, &ops).unwrap();
    let Place::Arena(slot) = fused.place(d) else {
        panic!("d is computed");
    };
    assert_eq!(fused.place(y), fused.place(d), "y overwrites d");
    let mut slots: Vec<Slot> = (0..3).filter_map(|node| fused.scratch(node)).collect();
    for id in [a, c] {
        if let Place::Arena(slot) = fused.place(id) {
            slots.push(slot);
        }
    }
    slots.push(slot);
    slots.sort_by_key(|slot| slot.offset);
    assert_eq!(slots.len(), 6);
    assert!(fused.arena_bytes > apart.arena_bytes);
    for pair in slots.windows(2) {
        assert!(pair[0].offset + pair[0].len <= pair[1].offset, "{pair:?}");
    }
}
