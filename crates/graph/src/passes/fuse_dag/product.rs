//! Normal form of products: a constant factor times a multiset of tensors.

use crate::TensorId;
use crate::ops::BinaryFunction;
use crate::passes::rewrite::GraphView;

/// `factor · Π factors`; a power counts as its base several times.
#[derive(Debug, PartialEq)]
pub(super) struct FactoredProduct {
    pub(super) factor: f32,
    pub(super) factors: Vec<TensorId>,
}

impl FactoredProduct {
    /// Factors `id` down to tensors that are not products; `atoms` are not factored.
    pub(super) fn of(view: &GraphView<'_>, id: TensorId, atoms: &[TensorId]) -> FactoredProduct {
        let mut product = FactoredProduct {
            factor: 1.0,
            factors: Vec::new(),
        };
        product.collect(view, id, atoms);
        product.factors.sort();
        product
    }

    fn collect(&mut self, view: &GraphView<'_>, id: TensorId, atoms: &[TensorId]) {
        if atoms.contains(&id) {
            self.factors.push(id);
        } else if let Some((factor, x)) = view.scaled(id) {
            self.factor *= factor;
            self.collect(view, x, atoms);
        } else if let Some((a, b)) = view.binary(id, BinaryFunction::Mul) {
            self.collect(view, a, atoms);
            self.collect(view, b, atoms);
        } else if let Some((x, power)) = whole_power(view, id) {
            (0..power).for_each(|_| self.collect(view, x, atoms));
        } else {
            self.factors.push(id);
        }
    }

    /// Whether this equals `factor · Π factors`. The constant is compared with a tolerance, because models round it.
    pub(super) fn is(&self, factor: f32, factors: &[TensorId]) -> bool {
        let mut wanted = factors.to_vec();
        wanted.sort();
        close(self.factor, factor) && self.factors == wanted
    }
}

/// The base and the exponent of a small whole power.
pub(super) fn whole_power(view: &GraphView<'_>, id: TensorId) -> Option<(TensorId, usize)> {
    let (x, exponent) = view.binary(id, BinaryFunction::Pow)?;
    let exponent = view.scalar(exponent)?;
    [2.0, 3.0]
        .contains(&exponent)
        .then_some((x, exponent as usize))
}

/// The tensor whose square this is.
pub(super) fn square_of(view: &GraphView<'_>, id: TensorId) -> Option<TensorId> {
    match (view.binary(id, BinaryFunction::Mul), whole_power(view, id)) {
        (Some((a, b)), _) if view.same(a, b) => Some(a),
        (_, Some((x, 2))) => Some(x),
        _ => None,
    }
}

/// Whether two constants are equal to a relative 1e-4.
pub(super) fn close(a: f32, b: f32) -> bool {
    (a - b).abs() <= 1e-4 * b.abs()
}
