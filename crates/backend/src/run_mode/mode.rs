//! The modes, and how a mode that an executable does not support is downgraded.

use base::named_enum;
use std::fmt;
use std::str::FromStr;

named_enum! {
    /// How steps are run.
    ///
    /// `None`, `Piecewise` and `Full` are also what a single step is dispatched to. The two others choose between them by
    /// the kind of step: a *uniform decode* has the same few tokens for every sequence, a *mixed* step is any other.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum RunMode {
        /// Every node is resolved and run on its own.
        None = "none",
        /// Recorded pieces between the attention nodes, which are resolved in every step.
        Piecewise = "piecewise",
        /// One recording of the whole step.
        #[default]
        Full = "full",
        /// `Full` for uniform decodes, `None` for mixed steps.
        FullDecodeOnly = "full_decode_only",
        /// `Full` for uniform decodes, `Piecewise` for mixed steps.
        FullAndPiecewise = "full_and_piecewise",
    }
}

/// No mode has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown run mode {0:?}: must be one of none, piecewise, full, full_decode_only, full_and_piecewise"
)]
pub struct UnknownRunMode(String);

impl RunMode {
    /// The mode of uniform decodes.
    pub const fn decode_mode(self) -> RunMode {
        match self {
            RunMode::FullDecodeOnly | RunMode::FullAndPiecewise => RunMode::Full,
            single => single,
        }
    }

    /// The mode of mixed steps.
    pub const fn mixed_mode(self) -> RunMode {
        match self {
            RunMode::FullDecodeOnly => RunMode::None,
            RunMode::FullAndPiecewise => RunMode::Piecewise,
            single => single,
        }
    }

    /// The mode of recordings by shape, for steps that no descriptor fits.
    pub(crate) const fn stored(self) -> RunMode {
        match self {
            RunMode::None => RunMode::None,
            _ => RunMode::Full,
        }
    }

    /// Whether uniform decodes and mixed steps have different modes.
    pub const fn is_dual(self) -> bool {
        matches!(self, RunMode::FullDecodeOnly | RunMode::FullAndPiecewise)
    }

    /// The mode to use on an executable, where it does not support this one.
    ///
    /// `splits_attention` tells whether the executable can record the pieces between attention nodes, `query_len` how
    /// many tokens a sequence has in a uniform decode (1 plus the speculated ones).
    pub fn downgrade(
        self,
        support: GraphSupport,
        splits_attention: bool,
        query_len: usize,
    ) -> RunMode {
        let pieces_or_none = match splits_attention {
            true => RunMode::Piecewise,
            false => RunMode::None,
        };
        let mut mode = match self {
            RunMode::Piecewise if !splits_attention => RunMode::None,
            RunMode::FullAndPiecewise if !splits_attention => RunMode::FullDecodeOnly,
            mode => mode,
        };
        if mode.mixed_mode() == RunMode::Full && support < GraphSupport::Always {
            mode = match (support, splits_attention) {
                (GraphSupport::Never, _) => pieces_or_none,
                (_, true) => RunMode::FullAndPiecewise,
                (_, false) => RunMode::FullDecodeOnly,
            };
        }
        let decode_unsupported = match support {
            GraphSupport::Never => true,
            GraphSupport::UniformSingleToken => query_len > 1,
            GraphSupport::UniformBatch | GraphSupport::Always => false,
        };
        if mode.decode_mode() == RunMode::Full && decode_unsupported {
            mode = pieces_or_none;
        }
        mode
    }
}

impl fmt::Display for RunMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RunMode {
    type Err = UnknownRunMode;

    /// Reads a mode's name in upper or lower case.
    fn from_str(text: &str) -> Result<RunMode, UnknownRunMode> {
        let found = RunMode::ALL
            .into_iter()
            .find(|mode| mode.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| UnknownRunMode(text.to_owned()))
    }
}

/// Which steps an executable can record whole, the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GraphSupport {
    /// None.
    #[default]
    Never,
    /// Uniform decodes with one token for each sequence.
    UniformSingleToken,
    /// Uniform decodes with any number of tokens for each sequence.
    UniformBatch,
    /// All.
    Always,
}

#[cfg(test)]
mod tests {
    use super::RunMode::{Full, FullAndPiecewise, FullDecodeOnly, None, Piecewise};
    use super::*;

    #[test]
    fn names_are_read_back() {
        for mode in RunMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
            assert_eq!(mode.to_string().to_uppercase().parse(), Ok(mode));
        }
        let error = "sometimes".parse::<RunMode>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("unknown run mode \"sometimes\"")
        );
        assert_eq!(RunMode::default(), Full);
    }

    #[test]
    fn modes_split_into_decode_and_mixed() {
        let table = [
            (None, None, None),
            (Piecewise, Piecewise, Piecewise),
            (Full, Full, Full),
            (FullDecodeOnly, Full, None),
            (FullAndPiecewise, Full, Piecewise),
        ];
        for (mode, decode, mixed) in table {
            assert_eq!((mode.decode_mode(), mode.mixed_mode()), (decode, mixed));
            assert_eq!(mode.is_dual(), decode != mixed);
        }
    }

    #[test]
    fn unsupported_modes_are_downgraded() {
        use GraphSupport::{Always, Never, UniformBatch, UniformSingleToken};
        // Mode, support, whether attention is split, tokens of a decode; and the resulting mode.
        let table = [
            (Full, Always, true, 1, Full),
            (Full, Always, false, 4, Full),
            (Full, UniformBatch, true, 1, FullAndPiecewise),
            (Full, UniformBatch, false, 1, FullDecodeOnly),
            (Full, UniformBatch, true, 4, FullAndPiecewise),
            (Full, UniformSingleToken, true, 1, FullAndPiecewise),
            (Full, UniformSingleToken, true, 4, Piecewise),
            (Full, UniformSingleToken, false, 4, None),
            (Full, Never, true, 1, Piecewise),
            (Full, Never, false, 1, None),
            (FullDecodeOnly, UniformBatch, false, 4, FullDecodeOnly),
            (FullDecodeOnly, UniformSingleToken, false, 1, FullDecodeOnly),
            (FullDecodeOnly, UniformSingleToken, false, 2, None),
            (FullDecodeOnly, UniformSingleToken, true, 2, Piecewise),
            (FullDecodeOnly, Never, true, 1, Piecewise),
            (FullDecodeOnly, Never, false, 1, None),
            (FullAndPiecewise, Always, true, 1, FullAndPiecewise),
            (FullAndPiecewise, Always, false, 1, FullDecodeOnly),
            (FullAndPiecewise, Never, true, 1, Piecewise),
            (FullAndPiecewise, Never, false, 1, None),
            (Piecewise, Never, true, 1, Piecewise),
            (Piecewise, Always, false, 1, None),
            (None, Always, true, 1, None),
        ];
        for (mode, support, splits, query_len, expect) in table {
            let found = mode.downgrade(support, splits, query_len);
            assert_eq!(found, expect, "{mode} {support:?} {splits} {query_len}");
        }
    }
}
