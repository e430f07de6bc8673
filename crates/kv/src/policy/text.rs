//! Policies as text: rules in one line.

use super::{InvalidPolicy, KvPolicy, KvRule, LayerSelection, Property, StreamRule};
use crate::KvStorage;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

impl KvRule {
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
                    let window = self::window(number("window")?)?;
                    set(&mut rule.window, window, "the window")?;
                }
                "sinks" => set(&mut rule.sinks, self::sinks(number("sinks")?)?, "the sinks")?,
                "kind" | "cells" | "contiguous" | "tree" => {
                    return Err(
                        "a cache has one kind with all of its layers, which no rule chooses".into(),
                    );
                }
                "stream" | "preallocate" | "grow" => {
                    return Err(format!(
                        "{word} is a rule for the whole cache: it stands alone, between semicolons"
                    ));
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
            false => {
                Err("it sets nothing: a storage type, k= and v= types, a window or sinks".into())
            }
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

fn window(text: &str) -> Result<u32, String> {
    let window: Option<u32> = text.parse().ok();
    let window = window.filter(|window| (1..1 << 31).contains(window));
    window.ok_or(format!("a window of {text:?}"))
}

fn sinks(text: &str) -> Result<u32, String> {
    let sinks: Option<u32> = text.parse().ok();
    let sinks = sinks.filter(|sinks| (0..1 << 31).contains(sinks));
    sinks.ok_or(format!("{text:?} sinks"))
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

impl StreamRule {
    /// Parses the words after `stream`.
    fn parse<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<StreamRule, String> {
        let (mut window, mut sinks) = (None, None);
        while let Some(word) = words.next() {
            let mut number = || words.next().ok_or(format!("{word} needs a value"));
            match word {
                "window" => set(&mut window, self::window(number()?)?, "the window")?,
                "sinks" => set(&mut sinks, self::sinks(number()?)?, "the sinks")?,
                "layers" | "layer" | "for" | "others" => {
                    return Err("a stream is a rule for the whole cache: it names no layers".into());
                }
                _ => return Err(format!("{word:?} is neither window nor sinks")),
            }
        }
        let rule = StreamRule {
            window: window.ok_or("a stream needs a window: stream window 4096 sinks 4")?,
            sinks: sinks.unwrap_or(StreamRule::DEFAULT_SINKS),
        };
        match rule.sinks < rule.window {
            true => Ok(rule),
            false => Err(format!(
                "{} sinks leave no tokens of a window of {} to drop",
                rule.sinks, rule.window
            )),
        }
    }
}

impl KvPolicy {
    /// Adds the rule of a text.
    fn add(&mut self, text: &str) -> Result<(), String> {
        let mut words = text.split_whitespace();
        match words.next() {
            Some("stream") => {
                let stream = StreamRule::parse(words)?;
                set(&mut self.stream, stream, "a stream")
            }
            Some(growth @ ("preallocate" | "grow")) => {
                if let Some(word) = words.next() {
                    return Err(format!(
                        "{word:?} is one word too many: {growth} is a rule for the whole cache"
                    ));
                }
                set(
                    &mut self.preallocate,
                    growth == "preallocate",
                    "the growth of the cache",
                )
            }
            _ => {
                self.rules.push(KvRule::parse(text)?);
                Ok(())
            }
        }
    }
}

impl FromStr for KvPolicy {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<KvPolicy, InvalidPolicy> {
        let mut policy = KvPolicy::default();
        let rules = text.split(';').map(str::trim).enumerate();
        for (i, text) in rules.filter(|(_, text)| !text.is_empty()) {
            policy.add(text).map_err(|reason| InvalidPolicy {
                rule: i + 1,
                text: text.to_owned(),
                reason,
            })?;
        }
        Ok(policy)
    }
}

impl fmt::Display for KvPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.iter().map(KvRule::to_string);
        let stream = self.stream.iter().map(StreamRule::to_string);
        let growth = self.preallocate.map(|all| match all {
            true => "preallocate".to_owned(),
            false => "grow".to_owned(),
        });
        let all: Vec<String> = rules.chain(stream).chain(growth).collect();
        f.write_str(&all.join("; "))
    }
}

impl fmt::Display for StreamRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream window {} sinks {}", self.window, self.sinks)
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
        for (name, number) in [("window", self.window), ("sinks", self.sinks)] {
            if let Some(number) = number {
                write!(f, " {name} {number}")?;
            }
        }
        Ok(())
    }
}
