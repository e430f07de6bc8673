//! Reads ExecuTorch programs and their external weights (`.ptd`).

use std::collections::HashMap;
use std::path::Path;

use base::Bytes;

use super::file::{EValue, KernelCall, Plan, Pte, PteTensor};
use super::flatbuffer::{Buffer, Fault, Table};
use crate::error::ImportError;

const IDENTIFIER: &[u8] = b"ET12";
const DATA_IDENTIFIER: &[u8] = b"FT01";
/// Above what any program has; a limit on hostile files.
const MAX_RANK: usize = 16;

impl Pte {
    /// Whether the bytes begin as an ExecuTorch program does.
    pub fn is_program(bytes: &[u8]) -> bool {
        bytes.get(4..8) == Some(IDENTIFIER)
    }

    /// Maps the file at `path` and reads it. Weights are views into it.
    pub fn open(path: &Path) -> Result<Pte, ImportError> {
        let read = || Pte::parse(&Bytes::map(path)?, Some(path));
        read().map_err(|error: ImportError| error.in_file(path))
    }

    /// Reads a whole file held in `bytes`. External weights are in a `.ptd` file beside `path`.
    pub fn parse(bytes: &Bytes, path: Option<&Path>) -> Result<Pte, ImportError> {
        let wrong = |reason: Fault| ImportError::malformed("the program", reason);
        if !Pte::is_program(bytes) {
            return Err(wrong("does not begin as an ExecuTorch program".into()));
        }
        let header = Header::read(bytes).map_err(wrong)?;
        let root = Buffer(bytes).root().map_err(wrong)?;
        let data = Data::read(&root, bytes, &header).map_err(wrong)?;
        let external = match path.map(|path| path.with_extension("ptd")) {
            Some(path) if path.exists() => external(&Bytes::map(&path)?)
                .map_err(|reason| ImportError::malformed(format!("{}", path.display()), reason))?,
            _ => HashMap::new(),
        };
        let version = root.u32(0).map_err(wrong)?;
        let mut plans = vec![];
        for plan in root.tables(1).map_err(wrong)? {
            plans.push(read_plan(&plan, &data, &external)?);
        }
        match plans.is_empty() {
            true => Err(wrong("has no method".into())),
            false => Ok(Pte { version, plans }),
        }
    }
}

/// Where segments begin in the file.
struct Header {
    segments: usize,
}

impl Header {
    /// The extended header after the identifier; a file without segments has none.
    fn read(bytes: &[u8]) -> Result<Header, Fault> {
        if bytes.get(8..12) != Some(b"eh00") {
            let segments = bytes.len();
            return Ok(Header { segments });
        }
        let segments = bytes.get(24..32).and_then(|b| b.first_chunk());
        let segments = segments.ok_or("ends in its header")?;
        let segments = usize::try_from(u64::from_le_bytes(*segments));
        match segments {
            Ok(segments) if segments <= bytes.len() => Ok(Header { segments }),
            _ => Err("has its segments behind its end".into()),
        }
    }
}

/// The constants of a program.
struct Data {
    constants: Bytes,
    offsets: Vec<u64>,
    /// Blobs by name.
    named: HashMap<String, Bytes>,
}

/// The bytes of a segment.
fn segment(
    segments: &[Table<'_>],
    index: usize,
    base: usize,
    bytes: &Bytes,
) -> Result<Bytes, Fault> {
    let wrong = || format!("has no whole segment {index}");
    let segment = segments.get(index).ok_or_else(wrong)?;
    let (offset, size) = (segment.u64(0)?, segment.u64(1)?);
    let start = usize::try_from(offset)
        .ok()
        .and_then(|n| n.checked_add(base));
    let end = start
        .zip(usize::try_from(size).ok())
        .and_then(|(a, b)| a.checked_add(b));
    let range = start.zip(end).ok_or_else(wrong)?;
    bytes.slice(range.0..range.1).ok_or_else(wrong)
}

/// Blobs by name, from a list of names and segment numbers.
fn named_data(
    list: &[Table<'_>],
    segments: &[Table<'_>],
    base: usize,
    bytes: &Bytes,
) -> Result<HashMap<String, Bytes>, Fault> {
    let mut named = HashMap::new();
    for entry in list {
        let blob = segment(segments, entry.u32(1)? as usize, base, bytes)?;
        named.insert(entry.text(0)?.to_owned(), blob);
    }
    Ok(named)
}

impl Data {
    fn read(root: &Table<'_>, bytes: &Bytes, header: &Header) -> Result<Data, Fault> {
        let segments = root.tables(4)?;
        let (constants, offsets) = match root.table(5)? {
            None => (Bytes::from(&[][..]), vec![]),
            Some(constants) => {
                let offsets = constants.u64s(1)?;
                let index = constants.u32(0)? as usize;
                let data = match offsets.len() {
                    0 | 1 => Bytes::from(&[][..]),
                    _ => segment(&segments, index, header.segments, bytes)?,
                };
                (data, offsets)
            }
        };
        if !root.tables(2)?.is_empty() && offsets.is_empty() {
            return Err("keeps its constants inside the program, as files before September 2024 do; export it again".into());
        }
        let named = named_data(&root.tables(7)?, &segments, header.segments, bytes)?;
        Ok(Data {
            constants,
            offsets,
            named,
        })
    }

    /// The `len` bytes of a constant.
    fn constant(&self, index: usize, len: usize) -> Result<Bytes, Fault> {
        let wrong = || format!("has no whole constant {index}");
        let start = self.offsets.get(index).ok_or_else(wrong)?;
        let start = usize::try_from(*start).map_err(|_| wrong())?;
        let end = start.checked_add(len).ok_or_else(wrong)?;
        self.constants.slice(start..end).ok_or_else(wrong)
    }
}

/// The tensors of a `.ptd` file, by name.
fn external(bytes: &Bytes) -> Result<HashMap<String, Bytes>, Fault> {
    if bytes.get(4..8) != Some(DATA_IDENTIFIER) {
        return Err("does not begin as a file of tensors does".into());
    }
    let base = match bytes.get(8..12) {
        // Header length, offset and size of the tables, then the segments.
        Some(b"FH01") => bytes.get(32..40).and_then(|b| b.first_chunk()),
        _ => None,
    };
    let base = base.map_or(Ok(0), |b| usize::try_from(u64::from_le_bytes(*b)));
    let base = base.map_err(|_| "has its segments behind its end")?;
    let root = Buffer(bytes).root()?;
    named_data(&root.tables(2)?, &root.tables(1)?, base, bytes)
}

fn read_plan(
    plan: &Table<'_>,
    data: &Data,
    external: &HashMap<String, Bytes>,
) -> Result<Plan, ImportError> {
    let name = plan
        .text(0)
        .map_err(|reason| ImportError::malformed("a method", reason))?;
    let name: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
    let wrong = |reason: Fault| ImportError::malformed(format!("method {name:?}"), reason);
    let mut values = vec![];
    for value in plan.tables(2).map_err(wrong)? {
        values.push(read_value(&value, data, external).map_err(wrong)?);
    }
    // An omitted tensor of a list is -1 (no index of a value): it becomes a value that is `None`.
    let none = values.len();
    for value in &mut values {
        if let EValue::OptionalTensors(list) = value {
            let omitted = list.iter_mut().filter(|index| **index == usize::MAX);
            omitted.for_each(|index| *index = none);
        }
    }
    values.push(EValue::None);
    let count = values.len();
    let indices = |list: Vec<i32>| -> Result<Vec<usize>, Fault> {
        let index = |n: i32| {
            let index = usize::try_from(n).ok().filter(|index| *index < count);
            index.ok_or_else(|| format!("refers to value {n} of {count}"))
        };
        list.into_iter().map(index).collect()
    };
    // Lists refer to values that come later too, so they are checked at the end.
    for value in &values {
        if let EValue::Ints(list) | EValue::Tensors(list) | EValue::OptionalTensors(list) = value
            && let Some(bad) = list.iter().find(|index| **index >= count)
        {
            return Err(wrong(format!("refers to value {bad} of {count}")));
        }
    }
    if let Some(delegate) = plan.tables(7).map_err(wrong)?.first() {
        let id = delegate.text(0).map_err(wrong)?;
        let id: String = id.chars().filter(|c| !c.is_control()).take(60).collect();
        let what = format!("method {name:?}, which is delegated to {id},");
        return Err(ImportError::unsupported(what));
    }
    let mut operators = vec![];
    for operator in plan.tables(6).map_err(wrong)? {
        let (op, overload) = (
            operator.text(0).map_err(wrong)?,
            operator.text(1).map_err(wrong)?,
        );
        operators.push(match overload {
            "" => format!("{op}.default"),
            overload => format!("{op}.{overload}"),
        });
    }
    if let Some(odd) = operators
        .iter()
        .find(|op| op.len() > 200 || op.contains(char::is_control))
    {
        let start: String = odd.chars().filter(|c| !c.is_control()).take(40).collect();
        return Err(wrong(format!("has an op with the invalid name {start:?}")));
    }
    let mut calls = vec![];
    for chain in plan.tables(5).map_err(wrong)? {
        for instruction in chain.tables(2).map_err(wrong)? {
            let arguments = || instruction.need(1, "arguments");
            match instruction.u8(0).map_err(wrong)? {
                1 => {
                    let call = arguments().map_err(wrong)?;
                    let op = usize::try_from(call.i32(0).map_err(wrong)?).ok();
                    let op = op.and_then(|index| operators.get(index));
                    calls.push(KernelCall {
                        op: op
                            .ok_or_else(|| wrong("calls an op that is not listed".into()))?
                            .clone(),
                        args: indices(call.i32s(1).map_err(wrong)?).map_err(wrong)?,
                    });
                }
                // Freeing memory changes no value.
                5 => {}
                2 => return Err(wrong("calls a delegate that is not listed".into())),
                kind => {
                    let kind = match kind {
                        3 => "moves",
                        4 => "jumps",
                        _ => "unknown instructions",
                    };
                    let what = format!("method {name:?}, which has {kind},");
                    return Err(ImportError::unsupported(what));
                }
            }
        }
    }
    let inputs = indices(plan.i32s(3).map_err(wrong)?).map_err(wrong)?;
    let outputs = indices(plan.i32s(4).map_err(wrong)?).map_err(wrong)?;
    let mut plan = Plan {
        name,
        values,
        inputs,
        outputs,
        calls,
    };
    plan.insert_views();
    Ok(plan)
}

fn read_value(
    value: &Table<'_>,
    data: &Data,
    external: &HashMap<String, Bytes>,
) -> Result<EValue, Fault> {
    let kind = value.u8(0)?;
    let body = || value.need(1, "value");
    let index = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
    Ok(match kind {
        0 | 1 => EValue::None,
        2 => EValue::Int(body()?.i64(0)?),
        3 => EValue::Bool(body()?.u8(0)? != 0),
        4 => EValue::Double(body()?.f64(0)?),
        5 => EValue::Tensor(read_tensor(&body()?, data, external)?),
        6 => EValue::Text(body()?.text(0)?.to_owned()),
        7 => EValue::Ints(body()?.i64s(0)?.into_iter().map(index).collect()),
        8 => EValue::Doubles(body()?.f64s(0)?),
        9 => EValue::Bools,
        10 | 11 => {
            let items = body()?.i32s(0)?;
            let items = items.into_iter().map(|n| index(n.into())).collect();
            match kind {
                10 => EValue::Tensors(items),
                _ => EValue::OptionalTensors(items),
            }
        }
        kind => return Err(format!("has a value of the unknown kind {kind}")),
    })
}

fn read_tensor(
    tensor: &Table<'_>,
    data: &Data,
    external: &HashMap<String, Bytes>,
) -> Result<PteTensor, Fault> {
    let dtype = tensor.u8(0)?;
    let sizes = tensor.i32s(2)?;
    if sizes.len() > MAX_RANK {
        return Err(format!("has a tensor of {} dimensions", sizes.len()));
    }
    let size = |n: &i32| usize::try_from(*n).map_err(|_| format!("has a tensor of size {n}"));
    let sizes: Vec<usize> = sizes.iter().map(size).collect::<Result<_, _>>()?;
    let order = tensor.bytes(3)?;
    if tensor.i32(1)? != 0 || !(0..).zip(&order).all(|(i, dim)| i == usize::from(*dim)) {
        return Err("has a tensor that is not stored row by row".into());
    }
    let extra = tensor.table(9)?;
    let name = match &extra {
        Some(extra) => extra.text(1)?,
        None => "",
    };
    let name: String = name.chars().filter(|c| !c.is_control()).take(300).collect();
    let is_external = extra.as_ref().map_or(Ok(0), |extra| extra.u8(2))? == 1;
    let buffer = tensor.u32(5)? as usize;
    let elements = sizes
        .iter()
        .try_fold(1usize, |n, size| n.checked_mul(*size));
    let bytes = || {
        let width = super::types::width(dtype)?;
        let bytes = elements.and_then(|n| n.checked_mul(width));
        bytes.ok_or_else(|| "has a tensor whose size overflows".to_owned())
    };
    let stored = if is_external {
        let found = external.get(&name).or_else(|| data.named.get(&name));
        let found = found.ok_or_else(|| {
            format!("keeps the weight {name:?} in another file, and there is no .ptd file with it")
        })?;
        let whole = found.slice(0..bytes()?);
        Some(whole.ok_or_else(|| format!("has only a part of the weight {name:?}"))?)
    } else if buffer > 0 && tensor.table(6)?.is_some() {
        return Err("has a buffer with an initial value that it writes into".into());
    } else if buffer > 0 {
        Some(data.constant(buffer, bytes()?)?)
    } else {
        None
    };
    let place = match tensor.table(6)? {
        Some(place) => {
            let offset = u64::from(place.u32(2)?) << 32 | u64::from(place.u32(1)?);
            Some((place.u32(0)?, offset))
        }
        None => None,
    };
    let dynamism = tensor.u8(8)?;
    if dynamism > 1 {
        return Err("has a tensor without bounds on its size".into());
    }
    Ok(PteTensor {
        name: Some(name).filter(|name| !name.is_empty()),
        dtype,
        sizes,
        is_dynamic: dynamism == 1,
        place,
        data: stored,
    })
}
