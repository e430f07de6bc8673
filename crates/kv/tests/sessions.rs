//! A session's operations with their byte half: every row is a tag of the token that wrote it, so a test sees which row a
//! position has after saves, restores, shifts, freezes, compactions and commits, and what a failing device leaves
//! behind.

use kv::{
    CacheBuilderRegistry, CacheConfig, CacheManager, CacheRegistry, CacheSession, CellRun, Cells,
    Compaction, Contiguous, FrozenKv, GatherPlan, KvBytes, KvError, KvErrorKind, KvStorage,
    LayerConfig, NO_CELL, Restorable, RingPolicy, Role, RowBlock, SavedPositions, SeqId, Side,
    Step, StepPlan, StepToken, make_decode_session, make_prefixed_session, make_seq_session,
    make_tree_session,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Rows by layer, side and cell. A row has one head of four f32, all of them the tag.
#[derive(Clone)]
struct Ledger {
    config: CacheConfig,
    /// The cells of a shared prefix in each layer, which come first.
    frozen: Vec<u32>,
    rows: HashMap<(usize, bool, u32), u32>,
}

/// Makes every operation on rows fail as a lost device does.
static BROKEN: AtomicBool = AtomicBool::new(false);
/// Tests that break the device run one after another.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Breaks the device while `f` runs.
fn broken<R>(f: impl FnOnce() -> R) -> R {
    BROKEN.store(true, Ordering::SeqCst);
    let result = f();
    BROKEN.store(false, Ordering::SeqCst);
    result
}

fn device() -> Result<(), KvError> {
    match BROKEN.load(Ordering::SeqCst) {
        true => Err(KvErrorKind::Device("lost".into()).into()),
        false => Ok(()),
    }
}

impl Ledger {
    fn tag(&self, layer: usize, side: Side, cell: u32) -> u32 {
        let key = (layer, side == Side::Value, cell);
        *self.rows.get(&key).unwrap_or(&u32::MAX)
    }
}

impl KvBytes for Ledger {
    fn config(&self) -> &CacheConfig {
        &self.config
    }

    fn resident_bytes(&self) -> usize {
        16 * self.rows.len()
    }

    fn gather(&mut self, gather: &GatherPlan) -> Result<(), KvError> {
        device()?;
        for layer in 0..self.config.layers.len() {
            let ring = self
                .config
                .growth(&self.config.layers[layer])
                .max_rows_per_sequence;
            let frozen = self.frozen[layer];
            for (to, from) in (gather.base..).zip(&gather.rows) {
                for value in [false, true] {
                    let row = self.rows[&(layer, value, frozen + from % ring)];
                    self.rows.insert((layer, value, frozen + to % ring), row);
                }
            }
        }
        Ok(())
    }

    fn reorder(&mut self, order: &Compaction) -> Result<(), KvError> {
        device()?;
        let before = self.rows.clone();
        for layer in 0..self.config.layers.len() {
            let Some(order) = order.layer(layer) else {
                continue;
            };
            let frozen = self.frozen[layer];
            self.rows
                .retain(|(known, _, cell), _| *known != layer || *cell < frozen);
            for (to, from) in (frozen..).zip(order) {
                for value in [false, true] {
                    let row = before.get(&(layer, value, frozen + *from)).copied();
                    self.rows.extend(row.map(|row| ((layer, value, to), row)));
                }
            }
        }
        Ok(())
    }

    fn read_rows(
        &self,
        layer: usize,
        side: Side,
        runs: &[CellRun],
        out: &mut [u8],
    ) -> Result<(), KvError> {
        device()?;
        let cells = runs.iter().flat_map(CellRun::cells);
        for (cell, out) in cells.zip(out.chunks_mut(16)) {
            let tag = self.tag(layer, side, cell);
            out.copy_from_slice(&[tag.to_le_bytes(); 4].concat());
        }
        Ok(())
    }

    fn write_rows(&mut self, blocks: &[RowBlock<'_>]) -> Result<(), KvError> {
        device()?;
        for block in blocks {
            let cells = block.runs.iter().flat_map(CellRun::cells);
            for (cell, row) in cells.zip(block.bytes.chunks(16)) {
                let tag = u32::from_le_bytes(row[..4].try_into().unwrap());
                let key = (block.layer, block.side == Side::Value, cell);
                self.rows.insert(key, tag);
            }
        }
        Ok(())
    }

    fn freeze(&mut self, cells: &[u32]) -> Result<Arc<dyn FrozenKv>, KvError> {
        device()?;
        self.frozen = cells.to_vec();
        Ok(Arc::new(Frozen(self.clone())))
    }
}

struct Frozen(Ledger);

impl FrozenKv for Frozen {
    fn open(self: Arc<Self>, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        device()?;
        Ok(Box::new(Ledger {
            config: config.clone(),
            ..self.0.clone()
        }))
    }

    fn resident_bytes(&self) -> usize {
        self.0.resident_bytes()
    }
}

const BACKEND: &str = "ledger";

/// A full layer and one with a window of four.
fn config(ring: bool) -> CacheConfig {
    let registered = CacheBuilderRegistry::global().register(BACKEND, |config| {
        Ok(Box::new(Ledger {
            config: config.clone(),
            frozen: vec![0; config.layers.len()],
            rows: HashMap::new(),
        }))
    });
    registered.unwrap();
    let layer = |window| LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window,
        sinks: 0,
    };
    let mut config = CacheConfig::new(32, vec![layer(None), layer(Some(4))]);
    (config.key_storage, config.value_storage) = (KvStorage::F32, KvStorage::F32);
    config.ring = ring.then_some(RingPolicy {
        max_step: 6,
        max_rewind: 3,
    });
    config
}

/// A forward that writes each token's id as its row.
fn forward<K: CacheManager>(session: &CacheSession<K>, step: &Step) -> Result<StepPlan, KvError> {
    let entry = CacheRegistry::global().get(session.key())?;
    let mut state = entry.try_lock()?;
    state.run(step, |plan, bytes| {
        for layer in 0..plan.layers() {
            for (token, &cell) in step.tokens().iter().zip(&plan.layer(layer).writes) {
                let row = [token.id.to_le_bytes(); 4].concat();
                let run = CellRun {
                    position: 0,
                    cell,
                    len: 1,
                };
                let block = |side| RowBlock {
                    layer,
                    side,
                    runs: std::slice::from_ref(&run),
                    cells: plan.layer(layer).cells,
                    bytes: &row,
                    head_stride: 16,
                };
                if cell != NO_CELL {
                    bytes.write_rows(&[block(Side::Key), block(Side::Value)])?;
                }
            }
        }
        Ok(plan.clone())
    })
}

/// Feeds these ids to a sequence, after what it holds.
fn feed<K: CacheManager + Restorable>(session: &CacheSession<K>, seq: SeqId, ids: &[u32]) {
    for ids in ids.chunks(3) {
        let held = tags(session, seq).len() as u32;
        let mut step = Step::default();
        step.extend(seq, held, ids);
        forward(session, &step).unwrap();
    }
}

/// The tags of a sequence's keys in the full layer, by position.
fn tags<K: CacheManager + Restorable>(session: &CacheSession<K>, seq: SeqId) -> Vec<u32> {
    layer_tags(session, seq, 0).1
}

/// The first position that a layer holds of a sequence, and the tags from there on.
fn layer_tags<K: CacheManager + Restorable>(
    session: &CacheSession<K>,
    seq: SeqId,
    layer: usize,
) -> (u32, Vec<u32>) {
    let read = session.read_sequence(seq, |rows, bytes| {
        let mut out = vec![0; 16 * rows.row_count(layer)];
        bytes
            .read_rows(layer, Side::Key, rows.runs(layer), &mut out)
            .unwrap();
        let tag = |row: &[u8]| u32::from_le_bytes(row[..4].try_into().unwrap());
        (
            rows.first_position(layer),
            out.chunks(16).map(tag).collect(),
        )
    });
    read.unwrap()
}

/// Replaces what a sequence holds by `len` tokens whose rows have these tags, in every layer from position `first` on.
fn replace<K: CacheManager + Restorable>(
    session: &CacheSession<K>,
    seq: SeqId,
    len: u32,
    first: u32,
    tag: impl Fn(u32) -> u32,
) -> Result<(), KvError> {
    let saved = SavedPositions {
        first: &[0, first],
        states: &[],
    };
    session.replace_sequence(seq, len, saved, |rows, bytes| {
        for layer in 0..rows.layers() {
            let positions = rows.first_position(layer)..rows.len;
            let all: Vec<u8> = positions
                .flat_map(|p| [tag(p).to_le_bytes(); 4].concat())
                .collect();
            let block = |side| RowBlock {
                layer,
                side,
                runs: rows.runs(layer),
                cells: rows.cells(layer),
                bytes: &all,
                head_stride: all.len(),
            };
            bytes.write_rows(&[block(Side::Key), block(Side::Value)])?;
        }
        Ok(())
    })
}

/// Moves the rows of a shift as a backend does, and marks the keys that were rotated.
fn move_rows(shift: &kv::RowShift, bytes: &mut dyn KvBytes) -> Result<(), KvError> {
    for layer in 0..shift.layers() {
        let moved = shift.layer(layer);
        for side in [Side::Key, Side::Value] {
            let mut rows = vec![0; 16 * moved.positions.len()];
            bytes.read_rows(layer, side, &moved.from, &mut rows)?;
            for row in rows.chunks_mut(16) {
                row[1] += u8::from(side == Side::Key);
            }
            bytes.write_rows(&[RowBlock {
                layer,
                side,
                runs: &moved.to,
                cells: moved.cells,
                bytes: &rows,
                head_stride: rows.len(),
            }])?;
        }
    }
    Ok(())
}

fn kind<T: std::fmt::Debug>(result: Result<T, KvError>) -> KvErrorKind {
    result.unwrap_err().kind().clone()
}

#[test]
fn a_replaced_sequence_has_the_new_rows_and_its_neighbours_theirs() {
    let _alone = alone();
    for ring in [false, true] {
        let (session, _) = make_seq_session(BACKEND, &config(ring)).unwrap();
        feed(&session, 0, &[10, 11, 12, 13, 14]);
        feed(&session, 1, &[20, 21, 22]);
        session.seq_cp(0, 2, ..).unwrap();
        replace(&session, 0, 8, 0, |p| 100 + p).unwrap();
        assert_eq!(tags(&session, 0), (100..108).collect::<Vec<_>>());
        assert_eq!(tags(&session, 1), [20, 21, 22]);
        assert_eq!(
            tags(&session, 2),
            [10, 11, 12, 13, 14],
            "the fork keeps its rows"
        );
        let (first, window) = layer_tags(&session, 0, 1);
        assert_eq!(window, (100 + first..108).collect::<Vec<_>>());
        assert!(first <= 8 + 1 - 4, "the window of the next token is there");
        feed(&session, 0, &[108]);
        assert_eq!(tags(&session, 0).last(), Some(&108));
    }
}

#[test]
fn rows_that_lack_what_is_seen_are_refused_and_nothing_changes() {
    let _alone = alone();
    let (session, _) = make_decode_session(BACKEND, &config(true)).unwrap();
    feed(&session, 0, &[1, 2, 3]);
    // A window of four sees positions 5, 6 and 7 from position 8.
    let error = kind(replace(&session, 0, 8, 6, |p| p));
    assert_eq!(
        KvError::from(error).to_string(),
        "the saved rows do not fit the cache: layer 1 has rows from position 6 on, and position 5 is needed"
    );
    let full = KvErrorKind::Full {
        needed: 33,
        capacity: 32,
    };
    assert_eq!(kind(replace(&session, 0, 33, 0, |p| p)), full);
    let other = KvErrorKind::UnknownSequence { seq: 1, max: 1 };
    assert_eq!(kind(replace(&session, 1, 2, 0, |p| p)), other);
    assert_eq!(tags(&session, 0), [1, 2, 3]);
    replace(&session, 0, 8, 5, |p| 50 + p).unwrap();
    assert_eq!(session.len().unwrap(), 8);
    assert_eq!(layer_tags(&session, 0, 1), (5, vec![55, 56, 57]));
    // What the window does not have cannot be gone back to.
    let floor = session.with(|cache| cache.rewind_floor()).unwrap();
    assert!(session.rewind(floor).is_ok() && floor > 0);
}

#[test]
fn a_shift_moves_the_later_rows_down_and_rotates_their_keys() {
    let _alone = alone();
    for ring in [false, true] {
        let (session, _) = make_seq_session(BACKEND, &config(ring)).unwrap();
        feed(&session, 3, &(1..=10).collect::<Vec<u32>>());
        session.seq_cp(3, 4, ..).unwrap();
        let max = session.max_shift(3, 2).unwrap();
        assert_eq!(max, if ring { 6 } else { 8 });
        session.shift(3, 2, 4, move_rows).unwrap();
        // Rotated keys are marked in their second byte.
        let moved: Vec<u32> = (7..=10).map(|tag| tag + 256).collect();
        assert_eq!(tags(&session, 3), [&[1, 2][..], &moved].concat());
        assert_eq!(
            tags(&session, 4),
            (1..=10).collect::<Vec<_>>(),
            "shared rows stay"
        );
        let (first, window) = layer_tags(&session, 3, 1);
        assert_eq!(window, tags(&session, 3)[first as usize..]);
        let refused = KvErrorKind::Shift {
            keep: 2,
            dropped: 5,
            len: 6,
        };
        assert_eq!(kind(session.shift(3, 2, 5, move_rows)), refused);
        assert_eq!(session.seq_len(3).unwrap(), 6);
        feed(&session, 3, &[11]);
        assert_eq!(session.seq_next(3).unwrap(), Some(7));
    }
    let (session, _) = make_decode_session(BACKEND, &config(false)).unwrap();
    feed(&session, 0, &[1, 2, 3, 4]);
    session.shift(0, 0, 3, move_rows).unwrap();
    assert_eq!(tags(&session, 0), [4 + 256]);
}

#[test]
fn sessions_behind_a_prefix_share_it_and_nothing_else() {
    let _alone = alone();
    let config = config(false);
    let (first, _) = make_decode_session(BACKEND, &config).unwrap();
    feed(&first, 0, &[1, 2, 3]);
    let prefix = first.freeze().unwrap();
    assert_eq!((prefix.len(), prefix.is_empty()), (3, false));
    assert!(prefix.resident_bytes() > 0);
    let (second, _) = make_prefixed_session(&prefix).unwrap();
    feed(&first, 0, &[4]);
    feed(&second, 0, &[5, 6]);
    assert_eq!(tags(&first, 0), [1, 2, 3, 4]);
    assert_eq!(tags(&second, 0), [1, 2, 3, 5, 6]);
    let floor = KvErrorKind::RewindTooFar { to: 2, floor: 3 };
    assert_eq!(kind(second.rewind(2)), floor);
    second.clear().unwrap();
    assert_eq!(tags(&second, 0), [1, 2, 3], "a clear keeps the prefix");
    let kept = KvErrorKind::PrefixReadOnly { tokens: 3 };
    assert_eq!(kind(replace(&second, 0, 2, 0, |p| p)), kept);
    assert_eq!(kind(second.shift(0, 0, 1, move_rows)), kept);
}

#[test]
fn a_prefix_names_what_differs_from_another_cache() {
    let _alone = alone();
    let own = config(false);
    let (session, _) = make_decode_session(BACKEND, &own).unwrap();
    feed(&session, 0, &[1]);
    let prefix = session.freeze().unwrap();
    prefix.check(&own).unwrap();
    assert_eq!(prefix.config(), &own);
    let with = |change: fn(&mut CacheConfig)| {
        let mut other = own.clone();
        change(&mut other);
        prefix.check(&other).unwrap_err().to_string()
    };
    let table = [
        (
            with(|c| c.capacity = 1),
            "a context of 1 tokens has no room after its 1",
        ),
        (
            with(|c| c.value_storage = KvStorage::F16),
            "the keys and values of its layer 0 are stored as f32 and f32, not f32 and f16",
        ),
        (
            with(|c| c.layers[0].kv_heads = 2),
            "its layers are not those of the model",
        ),
    ];
    for (found, expect) in table {
        assert_eq!(found, format!("the shared prefix does not fit: {expect}"));
    }
}

#[test]
fn a_device_that_fails_while_rows_move_loses_that_sequence_alone() {
    let _alone = alone();
    let (session, _) = make_seq_session(BACKEND, &config(false)).unwrap();
    let lost = KvErrorKind::Device("lost".into());
    for operation in 0..2 {
        feed(&session, 0, &[1, 2, 3, 4]);
        feed(&session, 1, &[7, 8]);
        let failed = broken(|| match operation {
            0 => session.shift(0, 1, 2, move_rows),
            _ => replace(&session, 0, 3, 0, |p| p),
        });
        assert_eq!(kind(failed), lost);
        assert_eq!(session.seq_len(0).unwrap(), 0, "its rows are unknown");
        assert_eq!(tags(&session, 1), [7, 8]);
        session.seq_rm(1, ..).unwrap();
    }
    let (session, _) = make_decode_session(BACKEND, &config(false)).unwrap();
    feed(&session, 0, &[1, 2, 3]);
    assert_eq!(kind(broken(|| session.shift(0, 1, 1, move_rows))), lost);
    assert!(session.is_empty().unwrap());
}

#[test]
fn a_refusal_of_the_byte_half_changes_nothing() {
    let _alone = alone();
    let (session, _) = make_decode_session(BACKEND, &config(false)).unwrap();
    feed(&session, 0, &[1, 2, 3]);
    let full = || -> Result<(), KvError> { Err(KvErrorKind::OutOfMemory(7).into()) };
    assert_eq!(
        kind(session.shift(0, 1, 1, |_, _| full())),
        KvErrorKind::OutOfMemory(7)
    );
    let saved = SavedPositions {
        first: &[0, 0],
        states: &[],
    };
    assert_eq!(
        kind(session.replace_sequence(0, 2, saved, |_, _| full())),
        KvErrorKind::OutOfMemory(7)
    );
    assert_eq!(tags(&session, 0), [1, 2, 3]);
}

#[test]
fn a_compaction_keeps_every_row_and_a_failed_one_every_cell() {
    let _alone = alone();
    let (session, _) = make_seq_session(BACKEND, &config(false)).unwrap();
    for round in 0..3 {
        feed(&session, 0, &[round]);
        feed(&session, 1, &[10 + round]);
    }
    session.seq_rm(1, ..2).unwrap();
    let runs = |seq| {
        session
            .with(|c: &Cells| c.runs(seq).unwrap().to_vec())
            .unwrap()
    };
    let before = [runs(0), runs(1)];
    let lost = KvErrorKind::Device("lost".into());
    assert_eq!(kind(broken(|| session.compact())), lost);
    assert_eq!([runs(0), runs(1)], before);
    session.compact().unwrap();
    assert_eq!(runs(0).len(), 1, "one run without holes");
    assert_eq!(session.with(Cells::high_water).unwrap(), 4);
    assert_eq!(tags(&session, 0), [0, 1, 2]);
    session.compact().unwrap();
}

/// A candidate of a tree.
fn candidate(id: u32, position: i32, parent: Option<u32>) -> StepToken {
    StepToken {
        id,
        position,
        seq: 0,
        role: Role::Candidate { parent },
    }
}

#[test]
fn an_accepted_path_moves_its_rows_and_a_failed_one_leaves_the_prefix() {
    let _alone = alone();
    let (session, _) = make_tree_session(BACKEND, &config(false)).unwrap();
    let tags = |session: &CacheSession<kv::Tree>| {
        let entry = CacheRegistry::global().get(session.key()).unwrap();
        let mut state = entry.try_lock().unwrap();
        let len = state.bookkeeping.len();
        let bytes: &mut dyn std::any::Any = &mut *state.bytes;
        let ledger: &mut Ledger = bytes.downcast_mut().unwrap();
        let tag = |cell| ledger.tag(0, Side::Key, cell);
        (0..len).map(tag).collect::<Vec<u32>>()
    };
    forward(&session, &Step::sequence(&[1, 2], 0)).unwrap();
    let mut step = Step::default();
    for (id, position, parent) in [
        (10, 2, None),
        (11, 2, None),
        (12, 3, Some(1)),
        (13, 3, Some(0)),
    ] {
        step.push(candidate(id, position, parent));
    }
    forward(&session, &step).unwrap();
    session.accept(&[1, 2]).unwrap();
    assert_eq!(tags(&session), [1, 2, 11, 12]);

    let mut step = Step::default();
    step.push(candidate(20, 4, None));
    forward(&session, &step).unwrap();
    let lost = KvErrorKind::Device("lost".into());
    assert_eq!(kind(broken(|| session.accept(&[0]))), lost);
    assert_eq!(tags(&session), [1, 2, 11, 12], "the prefix is whole");
    forward(&session, &Step::sequence(&[3], 4)).unwrap();
    let stray = KvErrorKind::NotAChain {
        node: 0,
        parent: None,
    };
    assert_eq!(kind(session.accept(&[0])), stray);
}

#[test]
fn a_step_of_its_own_waits_for_a_declared_one() {
    let _alone = alone();
    let (session, _) = make_seq_session(BACKEND, &config(false)).unwrap();
    session.begin_step(&[0]).unwrap();
    let step = Step::sequence(&[1], 0);
    assert_eq!(kind(forward(&session, &step)), KvErrorKind::StepPending);
    let entry = CacheRegistry::global().get(session.key()).unwrap();
    let mut state = entry.try_lock().unwrap();
    assert_eq!(kind(session.len()), KvErrorKind::Busy);
    state
        .run_declared(&[0], |_, _| Ok::<(), KvError>(()))
        .unwrap();
    drop(state);
    assert_eq!(session.seq_len(0).unwrap(), 1, "the declaration was kept");
    forward(&session, &Step::sequence(&[1], 1)).unwrap();

    let (tree, _) = make_tree_session(BACKEND, &config(false)).unwrap();
    tree.propose(&[None]).unwrap();
    assert_eq!(kind(forward(&tree, &step)), KvErrorKind::StepPending);
}

#[test]
fn steps_that_a_kind_does_not_take_are_refused_by_token() {
    let _alone = alone();
    let config = config(false);
    let mut plan = StepPlan::default();
    let mut step = Step::sequence(&[1, 2], 0);
    step.push(candidate(3, 2, None));
    let refused = KvErrorKind::NoCandidates { index: 2 };
    assert_eq!(
        kind(Contiguous::new(&config).plan(&step, &mut plan)),
        refused
    );
    let mixed = KvErrorKind::MixedStep { index: 2 };
    assert_eq!(kind(Cells::new(&config).plan(&step, &mut plan)), mixed);
    assert_eq!(kind(kv::Tree::new(&config).plan(&step, &mut plan)), refused);
    let mut mixed = Step::default();
    mixed.push(candidate(3, 0, None));
    mixed.extend(0, 1, &[4]);
    let refused = KvErrorKind::MixedStep { index: 1 };
    assert_eq!(
        kind(kv::Tree::new(&config).plan(&mixed, &mut plan)),
        refused
    );
    let mut other = Step::default();
    other.extend(2, 0, &[4]);
    let refused = KvErrorKind::UnknownSequence { seq: 2, max: 1 };
    assert_eq!(
        kind(Contiguous::new(&config).plan(&other, &mut plan)),
        refused
    );
}

#[test]
fn padding_is_written_nowhere_sees_nothing_and_is_not_held() {
    let _alone = alone();
    let mut step = Step::sequence(&[5, 6], 0);
    step.pad_to(4, 0);
    let check = |plan: &StepPlan| {
        for layer in 0..2 {
            let plan = plan.layer(layer);
            assert_eq!(plan.writes[2..], [NO_CELL; 2]);
            assert!(plan.writes[..2].iter().all(|cell| *cell != NO_CELL));
            assert_eq!(plan.visible.queries().len(), 4);
            assert!((2..4).all(|padding| plan.visible.runs(padding).next().is_none()));
        }
        assert_eq!(plan.step().real_len(), 2);
    };
    for ring in [false, true] {
        let config = config(ring);
        let (contiguous, _) = make_decode_session(BACKEND, &config).unwrap();
        check(&forward(&contiguous, &step).unwrap());
        assert_eq!(tags(&contiguous, 0), [5, 6]);
        let (cells, _) = make_seq_session(BACKEND, &config).unwrap();
        check(&forward(&cells, &step).unwrap());
        assert_eq!(tags(&cells, 0), [5, 6]);
        assert_eq!(cells.len().unwrap(), 2);
        let (tree, _) = make_tree_session(BACKEND, &config).unwrap();
        check(&forward(&tree, &step).unwrap());
        assert_eq!(tree.len().unwrap(), 2);
    }
}
