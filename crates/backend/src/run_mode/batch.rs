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
    /// The tokens of every sequence in a uniform decode: 1, or 1 plus its candidates. `None` for a mixed step.
    pub query_len: Option<usize>,
}

impl BatchDescriptor {
    /// The descriptor of a step. It is a uniform decode when every sequence has the same number of tokens, at most
    /// `max_query_len`. Tokens of a sequence are expected side by side; a sequence that comes twice counts twice.
    pub fn of(step: &Step, max_query_len: usize) -> BatchDescriptor {
        let tokens = &step.tokens()[..step.real_len()];
        let groups = tokens.chunk_by(|a, b| a.seq == b.seq);
        let (sequences, longest) = groups.fold((0, 0), |(count, longest), group| {
            (count + 1, group.len().max(longest))
        });
        BatchDescriptor {
            tokens: step.len(),
            rows: step.rows().len(),
            sequences: Some(sequences),
            query_len: (longest <= max_query_len && tokens.len() == longest * sequences)
                .then_some(longest),
        }
    }

    /// The decode of one token of each of these sequences.
    pub(crate) const fn decode(sequences: usize) -> BatchDescriptor {
        BatchDescriptor {
            tokens: sequences,
            rows: sequences,
            sequences: Some(sequences),
            query_len: Some(1),
        }
    }

    /// The descriptor whose recording serves any number of sequences.
    pub const fn relaxed(self) -> BatchDescriptor {
        BatchDescriptor {
            sequences: None,
            query_len: None,
            ..self
        }
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
        // Parts of a step; the most tokens of a decode; sequences; the tokens of a uniform decode.
        type Row = (&'static [(u32, usize)], usize, usize, Option<usize>);
        let table: [Row; 6] = [
            (&[(0, 1)], 1, 1, Some(1)),
            (&[(0, 1), (3, 1), (5, 1)], 1, 3, Some(1)),
            (&[(0, 2), (3, 1)], 1, 2, None),
            (&[(0, 3), (3, 3)], 3, 2, Some(3)),
            (&[(0, 7)], 1, 1, None),
            (&[(0, 1), (1, 1)], 9, 2, Some(1)),
        ];
        for (parts, max_query_len, sequences, query_len) in table {
            let found = BatchDescriptor::of(&step(parts), max_query_len);
            assert_eq!(found.sequences, Some(sequences), "{parts:?}");
            assert_eq!(found.query_len, query_len, "{parts:?}");
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
            query_len: Some(1),
        };
        assert_eq!(BatchDescriptor::of(&step, 1), expect);
    }
}
