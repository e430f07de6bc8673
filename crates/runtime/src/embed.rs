//! `Embedder`: embeddings of texts, from the hidden states of a forward without a cache.

mod exported;

use crate::decoder::check_token_ids;
use crate::memory::{CacheKind, MemoryPlan, PlannedModel};
use crate::options::{MemoryLimit, RunnerOptions};
use crate::{Model, Module, RuntimeError, RuntimeErrorKind};
use backend::{Backend, CompileOptions, Runnable};
use exported::ExportedEncoder;
use graph::Value;
use import::{Artifact, Pooling};
use text::{EncodeOptions, Tokenizer};

/// The options of an [`Embedder`].
#[derive(Clone, Debug)]
pub struct EmbedOptions {
    /// How hidden states are pooled to an embedding; `None` uses the model's own pooling.
    pub pooling: Option<Pooling>,
    /// Scale embeddings to unit length.
    pub normalize: bool,
    /// Truncate texts that are too long for the model instead of returning an error.
    pub truncate: bool,
    /// The memory limit. A plan that exceeds it is refused before weights are loaded.
    pub memory: MemoryLimit,
    /// Threads and executor.
    pub compile: CompileOptions,
}

impl Default for EmbedOptions {
    fn default() -> EmbedOptions {
        EmbedOptions {
            pooling: None,
            normalize: true,
            truncate: false,
            memory: MemoryLimit::default(),
            compile: CompileOptions::default(),
        }
    }
}

/// The embedding of one text.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Its elements.
    pub values: Vec<f32>,
    /// Tokens of the text, including those that the model adds.
    pub tokens: usize,
}

/// Computes embeddings of texts with an encoder, or with a decoder that was opened for its hidden states.
///
/// ```no_run
/// # use runtime::{Embedder, EmbedOptions, Model};
/// # fn example(cpu: &dyn backend::Backend) -> Result<(), runtime::RuntimeError> {
/// let model = Model::open("all-minilm.gguf".as_ref(), None)?;
/// let mut embedder = Embedder::new(model, cpu, &EmbedOptions::default())?;
/// let found = embedder.embed(&["a cat", "a kitten"], |_| true)?.unwrap_or_default();
/// let cosine: f32 = found[0].values.iter().zip(&found[1].values).map(|(a, b)| a * b).sum();
/// # Ok(()) }
/// ```
pub struct Embedder {
    model: Model,
    forward: Forward,
    pooling: Pooling,
    normalize: bool,
    truncate: bool,
}

/// How hidden states are computed.
enum Forward {
    /// A graph of this crate, which takes several texts a step.
    Packed(Box<Runnable>),
    /// An exported graph, which takes one text.
    Exported(Box<ExportedEncoder>),
}

/// The maximum number of tokens of several texts packed into one step: enough rows for the products to run at full
/// speed, few enough that the masked scores between texts cost little.
const MAX_PACKED_TOKENS: usize = 256;
/// Steps of several texts are padded to a multiple of this, to limit the number of step lengths: each needs a plan.
const STEP_ALIGNMENT: usize = 32;

impl Embedder {
    /// Compiles a model that returns hidden states: an encoder, or a decoder opened with
    /// [`OpenOptions::hidden_states`](crate::OpenOptions). An exported encoder (ONNX, `.pt2`) takes `input_ids` and what goes with
    /// them; its hidden states are averaged unless the options state another pooling.
    ///
    /// # Errors
    /// `NoEmbedding` if it returns no hidden states, `NoTokenizer`, and a memory plan that exceeds the limit.
    pub fn new(
        model: Model,
        backend: &dyn Backend,
        options: &EmbedOptions,
    ) -> Result<Embedder, RuntimeError> {
        let artifact = model.artifact();
        let (forward, own) = match model.facts().pooling {
            Some(own) => (packed_forward(artifact, backend, options)?, own),
            None if model.facts().is_decoder() => {
                let architecture = artifact.architecture.clone();
                return Err(RuntimeErrorKind::NoEmbedding(architecture).into());
            }
            None => {
                let encoder = ExportedEncoder::new(artifact, backend, &options.compile)?;
                (Forward::Exported(Box::new(encoder)), Pooling::Mean)
            }
        };
        model.tokenizer()?;
        Ok(Embedder {
            forward,
            pooling: options.pooling.unwrap_or(own),
            normalize: options.normalize,
            truncate: options.truncate,
            model,
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// How hidden states are pooled to an embedding.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Sets whether later embeddings are scaled to unit length.
    pub fn set_normalize(&mut self, on: bool) {
        self.normalize = on;
    }

    /// Elements of an embedding.
    pub fn dimensions(&self) -> usize {
        match &self.forward {
            Forward::Packed(_) => self.model.facts().hidden_size,
            Forward::Exported(encoder) => encoder.width,
        }
    }

    /// The maximum number of tokens of a text, including those that the model adds.
    pub fn limit(&self) -> usize {
        let context = self.model.facts().context_length;
        match &self.forward {
            Forward::Packed(_) => context,
            Forward::Exported(encoder) => encoder.tokens.unwrap_or(context),
        }
    }

    /// Bytes of activations and scratch allocated now.
    pub fn arena_bytes(&self) -> usize {
        match &self.forward {
            Forward::Packed(forward) => forward.executable().arena_bytes(),
            Forward::Exported(encoder) => encoder.arena_bytes(),
        }
    }

    /// The tokens of a text, including those that the model adds. `index` is the number of the text, from 1, for the
    /// error message.
    ///
    /// # Errors
    /// `EmptyText` without tokens; `TextTooLong` if there are too many and `truncate` is not set.
    fn tokens(&self, index: usize, text: &str) -> Result<Vec<u32>, RuntimeError> {
        let (tokenizer, limit) = (self.model.tokenizer()?, self.limit());
        let mut ids = encode(tokenizer, text);
        if ids.is_empty() {
            return Err(RuntimeErrorKind::EmptyText(index).into());
        }
        if ids.len() > limit {
            if !self.truncate {
                let tokens = ids.len();
                return Err(RuntimeErrorKind::TextTooLong {
                    index,
                    tokens,
                    limit,
                }
                .into());
            }
            // A truncated text keeps its end token.
            let end = ids.last().copied().filter(|_| tokenizer.adds_eos());
            ids.truncate(limit);
            if let (Some(end), Some(last)) = (end, ids.last_mut()) {
                *last = end;
            }
        }
        Ok(ids)
    }

    /// The embeddings of texts, in order. Short texts share steps. `progress` receives the number of texts done after
    /// every step and returns false to cancel; the result is then `None`.
    pub fn embed<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: impl FnMut(usize) -> bool,
    ) -> Result<Option<Vec<Embedding>>, RuntimeError> {
        let tokens = (1..).zip(texts);
        let tokens = tokens.map(|(index, text)| self.tokens(index, text.as_ref()));
        let tokens = tokens.collect::<Result<Vec<Vec<u32>>, _>>()?;
        self.embed_tokens(&tokens, progress)
    }

    /// The embeddings of texts that are given as all their tokens, those included that the model adds, as
    /// [`embed`](Embedder::embed) has them.
    ///
    /// # Errors
    /// `UnknownToken`, `EmptyText` for a text without tokens, and `TextTooLong` for one that is longer than the model's limit.
    pub fn embed_tokens(
        &mut self,
        tokens: &[Vec<u32>],
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<Option<Vec<Embedding>>, RuntimeError> {
        let limit = self.limit();
        let tokenizer = self.model.tokenizer().map(Tokenizer::vocab_size);
        let vocab = tokenizer.unwrap_or(self.model.facts().vocab_size);
        for (index, text) in (1..).zip(tokens) {
            check_token_ids(text.iter().copied(), vocab)?;
            if text.is_empty() {
                return Err(RuntimeErrorKind::EmptyText(index).into());
            }
            if text.len() > limit {
                return Err(RuntimeErrorKind::TextTooLong {
                    index,
                    tokens: text.len(),
                    limit,
                }
                .into());
            }
        }
        let lengths: Vec<usize> = tokens.iter().map(Vec::len).collect();
        let mut found: Vec<Option<Embedding>> = vec![None; tokens.len()];
        let mut done = 0;
        let room = match self.forward {
            Forward::Packed(_) => MAX_PACKED_TOKENS.min(self.limit()),
            Forward::Exported(_) => 0,
        };
        for step in pack_texts(&lengths, room) {
            let members: Vec<&[u32]> = step.iter().map(|i| &tokens[*i][..]).collect();
            let embeddings = self.step(&members)?;
            done += step.len();
            for (i, embedding) in step.into_iter().zip(embeddings) {
                found[i] = Some(embedding);
            }
            if !progress(done) {
                return Ok(None);
            }
        }
        Ok(found.into_iter().collect())
    }

    /// One forward for several texts.
    fn step(&mut self, texts: &[&[u32]]) -> Result<Vec<Embedding>, RuntimeError> {
        let limit = self.limit();
        let forward = match &mut self.forward {
            Forward::Packed(forward) => forward,
            Forward::Exported(encoder) => {
                let hidden = texts.iter().map(|text| encoder.hidden(text));
                let hidden = hidden.collect::<Result<Vec<_>, _>>()?;
                let pooled = hidden.iter().zip(texts).map(|(rows, text)| Embedding {
                    values: self.pool(rows),
                    tokens: text.len(),
                });
                return Ok(pooled.collect());
            }
        };
        let total: usize = texts.iter().map(|text| text.len()).sum();
        let filled = match texts.len() {
            1 => total,
            _ => total.next_multiple_of(STEP_ALIGNMENT).min(limit),
        };
        let mut inputs = [(); 3].map(|()| Vec::with_capacity(filled));
        for (number, text) in (0..).zip(texts) {
            inputs[0].extend(text.iter().map(|id| *id as i32));
            inputs[1].extend(0..text.len() as i32);
            inputs[2].extend(text.iter().map(|_| number));
        }
        // Padding rows form a text of their own (number -1); their hidden states are ignored.
        for (input, filler) in inputs.iter_mut().zip([0, 0, -1]) {
            input.resize(filled, filler);
        }
        let inputs = inputs.map(|input| Value::i32([filled], input));
        let outputs = forward.run(&inputs)?;
        let hidden = outputs.first().and_then(Value::as_f32).unwrap_or_default();
        let mut rest = hidden;
        let mut embeddings = Vec::with_capacity(texts.len());
        for text in texts {
            let (own, behind) = rest.split_at(text.len() * self.dimensions());
            rest = behind;
            embeddings.push(Embedding {
                values: self.pool(own),
                tokens: text.len(),
            });
        }
        Ok(embeddings)
    }

    /// Pools the hidden states of a text, one row per token, to an embedding.
    fn pool(&self, hidden: &[f32]) -> Vec<f32> {
        let mut rows = hidden.chunks_exact(self.dimensions());
        let mut values = match self.pooling {
            Pooling::Cls => rows.next().map(<[f32]>::to_vec).unwrap_or_default(),
            Pooling::Last => rows.next_back().map(<[f32]>::to_vec).unwrap_or_default(),
            Pooling::Mean => {
                let count = rows.len() as f32;
                let mut sums = vec![0.0; self.dimensions()];
                for row in rows {
                    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                }
                sums.iter_mut().for_each(|sum| *sum /= count);
                sums
            }
        };
        if self.normalize {
            let squares: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
            let length = squares.sqrt().max(f64::from(f32::MIN_POSITIVE)) as f32;
            values.iter_mut().for_each(|x| *x /= length);
        }
        values
    }
}

/// The forward of a model that takes several texts at once, whose memory is planned first.
fn packed_forward(
    artifact: &Artifact,
    backend: &dyn Backend,
    options: &EmbedOptions,
) -> Result<Forward, RuntimeError> {
    let runner_options = RunnerOptions {
        memory: options.memory,
        compile: options.compile.clone(),
        ..RunnerOptions::default()
    };
    let planned = PlannedModel::try_from(artifact)?;
    let kind = CacheKind::Contiguous;
    let plan = MemoryPlan::new(&planned, backend, &runner_options, kind, None)?;
    plan.check(options.memory, backend)?;
    let compile = plan.applied_to(&runner_options).compile;
    let module = Module::bind(artifact, backend, &compile, None)?;
    Ok(Forward::Packed(Box::new(module.into_method("forward")?)))
}

/// Encodes a text with the BOS and EOS tokens that the model adds.
fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let options = EncodeOptions {
        bos: tokenizer.adds_bos(),
        eos: tokenizer.adds_eos(),
        special: false,
    };
    tokenizer.encode(text, options)
}

/// Groups texts of similar length into steps of at most `room` tokens; a longer text gets its own step.
fn pack_texts(lengths: &[usize], room: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|i| lengths[*i]);
    let mut steps: Vec<Vec<usize>> = vec![];
    let mut used = usize::MAX;
    for i in order {
        match steps.last_mut() {
            Some(step) if lengths[i] <= room.saturating_sub(used) => {
                step.push(i);
                used += lengths[i];
            }
            _ => {
                steps.push(vec![i]);
                used = lengths[i];
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::pack_texts;

    #[test]
    fn short_texts_share_steps_and_long_ones_do_not() {
        let none: Vec<Vec<usize>> = vec![];
        assert_eq!(pack_texts(&[], 10), none);
        assert_eq!(pack_texts(&[12], 10), [[0]]);
        assert_eq!(
            pack_texts(&[4, 11, 3, 3, 2], 8),
            [vec![4, 2, 3], vec![0], vec![1]]
        );
        assert_eq!(pack_texts(&[5, 5, 5], 10), [vec![0, 1], vec![2]]);
    }
}
