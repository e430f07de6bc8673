//! Temperature and the draw: logits divided by the temperature, then one candidate by its probability.

use super::candidates::Candidate;

/// Draws a candidate; `random` is a number from 0 to 1, 1 excluded. A temperature of 0 takes the first one.
pub(super) fn draw(list: &[Candidate], temperature: f32, random: f64) -> u32 {
    let first = list[0];
    if temperature <= 0.0 {
        return first.id;
    }
    let weight = |c: &Candidate| f64::from((c.logit - first.logit) / temperature).exp();
    let mut left = random * list.iter().map(weight).sum::<f64>();
    for candidate in list {
        left -= weight(candidate);
        if left < 0.0 {
            return candidate.id;
        }
    }
    list[list.len() - 1].id
}
