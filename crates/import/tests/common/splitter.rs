//! Splits a GGUF file into parts as llama.cpp's `gguf-split` does, for tests.
#![allow(dead_code, reason = "each test uses some of these")]

/// The name of a part.
pub(crate) fn part_name(stem: &str, number: usize, count: usize) -> String {
    format!("{stem}-{number:05}-of-{count:05}.gguf")
}

/// A tensor's directory entry without its offset, and its bytes.
struct Tensor<'a> {
    entry: &'a [u8],
    data: &'a [u8],
}

fn u32_at(file: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(file[at..at + 4].try_into().unwrap())
}

fn u64_at(file: &[u8], at: usize) -> usize {
    u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize
}

/// The end of a metadata value of this type that begins at `at`.
fn end_of_value(file: &[u8], kind: u32, at: usize) -> usize {
    match kind {
        0 | 1 | 7 => at + 1,
        2 | 3 => at + 2,
        4..=6 => at + 4,
        8 => at + 8 + u64_at(file, at),
        9 => {
            let (kind, count) = (u32_at(file, at), u64_at(file, at + 4));
            (0..count).fold(at + 12, |at, _| end_of_value(file, kind, at))
        }
        _ => at + 8,
    }
}

/// The end of the metadata.
fn end_of_metadata(file: &[u8]) -> usize {
    (0..u64_at(file, 16)).fold(24, |at, _| {
        let kind = at + 8 + u64_at(file, at);
        end_of_value(file, u32_at(file, kind), kind + 4)
    })
}

fn tensors(file: &[u8], start: usize) -> Vec<Tensor<'_>> {
    let mut at = start;
    let mut entries = Vec::new();
    for _ in 0..u64_at(file, 8) {
        let dims = at + 8 + u64_at(file, at);
        let offset = dims + 4 + 8 * u32_at(file, dims) as usize + 4;
        entries.push((&file[at..offset], u64_at(file, offset)));
        at = offset + 8;
    }
    let data = at.next_multiple_of(32);
    let end = |offset: usize| {
        let later = entries.iter().map(|e| e.1).filter(|o| *o > offset);
        data + later.min().unwrap_or(file.len() - data)
    };
    let tensor = |&(entry, offset): &(_, usize)| Tensor {
        entry,
        data: &file[data + offset..end(offset)],
    };
    entries.iter().map(tensor).collect()
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    let len = (name.len() as u64).to_le_bytes();
    [&len[..], name.as_bytes(), &kind.to_le_bytes(), value].concat()
}

/// The file in `count` parts of about as many tensors each. Only files of alignment 32 can be split.
pub(crate) fn split(file: &[u8], count: usize) -> Vec<Vec<u8>> {
    let directory = end_of_metadata(file);
    let tensors = tensors(file, directory);
    let each = tensors.len().div_ceil(count);
    let part = |number: usize| {
        let own = tensors.iter().skip(number * each).take(each);
        let (mut entries, mut data) = (Vec::new(), Vec::new());
        for tensor in own.clone() {
            entries.extend_from_slice(tensor.entry);
            entries.extend((data.len() as u64).to_le_bytes());
            data.extend_from_slice(tensor.data);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        let keys = [
            key("split.no", 2, &(number as u16).to_le_bytes()),
            key("split.count", 2, &(count as u16).to_le_bytes()),
            key(
                "split.tensors.count",
                5,
                &(tensors.len() as i32).to_le_bytes(),
            ),
        ];
        // The first part has the model's metadata too.
        let (metadata, key_count) = match number {
            0 => (&file[24..directory], u64_at(file, 16) + keys.len()),
            _ => (&[][..], keys.len()),
        };
        let mut part = file[..8].to_vec();
        part.extend((own.count() as u64).to_le_bytes());
        part.extend((key_count as u64).to_le_bytes());
        part.extend_from_slice(metadata);
        part.extend(keys.concat());
        part.extend(entries);
        part.resize(part.len().next_multiple_of(32), 0);
        part.extend(data);
        part
    };
    (0..count).map(part).collect()
}
