use super::super::peer::{About, PeerKind};
use super::super::row::tests::row;
use super::super::section::record;
use super::*;

/// A part of the second section of the record, a prompt, a text and rows, beside llama.cpp and mistral.rs.
fn document(kvark: [f64; 3], prompt: [Option<f64>; 3], text: f64) -> String {
    let section = record().swap_remove(1);
    let kinds = [PeerKind::Llama, PeerKind::Llama, PeerKind::MistralRs];
    let names = ["pp512", "tg64", "8 rows against 1"];
    let tests = section.tests.into_iter();
    let tests: Vec<_> = tests
        .filter(|test| names.contains(&&test.name()[..]))
        .collect();
    assert_eq!(tests.len(), 3);
    let texts = [Some(text), Some(text / 2.0), None];
    let speeds = [prompt, texts, [None; 3]];
    let rows = tests.into_iter().zip(kvark).zip(speeds);
    let rows = rows.map(|((test, kvark), speeds)| {
        let peers: Vec<_> = kinds.into_iter().zip(speeds).collect();
        row(test, kvark, &peers)
    });
    let configurations = [PeerKind::Llama, PeerKind::MistralRs]
        .into_iter()
        .flat_map(PeerKind::configurations);
    let peers = configurations.map(|configuration| About {
        configuration,
        cache: "f16".to_owned(),
        version: "a version".to_owned(),
        build: "AVX2".to_owned(),
        weights: "Q4_1".to_owned(),
        waited: 10.0,
        busy: 1.0,
    });
    let table = Table {
        title: section.title,
        file: "model.gguf".to_owned(),
        isa: "avx512vnni".to_owned(),
        rows: rows.collect(),
        peers: peers.collect(),
    };
    let record = Record {
        tables: vec![table],
        left_out: vec![("Other files".to_owned(), "no file".to_owned())],
        rounds: 1,
        cpu: "a CPU".to_owned(),
        kvark_version: "kvark 1".to_owned(),
        precision: Some("balanced".to_owned()),
    };
    record.json().to_string() + "\n" + &record.markdown()
}

#[test]
fn a_row_names_its_best_peer_and_what_it_missed() {
    let text = document([600.0, 50.0, 800.0], [Some(50.0), Some(100.0), None], 100.0);
    for line in [
        "## AVX-512 with VNNI, no tiles: model.gguf (Q4_1), avx512vnni kernels",
        "| test | threads | kvark | llama.cpp --repack 0 | llama.cpp --repack 1 | mistral.rs | best peer | ratio | target \
         | ratio, least to most | of the read bandwidth |",
        "|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|",
        "| pp512 | 2 | 600.0 | 50.0 | 100.0 | – | llama.cpp --repack 1 | 6.00 | ≥ 9 × llama.cpp: 6.00 (missed) | 6.00 to 6.00 |  |",
        "| tg64 | 2 | 50.0 | 100.0 | 50.0 | – | llama.cpp --repack 0 | 0.50 | ≥ 1 (missed) | 0.50 to 0.50 | 25 % (missed) |",
        "| 8 rows against 1 | 2 | 10.00 and 5.00 ms a step |  |  |  |  | 2.00 | ≤ 1.5 (missed) | 2.00 to 2.00 |  |",
        "- the probe reads 20.0 GB/s on 2 threads, 20.0 to 20.0",
        "- tg64: 1 times the best peer are 100 tokens/s of 100.0 MB each, 10.0 GB/s: 50 % of what the probe reads",
        "- kvark's precision: balanced",
        "- llama.cpp beside avx512vnni: a version, built for AVX2",
        "- Other files: no file",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line}\nis not in\n{text}"
        );
    }
    assert!(text.contains(r#""best":"llama.cpp --repack 1""#), "{text}");
}

#[test]
fn won_rows_are_not_marked() {
    let text = document([2000.0, 180.0, 1200.0], [Some(200.0), None, None], 60.0);
    assert!(
        !text.contains("missed") && !text.contains("times the best peer"),
        "{text}"
    );
}

#[test]
fn a_row_without_a_peer_has_no_ratio() {
    let text = document([2000.0, 180.0, 1200.0], [None; 3], 60.0);
    let line = "| pp512 | 2 | 2000.0 | – | – | – | none |  | ≥ 9 × llama.cpp: – |  |  |";
    assert!(text.lines().any(|found| found == line), "{text}");
}
