//! Emitted tokenizers give the ids and texts of `text::Tokenizer`.

#[allow(dead_code, reason = "each test file uses a part")]
#[path = "../../../text/tests/real/gguf.rs"]
mod gguf;
mod texts;
mod vocabularies;

use emit::TokenizerProgram;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use text::{EncodeOptions, SplitStage, Tokenizer, Vocab};

const DRIVER: &str = include_str!("driver.c");
const NOT_UTF8: i32 = -3;
const TOO_LONG: i32 = -2;
const MAX_TEXT: usize = 65536;

/// Whether there is a C compiler; says so if there is none.
fn has_compiler() -> bool {
    let found = Command::new("cc").arg("--version").output();
    let there = found.is_ok_and(|output| output.status.success());
    if !there {
        let _ = writeln!(std::io::stderr(), "skipped: there is no C compiler cc");
    }
    there
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("kvark-emit-tokenizer-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes and compiles a tokenizer with the driver.
#[track_caller]
fn compile(program: &TokenizerProgram, folder: &Path, flags: &[&str]) -> PathBuf {
    std::fs::write(folder.join("tokenizer.h"), program.header()).unwrap();
    std::fs::write(folder.join("tokenizer.c"), program.source()).unwrap();
    std::fs::write(folder.join("tokenizer.bin"), program.tables()).unwrap();
    std::fs::write(folder.join("driver.c"), DRIVER).unwrap();
    let output = Command::new("cc")
        .current_dir(folder)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(flags)
        .args(["driver.c", "tokenizer.c", "-o", "driver"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    folder.join("driver")
}

/// A request to the driver.
enum Request {
    Encode(Vec<u8>, EncodeOptions),
    Decode(Vec<i32>, bool),
    Flags(i32),
}

/// The driver's answers: a result and bytes for each request.
#[track_caller]
fn ask(program: &Path, requests: &[Request]) -> Vec<(i32, Vec<u8>)> {
    let mut input = Vec::new();
    for request in requests {
        let (kind, flags, bytes) = match request {
            Request::Encode(text, options) => {
                let flags = [options.bos, options.eos, options.special];
                let bits = (0..).zip(flags).map(|(bit, flag)| u32::from(flag) << bit);
                (0u32, bits.sum(), text.clone())
            }
            Request::Decode(ids, special) => {
                let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                (1, u32::from(*special), bytes)
            }
            Request::Flags(id) => (2, *id as u32, vec![]),
        };
        for number in [kind, flags, bytes.len() as u32] {
            input.extend(number.to_le_bytes());
        }
        input.extend(bytes);
    }
    let mut child = Command::new(program)
        .current_dir(program.parent().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || to.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.is_empty(),
        "{:?}: {said}",
        output.status
    );
    let mut rest = &output.stdout[..];
    let mut answers = Vec::new();
    for request in requests {
        let (result, more) = rest
            .split_first_chunk::<4>()
            .expect("an answer to each request");
        let result = i32::from_le_bytes(*result);
        let size = match request {
            Request::Encode(..) => 4 * result.max(0) as usize,
            Request::Decode(..) => result.max(0) as usize,
            Request::Flags(_) => 0,
        };
        let (bytes, more) = more.split_at(size);
        answers.push((result, bytes.to_vec()));
        rest = more;
    }
    assert!(rest.is_empty());
    answers
}

/// Compares a compiled tokenizer with kvark's for requests.
#[track_caller]
fn compare(name: &str, program: &Path, tokenizer: &Tokenizer, requests: &[Request]) {
    let answers = ask(program, requests);
    for (request, (result, bytes)) in requests.iter().zip(&answers) {
        match request {
            Request::Encode(text, options) => {
                let Ok(text) = std::str::from_utf8(text) else {
                    assert_eq!(*result, NOT_UTF8, "{name} {text:?}");
                    continue;
                };
                if text.len() > MAX_TEXT {
                    assert_eq!(*result, TOO_LONG, "{name}");
                    continue;
                }
                let words = bytes.as_chunks::<4>().0.iter();
                let found: Vec<u32> = words.map(|four| u32::from_le_bytes(*four)).collect();
                let want = tokenizer.encode(text, *options);
                assert!(found == want, "{name} {text:?}\n{found:?}\n{want:?}");
                assert_eq!(*result, want.len() as i32);
            }
            Request::Decode(ids, special) => {
                let known: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
                let want = tokenizer.decode_bytes(&known, *special);
                assert!(*bytes == want, "{name} {ids:?}: {bytes:?} is not {want:?}");
                assert_eq!(*result, want.len() as i32);
            }
            Request::Flags(id) => {
                let id = *id as u32;
                let hidden = tokenizer.kind(id).is_some_and(|kind| kind.is_hidden());
                let there = tokenizer.token_bytes(id).is_some();
                let bits = i32::from(hidden) | i32::from(tokenizer.is_eog(id)) << 1;
                assert_eq!(*result, bits | i32::from(there) << 2, "{name} {id}");
            }
        }
    }
}

const ALL: EncodeOptions = EncodeOptions {
    bos: true,
    eos: true,
    special: true,
};

/// Texts with both kinds of options, their ids decoded, random ids, and the flags of tokens.
fn requests(tokenizer: &Tokenizer, texts: &[String]) -> Vec<Request> {
    let mut requests = Vec::new();
    for text in texts {
        for options in [EncodeOptions::default(), ALL] {
            requests.push(Request::Encode(text.clone().into_bytes(), options));
        }
        let ids = tokenizer.encode(text, ALL);
        let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        requests.push(Request::Decode(ids.clone(), true));
        requests.push(Request::Decode(ids, false));
    }
    let mut noise = texts::Noise(3);
    let vocab = tokenizer.vocab_size();
    for i in 0..400 {
        let ids = (0..8).map(|_| noise.below(vocab + 3) as i32 - 1).collect();
        requests.push(Request::Decode(ids, i % 2 == 0));
        requests.push(Request::Flags(noise.below(vocab + 3) as i32 - 1));
    }
    requests
}

fn built(vocab: &Vocab) -> (Tokenizer, TokenizerProgram) {
    let tokenizer = Tokenizer::new(vocab.clone()).unwrap();
    let program = TokenizerProgram::new(&tokenizer, "a test").unwrap();
    (tokenizer, program)
}

#[test]
fn committed_vocabularies_are_the_same_and_sanitizers_find_nothing() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::new("committed");
    let all = vocabularies::committed();
    assert!(vocabularies::have_every_algorithm(&all));
    let mut texts = texts::texts(600);
    // Every pattern reads a run of spaces once, not from each of its characters.
    texts.push(format!("{}x", " ".repeat(60_000)));
    for (name, vocab) in &all {
        let (tokenizer, program) = built(vocab);
        let flags = [
            "-O1",
            "-g",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
        ];
        let compiled = compile(&program, &folder.0, &flags);
        compare(name, &compiled, &tokenizer, &requests(&tokenizer, &texts));
    }
}

#[test]
fn real_vocabularies_are_the_same() {
    if !has_compiler() {
        return;
    }
    let all = vocabularies::real();
    if all.is_empty() {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: no vocabularies (set KVARK_FIXTURES or KVARK_TEST_MODEL)"
        );
        return;
    }
    let folder = Folder::new("real");
    let mut texts = texts::texts(3000);
    texts.extend(texts::all_characters());
    texts.push("a b".repeat(20_000));
    texts.push("x".repeat(MAX_TEXT + 1));
    for (name, vocab) in &all {
        let (tokenizer, program) = built(vocab);
        let compiled = compile(&program, &folder.0, &["-O2"]);
        let mut requests = requests(&tokenizer, &texts);
        let bytes = texts::byte_texts(3000).into_iter();
        requests.extend(bytes.map(|text| Request::Encode(text, ALL)));
        compare(name, &compiled, &tokenizer, &requests);
    }
}

#[test]
fn tables_are_deterministic() {
    for (name, vocab) in vocabularies::committed().iter().take(9) {
        let ((_, first), (_, second)) = (built(vocab), built(vocab));
        assert!(first.tables() == second.tables(), "{name}");
        assert_eq!(first.header(), second.header(), "{name}");
        assert_eq!(first.source(), second.source(), "{name}");
    }
}

#[test]
fn a_pattern_without_an_automaton_is_named() {
    let all = vocabularies::committed();
    let (_, gpt2) = all.iter().find(|(name, _)| name == "gpt2").unwrap();
    let stage = SplitStage {
        pattern: r"^\p{L}+".to_owned(),
        splits_last_space: false,
    };
    let vocab = Vocab {
        split_stages: vec![stage],
        ..gpt2.clone()
    };
    let tokenizer = Tokenizer::new(vocab).unwrap();
    let error = TokenizerProgram::new(&tokenizer, "a test").err().unwrap();
    let said = error.to_string();
    let start = r"the tokenizer cannot be emitted: the pattern `^\p{L}+` has no automaton";
    assert!(said.starts_with(start), "{said}");
}
