//! NumPy's `.npy` files: reading and writing the element types that a run has. Crate `npyz` is not used: it reads the one line of
//! header with a generated parser and big integers (12 crates).

use anyhow::{Context, Result, bail};
use kvark::inference::{Data, Value};
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The header is padded so that elements begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// Reads a tensor. Other real types are converted to f32 and other integers to i64, as for imported models.
pub(crate) fn read(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&bytes).with_context(|| format!("{} is not a usable .npy file", path.display()))
}

/// Writes a tensor.
pub(crate) fn write(path: &Path, value: &Value) -> Result<()> {
    std::fs::write(path, bytes(value)).with_context(|| format!("cannot write {}", path.display()))
}

fn parse(bytes: &[u8]) -> Result<Value> {
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        bail!("it lacks the .npy magic");
    };
    let (header, elements) = match rest {
        [1, _, a, b, rest @ ..] => rest.split_at_checked(u16::from_le_bytes([*a, *b]).into()),
        [2 | 3, _, a, b, c, d, rest @ ..] => {
            rest.split_at_checked(u32::from_le_bytes([*a, *b, *c, *d]) as usize)
        }
        _ => bail!("its format version is not supported"),
    }
    .context("its header is truncated")?;
    let header = std::str::from_utf8(header).context("its header is not text")?;
    let descr = text_of(header, "descr").context("it has no element type")?;
    let shape = shape_of(header).context("it has no shape")?;
    if field(header, "fortran_order").is_none_or(|value| value.starts_with("True")) {
        bail!("its elements are not in row-major order");
    }
    let len = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let len = len.context("its shape is too large")?;
    let data = decode(descr, elements)?;
    if data.len() < len {
        bail!("it has {} of {len} elements", data.len());
    }
    if data.len() > len {
        bail!("it has more data than its {len} elements");
    }
    Ok(Value { shape, data })
}

fn decode(descr: &str, bytes: &[u8]) -> Result<Data> {
    fn each<T, const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
        let (chunks, rest) = bytes.as_chunks();
        if !rest.is_empty() {
            bail!("its last element is truncated");
        }
        Ok(chunks.iter().map(|chunk| from(*chunk)).collect())
    }
    Ok(match descr {
        "<f4" => Data::F32(each(bytes, f32::from_le_bytes)?),
        "<f8" => Data::F32(each(bytes, |b| f64::from_le_bytes(b) as f32)?),
        "<i4" => Data::I32(each(bytes, i32::from_le_bytes)?),
        "<i8" => Data::I64(each(bytes, i64::from_le_bytes)?),
        "<i2" => Data::I64(each(bytes, |b| i16::from_le_bytes(b).into())?),
        "|i1" => Data::I64(each(bytes, |[b]| i64::from(b as i8))?),
        "|u1" => Data::I64(each(bytes, |[b]| b.into())?),
        "|b1" => Data::Bool(each(bytes, |[b]| b != 0)?),
        other => bail!("its element type {other:?} is not supported"),
    })
}

/// Returns the text after a key of the header, which is a Python dict.
fn field<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, after) = header.split_once(&format!("'{key}'"))?;
    Some(after.trim_start().strip_prefix(':')?.trim_start())
}

fn text_of<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    field(header, key)?.strip_prefix('\'')?.split('\'').next()
}

fn shape_of(header: &str) -> Option<Vec<usize>> {
    let (inside, _) = field(header, "shape")?.strip_prefix('(')?.split_once(')')?;
    let sizes = inside.split(',').map(str::trim).filter(|s| !s.is_empty());
    sizes.map(|size| size.parse().ok()).collect()
}

fn bytes(value: &Value) -> Vec<u8> {
    let descr = match &value.data {
        Data::F32(_) => "<f4",
        Data::I32(_) => "<i4",
        Data::I64(_) => "<i8",
        Data::Bool(_) => "|b1",
    };
    let sizes: String = value.shape.iter().map(|d| format!("{d},")).collect();
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    let prefix = MAGIC.len() + 4;
    let padded = (prefix + header.len() + 1).next_multiple_of(ALIGNMENT) - prefix;
    header.extend(std::iter::repeat_n(' ', padded - 1 - header.len()));
    header.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend_from_slice(&value.data.to_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for value in [
            Value::f32([2, 1, 2], vec![1.5, -2.0, f32::INFINITY, 0.0]),
            Value::i32([3], vec![1, -2, 3]),
            Value {
                shape: vec![],
                data: Data::I64(vec![1 << 40]),
            },
            Value {
                shape: vec![0, 2],
                data: Data::Bool(vec![]),
            },
        ] {
            let bytes = bytes(&value);
            assert_eq!(parse(&bytes).unwrap(), value);
            assert!(parse(&bytes[..bytes.len() / 2]).is_err());
        }
    }

    #[test]
    fn numpy_s_own_headers_are_read() {
        let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }\n";
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend([1.0f64, 2.5].iter().flat_map(|x| x.to_le_bytes()));
        assert_eq!(parse(&file).unwrap(), Value::f32([2], vec![1.0, 2.5]));
        let turned = String::from_utf8_lossy(&file).contains("False");
        assert!(turned);
        let at = file.windows(5).position(|w| w == b"False").unwrap();
        file[at..at + 5].copy_from_slice(b"True ");
        let error = parse(&file).unwrap_err().to_string();
        assert_eq!(error, "its elements are not in row-major order");
    }
}
