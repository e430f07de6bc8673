//! Size expressions as PyTorch writes them, in the notation of sympy's `srepr`: `Add(Symbol('s0', integer=True), Integer(1))`.

use std::collections::BTreeMap;
use std::fmt;

/// Limit on the nesting of an expression.
const MAX_NESTED: usize = 64;

/// An expression of dynamic sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SizeTree {
    /// A constant.
    Number(i64),
    /// A dynamic size by its name.
    Symbol(String),
    /// A function of one or more operands.
    Call(String, Vec<SizeTree>),
}

impl SizeTree {
    /// Parses an expression.
    ///
    /// # Errors
    /// The reason why it cannot be parsed.
    pub(super) fn parse(text: &str) -> Result<SizeTree, String> {
        let mut parser = Parser { rest: text };
        let tree = parser.expression(0);
        let tree = tree.filter(|_| parser.rest.trim().is_empty());
        tree.ok_or_else(|| format!("cannot be parsed: {text:?}"))
    }

    /// The value under values of the symbols.
    ///
    /// # Errors
    /// The part that has no value: a symbol, a function that is not supported, or a sum that overflows.
    pub(super) fn value(&self, symbol: &dyn Fn(&str) -> Option<i64>) -> Result<i64, String> {
        match self {
            SizeTree::Number(number) => Ok(*number),
            SizeTree::Symbol(name) => {
                symbol(name).ok_or_else(|| format!("depends on data ({name})"))
            }
            SizeTree::Call(function, operands) => {
                let operands = operands.iter().map(|operand| operand.value(symbol));
                let operands = operands.collect::<Result<Vec<i64>, String>>()?;
                let value = combine(function, &operands);
                value.ok_or_else(|| format!("has no value: {function} of {operands:?}"))
            }
        }
    }

    /// The expression with other names for its symbols.
    pub(super) fn renamed(&self, names: &BTreeMap<String, String>) -> SizeTree {
        match self {
            SizeTree::Number(number) => SizeTree::Number(*number),
            SizeTree::Symbol(name) => SizeTree::Symbol(names.get(name).unwrap_or(name).clone()),
            SizeTree::Call(function, operands) => {
                let operands = operands.iter().map(|operand| operand.renamed(names));
                SizeTree::Call(function.clone(), operands.collect())
            }
        }
    }

    /// Whether it needs parentheses beside an operator.
    fn is_sum(&self) -> bool {
        match self {
            SizeTree::Number(number) => *number < 0,
            SizeTree::Symbol(_) => false,
            SizeTree::Call(function, _) => operator(function).is_some(),
        }
    }
}

/// The value of a function; `None` if it is not supported, not defined or overflows.
fn combine(function: &str, operands: &[i64]) -> Option<i64> {
    let fold = |f: fn(i64, i64) -> Option<i64>| {
        let (first, rest) = operands.split_first()?;
        rest.iter().try_fold(*first, |left, right| f(left, *right))
    };
    let floor_div = |a: i64, b: i64| match (a.checked_div_euclid(b)?, b < 0 && a.rem_euclid(b) != 0)
    {
        (quotient, false) => Some(quotient),
        (quotient, true) => quotient.checked_sub(1),
    };
    match function {
        "Add" => fold(i64::checked_add),
        "Mul" => fold(i64::checked_mul),
        "Max" => fold(|a, b| Some(a.max(b))),
        "Min" => fold(|a, b| Some(a.min(b))),
        "Pow" | "PowByNatural" => fold(|a, b| a.checked_pow(u32::try_from(b).ok()?)),
        _ => {
            let [a, b] = *operands else { return None };
            match function {
                "FloorDiv" => floor_div(a, b),
                "CleanDiv" => floor_div(a, b).filter(|quotient| quotient.checked_mul(b) == Some(a)),
                "CeilDiv" => floor_div(a.checked_neg()?, b)?.checked_neg(),
                // With the sign of the divisor, as in Python.
                "Mod" | "PythonMod" => a.checked_sub(floor_div(a, b)?.checked_mul(b)?),
                _ => None,
            }
        }
    }
}

/// The operator that a function is written as.
fn operator(function: &str) -> Option<&'static str> {
    Some(match function {
        "Add" => " + ",
        "Mul" => "*",
        "FloorDiv" | "CleanDiv" => "//",
        "Mod" | "PythonMod" => "%",
        "Pow" | "PowByNatural" => "**",
        _ => return None,
    })
}

impl fmt::Display for SizeTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeTree::Number(number) => write!(f, "{number}"),
            SizeTree::Symbol(name) => f.write_str(name),
            SizeTree::Call(function, operands) => {
                let operator = operator(function);
                let texts: Vec<String> = operands
                    .iter()
                    .map(|operand| match operator.is_some() && operand.is_sum() {
                        true => format!("({operand})"),
                        false => operand.to_string(),
                    })
                    .collect();
                match operator {
                    Some(operator) => f.write_str(&texts.join(operator)),
                    None => write!(f, "{function}({})", texts.join(", ")),
                }
            }
        }
    }
}

struct Parser<'t> {
    rest: &'t str,
}

impl<'t> Parser<'t> {
    fn expression(&mut self, depth: usize) -> Option<SizeTree> {
        if depth > MAX_NESTED {
            return None;
        }
        let word = self.word();
        if word.is_empty() {
            return None;
        }
        if let Ok(constant) = word.parse() {
            return Some(SizeTree::Number(constant));
        }
        if !self.take('(') {
            return Some(SizeTree::Symbol(word.to_owned()));
        }
        match word {
            "Symbol" => {
                let name = self.quoted()?;
                self.skip_assumptions()?;
                Some(SizeTree::Symbol(name.to_owned()))
            }
            "Integer" => {
                let number = self.word().parse().ok()?;
                self.close()?;
                Some(SizeTree::Number(number))
            }
            function => {
                let mut operands = vec![self.expression(depth + 1)?];
                while self.take(',') {
                    operands.push(self.expression(depth + 1)?);
                }
                self.close()?;
                Some(SizeTree::Call(function.to_owned(), operands))
            }
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

    fn close(&mut self) -> Option<()> {
        self.take(')').then_some(())
    }

    fn quoted(&mut self) -> Option<&'t str> {
        let rest = self.rest.trim_start().strip_prefix('\'')?;
        let (name, rest) = rest.split_once('\'')?;
        self.rest = rest;
        Some(name)
    }

    /// `, positive=True, integer=True)`.
    fn skip_assumptions(&mut self) -> Option<()> {
        while self.take(',') {
            self.word();
            if !self.take('=') || self.word().is_empty() {
                return None;
            }
        }
        self.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_values_of_python() {
        let s = |name: &str| format!("Symbol('{name}', positive=True, integer=True)");
        let (a, b) = (s("a"), s("b"));
        let table = [
            (
                format!("Add(FloorDiv(Add({a}, Integer(-1)), Integer(2)), Integer(1))"),
                7,
                0,
                4,
                "((a + (-1))//2) + 1",
            ),
            (
                format!("Max({a}, Mul(Integer(2), {b}))"),
                7,
                4,
                8,
                "Max(a, 2*b)",
            ),
            (
                format!("Min({a}, {b}, Integer(3))"),
                7,
                4,
                3,
                "Min(a, b, 3)",
            ),
            (format!("Mod({a}, {b})"), -7, 4, 1, "a%b"),
            (format!("PythonMod({a}, {b})"), 7, -4, -1, "a%b"),
            (format!("FloorDiv({a}, {b})"), 7, -4, -2, "a//b"),
            (format!("FloorDiv({a}, {b})"), -7, -4, 1, "a//b"),
            (format!("CeilDiv({a}, {b})"), 9, 4, 3, "CeilDiv(a, b)"),
            (format!("CleanDiv(Mul({a}, {b}), {b})"), 9, 4, 9, "(a*b)//b"),
            (format!("Pow({a}, Integer(3))"), 3, 0, 27, "a**3"),
        ];
        for (text, a, b, expect, shown) in table {
            let tree = SizeTree::parse(&text).unwrap();
            let symbol = |name: &str| Some(if name == "a" { a } else { b });
            assert_eq!(tree.value(&symbol), Ok(expect), "{text}");
            assert_eq!(tree.to_string(), shown);
        }
    }

    #[test]
    fn what_has_no_value_is_named() {
        let table = [
            ("u0", "depends on data (u0)"),
            ("FloorDiv(a, Integer(0))", "FloorDiv of [3, 0]"),
            ("CleanDiv(a, Integer(2))", "CleanDiv of [3, 2]"),
            ("Piecewise(a, a)", "Piecewise of [3, 3]"),
            ("Mul(a, 9223372036854775807)", "Mul of"),
            ("Pow(a, -1)", "Pow of"),
        ];
        for (text, expect) in table {
            let tree = SizeTree::parse(text).unwrap();
            let error = tree.value(&|name| (name == "a").then_some(3)).unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }
}
