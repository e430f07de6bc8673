//! Checks how attention operands are derived from cache contents (transpose, head repeat, scale).

use graph::Value;

use super::attention_site::{AttentionSite, CacheSide, CacheView};
use super::cache_inputs::CacheLayout;
use super::mask_probe::{MaskProbe, ProbeStep};
use super::subgraph_eval::{Substitute, evaluate_subgraph};
use crate::error::ImportError;

/// Limit on the elements of a cache in a probe.
const MAX_ELEMENTS: usize = 1 << 26;

impl MaskProbe<'_, '_> {
    /// Scale factor of the keys' view, per site.
    pub(super) fn views(&self) -> Result<Vec<f32>, ImportError> {
        let tokens = self.max_positions.min(3);
        let step = ProbeStep { past: 0, tokens };
        let mut substitutes = self.substitutes(step, 0.0)?;
        for view in self.sites.iter().flat_map(|site| &site.views) {
            let cache = self.presents[view.present].cache;
            let shape = self.cache_shape(cache, view.side, step.end())?;
            let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            let count = count.filter(|count| *count <= MAX_ELEMENTS);
            let count = count.ok_or_else(|| {
                ImportError::value(format!("cache {:?}", view.present), "is too large")
            })?;
            let numbers = Value::f32(shape, (1..=count).map(|n| n as f32).collect());
            substitutes.insert(view.present.to_owned(), Substitute::Value(numbers));
        }
        let mut factors = vec![1.0; self.sites.len()];
        for (site, factor) in self.sites.iter().zip(&mut factors) {
            for view in &site.views {
                let found = evaluate_subgraph(self.file, &substitutes, &[view.operand])?;
                let Some(Substitute::Value(present)) = substitutes.get(view.present) else {
                    continue;
                };
                let ratio = self.view(site, view, present, &found[0]);
                *factor *= ratio.map_err(|reason| self.wrong(site, reason))?;
            }
        }
        Ok(factors)
    }

    /// Returns the scale factor between a view and its cache; fails if the elements are not in the expected order.
    fn view(
        &self,
        site: &AttentionSite<'_>,
        view: &CacheView<'_>,
        present: &Value,
        found: &Value,
    ) -> Result<f32, String> {
        let wrong = || {
            format!(
                "derives its operand from {} in an unsupported way",
                view.present
            )
        };
        let (rows, width) = (
            self.rows(site.cache, self.max_positions.min(3)),
            present.shape[present.shape.len() - 1],
        );
        let kv_heads = match self.caches[site.cache].form {
            CacheLayout::Past { heads, .. } => heads,
            CacheLayout::Static { .. } => site.heads.ok_or_else(wrong)?.1,
        };
        let dim = match present.shape.len() {
            4 => width,
            _ => width / kv_heads.max(1),
        };
        let held = |head: usize, row: usize, at: usize| match present.shape.len() {
            4 => (head * rows + row) * dim + at,
            _ => (row * kv_heads + head) * dim + at,
        };
        let heads = match (&found.shape[..], view.transposed) {
            (&[1, heads, d, r], true) if (d, r) == (dim, rows) => heads,
            (&[1, heads, r, d], false) if (d, r) == (dim, rows) => heads,
            (&[1, r, w], false) if r == rows && w == kv_heads * dim => kv_heads,
            _ => return Err(wrong()),
        };
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(wrong());
        }
        let flat = found.shape.len() == 3;
        let placed = |head: usize, row: usize, at: usize| match (flat, view.transposed) {
            (true, _) => (row * heads + head) * dim + at,
            (false, true) => (head * dim + at) * rows + row,
            (false, false) => (head * rows + row) * dim + at,
        };
        let (held_all, found_all) = (
            present.as_f32().ok_or_else(wrong)?,
            found.as_f32().ok_or_else(wrong)?,
        );
        let ratio = found_all.first().ok_or_else(wrong)? / held_all[0];
        for head in 0..heads {
            for row in 0..rows {
                for at in 0..dim {
                    let expected = ratio * held_all[held(head / (heads / kv_heads), row, at)];
                    let found = found_all[placed(head, row, at)];
                    if (found - expected).abs() > 1e-6 * expected.abs() {
                        return Err(wrong());
                    }
                }
            }
        }
        match view.side {
            CacheSide::Value if ratio != 1.0 => Err(wrong()),
            _ => Ok(ratio),
        }
    }
}
