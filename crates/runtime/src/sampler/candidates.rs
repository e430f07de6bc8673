//! The tokens that the filters choose from.

use std::cmp::Ordering;

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) id: u32,
}

/// The more likely candidate first; the lower id among equals.
pub(super) fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// The probability of each candidate relative to the first one, which is the most likely.
pub(super) fn relative(list: &[Candidate]) -> impl Iterator<Item = f64> {
    let top = list[0].logit;
    list.iter().map(move |c| f64::from(c.logit - top).exp())
}
