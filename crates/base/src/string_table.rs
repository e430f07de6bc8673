//! `StringTable`: many short strings in one allocation. A vocabulary has hundreds of thousands.

use std::ops::Index;

/// An append-only list of strings in one allocation, so that creating, cloning and dropping it is fast.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringTable {
    all: String,
    ends: Vec<usize>,
}

impl StringTable {
    /// Appends a string.
    pub fn push(&mut self, text: &str) {
        self.all.push_str(text);
        self.ends.push(self.all.len());
    }

    /// Appends bytes as a string, with U+FFFD in place of those that are not UTF-8.
    pub fn push_lossy(&mut self, bytes: &[u8]) {
        match std::str::from_utf8(bytes) {
            // Nearly always, and faster than the lossy conversion.
            Ok(text) => self.push(text),
            Err(_) => self.push(&String::from_utf8_lossy(bytes)),
        }
    }

    /// The string at an index.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.all[start..end])
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the table has no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|i| &self[i])
    }
}

impl Index<usize> for StringTable {
    type Output = str;

    fn index(&self, index: usize) -> &str {
        self.get(index)
            .expect("the index is below the number of strings")
    }
}

impl<S: AsRef<str>> FromIterator<S> for StringTable {
    fn from_iter<I: IntoIterator<Item = S>>(texts: I) -> StringTable {
        let mut all = StringTable::default();
        texts.into_iter().for_each(|text| all.push(text.as_ref()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_out_as_they_went_in() {
        let list = ["", "a", "é", "", "日本"];
        let texts: StringTable = list.iter().collect();
        assert_eq!(texts.iter().collect::<Vec<_>>(), list);
        assert_eq!((texts.len(), texts.get(5)), (5, None));
        assert_eq!((&texts[2], &texts[3]), ("é", ""));
        assert!(StringTable::default().is_empty() && !texts.is_empty());
        assert_ne!(texts, list.iter().rev().collect());
        let mut lossy = StringTable::default();
        list.iter()
            .for_each(|text| lossy.push_lossy(text.as_bytes()));
        assert_eq!(lossy, texts);
        lossy.push_lossy(b"a\xe6z");
        assert_eq!(&lossy[5], "a\u{fffd}z");
    }
}
