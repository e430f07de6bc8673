//! `TableFile`: `tokenizer.bin` while it is made, and its hash tables.

/// The first bytes of the file.
const MAGIC: &[u8; 8] = b"kvarkT01";
/// Bytes before the first section: magic and size.
const HEADER_BYTES: usize = 64;
/// Marks an empty slot of a hash table and a missing number.
pub(super) const NONE: u32 = u32::MAX;

/// A section of the file.
pub(crate) struct Section {
    /// Its constant in `tokenizer.h`.
    pub(crate) name: String,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    /// Its elements, for comments.
    pub(crate) shape: String,
}

/// The bytes of the file and its sections.
pub(super) struct TableFile {
    bytes: Vec<u8>,
    sections: Vec<Section>,
}

impl TableFile {
    pub(super) fn new() -> TableFile {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        TableFile {
            bytes,
            sections: vec![],
        }
    }

    /// Appends a section of bytes.
    pub(super) fn add(&mut self, name: &str, what: &str, data: &[u8]) {
        self.add_elements(name, &format!("u8[{}] {what}", data.len()), data);
    }

    /// Appends a section of 16-bit numbers.
    pub(super) fn add_u16(&mut self, name: &str, what: &str, data: &[u16]) {
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.add_elements(name, &format!("u16[{}] {what}", data.len()), &bytes);
    }

    /// Appends a section of 32-bit numbers.
    pub(super) fn add_u32(&mut self, name: &str, what: &str, data: &[u32]) {
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.add_elements(name, &format!("u32[{}] {what}", data.len()), &bytes);
    }

    fn add_elements(&mut self, name: &str, shape: &str, data: &[u8]) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.sections.push(Section {
            name: name.to_owned(),
            offset: self.bytes.len(),
            bytes: data.len(),
            shape: shape.to_owned(),
        });
        self.bytes.extend_from_slice(data);
    }

    /// The file, with its size in the header.
    pub(super) fn finish(mut self) -> (Vec<u8>, Vec<Section>) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let size = self.bytes.len() as u64;
        self.bytes[MAGIC.len()..][..8].copy_from_slice(&size.to_le_bytes());
        (self.bytes, self.sections)
    }
}

/// The slots of a hash table for so many entries: a power of two that leaves a quarter free.
fn capacity(entries: usize) -> usize {
    (entries + entries / 3 + 1).next_power_of_two()
}

/// A hash table with linear probing of rows `{left, right, value, value}`. Keys are distinct.
pub(super) fn pair_table(rows: &[[u32; 4]]) -> Vec<u32> {
    let mask = capacity(rows.len()) - 1;
    let mut table = vec![NONE; (mask + 1) * 4];
    for row in rows {
        let hash = (row[0].wrapping_mul(0x9E37_79B1) ^ row[1]).wrapping_mul(0x85EB_CA77);
        let mut slot = (hash ^ (hash >> 15)) as usize & mask;
        while table[slot * 4] != NONE {
            slot = (slot + 1) & mask;
        }
        table[slot * 4..][..4].copy_from_slice(row);
    }
    table
}

/// A hash table with linear probing of ids by their bytes.
pub(super) fn string_table<'a>(ids: &[u32], bytes: impl Fn(u32) -> &'a [u8]) -> Vec<u32> {
    let mask = capacity(ids.len()) - 1;
    let mut table = vec![NONE; mask + 1];
    for &id in ids {
        let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let hash = bytes(id).iter().fold(0x811C_9DC5, step);
        let mut slot = (hash ^ (hash >> 15)) as usize & mask;
        while table[slot] != NONE {
            slot = (slot + 1) & mask;
        }
        table[slot] = id;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_aligned_and_the_size_is_in_the_header() {
        let mut file = TableFile::new();
        file.add("T_A", "letters", b"abc");
        file.add_u32("T_B", "numbers", &[1, 2]);
        let (bytes, sections) = file.finish();
        assert_eq!(bytes.len(), 80);
        assert_eq!(bytes[8..16], 80u64.to_le_bytes());
        assert_eq!((sections[0].offset, sections[1].offset), (64, 72));
        assert_eq!(sections[1].shape, "u32[2] numbers");
    }

    #[test]
    fn tables_have_every_entry_and_a_free_slot() {
        for count in [0, 1, 2, 3, 100, 1000] {
            let rows: Vec<[u32; 4]> = (0..count).map(|i| [i / 7, i % 7, i, 0]).collect();
            let table = pair_table(&rows);
            let used = table.chunks(4).filter(|row| row[0] != NONE).count();
            assert_eq!(used, rows.len());
            assert!(table.len() / 4 > used && table.len().is_power_of_two());
        }
    }
}
