//! `KvPolicy`: rules for how layers store their keys and values, how far they look back, and for the cache as a whole.

mod text;

use crate::{CacheConfig, KvError, KvErrorKind, KvStorage, Side};
use std::ops::RangeInclusive;

/// Rules for a cache and its layers. Layers are counted by their caches, from 0 on. Each property of a layer or of the cache is set by
/// at most one rule; what no rule sets stays.
///
/// As text, rules are separated by semicolons. A rule names layers and what it sets, or it is for the whole cache:
///
/// ```
/// let policy: kv::KvPolicy = "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11".parse().unwrap();
/// assert_eq!(policy.rules.len(), 3);
/// assert_eq!(policy.to_string(), "layers 0-3 f16; others k=q8 v=q4; layers 5,11 window 4096");
///
/// let stream: kv::KvPolicy = "stream window 4096; preallocate".parse().unwrap();
/// assert_eq!(stream.stream, Some(kv::StreamRule { window: 4096, sinks: 4 }));
/// assert_eq!(stream.to_string(), "stream window 4096 sinks 4; preallocate");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvPolicy {
    /// The rules for layers, in the order in which they were written.
    pub rules: Vec<KvRule>,
    /// Whether sequences are streams.
    pub stream: Option<StreamRule>,
    /// Whether all keys and values are allocated when the cache is made, instead of growing with the context.
    pub preallocate: Option<bool>,
}

/// The rule of streams: a sequence holds its first tokens and its latest ones, and has no end. Tokens between them are dropped in
/// small steps, and the later ones move to lower positions, so that positions stay below the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRule {
    /// The most tokens of a sequence that the cache holds.
    pub window: u32,
    /// The first tokens of a sequence, which stay.
    pub sinks: u32,
}

impl StreamRule {
    /// The first tokens that stay if a policy does not say how many.
    pub const DEFAULT_SINKS: u32 = 4;

    /// The tokens that one step drops from a full window: an eighth of those that may be dropped.
    pub fn step(&self) -> u32 {
        (self.window.saturating_sub(self.sinks) / 8).max(1)
    }
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
    /// The first positions of a sequence that queries of theirs see besides their window, and that stay in the cache.
    pub sinks: Option<u32>,
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
    Sinks,
}

impl Property {
    const ALL: [Property; 4] = [
        Property::Keys,
        Property::Values,
        Property::Window,
        Property::Sinks,
    ];

    fn name(self) -> &'static str {
        match self {
            Property::Keys => "the type of the keys",
            Property::Values => "the type of the values",
            Property::Window => "the window",
            Property::Sinks => "the sinks",
        }
    }
}

impl KvRule {
    fn sets(&self, property: Property) -> bool {
        match property {
            Property::Keys => self.keys.is_some(),
            Property::Values => self.values.is_some(),
            Property::Window => self.window.is_some(),
            Property::Sinks => self.sinks.is_some(),
        }
    }

    /// Whether the rule names this layer.
    fn names(&self, layer: usize) -> bool {
        match &self.layers {
            LayerSelection::Others => false,
            LayerSelection::Layers(all) => all.iter().any(|range| range.contains(&layer)),
        }
    }
}

impl KvPolicy {
    /// Changes a configuration as the rules say. Streams change no configuration: who feeds the sequences drops their tokens.
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
        if let Some(all) = self.preallocate {
            config.initial_cells = match all {
                true => CacheConfig::ALL_CELLS,
                false => CacheConfig::GROWN_CELLS,
            };
        }
        let rows = (0..layers).filter(|layer| !config.layers[*layer].is_state());
        for layer in rows.collect::<Vec<_>>() {
            let [keys, values, window, sinks] = [
                self.rule(Property::Keys, layer)?,
                self.rule(Property::Values, layer)?,
                self.rule(Property::Window, layer)?,
                self.rule(Property::Sinks, layer)?,
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
            if let Some(sinks) = sinks.and_then(|rule| rule.sinks) {
                if sinks > 0 && config.layers[layer].window.is_none() {
                    return bad(format!(
                        "layer {layer} has sinks and no window: without one, all positions stay"
                    ));
                }
                config.layers[layer].sinks = sinks;
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

    /// The policy without its rule of streams.
    pub fn without_stream(&self) -> KvPolicy {
        KvPolicy {
            stream: None,
            ..self.clone()
        }
    }

    /// The policy without its storage types.
    pub fn without_types(&self) -> KvPolicy {
        let is_kept = |rule: &&KvRule| rule.window.is_some() || rule.sinks.is_some();
        let rules = self.rules.iter().filter(is_kept);
        let rules = rules.map(|rule| KvRule {
            keys: None,
            values: None,
            ..rule.clone()
        });
        KvPolicy {
            rules: rules.collect(),
            ..self.clone()
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
            sinks: 0,
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
    fn rules_set_sinks() {
        let sinks = |text| {
            let config = applied(text).unwrap();
            config
                .layers
                .iter()
                .map(|layer| layer.sinks)
                .collect::<Vec<_>>()
        };
        assert_eq!(sinks("window 20 sinks 4 for 0-1"), [4, 4, 0, 0, 0, 0]);
        assert_eq!(
            sinks("others window 9; sinks 2 for 2; layers 4 sinks 0"),
            [0, 0, 2, 0, 0, 0]
        );
        let kept: KvPolicy = "layers 2 q8 sinks 3; others q4".parse().unwrap();
        assert_eq!(kept.without_types().to_string(), "layers 2 sinks 3");
    }

    #[test]
    fn rules_for_the_whole_cache() {
        assert_eq!(applied("grow").unwrap(), self::config());
        let all = applied("preallocate; others f16").unwrap();
        assert_eq!(all.initial_cells, CacheConfig::ALL_CELLS);
        assert_eq!(applied("stream window 40 sinks 0").unwrap(), self::config());
        let policy: KvPolicy = "stream window 4096 sinks 8; window 9 for 0"
            .parse()
            .unwrap();
        assert_eq!(policy.stream.unwrap().step(), 511);
        assert_eq!(policy.without_types(), policy);
        assert_eq!(policy.without_stream().to_string(), "layers 0 window 9");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("stream", "a stream needs a window"),
            ("stream window 0", "a window of \"0\""),
            (
                "stream window 4",
                "4 sinks leave no tokens of a window of 4 to drop",
            ),
            ("stream window 40 for 3", "it names no layers"),
            (
                "stream window 40; stream window 40",
                "a stream stands twice",
            ),
            (
                "stream window 40 f16",
                "\"f16\" is neither window nor sinks",
            ),
            ("others stream", "stream is a rule for the whole cache"),
            ("preallocate 3", "\"3\" is one word too many"),
            ("grow; preallocate", "the growth of the cache stands twice"),
            (
                "layers 0 cells",
                "a cache has one kind with all of its layers",
            ),
            ("kind cells", "a cache has one kind with all of its layers"),
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
            (
                "sinks 3 for 2; sinks 4 for 2",
                "rules 1 and 2 both set the sinks of layer 2",
            ),
            ("layers 1 sinks 3", "layer 1 has sinks and no window"),
            ("layers 2 sinks -1", "\"-1\" sinks"),
            ("layers 2 sinks 2 sinks 2", "the sinks stands twice"),
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
