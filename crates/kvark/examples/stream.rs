//! Pulls a generation event by event. It ends at a stop string, or when the program interrupts it: here after a number of
//! sentences.
//!
//! ```sh
//! cargo run --release -p kvark --example stream -- path/to/model.gguf "Once upon a time"
//! ```

use kvark::prelude::*;
use std::io::Write;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: stream MODEL.gguf [PROMPT]")?;
    let prompt = args.next().unwrap_or("Once upon a time".to_owned());
    let model = Model::open(path.as_ref(), None)?;
    let mut out = std::io::stdout();
    let output = stream(&model, &prompt, 3, &mut out)?;
    let rate = output.timings.decode_rate().unwrap_or(0.0);
    let finish = output.finish.name();
    writeln!(
        out,
        "\n[{} tokens, {rate:.1} per second, ended by {finish}]",
        output.tokens.len()
    )?;
    Ok(())
}

/// Continues `prompt` by up to this many sentences of one paragraph, and writes the text as it is generated.
pub(crate) fn stream(
    model: &Model,
    prompt: &str,
    sentences: usize,
    out: &mut impl Write,
) -> Result<GenerateOutput, Error> {
    let tokenizer = model.tokenizer()?;
    let encode = EncodeOptions {
        bos: tokenizer.adds_bos(),
        ..Default::default()
    };
    let mut runner = Runner::new(model, &Cpu::new()?, &RunnerOptions::default())?;
    let mut sampler = Sampler::new(SamplerOptions {
        temperature: 0.0,
        ..Default::default()
    });
    let options = GenerateOptions {
        max_tokens: Some(200),
        // A stop string ends the generation and is not part of its text.
        stop: vec!["\n\n".to_owned()],
        ..Default::default()
    };
    let prompt = tokenizer.encode(prompt, encode);
    let mut left = sentences;
    let mut generator = Generator::new(&mut runner, model, &prompt, &mut sampler, &options)?;
    while let Some(event) = generator.next() {
        let GenerateEvent::Text(text) = event? else {
            continue;
        };
        write!(out, "{text}")?;
        out.flush()?;
        left = left.saturating_sub(text.matches(['.', '!', '?']).count());
        if left == 0 {
            generator.interrupt();
        }
    }
    Ok(generator.finish())
}
