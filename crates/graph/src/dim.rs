//! Dimensions that are affine in a few symbols.

use std::ops::{Add, Mul};

/// Most symbols a graph may have.
pub const MAX_SYMBOLS: usize = 4;

/// A size that is known only when a step is run, such as its number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symbol(pub u8);

/// `constant + Σ coefficient · symbol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    constant: i64,
    coefficients: [i64; MAX_SYMBOLS],
}

impl Dim {
    /// The value when it does not depend on a symbol.
    pub fn as_const(&self) -> Option<usize> {
        let constant = self.coefficients.iter().all(|c| *c == 0);
        constant
            .then(|| usize::try_from(self.constant).ok())
            .flatten()
    }

    /// The symbol when this dimension is exactly one symbol.
    pub fn as_symbol(&self) -> Option<Symbol> {
        (0..MAX_SYMBOLS as u8)
            .map(Symbol)
            .find(|s| Dim::from(*s) == *self)
    }

    /// The value under concrete symbols; `None` when it is negative or too large.
    pub fn eval(&self, bindings: &Bindings) -> Option<usize> {
        let mut sum = self.constant;
        for (c, v) in self.coefficients.iter().zip(&bindings.0) {
            sum = sum.checked_add(c.checked_mul(i64::try_from(*v).ok()?)?)?;
        }
        usize::try_from(sum).ok()
    }

    pub(crate) fn terms(&self) -> (i64, impl Iterator<Item = (Symbol, i64)> + '_) {
        let terms = self
            .coefficients
            .iter()
            .enumerate()
            .filter(|(_, c)| **c != 0);
        (self.constant, terms.map(|(i, c)| (Symbol(i as u8), *c)))
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim {
            constant: i64::try_from(n).expect("a dimension below 2^63"),
            coefficients: [0; MAX_SYMBOLS],
        }
    }
}

impl From<Symbol> for Dim {
    fn from(s: Symbol) -> Dim {
        let mut coefficients = [0; MAX_SYMBOLS];
        coefficients[s.0 as usize] = 1;
        Dim {
            constant: 0,
            coefficients,
        }
    }
}

impl Add for Dim {
    type Output = Dim;

    fn add(self, other: Dim) -> Dim {
        let mut sum = self;
        sum.constant += other.constant;
        for (a, b) in sum.coefficients.iter_mut().zip(other.coefficients) {
            *a += b;
        }
        sum
    }
}

impl Mul<usize> for Dim {
    type Output = Dim;

    fn mul(self, factor: usize) -> Dim {
        let factor = i64::try_from(factor).expect("a factor below 2^63");
        Dim {
            constant: self.constant * factor,
            coefficients: self.coefficients.map(|c| c * factor),
        }
    }
}

/// The value of every symbol in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bindings(pub [usize; MAX_SYMBOLS]);

impl Bindings {
    /// The same bindings with one symbol set.
    pub fn with(mut self, symbol: Symbol, value: usize) -> Bindings {
        self.0[symbol.0 as usize] = value;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluates_affinely() {
        let (t, r) = (Symbol(0), Symbol(1));
        let dim = Dim::from(t) * 3 + Dim::from(r) + Dim::from(2);
        assert_eq!(
            dim.eval(&Bindings::default().with(t, 5).with(r, 4)),
            Some(21)
        );
        assert_eq!(dim.as_const(), None);
        assert_eq!(Dim::from(7).as_const(), Some(7));
        assert_eq!(Dim::from(r).as_symbol(), Some(r));
        assert_eq!(
            (Dim::from(t) * (1 << 62)).eval(&Bindings::default().with(t, 9)),
            None
        );
    }
}
