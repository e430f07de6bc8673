//! Word wrap of streamed text at the edge of the terminal.

use console::Term;
use unicode_width::UnicodeWidthChar;

/// Columns between tab stops.
const TAB: usize = 8;

/// Wraps text that arrives in pieces. A word is held back until it is complete, so that it is never broken.
pub(super) struct Wrap {
    /// Width of the terminal; `None` leaves the text as it is.
    columns: Option<usize>,
    column: usize,
    /// Spaces before the word.
    spaces: usize,
    word: String,
    width: usize,
}

impl Wrap {
    /// Wraps at the width of the terminal that stdout is; elsewhere text is not changed.
    pub(super) fn for_stdout() -> Wrap {
        Wrap::for_terminal(&Term::stdout())
    }

    /// The same for stderr.
    pub(super) fn for_stderr() -> Wrap {
        Wrap::for_terminal(&Term::stderr())
    }

    fn for_terminal(term: &Term) -> Wrap {
        let size = term.is_term().then(|| term.size_checked()).flatten();
        Wrap::new(size.map(|(_, columns)| usize::from(columns)))
    }

    fn new(columns: Option<usize>) -> Wrap {
        Wrap {
            columns: columns.filter(|columns| *columns > 0),
            column: 0,
            spaces: 0,
            word: String::new(),
            width: 0,
        }
    }

    /// Adds text and returns what can be printed.
    pub(super) fn push(&mut self, text: &str) -> String {
        let Some(columns) = self.columns else {
            return text.to_owned();
        };
        let mut out = String::new();
        for c in text.chars() {
            match c {
                '\n' => {
                    self.end_word(columns, &mut out);
                    out.push('\n');
                    (self.column, self.spaces) = (0, 0);
                }
                ' ' => {
                    self.end_word(columns, &mut out);
                    self.spaces += 1;
                }
                '\t' => {
                    self.end_word(columns, &mut out);
                    let column = self.column + self.spaces;
                    self.spaces += TAB - column % TAB;
                }
                c => {
                    let width = c.width().unwrap_or(0);
                    // A line may be broken before a wide character, as in Chinese.
                    if width > 1 || self.width + width > columns {
                        self.end_word(columns, &mut out);
                    }
                    self.word.push(c);
                    self.width += width;
                }
            }
        }
        out
    }

    /// The text that is still held back.
    pub(super) fn finish(mut self) -> String {
        let mut out = String::new();
        if let Some(columns) = self.columns {
            self.end_word(columns, &mut out);
        }
        out
    }

    fn end_word(&mut self, columns: usize, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        if self.column > 0 && self.column + self.spaces + self.width > columns {
            out.push('\n');
            (self.column, self.spaces) = (0, 0);
        }
        out.extend(std::iter::repeat_n(' ', self.spaces));
        out.push_str(&self.word);
        self.column += self.spaces + self.width;
        (self.spaces, self.width) = (0, 0);
        self.word.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text wrapped in pieces of `size` characters.
    fn wrapped(text: &str, columns: usize, size: usize) -> String {
        let mut wrap = Wrap::new(Some(columns));
        let characters: Vec<char> = text.chars().collect();
        let mut out = String::new();
        for piece in characters.chunks(size) {
            out += &wrap.push(&piece.iter().collect::<String>());
        }
        out + &wrap.finish()
    }

    #[test]
    fn words_are_moved_whole_however_the_text_arrives() {
        let cases = [
            ("one two three", 8, "one two\nthree"),
            ("one two three", 7, "one two\nthree"),
            ("one two three", 6, "one\ntwo\nthree"),
            ("  indented text", 10, "  indented\ntext"),
            ("a\n\n  b c", 80, "a\n\n  b c"),
            ("long 1234567890 x", 6, "long\n123456\n7890 x"),
            ("漢字漢字", 5, "漢字\n漢字"),
            ("größer als", 7, "größer\nals"),
            ("e\u{301}e\u{301} e\u{301}", 3, "e\u{301}e\u{301}\ne\u{301}"),
        ];
        for (text, columns, expect) in cases {
            for size in [1, 2, 3, 100] {
                assert_eq!(wrapped(text, columns, size), expect, "{text} {size}");
            }
        }
    }

    #[test]
    fn without_a_terminal_text_is_not_changed() {
        let mut wrap = Wrap::new(None);
        assert_eq!(wrap.push(" a b "), " a b ");
        assert_eq!(wrap.finish(), "");
    }
}
