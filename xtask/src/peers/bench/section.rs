//! What is measured: tests with the ratios that they are to reach, in sections of one tier each.

use super::peer::PeerKind;
use crate::peers::turns::Case;

/// Tests on one tier of kernels.
pub(super) struct Section {
    pub(super) title: &'static str,
    /// The tier to force; otherwise kvark takes the best one that it may.
    pub(super) tier: Option<String>,
    pub(super) files: Files,
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
    /// The others without the first.
    Others,
}

/// A row of a table.
#[derive(Clone)]
pub(super) struct Test {
    pub(super) comparison: Comparison,
    /// How keys and values are stored.
    pub(super) cache: String,
    /// The ratios to reach, or to stay under where rows are compared.
    pub(super) wanted: Vec<Wanted>,
}

/// A ratio to reach.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Wanted {
    pub(super) ratio: f64,
    /// The peer whose better configuration it is taken to; otherwise the best of all peers.
    pub(super) peer: Option<PeerKind>,
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
            wanted: Vec::new(),
        }
    }

    /// The test with keys and values stored in another type.
    pub(super) fn kv(self, cache: &str) -> Test {
        let cache = cache.to_owned();
        Test { cache, ..self }
    }

    /// The test with a ratio to the best peer.
    fn wanted(mut self, ratio: f64) -> Test {
        self.wanted.push(Wanted { ratio, peer: None });
        self
    }

    /// The test with a ratio to one peer.
    fn wanted_of(mut self, peer: PeerKind, ratio: f64) -> Test {
        let peer = Some(peer);
        self.wanted.push(Wanted { ratio, peer });
        self
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

    /// Whether a ratio reaches a target of this test.
    pub(super) fn is_met_by(&self, wanted: Wanted, ratio: f64) -> bool {
        match self.comparison {
            Comparison::Speed(_) => ratio >= wanted.ratio,
            Comparison::Rows { .. } => ratio <= wanted.ratio,
        }
    }
}

/// The tests of the project's record, with its targets. The model of the comparison is SmolLM2 in Q4_1, the first of the others
/// Qwen2.5-1.5B in Q4_K_M.
pub(super) fn record() -> Vec<Section> {
    let (one, two) = (ThreadedTests { threads: 1 }, ThreadedTests { threads: 2 });
    let section = |title, tier: Option<&str>, files, tests| Section {
        title,
        tier: tier.map(str::to_owned),
        files,
        tests,
    };
    let (main, large) = (Files::Main, Files::Large);
    let (llama, openvino) = (PeerKind::Llama, PeerKind::Openvino);
    // Few rows: batches, branches, verification and short prompts.
    let few = [
        two.rows(8).wanted(1.5),
        two.rows(16).wanted(2.0),
        two.rows(32).wanted(2.6),
    ];
    let with_few = |tests: &[Test]| [tests, &few[..]].concat();
    // A prompt, an answer, and answers behind long contexts.
    let texts = DEPTHS.map(|depth| two.text(depth).wanted(1.0));
    let with_texts = |tests: &[Test]| [tests, &texts[..]].concat();
    let prompts = |set: &dyn Fn(Test) -> Test| [256, 512].map(|n| set(two.prompt(n)));
    vec![
        section(
            "Matrix tiles",
            Some("amx"),
            main,
            with_few(&with_texts(&[
                two.prompt(512).wanted_of(llama, 14.0),
                two.prompt(2048),
            ])),
        ),
        section(
            "AVX-512 with VNNI, no tiles",
            Some("avx512vnni"),
            main,
            with_few(&with_texts(&[two.prompt(512).wanted_of(llama, 9.0)])),
        ),
        section(
            "AVX2 only, on all sides",
            Some("avx2"),
            main,
            with_texts(&[two.prompt(512).wanted_of(llama, 3.5)]),
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
            with_few(&with_texts(&prompts(&|test| {
                test.wanted_of(openvino, 1.5).wanted_of(llama, 3.5)
            }))),
        ),
        section(
            "A large model, AVX-512 with VNNI, no tiles",
            Some("avx512vnni"),
            large,
            with_few(&with_texts(&prompts(&|test| test.wanted(2.0)))),
        ),
        section(
            "A large model, AVX2 only, on all sides",
            Some("avx2"),
            large,
            with_texts(&prompts(&|test| test.wanted(1.5))),
        ),
        section(
            "Other files",
            None,
            Files::Others,
            with_few(&with_texts(&[two.prompt(512)])),
        ),
    ]
}

/// The contexts behind which the record generates tokens.
const DEPTHS: [usize; 3] = [0, 4096, 16384];

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
        let met = |test: Test, ratio| test.is_met_by(test.wanted[0], ratio);
        assert!(met(two.text(0).wanted(3.0), 3.0));
        assert!(!met(two.text(0).wanted(3.0), 2.9));
        assert!(met(two.rows(8).wanted(1.4), 1.3));
        assert!(!met(two.rows(8).wanted(1.4), 1.5));
    }

    /// Every tier that has tests of a large model has the depths of the record.
    #[test]
    fn the_record_generates_behind_long_contexts() {
        for section in record().iter().filter(|section| section.tier.is_some()) {
            let names: Vec<String> = section.tests.iter().map(Test::name).collect();
            for name in ["tg64", "tg64@d4096", "tg64@d16384"] {
                assert!(
                    names.iter().any(|n| n == name),
                    "{}: {names:?}",
                    section.title
                );
            }
        }
    }

    #[test]
    fn a_row_names_its_storage_unless_it_is_the_usual_one() {
        let two = ThreadedTests { threads: 2 };
        assert_eq!(two.text(4096).name(), "tg64@d4096");
        assert_eq!(two.text(4096).kv("q8").name(), "tg64@d4096, KV in q8");
        assert_eq!(two.rows(8).name(), "8 rows against 1");
    }
}
