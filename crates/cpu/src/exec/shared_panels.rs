//! `SharedPanels`: packed f32 weights. A weight is packed once per process, however many executables read it.

use crate::aligned::AlignedBuffer;
use backend::BackendError;
use base::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// The panels of a weight.
pub(super) struct SharedPanels {
    panels: AlignedBuffer,
    /// Keeps the weight alive, so that its address is not reused for another one.
    source: Bytes,
}

/// The panels of this process, by address, columns and depth of the weight.
type Cache = HashMap<(usize, usize, usize), Weak<SharedPanels>>;
static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

impl SharedPanels {
    /// The panels of a weight with `n` columns of depth `k`, which `pack` makes if no executable has them.
    pub(super) fn of(
        source: &Bytes,
        [n, k]: [usize; 2],
        pack: impl FnOnce() -> Result<AlignedBuffer, BackendError>,
    ) -> Result<Arc<SharedPanels>, BackendError> {
        let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (source.as_ptr() as usize, n, k);
        let known = cache.get(&key).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.source.len() == source.len()) {
            return Ok(known);
        }
        let made = Arc::new(SharedPanels {
            panels: pack()?,
            source: source.clone(),
        });
        cache.retain(|_, panels| panels.strong_count() > 0);
        cache.insert(key, Arc::downgrade(&made));
        Ok(made)
    }

    /// Bytes of the panels.
    pub(super) fn len(&self) -> usize {
        self.panels.len()
    }

    /// The address of the first panel.
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.panels.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_packed_once_while_it_is_used() {
        let weight = Bytes::from_slice(&[1.0f32; 64]);
        let mut times = 0;
        let mut get = || {
            let panels = SharedPanels::of(&weight, [8, 8], || {
                times += 1;
                AlignedBuffer::new(256)
            });
            panels.unwrap()
        };
        let (first, second) = (get(), get());
        assert_eq!(first.as_ptr(), second.as_ptr());
        drop((first, second));
        get();
        assert_eq!(times, 2);
    }
}
