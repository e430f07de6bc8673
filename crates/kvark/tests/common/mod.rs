//! Model files and fixtures that are not checked in. A test that needs one is skipped without it and says so.
#![allow(dead_code, reason = "each test uses some of these")]

use kvark::generate::{
    BatchRunner, GenerateEvent, GenerateOptions, GenerateOutput, Sampler, SeqId, Sequence,
    SequenceHandle,
};
use kvark::speculative::Speculator;
use kvark::{Model, RuntimeError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Reports a skipped test. Writes past the test harness' capture, so that a run shows what it left out.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// The file or folder that an environment variable names.
pub(crate) fn named_by(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    if path.is_none() {
        skipped(&format!("{variable} is not set"));
    }
    path.map(PathBuf::from)
}

/// A folder of the outside fixtures: of `KVARK_FIXTURES`, or of `shared/fixtures` next to the repository.
pub(crate) fn outside_fixture(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    let folder = std::env::var_os("KVARK_FIXTURES").map_or(beside, PathBuf::from);
    let folder = folder.join(name);
    if !folder.exists() {
        skipped(&format!("{} does not exist", folder.display()));
        return None;
    }
    Some(folder)
}

/// Generations on a runner in the forms that many tests need.
pub(crate) trait GenerateForms {
    /// Generates on several sequences, each with its sampler.
    fn generate_lanes(
        &mut self,
        model: &Model,
        lanes: &mut [(SeqId, Sampler)],
        options: &GenerateOptions,
        on_event: impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> Result<Vec<GenerateOutput>, RuntimeError>;

    /// Generates on one sequence with speculation.
    fn generate_speculative(
        &mut self,
        model: &Model,
        seq: SeqId,
        prompt: &[u32],
        both: (&mut Sampler, &mut Speculator),
        options: &GenerateOptions,
        on_event: impl FnMut(GenerateEvent) -> bool,
    ) -> Result<GenerateOutput, RuntimeError>;

    /// Generates on several sequences with speculation.
    fn generate_speculative_batch(
        &mut self,
        model: &Model,
        lanes: &mut [(SeqId, Sampler, Speculator)],
        options: &GenerateOptions,
        on_event: impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> Result<Vec<GenerateOutput>, RuntimeError>;
}

impl GenerateForms for BatchRunner {
    fn generate_lanes(
        &mut self,
        model: &Model,
        lanes: &mut [(SeqId, Sampler)],
        options: &GenerateOptions,
        on_event: impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> Result<Vec<GenerateOutput>, RuntimeError> {
        let lanes = lanes.iter_mut();
        let sequences = lanes.map(|(seq, sampler)| Sequence::new(*seq, [], sampler, options));
        self.generate(model, sequences.collect(), on_event)
    }

    fn generate_speculative(
        &mut self,
        model: &Model,
        seq: SeqId,
        prompt: &[u32],
        (sampler, speculator): (&mut Sampler, &mut Speculator),
        options: &GenerateOptions,
        mut on_event: impl FnMut(GenerateEvent) -> bool,
    ) -> Result<GenerateOutput, RuntimeError> {
        let sequence = Sequence::new(seq, prompt, sampler, options);
        let sequences = vec![sequence.with_speculator(Some(speculator))];
        let outputs = self.generate(model, sequences, |_, event| on_event(event))?;
        Ok(outputs.into_iter().next().unwrap())
    }

    fn generate_speculative_batch(
        &mut self,
        model: &Model,
        lanes: &mut [(SeqId, Sampler, Speculator)],
        options: &GenerateOptions,
        on_event: impl FnMut(SeqId, GenerateEvent) -> bool,
    ) -> Result<Vec<GenerateOutput>, RuntimeError> {
        let lanes = lanes.iter_mut();
        let sequences = lanes.map(|(seq, sampler, speculator)| {
            Sequence::new(*seq, [], sampler, options).with_speculator(Some(speculator))
        });
        self.generate(model, sequences.collect(), on_event)
    }
}

/// The bits of the logits after each of these tokens.
pub(crate) fn bits<'a>(sequence: impl Into<SequenceHandle<'a>>, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut sequence = sequence.into();
    let mut next = |token: &u32| {
        assert!(sequence.feed(&[*token], &mut |_| true).unwrap());
        sequence.logits().iter().map(|x| x.to_bits()).collect()
    };
    tokens.iter().map(&mut next).collect()
}

/// A file that is removed on drop.
pub(crate) struct Temporary(pub(crate) PathBuf);

impl Temporary {
    pub(crate) fn new(name: &str) -> Temporary {
        let name = format!("kvark-test-{}-{name}", std::process::id());
        Temporary(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0).or_else(|_| std::fs::remove_dir_all(&self.0));
    }
}
