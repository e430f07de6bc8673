//! Reads masks row by row and derives the window that they describe.

use graph::Value;

/// A score bias at or below this value hides a key: its softmax weight is zero in f32.
const MASKED_SCORE: f32 = -1e4;

/// A head-independent mask: the score bias by query and key.
pub(super) struct MaskMatrix<'a> {
    value: &'a Value,
    rows: usize,
    keys: usize,
}

impl<'a> MaskMatrix<'a> {
    pub(super) fn new(value: &'a Value) -> Result<MaskMatrix<'a>, String> {
        let [outer @ .., rows, keys] = &value.shape[..] else {
            return Err("has a mask without rows".into());
        };
        if outer.iter().any(|n| *n != 1) {
            return Err("has a mask that is not the same for all heads".into());
        }
        Ok(MaskMatrix {
            value,
            rows: *rows,
            keys: *keys,
        })
    }

    /// Bias of a key; `None` if the key is hidden.
    pub(super) fn at(&self, row: usize, key: usize) -> Option<f32> {
        let row = if self.rows == 1 { 0 } else { row };
        let key = if self.keys == 1 { 0 } else { key };
        // Keys beyond the mask's end are hidden.
        if key >= self.keys || row >= self.rows {
            return None;
        }
        let at = row * self.keys + key;
        match self.value.as_bool() {
            Some(truths) => truths[at].then_some(0.0),
            None => self
                .value
                .as_f32()
                .map(|list| list[at])
                .filter(|x| *x > MASKED_SCORE),
        }
    }
}

/// The window that is consistent with all rows read so far.
#[derive(Default)]
pub(super) struct WindowEvidence {
    /// Window of the rows that do not see all keys.
    window: Option<usize>,
    /// Largest number of keys among the rows that see all keys.
    whole: usize,
    /// Window stated by an attribute.
    pub(super) fixed: Option<Option<usize>>,
    /// Factor on the scores before the softmax.
    pub(super) factor: Option<f32>,
}

impl WindowEvidence {
    /// Adds one query's row.
    pub(super) fn row(
        &mut self,
        query: usize,
        seen: impl Iterator<Item = Option<f32>>,
    ) -> Result<(), String> {
        let mut first = None;
        let mut next = 0;
        for (key, bias) in seen.enumerate() {
            let Some(bias) = bias else { continue };
            let (start, same) = *first.get_or_insert((key, bias));
            if bias != same {
                return Err(
                    "adds a bias to its scores, which is not supported over a cache".into(),
                );
            }
            if key > query {
                return Err("lets a query see keys after its own".into());
            }
            if key != start && key != next {
                return Err(
                    "masks keys inside the visible range; the visible keys must be contiguous"
                        .into(),
                );
            }
            next = key + 1;
        }
        let Some((start, _)) = first.filter(|_| next == query + 1) else {
            return Err("hides a query's own key".into());
        };
        let count = next - start;
        match start {
            0 => self.whole = self.whole.max(count),
            _ if self.window.is_some_and(|window| window != count) => {
                return Err("has a window that differs between queries".into());
            }
            _ => self.window = Some(count),
        }
        Ok(())
    }

    pub(super) fn window(&self) -> Result<Option<usize>, String> {
        if let Some(fixed) = self.fixed {
            return Ok(fixed);
        }
        match self.window {
            Some(window) if window < self.whole => {
                Err("has a window that differs between queries".into())
            }
            window => Ok(window),
        }
    }
}
