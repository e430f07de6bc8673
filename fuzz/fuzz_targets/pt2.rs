//! Any archive, and any program inside a sound archive: an error or a graph, never a panic.

#![no_main]

use std::io::{Cursor, Write};

use base::Bytes;
use import::pt2::{self, Pt2};
use import::{ImportError, ImportOptions};
use libfuzzer_sys::fuzz_target;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fuzz_target!(|bytes: &[u8]| {
    // The first byte says what the rest is.
    match bytes {
        [0, program @ ..] => import(&archive(program)),
        [_, file @ ..] => import(file),
        [] => {}
    }
});

fn import(bytes: &[u8]) {
    let file = match Pt2::parse(&Bytes::from(bytes)) {
        Ok(file) => file,
        Err(error) => return check_message(&error),
    };
    for program in &file.programs {
        program.ops();
        program.unknown_ops();
    }
    file.extra.architecture();
    for as_exported in [false, true] {
        let options = ImportOptions {
            as_exported,
            ..ImportOptions::default()
        };
        match pt2::lower(&file, &options) {
            Ok(model) => {
                for method in &model.methods {
                    assert!(method.graph.verify().is_ok());
                    let mut graph = method.graph.clone();
                    graph::passes::optimise(&mut graph).expect("passes keep graphs sound");
                }
            }
            Err(error) => check_message(&error),
        }
    }
}

/// Messages are made from the file's own names and numbers, yet short and harmless to print.
fn check_message(error: &ImportError) {
    let message = error.to_string();
    assert!(!message.is_empty() && !message.contains(char::is_control), "{message:?}");
    assert!(message.len() < 200_000);
}

/// A sound archive around a program, with the weights that the seeds' programs have.
fn archive(program: &[u8]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(vec![]));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let mut member = |name: &str, data: &[u8]| {
        zip.start_file(format!("fuzz/{name}"), stored).expect("a new member");
        zip.write_all(data).expect("memory takes bytes");
    };
    member("archive_format", b"pt2");
    member("byteorder", b"little");
    member("models/model.json", program);
    member("data/weights/model_weights_config.json", include_bytes!("pt2_weights.json"));
    member("data/weights/weight_0", &[1; 4096]);
    zip.finish().expect("memory takes bytes").into_inner()
}
