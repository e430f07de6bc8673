//! Selection of the passes that run, for ablation.

use super::pipeline::PIPELINE;
use std::fmt;

/// A choice of passes, for ablation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassSelection {
    /// Per pass of the pipeline, whether it runs.
    enabled: [bool; PIPELINE.len()],
}

/// Error for an unknown pass name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown pass {name}; must be one of all, none, {}", names())]
pub struct UnknownPass {
    /// The name.
    pub name: String,
}

fn names() -> String {
    let names: Vec<&str> = PIPELINE.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

impl PassSelection {
    /// Every pass.
    pub const ALL: PassSelection = PassSelection {
        enabled: [true; PIPELINE.len()],
    };

    /// No pass.
    pub const NONE: PassSelection = PassSelection {
        enabled: [false; PIPELINE.len()],
    };

    /// Parses `all`, `none`, a comma-separated list of passes to run, or a list with `-` before each name of passes to skip.
    pub fn parse(text: &str) -> Result<PassSelection, UnknownPass> {
        let words: Vec<&str> = text.split(',').map(str::trim).collect();
        let mut selection = match words[0].starts_with('-') {
            true => PassSelection::ALL,
            false => PassSelection::NONE,
        };
        for word in words {
            match word {
                "all" => selection = PassSelection::ALL,
                "none" => selection = PassSelection::NONE,
                _ => {
                    let (name, enable) = match word.strip_prefix('-') {
                        Some(name) => (name, false),
                        None => (word, true),
                    };
                    let index = PIPELINE.iter().position(|(pass, _)| *pass == name);
                    let index = index.ok_or_else(|| UnknownPass {
                        name: name.to_owned(),
                    })?;
                    selection.enabled[index] = enable;
                }
            }
        }
        Ok(selection)
    }

    /// Whether the pass with this index in the pipeline runs.
    pub(super) fn runs(&self, index: usize) -> bool {
        self.enabled[index]
    }
}

impl Default for PassSelection {
    fn default() -> PassSelection {
        PassSelection::ALL
    }
}

impl fmt::Display for PassSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen = PIPELINE.iter().zip(self.enabled).filter(|(_, on)| *on);
        let names: Vec<&str> = chosen.map(|((name, _), _)| *name).collect();
        match names.len() {
            0 => f.write_str("none"),
            n if n == PIPELINE.len() => f.write_str("all"),
            _ => f.write_str(&names.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_choices() {
        let parse = |text: &str| PassSelection::parse(text).map(|s| s.to_string());
        assert_eq!(parse("all").unwrap(), "all");
        assert_eq!(parse("none").unwrap(), "none");
        assert_eq!(parse("fold, dead_code").unwrap(), "fold,dead_code");
        let without = parse("-fuse_dag,-fold").unwrap();
        assert!(!without.contains("fuse_dag") && !without.contains("fold"));
        assert!(without.contains("fuse_chain"));
        let error = PassSelection::parse("fold,flod").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("unknown pass flod; must be one of all, none, absorb")
        );
    }
}
