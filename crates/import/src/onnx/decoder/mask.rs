//! Masks, read row by row.

use graph::Value;

/// A bias that hides a key for good.
const MASKED_SCORE: f32 = -1e4;

/// A mask for all heads: by query and key, the bias of what is seen.
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

    /// The bias of a key, `None` where it is hidden.
    pub(super) fn at(&self, row: usize, key: usize) -> Option<f32> {
        let row = if self.rows == 1 { 0 } else { row };
        let key = if self.keys == 1 { 0 } else { key };
        // What a mask leaves out at its end is hidden.
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

/// What the rows seen so far say.
#[derive(Default)]
pub(super) struct WindowEvidence {
    /// The window that rows have which do not see all.
    window: Option<usize>,
    /// The longest past that was seen whole.
    whole: usize,
    /// A window that an attribute states.
    pub(super) fixed: Option<Option<usize>>,
    /// What scores are multiplied with before the softmax.
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
                return Err("lets a query see what comes after it".into());
            }
            if key != start && key != next {
                return Err("hides keys between others".into());
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
                return Err("shows some queries more than others".into());
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
                Err("shows some queries more than others".into())
            }
            window => Ok(window),
        }
    }
}
