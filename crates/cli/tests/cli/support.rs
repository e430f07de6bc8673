//! Runs the command and creates model files for it.

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The output of a run of the command.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Stdout of a successful run.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// The one JSON object that is all of stdout.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let text = self.ok();
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value.is_object(), "{text}");
        value
    }

    /// The one line of stderr of a run that failed with code 1 and an empty stdout.
    #[track_caller]
    pub(crate) fn error(self) -> String {
        assert_eq!((self.code, &*self.stdout), (Some(1), ""), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        self.stderr
    }
}

/// A folder that is removed on drop, with a `KVARK_HOME` in it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kvark-cli-{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Puts a link to the default model where `kvark pull` would put it.
    #[cfg(unix)]
    pub(crate) fn link_default_model(&self, model: &str) {
        let home = kvark::catalogue::ModelStore::at(self.path("home"));
        let place = home.model_path(kvark::catalogue::default_entry());
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(fs::canonicalize(model).unwrap(), place).unwrap();
    }

    /// The command, without the tester's environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvark"));
        command
            .args(args)
            .env("KVARK_HOME", self.path("home"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env_remove("KVARK_CONFIG")
            .env("OLLAMA_MODELS", self.path("ollama"))
            .env("HF_HOME", self.path("huggingface"))
            .env_remove("HF_TOKEN")
            .env_remove("HF_TOKEN_PATH")
            .env_remove("HF_ENDPOINT")
            .env_remove("KVARK_ISA")
            .env_remove("KVARK_PASSES")
            .env_remove("KVARK_PYTHON")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        finish(&mut self.command(args), "")
    }

    pub(crate) fn run_with_input(&self, args: &[&str], input: &str) -> Output {
        finish(&mut self.command(args), input)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a command to its end on this input.
pub(crate) fn finish(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A tiny model of 64 tokens and 64 positions that has no tokenizer.
pub(crate) fn bare_model() -> Vec<u8> {
    let path = "../import/tests/fixtures/decoder/llama_plain.gguf";
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The tokens that [`model`] has: three special ones, letters and signs.
pub(crate) fn tokens() -> Vec<String> {
    let special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(String::from);
    let letters = ('a'..='z').chain('A'..='Z').map(String::from);
    let signs = ["Ġ", "Ċ", "!", ".", ",", "?", "'", "ab", "Ã"].map(String::from);
    let tokens: Vec<String> = special.into_iter().chain(letters).chain(signs).collect();
    assert_eq!(tokens.len(), 64);
    tokens
}

/// A ChatML template, for [`model`].
const TEMPLATE: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// The same model with a byte-level tokenizer and a chat template.
pub(crate) fn model() -> Vec<u8> {
    model_with_template(Some(TEMPLATE))
}

/// The same model with a byte-level tokenizer, and with this chat template or none.
pub(crate) fn model_with_template(template: Option<&str>) -> Vec<u8> {
    let text = |text: &str| {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes
    };
    let string = |key: &str, value: &str| [text(key), vec![8, 0, 0, 0], text(value)].concat();
    let array = |key: &str, kind: u32, items: Vec<Vec<u8>>| {
        let head = [9u32.to_le_bytes(), kind.to_le_bytes()].concat();
        let len = (items.len() as u64).to_le_bytes().to_vec();
        [text(key), head, len, items.concat()].concat()
    };
    let id = |key: &str, id: u32| [text(key), vec![4, 0, 0, 0], id.to_le_bytes().to_vec()].concat();
    let kinds = (0..64).map(|id| (if id < 3 { 3i32 } else { 1 }).to_le_bytes().to_vec());
    let mut entries = vec![
        string("tokenizer.ggml.model", "gpt2"),
        string("tokenizer.ggml.pre", "gpt-2"),
        array(
            "tokenizer.ggml.tokens",
            8,
            tokens().iter().map(|t| text(t)).collect(),
        ),
        array("tokenizer.ggml.token_type", 5, kinds.collect()),
        array("tokenizer.ggml.merges", 8, vec![text("a b")]),
        id("tokenizer.ggml.bos_token_id", 1),
        id("tokenizer.ggml.eos_token_id", 2),
    ];
    entries.extend(template.map(|source| string("tokenizer.chat_template", source)));
    // The data after it must stay aligned.
    let len = entries.concat().len() + string("test.padding", "").len();
    entries.push(string(
        "test.padding",
        &" ".repeat(len.next_multiple_of(32) - len),
    ));

    let mut bytes = bare_model();
    let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + entries.len() as u64;
    bytes[16..24].copy_from_slice(&count.to_le_bytes());
    bytes.splice(24..24, entries.concat());
    bytes
}

/// The end of the first occurrence of `needle`.
pub(crate) fn end_of(bytes: &[u8], needle: &[u8]) -> usize {
    let at = bytes.windows(needle.len()).position(|w| w == needle);
    at.expect("is in the file") + needle.len()
}

/// The model with an unknown architecture.
pub(crate) fn unknown_architecture() -> Vec<u8> {
    let mut bytes = bare_model();
    // After the key: the value's type, its length, its text.
    let at = end_of(&bytes, b"general.architecture") + 4 + 8;
    bytes[at..at + 5].copy_from_slice(b"lmaoa");
    bytes
}

/// The model with a tensor of a type that kvark does not read.
pub(crate) fn unknown_tensor_type() -> Vec<u8> {
    let mut bytes = bare_model();
    // After the name: the number of dimensions, the dimensions, the type.
    let at = end_of(&bytes, b"blk.0.attn_q.weight") + 4 + 2 * 8;
    bytes[at..at + 4].copy_from_slice(&16u32.to_le_bytes());
    bytes
}
