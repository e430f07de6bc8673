//! Size expressions that are polynomials, with which a graph plans for all sizes.

use std::collections::BTreeMap;

use super::size_tree::SizeTree;

/// Limit on the symbols that a term multiplies, which is that of [`graph::Dim`].
const MAX_DEGREE: usize = 2;

/// Limit on the terms of a sum.
const MAX_TERMS: usize = 64;

/// A polynomial in symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SizeExpr {
    /// Coefficients by the names of the symbols that they multiply, in alphabetical order. None is zero; the constant has
    /// no symbols.
    terms: BTreeMap<Vec<String>, i64>,
}

impl SizeExpr {
    /// Parses an expression.
    ///
    /// # Errors
    /// The reason why it cannot be parsed or is not a polynomial of second degree.
    pub(super) fn parse(text: &str) -> Result<SizeExpr, String> {
        polynomial(&SizeTree::parse(text)?).map_err(|function| {
            format!("is not a polynomial of second degree in the dynamic sizes ({function})")
        })
    }

    /// The terms: names of up to two symbols, and the coefficient.
    pub(super) fn terms(&self) -> impl Iterator<Item = (&[String], i64)> {
        let terms = self.terms.iter();
        terms.map(|(names, coefficient)| (&names[..], *coefficient))
    }

    /// The name, if the expression is exactly one symbol.
    pub(super) fn as_symbol(&self) -> Option<&str> {
        let (names, coefficient) = self.terms.first_key_value()?;
        match &names[..] {
            [name] if *coefficient == 1 && self.terms.len() == 1 => Some(name),
            _ => None,
        }
    }

    /// A constant.
    pub(super) fn number(constant: i64) -> SizeExpr {
        SizeExpr::term(vec![], constant)
    }

    fn symbol(name: &str) -> SizeExpr {
        SizeExpr::term(vec![name.to_owned()], 1)
    }

    fn term(names: Vec<String>, coefficient: i64) -> SizeExpr {
        let mut terms = BTreeMap::from([(names, coefficient)]);
        terms.retain(|_, coefficient| *coefficient != 0);
        SizeExpr { terms }
    }

    fn as_number(&self) -> Option<i64> {
        match self.terms.first_key_value() {
            None => Some(0),
            Some((names, number)) if names.is_empty() && self.terms.len() == 1 => Some(*number),
            Some(_) => None,
        }
    }

    /// The sum; `None` if it overflows or has too many terms.
    fn add(mut self, other: &SizeExpr) -> Option<SizeExpr> {
        for (names, coefficient) in &other.terms {
            let sum = self.terms.entry(names.clone()).or_default();
            *sum = sum.checked_add(*coefficient)?;
        }
        self.terms.retain(|_, coefficient| *coefficient != 0);
        (self.terms.len() <= MAX_TERMS).then_some(self)
    }

    /// The product; `None` if it overflows, has too many terms, or has a term of more than [`MAX_DEGREE`] symbols.
    pub(super) fn multiply(&self, other: &SizeExpr) -> Option<SizeExpr> {
        let mut product = SizeExpr::default();
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                let mut names = [&left[..], right].concat();
                names.sort_unstable();
                if names.len() > MAX_DEGREE {
                    return None;
                }
                product = product.add(&SizeExpr::term(names, a.checked_mul(*b)?))?;
            }
        }
        Some(product)
    }

    /// The quotient by a number or a product of symbols; `None` if there is a remainder, except for the quotient of two
    /// numbers, which is rounded down.
    fn divide(&self, divisor: &SizeExpr) -> Option<SizeExpr> {
        let (names, number) = divisor.terms.first_key_value()?;
        if divisor.terms.len() != 1 || *number <= 0 {
            return None;
        }
        if let (Some(dividend), true) = (self.as_number(), names.is_empty()) {
            return Some(SizeExpr::number(dividend.div_euclid(*number)));
        }
        let mut terms = BTreeMap::new();
        for (own, coefficient) in &self.terms {
            let mut rest = own.clone();
            for name in names {
                rest.remove(rest.iter().position(|other| other == name)?);
            }
            let whole = (coefficient % number == 0).then(|| coefficient / number);
            terms.insert(rest, whole?);
        }
        Some(SizeExpr { terms })
    }
}

/// The polynomial of a tree; the name of the first function that has none.
fn polynomial(tree: &SizeTree) -> Result<SizeExpr, String> {
    match tree {
        SizeTree::Number(number) => Ok(SizeExpr::number(*number)),
        SizeTree::Symbol(name) => Ok(SizeExpr::symbol(name)),
        SizeTree::Call(function, operands) => {
            let operands = operands.iter().map(polynomial).collect::<Result<_, _>>()?;
            combine(function, operands).ok_or_else(|| function.clone())
        }
    }
}

fn combine(function: &str, list: Vec<SizeExpr>) -> Option<SizeExpr> {
    let mut list = list.into_iter();
    let first = list.next()?;
    list.try_fold(first, |left, right| match function {
        "Add" => left.add(&right),
        "Mul" => left.multiply(&right),
        "Pow" => {
            let exponent = usize::try_from(right.as_number()?).ok()?;
            let exponent = Some(exponent).filter(|n| *n <= MAX_DEGREE)?;
            let mut factors = std::iter::repeat_n(&left, exponent);
            factors.try_fold(SizeExpr::number(1), |power, base| power.multiply(base))
        }
        "FloorDiv" | "CleanDiv" => left.divide(&right),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of an expression under values of its symbols.
    fn value(expression: &SizeExpr, symbols: &[(&str, i64)]) -> i64 {
        let symbol = |name: &String| symbols.iter().find(|(known, _)| known == name).unwrap().1;
        let terms = expression.terms();
        terms
            .map(|(names, n)| n * names.iter().map(symbol).product::<i64>())
            .sum()
    }

    #[test]
    fn reads_polynomials() {
        type Direct = fn(i64, i64) -> i64;
        let s = |n: &str| format!("Symbol('{n}', positive=True, integer=True)");
        let (a, b) = (s("a"), s("b"));
        let cases: [(String, Direct); 13] = [
            ("Integer(7)".to_owned(), |_, _| 7),
            ("-3".into(), |_, _| -3),
            ("Integer(0)".into(), |_, _| 0),
            (a.clone(), |a, _| a),
            ("b".into(), |_, b| b),
            (
                format!("Add({a}, Mul(Integer(2), {b}), Integer(-1))"),
                |a, b| a + 2 * b - 1,
            ),
            (format!("Mul(Integer(16), Add({a}, Integer(1)))"), |a, _| {
                16 * (a + 1)
            }),
            (
                format!("FloorDiv(Mul(Integer(4), {a}), Integer(2))"),
                |a, _| 2 * a,
            ),
            (format!("Add({a}, Mul(Integer(-1), {a}))"), |_, _| 0),
            (format!("Mul({a}, {b})"), |a, b| a * b),
            (
                format!("Mul(Add({a}, Integer(1)), Add({b}, Mul(Integer(3), {a})))"),
                |a, b| (a + 1) * (b + 3 * a),
            ),
            (format!("Add(Pow({a}, Integer(2)), {b})"), |a, b| a * a + b),
            (
                format!("FloorDiv(Mul(Integer(6), {b}, {a}), {b})"),
                |a, _| 6 * a,
            ),
        ];
        for (text, direct) in cases {
            let found = SizeExpr::parse(&text).unwrap();
            for (a, b) in [(1, 1), (3, 5), (10, 2)] {
                let value = value(&found, &[("a", a), ("b", b)]);
                assert_eq!(value, direct(a, b), "{text} for {a} and {b}");
            }
        }
        assert_eq!(SizeExpr::parse(&a).unwrap().as_symbol(), Some("a"));
        assert_eq!(SizeExpr::parse("Mul(a, b)").unwrap().as_symbol(), None);
    }

    #[test]
    fn says_what_it_cannot_read() {
        let deep = "Add(".repeat(100_000);
        let cases = [
            ("", "cannot be parsed"),
            ("Add(", "cannot be parsed"),
            ("Integer(7) 8", "cannot be parsed"),
            ("Symbol('s0'", "cannot be parsed"),
            (&deep, "cannot be parsed"),
            ("Mul(Symbol('a'), Symbol('b'), Symbol('a'))", "Mul"),
            ("Pow(Symbol('a'), Integer(3))", "Pow"),
            ("FloorDiv(Symbol('a'), Symbol('b'))", "FloorDiv"),
            ("FloorDiv(Symbol('a'), Integer(0))", "FloorDiv"),
            ("Mod(Symbol('a'), Integer(2))", "Mod"),
            ("FloorDiv(Symbol('a'), Integer(2))", "FloorDiv"),
            (
                "Mul(Integer(9223372036854775807), Integer(9223372036854775807))",
                "polynomial",
            ),
        ];
        for (text, want) in cases {
            let error = SizeExpr::parse(text).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
