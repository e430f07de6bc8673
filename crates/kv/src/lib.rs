//! Backend-neutral KV cache bookkeeping: the cell that stores each token and the cells that each query attends to.
//! Integers only.
//!
//! No tensor and no byte of KV data passes through this crate. For the tokens of a step, a [`CacheManager`]
//! implementation computes a [`StepPlan`]: the cell that each token is written to and the cells that it attends to. A
//! backend stores the bytes and executes the plan. Planning does not change the cache; [`CacheManager::commit`], called
//! after a successful forward, does.
//!
//! ```
//! use kv::{CacheManager, Cache, CacheConfig, Contiguous, LayerConfig, CellRun, Step, StepPlan};
//!
//! let layer = LayerConfig { kv_heads: 2, key_dim: 64, value_dim: 64, window: None, sinks: 0 };
//! let mut cache = Contiguous::new(&CacheConfig::uniform(8, 1, layer));
//! let mut plan = StepPlan::default();
//! cache.plan(&Step::sequence(&[17, 4, 9], 0), &mut plan).unwrap();
//! assert!(plan.layer(0).visible.runs(2).eq([CellRun { position: 0, cell: 0, len: 3 }]));
//! cache.commit(&plan);
//! assert_eq!(cache.len(), 3);
//! assert!(cache.plan(&Step::sequence(&[3], 5), &mut plan).is_err(), "position 5 would leave a gap");
//! ```
#![forbid(unsafe_code)]

mod candidate_tree;
mod cells;
mod config;
mod contiguous;
mod entry;
mod error;
mod layout;
pub mod metadata;
mod migration;
mod operations;
mod plan;
mod policy;
mod prefix;
mod registry;
mod ring;
mod scatter;
mod sequence_rows;
mod session;
mod step;
mod sync;
mod traits;
mod tree;
mod window;

pub use cells::{Cells, Compaction, MAX_SEQUENCES};
pub use config::{CacheConfig, KvStorage, LayerConfig, QuantGroup, RingPolicy, StatePolicy};
pub use contiguous::Contiguous;
pub use entry::{CacheEntry, CacheState, KvBytes};
pub use error::{KvError, KvErrorKind};
pub use layout::{KvLayout, LayerLayout, PoolGrowth, Side, SideLayout};
pub use metadata::{CacheFacts, CachePolicy, ModelCacheParams, make_config};
pub use migration::{MigratedRows, Migration};
pub use operations::{CacheOperations, MoveRows, OneSequence, ReadRows, WriteRows};
pub use plan::{AttentionSpans, CellRun, LayerPlan, NO_CELL, QueryView, StateSource, StepPlan};
pub use policy::{InvalidPolicy, KvPolicy, KvRule, LayerSelection, StreamRule};
pub use prefix::{FrozenKv, PrefixCells, Prefixed, SharedPrefix};
pub use registry::{CacheBuilderRegistry, CacheKey, CacheRegistry, KvBytesBuilder};
pub use scatter::{ScatterIndex, ScatterStep};
pub use sequence_rows::{MovedRows, Restorable, RowBlock, RowShift, SavedPositions, SequenceRows};
pub use session::{
    BackendOptions, CacheSession, SessionResult, make_decode_session, make_prefixed_session,
    make_scatter_session, make_seq_session, make_session_after, make_tree_session,
};
pub use step::{Role, Step, StepToken};
pub use traits::{Cache, CacheManager, GatherPlan, SeqCache, SeqId, TreeCache};
pub use tree::Tree;
