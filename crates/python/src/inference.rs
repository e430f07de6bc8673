//! `InferenceSession`: any model on named tensors, with the interface of ONNX Runtime's class.

use crate::arrays::{array_of, value_of};
use crate::error::{Error, Result};
use crate::options;
use kvark::inference::{InferenceOptions, TensorDim, TensorInfo, Value};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The name, type and shape of an input or output.
#[pyclass(frozen, module = "kvark")]
pub struct NodeArg {
    #[pyo3(get)]
    name: String,
    /// As ONNX Runtime writes it: `tensor(float)`.
    #[pyo3(get, name = "type")]
    kind: String,
    info: TensorInfo,
}

#[pymethods]
impl NodeArg {
    /// Sizes; a dynamic one is the name of its symbol.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for dim in &self.info.shape {
            match dim {
                TensorDim::Fixed(n) => list.append(*n)?,
                TensorDim::Dynamic(name) => list.append(name)?,
            }
        }
        Ok(list)
    }

    fn __repr__(&self) -> String {
        format!("NodeArg({})", self.info)
    }
}

impl From<&TensorInfo> for NodeArg {
    fn from(info: &TensorInfo) -> NodeArg {
        let dtype = info.dtype.to_string();
        let kind = match &*dtype {
            "f32" => "float",
            "f16" => "float16",
            "bf16" => "bfloat16",
            "i64" => "int64",
            "i32" => "int32",
            "bool" => "bool",
            other => other,
        };
        NodeArg {
            name: info.name.clone(),
            kind: format!("tensor({kind})"),
            info: info.clone(),
        }
    }
}

/// A model that runs on named tensors.
#[pyclass(frozen, module = "kvark")]
pub struct InferenceSession {
    session: Mutex<kvark::InferenceSession>,
    inputs: Vec<TensorInfo>,
    outputs: Vec<TensorInfo>,
}

#[pymethods]
impl InferenceSession {
    #[new]
    #[pyo3(signature = (path, *, threads=None, executor=None, passes=None, device="cpu", method=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        threads: Option<usize>,
        executor: Option<&str>,
        passes: Option<&str>,
        device: &str,
        method: Option<String>,
    ) -> Result<InferenceSession> {
        let options = InferenceOptions {
            compile: options::compile(threads, executor)?,
            passes: options::passes(passes)?,
            method,
            ..InferenceOptions::default()
        };
        let session = py.detach(|| {
            let backend = options::backend(device)?;
            Ok::<_, Error>(kvark::InferenceSession::load(&path, &*backend, &options)?)
        })?;
        Ok(InferenceSession {
            inputs: session.inputs().to_vec(),
            outputs: session.outputs().to_vec(),
            session: Mutex::new(session),
        })
    }

    /// The inputs that `run` takes.
    fn get_inputs(&self) -> Vec<NodeArg> {
        self.inputs.iter().map(NodeArg::from).collect()
    }

    /// The outputs that `run` gives.
    fn get_outputs(&self) -> Vec<NodeArg> {
        self.outputs.iter().map(NodeArg::from).collect()
    }

    /// Runs the model. `feed` has the inputs by name; the result has the named outputs in this order, or all.
    fn run<'py>(
        &self,
        py: Python<'py>,
        output_names: Option<Vec<String>>,
        feed: &Bound<'py, PyDict>,
    ) -> Result<Vec<Bound<'py, PyAny>>> {
        let wanted = self.indices(output_names)?;
        let feed = feed_of(feed)?;
        let outputs = py.detach(|| Ok::<_, Error>(self.locked().run(feed)?))?;
        select(py, outputs, &wanted)
    }

    /// Runs the model and calls `trace(name, op, array)` for every node. Needs the interpreted executor.
    fn run_traced<'py>(
        &self,
        py: Python<'py>,
        output_names: Option<Vec<String>>,
        feed: &Bound<'py, PyDict>,
        trace: &Bound<'py, PyAny>,
    ) -> Result<Vec<Bound<'py, PyAny>>> {
        let wanted = self.indices(output_names)?;
        let feed = feed_of(feed)?;
        let mut failed = None;
        let outputs = self.locked().run_traced(feed, &mut |name, op, value| {
            let call = array_of(py, value.clone()).and_then(|array| trace.call1((name, op, array)));
            if let Err(error) = call {
                failed.get_or_insert(error);
            }
        })?;
        match failed {
            Some(error) => Err(error.into()),
            None => select(py, outputs, &wanted),
        }
    }

    /// Measures nodes from now on, or stops it. Needs the compiled executor.
    fn set_profiling(&self, on: bool) {
        self.locked().set_profiling(on);
    }

    /// The measurements since profiling was started: op, label, runs, seconds, bytes and multiply-accumulates by node.
    fn profile<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let nodes = self.locked().profile();
        let dict = |node: &kvark::inference::NodeProfile| {
            let dict = PyDict::new(py);
            dict.set_item("op", PyString::new(py, node.op))?;
            dict.set_item("label", PyString::new(py, &node.label))?;
            dict.set_item("runs", node.runs)?;
            dict.set_item("seconds", node.time.as_secs_f64())?;
            dict.set_item("bytes", node.bytes)?;
            dict.set_item("macs", node.macs)?;
            Ok(dict)
        };
        nodes.iter().map(dict).collect()
    }

    /// Bytes of activations and scratch that are allocated now.
    #[getter]
    fn arena_bytes(&self) -> usize {
        self.locked().arena_bytes()
    }
}

impl InferenceSession {
    fn locked(&self) -> MutexGuard<'_, kvark::InferenceSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The indices of the named outputs; of all without names.
    fn indices(&self, names: Option<Vec<String>>) -> Result<Vec<usize>> {
        let Some(names) = names else {
            return Ok((0..self.outputs.len()).collect());
        };
        let find = |name: String| {
            let found = self.outputs.iter().position(|info| info.name == name);
            found.ok_or_else(|| {
                let known: Vec<&str> = self.outputs.iter().map(|info| &*info.name).collect();
                let known = known.join(", ");
                Error::argument(format!(
                    "there is no output {name:?}; the outputs are {known}"
                ))
            })
        };
        names.into_iter().map(find).collect()
    }
}

fn feed_of(feed: &Bound<'_, PyDict>) -> Result<Vec<(String, Value)>> {
    let pair = |(name, object): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name: String = name.extract()?;
        let value = value_of(&name, &object)?;
        Ok((name, value))
    };
    feed.iter().map(pair).collect()
}

fn select<'py>(
    py: Python<'py>,
    outputs: Vec<(String, Value)>,
    wanted: &[usize],
) -> Result<Vec<Bound<'py, PyAny>>> {
    let mut outputs: Vec<Option<Value>> = outputs.into_iter().map(|(_, v)| Some(v)).collect();
    let mut arrays = vec![];
    for (at, index) in wanted.iter().enumerate() {
        // An output that is asked for twice is copied.
        let value = match wanted[at + 1..].contains(index) {
            true => outputs[*index].clone(),
            false => outputs[*index].take(),
        };
        arrays.push(array_of(py, value.expect("an output is taken once"))?);
    }
    Ok(arrays)
}
