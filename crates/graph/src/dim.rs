//! Dimensions that are affine in a few symbols.

use std::fmt;
use std::ops::{Add, Mul, Neg, Sub};

/// Maximum number of symbols of a graph.
pub const MAX_SYMBOLS: usize = 4;

/// A size that is bound when a step runs, such as its number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symbol(pub u8);

/// `constant + Σ coefficient · symbol`. Arithmetic saturates at the limits of `i64`; evaluation
/// returns `None` on overflow.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dim {
    constant: i64,
    coefficients: [i64; MAX_SYMBOLS],
}

impl Dim {
    /// A constant; it may be negative as a term of a sum.
    pub fn constant(constant: i64) -> Dim {
        Dim {
            constant,
            coefficients: [0; MAX_SYMBOLS],
        }
    }

    /// The value, if it does not depend on a symbol.
    pub fn as_const(&self) -> Option<usize> {
        let constant = self.coefficients.iter().all(|c| *c == 0);
        constant
            .then(|| usize::try_from(self.constant).ok())
            .flatten()
    }

    /// The symbol, if this dimension is exactly one symbol.
    pub fn as_symbol(&self) -> Option<Symbol> {
        (0..MAX_SYMBOLS as u8)
            .map(Symbol)
            .find(|s| Dim::from(*s) == *self)
    }

    /// Whether no term is negative, so that no symbol can make the value negative.
    pub fn is_nonnegative(&self) -> bool {
        self.constant >= 0 && self.coefficients.iter().all(|c| *c >= 0)
    }

    /// The value under concrete symbols; `None` if it is negative or overflows.
    pub fn eval(&self, bindings: &Bindings) -> Option<usize> {
        usize::try_from(self.value(bindings)?).ok()
    }

    /// The value under concrete symbols, which may be negative; `None` if it overflows.
    pub fn value(&self, bindings: &Bindings) -> Option<i64> {
        let mut sum = self.constant;
        for (c, v) in self.coefficients.iter().zip(&bindings.0) {
            sum = sum.checked_add(c.checked_mul(i64::try_from(*v).ok()?)?)?;
        }
        Some(sum)
    }

    /// Exact quotient by `divisor`; `None` if there is a remainder.
    pub fn checked_div(&self, divisor: usize) -> Option<Dim> {
        let divisor = i64::try_from(divisor).ok().filter(|d| *d > 0)?;
        let whole = |n: &i64| n % divisor == 0;
        (whole(&self.constant) && self.coefficients.iter().all(whole)).then(|| Dim {
            constant: self.constant / divisor,
            coefficients: self.coefficients.map(|c| c / divisor),
        })
    }

    /// Quotient by `divisor`, rounded down; `None` if a symbol's coefficient has a remainder.
    pub fn floor_div(&self, divisor: usize) -> Option<Dim> {
        let divisor = i64::try_from(divisor).ok().filter(|d| *d > 0)?;
        let whole = self.coefficients.iter().all(|c| c % divisor == 0);
        whole.then(|| Dim {
            constant: self.constant.div_euclid(divisor),
            coefficients: self.coefficients.map(|c| c / divisor),
        })
    }

    /// Greatest common divisor of all terms, and the quotient; `(0, 1)` for zero.
    pub fn content(&self) -> (usize, Dim) {
        let gcd = self
            .coefficients
            .iter()
            .fold(self.constant.unsigned_abs(), |a, b| {
                gcd(a, b.unsigned_abs())
            });
        let gcd = usize::try_from(gcd).expect("usize has 64 bits");
        match self.checked_div(gcd) {
            Some(rest) => (gcd, rest),
            None => (0, Dim::from(1)),
        }
    }

    /// The dimension as text, with symbol names from `name`.
    pub(crate) fn text(&self, name: &dyn Fn(Symbol) -> String) -> String {
        let (constant, terms) = self.terms();
        let mut text = String::new();
        let mut term = |value: i64, name: String| {
            let sign = match (text.is_empty(), value < 0) {
                (true, false) => "",
                (true, true) => "-",
                (false, false) => " + ",
                (false, true) => " - ",
            };
            let size = match value.unsigned_abs() {
                1 if !name.is_empty() => String::new(),
                n => n.to_string(),
            };
            text += &format!("{sign}{size}{name}");
        };
        let mut symbols = 0;
        for (symbol, coefficient) in terms {
            term(coefficient, name(symbol));
            symbols += 1;
        }
        if constant != 0 || symbols == 0 {
            term(constant, String::new());
        }
        text
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
        Dim::constant(i64::try_from(n).expect("a dimension below 2^63"))
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
        sum.constant = sum.constant.saturating_add(other.constant);
        for (a, b) in sum.coefficients.iter_mut().zip(other.coefficients) {
            *a = a.saturating_add(b);
        }
        sum
    }
}

impl Neg for Dim {
    type Output = Dim;

    fn neg(self) -> Dim {
        Dim {
            constant: self.constant.saturating_neg(),
            coefficients: self.coefficients.map(i64::saturating_neg),
        }
    }
}

impl Sub for Dim {
    type Output = Dim;

    fn sub(self, other: Dim) -> Dim {
        self + -other
    }
}

impl Mul<usize> for Dim {
    type Output = Dim;

    fn mul(self, factor: usize) -> Dim {
        let factor = i64::try_from(factor).expect("a factor below 2^63");
        Dim {
            constant: self.constant.saturating_mul(factor),
            coefficients: self.coefficients.map(|c| c.saturating_mul(factor)),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&|Symbol(s)| format!("s{s}")))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
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

    #[test]
    fn subtracts_and_divides() {
        let (t, r) = (Symbol(0), Symbol(1));
        let dim = Dim::from(t) * 6 - Dim::from(r) * 4 - Dim::from(2);
        assert_eq!(dim.value(&Bindings::default().with(r, 1)), Some(-6));
        assert_eq!(dim.eval(&Bindings::default().with(r, 1)), None);
        let half = Dim::from(t) * 3 - Dim::from(r) * 2 - Dim::from(1);
        assert_eq!(dim.checked_div(2), Some(half));
        assert_eq!(dim.checked_div(3), None);
        assert_eq!(dim.checked_div(0), None);
        assert_eq!(dim.content(), (2, half));
        assert_eq!(Dim::from(0).content(), (0, Dim::from(1)));
        assert_eq!(
            format!("{dim:?} {:?}", Dim::constant(-3)),
            "6s0 - 4s1 - 2 -3"
        );
    }
}
