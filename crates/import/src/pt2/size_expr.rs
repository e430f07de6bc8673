//! Parser of size expressions in the notation of sympy's `srepr`: `Add(Symbol('s0', integer=True), Integer(1))`.

use std::collections::BTreeMap;

/// Limit on the nesting of an expression.
const MAX_NESTED: usize = 64;

/// `constant + Σ coefficient · symbol`, symbols by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SizeExpr {
    pub(super) constant: i64,
    pub(super) terms: BTreeMap<String, i64>,
}

impl SizeExpr {
    /// Parses an expression.
    ///
    /// # Errors
    /// The reason why it cannot be parsed or is not affine.
    pub(super) fn parse(text: &str) -> Result<SizeExpr, String> {
        let mut parser = Parser { rest: text };
        let expression = parser.expression(0);
        match expression {
            Ok(_) if !parser.rest.trim().is_empty() => Err(format!("cannot be parsed: {text:?}")),
            Err(None) => Err(format!("cannot be parsed: {text:?}")),
            Err(Some(what)) => Err(format!("is not affine in the dynamic sizes ({what})")),
            Ok(sum) => Ok(sum),
        }
    }

    fn add(mut self, other: &SizeExpr) -> Option<SizeExpr> {
        self.constant = self.constant.checked_add(other.constant)?;
        for (name, factor) in &other.terms {
            let sum = self.terms.entry(name.clone()).or_default();
            *sum = sum.checked_add(*factor)?;
        }
        self.terms.retain(|_, factor| *factor != 0);
        Some(self)
    }

    fn map(self, f: impl Fn(i64) -> Option<i64>) -> Option<SizeExpr> {
        let terms = self.terms.into_iter();
        let terms = terms
            .map(|(name, factor)| Some((name, f(factor)?)))
            .collect::<Option<BTreeMap<_, _>>>()?;
        let mut product = SizeExpr {
            constant: f(self.constant)?,
            terms,
        };
        product.terms.retain(|_, factor| *factor != 0);
        Some(product)
    }

    fn as_number(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }
}

struct Parser<'t> {
    rest: &'t str,
}

/// Why an expression is rejected: `None` if it cannot be parsed, or the name of the function that is not affine.
type Refusal = Option<String>;

impl<'t> Parser<'t> {
    fn expression(&mut self, depth: usize) -> Result<SizeExpr, Refusal> {
        if depth > MAX_NESTED {
            return Err(None);
        }
        let word = self.word();
        if word.is_empty() {
            return Err(None);
        }
        if let Ok(constant) = word.parse() {
            return Ok(SizeExpr {
                constant,
                ..SizeExpr::default()
            });
        }
        if !self.take('(') {
            return Ok(symbol(word));
        }
        match word {
            "Symbol" => {
                let name = self.quoted().ok_or(None)?;
                self.skip_assumptions()?;
                Ok(symbol(name))
            }
            "Integer" => {
                let number = self.word().parse().map_err(|_| None)?;
                self.close()?;
                Ok(SizeExpr {
                    constant: number,
                    ..SizeExpr::default()
                })
            }
            "Add" | "Mul" | "FloorDiv" | "CleanDiv" => {
                let mut list = vec![self.expression(depth + 1)?];
                while self.take(',') {
                    list.push(self.expression(depth + 1)?);
                }
                self.close()?;
                combine(word, list).ok_or_else(|| Some(word.to_owned()))
            }
            other => Err(Some(other.to_owned())),
        }
    }

    /// A name or a number, with its sign.
    fn word(&mut self) -> &'t str {
        self.rest = self.rest.trim_start();
        let end = self.rest.char_indices().find(|(at, c)| {
            !(c.is_alphanumeric() || *c == '_' || *c == '.' || (*at == 0 && *c == '-'))
        });
        let (word, rest) = self
            .rest
            .split_at(end.map_or(self.rest.len(), |(at, _)| at));
        self.rest = rest;
        word
    }

    fn take(&mut self, sign: char) -> bool {
        let rest = self.rest.trim_start();
        let found = rest.strip_prefix(sign);
        self.rest = found.unwrap_or(rest);
        found.is_some()
    }

    fn close(&mut self) -> Result<(), Refusal> {
        self.take(')').then_some(()).ok_or(None)
    }

    fn quoted(&mut self) -> Option<&'t str> {
        let rest = self.rest.trim_start().strip_prefix('\'')?;
        let (name, rest) = rest.split_once('\'')?;
        self.rest = rest;
        Some(name)
    }

    /// `, positive=True, integer=True)`.
    fn skip_assumptions(&mut self) -> Result<(), Refusal> {
        while self.take(',') {
            self.word();
            if !self.take('=') || self.word().is_empty() {
                return Err(None);
            }
        }
        self.close()
    }
}

fn symbol(name: &str) -> SizeExpr {
    SizeExpr {
        constant: 0,
        terms: BTreeMap::from([(name.to_owned(), 1)]),
    }
}

fn combine(function: &str, list: Vec<SizeExpr>) -> Option<SizeExpr> {
    let mut list = list.into_iter();
    let first = list.next()?;
    list.try_fold(first, |left, right| match function {
        "Add" => left.add(&right),
        "Mul" => match (left.as_number(), right.as_number()) {
            (Some(factor), _) => right.map(|n| n.checked_mul(factor)),
            (None, Some(factor)) => left.map(|n| n.checked_mul(factor)),
            (None, None) => None,
        },
        _ => {
            let divisor = right.as_number().filter(|d| *d > 0)?;
            match left.as_number() {
                Some(number) => SizeExpr::default().add(&SizeExpr {
                    constant: number.div_euclid(divisor),
                    ..SizeExpr::default()
                }),
                None => left.map(|n| (n % divisor == 0).then(|| n / divisor)),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_affine() {
        let s = |n: &str| format!("Symbol('{n}', positive=True, integer=True)");
        let cases = [
            ("Integer(7)".to_owned(), 7, &[][..]),
            ("-3".into(), -3, &[]),
            (s("s27"), 0, &[("s27", 1)]),
            ("s0".into(), 0, &[("s0", 1)]),
            (
                format!("Add({}, Mul(Integer(2), {}), Integer(-1))", s("a"), s("b")),
                -1,
                &[("a", 1), ("b", 2)],
            ),
            (
                format!("Mul(Integer(16), Add({}, Integer(1)))", s("a")),
                16,
                &[("a", 16)],
            ),
            (
                format!("FloorDiv(Mul(Integer(4), {}), Integer(2))", s("a")),
                0,
                &[("a", 2)],
            ),
            (format!("Add({0}, Mul(Integer(-1), {0}))", s("a")), 0, &[]),
        ];
        for (text, constant, terms) in cases {
            let found = SizeExpr::parse(&text).unwrap();
            let terms = terms.iter().map(|(name, n)| ((*name).to_owned(), *n));
            let want = SizeExpr {
                constant,
                terms: terms.collect(),
            };
            assert_eq!(found, want, "{text}");
        }
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
            ("Mul(Symbol('a'), Symbol('b'))", "affine"),
            ("Mod(Symbol('a'), Integer(2))", "Mod"),
            ("FloorDiv(Symbol('a'), Integer(2))", "FloorDiv"),
            (
                "Mul(Integer(9223372036854775807), Integer(9223372036854775807))",
                "affine",
            ),
        ];
        for (text, want) in cases {
            let error = SizeExpr::parse(text).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
