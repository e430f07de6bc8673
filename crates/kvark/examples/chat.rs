//! A chat on the terminal. Each line of the input is a message, formatted with the model's own chat template.
//!
//! ```sh
//! cargo run --release -p kvark --example chat -- path/to/model.gguf
//! ```

use kvark::generate::common_prefix_len;
use kvark::prelude::*;
use std::io::{BufRead, Write};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let path = std::env::args().nth(1).ok_or("usage: chat MODEL.gguf")?;
    let model = Model::open(path.as_ref(), None)?;
    let sampling = model.default_sampling();
    chat(
        &model,
        sampling,
        std::io::stdin().lock(),
        &mut std::io::stdout(),
    )
}

/// Answers every line of `input`.
pub(crate) fn chat(
    model: &Model,
    sampling: SamplerOptions,
    input: impl BufRead,
    out: &mut impl Write,
) -> Result<(), Error> {
    let (tokenizer, template) = (model.tokenizer()?, model.chat_template()?);
    let mut runner = Runner::new(model, &Cpu::new()?, &RunnerOptions::default())?;
    let mut sampler = Sampler::new(sampling);
    let options = GenerateOptions {
        max_tokens: Some(256),
        ..Default::default()
    };
    let mut messages = vec![];
    for line in input.lines() {
        messages.push(Message::new("user", line?));
        // `prompt` marks the user's text, so that a control token written in it is read as plain text.
        let prompt = template.prompt(tokenizer, &messages, true)?;
        let tokens = tokenizer.encode_prompt(&prompt);
        // The cache holds the conversation up to the last answer: only the tokens after the common prefix are fed.
        let known = common_prefix_len(runner.tokens(), &tokens).min(tokens.len() - 1);
        runner.rewind(known)?;
        let answer =
            runner.generate(
                model,
                &tokens[known..],
                &mut sampler,
                &options,
                |event| match event {
                    GenerateEvent::Text(text) => {
                        write!(out, "{text}").and_then(|()| out.flush()).is_ok()
                    }
                    GenerateEvent::PromptProgress(_) => true,
                },
            )?;
        writeln!(out)?;
        messages.push(Message::new("assistant", answer.text));
    }
    Ok(())
}
