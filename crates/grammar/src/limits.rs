//! The sizes that a grammar may have. A grammar comes from a client, so that every size is checked before it is compiled.

use crate::{GrammarError, GrammarSource};
use serde_json::Value;

/// The largest size of a grammar or regular expression in bytes.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;
/// The largest size of a JSON schema in bytes.
pub const MAX_SCHEMA_BYTES: usize = 1 << 20;
/// The largest number of rules of a grammar, and of definitions of a schema. Compiling a chain of them takes stack for each.
pub const MAX_RULES: usize = 4096;
/// The deepest nesting of groups.
pub const MAX_NESTING: usize = 24;

/// Refuses a source that is larger than the limits.
pub(crate) fn check(source: &GrammarSource) -> Result<(), GrammarError> {
    match source {
        GrammarSource::JsonObject => Ok(()),
        GrammarSource::JsonSchema(schema) | GrammarSource::ToolCall(schema) => {
            at_most(
                "bytes of the schema",
                schema.to_string().len(),
                MAX_SCHEMA_BYTES,
            )?;
            at_most("definitions of the schema", definitions(schema), MAX_RULES)
        }
        GrammarSource::Regex(pattern) => {
            at_most("bytes of the expression", pattern.len(), MAX_GRAMMAR_BYTES)
        }
        GrammarSource::Lark(source) => {
            at_most("bytes of the grammar", source.len(), MAX_GRAMMAR_BYTES)?;
            // A rule is a name before a colon at the beginning of a line. Strings with colons only make the count higher.
            let rules = source.lines().filter(|line| line.contains(':'));
            at_most("rules of the grammar", rules.count(), MAX_RULES)
        }
        // The parser counts its rules and nesting.
        GrammarSource::Gbnf(source) => {
            at_most("bytes of the grammar", source.len(), MAX_GRAMMAR_BYTES)
        }
    }
}

/// Refuses a number above its limit.
pub(crate) fn at_most(what: &'static str, number: usize, limit: usize) -> Result<(), GrammarError> {
    match number <= limit {
        true => Ok(()),
        false => Err(GrammarError::TooLarge {
            what,
            number,
            limit,
        }),
    }
}

/// The number of named definitions of a schema, at any depth.
fn definitions(schema: &Value) -> usize {
    match schema {
        Value::Array(items) => items.iter().map(definitions).sum(),
        Value::Object(map) => {
            let named = ["$defs", "definitions"].iter();
            let named = named.filter_map(|key| map.get(*key)?.as_object());
            let own: usize = named.map(serde_json::Map::len).sum();
            own + map.values().map(definitions).sum::<usize>()
        }
        _ => 0,
    }
}
