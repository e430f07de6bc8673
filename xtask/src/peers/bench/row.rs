//! `Row`: what was measured of a test, round by round.

use super::peer::{About, Peer, PeerKind};
use super::section::{Comparison, Test, Wanted};
use crate::peers::turns::{Case, Speed, median};
use anyhow::Result;

/// A test as measured.
pub(super) struct Row {
    pub(super) test: Test,
    pub(super) kvark: Vec<Speed>,
    /// The peers' configurations, or kvark's single row where rows are compared.
    pub(super) others: Vec<Turns>,
}

/// The measurements of a peer's configuration in a row.
pub(super) struct Turns {
    pub(super) name: String,
    /// The peer, and its place in the list of the table's peers; `None` for kvark's single row.
    peer: Option<(PeerKind, usize)>,
    /// Tokens per second.
    pub(super) speeds: Vec<f64>,
    /// Whether it could not run the test. Its measurements do not count.
    failed: bool,
}

impl Turns {
    pub(super) fn of_kvark() -> Turns {
        Turns {
            name: "one row".to_owned(),
            peer: None,
            speeds: Vec::new(),
            failed: false,
        }
    }

    pub(super) fn of_peer(index: usize, about: &About) -> Turns {
        let configuration = about.configuration;
        Turns {
            name: configuration.name(),
            peer: Some((configuration.kind, index)),
            speeds: Vec::new(),
            failed: false,
        }
    }

    /// Measures the peer, unless it has failed before.
    pub(super) fn take(&mut self, peers: &mut [Peer], case: Case) -> Result<()> {
        let Some((_, index)) = self.peer.filter(|_| !self.failed) else {
            return Ok(());
        };
        let speed = peers[index].measure(case);
        self.failed = speed.is_err();
        speed.map(|speed| self.speeds.push(speed))
    }

    /// The median, if it could run the test.
    pub(super) fn median(&self) -> Option<f64> {
        (!self.failed && !self.speeds.is_empty()).then(|| median(&self.speeds))
    }
}

impl Row {
    /// The fastest of all peers, or of one peer's configurations; kvark's single row where rows are compared.
    pub(super) fn best(&self, of: Option<PeerKind>) -> Option<&Turns> {
        let asked = |turns: &&Turns| of.is_none() || turns.peer.map(|(kind, _)| kind) == of;
        let medians = self.others.iter().filter(asked);
        let medians = medians.filter_map(|turns| Some((turns, turns.median()?)));
        let best = medians.max_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map(|(turns, _)| turns)
    }

    /// The ratios of the rounds to the best of all peers, or of one.
    pub(super) fn ratios(&self, of: Option<PeerKind>) -> Vec<f64> {
        let others = self.best(of).map_or(&[][..], |best| &best.speeds);
        let pairs = self.kvark.iter().zip(others);
        pairs
            .map(|(kvark, other)| match self.test.comparison {
                Comparison::Speed(_) => kvark.tokens_per_second / other,
                // Of times.
                Comparison::Rows { rows, .. } => rows as f64 * other / kvark.tokens_per_second,
            })
            .collect()
    }

    /// Whether a target is reached; `None` if no peer that it names could run the test.
    pub(super) fn meets(&self, wanted: Wanted) -> Option<bool> {
        let ratios = self.ratios(wanted.peer);
        (!ratios.is_empty()).then(|| self.test.is_met_by(wanted, median(&ratios)))
    }

    /// Whether no target is missed.
    pub(super) fn is_met(&self) -> bool {
        let mut wanted = self.test.wanted.iter();
        wanted.all(|wanted| self.meets(*wanted) != Some(false))
    }

    pub(super) fn median(&self, of: impl Fn(&Speed) -> f64) -> f64 {
        median(&self.kvark.iter().map(of).collect::<Vec<_>>())
    }

    /// The share of the probe's bandwidth at which kvark reads.
    pub(super) fn read_share(&self) -> f64 {
        self.median(|s| s.step_bytes * s.tokens_per_second / s.read_bytes_per_second)
    }

    /// The last round in words.
    pub(super) fn show_last(&self) -> String {
        let Some(kvark) = self.kvark.last() else {
            return format!("{}: kvark cannot run it", self.test.name());
        };
        let others = self.others.iter().filter(|turns| !turns.failed);
        let others = others.filter_map(|turns| Some((&turns.name, turns.speeds.last()?)));
        let others: String = others
            .map(|(name, speed)| format!(", {name} {speed:.1}"))
            .collect();
        format!(
            "{:<16} {} threads: kvark {:.1}{others} tokens/s",
            self.test.name(),
            self.test.threads(),
            kvark.tokens_per_second
        )
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row of one round; `None` is a peer that failed.
    pub(in super::super) fn row(test: Test, kvark: f64, peers: &[(PeerKind, Option<f64>)]) -> Row {
        let speed = Speed {
            tokens_per_second: kvark,
            step_bytes: 100e6,
            read_bytes_per_second: 20e9,
        };
        let mut seen = Vec::new();
        let others = peers.iter().enumerate().map(|(i, (kind, speed))| {
            let earlier = seen.iter().filter(|other| *other == kind).count();
            seen.push(*kind);
            Turns {
                name: kind.configurations()[earlier].name(),
                peer: Some((*kind, i)),
                speeds: speed.iter().copied().collect(),
                failed: speed.is_none(),
            }
        });
        let others = match test.comparison {
            Comparison::Rows { .. } => vec![Turns {
                speeds: vec![200.0],
                ..Turns::of_kvark()
            }],
            Comparison::Speed(_) => others.collect(),
        };
        Row {
            test,
            kvark: vec![speed],
            others,
        }
    }

    fn prompt() -> Test {
        Test::speed(Case {
            kind: "pp",
            n: 512,
            depth: 0,
            threads: 2,
        })
    }

    #[test]
    fn the_best_peer_counts() {
        use PeerKind::{IkLlama, Llama, Openvino};
        let peers = [
            (Llama, Some(100.0)),
            (Llama, Some(200.0)),
            (IkLlama, Some(400.0)),
            (Openvino, None),
        ];
        let row = row(prompt(), 800.0, &peers);
        assert_eq!(row.best(None).unwrap().name, "ik_llama.cpp");
        assert_eq!(row.ratios(None), [2.0]);
        assert_eq!(row.best(Some(Llama)).unwrap().name, "llama.cpp --repack 1");
        assert_eq!(row.ratios(Some(Llama)), [4.0]);
        assert!(row.best(Some(Openvino)).is_none());
        let wanted = |peer, ratio| row.meets(Wanted { ratio, peer });
        assert_eq!(wanted(None, 2.5), Some(false));
        assert_eq!(wanted(Some(Llama), 2.5), Some(true));
        assert_eq!(wanted(Some(Openvino), 2.5), None);
    }
}
