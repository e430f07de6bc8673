use super::*;
use crate::{CacheManager, LayerConfig, StepPlan};

fn config(capacity: u32, windows: &[Option<u32>]) -> CacheConfig {
    let layer = |&window| LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window,
        sinks: 0,
    };
    CacheConfig::new(capacity, windows.iter().map(layer).collect())
}

fn pool(capacity: u32) -> Cells {
    Cells::new(&config(capacity, &[None]))
}

/// Layers with and without a window of 5, where steps and rewinds reach 4 far: eight rows a sequence.
fn windowed(capacity: u32) -> Cells {
    Cells::new(&CacheConfig {
        ring: Some(RingPolicy {
            max_step: 4,
            max_rewind: 3,
        }),
        ..config(capacity, &[Some(5), None])
    })
}

/// Steps, and returns how many cells the windowed layer must have.
fn step(cells: &mut Cells, seq: SeqId, tokens: u32) -> u32 {
    let start = cells.seq_next(seq).unwrap().unwrap_or(0) as i32;
    let positions: Vec<i32> = (start..start + tokens as i32).collect();
    let mut plan = StepPlan::default();
    cells.begin_step(&vec![seq; tokens as usize]).unwrap();
    cells.plan_declared(&positions, &mut plan).unwrap();
    cells.commit(&plan);
    plan.layer(0).cells
}

#[test]
fn windows_hold_as_many_rows_as_they_need() {
    let mut cells = windowed(200);
    let mut max = 0;
    for tokens in [4, 1, 1, 4, 3, 2].into_iter().cycle().take(60) {
        max = max.max(step(&mut cells, 0, tokens));
        let kept = cells.layer_runs(0, 0).unwrap();
        assert!(kept.iter().map(|run| run.len).sum::<u32>() <= 8);
        assert!(kept.len() <= 3, "rows are used in turn: {kept:?}");
    }
    assert_eq!(max, 8);
    assert_eq!(cells.len(), 150, "the other layer has them all");

    // A fork shares its rows and has as many of its own once it has left the trunk behind.
    cells.seq_cp(0, 1, ..).unwrap();
    max = 0;
    for _ in 0..12 {
        max = max.max(step(&mut cells, 0, 1)).max(step(&mut cells, 1, 1));
    }
    assert_eq!(max, 16);
    // The same in steps of both sequences, which evict their shared cells together.
    cells.seq_rm(1, ..).unwrap();
    cells.seq_cp(0, 1, ..).unwrap();
    for _ in 0..12 {
        let mut plan = StepPlan::default();
        cells.begin_step(&[0, 1]).unwrap();
        let next = cells.seq_next(0).unwrap().unwrap() as i32;
        cells.plan_declared(&[next, next], &mut plan).unwrap();
        cells.commit(&plan);
        assert!(plan.layer(0).cells <= 16);
    }
    cells.seq_keep(1).unwrap();
    cells.compact().unwrap();
    assert_eq!(cells.layer_runs(0, 1).unwrap().len(), 1);
    assert_eq!(step(&mut cells, 1, 1), 8);
}

#[test]
fn what_windows_have_released_cannot_be_gone_back_to() {
    let mut cells = windowed(64);
    (0..10).for_each(|_| {
        step(&mut cells, 0, 2);
    });
    // Positions 12 to 19 are kept, so a token at 16 finds all it sees.
    assert_eq!(cells.rewind_floor(0), Ok(16));
    let before = cells.clone();
    let refused = [
        cells.seq_rm(0, 15..).unwrap_err(),
        cells.rewind(15).unwrap_err(),
        cells.seq_cp(0, 1, ..15).unwrap_err(),
    ];
    for error in refused {
        let text = "cannot rewind to 15: the shortest possible length is 16";
        assert_eq!(error.to_string(), text);
    }
    assert_eq!(cells, before);
    cells.seq_cp(0, 1, ..16).unwrap();
    cells.seq_rm(0, 16..).unwrap();
    assert_eq!(
        (cells.seq_next(0), cells.seq_next(1)),
        (Ok(Some(16)), Ok(Some(16)))
    );
    // Nothing at all needs no rows.
    cells.seq_rm(0, ..).unwrap();
    assert_eq!(cells.rewind_floor(0), Ok(0));
}

#[test]
fn steps_are_as_long_as_windows_allow() {
    let mut cells = windowed(64);
    let error = cells.begin_step(&[0, 0, 1, 0, 0, 0]).unwrap_err();
    let max = KvErrorKind::StepTooLong { tokens: 5, max: 4 };
    assert_eq!(error.kind(), &max);
    cells.begin_step(&[0, 1, 0, 1, 0, 1, 0, 1]).unwrap();
}

#[test]
fn removing_nothing_leaves_the_runs_whole() {
    let mut cells = pool(16);
    step(&mut cells, 0, 6);
    let before = cells.clone();
    #[expect(clippy::reversed_empty_ranges, reason = "callers compute ranges")]
    for range in [3..3, 5..2, 6..9] {
        cells.seq_rm(0, range).unwrap();
        assert_eq!(cells, before);
    }
}

#[test]
fn a_window_of_one_token_needs_no_rows_to_go_back() {
    let ring = Some(RingPolicy {
        max_step: 2,
        max_rewind: 1,
    });
    let mut cells = Cells::new(&CacheConfig {
        ring,
        ..config(64, &[Some(1), None])
    });
    (0..10).for_each(|_| {
        step(&mut cells, 0, 2);
    });
    assert_eq!(cells.rewind_floor(0), Ok(0), "a token sees itself alone");
    for len in [7, 3, 1] {
        cells.seq_rm(0, len..).unwrap();
        assert_eq!(cells.seq_len(0), Ok(len));
    }
}

#[test]
fn a_copy_completes_what_the_copy_already_shares() {
    let mut cells = pool(16);
    step(&mut cells, 0, 8);
    // The middle first: the rest has a part on each side of it.
    cells.seq_cp(0, 1, 2..5).unwrap();
    cells.seq_cp(0, 1, ..).unwrap();
    assert_eq!(cells.runs(1), cells.runs(0));
    assert_eq!(cells.seq_len(1), Ok(8));
    assert_eq!(cells.ref_counts(), [2; 8]);
}

#[test]
fn retained_prefixes_keep_their_cells_and_take_no_sequence_number() {
    let mut cells = windowed(400);
    (0..3).for_each(|_| _ = step(&mut cells, 7, 4));
    let whole = cells.retain(7, ..).unwrap();
    assert!(whole >= MAX_SEQUENCES);
    assert_eq!(cells.seq_len(whole).unwrap(), 12);
    // The retained rows outlive the sequence, and a fork of them continues where it ended.
    cells.seq_rm(7, ..).unwrap();
    assert_eq!((cells.len(), cells.live().count()), (12, 0));
    cells.seq_cp(whole, 3, ..).unwrap();
    step(&mut cells, 3, 4);
    assert_eq!(cells.len(), 16);
    assert_eq!(cells.ref_counts()[..12], [2; 12]);
    // Steps and removals refuse it: it is read-only.
    let refused = KvErrorKind::UnknownSequence {
        seq: whole,
        max: MAX_SEQUENCES,
    };
    assert_eq!(cells.begin_step(&[whole]).unwrap_err().kind(), &refused);
    assert_eq!(cells.seq_rm(whole, ..).unwrap_err().kind(), &refused);
    assert_eq!(cells.seq_cp(3, whole, ..).unwrap_err().kind(), &refused);
    // Its window rows are still there, although sequence 3 has moved on.
    cells.seq_cp(whole, 4, ..).unwrap();
    // The rows that a shorter prefix needs were evicted from the window layer.
    let too_far = cells.retain(whole, ..2).unwrap_err();
    assert!(
        matches!(too_far.kind(), KvErrorKind::RewindTooFar { .. }),
        "{too_far}"
    );
    assert_eq!(cells.retained().collect::<Vec<_>>(), [whole]);
    cells.seq_keep(3).unwrap();
    assert_eq!(cells.retained().count(), 1, "seq_keep drops sequences only");
    cells.release(whole).unwrap();
    assert_eq!(cells.release(whole).unwrap_err().kind(), &refused);
    assert_eq!(cells.len(), 16, "sequence 3 holds them too");
    let again = cells.retain(3, ..).unwrap();
    assert_eq!(again, whole, "numbers are used again");
    cells.clear();
    assert_eq!((cells.len(), cells.retained().count()), (0, 0));
    assert_eq!(cells.seq_len(again).unwrap_err().kind(), &refused);
}

#[test]
fn a_pool_retains_a_bounded_number_of_prefixes() {
    let mut cells = pool(8);
    step(&mut cells, 0, 2);
    for _ in 0..MAX_RETAINED {
        cells.retain(0, ..1).unwrap();
    }
    let full = KvErrorKind::TooManyRetained { max: MAX_RETAINED };
    assert_eq!(cells.retain(0, ..1).unwrap_err().kind(), &full);
    assert_eq!(cells.ref_counts(), [MAX_RETAINED as u16 + 1, 1]);
}

/// Found by 66,355 random histories: the parents of declared candidates are numbers among the computed ones.
#[test]
fn candidates_stay_while_further_ones_are_declared() {
    let mut cells = Cells::new(&config(16, &[None]));
    let mut plan = StepPlan::default();
    cells.propose(3, &[None]).unwrap();
    cells.plan_declared(&[0], &mut plan).unwrap();
    cells.commit(&plan);
    // The child of the second one: had the first been removed meanwhile, it would be the child of the third.
    cells.propose(3, &[None, None, Some(1)]).unwrap();
    let before = cells.clone();
    let pending = |result: Result<(), KvError>| {
        assert_eq!(*result.unwrap_err().kind(), KvErrorKind::StepPending);
    };
    pending(cells.commit_path(3, &[0]));
    pending(cells.commit_path(3, &[]));
    pending(cells.seq_rm(3, ..));
    pending(cells.seq_keep(0));
    assert_eq!(cells, before);
    cells.seq_keep(3).unwrap();
    cells.plan_declared(&[0, 0, 1], &mut plan).unwrap();
    cells.commit(&plan);
    cells.commit_path(3, &[1, 3]).unwrap();
    assert_eq!(cells.seq_len(3).unwrap(), 2);
}
