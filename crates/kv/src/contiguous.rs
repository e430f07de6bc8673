//! One sequence in consecutive cells: plain decode and prefill.

use crate::{
    Bookkeeping, Cache, CacheConfig, KvError, KvErrorKind, LayerPlan, Rows, Run, StepPlan,
    Visibility,
};
use std::sync::Arc;

/// A single sequence whose token at position `p` lies in cell `p`.
///
/// Layers with a window keep all rows and narrow what is seen; each distinct window is planned once.
#[derive(Clone, Debug)]
pub struct Contiguous {
    capacity: u32,
    len: u32,
    /// The distinct windows among the layers.
    windows: Vec<Option<u32>>,
    /// Per layer, its index into `windows`.
    class_of: Arc<[u16]>,
}

impl Contiguous {
    /// An empty cache for these layers.
    pub fn new(config: &CacheConfig) -> Contiguous {
        let mut windows = Vec::new();
        let class_of = config
            .layers
            .iter()
            .map(|layer| {
                let known = windows.iter().position(|w| *w == layer.window);
                known.unwrap_or_else(|| {
                    windows.push(layer.window);
                    windows.len() - 1
                }) as u16
            })
            .collect();
        Contiguous {
            capacity: config.capacity,
            len: 0,
            windows,
            class_of,
        }
    }
}

impl Cache for Contiguous {
    fn can_extend(&self, n: u32) -> bool {
        n <= self.capacity - self.len
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn len(&self) -> u32 {
        self.len
    }

    fn clear(&mut self) {
        self.len = 0;
    }

    fn rewind(&mut self, len: u32) -> Result<(), KvError> {
        if len > self.len {
            return Err(KvErrorKind::RewindForward {
                to: len,
                len: self.len,
            }
            .into());
        }
        self.len = len;
        Ok(())
    }
}

impl Bookkeeping for Contiguous {
    fn plan(&self, positions: &[i32]) -> Result<StepPlan, KvError> {
        if positions.is_empty() {
            return Err(KvErrorKind::EmptyStep.into());
        }
        let needed = self.len as u64 + positions.len() as u64;
        if needed > self.capacity as u64 {
            return Err(KvErrorKind::Full {
                needed,
                capacity: self.capacity,
            }
            .into());
        }
        for (index, (&found, expected)) in positions.iter().zip(self.len..).enumerate() {
            if i64::from(found) != i64::from(expected) {
                return Err(KvErrorKind::Position {
                    index,
                    found: found.into(),
                    expected,
                }
                .into());
            }
        }
        let tokens = positions.len() as u32;
        let end = self.len + tokens;
        let classes = self.windows.iter().map(|window| {
            let mut visible = Visibility::default();
            for seen in self.len + 1..=end {
                let first = window.map_or(0, |w| seen.saturating_sub(w));
                visible.push([Run {
                    position: first,
                    cell: first,
                    len: seen - first,
                }]);
            }
            LayerPlan {
                writes: Rows::Run {
                    start: self.len,
                    len: tokens,
                },
                visible,
                cells: end,
            }
        });
        Ok(StepPlan::new(
            tokens,
            classes.collect(),
            self.class_of.clone(),
        ))
    }

    fn commit(&mut self, plan: &StepPlan) {
        self.len += plan.tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LayerConfig;
    use proptest::prelude::*;

    fn config(capacity: u32, windows: &[Option<u32>]) -> CacheConfig {
        let layer = |&window| LayerConfig {
            kv_heads: 1,
            key_dim: 4,
            value_dim: 4,
            window,
        };
        CacheConfig::new(capacity, windows.iter().map(layer).collect())
    }

    #[test]
    fn refusals_name_the_number_and_change_nothing() {
        let mut cache = Contiguous::new(&config(4, &[None]));
        let plan = cache.plan(&[0, 1]).unwrap();
        cache.commit(&plan);
        for (positions, message) in [
            (&[][..], "a step needs at least one token"),
            (
                &[3][..],
                "token 0 of the step has position 3, but the cache continues at 2",
            ),
            (
                &[2, 2][..],
                "token 1 of the step has position 2, but the cache continues at 3",
            ),
            (
                &[-1][..],
                "token 0 of the step has position -1, but the cache continues at 2",
            ),
            (
                &[2, 3, 4][..],
                "the cache is full: 5 cells are needed and its capacity is 4",
            ),
        ] {
            assert_eq!(cache.plan(positions).unwrap_err().to_string(), message);
            assert_eq!(cache.len(), 2);
        }
        assert_eq!(
            cache.rewind(3).unwrap_err().to_string(),
            "cannot rewind to 3: the cache holds 2"
        );
        assert!(cache.can_extend(2) && !cache.can_extend(3));
        cache.rewind(1).unwrap();
        assert!(cache.plan(&[1, 2, 3]).is_ok());
    }

    proptest! {
        /// Against the plainest statement of visibility: query at p sees key at k iff p - window < k <= p.
        #[test]
        fn sees_what_the_window_says(
            steps in prop::collection::vec((1u32..9, 0u32..12), 1..20),
            window in prop::option::of(1u32..12),
        ) {
            let mut cache = Contiguous::new(&config(1000, &[window, None]));
            for (tokens, back) in steps {
                cache.rewind(cache.len().saturating_sub(back)).unwrap();
                let start = cache.len();
                let positions: Vec<i32> = (start..start + tokens).map(|p| p as i32).collect();
                let plan = cache.plan(&positions).unwrap();
                for (layer, window) in [(0, window), (1, None)] {
                    let plan = plan.layer(layer);
                    for (i, &p) in positions.iter().enumerate() {
                        prop_assert_eq!(plan.writes.cell(i), p as u32);
                        for cell in 0..plan.cells {
                            let expect = cell <= p as u32 && window.is_none_or(|w| cell + w > p as u32);
                            prop_assert_eq!(plan.visible.sees(i, cell), expect);
                        }
                    }
                }
                cache.commit(&plan);
            }
        }
    }
}
