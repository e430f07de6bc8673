//! Byte counts as human-readable text.

/// Formats a number of bytes in decimal units, for instance `98.4 MB`. All human-readable output uses this form.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [(&str, f64); 4] = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let x = bytes as f64;
    // A value that would round up to 1000.0 of one unit is printed as 1.0 of the next.
    match UNITS.iter().find(|(_, unit)| x >= 0.99995 * unit) {
        Some((name, unit)) => format!("{:.1} {name}", x / unit),
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::size_text;

    #[test]
    fn sizes_have_one_digit_behind_the_point() {
        let table = [
            (0, "0 bytes"),
            (1, "1 byte"),
            (999, "999 bytes"),
            (1_000, "1.0 kB"),
            (98_362_432, "98.4 MB"),
            (999_940_000, "999.9 MB"),
            (999_960_000, "1.0 GB"),
            (1_500_000_000_000, "1.5 TB"),
            (u64::MAX, "18446744.1 TB"),
        ];
        for (bytes, text) in table {
            assert_eq!(size_text(bytes), text, "{bytes}");
        }
    }
}
