//! `BatchDescriptor`: the size of a step, which is the key of its recording.

use kv::Step;

/// The key of a recording: everything about a step that determines the recorded work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchDescriptor {
    /// Tokens, padding included.
    pub tokens: usize,
    /// Rows whose outputs are wanted, padding included.
    pub rows: usize,
    /// Sequences; `None` if the recording serves any number of them.
    pub sequences: Option<usize>,
    /// Whether every sequence has the same number of tokens, that of a decode.
    pub uniform: bool,
}

impl BatchDescriptor {
    /// The descriptor of a step. It is uniform when every sequence has `query_len` tokens. Tokens of a sequence are
    /// expected side by side; a sequence that comes twice counts twice.
    pub fn of(step: &Step, query_len: usize) -> BatchDescriptor {
        let tokens = &step.tokens()[..step.real_len()];
        let groups = tokens.chunk_by(|a, b| a.seq == b.seq);
        let (sequences, longest) = groups.fold((0, 0), |(count, longest), group| {
            (count + 1, group.len().max(longest))
        });
        BatchDescriptor {
            tokens: step.len(),
            rows: step.rows().len(),
            sequences: Some(sequences),
            uniform: longest == query_len && tokens.len() == query_len * sequences,
        }
    }

    /// The descriptor whose recording serves any number of sequences.
    pub const fn relaxed(self) -> BatchDescriptor {
        BatchDescriptor {
            sequences: None,
            uniform: false,
            ..self
        }
    }

    /// The same descriptor with 0 rows, which is the form of a dispatcher's keys.
    pub(super) const fn without_rows(self) -> BatchDescriptor {
        BatchDescriptor { rows: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(parts: &[(u32, usize)]) -> Step {
        let mut step = Step::default();
        for &(seq, tokens) in parts {
            step.extend(seq, 0, &vec![1; tokens]);
        }
        step
    }

    #[test]
    fn uniform_steps_have_as_many_tokens_of_every_sequence() {
        // Parts of a step; tokens of a decode; sequences; whether the step is uniform.
        type Row = (&'static [(u32, usize)], usize, usize, bool);
        let table: [Row; 6] = [
            (&[(0, 1)], 1, 1, true),
            (&[(0, 1), (3, 1), (5, 1)], 1, 3, true),
            (&[(0, 2), (3, 1)], 1, 2, false),
            (&[(0, 3), (3, 3)], 3, 2, true),
            (&[(0, 7)], 1, 1, false),
            (&[(0, 1), (1, 1)], 2, 2, false),
        ];
        for (parts, query_len, sequences, uniform) in table {
            let found = BatchDescriptor::of(&step(parts), query_len);
            assert_eq!(found.sequences, Some(sequences), "{parts:?}");
            assert_eq!(found.uniform, uniform, "{parts:?}");
        }
    }

    #[test]
    fn padding_counts_as_tokens_and_not_as_a_sequence() {
        let mut step = step(&[(2, 1), (4, 1)]);
        step.want(0);
        step.pad_to(4, 2);
        let expect = BatchDescriptor {
            tokens: 4,
            rows: 2,
            sequences: Some(2),
            uniform: true,
        };
        assert_eq!(BatchDescriptor::of(&step, 1), expect);
    }
}
