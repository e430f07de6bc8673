//! The behaviours that ExecuTorch's reference caches are tested for (`test_update_and_attend.py`, 38 tests), as they
//! hold for the bookkeeping here.
//!
//! | theirs | ours |
//! |---|---|
//! | graph_is_functional | elsewhere: the importers' tests (the cache is no part of the graph) |
//! | prefill_matches_baseline, incremental_decode_matches_baseline, chunked_prefill_matches_baseline | [`chunks_see_all_chunks_before`]; the numbers in the conformance suite |
//! | static_overflow_raises | [`a_step_beyond_the_capacity_is_refused`] |
//! | output_shape_uses_value_head_dim | elsewhere: shape inference of `UpdateAndAttend`, conformance suite |
//! | single_sequence_matches_baseline | [`a_lone_sequence_is_one_causal_run`] |
//! | batched_sequences_match_separate_runs | [`a_batch_sees_what_its_sequences_see_alone`]; numbers in the conformance suite |
//! | batched_decode_continues_each_sequence | [`a_batched_decode_continues_each_sequence`] |
//! | fork_shares_cells_and_history | [`a_fork_shares_cells_and_history`] |
//! | seq_rm_frees_only_unowned_cells | [`removing_a_sequence_frees_only_cells_nobody_else_holds`] |
//! | flatten_step_lays_out_the_parallel_arrays | elsewhere: a host helper, laid out by the runner |
//! | fork_at_a_position_shares_only_the_prefix | [`a_fork_at_a_position_shares_only_the_prefix`] |
//! | freeing_the_tail_shrinks_the_read_window | [`freeing_the_tail_lowers_the_high_water`] |
//! | seq_rm_over_a_range_frees_only_that_window | [`removing_a_range_frees_only_that_range`] |
//! | every_verb_range_checks_the_seq_id | [`every_operation_checks_the_sequence`] |
//! | layer_policy_rejects_a_mismatched_window | [`a_window_of_nothing_is_refused`]; a flat layer has no window to mismatch (`Option`), and layers are one entry each |
//! | window_narrows_each_query_without_crossing_sequences | [`a_window_narrows_each_query_within_its_sequence`] |
//! | layers_can_window_independently (cells, contiguous) | [`layers_have_their_own_windows`] |
//! | layers_sharing_a_window_share_one_mask | [`layers_with_one_window_share_one_plan`] |
//! | windowed_decode_attends_only_the_retained_cells | [`a_decode_sees_only_its_window`] |
//! | admission_fails_before_the_forward | [`admission_is_decided_before_the_forward`] |
//! | step_protocol_is_enforced | [`protocol::the_step_protocol_is_enforced`] |
//! | growth_keeps_cell_indices_and_bytes | [`growth_keeps_cell_numbers`]; the bytes in the pools' tests |
//! | sizings_agree, static_sizing_windows_like_dynamic | [`the_first_allocation_changes_no_plan`] |
//! | a_verb_does_not_hide_a_missing_begin_step | [`protocol::an_operation_does_not_hide_a_missing_begin_step`] |
//! | decode_is_unmasked | [`a_decode_sees_everything`] |
//! | fresh_prefill_is_causal | [`a_fresh_prefill_is_causal`] |
//! | continuation_is_an_explicit_lower_right_band | [`a_continuation_is_a_band_at_the_lower_right`] |
//! | decode_attends_only_the_window | [`a_decode_sees_only_its_window`] |
//! | each_prefill_query_attends_its_own_window | [`each_query_of_a_prefill_has_its_own_window`] |
//! | windowed_continuation_bounds_the_band_at_both_ends | [`a_windowed_continuation_is_bounded_at_both_ends`] |
//! | window_equal_to_history_stays_fused, window_wider_than_history_stays_fused | [`a_window_that_holds_all_history_hides_nothing`] |
//! | causal_rejects_a_non_square_window | nothing to reject: there is no causal flag, a plan says what is seen |
//! | explicit_attends_the_true_cells | [`a_true_element_of_the_dense_mask_is_seen`]; the numbers in the conformance suite |

mod protocol;

use kv::{
    Cache, CacheBuilderRegistry, CacheConfig, CacheManager, Cells, Contiguous, KvError,
    LayerConfig, LayerPlan, MAX_SEQUENCES, RingPolicy, SeqCache, SeqId, StepPlan, Tree,
};

const CAPACITY: u32 = 32;

fn config(windows: &[Option<u32>]) -> CacheConfig {
    let layer = |&window| LayerConfig {
        kv_heads: 2,
        key_dim: 8,
        value_dim: 8,
        window,
        sinks: 0,
    };
    CacheConfig::new(CAPACITY, windows.iter().map(layer).collect())
}

fn rings(window: u32) -> CacheConfig {
    let policy = RingPolicy {
        max_step: 8,
        max_rewind: 4,
    };
    CacheConfig {
        ring: Some(policy),
        ..config(&[Some(window)])
    }
}

/// A step of one sequence, from where the cache is.
fn append(cache: &mut impl CacheManager, tokens: u32) -> StepPlan {
    let positions: Vec<i32> = (cache.len() as i32..).take(tokens as usize).collect();
    let mut plan = StepPlan::default();
    cache.plan_declared(&positions, &mut plan).unwrap();
    cache.commit(&plan);
    plan
}

/// One forward whose tokens have these sequences and continue them, from 0 where there is nothing.
fn step(cells: &mut Cells, seqs: &[SeqId]) -> StepPlan {
    let mut next = [None; MAX_SEQUENCES as usize];
    let mut positions = vec![];
    for &seq in seqs {
        let held = cells.seq_next(seq).unwrap().unwrap_or(0);
        let position = next[seq as usize].unwrap_or(held);
        positions.push(position as i32);
        next[seq as usize] = Some(position + 1);
    }
    let mut plan = StepPlan::default();
    cells.begin_step(seqs).unwrap();
    cells.plan_declared(&positions, &mut plan).unwrap();
    cells.commit(&plan);
    plan
}

fn free(cells: &Cells) -> u32 {
    cells.capacity() - cells.len()
}

/// The positions that each query sees.
fn positions(plan: &LayerPlan) -> Vec<Vec<u32>> {
    (0..plan.writes.len())
        .map(|i| {
            plan.visible
                .runs(i)
                .flat_map(|run| run.positions())
                .collect()
        })
        .collect()
}

/// The band of queries from `start` on: everything up to the query's own position, or the last `window`.
fn band(start: u32, tokens: u32, window: u32) -> Vec<Vec<u32>> {
    (start..start + tokens)
        .map(|own| ((own + 1).saturating_sub(window)..=own).collect())
        .collect()
}

fn mask(rows: &[&str]) -> Vec<bool> {
    rows.iter()
        .flat_map(|row| row.chars().map(|c| c == '1'))
        .collect()
}

fn refused<T>(result: Result<T, KvError>) -> String {
    match result {
        Ok(_) => panic!("should have been refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn chunks_see_all_chunks_before() {
    let mut cache = Contiguous::new(&config(&[None]));
    for start in [0, 3] {
        let plan = append(&mut cache, 3);
        assert_eq!(positions(plan.layer(0)), band(start, 3, u32::MAX));
    }
    for start in 6..9 {
        let plan = append(&mut cache, 1);
        assert_eq!(positions(plan.layer(0)), band(start, 1, u32::MAX));
    }
}

#[test]
fn a_step_beyond_the_capacity_is_refused() {
    let mut config = config(&[None]);
    config.capacity = 3;
    let mut plan = StepPlan::default();
    let full = "the cache is full: 5 cells are needed and its capacity is 3";
    let step = [0, 1, 2, 3, 4];
    assert_eq!(
        refused(Contiguous::new(&config).plan_declared(&step, &mut plan)),
        full
    );
    assert_eq!(
        refused(Tree::new(&config).plan_declared(&step, &mut plan)),
        full
    );
}

#[test]
fn a_lone_sequence_is_one_causal_run() {
    let mut cells = Cells::new(&config(&[None]));
    let plan = step(&mut cells, &[0; 5]);
    assert_eq!(positions(plan.layer(0)), band(0, 5, u32::MAX));
    assert!(plan.layer(0).visible.is_single_run());
}

#[test]
fn a_batch_sees_what_its_sequences_see_alone() {
    let mut cells = Cells::new(&config(&[None]));
    let plan = step(&mut cells, &[0, 0, 0, 0, 1, 1, 1]);
    let expected = [band(0, 4, u32::MAX), band(0, 3, u32::MAX)].concat();
    assert_eq!(positions(plan.layer(0)), expected);
    let writes = &plan.layer(0).writes;
    for query in 0..7 {
        for (token, &cell) in writes.iter().enumerate() {
            let same = (query < 4) == (token < 4);
            let sees = plan.layer(0).visible.sees(query, cell);
            assert_eq!(sees, same && token <= query, "{query} {token}");
        }
    }
}

#[test]
fn a_batched_decode_continues_each_sequence() {
    let mut cells = Cells::new(&config(&[None]));
    step(&mut cells, &[0, 0, 0, 1, 1]);
    let plan = step(&mut cells, &[0, 1]);
    let expected = [band(3, 1, u32::MAX), band(2, 1, u32::MAX)].concat();
    assert_eq!(positions(plan.layer(0)), expected);
}

#[test]
fn a_fork_shares_cells_and_history() {
    let mut cells = Cells::new(&config(&[None]));
    step(&mut cells, &[0; 4]);
    cells.seq_cp(0, 1, ..).unwrap();
    assert_eq!((free(&cells), cells.seq_len(1).unwrap()), (CAPACITY - 4, 4));
    let plan = step(&mut cells, &[1]);
    assert_eq!(positions(plan.layer(0)), band(4, 1, u32::MAX));
    let seen = plan.layer(0).visible.runs(0).flat_map(|run| run.cells());
    assert!(seen.take(4).eq(cells.runs(0).unwrap()[0].cells()));
}

#[test]
fn removing_a_sequence_frees_only_cells_nobody_else_holds() {
    let mut cells = Cells::new(&config(&[None]));
    step(&mut cells, &[0; 3]);
    cells.seq_cp(0, 1, ..).unwrap();
    cells.seq_rm(0, ..).unwrap();
    assert_eq!(cells.seq_len(0).unwrap(), 0);
    assert_eq!(cells.seq_len(1).unwrap(), 3, "the fork still holds them");
    assert_eq!(free(&cells), CAPACITY - 3);
    cells.seq_rm(1, ..).unwrap();
    assert_eq!(free(&cells), CAPACITY);
}

#[test]
fn a_fork_at_a_position_shares_only_the_prefix() {
    let mut cells = Cells::new(&config(&[None]));
    step(&mut cells, &[0; 4]);
    cells.seq_cp(0, 1, ..2).unwrap();
    assert_eq!(cells.seq_len(0).unwrap(), 4);
    assert_eq!(cells.seq_len(1).unwrap(), 2, "positions 0 and 1");
    assert_eq!(free(&cells), CAPACITY - 4, "nothing was copied");
    let plan = step(&mut cells, &[1]);
    assert_eq!(positions(plan.layer(0)), [[0, 1, 2]]);
}

#[test]
fn freeing_the_tail_lowers_the_high_water() {
    let mut cells = Cells::new(&config(&[None]));
    assert_eq!(step(&mut cells, &[0; 4]).layer(0).cells, 4);
    cells.seq_rm(0, ..).unwrap();
    assert_eq!((free(&cells), cells.high_water()), (CAPACITY, 0));
    // The next token gets cell 0, so what must be read is that cell alone.
    let plan = step(&mut cells, &[1]);
    assert_eq!(
        (plan.layer(0).cells, &plan.layer(0).writes[..]),
        (1, &[0][..])
    );
}

#[test]
fn removing_a_range_frees_only_that_range() {
    let mut cells = Cells::new(&config(&[None]));
    step(&mut cells, &[0; 5]);
    cells.seq_rm(0, ..2).unwrap();
    assert_eq!((cells.seq_len(0).unwrap(), free(&cells)), (3, CAPACITY - 3));
    cells.seq_rm(0, 4..).unwrap();
    assert_eq!((cells.seq_len(0).unwrap(), free(&cells)), (2, CAPACITY - 2));
    let plan = step(&mut cells, &[0]);
    assert_eq!(positions(plan.layer(0)), [[2, 3, 4]]);
}

#[test]
fn every_operation_checks_the_sequence() {
    let mut cells = Cells::new(&config(&[None]));
    let before = cells.clone();
    for seq in [MAX_SEQUENCES, u32::MAX] {
        let message = format!("sequence {seq} is out of range: the cache has {MAX_SEQUENCES}");
        assert_eq!(refused(cells.begin_step(&[0, seq])), message);
        assert_eq!(refused(cells.seq_cp(0, seq, ..)), message);
        assert_eq!(refused(cells.seq_cp(seq, 0, ..)), message);
        assert_eq!(refused(cells.seq_rm(seq, ..)), message);
        assert_eq!(refused(cells.seq_keep(seq)), message);
        assert_eq!(refused(cells.seq_len(seq)), message);
        assert_eq!(refused(cells.seq_next(seq)), message);
        assert_eq!(refused(cells.runs(seq)), message);
    }
    assert_eq!(cells, before);
    step(&mut cells, &[MAX_SEQUENCES - 1]);
}

#[test]
fn a_window_of_nothing_is_refused() {
    let message = "bad cache configuration: layer 1 has a window of 0";
    assert_eq!(refused(config(&[None, Some(0)]).check()), message);
    assert!(config(&[None, Some(1)]).check().is_ok());
    let registered =
        CacheBuilderRegistry::global().register("windows", |_| panic!("checked before"));
    registered.unwrap();
    let built = CacheBuilderRegistry::global().bytes("windows", &config(&[None, Some(0)]));
    assert_eq!(refused(built), message);
}

#[test]
fn a_window_narrows_each_query_within_its_sequence() {
    let mut cells = Cells::new(&config(&[Some(2)]));
    let plan = step(&mut cells, &[0; 4]);
    let first = ["1000", "1100", "0110", "0011"];
    assert_eq!(plan.layer(0).visible.dense_mask(4), mask(&first));
    // The second sequence is bounded alike, and sees nothing of the first, whose positions are inside its window.
    let plan = step(&mut cells, &[1, 1]);
    assert_eq!(positions(plan.layer(0)), band(0, 2, 2));
    for cell in cells.runs(0).unwrap()[0].cells() {
        assert!((0..2).all(|query| !plan.layer(0).visible.sees(query, cell)));
    }
}

#[test]
fn layers_have_their_own_windows() {
    let two = config(&[None, Some(2)]);
    let mut cells = Cells::new(&two);
    let caches = [
        step(&mut cells, &[0; 4]),
        append(&mut Contiguous::new(&two), 4),
        append(&mut Tree::new(&two), 4),
    ];
    for plan in caches {
        assert_eq!(positions(plan.layer(0)), band(0, 4, u32::MAX));
        assert_eq!(positions(plan.layer(1)), band(0, 4, 2));
    }
}

#[test]
fn layers_with_one_window_share_one_plan() {
    let three = config(&[None, Some(2), Some(2)]);
    let mut cells = Cells::new(&three);
    let caches = [
        step(&mut cells, &[0; 4]),
        append(&mut Contiguous::new(&three), 4),
        append(&mut Tree::new(&three), 4),
    ];
    for plan in caches {
        assert!(std::ptr::eq(plan.layer(1), plan.layer(2)));
        assert!(!std::ptr::eq(plan.layer(0), plan.layer(1)));
    }
}

#[test]
fn a_decode_sees_only_its_window() {
    let mut cells = Cells::new(&config(&[Some(2)]));
    step(&mut cells, &[0; 4]);
    assert_eq!(positions(step(&mut cells, &[0]).layer(0)), [[3, 4]]);
    for config in [config(&[Some(3)]), rings(3)] {
        let mut cache = Contiguous::new(&config);
        append(&mut cache, 5);
        assert_eq!(positions(append(&mut cache, 1).layer(0)), [[3, 4, 5]]);
    }
}

#[test]
fn admission_is_decided_before_the_forward() {
    let mut config = config(&[None]);
    config.capacity = 4;
    let mut cells = Cells::new(&config);
    assert!(cells.can_extend(4) && !cells.can_extend(5));
    let full = "the cache is full: 5 cells are needed and its capacity is 4";
    assert_eq!(refused(cells.begin_step(&[0; 5])), full);
    // What is shared counts once: two sequences of four in four cells.
    step(&mut cells, &[0; 3]);
    cells.seq_cp(0, 1, ..).unwrap();
    assert!(cells.can_extend(1));
    step(&mut cells, &[1]);
    assert!(!cells.can_extend(1));
}

#[test]
fn growth_keeps_cell_numbers() {
    let mut cells = Cells::new(&config(&[None]));
    let plan = step(&mut cells, &[0, 0]);
    assert_eq!(plan.layer(0).cells, 2, "a short session needs few cells");
    let before = cells.runs(0).unwrap()[0];
    let plan = step(&mut cells, &[0; 6]);
    assert_eq!(plan.layer(0).cells, 8);
    assert_eq!(plan.layer(0).writes, [2, 3, 4, 5, 6, 7]);
    assert_eq!(cells.runs(0).unwrap()[0].clip(&(0..2)), Some(before));
}

#[test]
fn the_first_allocation_changes_no_plan() {
    let small = config(&[None, Some(2)]);
    let whole = CacheConfig {
        initial_cells: CAPACITY,
        ..small.clone()
    };
    let (mut a, mut b) = (Contiguous::new(&small), Contiguous::new(&whole));
    let (mut c, mut d) = (Cells::new(&small), Cells::new(&whole));
    for tokens in [4, 1, 3] {
        let (one, two) = (append(&mut a, tokens), append(&mut b, tokens));
        let seqs = vec![0; tokens as usize];
        let (three, four) = (step(&mut c, &seqs), step(&mut d, &seqs));
        for layer in 0..2 {
            assert_eq!(one.layer(layer), two.layer(layer));
            assert_eq!(three.layer(layer), four.layer(layer));
        }
    }
}

#[test]
fn a_decode_sees_everything() {
    let mut cache = Contiguous::new(&config(&[None]));
    let plan = append(&mut cache, 1);
    assert_eq!(positions(plan.layer(0)), [[0]]);
    let plan = append(&mut cache, 1);
    assert_eq!(positions(plan.layer(0)), [[0, 1]]);
    assert!(plan.layer(0).visible.is_single_run());
}

#[test]
fn a_fresh_prefill_is_causal() {
    let plan = append(&mut Contiguous::new(&config(&[None])), 4);
    let causal = ["1000", "1100", "1110", "1111"];
    assert_eq!(plan.layer(0).visible.dense_mask(4), mask(&causal));
    assert!(plan.layer(0).visible.is_single_run());
}

#[test]
fn a_continuation_is_a_band_at_the_lower_right() {
    let mut cache = Contiguous::new(&config(&[None]));
    append(&mut cache, 4);
    let plan = append(&mut cache, 3);
    let band = ["1111100", "1111110", "1111111"];
    assert_eq!(plan.layer(0).visible.dense_mask(7), mask(&band));
}

#[test]
fn each_query_of_a_prefill_has_its_own_window() {
    for config in [config(&[Some(2)]), rings(2)] {
        let plan = append(&mut Contiguous::new(&config), 4);
        assert_eq!(positions(plan.layer(0)), band(0, 4, 2));
    }
}

#[test]
fn a_windowed_continuation_is_bounded_at_both_ends() {
    let mut cache = Contiguous::new(&config(&[Some(2)]));
    append(&mut cache, 4);
    let plan = append(&mut cache, 3);
    let band = ["0001100", "0000110", "0000011"];
    assert_eq!(plan.layer(0).visible.dense_mask(7), mask(&band));
}

#[test]
fn a_window_that_holds_all_history_hides_nothing() {
    for (window, then) in [(64, vec![0, 1, 2, 3, 4]), (4, vec![1, 2, 3, 4])] {
        for config in [config(&[Some(window)]), rings(window)] {
            let mut cache = Contiguous::new(&config);
            let plan = append(&mut cache, 4);
            assert_eq!(positions(plan.layer(0)), band(0, 4, u32::MAX));
            assert!(plan.layer(0).visible.is_single_run());
            // One cell beyond a window of four the band appears.
            assert_eq!(
                positions(append(&mut cache, 1).layer(0)),
                std::slice::from_ref(&then)
            );
        }
    }
}

#[test]
fn a_true_element_of_the_dense_mask_is_seen() {
    let mut cells = Cells::new(&config(&[None]));
    step(&mut cells, &[0; 5]);
    cells.seq_rm(0, 1..2).unwrap();
    cells.seq_rm(0, 3..4).unwrap();
    let plan = step(&mut cells, &[0]);
    assert_eq!(positions(plan.layer(0)), [[0, 2, 4, 5]]);
    assert_eq!(plan.layer(0).writes, [5]);
    assert_eq!(plan.layer(0).visible.dense_mask(6), mask(&["101011"]));
}
