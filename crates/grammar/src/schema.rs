//! JSON schemas as outputs: objects have only the properties that a schema names, and white space is bounded.
//!
//! A schema describes which JSON is valid. As a description of an output it is too wide: an object that says nothing about
//! other properties allows any number of them, and white space between values may go on forever. llama.cpp closes such objects
//! and bounds white space, and users expect the same here.

use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// White space between two parts: one blank, or one or two line ends with an indentation.
const WHITE_SPACE: &str = r"\x20|\x0A{1,2}[\x20\x09]{0,20}";

/// Keywords whose schemas describe the same value as the schema that has them.
const IN_PLACE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const IN_PLACE_SCHEMAS: [&str; 5] = ["if", "then", "else", "not", "dependentSchemas"];

/// The schema that an output follows: `schema` with closed objects and bounded white space, unless it says otherwise.
pub(crate) fn output_schema(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        // `true` allows anything, `false` nothing.
        other => json!({ "allOf": [other] }),
    };
    let mut shared = HashSet::new();
    collect_shared(&schema, &mut shared);
    close(&mut schema, "#", false, &shared);
    if let Value::Object(map) = &mut schema {
        let options = map.entry("x-guidance").or_insert_with(|| json!({}));
        if let Value::Object(options) = options
            && !options.contains_key("whitespace_flexible")
        {
            options
                .entry("whitespace_pattern")
                .or_insert_with(|| WHITE_SPACE.into());
        }
    }
    schema
}

/// Whether a schema describes properties together with schemas of the same value. None of them can be closed alone: each would
/// forbid the properties of the others.
fn has_parts(map: &Map<String, Value>) -> bool {
    let members = IN_PLACE_LISTS
        .iter()
        .filter_map(|key| map.get(*key)?.as_array());
    let all_of = map.get("allOf").and_then(Value::as_array);
    let own = map.contains_key("properties") || map.contains_key("patternProperties");
    let lists: usize = members.map(Vec::len).sum();
    let single = IN_PLACE_SCHEMAS.iter().any(|key| map.contains_key(*key));
    let parts = lists > 0 || single || map.contains_key("$ref");
    (own && parts) || single || all_of.is_some_and(|all| all.len() > 1 || lists > all.len())
}

/// Collects the references that are parts of a value which other schemas describe too.
fn collect_shared(schema: &Value, shared: &mut HashSet<String>) {
    match schema {
        Value::Array(items) => items.iter().for_each(|item| collect_shared(item, shared)),
        Value::Object(map) => {
            if has_parts(map) {
                collect_references(map, shared);
            }
            map.values().for_each(|value| collect_shared(value, shared));
        }
        _ => {}
    }
}

/// Collects the references of a schema and of its parts.
fn collect_references(map: &Map<String, Value>, shared: &mut HashSet<String>) {
    if let Some(Value::String(reference)) = map.get("$ref") {
        shared.insert(reference.clone());
    }
    let lists = IN_PLACE_LISTS
        .iter()
        .filter_map(|key| map.get(*key)?.as_array());
    let single = IN_PLACE_SCHEMAS.iter().filter_map(|key| map.get(*key));
    for part in lists.flatten().chain(single) {
        if let Value::Object(part) = part {
            collect_references(part, shared);
        }
    }
}

/// Closes the objects of a schema at `path`. A `part` shares its value with other schemas, and stays open.
fn close(schema: &mut Value, path: &str, part: bool, shared: &HashSet<String>) {
    let Value::Object(map) = schema else {
        return;
    };
    let parts = part || has_parts(map);
    let properties = map.contains_key("properties") || map.contains_key("patternProperties");
    let says =
        map.contains_key("additionalProperties") || map.contains_key("unevaluatedProperties");
    if properties && !says && !parts && !shared.contains(path) {
        map.insert("additionalProperties".to_owned(), false.into());
    }
    for (key, value) in map.iter_mut() {
        let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        match key.as_str() {
            // Values, not schemas.
            "const" | "enum" | "default" | "examples" | "required" | "x-guidance" => {}
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                if let Value::Object(named) = value {
                    for (name, schema) in named.iter_mut() {
                        let name = name.replace('~', "~0").replace('/', "~1");
                        close(schema, &format!("{path}/{name}"), false, shared);
                    }
                }
            }
            key if IN_PLACE_LISTS.contains(&key) || key == "prefixItems" => {
                let part = parts && key != "prefixItems";
                for (index, schema) in value.as_array_mut().into_iter().flatten().enumerate() {
                    close(schema, &format!("{path}/{index}"), part, shared);
                }
            }
            key if IN_PLACE_SCHEMAS.contains(&key) => close(value, &path, true, shared),
            "items" if value.is_array() => {
                for (index, schema) in value.as_array_mut().into_iter().flatten().enumerate() {
                    close(schema, &format!("{path}/{index}"), false, shared);
                }
            }
            _ => close(value, &path, false, shared),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(schema: Value) -> Value {
        let mut closed = output_schema(&schema);
        closed.as_object_mut().unwrap().remove("x-guidance");
        closed
    }

    #[test]
    fn objects_have_only_the_properties_that_they_name() {
        let a = json!({ "properties": { "a": {} } });
        let a_closed = json!({ "properties": { "a": {} }, "additionalProperties": false });
        for (schema, expected) in [
            (a.clone(), a_closed.clone()),
            // Any object stays any object, and what a schema says holds.
            (json!({ "type": "object" }), json!({ "type": "object" })),
            (
                json!({ "properties": {}, "additionalProperties": true }),
                json!({ "properties": {}, "additionalProperties": true }),
            ),
            (json!({ "items": a }), json!({ "items": a_closed })),
            (
                json!({ "anyOf": [a, { "type": "null" }] }),
                json!({ "anyOf": [a_closed, { "type": "null" }] }),
            ),
            (
                json!({ "allOf": [{ "$ref": "#/$defs/a" }], "$defs": { "a": a } }),
                json!({ "allOf": [{ "$ref": "#/$defs/a" }], "$defs": { "a": a_closed } }),
            ),
            // Schemas that describe one value together stay open: closed, each would forbid the others' properties.
            (
                json!({ "allOf": [a, { "properties": { "b": {} } }] }),
                json!({ "allOf": [a, { "properties": { "b": {} } }] }),
            ),
            (
                json!({ "allOf": [{ "$ref": "#/$defs/a" }, { "properties": { "b": {} } }], "$defs": { "a": a } }),
                json!({ "allOf": [{ "$ref": "#/$defs/a" }, { "properties": { "b": {} } }], "$defs": { "a": a } }),
            ),
            // A property may have the name of a keyword, and a value may look like a schema.
            (
                json!({ "properties": { "properties": { "const": a } } }),
                json!({ "properties": { "properties": { "const": a } }, "additionalProperties": false }),
            ),
        ] {
            assert_eq!(closed(schema.clone()), expected, "{schema}");
        }
    }

    #[test]
    fn white_space_is_bounded_unless_the_schema_has_its_own() {
        let pattern = |schema: Value| output_schema(&schema)["x-guidance"].clone();
        assert_eq!(pattern(json!({}))["whitespace_pattern"], WHITE_SPACE);
        assert_eq!(pattern(json!(true))["whitespace_pattern"], WHITE_SPACE);
        let own = json!({ "x-guidance": { "whitespace_flexible": false } });
        assert_eq!(pattern(own.clone()), own["x-guidance"]);
    }
}
