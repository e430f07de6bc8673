use super::*;
use crate::Backend;
use crate::reference::{Reference, ReferenceKv};
use graph::DataRef;
use kv::{CacheConfig, StepPlan};

/// A graph that doubles its input, on a device that counts what is asked of it.
#[derive(Default)]
struct CountingDevice {
    support: GraphSupport,
    /// The mode and the sizes of everything recorded.
    recorded: Vec<(RunMode, Vec<usize>)>,
    captured: usize,
    replayed: usize,
    generation: u64,
    /// The recording that moves the device's memory.
    moves_at: Option<usize>,
}

impl Replay for CountingDevice {
    /// The index in `recorded`.
    type Recording = usize;
    type Kv = ReferenceKv;

    const RESOLVES_EVERY_RUN: bool = true;
    const RECORDS_AT_START: bool = false;

    fn graph_support(&self) -> GraphSupport {
        self.support
    }

    fn capture_sizes(&self, options: &StepOptions) -> (CaptureSizes, Option<usize>) {
        (CaptureSizes::new([1, 2, 4, options.max_tokens]), None)
    }

    fn record(&mut self, shapes: &[&[usize]], mode: RunMode) -> Result<usize, BackendError> {
        let sizes: Vec<usize> = shapes.iter().map(|shape| shape[0]).collect();
        self.generation += u64::from(self.moves_at == Some(self.recorded.len()));
        self.recorded.push((mode, sizes));
        Ok(self.recorded.len() - 1)
    }

    fn capture(&mut self, _: &mut usize) -> Result<(), BackendError> {
        self.captured += 1;
        Ok(())
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn replay_step(
        &mut self,
        _: &mut usize,
        _: CacheStep<'_, ReferenceKv>,
        _: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        self.replayed += 1;
        Ok(())
    }

    fn replay(
        &mut self,
        recording: &mut usize,
        inputs: &[ValueRef<'_>],
        _: Option<CacheStep<'_, ReferenceKv>>,
        _: Option<TraceCallback<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError> {
        self.replayed += 1;
        assert_eq!(self.recorded[*recording].1, [inputs[0].shape[0]]);
        let DataRef::F32(numbers) = inputs[0].data else {
            panic!("the input is f32")
        };
        let doubled: Vec<f32> = numbers.iter().map(|x| 2.0 * x).collect();
        output(0, Value::f32([doubled.len()], doubled).view());
        Ok(())
    }

    fn set_profiling(&mut self, _: bool) {}

    fn profile(&self) -> Vec<NodeProfile> {
        vec![]
    }

    fn arena_bytes(&self) -> usize {
        0
    }

    fn packed_bytes(&self) -> usize {
        0
    }
}

fn wrapper(executor: ExecutorKind, support: GraphSupport) -> ReplayWrapper<CountingDevice> {
    let device = CountingDevice {
        support,
        ..CountingDevice::default()
    };
    let options = CompileOptions {
        executor,
        ..CompileOptions::default()
    };
    ReplayWrapper::new(device, &options)
}

fn options(mode: RunMode, record_all: bool) -> StepOptions {
    StepOptions {
        mode,
        max_sequences: 4,
        max_query_len: 1,
        max_tokens: 8,
        max_rows: 4,
        record_all,
    }
}

/// Runs an empty step as if it had been dispatched to this.
fn run_step(wrapper: &mut ReplayWrapper<CountingDevice>, dispatch: Dispatch) -> Result<(), String> {
    let config = CacheConfig::new(8, vec![]);
    let mut bytes = Reference.new_kv(&config).unwrap();
    let cache = CacheStep {
        plan: &StepPlan::default(),
        bytes: &mut *bytes,
    };
    let ran = wrapper.run_step(dispatch, cache, &mut StepOutputs::default());
    ran.map_err(|error| error.to_string())
}

fn decode(dispatcher: &Dispatcher, sequences: usize) -> Dispatch {
    dispatcher.dispatch(BatchDescriptor::decode(sequences))
}

#[test]
fn each_descriptor_is_recorded_once_and_replayed() {
    let mut wrapper = wrapper(ExecutorKind::Compiled, GraphSupport::Always);
    let dispatcher = wrapper.prepare(&options(RunMode::Full, false)).unwrap();
    // The longest step, and the decodes of all sequences and of one.
    let expect = [
        (RunMode::Full, vec![8, 8, 4]),
        (RunMode::Full, vec![4, 4, 4]),
        (RunMode::Full, vec![1, 1, 1]),
    ];
    assert_eq!(wrapper.recorder.recorded, expect);
    for sequences in [1, 4, 2, 2, 1] {
        run_step(&mut wrapper, decode(&dispatcher, sequences)).unwrap();
    }
    assert_eq!(wrapper.recorder.replayed, 5);
    assert_eq!(wrapper.recorder.recorded.len(), 4, "the decode of 2 is new");
    assert_eq!((wrapper.captures(), wrapper.missed_recordings()), (3, 1));
}

#[test]
fn modes_have_recordings_of_their_own() {
    let mut wrapper = wrapper(ExecutorKind::Compiled, GraphSupport::UniformBatch);
    let dispatcher = wrapper.prepare(&options(RunMode::Full, false)).unwrap();
    assert_eq!(dispatcher.mode(), RunMode::FullAndPiecewise);
    let mixed = dispatcher.dispatch(BatchDescriptor {
        query_len: None,
        ..BatchDescriptor::decode(4)
    });
    assert_eq!(mixed.mode, RunMode::Piecewise);
    run_step(&mut wrapper, mixed).unwrap();
    run_step(&mut wrapper, decode(&dispatcher, 4)).unwrap();
    let of_four = |(_, sizes): &&(RunMode, Vec<usize>)| **sizes == [4, 4, 4];
    let modes = wrapper.recorder.recorded.iter().filter(of_four);
    let modes: Vec<RunMode> = modes.map(|(mode, _)| *mode).collect();
    assert_eq!(modes, [RunMode::Full, RunMode::Piecewise]);
}

#[test]
fn nothing_is_recorded_after_all_was() {
    let mut wrapper = wrapper(ExecutorKind::Compiled, GraphSupport::Always);
    let dispatcher = wrapper.prepare(&options(RunMode::Full, true)).unwrap();
    // Sizes 1, 2, 4 and 8; up to 4 rows of each.
    assert_eq!(wrapper.captures(), 2 + 3 + 4 + 4);
    let recorded = wrapper.recorder.recorded.len();
    for sequences in 1..=4 {
        run_step(&mut wrapper, decode(&dispatcher, sequences)).unwrap();
    }
    assert_eq!(wrapper.recorder.recorded.len(), recorded);
    assert_eq!(wrapper.missed_recordings(), 0);
    let late = Dispatch {
        mode: RunMode::Full,
        batch: BatchDescriptor::decode(3),
    };
    let error = run_step(&mut wrapper, late).unwrap_err();
    assert!(error.contains("was not recorded at start-up"), "{error}");
    assert_eq!(wrapper.recorder.replayed, 4, "the late step did nothing");
}

#[test]
fn runs_without_a_descriptor_are_stored_by_shape_or_resolved_every_time() {
    let x = |n: usize| vec![Value::f32([n], vec![1.5; n])];
    for (executor, recorded, captured) in [
        (ExecutorKind::Compiled, 2, 1),
        (ExecutorKind::Interpreted, 3, 0),
    ] {
        let mut wrapper = wrapper(executor, GraphSupport::Always);
        for n in [1, 2, 1] {
            let outputs = wrapper.run(&x(n), None, None).unwrap();
            assert_eq!(outputs, [Value::f32([n], vec![3.0; n])]);
        }
        assert_eq!(wrapper.recorder.recorded.len(), recorded);
        assert_eq!(
            wrapper.recorder.captured, captured,
            "the shape that came again"
        );
    }
}

#[test]
fn recordings_are_made_again_when_memory_moves_between_them() {
    let recorded = |moves_at: Option<usize>| {
        let mut wrapper = wrapper(ExecutorKind::Compiled, GraphSupport::Always);
        wrapper.recorder.moves_at = moves_at;
        wrapper.prepare(&options(RunMode::Full, true)).unwrap();
        wrapper.recorder.recorded.len()
    };
    let descriptors = 13;
    assert_eq!(recorded(None), 1 + descriptors);
    assert_eq!(recorded(Some(0)), 1 + descriptors, "the longest step");
    assert_eq!(recorded(Some(5)), 1 + 2 * descriptors);
}
