//! C names of tensors.

use graph::TensorId;
use std::collections::{HashMap, HashSet};

/// Unique upper-case names, by prefix and tensor.
#[derive(Default)]
pub(crate) struct Names {
    taken: HashSet<String>,
    of: HashMap<(&'static str, TensorId), String>,
}

impl Names {
    /// Names without these.
    pub(crate) fn reserving(names: &[String]) -> Names {
        Names {
            taken: names.iter().cloned().collect(),
            ..Names::default()
        }
    }

    /// The name of a tensor after this prefix; the same for every call.
    pub(crate) fn get(&mut self, prefix: &'static str, id: TensorId, name: &str) -> String {
        if let Some(known) = self.of.get(&(prefix, id)) {
            return known.clone();
        }
        let plain = format!("{prefix}{}", identifier(name));
        let mut unique = plain.clone();
        let mut n = 2;
        while !self.taken.insert(unique.clone()) {
            unique = format!("{plain}_{n}");
            n += 1;
        }
        self.of.insert((prefix, id), unique.clone());
        unique
    }
}

/// The letters, digits and underscores of a name.
pub(crate) fn identifier(name: &str) -> String {
    let letter = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_uppercase(),
        false => '_',
    };
    name.chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_stay() {
        let mut names = Names::default();
        assert_eq!(
            names.get("A_", TensorId(0), "blk.0.attn_q"),
            "A_BLK_0_ATTN_Q"
        );
        assert_eq!(
            names.get("A_", TensorId(1), "blk_0_attn-q"),
            "A_BLK_0_ATTN_Q_2"
        );
        assert_eq!(
            names.get("A_", TensorId(0), "blk.0.attn_q"),
            "A_BLK_0_ATTN_Q"
        );
        assert_eq!(
            names.get("W_", TensorId(0), "blk.0.attn_q"),
            "W_BLK_0_ATTN_Q"
        );
    }
}
