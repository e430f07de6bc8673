//! A checked reader of FlatBuffers: every offset is compared with the file's size before it is followed. Crate `flatbuffers` is
//! not used: its access to tables is `unsafe` but for generated code, which for ExecuTorch's schema is many times this file.

/// Why a buffer cannot be read.
pub(super) type Fault = String;

/// The bytes of one FlatBuffer.
#[derive(Clone, Copy)]
pub(super) struct Buffer<'a>(pub(super) &'a [u8]);

/// A table: its position, and that of its list of fields.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    buffer: Buffer<'a>,
    at: usize,
    fields: usize,
    /// Bytes of the list of fields.
    fields_len: usize,
}

/// A vector: its first element, and the number of elements.
#[derive(Clone, Copy)]
pub(super) struct Vector<'a> {
    buffer: Buffer<'a>,
    at: usize,
    len: usize,
}

impl<'a> Buffer<'a> {
    fn bytes<const N: usize>(self, at: usize) -> Result<[u8; N], Fault> {
        let found = self.0.get(at..).and_then(|rest| rest.first_chunk());
        found
            .copied()
            .ok_or_else(|| format!("has a reference to byte {at}, behind its end"))
    }

    fn u16(self, at: usize) -> Result<usize, Fault> {
        Ok(u16::from_le_bytes(self.bytes(at)?).into())
    }

    fn u32(self, at: usize) -> Result<usize, Fault> {
        Ok(u32::from_le_bytes(self.bytes(at)?) as usize)
    }

    /// The position that the offset at `at` refers to.
    fn follow(self, at: usize) -> Result<usize, Fault> {
        let offset = self.u32(at)?;
        match offset {
            0 => Err(format!("has an empty reference at byte {at}")),
            _ => Ok(at + offset),
        }
    }

    /// The root table.
    pub(super) fn root(self) -> Result<Table<'a>, Fault> {
        self.table(self.follow(0)?)
    }

    fn table(self, at: usize) -> Result<Table<'a>, Fault> {
        let back = i32::from_le_bytes(self.bytes(at)?) as i64;
        let fields = usize::try_from(at as i64 - back)
            .map_err(|_| format!("has a table at byte {at} without a list of fields"))?;
        let fields_len = self.u16(fields)?;
        Ok(Table {
            buffer: self,
            at,
            fields,
            fields_len,
        })
    }
}

impl<'a> Table<'a> {
    /// The position of a field; `None` if it has its default.
    fn field(&self, id: usize) -> Result<Option<usize>, Fault> {
        let place = 4 + 2 * id;
        if place + 2 > self.fields_len {
            return Ok(None);
        }
        match self.buffer.u16(self.fields + place)? {
            0 => Ok(None),
            offset => Ok(Some(self.at + offset)),
        }
    }

    fn number<const N: usize, T: Default>(
        &self,
        id: usize,
        read: fn([u8; N]) -> T,
    ) -> Result<T, Fault> {
        match self.field(id)? {
            None => Ok(T::default()),
            Some(at) => Ok(read(self.buffer.bytes(at)?)),
        }
    }

    pub(super) fn u8(&self, id: usize) -> Result<u8, Fault> {
        self.number(id, |[byte]| byte)
    }

    pub(super) fn i32(&self, id: usize) -> Result<i32, Fault> {
        self.number(id, i32::from_le_bytes)
    }

    pub(super) fn u32(&self, id: usize) -> Result<u32, Fault> {
        self.number(id, u32::from_le_bytes)
    }

    pub(super) fn i64(&self, id: usize) -> Result<i64, Fault> {
        self.number(id, i64::from_le_bytes)
    }

    pub(super) fn u64(&self, id: usize) -> Result<u64, Fault> {
        self.number(id, u64::from_le_bytes)
    }

    pub(super) fn f64(&self, id: usize) -> Result<f64, Fault> {
        self.number(id, f64::from_le_bytes)
    }

    pub(super) fn table(&self, id: usize) -> Result<Option<Table<'a>>, Fault> {
        match self.field(id)? {
            None => Ok(None),
            Some(at) => Ok(Some(self.buffer.table(self.buffer.follow(at)?)?)),
        }
    }

    /// A field that must be there.
    pub(super) fn need(&self, id: usize, what: &str) -> Result<Table<'a>, Fault> {
        self.table(id)?.ok_or_else(|| format!("has no {what}"))
    }

    /// A vector of elements of `width` bytes; an absent one is empty.
    pub(super) fn vector(&self, id: usize, width: usize) -> Result<Vector<'a>, Fault> {
        let buffer = self.buffer;
        let Some(at) = self.field(id)? else {
            let (at, len) = (0, 0);
            return Ok(Vector { buffer, at, len });
        };
        let at = buffer.follow(at)?;
        let len = buffer.u32(at)?;
        let end = len.checked_mul(width).and_then(|n| n.checked_add(at + 4));
        if end.is_none_or(|end| end > buffer.0.len()) {
            return Err(format!(
                "has a list of {len} elements at byte {at}, behind its end"
            ));
        }
        let at = at + 4;
        Ok(Vector { buffer, at, len })
    }

    pub(super) fn text(&self, id: usize) -> Result<&'a str, Fault> {
        let bytes = self.vector(id, 1)?;
        let bytes = &bytes.buffer.0[bytes.at..bytes.at + bytes.len];
        std::str::from_utf8(bytes).map_err(|_| "has a text that is not UTF-8".to_owned())
    }

    /// A vector of tables.
    pub(super) fn tables(&self, id: usize) -> Result<Vec<Table<'a>>, Fault> {
        let list = self.vector(id, 4)?;
        let table = |i: usize| {
            let at = list.buffer.follow(list.at + 4 * i)?;
            list.buffer.table(at)
        };
        (0..list.len).map(table).collect()
    }

    pub(super) fn i32s(&self, id: usize) -> Result<Vec<i32>, Fault> {
        self.numbers(id, i32::from_le_bytes)
    }

    pub(super) fn i64s(&self, id: usize) -> Result<Vec<i64>, Fault> {
        self.numbers(id, i64::from_le_bytes)
    }

    pub(super) fn f64s(&self, id: usize) -> Result<Vec<f64>, Fault> {
        self.numbers(id, f64::from_le_bytes)
    }

    pub(super) fn u64s(&self, id: usize) -> Result<Vec<u64>, Fault> {
        self.numbers(id, u64::from_le_bytes)
    }

    pub(super) fn bytes(&self, id: usize) -> Result<Vec<u8>, Fault> {
        self.numbers(id, |[byte]| byte)
    }

    fn numbers<const N: usize, T>(
        &self,
        id: usize,
        read: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Fault> {
        let list = self.vector(id, N)?;
        let bytes = &list.buffer.0[list.at..list.at + list.len * N];
        Ok(bytes.as_chunks().0.iter().map(|b| read(*b)).collect())
    }
}
