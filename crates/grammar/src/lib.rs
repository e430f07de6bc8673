//! Output constraints: JSON schemas, regular expressions, Lark and GBNF grammars, by llguidance.
//!
//! A [`GrammarCompiler`] belongs to a model's tokenizer. It compiles a [`GrammarSource`] once and makes a constraint for every
//! generation that asks for it.
#![forbid(unsafe_code)]

mod compile;
mod gbnf;
mod limits;
mod schema;

pub use limits::{MAX_GRAMMAR_BYTES, MAX_NESTING, MAX_RULES, MAX_SCHEMA_BYTES};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{
    InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};
use llguidance::{Matcher, ParserFactory};
use runtime::{Model, RuntimeError, TokenConstraint};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use text::{EncodeOptions, TokenKind};

/// The largest number of compiled grammars that are kept.
const MAX_COMPILED: usize = 64;

/// The longest time that compiling a grammar may take.
const COMPILE_TIME: Duration = Duration::from_secs(10);

/// What the text must look like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema accepts.
    JsonSchema(Value),
    /// A tool call: JSON that a schema accepts, between `<tool_call>` tags.
    ToolCall(Value),
    /// A regular expression that matches the whole text.
    Regex(String),
    /// A Lark grammar with a rule `start`.
    Lark(String),
    /// A GBNF grammar with a rule `root`, as llama.cpp reads it.
    Gbnf(String),
}

/// A grammar that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A GBNF grammar that cannot be parsed.
    #[error("line {line} of the grammar: {message}")]
    Gbnf {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The grammar, schema or expression is not valid.
    #[error("{0}")]
    Invalid(String),
    /// The source is larger than a limit.
    #[error("{number} {what}; at most {limit} are allowed")]
    TooLarge {
        /// The counted thing, for the message.
        what: &'static str,
        /// The number.
        number: usize,
        /// The limit.
        limit: usize,
    },
    /// Compiling takes too long.
    #[error("the grammar takes longer than {seconds} s to compile")]
    TooSlow {
        /// The limit.
        seconds: u64,
    },
    /// The model has no tokenizer.
    #[error("{0}")]
    NoTokenizer(String),
    /// The tokenizer has no end-of-generation token, so no text could end.
    #[error("the model's tokenizer has no end-of-generation token")]
    NoEnd,
}

/// Compiles grammars for a model.
pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    /// Fresh matchers of grammars that were compiled, by source.
    compiled: Mutex<HashMap<GrammarSource, Matcher>>,
}

/// A tokenizer as llguidance sees it.
struct Environment {
    trie: TokTrie,
    model: Arc<Model>,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let tokenize = |text: &str| match self.model.tokenizer() {
            Ok(tokenizer) => tokenizer.encode(text, EncodeOptions::default()),
            Err(_) => self.trie.greedy_tokenize(text.as_bytes()),
        };
        self.trie.tokenize_with_greedy_fallback(bytes, tokenize)
    }
}

impl GrammarCompiler {
    /// A compiler for the tokenizer of a model.
    ///
    /// # Errors
    /// `NoTokenizer` or `NoEnd` if the model cannot generate text that ends.
    pub fn new(model: &Arc<Model>) -> Result<GrammarCompiler, GrammarError> {
        let tokenizer = model.tokenizer();
        let tokenizer = tokenizer
            .map_err(|error: RuntimeError| GrammarError::NoTokenizer(error.to_string()))?;
        let vocab = model.facts().vocab_size;
        let ids = 0..vocab as u32;
        let mut ends = ids.clone().filter(|id| tokenizer.is_eog(*id));
        let eos = tokenizer.eos().or_else(|| ends.next());
        let mut info = TokRxInfo::new(vocab as u32, eos.ok_or(GrammarError::NoEnd)?);
        info.tok_end_of_turn = ids.clone().find(|id| tokenizer.is_eog(*id));
        let word = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            match tokenizer.kind(id).is_none_or(TokenKind::is_hidden) {
                // The marker keeps control tokens apart from the text that they are written as.
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                false => bytes.to_vec(),
            }
        };
        let words: Vec<Vec<u8>> = ids.map(word).collect();
        let environment: TokEnv = Arc::new(Environment {
            trie: TokTrie::from(&info, &words),
            model: model.clone(),
        });
        let capabilities = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&environment, capabilities, &slices);
        let mut factory = factory.map_err(|error| GrammarError::Invalid(error.to_string()))?;
        factory.quiet();
        // Errors go to clients, who know their grammar.
        factory.limits_mut().verbose_errors = false;
        Ok(GrammarCompiler {
            factory: Arc::new(factory),
            compiled: Mutex::new(HashMap::new()),
        })
    }

    /// A constraint for one generation.
    ///
    /// # Errors
    /// `Gbnf` or `Invalid` if the source cannot be compiled, `TooLarge` or `TooSlow` if it exceeds a limit. Waits for the thread
    /// that compiles, so that a caller must not be one that others wait for.
    pub fn constraint(
        &self,
        source: &GrammarSource,
    ) -> Result<Box<dyn TokenConstraint>, GrammarError> {
        let lock = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(matcher) = lock().get(source) {
            return Ok(Box::new(GrammarConstraint(matcher.deep_clone())));
        }
        let matcher = self.compile(source)?;
        let mut compiled = lock();
        if compiled.len() >= MAX_COMPILED {
            compiled.clear();
        }
        compiled.insert(source.clone(), matcher.deep_clone());
        Ok(Box::new(GrammarConstraint(matcher)))
    }

    fn compile(&self, source: &GrammarSource) -> Result<Matcher, GrammarError> {
        limits::check(source)?;
        let grammar = match source {
            GrammarSource::JsonObject => {
                let object = json!({ "type": "object" });
                TopLevelGrammar::from_json_schema(schema::output_schema(&object))
            }
            GrammarSource::JsonSchema(schema) => {
                TopLevelGrammar::from_json_schema(schema::output_schema(schema))
            }
            GrammarSource::ToolCall(schema) => TopLevelGrammar::from_lark(format!(
                "start: \"<tool_call>\\n\" call \"\\n</tool_call>\"\ncall: %json {}\n",
                schema::output_schema(schema)
            )),
            GrammarSource::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            GrammarSource::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
            GrammarSource::Gbnf(source) => TopLevelGrammar::from_lark(gbnf::to_lark(source)?),
        };
        compile::compile(&self.factory, grammar, COMPILE_TIME)
    }
}

/// A compiled grammar and the text so far.
struct GrammarConstraint(Matcher);

impl TokenConstraint for GrammarConstraint {
    fn restrict(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        let mask = self.0.compute_mask_or_eos();
        let mask = mask.map_err(|error| error.to_string())?;
        let words = mask.as_slice().iter().copied().chain(std::iter::repeat(0));
        for (allowed, mask) in allowed.iter_mut().zip(words) {
            *allowed &= mask;
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let accepted = self.0.consume_token(token);
        accepted.map_err(|error| error.to_string())
    }

    fn is_complete(&mut self) -> bool {
        self.0.is_stopped()
    }
}
