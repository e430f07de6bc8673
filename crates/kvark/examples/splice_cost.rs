//! Measures the cost of an approximate edit: tokens are removed from the middle of a text, the rows of those after them are moved, and the
//! log-probabilities of the next tokens are compared with those after a computed cache.
//!
//! ```sh
//! cargo run --release -p kvark --example splice_cost -- path/to/model.gguf path/to/text.txt
//! ```

use kvark::generate::BatchRunner;
use kvark::prelude::*;
use std::io::Write;
use std::time::Instant;

type Error = Box<dyn std::error::Error>;

/// Tokens before the edit, tokens that it removes, tokens after it, and tokens that are scored behind those.
const PARTS: [usize; 4] = [400, 200, 600, 100];

/// The log-probabilities of tokens, fed one after the other.
fn score(runner: &mut BatchRunner, tokens: &[u32]) -> Result<Vec<f64>, Error> {
    let mut scores = vec![];
    for token in tokens {
        let logits = runner.logits(0);
        let most = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
        scores.push(f64::from(logits[*token as usize] - most) - sum.ln());
        runner.sequence(0).feed(&[*token], |_| true)?;
    }
    Ok(scores)
}

fn main() -> Result<(), Error> {
    let mut out = std::io::stdout();
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(text)) = (arguments.next(), arguments.next()) else {
        return Err("usage: splice_cost MODEL TEXT".into());
    };
    let model = Model::open(path.as_ref(), None)?;
    let text = std::fs::read_to_string(text)?;
    let tokens = model.tokenizer()?.encode(&text, Default::default());
    let [before, removed, after, scored] = PARTS;
    let needed = PARTS.iter().sum::<usize>() + 1;
    if tokens.len() < needed {
        return Err(format!("the text has {} tokens, {needed} are needed", tokens.len()).into());
    }
    let (old, rest) = tokens.split_at(before + removed + after);
    let new = [&old[..before], &old[before + removed..]].concat();
    let options = RunnerOptions {
        context: Some(2048),
        ..RunnerOptions::default()
    };
    let start = |tokens: &[u32]| -> Result<BatchRunner, Error> {
        let mut runner = BatchRunner::new(&model, &Cpu::new()?, &options)?;
        runner.sequence(0).feed(tokens, |_| true)?;
        Ok(runner)
    };
    // The first token behind the edited text is fed in both, for its logits.
    let (first, rest) = (&rest[..1], &rest[1..=scored]);
    let began = Instant::now();
    let mut exact = start(&new)?;
    let computing = began.elapsed().as_secs_f64();
    exact.sequence(0).feed(first, |_| true)?;
    let expected = score(&mut exact, rest)?;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    writeln!(
        out,
        "{after} tokens after a cut of {removed}; computing all: {:.0} ms",
        computing * 1e3
    )?;
    writeln!(
        out,
        "share  computed  moved  milliseconds  mean |Δ log p|  nll"
    )?;
    writeln!(
        out,
        "exact {:>9} {:>6} {:>13} {:>15} {:>6.3}",
        new.len(),
        0,
        "",
        "",
        -mean(&expected)
    )?;
    for share in [0.0, 0.05, 0.15, 0.3, 0.6, 1.0] {
        let mut runner = start(old)?;
        let began = Instant::now();
        let report = runner.splice(0, &new, share, |_| true)?;
        let time = began.elapsed().as_secs_f64();
        runner.sequence(0).feed(first, |_| true)?;
        let found = score(&mut runner, rest)?;
        let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        writeln!(
            out,
            "{share:<5} {:>9} {:>6} {:>13.0} {:>15.4} {:>6.3}",
            report.computed,
            report.moved,
            time * 1e3,
            mean(&apart.collect::<Vec<_>>()),
            -mean(&found)
        )?;
    }
    Ok(())
}
