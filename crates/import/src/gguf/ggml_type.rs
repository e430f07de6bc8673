//! The tensor type numbers of GGUF files.

use base::DType;

/// The element type for a type number, or the name to show for one that kvark cannot read.
pub(super) fn dtype(code: u32) -> Result<DType, String> {
    DType::from_ggml(code).ok_or_else(|| {
        let known = TYPE_NAMES.iter().find(|(known, _)| *known == code);
        known.map_or_else(|| format!("number {code}"), |(_, name)| (*name).to_owned())
    })
}

/// Quantised and rare types that ggml defines or once defined, to name those that kvark does not read.
const TYPE_NAMES: &[(u32, &str)] = &[
    (4, "q4_2"),
    (5, "q4_3"),
    (9, "q8_1"),
    (15, "q8_k"),
    (16, "iq2_xxs"),
    (17, "iq2_xs"),
    (18, "iq3_xxs"),
    (19, "iq1_s"),
    (21, "iq3_s"),
    (22, "iq2_s"),
    (25, "i16"),
    (28, "f64"),
    (29, "iq1_m"),
    (31, "q4_0_4_4"),
    (32, "q4_0_4_8"),
    (33, "q4_0_8_8"),
    (34, "tq1_0"),
    (35, "tq2_0"),
    (36, "iq4_nl_4_4"),
    (37, "iq4_nl_4_8"),
    (38, "iq4_nl_8_8"),
    (39, "mxfp4"),
    (40, "nvfp4"),
    (41, "q1_0"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read_or_named() {
        for code in 0..42 {
            if let Err(label) = dtype(code) {
                assert!(!label.starts_with("number"), "{code}");
            }
        }
        assert_eq!(dtype(19), Err("iq1_s".to_owned()));
        assert_eq!(dtype(99), Err("number 99".to_owned()));
    }

    #[test]
    fn no_type_has_two_numbers() {
        let read: Vec<DType> = (0..64).filter_map(|code| dtype(code).ok()).collect();
        let unique: std::collections::HashSet<_> = read.iter().collect();
        assert_eq!(unique.len(), read.len());
        for real in DType::ALL.into_iter().filter(|t| t.is_real()) {
            assert!(read.contains(&real), "{real}");
        }
    }
}
