//! The protobuf wire format, read in place: fields are views into the file.

use base::Bytes;

/// A message: its encoded fields, in file order.
#[derive(Clone, Debug)]
pub(super) struct Message {
    bytes: Bytes,
    at: usize,
}

/// One field's number and contents.
pub(super) struct Field {
    pub(super) number: u32,
    wire: Wire,
}

enum Wire {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(Bytes),
}

/// Why a message is malformed; the caller names the message.
type Reason = String;

impl Message {
    pub(super) fn new(bytes: Bytes) -> Message {
        Message { bytes, at: 0 }
    }

    /// The next field, `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Field>, Reason> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|n| *n > 0);
        let number = number.ok_or("has a field without a number")?;
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(self.array()?),
            5 => Wire::Fixed32(self.array()?),
            2 => {
                let len = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                Wire::Bytes(self.take(len)?)
            }
            other => return Err(format!("has a field of unknown wire type {other}")),
        };
        Ok(Some(Field { number, wire }))
    }

    fn take(&mut self, len: usize) -> Result<Bytes, Reason> {
        let end = self.at.checked_add(len);
        let part = end.and_then(|end| self.bytes.slice(self.at..end));
        let part = part.ok_or_else(|| {
            let left = self.bytes.len() - self.at;
            format!("ends inside a field: {len} bytes are expected, {left} are left")
        })?;
        self.at += len;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Reason> {
        let part = self.take(N)?;
        Ok((*part).try_into().expect("N bytes were taken"))
    }

    fn varint(&mut self) -> Result<u64, Reason> {
        varint(&self.bytes, &mut self.at)
    }
}

fn varint(bytes: &[u8], at: &mut usize) -> Result<u64, Reason> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at).ok_or("ends inside a number")?;
        *at += 1;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("has a number of more than 64 bits".into())
}

impl Field {
    fn wrong(&self, wanted: &str) -> Reason {
        format!("has a field {} that is not of type {wanted}", self.number)
    }

    pub(super) fn int(&self) -> Result<i64, Reason> {
        match self.wire {
            Wire::Varint(n) => Ok(n as i64),
            _ => Err(self.wrong("integer")),
        }
    }

    pub(super) fn float(&self) -> Result<f32, Reason> {
        match self.wire {
            Wire::Fixed32(bits) => Ok(f32::from_le_bytes(bits)),
            _ => Err(self.wrong("f32")),
        }
    }

    pub(super) fn bytes(self) -> Result<Bytes, Reason> {
        match self.wire {
            Wire::Bytes(bytes) => Ok(bytes),
            _ => Err(self.wrong("string of bytes")),
        }
    }

    pub(super) fn text(self) -> Result<String, Reason> {
        let number = self.number;
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(&bytes);
        let text = text.map_err(|_| format!("has a field {number} that is not UTF-8"))?;
        Ok(text.to_owned())
    }

    pub(super) fn message(self) -> Result<Message, Reason> {
        Ok(Message::new(self.bytes()?))
    }

    /// Adds the integers of a repeated field, packed or not.
    pub(super) fn ints(self, list: &mut Vec<i64>) -> Result<(), Reason> {
        match self.wire {
            Wire::Varint(n) => list.push(n as i64),
            Wire::Bytes(bytes) => {
                let mut at = 0;
                while at < bytes.len() {
                    list.push(varint(&bytes, &mut at)? as i64);
                }
            }
            _ => return Err(self.wrong("list of integers")),
        }
        Ok(())
    }

    /// Adds the numbers of a repeated field of four-byte numbers, packed or not.
    pub(super) fn floats(self, list: &mut Vec<f32>) -> Result<(), Reason> {
        let mut add = |bytes: &[[u8; 4]]| list.extend(bytes.iter().map(|b| f32::from_le_bytes(*b)));
        match &self.wire {
            Wire::Fixed32(bits) => add(&[*bits]),
            Wire::Bytes(bytes) if bytes.len() % 4 == 0 => add(bytes.as_chunks().0),
            _ => return Err(self.wrong("list of f32")),
        }
        Ok(())
    }

    /// Adds the numbers of a repeated field of eight-byte numbers, packed or not.
    pub(super) fn doubles(self, list: &mut Vec<f64>) -> Result<(), Reason> {
        let mut add = |bytes: &[[u8; 8]]| list.extend(bytes.iter().map(|b| f64::from_le_bytes(*b)));
        match &self.wire {
            Wire::Fixed64(bits) => add(&[*bits]),
            Wire::Bytes(bytes) if bytes.len() % 8 == 0 => add(bytes.as_chunks().0),
            _ => return Err(self.wrong("list of f64")),
        }
        Ok(())
    }
}
