//! Cache policies as text: rules in one line, or a TOML file with a table for each.

use crate::{RuntimeError, RuntimeErrorKind};
use kv::KvPolicy;
use std::path::Path;

/// Reads a policy: rules as [`KvPolicy`] parses them, or the path of a file that ends with `.toml` and has them as tables:
///
/// ```toml
/// [[rules]]
/// layers = "0-3"
/// type = "f16"
///
/// [[rules]]
/// layers = "others"
/// keys = "q8"
/// values = "q4"
/// window = 4096
/// sinks = 4
/// ```
///
/// Rules for the whole cache are keys of their own, which stand before the tables of rules:
///
/// ```toml
/// stream = { window = 4096, sinks = 4 }
/// preallocate = true
/// ```
///
/// # Errors
/// `InvalidOptions` that names the file, the rule and what is wrong with it.
pub fn read_policy(text: &str) -> Result<KvPolicy, RuntimeError> {
    let wrong = |reason: String| RuntimeErrorKind::InvalidOptions(reason);
    if !text.ends_with(".toml") {
        return Ok(text.parse().map_err(|error| wrong(format!("{error}")))?);
    }
    let content = std::fs::read_to_string(Path::new(text));
    let content = content.map_err(|error| wrong(format!("{text}: {error}")))?;
    let policy = of_toml(&content).map_err(|reason| wrong(format!("{text}: {reason}")))?;
    Ok(policy)
}

/// The file that [`read_policy`] reads as this policy.
pub fn policy_text(policy: &KvPolicy) -> String {
    let mut whole = String::new();
    whole.extend(policy.stream.map(|stream| {
        let kv::StreamRule { window, sinks } = stream;
        format!("stream = {{ window = {window}, sinks = {sinks} }}\n")
    }));
    whole.extend((policy.preallocate).map(|all| format!("preallocate = {all}\n")));
    let rules = policy.rules.iter().map(|rule| {
        let layers = match &rule.layers {
            kv::LayerSelection::Others => "others".to_owned(),
            named => named.to_string(),
        };
        let mut text = format!("[[rules]]\nlayers = \"{layers}\"\n");
        for (key, storage) in [("keys", rule.keys), ("values", rule.values)] {
            text.extend(storage.map(|storage| format!("{key} = \"{storage}\"\n")));
        }
        for (key, number) in [("window", rule.window), ("sinks", rule.sinks)] {
            text.extend(number.map(|number| format!("{key} = {number}\n")));
        }
        text
    });
    let whole = Some(whole).filter(|whole| !whole.is_empty());
    whole
        .into_iter()
        .chain(rules)
        .collect::<Vec<_>>()
        .join("\n")
}

fn of_toml(content: &str) -> Result<KvPolicy, String> {
    let table: toml::Table = content.parse().map_err(|error: toml::de::Error| {
        // The message has the lines of the file in it.
        error.to_string().trim().to_owned()
    })?;
    let mut lines = vec![];
    let mut rules = &vec![];
    for (key, value) in &table {
        match (&**key, value) {
            ("rules", toml::Value::Array(all)) => rules = all,
            ("preallocate", toml::Value::Boolean(all)) => {
                lines.push(if *all { "preallocate" } else { "grow" }.to_owned());
            }
            ("stream", toml::Value::Table(stream)) => {
                let words = stream.iter().map(|(key, value)| format!(" {key} {value}"));
                lines.push(format!("stream{}", words.collect::<String>()));
            }
            ("rules" | "preallocate" | "stream", other) => {
                return Err(format!(
                    "{key} is {other}; a policy has [[rules]], stream = {{ window = N }} and preallocate = true"
                ));
            }
            _ => {
                return Err(format!(
                    "{key:?} is not known; a policy has [[rules]], stream and preallocate"
                ));
            }
        }
    }
    for (i, rule) in rules.iter().enumerate() {
        let rule = rule.as_table().ok_or("a policy has [[rules]]")?;
        let mut words = vec![];
        for (key, value) in rule {
            let value = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Integer(number) => number.to_string(),
                other => return Err(format!("rule {}: {key} is {other}", i + 1)),
            };
            words.push(match key.as_str() {
                "layers" if value == "others" => value,
                "layers" | "window" | "sinks" => format!("{key} {value}"),
                "type" => value,
                "keys" | "values" => format!("{key}={value}"),
                _ => {
                    return Err(format!(
                        "rule {}: {key:?} is none of layers, type, keys, values, window and sinks",
                        i + 1
                    ));
                }
            });
        }
        lines.push(words.join(" "));
    }
    let policy = lines.join(";").parse();
    policy.map_err(|error: kv::InvalidPolicy| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_policy_that_it_was_written_from() {
        for line in [
            "layers 0-3,9 k=f32; others q8 window 64 sinks 4; layers 5 v=q4",
            "stream window 64 sinks 0; grow",
            "others q8; stream window 64; preallocate",
        ] {
            let policy: KvPolicy = line.parse().unwrap();
            assert_eq!(of_toml(&policy_text(&policy)), Ok(policy.clone()));
            assert_eq!(read_policy(line).unwrap(), policy);
        }
    }

    #[test]
    fn a_wrong_file_is_explained() {
        for (content, part) in [
            ("rules = 4", "a policy has [[rules]]"),
            ("stream = 4", "stream is 4; a policy has"),
            (
                "stream = { window = 4, width = 3 }",
                "\"width\" is neither window nor sinks",
            ),
            ("kind = \"cells\"", "\"kind\" is not known"),
            (
                "[[rules]]\nlayers = \"1\"\nsize = 3",
                "rule 1: \"size\" is none of",
            ),
            (
                "[[rules]]\nlayers = \"1\"\ntype = \"q9\"",
                "\"q9\" is neither",
            ),
            ("[[rules]]\nlayers = [1]", "rule 1: layers is [1]"),
            ("[[rules]", "TOML parse error"),
        ] {
            let error = of_toml(content).unwrap_err();
            assert!(error.contains(part), "{content}: {error}");
        }
        let error = read_policy("no/such.toml").unwrap_err().to_string();
        assert!(error.contains("no/such.toml"), "{error}");
    }
}
