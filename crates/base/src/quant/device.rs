//! The device code of block formats: functions in the common subset of C and CUDA C++, made from each format's statements.

use super::format::{BlockFormat, Codes};
use std::fmt::{Display, Write};

/// The keywords that declare functions and tables in a dialect of C.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// Before a function.
    pub function: &'static str,
    /// Before a table that only this source reads.
    pub table: &'static str,
    /// Before the values of codes.
    pub values: &'static str,
}

impl BlockFormat {
    /// The name of the array of the values of codes; `None` if codes index no table.
    pub fn values_name(&self) -> Option<String> {
        matches!(self.codes, Codes::Table(_)).then(|| format!("k_values_{}", self.name))
    }

    /// The array of the values of codes; empty if codes index no table.
    pub fn values_source(&self, dialect: &Dialect) -> String {
        match (self.codes, self.values_name()) {
            (Codes::Table(values), Some(name)) => {
                array(dialect.values, "signed char", &name, values)
            }
            _ => String::new(),
        }
    }

    /// The function `struct quant NAME_at(const u8 *b, int e)`, which reads element `e` of a block: its code, scale and min.
    ///
    /// The source that it is part of defines `u8`, `u16`, `half_at`, `u16_at`, `u32_at` and `struct quant`.
    pub fn element_source(&self, dialect: &Dialect) -> String {
        let (name, element) = (self.name, self.element);
        let mut text = match self.grid {
            [] => String::new(),
            numbers => array(dialect.table, "u16", &format!("{name}_grid"), numbers),
        };
        let _ = write!(
            text,
            "{} struct quant {name}_at(const u8 *b, int e)\n{{\n    struct quant q = {{0, 0.0f, 0.0f}};{element}\n    return q;\n}}\n",
            dialect.function
        );
        text
    }

    /// The value of the code of `q`, an expression of C.
    pub fn value_expression(&self) -> String {
        match (self.codes, self.values_name()) {
            (_, Some(values)) => format!("{values}[q.code]"),
            (Codes::Unsigned { zero, .. }, _) if zero != 0 => format!("(q.code - {zero})"),
            _ => "q.code".to_owned(),
        }
    }
}

/// The definition of an array, sixteen numbers to a line.
fn array(qualifier: &str, element: &str, name: &str, numbers: &[impl Display]) -> String {
    let mut text = format!("{qualifier} {element} {name}[{}] = {{", numbers.len());
    for (i, number) in numbers.iter().enumerate() {
        let separator = if i % 16 == 0 { "\n    " } else { " " };
        let _ = write!(text, "{separator}{number},");
    }
    text + "\n};\n"
}
