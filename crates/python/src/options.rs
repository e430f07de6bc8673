//! Options of models and generations, from keyword arguments.

use crate::error::{Error, Result};
use kvark::backend::{
    Backend, CompileOptions, Cpu, Cuda, Devices, ExecutorKind, Precision, RunMode,
};
use kvark::cache::KvStorage;
use kvark::generate::{GenerateOptions, OptionValue, SAMPLING_OPTIONS, SamplerOptions};
use kvark::grammar::GrammarSource;
use kvark::graph::PassSelection;
use kvark::memory::MemoryLimit;
use kvark::speculative::{SpecOptions, SpecType};
use kvark::text::{ReasoningBudget, ReasoningFormat};
use kvark::{Model, RunnerOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::Value as Json;
use std::sync::{Arc, LazyLock};

/// The backend with this name.
pub(crate) fn backend(device: &str) -> Result<Box<dyn Backend>> {
    match device {
        "cpu" => {
            let cpu = Cpu::new().map_err(Error::argument)?;
            Ok(Box::new(cpu))
        }
        "cuda" => {
            let home = kvark::catalogue::ModelStore::from_env().ok();
            let folder = home.map(|home| home.cubin_folder());
            let cuda: Arc<dyn Backend> = Arc::new(Cuda::new(folder)?);
            let cpu = Arc::new(Cpu::new().map_err(Error::argument)?);
            // The CPU runs what the GPU has no kernels for.
            Ok(Box::new(Devices::new(vec![cuda, cpu])))
        }
        other => Err(Error::argument(format!(
            "there is no device {other:?}; the devices are \"cpu\" and \"cuda\""
        ))),
    }
}

/// Whether this machine has a GPU that kvark runs on. It is looked for once.
pub(crate) fn has_cuda() -> bool {
    static FOUND: LazyLock<bool> = LazyLock::new(|| Cuda::new(None).is_ok());
    *FOUND
}

/// Threads and executor.
pub(crate) fn compile(threads: Option<usize>, executor: Option<&str>) -> Result<CompileOptions> {
    if threads == Some(0) {
        return Err(Error::argument("threads must be at least 1"));
    }
    let executor = match executor.unwrap_or("compiled") {
        "compiled" => ExecutorKind::Compiled,
        "interpreted" => ExecutorKind::Interpreted,
        other => {
            return Err(Error::argument(format!(
                "there is no executor {other:?}; the executors are \"compiled\" and \"interpreted\""
            )));
        }
    };
    let home = kvark::catalogue::ModelStore::from_env().ok();
    Ok(CompileOptions {
        threads,
        executor,
        packed_folder: home.map(|home| home.packed_folder()),
        ..CompileOptions::default()
    })
}

/// Optimisation passes: `None` for all, or the names of those to run, as `--passes` takes them.
pub(crate) fn passes(passes: Option<&str>) -> Result<PassSelection> {
    match passes {
        None => Ok(PassSelection::default()),
        Some(text) => PassSelection::parse(text).map_err(Error::argument),
    }
}

/// The options of a model's sessions.
pub(crate) fn runner(
    context: Option<usize>,
    threads: Option<usize>,
    [cache_type_k, cache_type_v, state_type]: [&str; 3],
    [memory_limit, expert_budget]: [Option<u64>; 2],
    run_mode: Option<&str>,
    precision: Option<&str>,
) -> Result<RunnerOptions> {
    if context == Some(0) {
        return Err(Error::argument("context must be at least 1"));
    }
    let run_mode = run_mode.map(str::parse::<RunMode>).transpose();
    let precision = precision.map(str::parse::<Precision>).transpose();
    let compile = CompileOptions {
        run_mode: run_mode.map_err(Error::argument)?,
        precision: precision.map_err(Error::argument)?.unwrap_or_default(),
        expert_budget: expert_budget.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
        ..compile(threads, None)?
    };
    Ok(RunnerOptions {
        context,
        key_storage: storage("cache_type_k", cache_type_k)?,
        value_storage: storage("cache_type_v", cache_type_v)?,
        state_storage: match storage("state_type", state_type)? {
            known @ (KvStorage::F32 | KvStorage::F16) => known,
            _ => {
                let message = format!("state_type is {state_type:?}, must be one of f32, f16");
                return Err(Error::argument(message));
            }
        },
        memory: memory_limit.map_or(MemoryLimit::Machine, MemoryLimit::Bytes),
        compile,
        ..RunnerOptions::default()
    })
}

/// The storage type of this name, which an argument has.
pub(crate) fn storage(argument: &str, name: &str) -> Result<KvStorage> {
    KvStorage::from_name(name).ok_or_else(|| {
        let names = KvStorage::ALL.map(KvStorage::name).join(", ");
        Error::argument(format!("{argument} is {name:?}, must be one of {names}"))
    })
}

/// What a generation takes, from its keyword arguments.
pub(crate) struct GenerationOptions {
    pub(crate) sampling: SamplerOptions,
    pub(crate) options: GenerateOptions,
    pub(crate) grammar: Option<GrammarSource>,
    /// The number of most likely tokens whose log-probabilities come with every token.
    pub(crate) logprobs: Option<usize>,
    pub(crate) speculation: Option<SpecOptions>,
    /// The maximum number of tokens of an answer's reasoning.
    reasoning_budget: Option<usize>,
    /// The tools that a chat may call.
    pub(crate) tools: Vec<Json>,
    /// `auto`, `required`, or the name of a tool.
    tool_choice: Option<String>,
}

/// Every option of a generation that is not the sampler's, for messages.
const OPTIONS: &str = "max_tokens, stop, ignore_eos, json_schema, regex, grammar, lark, logprobs, speculation, reasoning_budget, tools, tool_choice";

impl GenerationOptions {
    /// Reads keyword arguments. An unknown one is an error that names it.
    pub(crate) fn read(
        model: &Model,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> Result<GenerationOptions> {
        let mut read = GenerationOptions {
            sampling: SamplerOptions::default(),
            options: GenerateOptions::default(),
            grammar: None,
            logprobs: None,
            speculation: None,
            reasoning_budget: None,
            tools: vec![],
            tool_choice: None,
        };
        let sampling = model.sampling(|sampling| {
            for (key, value) in kwargs.into_iter().flatten() {
                let name: String = key.extract()?;
                let option = SAMPLING_OPTIONS.iter().find(|option| option.name == name);
                match option {
                    _ if value.is_none() => {}
                    Some(option) => {
                        let set = option.set(sampling, option_value(&value)?);
                        set.map_err(|wrong| Error::argument(format!("{name} {wrong}")))?;
                    }
                    None => read.set(&name, &value)?,
                }
            }
            Ok::<(), Error>(())
        });
        read.sampling = sampling?;
        read.force_call()?;
        Ok(read)
    }

    /// A call that must be made is a grammar.
    fn force_call(&mut self) -> Result<()> {
        let only = match self.tool_choice.as_deref() {
            None | Some("auto") => return Ok(()),
            Some("required") => None,
            Some(name) => Some(name),
        };
        let named = |tool: &Json| {
            let function = tool.get("function").unwrap_or(tool);
            only.is_none_or(|only| function["name"] == only)
        };
        if !self.tools.iter().any(named) {
            let wanted = only.map_or("needs tools".to_owned(), |only| {
                format!("there is no tool {only:?}")
            });
            return Err(Error::argument(format!("tool_choice: {wanted}")));
        }
        let schema = kvark::text::tools::call_schema(&self.tools, only);
        self.grammar = Some(GrammarSource::ToolCall(schema));
        Ok(())
    }

    /// The options of the answer to a prompt, with the limit on its reasoning. A model without a tokenizer has none.
    pub(crate) fn bounded(&self, model: &Model, prompt: &[u32]) -> GenerateOptions {
        let mut options = self.options.clone();
        if let (Some(tokens), Ok(tokenizer)) = (self.reasoning_budget, model.tokenizer()) {
            let template = model.chat_template();
            let source = template.map_or("", |template| template.source_text());
            let format = ReasoningFormat::of_model(source, tokenizer);
            let budget = ReasoningBudget::after(tokens, format, tokenizer, prompt);
            options.reasoning = Some(budget);
        }
        options
    }

    /// Refuses tools where there is no chat.
    pub(crate) fn check_no_tools(&self, what: &str) -> Result<()> {
        match self.tools.is_empty() {
            true => Ok(()),
            false => Err(Error::argument(format!(
                "{what} take no tools; Model.chat does"
            ))),
        }
    }

    fn set(&mut self, name: &str, value: &Bound<'_, PyAny>) -> Result<()> {
        match name {
            "max_tokens" => self.options.max_tokens = Some(value.extract()?),
            "stop" => {
                self.options.stop = match value.extract::<String>() {
                    Ok(one) => vec![one],
                    Err(_) => value.extract()?,
                }
            }
            "ignore_eos" => self.options.ignore_eos = value.extract()?,
            "json_schema" => self.grammar = Some(GrammarSource::JsonSchema(json_of(value)?)),
            "regex" => self.grammar = Some(GrammarSource::Regex(value.extract()?)),
            "grammar" => self.grammar = Some(GrammarSource::Gbnf(value.extract()?)),
            "lark" => self.grammar = Some(GrammarSource::Lark(value.extract()?)),
            "logprobs" => self.logprobs = logprobs(value)?,
            "reasoning_budget" => self.reasoning_budget = Some(value.extract()?),
            "speculation" => self.speculation = speculation(value)?,
            "tools" => self.tools = tools(value)?,
            "tool_choice" => self.tool_choice = Some(value.extract()?),
            "n" => {
                return Err(Error::argument(
                    "n is an option of Model.generate and Model.chat; a session and a branch are one sequence",
                ));
            }
            other => {
                let sampling = SAMPLING_OPTIONS.iter().map(|option| option.name);
                let sampling: Vec<&str> = sampling.collect();
                return Err(Error::argument(format!(
                    "there is no generation option {other:?}; the options are {OPTIONS}, {}",
                    sampling.join(", ")
                )));
            }
        }
        Ok(())
    }
}

/// `tools`: a list of functions in OpenAI's shape.
fn tools(value: &Bound<'_, PyAny>) -> Result<Vec<Json>> {
    let Json::Array(tools) = json_of(value)? else {
        return Err(Error::argument("tools must be a list"));
    };
    for (index, tool) in tools.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        if !function["name"].is_string() {
            return Err(Error::argument(format!(
                "tools[{index}] has no function with a name"
            )));
        }
    }
    Ok(tools)
}

/// `logprobs`: a number of tokens, or a truth value.
fn logprobs(value: &Bound<'_, PyAny>) -> Result<Option<usize>> {
    match value.cast::<PyBool>() {
        Ok(flag) => Ok(flag.is_true().then_some(0)),
        Err(_) => Ok(Some(value.extract()?)),
    }
}

/// `speculation`: the name of a proposer, or a truth value.
fn speculation(value: &Bound<'_, PyAny>) -> Result<Option<SpecOptions>> {
    let kind = match value.cast::<PyBool>() {
        Ok(flag) if !flag.is_true() => return Ok(None),
        Ok(_) => SpecType::Auto,
        Err(_) => {
            let name: String = value.extract()?;
            SpecType::from_name(&name).ok_or_else(|| {
                let names = SpecType::ALL.map(SpecType::name).join(", ");
                Error::argument(format!("speculation is {name:?}, must be one of {names}"))
            })?
        }
    };
    Ok(Some(SpecOptions {
        kind,
        ..SpecOptions::default()
    }))
}

/// A Python value as a value of a sampling option.
fn option_value(value: &Bound<'_, PyAny>) -> Result<OptionValue> {
    if value.is_instance_of::<PyBool>() {
        return Ok(OptionValue::Other);
    }
    if let Ok(integer) = value.extract::<i128>() {
        return Ok(OptionValue::Integer(integer));
    }
    if let Ok(number) = value.extract::<f64>() {
        return Ok(OptionValue::Number(number));
    }
    if let Ok(text) = value.extract() {
        return Ok(OptionValue::Text(text));
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let entry = |(key, value): (Bound<'_, PyAny>, _)| {
            Ok((key.str()?.extract()?, option_value(&value)?))
        };
        let entries = dict.iter().map(entry);
        return Ok(OptionValue::Object(entries.collect::<Result<_>>()?));
    }
    match value.try_iter() {
        Ok(items) => {
            let items = items.map(|item| option_value(&item?));
            Ok(OptionValue::List(items.collect::<Result<_>>()?))
        }
        Err(_) => Ok(OptionValue::Other),
    }
}

/// A Python value as JSON. A string is parsed as JSON text only by the caller.
pub(crate) fn json_of(value: &Bound<'_, PyAny>) -> Result<Json> {
    if value.is_none() {
        return Ok(Json::Null);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(flag.is_true().into());
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(value.extract::<i64>()?.into());
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(value.extract::<f64>()?.into());
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_cow()?.into_owned().into());
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let mut object = serde_json::Map::new();
        for (key, value) in dict {
            object.insert(key.extract()?, json_of(&value)?);
        }
        return Ok(object.into());
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter()?.map(|item| json_of(&item?));
        return Ok(Json::Array(items.collect::<Result<_>>()?));
    }
    let kind = value.get_type().name()?.to_string();
    Err(Error::argument(format!("a {kind} is not JSON")))
}
