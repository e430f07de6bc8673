//! ExecuTorch's codes of element types.

/// Bytes of an element.
pub(super) fn width(code: u8) -> Result<usize, String> {
    Ok(match code {
        0 | 1 | 11 => 1,
        2 | 5 | 15 => 2,
        3 | 6 => 4,
        4 | 7 => 8,
        code => return Err(format!("has elements of the unsupported type {code}")),
    })
}

/// PyTorch's code of the same type, as `.pt2` files have it.
pub(super) fn torch_code(code: u8) -> Result<u32, String> {
    width(code)?;
    Ok(match code {
        // The list of `.pt2` files begins with one that says nothing.
        15 => 13,
        code => u32::from(code) + 1,
    })
}

/// The name of the type.
pub(super) fn name(code: u8) -> &'static str {
    match code {
        0 => "u8",
        1 => "i8",
        2 => "i16",
        3 => "i32",
        4 => "i64",
        5 => "f16",
        6 => "f32",
        7 => "f64",
        11 => "bool",
        15 => "bf16",
        _ => "unsupported",
    }
}
