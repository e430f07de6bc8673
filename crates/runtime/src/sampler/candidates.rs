//! The tokens that the filters choose from.

/// A token and its logit, which is not NaN.
pub(super) type Candidate = backend::ScoredToken;

/// The probability of each candidate relative to the first one, which is the most likely.
pub(super) fn relative(list: &[Candidate]) -> impl Iterator<Item = f64> {
    let top = list[0].logit;
    list.iter().map(move |c| f64::from(c.logit - top).exp())
}
