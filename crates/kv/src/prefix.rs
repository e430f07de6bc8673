//! `SharedPrefix`: frozen rows that several caches read and none writes.

use crate::plan::LayerClasses;
use crate::sequence_rows::first_restorable_position;
use crate::{
    CacheConfig, CacheEntry, CacheManager, CellRun, KvBytes, KvError, KvErrorKind, SequenceRows,
    Side,
};
use std::sync::Arc;

/// Frozen, read-only rows of a backend.
pub trait FrozenKv: Send + Sync {
    /// Storage of this configuration for one more cache: the frozen rows followed by a private tail. The states of recurrent
    /// layers are copied to the first cells of the tail.
    fn open(self: Arc<Self>, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError>;

    /// Bytes of the frozen rows. They are allocated once for all caches that share them.
    fn resident_bytes(&self) -> usize;
}

/// The cells of a frozen prefix. They come before the cells of every cache that stands on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixCells {
    len: u32,
    layers: Vec<LayerCells>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LayerCells {
    /// The positions that the layer holds, up to the end of the prefix; of a layer with states the last position.
    runs: Vec<CellRun>,
    /// The number of cells, also of those whose rows are lost.
    cells: u32,
}

impl PrefixCells {
    /// Cells of `len` tokens, of which layer `i` has the rows from position `first[i]` on in consecutive cells. A layer with states
    /// has the state after the last token.
    ///
    /// # Errors
    /// `SavedRows` if a layer lacks rows that the next token attends to.
    pub fn consecutive(
        config: &CacheConfig,
        len: u32,
        first: &[u32],
    ) -> Result<PrefixCells, KvError> {
        config.check_no_sinks("put after a prefix")?;
        let bad = |reason: String| Err(KvErrorKind::SavedRows(reason).into());
        if len == 0 || first.len() != config.layers.len() {
            let (found, layers) = (first.len(), config.layers.len());
            return bad(format!("{len} tokens in {found} layers of {layers}"));
        }
        let classes = LayerClasses::new(&config.layers);
        let mut layers = vec![];
        for (index, layer) in config.layers.iter().enumerate() {
            let class = classes.class_of[index];
            let mut same = (0..index).filter(|other| classes.class_of[*other] == class);
            let from = match layer.is_state() {
                true => len - 1,
                false => first[index],
            };
            let seen = layer.window.map_or(0, |w| (len + 1).saturating_sub(w));
            if !layer.is_state() {
                first_restorable_position([(index, from)].into_iter(), seen.min(len))?;
                if same.any(|other| first[other] != from) {
                    return bad(format!(
                        "layer {index} has rows from position {from} on, unlike others of its window"
                    ));
                }
            }
            let run = CellRun {
                position: from,
                cell: 0,
                len: len - from,
            };
            layers.push(LayerCells {
                runs: Vec::from_iter((run.len > 0).then_some(run)),
                cells: run.len,
            });
        }
        Ok(PrefixCells { len, layers })
    }

    /// The cells of a contiguous cache that is frozen.
    pub(crate) fn frozen(rows: &SequenceRows, config: &CacheConfig) -> PrefixCells {
        let layer = |(index, layer)| LayerCells {
            runs: rows.runs(index).to_vec(),
            cells: rows.len.min(config.growth(layer).max_rows_per_sequence),
        };
        PrefixCells {
            len: rows.len,
            layers: config.layers.iter().enumerate().map(layer).collect(),
        }
    }

    /// Tokens in the prefix.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the prefix has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of cells of each layer; the number of states of a recurrent layer.
    pub fn counts(&self) -> Vec<u32> {
        self.layers.iter().map(|layer| layer.cells).collect()
    }

    /// The runs of a layer class, and the number of its cells; none in an empty prefix.
    pub(crate) fn of_class(&self, classes: &LayerClasses, class: usize) -> (&[CellRun], u32) {
        let of_class = |other: &u16| usize::from(*other) == class;
        let layer = classes.class_of.iter().position(of_class);
        let layer = layer.and_then(|layer| self.layers.get(layer));
        layer.map_or((&[], 0), |layer| (&layer.runs, layer.cells))
    }
}

/// A kind of cache that can stand on a frozen prefix.
pub trait Prefixed: CacheManager + Sized {
    /// The name of the kind.
    const KIND: &'static str;

    /// An empty cache whose first cells are those of a prefix.
    ///
    /// # Errors
    /// `PrefixMismatch` if the kind lacks what the prefix has.
    fn after_prefix(config: &CacheConfig, prefix: &PrefixCells) -> Result<Self, KvError>;
}

/// The frozen tokens of a session, shared by other sessions. Clones and sessions hold a reference to the rows, which
/// are freed with the last reference.
#[derive(Clone)]
pub struct SharedPrefix {
    frozen: Arc<dyn FrozenKv>,
    cells: Arc<PrefixCells>,
    config: CacheConfig,
}

impl SharedPrefix {
    /// A prefix whose rows lie in these cells of `frozen`. Layers and storage types are those of `config`.
    pub fn new(frozen: Arc<dyn FrozenKv>, cells: PrefixCells, config: CacheConfig) -> SharedPrefix {
        SharedPrefix {
            frozen,
            cells: Arc::new(cells),
            config,
        }
    }

    /// Tokens in the prefix.
    pub fn len(&self) -> u32 {
        self.cells.len()
    }

    /// Whether the prefix has no tokens.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Bytes of the shared rows.
    pub fn resident_bytes(&self) -> usize {
        self.frozen.resident_bytes()
    }

    /// The configuration of the frozen cache.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Checks that a cache with this configuration can use the prefix.
    ///
    /// # Errors
    /// `PrefixMismatch` if layers or storage types differ, or if the prefix leaves no room; the message names the difference.
    pub fn check(&self, config: &CacheConfig) -> Result<(), KvError> {
        let own = &self.config;
        let mismatch = |what: String| Err(KvErrorKind::PrefixMismatch(what).into());
        if own.layers != config.layers {
            return mismatch("its layers are not those of the model".into());
        }
        let (found, wanted) = (own.states.storage, config.states.storage);
        if own.has_states() && found != wanted {
            return mismatch(format!("its states are stored as {found}, not {wanted}"));
        }
        let types = |config: &CacheConfig, layer: usize| {
            [Side::Key, Side::Value].map(|side| config.storage(layer, side))
        };
        for layer in 0..own.layers.len() {
            let ([k, v], [key, value]) = (types(own, layer), types(config, layer));
            if [k, v] != [key, value] {
                return mismatch(format!(
                    "the keys and values of its layer {layer} are stored as {k} and {v}, not {key} and {value}"
                ));
            }
        }
        let (tokens, context) = (self.len(), config.capacity);
        if tokens >= context {
            return mismatch(format!(
                "a context of {context} tokens has no room after its {tokens}"
            ));
        }
        Ok(())
    }

    /// A cache of kind `K` that stands on the prefix.
    pub(crate) fn entry<K: Prefixed>(&self, config: &CacheConfig) -> Result<CacheEntry, KvError> {
        self.check(config)?;
        config.check()?;
        let bookkeeping = K::after_prefix(config, &self.cells)?;
        let bytes = self.frozen.clone().open(config)?;
        Ok(CacheEntry::new(K::KIND, Box::new(bookkeeping), bytes))
    }
}
