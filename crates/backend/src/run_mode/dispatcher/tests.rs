use super::RunMode::{Full, FullAndPiecewise, FullDecodeOnly, None as NoReplay, Piecewise};
use super::*;

fn dispatcher(mode: RunMode) -> Dispatcher {
    Dispatcher::new(DispatcherOptions {
        mode,
        sizes: CaptureSizes::new([8, 1]),
        max_sequences: 8,
        max_query_len: 1,
        max_padding: None,
    })
}

fn batch(tokens: usize, uniform: bool) -> BatchDescriptor {
    BatchDescriptor {
        tokens,
        rows: 0,
        sequences: Some(tokens),
        query_len: uniform.then_some(1),
    }
}

fn mode_of(dispatcher: &Dispatcher, tokens: usize, uniform: bool) -> RunMode {
    dispatcher.dispatch(batch(tokens, uniform)).mode
}

#[test]
fn five_configurations_have_their_keys() {
    // Keys of whole steps and of pieces.
    let table = [
        (Full, 2, 0),
        (Piecewise, 0, 2),
        (FullDecodeOnly, 2, 0),
        (FullAndPiecewise, 2, 2),
        (NoReplay, 0, 0),
    ];
    for (mode, full, piecewise) in table {
        let dispatcher = dispatcher(mode);
        let found = (dispatcher.full.len(), dispatcher.piecewise.len());
        assert_eq!(found, (full, piecewise), "{mode}");
        assert!(
            dispatcher
                .full
                .iter()
                .all(|key| key.query_len.is_some() == mode.is_dual())
        );
        assert!(dispatcher.piecewise.iter().all(|key| *key == key.relaxed()));
    }
}

#[test]
fn five_configurations_dispatch_decodes_and_mixed_steps() {
    // The modes of a mixed step and of a uniform decode.
    let table = [
        (Full, Full, Full),
        (Piecewise, Piecewise, Piecewise),
        (FullDecodeOnly, NoReplay, Full),
        (FullAndPiecewise, Piecewise, Full),
        (NoReplay, NoReplay, NoReplay),
    ];
    for (mode, mixed, decode) in table {
        let dispatcher = dispatcher(mode);
        assert_eq!(mode_of(&dispatcher, 8, false), mixed, "{mode}");
        assert_eq!(mode_of(&dispatcher, 8, true), decode, "{mode}");
        let over = dispatcher.dispatch(batch(15, false));
        let expect = Dispatch {
            mode: NoReplay,
            batch: batch(15, false).relaxed(),
        };
        assert_eq!(
            over, expect,
            "{mode}: 15 tokens are more than any recording has"
        );
    }
}

#[test]
fn steps_are_padded_to_the_next_size() {
    let found = dispatcher(FullAndPiecewise).dispatch(batch(5, true));
    let expect = BatchDescriptor {
        tokens: 8,
        rows: 0,
        sequences: Some(8),
        query_len: Some(1),
    };
    assert_eq!((found.mode, found.batch), (Full, expect));
    let found = dispatcher(Piecewise).dispatch(batch(5, true));
    assert_eq!((found.mode, found.batch), (Piecewise, expect.relaxed()));
    // In a single mode, a decode is served by the recording of any step of its size.
    let found = dispatcher(Full).dispatch(batch(5, true));
    let any = BatchDescriptor {
        query_len: None,
        ..expect
    };
    assert_eq!((found.mode, found.batch), (Full, any));
}

#[test]
fn speculative_decodes_have_keys_of_their_length() {
    let dispatcher = Dispatcher::new(DispatcherOptions {
        mode: FullDecodeOnly,
        sizes: CaptureSizes::new([1, 3, 4, 6, 12, 30]),
        max_sequences: 4,
        max_query_len: 3,
        max_padding: None,
    });
    let keys = |query_len| -> Vec<usize> {
        let keys = dispatcher.full.iter();
        let keys = keys.filter(|key| key.query_len == Some(query_len));
        keys.map(|key| key.tokens).collect()
    };
    assert_eq!(keys(1), [1, 3, 4], "1 to 4 sequences");
    assert_eq!(keys(2), [4, 6, 12], "4 sequences are padded to 6");
    assert_eq!(keys(3), [3, 6, 12], "multiples of 3, for 1 to 4 sequences");
    let tree = BatchDescriptor {
        query_len: Some(3),
        ..batch(9, true)
    };
    let found = dispatcher.dispatch(tree);
    assert_eq!((found.mode, found.batch.tokens), (Full, 12));
    assert_eq!(found.batch.sequences, Some(4));
    assert_eq!(mode_of(&dispatcher, 30, true), NoReplay);
}

#[test]
fn rows_are_padded_to_few_sizes() {
    let dispatcher = dispatcher(Full);
    let rows = |rows: usize| {
        let wanted = BatchDescriptor {
            rows,
            ..batch(8, false)
        };
        dispatcher.dispatch(wanted).batch.rows
    };
    let found = [0, 1, 2, 3, 4, 5, 8, 11].map(rows);
    assert_eq!(found, [0, 1, 2, 4, 4, 8, 8, 11]);
    // 0 and 1 rows of one token; 0, 1, 2, 4 and 8 rows of eight.
    assert_eq!(dispatcher.descriptors(), 2 + 5);
}

#[test]
fn too_much_padding_is_not_worth_a_recording() {
    let dispatcher = Dispatcher::new(DispatcherOptions {
        mode: Full,
        sizes: CaptureSizes::new([16, 512]),
        max_sequences: 1,
        max_query_len: 1,
        max_padding: Some(8),
    });
    let table = [
        (14, Full),
        (13, NoReplay),
        (448, Full),
        (447, NoReplay),
        (17, NoReplay),
    ];
    for (tokens, expect) in table {
        assert_eq!(mode_of(&dispatcher, tokens, false), expect, "{tokens}");
    }
}

#[test]
fn captures_come_in_groups_the_largest_first() {
    // A step of up to 3 rows has 4, 2, 1 or none in its recording.
    let captures = dispatcher(FullAndPiecewise).captures(3);
    let groups: Vec<_> = captures
        .chunk_by(|a, b| (a.mode, a.batch.tokens) == (b.mode, b.batch.tokens))
        .map(|group| {
            let Dispatch { mode, batch } = group[0];
            let rows: Vec<usize> = group.iter().map(|c| c.batch.rows).collect();
            (mode, batch.tokens, batch.query_len.is_some(), rows)
        })
        .collect();
    let expect = [
        (Piecewise, 8, false, vec![4, 2, 1, 0]),
        (Piecewise, 1, false, vec![1, 0]),
        (Full, 8, true, vec![4, 2, 1, 0]),
        (Full, 1, true, vec![1, 0]),
    ];
    assert_eq!(groups, expect);
    let known = dispatcher(FullAndPiecewise);
    for Dispatch { mode, batch } in captures {
        let keys = if mode == Full {
            &known.full
        } else {
            &known.piecewise
        };
        assert!(keys.contains(&BatchDescriptor { rows: 0, ..batch }));
    }
    assert!(dispatcher(NoReplay).captures(8).is_empty());
    assert!(Dispatcher::eager().captures(8).is_empty());
}

#[test]
fn sizes_follow_their_rules() {
    let sparse = CaptureSizes::sparse(256, 1, 8192);
    assert_eq!(&sparse.as_slice()[..6], [1, 2, 4, 8, 16, 24]);
    assert_eq!(sparse.as_slice().last(), Some(&512));
    assert!(sparse.as_slice().windows(2).all(|w| w[1] - w[0] <= 16));
    assert_eq!(CaptureSizes::sparse(4, 1, 8192).as_slice(), [1, 2, 4, 8]);
    assert_eq!(CaptureSizes::sparse(4, 1, 3).as_slice(), [1, 2]);
    // Trees of up to 3 tokens, of one sequence and of two.
    let trees = CaptureSizes::sparse(2, 3, 8192);
    assert_eq!(trees.as_slice(), [1, 2, 3, 4, 6, 8]);
    let dense = CaptureSizes::dense(64, 1, 512);
    assert_eq!(&dense.as_slice()[..64], (1..=64).collect::<Vec<_>>());
    assert_eq!(
        &dense.as_slice()[64..],
        [72, 80, 88, 96, 104, 112, 120, 128, 512]
    );
    assert_eq!(CaptureSizes::dense(1, 1, 512).as_slice()[63..], [64, 512]);
    assert_eq!(CaptureSizes::dense(1, 1, 5).as_slice(), [1, 2, 3, 4, 5]);
}
