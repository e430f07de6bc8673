//! The counterparts of the seed's tracker tests, and what goes beyond them.

use super::*;
use crate::LayerConfig;

fn index(max_seq_len: u32, sequences: u32) -> ScatterIndex {
    let layer = LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window: None,
        sinks: 0,
    };
    let config = CacheConfig {
        initial_cells: 4,
        ..CacheConfig::uniform(max_seq_len, 1, layer)
    };
    ScatterIndex::new(&config, sequences)
}

/// One step of an only sequence: the row written to and the valid rows afterwards.
fn advance(index: &mut ScatterIndex, tokens: u32, real: u32) -> (i64, i64) {
    let step = index.indices(tokens, &[real]).unwrap();
    index.advance(&step);
    (step.write_indices[0], step.nonpad_kv_seqlen[0])
}

#[test]
fn the_first_step_writes_at_row_0() {
    let mut one = index(16, 1);
    assert_eq!(advance(&mut one, 1, 1), (0, 1));
    assert_eq!(advance(&mut index(16, 1), 4, 4), (0, 4), "not 2N - 1");
}

#[test]
fn decode_appends_behind_the_prefill() {
    let mut index = index(16, 1);
    assert_eq!(advance(&mut index, 4, 4), (0, 4));
    assert_eq!(advance(&mut index, 1, 1), (4, 5));
    assert_eq!(advance(&mut index, 1, 1), (5, 6));
}

#[test]
fn chunks_of_a_prefill_follow_each_other() {
    let mut index = index(16, 1);
    let steps: Vec<(i64, i64)> = [3, 2, 4].map(|n| advance(&mut index, n, n)).to_vec();
    assert_eq!(steps, [(0, 3), (3, 5), (5, 9)]);
}

#[test]
fn every_step_writes_where_the_one_before_ended() {
    let mut index = index(64, 1);
    let mut end = 0;
    for tokens in [5, 1, 1, 7, 2, 1] {
        let (write, valid) = advance(&mut index, tokens, tokens);
        assert_eq!((write, valid), (end, end + i64::from(tokens)));
        end = valid;
    }
}

#[test]
fn pads_are_written_and_stay_invalid() {
    let mut index = index(16, 1);
    assert_eq!(advance(&mut index, 6, 4), (0, 4));
    assert_eq!(advance(&mut index, 1, 0), (4, 4), "a pad alone stalls");
    assert_eq!(advance(&mut index, 1, 1), (4, 5));
}

#[test]
fn a_rewind_moves_the_index_stream() {
    let mut index = index(16, 1);
    advance(&mut index, 8, 8);
    index.rewind(3).unwrap();
    assert_eq!(advance(&mut index, 2, 2), (3, 5));
    let error = index.rewind(6).unwrap_err();
    assert_eq!(error.to_string(), "cannot rewind to 6: the cache holds 5");
}

#[test]
fn sequences_have_indices_of_their_own() {
    let mut index = index(16, 3);
    let step = index.indices(4, &[4, 2, 0]).unwrap();
    index.advance(&step);
    index.seq_rm(0, 1..).unwrap();
    let step = index.indices(1, &[1, 1, 1]).unwrap();
    assert_eq!(step.write_indices, [1, 2, 0]);
    assert_eq!(step.nonpad_kv_seqlen, [2, 3, 1]);
}

#[test]
fn overflow_names_the_numbers_and_changes_nothing() {
    let mut index = index(8, 2);
    let step = index.indices(6, &[6, 1]).unwrap();
    index.advance(&step);
    let before = index.clone();
    // The pads of the shorter sequence have rows too.
    let full = "sequence 0 needs 9 rows, and static buffers have a max_seq_len of 8";
    assert_eq!(index.indices(3, &[0, 3]).unwrap_err().to_string(), full);
    let error = index.begin_step(&[0, 1, 0, 1, 0]).unwrap_err();
    assert_eq!(error.to_string(), full);
    assert_eq!(index, before);
    assert!(index.can_extend(2) && !index.can_extend(3));
    for (tokens, real, message) in [
        (0, &[0, 0][..], "a step needs at least one token"),
        (1, &[1][..], "the cache has 2 sequences, and the step has 1"),
        (
            1,
            &[2, 0][..],
            "the step was declared with 1 tokens, and the forward has 2",
        ),
    ] {
        let error = index.indices(tokens, real).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn what_static_buffers_cannot_do_is_refused() {
    let mut index = index(8, 2);
    let step = index.indices(6, &[6, 6]).unwrap();
    index.advance(&step);
    let messages = [
        index.seq_cp(0, 1, ..).unwrap_err(),
        index.seq_rm(1, 2..4).unwrap_err(),
        index
            .begin_padded_step(&[(1, false), (1, true)])
            .unwrap_err(),
        index.begin_step(&[2]).unwrap_err(),
    ]
    .map(|error| error.to_string());
    assert_eq!(
        messages,
        [
            "sequence 1 cannot share rows of sequence 0: each sequence has its own static buffer",
            "cannot remove the positions before 4: sequence 1 holds 6, and a static buffer has no holes",
            "token 1 of the step follows a pad of sequence 1: pads must come last",
            "sequence 2 is out of range: the cache has 2",
        ]
    );
    assert_eq!(index.valid_rows, [6, 6]);
}

/// A row's cell does not depend on how many rows are in use, no two rows share one, and cells follow the rows used.
#[test]
fn growth_renumbers_no_cell() {
    for sequences in 1..5 {
        let index = index(29, sequences);
        let mut cells = vec![];
        for rows in [4, 8, 16, 29] {
            cells.clear();
            for seq in 0..sequences as usize {
                cells.extend((0..rows).map(|row| index.cell(seq, row)));
                let runs = index.runs(seq, rows);
                let placed = runs.flat_map(|run| run.positions().zip(run.cells()));
                assert!(placed.eq((0..rows).map(|row| (row, index.cell(seq, row)))));
            }
            cells.sort_unstable();
            assert!(cells.iter().copied().eq(0..rows * sequences));
        }
        assert!(sequences > 1 || (0..29).all(|row| index.cell(0, row) == row));
    }
}
