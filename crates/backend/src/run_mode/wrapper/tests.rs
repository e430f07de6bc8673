use super::super::{CaptureSizes, Command, Dispatcher, DispatcherOptions, RecordingDevice};
use super::*;

/// One layer of a toy model: doubles the number and adds the layer's own.
struct Layer<'a> {
    device: &'a mut RecordingDevice,
    at: usize,
    addend: i64,
    address: usize,
}

impl Replay for Layer<'_> {
    type Recording = Vec<Command>;
    type Error = ReplayError;

    fn run(&mut self) -> Result<(), ReplayError> {
        self.device.launch(Command {
            at: self.at,
            factor: 2,
            addend: self.addend,
        });
        Ok(())
    }

    fn record(&mut self) -> Result<Vec<Command>, ReplayError> {
        self.device.begin_capture();
        self.run()?;
        Ok(self.device.end_capture())
    }

    fn replay(&mut self, recording: &mut Vec<Command>) -> Result<(), ReplayError> {
        self.device.replay(recording);
        Ok(())
    }

    fn input_addresses(&self) -> Vec<usize> {
        vec![self.address]
    }
}

fn layer(device: &mut RecordingDevice) -> Layer<'_> {
    Layer {
        device,
        at: 0,
        addend: 1,
        address: 4096,
    }
}

fn batch(tokens: usize) -> BatchDescriptor {
    BatchDescriptor {
        tokens,
        rows: tokens,
        sequences: Some(tokens),
        query_len: None,
    }
}

fn full(tokens: usize) -> Option<Dispatch> {
    Some(Dispatch {
        mode: RunMode::Full,
        batch: batch(tokens),
    })
}

#[test]
fn a_capture_and_its_replays_equal_an_eager_run() {
    let mut eager = RecordingDevice::new(1);
    let mut device = RecordingDevice::new(1);
    let mut wrapper = ReplayWrapper::new(RunMode::Full);
    for _ in 0..3 {
        layer(&mut eager).run().unwrap();
        wrapper.run(full(2), &mut layer(&mut device)).unwrap();
        assert_eq!(device.memory, eager.memory);
    }
    assert_eq!(
        (device.captures, device.replays, device.launches),
        (1, 3, 0)
    );
    let expect = ReplayCounts {
        captures: 1,
        replays: 3,
        passed: 0,
    };
    assert_eq!(wrapper.counts(), expect);
}

#[test]
fn a_call_of_another_mode_passes_through() {
    let none = Dispatch {
        mode: RunMode::None,
        batch: batch(2),
    };
    let pieces = Dispatch {
        mode: RunMode::Piecewise,
        batch: batch(2).relaxed(),
    };
    let mut device = RecordingDevice::new(1);
    let mut wrapper = ReplayWrapper::new(RunMode::Full);
    for dispatch in [None, Some(none), Some(pieces)] {
        wrapper.run(dispatch, &mut layer(&mut device)).unwrap();
    }
    assert_eq!((device.captures, device.launches), (0, 3));
    assert_eq!((wrapper.len(), wrapper.counts().passed), (0, 3));
}

#[test]
fn each_size_is_recorded_once() {
    let mut device = RecordingDevice::new(1);
    let mut wrapper = ReplayWrapper::new(RunMode::Full);
    for tokens in [1, 2, 3, 2, 1, 3, 3] {
        wrapper.run(full(tokens), &mut layer(&mut device)).unwrap();
    }
    assert_eq!((wrapper.len(), device.captures, device.replays), (3, 3, 7));
    wrapper.clear();
    assert!(wrapper.is_empty());
}

#[test]
fn nothing_is_recorded_after_start_up() {
    let mut device = RecordingDevice::new(1);
    let mut wrapper = ReplayWrapper::new(RunMode::Full);
    wrapper
        .capture(batch(1), vec![4096], || layer(&mut device).record())
        .unwrap();
    wrapper.disable_capture();
    wrapper.run(full(1), &mut layer(&mut device)).unwrap();
    let late = wrapper.run(full(4), &mut layer(&mut device));
    let expect = ReplayError::CaptureDisabled { batch: batch(4) };
    assert_eq!(late, Err(expect));
    assert_eq!(
        (device.captures, device.replays),
        (1, 1),
        "the late call did nothing"
    );
    assert!(wrapper.contains(&batch(1)) && !wrapper.contains(&batch(4)));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "have moved")]
fn debug_builds_notice_inputs_that_have_moved() {
    let mut device = RecordingDevice::new(1);
    let mut wrapper = ReplayWrapper::new(RunMode::Full);
    wrapper.run(full(1), &mut layer(&mut device)).unwrap();
    let mut moved = layer(&mut device);
    moved.address = 8192;
    let _ = wrapper.run(full(1), &mut moved);
}

#[test]
#[should_panic(expected = "nothing is recorded in mode none")]
fn a_wrapper_has_a_mode_that_records() {
    ReplayWrapper::<()>::new(RunMode::None);
}

/// A model of three layers whose middle one, the attention, is never part of a piece.
struct Model<'a> {
    device: &'a mut RecordingDevice,
    pieces: &'a mut [ReplayWrapper<Vec<Command>>; 2],
    dispatch: Option<Dispatch>,
}

impl Replay for Model<'_> {
    type Recording = Vec<Command>;
    type Error = ReplayError;

    fn run(&mut self) -> Result<(), ReplayError> {
        let [first, last] = self.pieces;
        first.run(self.dispatch, &mut layer(self.device))?;
        layer(self.device).run()?;
        last.run(self.dispatch, &mut layer(self.device))
    }

    fn record(&mut self) -> Result<Vec<Command>, ReplayError> {
        self.device.begin_capture();
        self.run()?;
        Ok(self.device.end_capture())
    }

    fn replay(&mut self, recording: &mut Vec<Command>) -> Result<(), ReplayError> {
        self.device.replay(recording);
        Ok(())
    }
}

#[test]
fn wrappers_nest_and_every_mode_gives_the_same() {
    let dispatcher = Dispatcher::new(DispatcherOptions {
        mode: RunMode::FullAndPiecewise,
        sizes: CaptureSizes::new([1, 2, 4]),
        max_sequences: 4,
        max_query_len: 1,
        max_padding: None,
    });
    let mut device = RecordingDevice::new(1);
    let mut eager = RecordingDevice::new(1);
    let mut whole = ReplayWrapper::new(RunMode::Full);
    let mut pieces = [(); 2].map(|()| ReplayWrapper::new(RunMode::Piecewise));
    // Tokens, whether they are a decode, and the mode that this is run in.
    let steps = [
        (2, true, RunMode::Full),
        (2, false, RunMode::Piecewise),
        (9, false, RunMode::None),
        (2, true, RunMode::Full),
        (3, false, RunMode::Piecewise),
    ];
    for (tokens, uniform, mode) in steps {
        let wanted = BatchDescriptor {
            query_len: uniform.then_some(1),
            ..batch(tokens)
        };
        let dispatch = dispatcher.dispatch(wanted);
        assert_eq!(dispatch.mode, mode);
        let mut model = Model {
            device: &mut device,
            pieces: &mut pieces,
            dispatch: Some(dispatch),
        };
        whole.run(Some(dispatch), &mut model).unwrap();
        (0..3).for_each(|_| layer(&mut eager).run().unwrap());
        assert_eq!(device.memory, eager.memory, "{dispatch:?}");
    }
    assert_eq!((whole.counts().captures, whole.counts().replays), (1, 2));
    // The whole step was recorded through its pieces, which passed it through.
    for piece in &pieces {
        let counts = piece.counts();
        assert_eq!((counts.captures, counts.replays, counts.passed), (2, 2, 2));
    }
    assert_eq!(
        device.launches,
        2 + 3,
        "attention of two steps, and all of an eager one"
    );
}
