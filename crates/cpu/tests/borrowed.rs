//! Inputs are read where the caller has them, and outputs are seen where they were computed.

use backend::Backend;
use base::DType;
use cpu::Cpu;
use graph::ops::{Binary, BinaryFunction, Reshape};
use graph::{DataRef, GraphBuilder, ValueRef};
use std::sync::Arc;

#[test]
fn inputs_are_not_copied() {
    let mut b = GraphBuilder::new("forward");
    let x = b.input("x", DType::F32, [2.into(), 3.into()]);
    let shape = vec![6.into()];
    let view = b.node("view", Reshape { shape }, &[x]).unwrap();
    let function = BinaryFunction::Add;
    let sum = b.node("sum", Binary { function }, &[x, x]).unwrap();
    let graph = Arc::new(b.finish(&[view, sum]).unwrap());
    let mut executable = Cpu::new()
        .unwrap()
        .compile(graph, &Default::default())
        .unwrap();
    // The second run replays the first one's tape on other memory.
    for start in [1.0f32, 10.0] {
        let elements: Vec<f32> = (0..6).map(|n| start + n as f32).collect();
        let input = ValueRef {
            shape: &[2, 3],
            data: DataRef::F32(&elements),
        };
        let mut seen = vec![];
        executable
            .run_borrowed(&[input], None, &mut |index, output| {
                let at = output.data.as_ptr();
                seen.push((index, at == input.data.as_ptr(), output.to_value()));
            })
            .unwrap();
        let [(0, true, view), (1, false, sum)] = &seen[..] else {
            panic!("{seen:?}");
        };
        assert_eq!(view.as_f32(), Some(&elements[..]));
        let doubled: Vec<f32> = elements.iter().map(|x| 2.0 * x).collect();
        assert_eq!(sum.as_f32(), Some(&doubled[..]));
    }
}
