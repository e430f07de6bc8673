//! Operations of a history, drawn at random.

use super::*;

pub(super) type Positions = (Bound<u32>, Bound<u32>);

#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// Declares so many tokens of each sequence, one sequence after the other or in turns.
    Begin {
        parts: Vec<(SeqId, usize)>,
        in_turns: bool,
    },
    Forward(Forward),
    /// Declares candidates of a sequence, and runs a forward if one is given.
    Propose {
        seq: SeqId,
        /// The parent among the candidates so far, by its number plus one; 0 for none.
        parents: Vec<u8>,
        forward: Option<Forward>,
    },
    /// Commits the path to a candidate, without some of its nodes if it is to be no chain.
    Accept {
        seq: SeqId,
        leaf: u8,
        skip: Option<u8>,
    },
    /// Both.
    Step {
        parts: Vec<(SeqId, usize)>,
        in_turns: bool,
        forward: Forward,
    },
    Copy {
        src: SeqId,
        dst: SeqId,
        range: Positions,
    },
    Remove {
        seq: SeqId,
        range: Positions,
    },
    Keep {
        seq: SeqId,
    },
    Rewind {
        len: u32,
    },
    Retain {
        src: SeqId,
        range: Positions,
    },
    Release {
        id: SeqId,
    },
    Clear,
    Compact,
    /// A forward that never got as far as a plan.
    Abort,
}

#[derive(Clone, Debug)]
pub(super) struct Forward {
    /// Where a sequence that holds nothing begins.
    pub(super) start: u32,
    pub(super) end: End,
    pub(super) wrong: Option<Wrong>,
}

#[derive(Clone, Debug)]
pub(super) enum Wrong {
    TokenMissing,
    TokenTooMany,
    Position { index: usize, by: i32 },
}

pub(super) fn seq() -> impl Strategy<Value = SeqId> {
    prop_oneof![
        24 => 0u32..5,
        2 => Just(MAX_SEQUENCES - 1),
        1 => prop::sample::select(vec![MAX_SEQUENCES, u32::MAX]),
    ]
}

/// A sequence, or a retained prefix, which may exist or not.
pub(super) fn owner() -> impl Strategy<Value = SeqId> {
    prop_oneof![3 => seq(), 1 => MAX_SEQUENCES..MAX_SEQUENCES + 4]
}

pub(super) fn range() -> impl Strategy<Value = Positions> {
    let bound = || {
        prop_oneof![
            2 => Just(Bound::Unbounded),
            3 => (0u32..16).prop_map(Bound::Included),
            3 => (0u32..16).prop_map(Bound::Excluded),
        ]
    };
    (bound(), bound())
}

pub(super) fn forward() -> impl Strategy<Value = Forward> {
    let wrong = prop_oneof![
        Just(Wrong::TokenMissing),
        Just(Wrong::TokenTooMany),
        (
            0usize..8,
            prop::sample::select(vec![-40, -1, 1, 7, i32::MAX])
        )
            .prop_map(|(index, by)| Wrong::Position { index, by }),
    ];
    let wrong = prop::option::weighted(0.1, wrong);
    let start = prop_oneof![3 => Just(0u32), 1 => 0u32..6];
    (start, end(), wrong).prop_map(|(start, end, wrong)| Forward { start, end, wrong })
}

pub(super) fn parts() -> impl Strategy<Value = Vec<(SeqId, usize)>> {
    let tokens = prop_oneof![2 => Just(1usize), 1 => 1usize..6];
    prop::collection::vec((seq(), tokens), 0..4)
}

pub(super) fn propose() -> impl Strategy<Value = Operation> {
    let parents = prop::collection::vec(0u8..9, 0..6);
    let forward = prop::option::weighted(0.8, forward());
    (seq(), parents, forward).prop_map(|(seq, parents, forward)| Operation::Propose {
        seq,
        parents,
        forward,
    })
}

pub(super) fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        14 => (parts(), any::<bool>(), forward()).prop_map(|(parts, in_turns, forward)| {
            Operation::Step { parts, in_turns, forward }
        }),
        2 => (parts(), any::<bool>()).prop_map(|(parts, in_turns)| Operation::Begin { parts, in_turns }),
        2 => forward().prop_map(Operation::Forward),
        10 => propose(),
        6 => (seq(), any::<u8>(), prop::option::weighted(0.1, any::<u8>()))
            .prop_map(|(seq, leaf, skip)| Operation::Accept { seq, leaf, skip }),
        5 => (owner(), owner(), range()).prop_map(|(src, dst, range)| Operation::Copy { src, dst, range }),
        3 => (owner(), range()).prop_map(|(src, range)| Operation::Retain { src, range }),
        2 => (MAX_SEQUENCES..MAX_SEQUENCES + 4).prop_map(|id| Operation::Release { id }),
        5 => (seq(), range()).prop_map(|(seq, range)| Operation::Remove { seq, range }),
        1 => seq().prop_map(|seq| Operation::Keep { seq }),
        1 => (0u32..20).prop_map(|len| Operation::Rewind { len }),
        2 => Just(Operation::Compact),
        1 => Just(Operation::Clear),
        1 => Just(Operation::Abort),
    ]
}
