//! Counts the cache's allocations: pools grow in place, without a second buffer, and a steady decode step allocates nothing
//! for its plan.

use backend::{Backend, CompileOptions, Runnable};
use base::DType;
use cpu::Cpu;
use graph::ops::UpdateAndAttend;
use graph::{GraphBuilder, Value};
use kv::{
    CacheConfig, CacheManager, CacheRegistry, Cells, LayerConfig, SeqCache, StepPlan,
    make_decode_session,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

struct Counting;

thread_local! {
    /// Allocations of this thread, and the bytes of those of at least [`LARGE`].
    static COUNTS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// Large allocations of this thread that were reallocated to a larger size.
    static GROWN: Cell<usize> = const { Cell::new(0) };
}

/// Smaller allocations are not pool growth.
const LARGE: usize = 64 * 1024;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNTS.with(|c| {
            let (count, bytes) = c.get();
            c.set((
                count + 1,
                bytes
                    + if layout.size() >= LARGE {
                        layout.size()
                    } else {
                        0
                    },
            ));
        });
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        GROWN.with(|g| g.set(g.get() + usize::from(size >= LARGE)));
        // SAFETY: as above.
        unsafe { System.realloc(p, layout, size) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn layer() -> LayerConfig {
    LayerConfig {
        kv_heads: 2,
        key_dim: 16,
        value_dim: 16,
        window: None,
        sinks: 0,
    }
}

#[test]
fn a_session_of_32k_tokens_grows_its_pools_in_place() {
    const TOKENS: u32 = 32 * 1024;
    const STEP: u32 = 64;
    let mut b = GraphBuilder::new("attention");
    let t = b.symbol("T");
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, DType::F32, [t, 2.into(), 16.into()]));
    let position = b.input("position", DType::I32, [t]);
    let op = UpdateAndAttend {
        cache_id: 0,
        scale: 0.25,
        softcap: None,
    };
    let out = b.node("out", op, &[q, k, v, position]).unwrap();
    let graph = Arc::new(b.finish(&[out]).unwrap());
    let cpu = Cpu::new().unwrap();
    let (session, options) =
        make_decode_session(Cpu::ID, &CacheConfig::uniform(TOKENS, 1, layer())).unwrap();
    let entry = CacheRegistry::global()
        .get(&options.cache_key.unwrap())
        .unwrap();
    let compile = CompileOptions {
        threads: Some(1),
        ..Default::default()
    };
    let executable = cpu.compile(graph.clone(), &compile).unwrap();
    let mut runnable = Runnable::bind(graph, executable, Some(entry)).unwrap();

    let (_, before) = COUNTS.get();
    let grown = GROWN.get();
    for start in (0..TOKENS).step_by(STEP as usize) {
        let rows = || Value::f32([STEP as usize, 2, 16], vec![0.5; STEP as usize * 32]);
        let position = Value::i32(
            [STEP as usize],
            (start as i32..).take(STEP as usize).collect(),
        );
        runnable.run(&[rows(), rows(), rows(), position]).unwrap();
    }
    let (_, after) = COUNTS.get();
    let resident = session.resident_bytes().unwrap();
    assert_eq!(
        resident,
        TOKENS as usize * 2 * 2 * 16 * 2,
        "f16 keys and values of all tokens and no more"
    );
    // Keys and values, each from 64 KiB to 2 MiB by doubling: there is never a second buffer beside the first.
    assert_eq!(GROWN.get() - grown, 2 * 6);
    assert!(
        after - before < LARGE * 2,
        "{} bytes of new buffers",
        after - before
    );
}

#[test]
fn a_steady_decode_step_allocates_nothing_for_its_plan() {
    let mut cells = Cells::new(&CacheConfig::uniform(10_000, 2, layer()));
    let seqs: Vec<u32> = (0..16).collect();
    let mut plan = StepPlan::default();
    let mut step = |cells: &mut Cells, position: i32| {
        cells.begin_step(&seqs).unwrap();
        cells.plan_declared(&[position; 16], &mut plan).unwrap();
        cells.commit(&plan);
    };
    (0..40).for_each(|p| step(&mut cells, p));
    let (before, _) = COUNTS.get();
    (40..48).for_each(|p| step(&mut cells, p));
    let (after, _) = COUNTS.get();
    assert_eq!(after - before, 0);
}
