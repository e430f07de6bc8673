//! From text or a conversation to the tokens a model continues.

use anyhow::Result;
use kvark::{EncodeOptions, Message, Model};

/// The tokens of a plain text, with BOS where the model wants it.
pub(crate) fn plain(model: &Model, text: &str) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer()?;
    let options = EncodeOptions {
        bos: tokenizer.adds_bos(),
        ..Default::default()
    };
    Ok(tokenizer.encode(text, options))
}

/// The tokens of a conversation up to where the assistant begins to speak.
pub(crate) fn chat(model: &Model, messages: &[Message]) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer()?;
    let rendered = model.template()?.render(messages, true)?;
    let options = EncodeOptions {
        special: true,
        ..Default::default()
    };
    let mut tokens = tokenizer.encode(&rendered, options);
    // Most templates write BOS themselves.
    if let Some(bos) = tokenizer.bos()
        && tokenizer.adds_bos()
        && tokens.first() != Some(&bos)
    {
        tokens.insert(0, bos);
    }
    Ok(tokens)
}

/// Tokens that come before the first turn of every conversation with these first messages.
pub(crate) fn preamble(model: &Model, messages: &[Message]) -> Result<usize> {
    let with = |text: &str| {
        let first = [Message::new("user", text)];
        chat(model, &[messages, &first].concat())
    };
    Ok(common(&with("a")?, &with("b")?))
}

/// Length of the common beginning.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
