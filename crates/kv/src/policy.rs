//! `KvPolicy`: rules for how layers store their keys and values, and how far they look back.

use crate::{CacheConfig, KvError, KvErrorKind, KvStorage, Side};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Rules for the layers of a cache. Layers are counted by their caches, from 0 on. Each property of a layer is set by at most one rule;
/// what no rule sets stays.
///
/// As text, rules are separated by semicolons. A rule names layers and what it sets:
///
/// ```
/// let policy: kv::KvPolicy = "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11".parse().unwrap();
/// assert_eq!(policy.rules.len(), 3);
/// assert_eq!(policy.to_string(), "layers 0-3 f16; others k=q8 v=q4; layers 5,11 window 4096");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvPolicy {
    /// The rules, in the order in which they were written.
    pub rules: Vec<KvRule>,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvRule {
    /// The layers that it is for.
    pub layers: LayerSelection,
    /// How their keys are stored.
    pub keys: Option<KvStorage>,
    /// How their values are stored.
    pub values: Option<KvStorage>,
    /// The most positions that a query of theirs sees, its own included. A smaller window of the model stays.
    pub window: Option<u32>,
}

/// The layers that a rule is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LayerSelection {
    /// Those for whose property no other rule names layers.
    #[default]
    Others,
    /// These.
    Layers(Vec<RangeInclusive<usize>>),
}

/// A text that is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule {rule} of the cache policy, {text:?}: {reason}")]
pub struct InvalidPolicy {
    /// The number of the rule, from 1 on.
    pub rule: usize,
    /// Its text.
    pub text: String,
    /// The reason why the rule is invalid.
    pub reason: String,
}

/// The properties that rules set.
#[derive(Clone, Copy, PartialEq)]
enum Property {
    Keys,
    Values,
    Window,
}

impl Property {
    const ALL: [Property; 3] = [Property::Keys, Property::Values, Property::Window];

    fn name(self) -> &'static str {
        match self {
            Property::Keys => "the type of the keys",
            Property::Values => "the type of the values",
            Property::Window => "the window",
        }
    }
}

impl KvRule {
    fn sets(&self, property: Property) -> bool {
        match property {
            Property::Keys => self.keys.is_some(),
            Property::Values => self.values.is_some(),
            Property::Window => self.window.is_some(),
        }
    }

    /// Whether the rule names this layer.
    fn names(&self, layer: usize) -> bool {
        match &self.layers {
            LayerSelection::Others => false,
            LayerSelection::Layers(all) => all.iter().any(|range| range.contains(&layer)),
        }
    }

    fn parse(text: &str) -> Result<KvRule, String> {
        let mut rule = KvRule::default();
        let mut chosen = None;
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let mut number = |what: &str| {
                let next = words
                    .next()
                    .ok_or_else(|| format!("{what} needs a value"))?;
                Ok::<&str, String>(next)
            };
            match word {
                "layers" | "layer" | "for" => {
                    let list = LayerSelection::Layers(ranges(number(word)?)?);
                    set(&mut chosen, list, "its layers")?;
                }
                "others" => set(&mut chosen, LayerSelection::Others, "its layers")?,
                "window" => {
                    let text = number("window")?;
                    let window: Option<u32> = text.parse().ok();
                    let window = window.filter(|window| (1..1 << 31).contains(window));
                    let window = window.ok_or(format!("a window of {text:?}"))?;
                    set(&mut rule.window, window, "the window")?;
                }
                _ => match word.split_once('=') {
                    Some(("k" | "keys", name)) => {
                        set(&mut rule.keys, storage(name)?, Property::Keys.name())?;
                    }
                    Some(("v" | "values", name)) => {
                        set(&mut rule.values, storage(name)?, Property::Values.name())?;
                    }
                    _ => {
                        let both = storage(word)?;
                        set(&mut rule.keys, both, Property::Keys.name())?;
                        set(&mut rule.values, both, Property::Values.name())?;
                    }
                },
            }
        }
        rule.layers = chosen.ok_or("it names no layers: layers 0-3,7 or others")?;
        match Property::ALL.iter().any(|property| rule.sets(*property)) {
            true => Ok(rule),
            false => Err("it sets nothing: a storage type, k= and v= types, or a window".into()),
        }
    }
}

/// Sets what is not set yet.
fn set<T>(place: &mut Option<T>, value: T, what: &str) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{what} stands twice")),
    }
}

fn storage(name: &str) -> Result<KvStorage, String> {
    KvStorage::from_name(name).ok_or_else(|| {
        let names = KvStorage::ALL.map(KvStorage::name).join(", ");
        format!("{name:?} is neither a storage type ({names}) nor layers, others or window")
    })
}

/// Layers such as `0-3,7`.
fn ranges(text: &str) -> Result<Vec<RangeInclusive<usize>>, String> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.parse().ok()?..=last.parse().ok()?;
        (range.start() <= range.end()).then_some(range)
    };
    let part =
        |part: &str| range(part).ok_or_else(|| format!("{part:?} is no layer or range of layers"));
    text.split(',').map(part).collect()
}

impl FromStr for KvPolicy {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<KvPolicy, InvalidPolicy> {
        let rules = text.split(';').map(str::trim).enumerate();
        let rules = rules.filter(|(_, text)| !text.is_empty());
        let rule = |(i, text): (usize, &str)| {
            KvRule::parse(text).map_err(|reason| InvalidPolicy {
                rule: i + 1,
                text: text.to_owned(),
                reason,
            })
        };
        Ok(KvPolicy {
            rules: rules.map(rule).collect::<Result<_, _>>()?,
        })
    }
}

impl KvPolicy {
    /// Changes the layers of a configuration as the rules say.
    ///
    /// # Errors
    /// `Policy` if a rule names a layer that is not there or has a state instead of rows, or if two rules set the same of a layer.
    pub fn apply(&self, config: &mut CacheConfig) -> Result<(), KvError> {
        let bad = |reason: String| Err(KvErrorKind::Policy(reason).into());
        let layers = config.layers.len();
        for range in self.rules.iter().flat_map(|rule| match &rule.layers {
            LayerSelection::Others => &[][..],
            LayerSelection::Layers(all) => all,
        }) {
            if *range.end() >= layers {
                return bad(format!(
                    "there is no layer {}: the cache has {layers}",
                    range.end()
                ));
            }
            if let Some(layer) = range.clone().find(|layer| config.layers[*layer].is_state()) {
                return bad(format!("layer {layer} has a state, not keys and values"));
            }
        }
        let rows = (0..layers).filter(|layer| !config.layers[*layer].is_state());
        for layer in rows.collect::<Vec<_>>() {
            let [keys, values, window] = [
                self.rule(Property::Keys, layer)?,
                self.rule(Property::Values, layer)?,
                self.rule(Property::Window, layer)?,
            ];
            let before = [Side::Key, Side::Value].map(|side| config.storage(layer, side));
            let types = [
                keys.and_then(|rule| rule.keys).unwrap_or(before[0]),
                values.and_then(|rule| rule.values).unwrap_or(before[1]),
            ];
            if types != before {
                config.layer_storage.insert(layer, types);
            }
            if let Some(window) = window.and_then(|rule| rule.window) {
                let own = &mut config.layers[layer].window;
                *own = Some(own.map_or(window, |own| own.min(window)));
            }
        }
        Ok(())
    }

    /// The rule that sets a property of a layer.
    fn rule(&self, property: Property, layer: usize) -> Result<Option<&KvRule>, KvError> {
        let setting = || {
            let rules = self.rules.iter().enumerate();
            rules.filter(|(_, rule)| rule.sets(property))
        };
        let is_others = |rule: &KvRule| rule.layers == LayerSelection::Others;
        let named = setting().filter(|(_, rule)| rule.names(layer));
        let others = setting().filter(|(_, rule)| is_others(rule));
        for rules in [named.collect::<Vec<_>>(), others.collect()] {
            if let [(a, _), (b, _), ..] = rules[..] {
                let what = property.name();
                let (a, b) = (a + 1, b + 1);
                let reason = format!("rules {a} and {b} both set {what} of layer {layer}");
                return Err(KvErrorKind::Policy(reason).into());
            }
            if let [(_, rule)] = rules[..] {
                return Ok(Some(rule));
            }
        }
        Ok(None)
    }

    /// The policy without its storage types.
    pub fn without_types(&self) -> KvPolicy {
        let rules = self.rules.iter().filter(|rule| rule.window.is_some());
        let rules = rules.map(|rule| KvRule {
            keys: None,
            values: None,
            ..rule.clone()
        });
        KvPolicy {
            rules: rules.collect(),
        }
    }
}

impl fmt::Display for KvPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rule) in self.rules.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LayerSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LayerSelection::Layers(all) = self else {
            return f.write_str("others");
        };
        for (i, range) in all.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            match range.start() == range.end() {
                true => write!(f, "{}", range.start())?,
                false => write!(f, "{}-{}", range.start(), range.end())?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for KvRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.layers {
            LayerSelection::Others => f.write_str("others")?,
            named => write!(f, "layers {named}")?,
        }
        match (self.keys, self.values) {
            (Some(keys), Some(values)) if keys == values => write!(f, " {keys}")?,
            (keys, values) => {
                if let Some(keys) = keys {
                    write!(f, " k={keys}")?;
                }
                if let Some(values) = values {
                    write!(f, " v={values}")?;
                }
            }
        }
        match self.window {
            Some(window) => write!(f, " window {window}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LayerConfig, QuantGroup};

    fn config() -> CacheConfig {
        let layer = |window| LayerConfig {
            kv_heads: 2,
            key_dim: 8,
            value_dim: 8,
            window,
        };
        let mut layers = vec![layer(None); 5];
        layers[2].window = Some(100);
        layers.push(LayerConfig::state(2, 4));
        CacheConfig::new(64, layers)
    }

    fn applied(text: &str) -> Result<CacheConfig, String> {
        let policy: KvPolicy = text.parse().map_err(|e: InvalidPolicy| e.to_string())?;
        assert_eq!(policy.to_string().parse(), Ok(policy.clone()));
        let mut config = config();
        policy.apply(&mut config).map_err(|e| e.to_string())?;
        config.check().unwrap();
        Ok(config)
    }

    #[test]
    fn rules_set_types_and_windows() {
        let [q8, q4] = [
            KvStorage::Q8(QuantGroup::G32),
            KvStorage::Q4(QuantGroup::G32),
        ];
        let config =
            applied("layers 0,3-4 f32; others k=q8 v=q4; window 20 for 1-2; window 300 for 4;")
                .unwrap();
        let types = |layer| [Side::Key, Side::Value].map(|side| config.storage(layer, side));
        for (layer, expected) in [KvStorage::F32, q8, q8, KvStorage::F32].iter().enumerate() {
            assert_eq!(types(layer)[0], *expected, "layer {layer}");
        }
        assert_eq!(types(1), [q8, q4]);
        assert_eq!(types(5), [KvStorage::F32; 2], "a state keeps its own");
        let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
        assert_eq!(windows, [None, Some(20), Some(20), None, Some(300), None]);
        assert_eq!(applied("").unwrap(), self::config());
        assert_eq!(applied("others f16").unwrap(), self::config());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("layers 0-7 q8", "no layer 7"),
            ("layers 5 q8", "layer 5 has a state"),
            (
                "layers 0-3 q8; layers 3 f16",
                "rules 1 and 2 both set the type of the keys of layer 3",
            ),
            (
                "others q8; others v=q4",
                "rules 1 and 2 both set the type of the values",
            ),
            ("layers 1 q9", "\"q9\" is neither"),
            ("q8", "names no layers"),
            (
                "others f16; layers 2",
                "rule 2 of the cache policy, \"layers 2\": it sets nothing",
            ),
            ("layers 3-1 q8", "\"3-1\" is no layer"),
            ("others window 0", "a window of \"0\""),
            ("others window", "window needs a value"),
            ("others q8 k=q4", "the type of the keys stands twice"),
        ] {
            let error = applied(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
