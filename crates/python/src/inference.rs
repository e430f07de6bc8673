//! `InferenceSession`: any model on named tensors, with the interface of ONNX Runtime's class.

use crate::arrays::{InputArray, OutputArray, array_of};
use crate::error::{Error, Result};
use crate::options;
use kvark::inference::{DataMut, InferenceOptions, TensorDim, TensorInfo, Value, ValueRef};
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
    device: String,
    /// Where the last run read its inputs.
    addresses: Mutex<Vec<(String, usize)>>,
}

#[pymethods]
impl InferenceSession {
    #[new]
    #[pyo3(signature = (
        path, sess_options=None, providers=None, provider_options=None, *, threads=None, executor=None, passes=None,
        device=None, method=None,
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        sess_options: Option<&Bound<'_, PyAny>>,
        providers: Option<Vec<Bound<'_, PyAny>>>,
        provider_options: Option<&Bound<'_, PyAny>>,
        threads: Option<usize>,
        executor: Option<&str>,
        passes: Option<&str>,
        device: Option<&str>,
        method: Option<String>,
    ) -> Result<InferenceSession> {
        let _ = provider_options;
        let threads = match (threads, sess_options) {
            (None, Some(options)) => {
                let threads: usize = options.getattr("intra_op_num_threads")?.extract()?;
                Some(threads).filter(|threads| *threads > 0)
            }
            (threads, _) => threads,
        };
        let device = match (device, providers) {
            (None, Some(providers)) => device_of(&providers)?,
            (device, _) => device.unwrap_or("cpu").to_owned(),
        };
        let options = InferenceOptions {
            compile: options::compile(threads, executor)?,
            passes: options::passes(passes)?,
            method,
            ..InferenceOptions::default()
        };
        let session = py.detach(|| {
            let backend = options::backend(&device)?;
            Ok::<_, Error>(kvark::InferenceSession::load(&path, &*backend, &options)?)
        })?;
        Ok(InferenceSession {
            inputs: session.inputs().to_vec(),
            outputs: session.outputs().to_vec(),
            session: Mutex::new(session),
            device,
            addresses: Mutex::default(),
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

    /// ONNX Runtime's name of the device that the model runs on.
    fn get_providers(&self) -> Vec<&'static str> {
        PROVIDERS
            .iter()
            .filter(|(_, device)| self.device.starts_with(device))
            .map(|(name, _)| *name)
            .collect()
    }

    /// Runs the model. `feed` has the inputs by name; the result has the named outputs in this order, or all. Arrays in
    /// row-major order are read where they are.
    #[pyo3(signature = (output_names, input_feed, run_options=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        output_names: Option<Vec<String>>,
        input_feed: &Bound<'py, PyDict>,
        run_options: Option<&Bound<'py, PyAny>>,
    ) -> Result<Vec<Bound<'py, PyAny>>> {
        let _ = run_options;
        let wanted = self.indices(output_names)?;
        let feed = feed_of(input_feed)?;
        let mut found: Vec<Option<Value>> = vec![None; self.outputs.len()];
        self.run_views(py, &feed, &mut |index, view| {
            if wanted.contains(&index) {
                found[index] = Some(view.to_value());
            }
        })?;
        select(py, found, &wanted)
    }

    /// Runs the model and writes outputs to arrays: `outputs` has an array or `None` by name. Returns the arrays, new ones
    /// for `None`.
    fn run_into<'py>(
        &self,
        py: Python<'py>,
        input_feed: &Bound<'py, PyDict>,
        outputs: &Bound<'py, PyDict>,
    ) -> Result<Vec<Bound<'py, PyAny>>> {
        let feed = feed_of(input_feed)?;
        let names: Vec<String> = outputs.keys().extract()?;
        let wanted = self.indices(Some(names.clone()))?;
        let given: Vec<Bound<'py, PyAny>> = outputs.values().iter().collect();
        let mut arrays = vec![];
        for (name, object) in names.iter().zip(&given) {
            arrays.push(match object.is_none() {
                true => None,
                false => Some(OutputArray::new(name, object)?),
            });
        }
        let shapes: Vec<Option<Vec<usize>>> = arrays
            .iter()
            .map(|array| array.as_ref().map(|array| array.shape().to_vec()))
            .collect();
        let mut memory: Vec<Option<DataMut<'_>>> = arrays
            .iter_mut()
            .map(|array| array.as_mut().and_then(OutputArray::memory))
            .collect();
        let mut made: Vec<Option<Value>> = vec![None; wanted.len()];
        let mut failed = None;
        self.run_views(py, &feed, &mut |index, view| {
            for (at, _) in wanted.iter().enumerate().filter(|(_, i)| **i == index) {
                let copied = match (&mut memory[at], &shapes[at]) {
                    (Some(_), Some(shape)) if shape != view.shape => {
                        Err(format!("has shape {shape:?}, must be {:?}", view.shape))
                    }
                    (Some(memory), _) => memory.copy_from(view.data),
                    _ => {
                        made[at] = Some(view.to_value());
                        Ok(())
                    }
                };
                if let Err(reason) = copied {
                    failed.get_or_insert(format!(
                        "the array for the output {:?} {reason}",
                        names[at]
                    ));
                }
            }
        })?;
        if let Some(reason) = failed {
            self.locked().undo_states();
            return Err(Error::argument(reason));
        }
        drop(memory);
        drop(arrays);
        let mut results = vec![];
        for (value, object) in made.into_iter().zip(given) {
            results.push(match value {
                Some(value) => array_of(py, value)?,
                None => object,
            });
        }
        Ok(results)
    }

    /// A binding of arrays to inputs and outputs, for `run_with_iobinding`.
    fn io_binding<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("kvark.binding")?;
        module.getattr("IOBinding")?.call1((slf,))
    }

    /// Runs the model on the arrays of a binding.
    #[pyo3(signature = (iobinding, run_options=None))]
    fn run_with_iobinding<'py>(
        slf: &Bound<'py, Self>,
        iobinding: &Bound<'py, PyAny>,
        run_options: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let _ = run_options;
        iobinding.call_method1("_run", (slf,))?;
        Ok(())
    }

    /// The address that the last run read each input from.
    #[getter]
    fn input_addresses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let addresses = self.addresses.lock();
        for (name, address) in addresses.unwrap_or_else(PoisonError::into_inner).iter() {
            dict.set_item(name, *address)?;
        }
        Ok(dict)
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
        let feed: Vec<(String, Value)> = feed
            .iter()
            .map(|(name, array)| (name.clone(), array.view().to_value()))
            .collect();
        let mut failed = None;
        let outputs = self.locked().run_traced(feed, &mut |name, op, value| {
            let call = array_of(py, value.clone()).and_then(|array| trace.call1((name, op, array)));
            if let Err(error) = call {
                failed.get_or_insert(error);
            }
        })?;
        match failed {
            Some(error) => Err(error.into()),
            None => {
                let outputs = outputs.into_iter().map(|(_, value)| Some(value));
                select(py, outputs.collect(), &wanted)
            }
        }
    }

    /// The buffers that the model writes to, which keep their elements from run to run.
    fn get_states(&self) -> Vec<NodeArg> {
        let session = self.locked();
        session.states().iter().map(NodeArg::from).collect()
    }

    /// Copies of the states by name, to be saved.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let session = self.locked();
        for info in session.states() {
            if let Some(value) = session.state(&info.name) {
                dict.set_item(&info.name, array_of(py, value.clone())?)?;
            }
        }
        Ok(dict)
    }

    /// Replaces the states that `states` names. If one of them does not fit, none is replaced.
    fn load_state_dict(&self, states: &Bound<'_, PyDict>) -> Result<()> {
        let given = feed_of(states)?;
        let mut session = self.locked();
        let mut before = vec![];
        for (name, array) in &given {
            let old = session.state(name).cloned();
            if let Err(error) = session.set_state(name, array.view().to_value()) {
                for (name, value) in before {
                    session.set_state(name, value)?;
                }
                return Err(error.into());
            }
            before.extend(old.map(|value| (&name[..], value)));
        }
        Ok(())
    }

    /// Gives the states the elements that they have in the model file.
    fn reset_states(&self) {
        self.locked().reset_states();
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

    /// Runs the model on borrowed arrays without the interpreter's lock, and calls `output` with each output.
    fn run_views(
        &self,
        py: Python<'_>,
        feed: &[(String, InputArray<'_>)],
        output: &mut (dyn FnMut(usize, ValueRef<'_>) + Send),
    ) -> Result<()> {
        let views: Vec<(&str, ValueRef<'_>)> = feed
            .iter()
            .map(|(name, array)| (&name[..], array.view()))
            .collect();
        let addresses = views
            .iter()
            .map(|(name, view)| (name.to_string(), view.data.as_ptr() as usize));
        *self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = addresses.collect();
        py.detach(|| Ok(self.locked().run_borrowed(views, output)?))
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

/// ONNX Runtime's names of devices.
const PROVIDERS: [(&str, &str); 2] = [
    ("CUDAExecutionProvider", "cuda"),
    ("CPUExecutionProvider", "cpu"),
];

/// The device of the first provider, each a name or a pair of a name and options.
fn device_of(providers: &[Bound<'_, PyAny>]) -> Result<String> {
    let Some(first) = providers.first() else {
        return Ok("cpu".to_owned());
    };
    let name: String = match first.extract() {
        Ok(name) => name,
        Err(_) => first.get_item(0)?.extract()?,
    };
    let found = PROVIDERS.iter().find(|(known, _)| *known == name);
    let (_, device) = found.ok_or_else(|| {
        let known: Vec<&str> = PROVIDERS.iter().map(|(name, _)| *name).collect();
        let known = known.join(" and ");
        Error::argument(format!("there is no provider {name:?}, only {known}"))
    })?;
    Ok((*device).to_owned())
}

fn feed_of<'py>(feed: &Bound<'py, PyDict>) -> Result<Vec<(String, InputArray<'py>)>> {
    let pair = |(name, object): (Bound<'py, PyAny>, Bound<'py, PyAny>)| {
        let name: String = name.extract()?;
        let array = InputArray::new(&name, &object)?;
        Ok((name, array))
    };
    feed.iter().map(pair).collect()
}

fn select<'py>(
    py: Python<'py>,
    mut outputs: Vec<Option<Value>>,
    wanted: &[usize],
) -> Result<Vec<Bound<'py, PyAny>>> {
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
