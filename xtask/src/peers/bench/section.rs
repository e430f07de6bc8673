//! What is measured: tests with the ratios that they are to reach, in sections of one tier each.

use super::peer::PeerKind;
use crate::peers::turns::Case;

/// Tests on one tier of kernels.
pub(super) struct Section {
    pub(super) title: &'static str,
    /// The tier to force; otherwise kvark takes the best one that it may.
    pub(super) tier: Option<String>,
    pub(super) files: Files,
    pub(super) peer: PeerKind,
    pub(super) tests: Vec<Test>,
}

/// Models that a section measures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Files {
    /// The one model of the comparison.
    Main,
    /// Each of the others.
    Also,
    /// The first of the others: a model of a billion parameters and more.
    Large,
}

/// A row of a table.
#[derive(Clone)]
pub(super) struct Test {
    pub(super) comparison: Comparison,
    /// How keys and values are stored.
    pub(super) cache: String,
    /// The ratio to reach, or to stay under where rows are compared.
    pub(super) wanted: Option<f64>,
}

/// Quantity that a row compares.
#[derive(Clone, Copy)]
pub(super) enum Comparison {
    /// The speed of kvark with that of the peer.
    Speed(Case),
    /// The time of a step of several rows with that of one row, both of kvark.
    Rows { rows: usize, threads: usize },
}

/// The share of the measured read bandwidth that decode is to reach where a ratio is wanted of it.
pub(super) const WANTED_READ_SHARE: f64 = 0.6;

impl Test {
    pub(super) fn speed(case: Case) -> Test {
        Test {
            comparison: Comparison::Speed(case),
            cache: "f16".to_owned(),
            wanted: None,
        }
    }

    /// The test with keys and values stored in another type.
    pub(super) fn kv(self, cache: &str) -> Test {
        let cache = cache.to_owned();
        Test { cache, ..self }
    }

    fn wanted(self, ratio: f64) -> Test {
        let wanted = Some(ratio);
        Test { wanted, ..self }
    }

    pub(super) fn threads(&self) -> usize {
        match self.comparison {
            Comparison::Speed(case) => case.threads,
            Comparison::Rows { threads, .. } => threads,
        }
    }

    /// Whether tokens are generated one by one.
    pub(super) fn decodes(&self) -> bool {
        matches!(self.comparison, Comparison::Speed(case) if case.kind == "tg")
    }

    pub(super) fn name(&self) -> String {
        let name = match self.comparison {
            Comparison::Speed(case) => case.name(),
            Comparison::Rows { rows, .. } => format!("{rows} rows against 1"),
        };
        match &self.cache[..] {
            "f16" => name,
            cache => format!("{name}, KV in {cache}"),
        }
    }

    /// Whether a ratio reaches its target; true if there is none.
    pub(super) fn is_met_by(&self, ratio: f64) -> bool {
        self.wanted.is_none_or(|wanted| match self.comparison {
            Comparison::Speed(_) => ratio >= wanted,
            Comparison::Rows { .. } => ratio <= wanted,
        })
    }
}

/// The tests of the project's record, with its targets.
pub(super) fn record() -> Vec<Section> {
    let (one, two) = (ThreadedTests { threads: 1 }, ThreadedTests { threads: 2 });
    let section = |title, tier: Option<&str>, files, tests| Section {
        title,
        tier: tier.map(str::to_owned),
        files,
        peer: PeerKind::Llama,
        tests,
    };
    let (main, large) = (Files::Main, Files::Large);
    // Few rows on tiles: batches, branches, verification and short prompts.
    let few = [two.rows(8).wanted(1.5), two.rows(16).wanted(1.9)];
    let with_few = |tests: &[Test]| [tests, &few[..]].concat();
    vec![
        section(
            "Matrix tiles",
            Some("amx"),
            main,
            with_few(&[
                two.prompt(512).wanted(14.0),
                two.prompt(2048).wanted(10.0),
                two.text(0),
                two.text(4096),
            ]),
        ),
        section(
            "AVX-512 with VNNI, no tiles",
            Some("avx512vnni"),
            main,
            vec![
                two.prompt(512).wanted(4.0),
                two.text(0).wanted(2.5),
                two.rows(8).wanted(1.9),
            ],
        ),
        section(
            "AVX2 only, on both sides",
            Some("avx2"),
            main,
            vec![two.prompt(512).wanted(1.5), two.text(0).wanted(1.5)],
        ),
        section(
            "Other lengths and storages",
            None,
            main,
            vec![two.prompt(128), two.text(512), two.text(2048).kv("q8")],
        ),
        section("One thread", None, main, vec![one.prompt(512), one.text(0)]),
        section(
            "A large model, matrix tiles",
            Some("amx"),
            large,
            with_few(&[
                two.prompt(256).wanted(6.0),
                two.prompt(512).wanted(6.0),
                two.text(0),
                two.text(2048),
            ]),
        ),
        section(
            "A large model, AVX-512 with VNNI, no tiles",
            Some("avx512vnni"),
            large,
            vec![two.prompt(256).wanted(3.0)],
        ),
        section(
            "A large model, AVX2 only, on both sides",
            Some("avx2"),
            large,
            vec![two.prompt(256).wanted(1.5)],
        ),
        Section {
            peer: PeerKind::Openvino,
            ..section(
                "A large model beside OpenVINO GenAI",
                None,
                large,
                vec![two.prompt(256).wanted(1.4), two.prompt(512).wanted(1.4)],
            )
        },
        section(
            "Other files",
            None,
            Files::Also,
            with_few(&[two.prompt(512), two.text(0).wanted(1.5)]),
        ),
    ]
}

/// Makes tests that run on a number of threads.
#[derive(Clone, Copy)]
struct ThreadedTests {
    threads: usize,
}

impl ThreadedTests {
    fn prompt(self, n: usize) -> Test {
        self.speed("pp", n, 0)
    }

    /// Tokens one by one after a context.
    fn text(self, depth: usize) -> Test {
        self.speed("tg", 64, depth)
    }

    fn speed(self, kind: &'static str, n: usize, depth: usize) -> Test {
        let threads = self.threads;
        Test::speed(Case {
            kind,
            n,
            depth,
            threads,
        })
    }

    fn rows(self, rows: usize) -> Test {
        let threads = self.threads;
        let comparison = Comparison::Rows { rows, threads };
        Test {
            comparison,
            ..self.prompt(rows)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_to_stay_under_what_speeds_are_to_reach() {
        let two = ThreadedTests { threads: 2 };
        assert!(two.text(0).wanted(3.0).is_met_by(3.0));
        assert!(!two.text(0).wanted(3.0).is_met_by(2.9));
        assert!(two.rows(8).wanted(1.4).is_met_by(1.3));
        assert!(!two.rows(8).wanted(1.4).is_met_by(1.5));
        assert!(two.prompt(128).is_met_by(0.1));
    }

    #[test]
    fn a_row_names_its_storage_unless_it_is_the_usual_one() {
        let two = ThreadedTests { threads: 2 };
        assert_eq!(two.text(4096).name(), "tg64@d4096");
        assert_eq!(two.text(4096).kv("q8").name(), "tg64@d4096, KV in q8");
        assert_eq!(two.rows(8).name(), "8 rows against 1");
    }
}
