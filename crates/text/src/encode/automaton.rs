//! Patterns as automata that read one class of characters at a time.
//!
//! The regex crate matches bytes. Here the transitions of its automaton over the UTF-8 bytes of a character are followed to their
//! end, and characters with equal transitions in all states of all patterns share a class: a pattern with Unicode categories has
//! a few states and a few classes.

use std::collections::HashMap;

use regex_automata::Anchored;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;

use crate::TextError;

/// Patterns that share their classes of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordAutomata {
    /// The first character of each range and the class of the range, in ascending order. The first range begins at 0.
    pub ranges: Vec<(u32, u8)>,
    /// Whether a class is white space.
    pub white_space: Vec<bool>,
    /// One automaton per pattern.
    pub stages: Vec<WordAutomaton>,
}

/// A pattern without look-behind. A match begins in state 0; the last accepting state before [`NO_STATE`](Self::NO_STATE) ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordAutomaton {
    /// The next state by state and class.
    pub next: Vec<u16>,
    /// Whether a match can end in each state.
    pub accepts: Vec<Acceptance>,
    /// Whether the last white-space character before a match is a piece of its own, unless the match begins with white space.
    pub splits_last_space: bool,
}

/// Where a match can end in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    /// Nowhere.
    Never,
    /// At the end of the text.
    AtEnd,
    /// Everywhere.
    Always,
}

impl WordAutomaton {
    /// The value of `next` where no match can be continued.
    pub const NO_STATE: u16 = u16::MAX;
}

/// The state of an automaton before classes are known: where it goes by ranges of characters.
struct CharacterState {
    /// The first character of each range and the next state.
    next: Vec<(u32, u16)>,
    accepts: Acceptance,
}

impl WordAutomata {
    /// Compiles patterns; the flag is [`WordAutomaton::splits_last_space`].
    ///
    /// # Errors
    /// [`TextError::PatternWithoutAutomaton`] if a pattern looks around, matches the empty text or is too large.
    pub(crate) fn new<'a>(
        patterns: impl IntoIterator<Item = (&'a str, bool)>,
    ) -> Result<Self, TextError> {
        let compile = |(pattern, splits): (&'a str, bool)| {
            let refuse = |reason: String| TextError::PatternWithoutAutomaton {
                pattern: pattern.to_owned(),
                reason,
            };
            Ok((character_states(pattern).map_err(refuse)?, splits))
        };
        let compiled: Vec<(Vec<CharacterState>, bool)> = patterns
            .into_iter()
            .map(compile)
            .collect::<Result<_, TextError>>()?;
        let mut columns: Vec<Vec<(u32, u16)>> = vec![white_space_ranges()];
        let states = compiled.iter().flat_map(|(states, _)| states);
        columns.extend(states.map(|state| state.next.clone()));
        let (ranges, classes) = classes(&columns)?;
        let mut rest = 1..;
        let stages = compiled.iter().map(|(states, splits_last_space)| {
            let rows = rest.by_ref().take(states.len());
            let next = rows.flat_map(|row| classes.iter().map(move |class| class[row]));
            WordAutomaton {
                next: next.collect(),
                accepts: states.iter().map(|state| state.accepts).collect(),
                splits_last_space: *splits_last_space,
            }
        });
        Ok(Self {
            stages: stages.collect(),
            white_space: classes.iter().map(|class| class[0] != 0).collect(),
            ranges,
        })
    }
}

fn white_space_ranges() -> Vec<(u32, u16)> {
    let mut ranges = Vec::new();
    for c in '\0'..=char::MAX {
        push_range(&mut ranges, c, u16::from(c.is_whitespace()));
    }
    ranges
}

/// Appends a character with its value and extends the last range if that has the same value.
fn push_range(ranges: &mut Vec<(u32, u16)>, c: char, value: u16) {
    if ranges.last().is_none_or(|(_, last)| *last != value) {
        ranges.push((u32::from(c), value));
    }
}

/// Divides the characters into classes of equal values in all columns. Returns the ranges of the classes and the values of each.
#[expect(clippy::type_complexity, reason = "two results of one pass")]
fn classes(columns: &[Vec<(u32, u16)>]) -> Result<(Vec<(u32, u8)>, Vec<Vec<u16>>), TextError> {
    let mut starts: Vec<u32> = columns.iter().flatten().map(|(first, _)| *first).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut known: HashMap<Vec<u16>, u8> = HashMap::new();
    let mut classes: Vec<Vec<u16>> = Vec::new();
    let mut ranges: Vec<(u32, u8)> = Vec::new();
    for first in starts {
        let value = |column: &Vec<(u32, u16)>| {
            let range = column.partition_point(|(start, _)| *start <= first) - 1;
            column[range].1
        };
        let values: Vec<u16> = columns.iter().map(value).collect();
        let class = match known.get(&values) {
            Some(class) => *class,
            None => {
                let class = u8::try_from(classes.len()).map_err(|_| {
                    TextError::PatternWithoutAutomaton {
                        pattern: String::new(),
                        reason: "the patterns have more than 256 classes of characters".into(),
                    }
                })?;
                classes.push(values.clone());
                known.insert(values, class);
                class
            }
        };
        if ranges.last().is_none_or(|(_, last)| *last != class) {
            ranges.push((first, class));
        }
    }
    Ok((ranges, classes))
}

/// The states that are reached after whole characters; the first is the start. The error is a reason.
fn character_states(pattern: &str) -> Result<Vec<CharacterState>, String> {
    let config = dense::Config::new()
        .accelerate(false)
        .start_kind(StartKind::Anchored);
    let dfa = dense::Builder::new().configure(config).build(pattern);
    let dfa = dfa.map_err(|error| error.to_string())?;
    let start = |behind: Option<u8>| {
        let config = start::Config::new()
            .anchored(Anchored::Yes)
            .look_behind(behind);
        dfa.start_state(&config).map_err(|error| error.to_string())
    };
    let first = start(None)?;
    for behind in [b'a', b' ', b'\r', b'\n', 0x80] {
        if start(Some(behind))? != first {
            return Err("it depends on the text before a match".into());
        }
    }
    let mut ids = HashMap::from([(first, 0u16)]);
    let mut found = vec![first];
    let mut states = Vec::new();
    while let Some(&state) = found.get(states.len()) {
        let accepts = acceptance(&dfa, state)?;
        if states.is_empty() && accepts != Acceptance::Never {
            return Err("it matches the empty text".into());
        }
        let mut next = Vec::new();
        let mut prefix = Prefix::new(state);
        for c in '\0'..=char::MAX {
            let target = prefix.after(&dfa, c);
            let id = match ids.get(&target) {
                _ if dfa.is_dead_state(target) => WordAutomaton::NO_STATE,
                Some(id) => *id,
                None => {
                    let id = u16::try_from(found.len()).ok();
                    let id = id.filter(|id| *id != WordAutomaton::NO_STATE);
                    let id = id.ok_or("it has too many states")?;
                    found.push(target);
                    ids.insert(target, id);
                    id
                }
            };
            push_range(&mut next, c, id);
        }
        states.push(CharacterState { next, accepts });
    }
    Ok(states)
}

/// Where a match can end in `state`. The automaton enters a match state one byte after the match.
fn acceptance(dfa: &impl Automaton, state: StateID) -> Result<Acceptance, String> {
    let matches = |byte| dfa.is_match_state(dfa.next_state(state, byte));
    let inside = matches(0);
    if (0..=u8::MAX).any(|byte| matches(byte) != inside) {
        return Err("it depends on the text behind a match".into());
    }
    Ok(match dfa.is_match_state(dfa.next_eoi_state(state)) {
        true if inside => Acceptance::Always,
        true => Acceptance::AtEnd,
        false => Acceptance::Never,
    })
}

/// The state after all bytes of a character but the last: characters in ascending order mostly share it.
struct Prefix {
    start: StateID,
    bytes: [u8; 3],
    len: usize,
    state: StateID,
}

impl Prefix {
    fn new(start: StateID) -> Prefix {
        Prefix {
            start,
            bytes: [0; 3],
            len: 0,
            state: start,
        }
    }

    /// The state after `c`.
    fn after(&mut self, dfa: &impl Automaton, c: char) -> StateID {
        let mut buffer = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        let (last, before) = bytes
            .split_last()
            .expect("a character has one byte at least");
        if self.bytes[..self.len] != *before {
            let step = |state, byte: &u8| dfa.next_state(state, *byte);
            self.state = before.iter().fold(self.start, step);
            self.bytes[..before.len()].copy_from_slice(before);
            self.len = before.len();
        }
        dfa.next_state(self.state, *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regex::Regex;
    use std::sync::LazyLock;

    /// The end of the match that begins at the start of `text`, as the C scanner finds it.
    fn end_of_match(automata: &WordAutomata, text: &str) -> Option<usize> {
        let stage = &automata.stages[0];
        let classes = automata.white_space.len();
        let (mut state, mut at, mut end) = (0u16, 0, None);
        loop {
            match stage.accepts[usize::from(state)] {
                Acceptance::Always => end = Some(at),
                Acceptance::AtEnd if at == text.len() => end = Some(at),
                _ => {}
            }
            let Some(c) = text[at..].chars().next() else {
                return end;
            };
            let ranges = &automata.ranges;
            let range = ranges.partition_point(|(first, _)| *first <= u32::from(c)) - 1;
            state = stage.next[usize::from(state) * classes + usize::from(ranges[range].1)];
            if state == WordAutomaton::NO_STATE {
                return end;
            }
            at += c.len_utf8();
        }
    }

    const PATTERNS: [&str; 5] = [
        crate::encode::pretokenize::GPT2,
        r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]+",
        r"\s+$",
        r"[\p{P}$+<=>^~|]+",
        r"\p{N}",
    ];

    proptest! {
        #[test]
        fn automata_match_as_the_patterns(text in "(\\PC|[ \t\n\r a1!'sé我Ⅷ]){0,12}") {
            static COMPILED: LazyLock<Vec<(WordAutomata, Regex)>> = LazyLock::new(|| {
                let both = |pattern: &&str| {
                    let anchored = Regex::new(&format!("^(?:{pattern})")).unwrap();
                    (WordAutomata::new([(*pattern, false)]).unwrap(), anchored)
                };
                PATTERNS.iter().map(both).collect()
            });
            for (automata, regex) in COMPILED.iter() {
                let want = regex.find(&text).map(|found| found.end());
                prop_assert_eq!(end_of_match(automata, &text), want, "{}", regex);
            }
        }
    }

    #[test]
    fn patterns_that_look_around_are_named() {
        for (pattern, reason) in [
            ("^a", "before"),
            ("(?m)a$", "behind"),
            ("a*", "empty"),
            (r"\ba", "word boundar"),
        ] {
            let error = WordAutomata::new([(pattern, false)]).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(pattern) && said.contains(reason), "{said}");
        }
    }

    #[test]
    fn all_patterns_share_their_classes() {
        let patterns = PATTERNS.map(|pattern| (pattern, true));
        let automata = WordAutomata::new(patterns).unwrap();
        assert_eq!(automata.stages.len(), 5);
        let classes = automata.white_space.len();
        assert!(classes < 64, "{classes}");
        for stage in &automata.stages {
            assert_eq!(stage.next.len(), stage.accepts.len() * classes);
        }
        assert_eq!(automata.ranges[0].0, 0);
        assert!(automata.ranges.is_sorted());
    }
}
