//! The encoding of bytes as printable characters in byte-level vocabularies.
//!
//! Printable Latin-1 bytes stand for themselves; the other 68 take the characters from U+0100 on, in byte order.

/// The first character given to a byte that has no printable form.
const FIRST_STAND_IN: u32 = 0x100;
/// The number of bytes without a printable form.
const STAND_INS: usize = 68;

/// The character that spells `byte`.
pub(crate) fn char_of(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(FIRST_STAND_IN + place).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes that `token` spells; `None` if one of its characters spells no byte.
pub(crate) fn bytes_of(token: &str, table: &ByteTable) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(token.len());
    push_bytes(token, table, &mut bytes).then_some(bytes)
}

/// Appends the bytes that `token` spells. Returns false and appends nothing if a character spells no byte.
pub(crate) fn push_bytes(token: &str, table: &ByteTable, to: &mut Vec<u8>) -> bool {
    let before = to.len();
    for c in token.chars() {
        let Some(byte) = table.byte_of(c) else {
            to.truncate(before);
            return false;
        };
        to.push(byte);
    }
    true
}

/// The inverse of [`char_of`].
pub(crate) struct ByteTable {
    stand_ins: [u8; STAND_INS],
}

impl ByteTable {
    pub(crate) fn new() -> Self {
        let mut stand_ins = [0; STAND_INS];
        let bytes = (0..=u8::MAX).filter(|&b| !is_printable(b));
        for (slot, byte) in stand_ins.iter_mut().zip(bytes) {
            *slot = byte;
        }
        Self { stand_ins }
    }

    fn byte_of(&self, c: char) -> Option<u8> {
        let code = u32::from(c);
        match u8::try_from(code) {
            Ok(byte) => is_printable(byte).then_some(byte),
            Err(_) => self
                .stand_ins
                .get((code - FIRST_STAND_IN) as usize)
                .copied(),
        }
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let table = ByteTable::new();
        for byte in 0..=u8::MAX {
            assert_eq!(table.byte_of(char_of(byte)), Some(byte));
        }
    }

    #[test]
    fn well_known_spellings() {
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(0xAD), 'Ń');
        let table = ByteTable::new();
        assert_eq!(
            bytes_of("ĠcafÃ©", &table).as_deref(),
            Some(" café".as_bytes())
        );
        assert_eq!(bytes_of("a b", &table), None);
        assert_eq!(bytes_of("▁", &table), None);
    }
}
