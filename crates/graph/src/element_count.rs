//! Comparison of the numbers of elements of two shapes, whatever values the symbols have.

use std::collections::BTreeMap;

use crate::dim::{Dim, MAX_SYMBOLS};

/// Limit on the terms of a product of dimensions, so that small files cannot make large polynomials.
const MAX_TERMS: usize = 1024;

/// Whether two shapes have the same number of elements under all values of the symbols. Products with more than
/// [`MAX_TERMS`] terms after the removal of common factors count as different.
pub(crate) fn same_element_count(a: &[Dim], b: &[Dim]) -> bool {
    let (Some((a, mut left)), Some((b, mut right))) = (factors(a), factors(b)) else {
        return false;
    };
    if a == 0 || b == 0 {
        return a == b;
    }
    left.retain(|factor| {
        let common = right.iter().position(|other| other == factor);
        common.map(|at| right.swap_remove(at)).is_none()
    });
    let (left, right) = (
        Polynomial::product(a, &left),
        Polynomial::product(b, &right),
    );
    left.is_some() && left == right
}

/// A shape's number of elements as a constant times symbolic factors without constant divisors.
fn factors(shape: &[Dim]) -> Option<(usize, Vec<Dim>)> {
    let mut constant = 1usize;
    let mut symbolic = vec![];
    for dim in shape {
        let (content, rest) = dim.content();
        constant = constant.checked_mul(content)?;
        if rest.as_const() != Some(1) {
            symbolic.push(rest);
        }
    }
    Some((constant, symbolic))
}

/// Coefficients by the exponents of the symbols; none is zero.
#[derive(Debug, PartialEq)]
struct Polynomial(BTreeMap<[u16; MAX_SYMBOLS], i128>);

impl Polynomial {
    /// `constant · Π factors`; `None` if it overflows or has too many terms.
    fn product(constant: usize, factors: &[Dim]) -> Option<Polynomial> {
        let constant = i128::try_from(constant).ok()?;
        let mut product = Polynomial(BTreeMap::from([([0; MAX_SYMBOLS], constant)]));
        for factor in factors {
            product = product.times(factor)?;
        }
        Some(product)
    }

    fn times(&self, dim: &Dim) -> Option<Polynomial> {
        let mut product = BTreeMap::new();
        let mut add = |exponents: [u16; MAX_SYMBOLS], left: i128, right: i64| {
            let sum: &mut i128 = product.entry(exponents).or_default();
            *sum = sum.checked_add(left.checked_mul(right.into())?)?;
            Some(())
        };
        for (exponents, coefficient) in &self.0 {
            add(*exponents, *coefficient, dim.constant_term())?;
            for (symbols, factor) in dim.terms() {
                let mut exponents = *exponents;
                for symbol in symbols.iter() {
                    let exponent = &mut exponents[usize::from(symbol.0)];
                    *exponent = exponent.checked_add(1)?;
                }
                add(exponents, *coefficient, factor)?;
            }
        }
        product.retain(|_, coefficient| *coefficient != 0);
        (product.len() <= MAX_TERMS).then_some(Polynomial(product))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::{Bindings, Symbol};
    use proptest::prelude::*;

    /// The number of elements, computed size by size.
    fn count(shape: &[Dim], at: &Bindings) -> i64 {
        shape.iter().map(|dim| dim.value(at).unwrap()).product()
    }

    /// `symbol · factor + offset`.
    fn size() -> impl Strategy<Value = Dim> {
        (0..3u8, 1usize..4, 0usize..3)
            .prop_map(|(s, factor, offset)| Dim::from(Symbol(s)) * factor + Dim::from(offset))
    }

    proptest! {
        #[test]
        fn equal_counts_are_equal_everywhere(
            mut shape in prop::collection::vec(size(), 2..5), cut in 0usize..4, change in any::<bool>(),
            at in prop::array::uniform4(1usize..9),
        ) {
            let from = shape.clone();
            // Joins two neighbours; the others trade places.
            let at_most = shape.len() - 2;
            let next = shape.remove(cut.min(at_most) + 1);
            let joined = shape[cut.min(at_most)].checked_mul(&next).unwrap();
            shape[cut.min(at_most)] = joined;
            shape.reverse();
            if change {
                shape[0] = shape[0] + Dim::from(1);
            }
            let at = Bindings(at);
            prop_assert_eq!(same_element_count(&from, &shape), !change);
            prop_assert_eq!(count(&from, &at) == count(&shape, &at), !change);
        }
    }

    #[test]
    fn products_of_too_many_terms_count_as_different() {
        let sum = |offset: usize| {
            let symbols = (0..4).map(|s| Dim::from(Symbol(s)) * (s as usize + 2));
            symbols.fold(Dim::from(offset), |sum, dim| sum + dim)
        };
        let dims: Vec<Dim> = (1..21).map(|offset| sum(2 * offset + 1)).collect();
        let pairs = dims.chunks(2).map(|pair| pair[0].checked_mul(&pair[1]));
        let joined: Vec<Dim> = pairs.collect::<Option<_>>().unwrap();
        assert!(same_element_count(&dims, &dims));
        assert!(same_element_count(&dims[..6], &joined[..3]));
        assert!(!same_element_count(&dims, &joined));
    }
}
