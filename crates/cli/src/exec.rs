//! `kvark exec`: runs any model once on given tensors.

use crate::args::{self, GraphArgs, ModelArgs};
use crate::device::DeviceArgs;
use crate::npy;
use anyhow::{Context, Result};
use clap::Args;
use kvark::InferenceSession;
use kvark::backend::PiecePlacement;
use kvark::graph::{Graph, NodeId, TensorId};
use kvark::inference::{
    DType, Data, InferenceOptions, NodeProfile, RandomInputs, ScatterDecoder, Value,
};
use serde_json::{Map, json};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Run any model once on given or random tensors
#[derive(Args)]
#[command(
    after_help = "Inputs are NAME=FILE.npy; --random generates the others, with dynamic sizes set by --dim.
--trace runs node by node and shows every intermediate result.

A decoder that keeps its history in a cache gets an empty one for every run. Made-up token ids lie in its vocabulary, and \
positions begin at 0. A decoder with static buffers (write_indices, nonpad_kv_seqlen) keeps its history in them: each --step \
continues after the ones before it.

Examples:
  kvark exec --random --dim T=5 --trace
  kvark exec model.pt2 --input x=x.npy
  kvark exec model.pt2 --random --dim batch=4 --trace
  kvark exec model.pt2 --random --trace results/ --passes none
  kvark exec model.pt2 --random --repeat 200 --json
  kvark exec decoder.onnx --step 3,14,15 --step 9     a decoder with static buffers
  kvark exec model.pt2 --random --repeat 200 --profile"
)]
pub(crate) struct Exec {
    #[command(flatten)]
    model: ModelArgs,
    /// Method to run [default: the model's only method, or forward]
    #[arg(long, value_name = "NAME")]
    method: Option<String>,
    /// Input tensor
    #[arg(long = "input", value_name = "NAME=FILE", value_parser = pair)]
    inputs: Vec<(String, String)>,
    /// Generate random tensors for inputs that are not given
    #[arg(long)]
    random: bool,
    /// Dynamic size of generated inputs [default: that of the given inputs, or the smallest that the model accepts]
    #[arg(long = "dim", value_name = "NAME=N", value_parser = dim, requires = "random")]
    dims: Vec<(String, usize)>,
    /// Token ids to feed to a decoder with static buffers; --step again continues. Several sequences are 1,2;7 and have the
    /// same number of parts in every step
    #[arg(long = "step", value_name = "IDS", value_parser = step, conflicts_with_all = ["inputs", "random", "trace", "repeat"])]
    steps: Vec<Step>,
    /// Seed of generated inputs; -1 takes one from the clock
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = args::seed)]
    seed: u64,
    /// Print every intermediate result, or save them in FOLDER
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "-")]
    trace: Option<PathBuf>,
    /// Save the outputs in FOLDER
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Run N more times and report the times
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = args::whole::<usize>)]
    repeat: usize,
    /// Report the time of every node in these runs
    #[arg(long, requires = "repeat", conflicts_with = "trace")]
    profile: bool,
    /// Number of threads, at most one per core [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Show which device runs which nodes: the CPU runs what a GPU has no kernels for
    #[arg(long, conflicts_with = "steps")]
    placement: bool,
    #[command(flatten)]
    graph: GraphArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((
        name.to_owned(),
        value.strip_prefix('@').unwrap_or(value).to_owned(),
    ))
}

/// A dynamic size: `NAME=N`.
pub(crate) fn dim(text: &str) -> Result<(String, usize), String> {
    let (name, size) = pair(text)?;
    let size = args::whole(&size).map_err(|error| format!("the size of {name} {error}"))?;
    Ok((name, size))
}

/// The tokens of each sequence in one step.
type Step = Vec<Vec<u32>>;

fn step(text: &str) -> Result<Step, String> {
    let ids = |part: &str| -> Result<Vec<u32>, String> {
        let ids = part.split(',').filter(|id| !id.trim().is_empty());
        ids.map(|id| args::whole(id.trim())).collect()
    };
    text.split(';').map(ids).collect()
}

impl Exec {
    pub(crate) fn execute(self) -> Result<()> {
        let options = InferenceOptions {
            passes: self.graph.passes()?,
            method: self.method.clone(),
            compile: self.graph.compile(self.threads, self.trace.is_some())?,
            ..InferenceOptions::default()
        };
        let path = self.model.path()?;
        let devices = self.device.devices()?;
        let mut session = InferenceSession::load(&path, &devices, &options)?;
        let mut shown = Shown::new(self.json);
        if let Some(first) = self.steps.first() {
            let mut decoder = ScatterDecoder::new(session, first.len())?;
            let mut outputs = vec![];
            for step in &self.steps {
                let step: Vec<&[u32]> = step.iter().map(|ids| &ids[..]).collect();
                outputs = decoder.feed(&step)?;
            }
            for (name, value) in &outputs {
                save(self.output.as_deref(), name, value)?;
            }
            return shown.finish(&outputs, &mut [], decoder.arena_bytes());
        }
        let inputs = self.values(&mut session)?;
        let outputs = match self.trace.as_deref() {
            Some(folder) => {
                let folder = (folder != Path::new("-")).then_some(folder);
                let mut saved = Ok(());
                let mut trace = |name: &str, op: &'static str, value: &Value| {
                    if saved.is_ok() {
                        saved = save(folder, name, value);
                    }
                    shown.trace(name, op, value);
                };
                let outputs = session.run_traced(inputs.clone(), &mut trace)?;
                saved?;
                outputs
            }
            None => session.run(inputs.clone())?,
        };
        if self.placement {
            for graph in session.last_graphs() {
                shown.placement(graph, &devices.placement(graph)?);
            }
        }
        for state in session.states() {
            shown.states.extend(
                session
                    .state(&state.name)
                    .map(|value| (state.name.clone(), value.clone())),
            );
        }
        for (name, value) in &outputs {
            save(self.output.as_deref(), name, value)?;
        }
        session.set_profiling(self.profile);
        let mut times = Vec::with_capacity(self.repeat);
        for _ in 0..self.repeat {
            let inputs = inputs.clone();
            // Every measured run is the first one.
            session.reset_states();
            let start = Instant::now();
            session.run(inputs)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        shown.profile(&session.profile(), self.repeat);
        shown.finish(&outputs, &mut times, session.arena_bytes())
    }

    /// Loads the inputs from their files, and generates the others.
    fn values(&self, session: &mut InferenceSession) -> Result<Vec<(String, Value)>> {
        let mut values = Vec::new();
        for (name, file) in &self.inputs {
            values.push((name.clone(), npy::read(Path::new(file))?));
        }
        if !self.random {
            return Ok(values);
        }
        let random = RandomInputs {
            sizes: self.dims.clone(),
            seed: self.seed,
        };
        Ok(session.random_inputs(values, &random)?)
    }
}

/// Saves a tensor as `NAME.npy`, if there is a folder.
fn save(folder: Option<&Path>, name: &str, value: &Value) -> Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let file: String = name
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect();
    npy::write(&folder.join(file + ".npy"), value)
}

/// Output writer: lines of text or one JSON object.
struct Shown {
    json: bool,
    trace: Vec<serde_json::Value>,
    profile: Vec<serde_json::Value>,
    placement: Vec<serde_json::Value>,
    /// The buffers that the model writes to, after the first run.
    states: Vec<(String, Value)>,
    out: BufWriter<io::Stdout>,
}

impl Shown {
    fn new(json: bool) -> Shown {
        Shown {
            json,
            trace: Vec::new(),
            profile: Vec::new(),
            placement: Vec::new(),
            states: Vec::new(),
            out: BufWriter::new(io::stdout()),
        }
    }

    fn trace(&mut self, name: &str, op: &str, value: &Value) {
        let summary = Summary::of(value);
        if self.json {
            self.trace.push(summary.json(name, Some(op)));
        } else {
            // A closed pipe is reported with the outputs.
            let _ = writeln!(self.out, "{}", summary.line(&format!("{name} = {op}")));
        }
    }

    /// Prints the device of each piece of the graph.
    fn placement(&mut self, graph: &Graph, pieces: &[PiecePlacement]) {
        let node = |id: &NodeId| graph.node_name(graph.node(*id)).to_owned();
        let tensor = |id: &TensorId| {
            let tensor = graph.tensor(*id);
            format!("{}: {}", tensor.name, graph.type_text(&tensor.ty))
        };
        for piece in pieces {
            let [to, from] = piece.copied.each_ref();
            let [to, from] = [to, from].map(|ids| ids.iter().map(tensor).collect::<Vec<_>>());
            if self.json {
                let nodes: Vec<String> = piece.nodes.iter().map(node).collect();
                self.placement.push(json!({
                    "device": piece.device, "nodes": nodes, "inputs": to, "outputs": from,
                }));
                continue;
            }
            let (first, last) = (piece.nodes.first().map(node), piece.nodes.last().map(node));
            let (first, last) = (first.unwrap_or_default(), last.unwrap_or_default());
            let count = piece.nodes.len();
            // A closed pipe is reported with the outputs.
            let _ = writeln!(
                self.out,
                "{}: {count} nodes, {first} to {last}\n  takes {}\n  gives {}",
                piece.device,
                to.join(", "),
                from.join(", ")
            );
        }
    }

    /// Prints the mean time of every node.
    fn profile(&mut self, nodes: &[NodeProfile], runs: usize) {
        for NodeProfile {
            op, label, time, ..
        } in nodes
        {
            let microseconds = time.as_secs_f64() * 1e6 / runs as f64;
            if self.json {
                let row = json!({ "name": label, "op": op, "microseconds": microseconds });
                self.profile.push(row);
            } else {
                // A closed pipe is reported with the outputs.
                let _ = writeln!(self.out, "{microseconds:>10.1} us  {label} = {op}");
            }
        }
    }

    fn finish(
        mut self,
        outputs: &[(String, Value)],
        times: &mut [f64],
        arena_bytes: usize,
    ) -> Result<()> {
        times.sort_by(f64::total_cmp);
        let median = times.get(times.len() / 2).copied();
        let least = times.first().copied();
        if self.json {
            let rows: Vec<_> = outputs
                .iter()
                .map(|(name, value)| Summary::of(value).json(name, None))
                .collect();
            let mut object = Map::new();
            object.insert("outputs".into(), rows.into());
            if !self.states.is_empty() {
                let states = self.states.iter();
                let rows = states.map(|(name, value)| Summary::of(value).json(name, None));
                object.insert("states".into(), rows.collect::<Vec<_>>().into());
            }
            if !self.trace.is_empty() {
                object.insert("trace".into(), self.trace.into());
            }
            if !self.placement.is_empty() {
                object.insert("placement".into(), self.placement.into());
            }
            if !self.profile.is_empty() {
                object.insert("profile".into(), self.profile.into());
            }
            object.insert("arena_bytes".into(), arena_bytes.into());
            if let Some((median, least)) = median.zip(least) {
                let times = json!({ "runs": times.len(), "median": median, "least": least });
                object.insert("microseconds".into(), times);
            }
            writeln!(self.out, "{}", serde_json::Value::Object(object))?;
        } else {
            for (name, value) in outputs {
                writeln!(
                    self.out,
                    "{}",
                    Summary::of(value).line(&format!("{name} (output)"))
                )?;
            }
            for (name, value) in &self.states {
                let line = Summary::of(value).line(&format!("{name} (state)"));
                writeln!(self.out, "{line}")?;
            }
            if let Some((median, least)) = median.zip(least) {
                writeln!(
                    self.out,
                    "{} runs: median {median:.1} us, least {least:.1} us",
                    times.len()
                )?;
            }
        }
        Ok(self.out.flush()?)
    }
}

/// One-line summary of a tensor.
struct Summary {
    dtype: DType,
    shape: Vec<usize>,
    mean: f64,
    min: f64,
    max: f64,
    /// Number of NaN elements.
    not_numbers: usize,
}

impl Summary {
    fn of(value: &Value) -> Summary {
        let elements: Vec<f64> = match &value.data {
            Data::F32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            Data::I32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            Data::I64(v) => v.iter().map(|x| *x as f64).collect(),
            Data::Bool(v) => v.iter().map(|x| f64::from(u8::from(*x))).collect(),
        };
        Summary {
            dtype: value.dtype(),
            shape: value.shape.clone(),
            mean: elements.iter().sum::<f64>() / elements.len() as f64,
            min: elements.iter().copied().fold(f64::INFINITY, f64::min),
            max: elements.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            not_numbers: elements.iter().filter(|x| x.is_nan()).count(),
        }
    }

    fn line(&self, what: &str) -> String {
        let Summary {
            dtype,
            shape,
            mean,
            min,
            max,
            ..
        } = self;
        let nan = match self.not_numbers {
            0 => String::new(),
            n => format!(", {n} not a number"),
        };
        format!("{what}: {dtype}{shape:?} mean {mean:.6} min {min:.6} max {max:.6}{nan}")
    }

    fn json(&self, name: &str, op: Option<&str>) -> serde_json::Value {
        // JSON has no infinities: they are null.
        json!({
            "name": name,
            "op": op,
            "dtype": self.dtype.to_string(),
            "shape": self.shape,
            "mean": self.mean,
            "min": self.min,
            "max": self.max,
            "not_numbers": self.not_numbers,
        })
    }
}
