//! Numbers and sizes as C expressions.

use graph::{Bindings, Dim};
use std::fmt::Write as _;

/// An f32 as an exact literal.
pub(crate) fn float(x: f32) -> String {
    if x == 0.0 {
        return "0.0f".to_owned();
    }
    let bits = x.to_bits();
    let sign = if bits >> 31 == 1 { "-" } else { "" };
    let (exponent, fraction) = ((bits >> 23 & 0xff) as i32, bits & 0x7f_ffff);
    match exponent {
        0 => format!("{sign}0x0.{:06x}p-126f", fraction << 1),
        _ => format!("{sign}0x1.{:06x}p{:+}f", fraction << 1, exponent - 127),
    }
}

/// The symbols that a program has at run time: tokens of the step, and rows whose logits are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepSymbols {
    pub(crate) tokens: Option<usize>,
    pub(crate) rows: Option<usize>,
}

impl StepSymbols {
    fn bind(&self, tokens: usize, rows: usize) -> Bindings {
        let mut bindings = Bindings::default();
        for (index, value) in [(self.tokens, tokens), (self.rows, rows)] {
            if let Some(index) = index {
                bindings.0[index] = value;
            }
        }
        bindings
    }

    /// The constant of a linear dimension, and the factors of its tokens and rows.
    fn terms(&self, dim: &Dim) -> Option<[i64; 3]> {
        let constant = dim.value(&self.bind(0, 0))?;
        let tokens = dim.value(&self.bind(1, 0))? - constant;
        let rows = dim.value(&self.bind(0, 1))? - constant;
        Some([constant, tokens, rows])
    }

    /// The product of dimensions as a C expression of `T` and `R`.
    pub(crate) fn product(&self, dims: &[Dim]) -> Option<String> {
        let mut constant = 1i64;
        let mut factors = Vec::new();
        for dim in dims {
            match self.terms(dim)? {
                [n, 0, 0] => constant = constant.checked_mul(n)?,
                [0, n, 0] => {
                    constant = constant.checked_mul(n)?;
                    factors.push("T".to_owned());
                }
                [0, 0, n] => {
                    constant = constant.checked_mul(n)?;
                    factors.push("R".to_owned());
                }
                [constant, tokens, rows] => {
                    factors.push(format!("({constant} + {tokens} * T + {rows} * R)"))
                }
            }
        }
        if constant == 0 {
            return Some("0".to_owned());
        }
        if constant != 1 || factors.is_empty() {
            factors.push(constant.to_string());
        }
        Some(factors.join(" * "))
    }
}

/// Replaces every `@key@` of a template.
pub(crate) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = template.to_owned();
    for (key, value) in values {
        text = text.replace(&format!("@{key}@"), value);
    }
    text
}

/// A line `#define NAME value`, with a comment if there is one.
pub(crate) fn define(text: &mut String, name: &str, value: impl std::fmt::Display, comment: &str) {
    let comment = match comment.is_empty() {
        true => String::new(),
        false => format!(" /* {comment} */"),
    };
    let _ = writeln!(text, "#define {name} {value}{comment}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::Symbol;

    #[test]
    fn floats_are_exact() {
        assert_eq!(float(1.0), "0x1.000000p+0f");
        assert_eq!(float(-0.1), "-0x1.99999ap-4f");
        assert_eq!(float(f32::from_bits(1)), "0x0.000002p-126f");
    }

    #[test]
    fn products_fold_constants() {
        let symbols = StepSymbols {
            tokens: Some(0),
            rows: Some(1),
        };
        let (t, r) = (Dim::from(Symbol(0)), Dim::from(Symbol(1)));
        let product = |dims: &[Dim]| symbols.product(dims).unwrap();
        assert_eq!(product(&[t, 9.into(), 64.into()]), "T * 576");
        assert_eq!(product(&[r]), "R");
        assert_eq!(product(&[1.into()]), "1");
        assert_eq!(product(&[t, t]), "T * T");
        assert_eq!(product(&[t + 3.into()]), "(3 + 1 * T + 0 * R)");
    }
}
