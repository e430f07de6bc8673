//! Dimensions that are polynomials of second degree in a few symbols.

use std::fmt;
use std::ops::{Add, Mul, Neg, Sub};

/// Maximum number of symbols of a graph.
pub const MAX_SYMBOLS: usize = 4;

/// Number of products of two symbols, squares included.
const PAIRS: usize = MAX_SYMBOLS * (MAX_SYMBOLS + 1) / 2;

/// A size that is bound when a step runs, such as its number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symbol(pub u8);

/// `constant + Σ coefficient · symbol + Σ coefficient · symbol · symbol`. Arithmetic saturates at the limits of `i64`;
/// evaluation returns `None` on overflow.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dim {
    constant: i64,
    linear: [i64; MAX_SYMBOLS],
    /// Coefficients of the products, in the order of [`pairs`].
    products: [i64; PAIRS],
}

/// Indices of the symbols of every product, in order.
fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..MAX_SYMBOLS).flat_map(|a| (a..MAX_SYMBOLS).map(move |b| (a, b)))
}

impl Dim {
    /// A constant; it may be negative as a term of a sum.
    pub fn constant(constant: i64) -> Dim {
        Dim {
            constant,
            linear: [0; MAX_SYMBOLS],
            products: [0; PAIRS],
        }
    }

    /// The value, if it does not depend on a symbol.
    pub fn as_const(&self) -> Option<usize> {
        usize::try_from(self.as_number()?).ok()
    }

    /// The value, which may be negative, if it does not depend on a symbol.
    pub fn as_number(&self) -> Option<i64> {
        (*self == Dim::constant(self.constant)).then_some(self.constant)
    }

    /// The symbol, if this dimension is exactly one symbol.
    pub fn as_symbol(&self) -> Option<Symbol> {
        (0..MAX_SYMBOLS as u8)
            .map(Symbol)
            .find(|s| Dim::from(*s) == *self)
    }

    /// Whether no term is negative, so that no symbol can make the value negative.
    pub fn is_nonnegative(&self) -> bool {
        self.coefficients().all(|c| c >= 0)
    }

    /// The value under concrete symbols; `None` if it is negative or overflows.
    pub fn eval(&self, bindings: &Bindings) -> Option<usize> {
        usize::try_from(self.value(bindings)?).ok()
    }

    /// The value under concrete symbols, which may be negative; `None` if it overflows.
    pub fn value(&self, bindings: &Bindings) -> Option<i64> {
        let mut sum = self.constant;
        for (symbols, coefficient) in self.terms() {
            let mut term = coefficient;
            for Symbol(s) in symbols.iter() {
                let value = i64::try_from(bindings.0[usize::from(s)]).ok()?;
                term = term.checked_mul(value)?;
            }
            sum = sum.checked_add(term)?;
        }
        Some(sum)
    }

    /// The product; `None` if it has a term of three symbols or overflows.
    pub fn checked_mul(&self, other: &Dim) -> Option<Dim> {
        let mut product = Dim::constant(self.constant.checked_mul(other.constant)?);
        for (s, sum) in product.linear.iter_mut().enumerate() {
            let left = self.linear[s].checked_mul(other.constant)?;
            let right = self.constant.checked_mul(other.linear[s])?;
            *sum = left.checked_add(right)?;
        }
        for (i, (a, b)) in pairs().enumerate() {
            let mut sum = self.products[i].checked_mul(other.constant)?;
            let mut add = |left: i64, right: i64| {
                sum = sum.checked_add(left.checked_mul(right)?)?;
                Some(())
            };
            add(self.constant, other.products[i])?;
            add(self.linear[a], other.linear[b])?;
            if a != b {
                add(self.linear[b], other.linear[a])?;
            }
            product.products[i] = sum;
        }
        (self.degree() + other.degree() <= 2).then_some(product)
    }

    /// The product of dimensions; `None` if it has a term of three symbols or overflows.
    pub fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Option<Dim> {
        let mut dims = dims.into_iter();
        dims.try_fold(Dim::from(1), |product, dim| product.checked_mul(dim))
    }

    /// Exact quotient by `divisor`; `None` if there is a remainder.
    pub fn checked_div(&self, divisor: usize) -> Option<Dim> {
        let divisor = i64::try_from(divisor).ok().filter(|d| *d > 0)?;
        let whole = self.coefficients().all(|c| c % divisor == 0);
        whole.then(|| self.map(|c| c / divisor))
    }

    /// Quotient by `divisor`, rounded down; `None` if the coefficient of a symbol or of a product has a remainder.
    pub fn floor_div(&self, divisor: usize) -> Option<Dim> {
        let rest = Dim::constant(self.constant);
        let quotient = (*self - rest).checked_div(divisor)?;
        let constant = self.constant.div_euclid(i64::try_from(divisor).ok()?);
        Some(quotient + Dim::constant(constant))
    }

    /// Greatest common divisor of all terms, and the quotient; `(0, 1)` for zero.
    pub fn content(&self) -> (usize, Dim) {
        let gcd = self.coefficients().fold(0, |a, b| gcd(a, b.unsigned_abs()));
        let gcd = usize::try_from(gcd).expect("usize has 64 bits");
        match self.checked_div(gcd) {
            Some(rest) => (gcd, rest),
            None => (0, Dim::from(1)),
        }
    }

    /// The dimension as text, with symbol names from `name`.
    pub(crate) fn text(&self, name: &dyn Fn(Symbol) -> String) -> String {
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
        for (symbols, coefficient) in self.terms() {
            let names: Vec<String> = symbols.iter().map(name).collect();
            term(coefficient, names.join("*"));
        }
        if self.constant != 0 || self.as_number().is_some() {
            term(self.constant, String::new());
        }
        text
    }

    /// The symbols that the value depends on; one that occurs in several terms is listed several times.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = Symbol> + '_ {
        self.terms().flat_map(|(symbols, _)| symbols.iter())
    }

    /// The terms that are not constant: one or two symbols, and the coefficient.
    pub(crate) fn terms(&self) -> impl Iterator<Item = (TermSymbols, i64)> + '_ {
        let symbol = |s: usize| Symbol(s as u8);
        let linear = (0..MAX_SYMBOLS).map(move |s| TermSymbols(symbol(s), None));
        let products = pairs().map(move |(a, b)| TermSymbols(symbol(a), Some(symbol(b))));
        let coefficients = self.linear.iter().chain(&self.products);
        let terms = linear.chain(products).zip(coefficients.copied());
        terms.filter(|(_, coefficient)| *coefficient != 0)
    }

    /// The constant term.
    pub(crate) fn constant_term(&self) -> i64 {
        self.constant
    }

    fn degree(&self) -> usize {
        let degrees = self.terms().map(|(symbols, _)| symbols.iter().count());
        degrees.max().unwrap_or(0)
    }

    fn coefficients(&self) -> impl Iterator<Item = i64> + '_ {
        let symbolic = self.linear.iter().chain(&self.products);
        std::iter::once(&self.constant).chain(symbolic).copied()
    }

    fn map(&self, f: impl Fn(i64) -> i64) -> Dim {
        Dim {
            constant: f(self.constant),
            linear: self.linear.map(&f),
            products: self.products.map(&f),
        }
    }
}

/// The symbols of a term: one, or two that are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct TermSymbols(Symbol, Option<Symbol>);

impl TermSymbols {
    /// Its symbols; a square has the same one twice.
    pub(crate) fn iter(self) -> impl Iterator<Item = Symbol> {
        std::iter::once(self.0).chain(self.1)
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::constant(i64::try_from(n).expect("a dimension below 2^63"))
    }
}

impl From<Symbol> for Dim {
    fn from(s: Symbol) -> Dim {
        let mut dim = Dim::constant(0);
        dim.linear[s.0 as usize] = 1;
        dim
    }
}

impl Add for Dim {
    type Output = Dim;

    fn add(self, other: Dim) -> Dim {
        let mut sum = self;
        sum.constant = sum.constant.saturating_add(other.constant);
        for (a, b) in sum.linear.iter_mut().zip(other.linear) {
            *a = a.saturating_add(b);
        }
        for (a, b) in sum.products.iter_mut().zip(other.products) {
            *a = a.saturating_add(b);
        }
        sum
    }
}

impl Neg for Dim {
    type Output = Dim;

    fn neg(self) -> Dim {
        self.map(i64::saturating_neg)
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
        self.map(|c| c.saturating_mul(factor))
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
    use proptest::prelude::*;

    /// A dimension made of its parts, and its value under `bindings`, computed directly.
    fn sum_of_terms(terms: &[(i64, Vec<u8>)], bindings: &Bindings) -> (Dim, i64) {
        let mut sum = (Dim::from(0), 0);
        for (coefficient, symbols) in terms {
            let dims: Vec<Dim> = symbols.iter().map(|s| Dim::from(Symbol(*s))).collect();
            let factor = Dim::constant(*coefficient);
            let term = Dim::product(dims.iter().chain([&factor])).unwrap();
            let values = symbols.iter().map(|s| bindings.0[usize::from(*s)] as i64);
            sum = (sum.0 + term, sum.1 + coefficient * values.product::<i64>());
        }
        sum
    }

    fn terms(most_symbols: usize) -> impl Strategy<Value = Vec<(i64, Vec<u8>)>> {
        let symbols = prop::collection::vec(0..MAX_SYMBOLS as u8, 0..=most_symbols);
        prop::collection::vec((-9i64..9, symbols), 0..5)
    }

    proptest! {
        #[test]
        fn arithmetic_is_that_of_the_values(
            a in terms(2), b in terms(2), left in terms(1), right in terms(1),
            at in prop::array::uniform4(0usize..50), divisor in 1usize..7,
        ) {
            let at = Bindings(at);
            let direct = |terms: &[(i64, Vec<u8>)]| sum_of_terms(terms, &at);
            let ((a, x), (b, y)) = (direct(&a), direct(&b));
            prop_assert_eq!(a.value(&at), Some(x));
            prop_assert_eq!((a + b).value(&at), Some(x + y));
            prop_assert_eq!((a - b).value(&at), Some(x - y));
            prop_assert_eq!((a * divisor).checked_div(divisor), Some(a));
            if let Some(quotient) = a.floor_div(divisor) {
                prop_assert_eq!(quotient.value(&at), Some(x.div_euclid(divisor as i64)));
            }
            let (content, rest) = a.content();
            prop_assert_eq!(rest.value(&at).map(|v| v * content as i64), Some(x));
            let ((left, x), (right, y)) = (direct(&left), direct(&right));
            let product = left.checked_mul(&right).unwrap();
            prop_assert_eq!(product.value(&at), Some(x * y));
            prop_assert_eq!(right.checked_mul(&left), Some(product));
        }
    }

    #[test]
    fn multiplies_two_symbols() {
        let (b, t) = (Dim::from(Symbol(0)), Dim::from(Symbol(1)));
        let product = (b + Dim::from(1)).checked_mul(&(t * 2 - Dim::from(3)));
        let product = product.unwrap();
        assert_eq!(format!("{product:?}"), "-3s0 + 2s1 + 2s0*s1 - 3");
        assert_eq!(format!("{:?}", t.checked_mul(&t).unwrap()), "s1*s1");
        assert_eq!((product.as_const(), product.as_symbol()), (None, None));
        assert_eq!(product.checked_mul(&b), None);
        assert_eq!(product.checked_mul(&Dim::from(2)), Some(product * 2));
        assert_eq!((b * (1 << 62)).checked_mul(&(t * 4)), None);
    }

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
