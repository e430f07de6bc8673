//! `InferenceSession`: any model on named tensors, with the interface of ONNX Runtime's class.

use crate::arrays::{InputArray, OutputArray, array_of, declared_array};
use crate::error::{Error, Result};
use crate::options;
use crate::providers::{PROVIDERS, devices_of, first};
use kvark::inference::{
    Bytes, DataMut, InferenceOptions, SessionCopies, StoredType, TensorDim, TensorInfo, Value,
    ValueRef,
};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::MutexExt;
use pyo3::types::{PyDict, PyList, PyString};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

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
    /// Sizes; a dynamic one is the name of its symbol, or `None` if the file gives it no name.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (axis, dim) in self.info.shape.iter().enumerate() {
            match dim {
                TensorDim::Fixed(n) => list.append(*n)?,
                TensorDim::Dynamic(name) if self.info.is_unnamed(axis, name) => {
                    list.append(py.None())?;
                }
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
        let kind = match info.declared {
            StoredType::F32 => "float",
            StoredType::F64 => "double",
            StoredType::F16 => "float16",
            StoredType::BF16 => "bfloat16",
            StoredType::U8 => "uint8",
            StoredType::I8 => "int8",
            StoredType::U16 => "uint16",
            StoredType::I16 => "int16",
            StoredType::U32 => "uint32",
            StoredType::I32 => "int32",
            StoredType::U64 => "uint64",
            StoredType::I64 => "int64",
            StoredType::U4 => "uint4",
            StoredType::I4 => "int4",
            StoredType::U2 => "uint2",
            StoredType::I2 => "int2",
            StoredType::F4E2M1 => "float4e2m1",
            StoredType::F8E4M3FN => "float8e4m3fn",
            StoredType::F8E4M3FNUZ => "float8e4m3fnuz",
            StoredType::F8E5M2 => "float8e5m2",
            StoredType::F8E5M2FNUZ => "float8e5m2fnuz",
            StoredType::Bool => "bool",
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
    /// Makes sessions on the same weights for runs while `session` runs; on the CPU, if the model keeps nothing between runs.
    copies: Option<SessionCopies>,
    /// The copies that no run uses.
    idle: Mutex<Vec<kvark::InferenceSession>>,
    /// The number of copies that were made.
    made: AtomicUsize,
    profiling: AtomicBool,
    options: Option<Py<PyAny>>,
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
        path_or_bytes, sess_options=None, providers=None, provider_options=None, *, threads=None, executor=None, passes=None,
        device=None, method=None,
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        path_or_bytes: ModelSource,
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
        let devices = match (device, providers) {
            (None, Some(providers)) => devices_of(&providers)?,
            (device, _) => vec![device.unwrap_or("cpu")],
        };
        let options = InferenceOptions {
            compile: options::compile(threads, executor)?,
            passes: options::passes(passes)?,
            method,
            ..InferenceOptions::default()
        };
        let load = |device: &str| {
            let backend = options::backend(device)?;
            let session = match &path_or_bytes {
                ModelSource::Bytes(bytes) => {
                    let bytes = Bytes::from(&bytes[..]);
                    kvark::InferenceSession::load_bytes(bytes, &*backend, &options)
                }
                ModelSource::Path(path) => kvark::InferenceSession::load(path, &*backend, &options),
            };
            Ok(session?)
        };
        let (device, session) = first(py, &devices, |device| py.detach(|| load(device)))?;
        Ok(InferenceSession {
            inputs: session.inputs().to_vec(),
            outputs: session.outputs().to_vec(),
            copies: session.copies().filter(|_| device == "cpu").cloned(),
            session: Mutex::new(session),
            idle: Mutex::default(),
            made: AtomicUsize::new(0),
            profiling: AtomicBool::new(false),
            options: sess_options.map(|options| options.clone().unbind()),
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

    /// The `SessionOptions` that the session was made with.
    fn get_session_options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.options {
            Some(options) => Ok(options.bind(py).clone()),
            None => py
                .import("kvark.ort_options")?
                .getattr("SessionOptions")?
                .call0(),
        }
    }

    /// The options of each provider: none.
    fn get_provider_options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let options = PyDict::new(py);
        for provider in self.get_providers() {
            options.set_item(provider, PyDict::new(py))?;
        }
        Ok(options)
    }

    /// The metadata of the model file.
    fn get_modelmeta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.locked(py).description().clone();
        let class = py.import("kvark.ort_options")?.getattr("ModelMetadata")?;
        let fields = PyDict::new(py);
        fields.set_item("producer_name", found.producer_name)?;
        fields.set_item("graph_name", found.graph_name)?;
        fields.set_item("graph_description", found.graph_description)?;
        fields.set_item("domain", found.domain)?;
        fields.set_item("description", found.description)?;
        fields.set_item("version", found.version)?;
        fields.set_item("custom_metadata_map", found.properties)?;
        class.call((), Some(&fields))
    }

    /// Checks that the first of these providers that this machine has is the session's own: a session stays on its device.
    #[pyo3(signature = (providers, provider_options=None))]
    fn set_providers(
        &self,
        py: Python<'_>,
        providers: Vec<Bound<'_, PyAny>>,
        provider_options: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        let _ = provider_options;
        let devices = devices_of(&providers)?;
        let (device, ()) = first(py, &devices, |device| {
            py.detach(|| options::backend(device).map(drop))
        })?;
        match device == self.device {
            true => Ok(()),
            false => Err(Error::argument(format!(
                "the session runs on {}: load the model again to run it on {device}",
                self.device
            ))),
        }
    }

    /// Runs the model. `feed` has the inputs by name; the result has the named outputs in this order, or all if none is named. Arrays in
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
        let wanted = self.indices(output_names.filter(|names| !names.is_empty()))?;
        let feed = self.feed(input_feed)?;
        let mut found: Vec<Option<Value>> = vec![None; self.outputs.len()];
        self.run_views(py, &feed, &mut |index, view| {
            if wanted.contains(&index) {
                found[index] = Some(view.to_value());
            }
        })?;
        self.select(py, found, &wanted)
    }

    /// Runs the model and writes outputs to arrays: `outputs` has an array or `None` by name. Returns the arrays, new ones
    /// for `None`.
    fn run_into<'py>(
        &self,
        py: Python<'py>,
        input_feed: &Bound<'py, PyDict>,
        outputs: &Bound<'py, PyDict>,
    ) -> Result<Vec<Bound<'py, PyAny>>> {
        let feed = self.feed(input_feed)?;
        let names: Vec<String> = outputs.keys().extract()?;
        let wanted = self.indices(Some(names.clone()))?;
        let given: Vec<Bound<'py, PyAny>> = outputs.values().iter().collect();
        let mut arrays = vec![];
        for ((name, object), index) in names.iter().zip(&given).zip(&wanted) {
            let declared = self.outputs[*index].declared;
            arrays.push(match object.is_none() {
                true => None,
                false => Some(OutputArray::new(name, object, declared)?),
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
                    (_, Some(shape)) if shape != view.shape => {
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
            self.locked(py).undo_states();
            return Err(Error::argument(reason));
        }
        drop(memory);
        drop(arrays);
        let mut results = vec![];
        for ((value, object), index) in made.into_iter().zip(given).zip(wanted) {
            let Some(value) = value else {
                results.push(object);
                continue;
            };
            let array = declared_array(py, value, self.outputs[index].declared)?;
            match object.is_none() {
                true => results.push(array),
                false => {
                    let numpy = py.import("numpy")?;
                    numpy.call_method1("copyto", (&object, array))?;
                    results.push(object);
                }
            }
        }
        Ok(results)
    }

    /// Like `run` on `OrtValue`s; the outputs are `OrtValue`s, too.
    #[pyo3(signature = (output_names, input_dict_ort_values, run_options=None))]
    fn run_with_ort_values<'py>(
        &self,
        py: Python<'py>,
        output_names: Option<Vec<String>>,
        input_dict_ort_values: &Bound<'py, PyDict>,
        run_options: Option<&Bound<'py, PyAny>>,
    ) -> Result<Vec<Bound<'py, PyAny>>> {
        let arrays = self.run(py, output_names, input_dict_ort_values, run_options)?;
        let class = py.import("kvark.binding")?.getattr("OrtValue")?;
        let values = arrays.into_iter().map(|array| class.call1((array,)));
        Ok(values.collect::<PyResult<_>>()?)
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
        let feed = self.feed(feed)?;
        let feed: Vec<(String, Value)> = feed
            .iter()
            .map(|(name, array)| (name.clone(), array.view().to_value()))
            .collect();
        let mut failed = None;
        let outputs = self.locked(py).run_traced(feed, &mut |name, op, value| {
            let call = array_of(py, value.clone()).and_then(|array| trace.call1((name, op, array)));
            if let Err(error) = call {
                failed.get_or_insert(error);
            }
        })?;
        match failed {
            Some(error) => Err(error.into()),
            None => {
                let outputs = outputs.into_iter().map(|(_, value)| Some(value));
                self.select(py, outputs.collect(), &wanted)
            }
        }
    }

    /// The buffers that the model writes to, which keep their elements from run to run.
    fn get_states(&self, py: Python<'_>) -> Vec<NodeArg> {
        let session = self.locked(py);
        session.states().iter().map(NodeArg::from).collect()
    }

    /// Copies of the states by name, to be saved.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let session = self.locked(py);
        for info in session.states() {
            if let Some(value) = session.state(&info.name) {
                dict.set_item(&info.name, array_of(py, value.clone())?)?;
            }
        }
        Ok(dict)
    }

    /// Replaces the states that `states` names. If one of them does not fit, none is replaced.
    fn load_state_dict(&self, states: &Bound<'_, PyDict>) -> Result<()> {
        let given = arrays_of(states, |_| None)?;
        let mut session = self.locked(states.py());
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
    fn reset_states(&self, py: Python<'_>) {
        self.locked(py).reset_states();
    }

    /// Measures nodes from now on, or stops it; meanwhile runs take turns. Needs the compiled executor.
    fn set_profiling(&self, py: Python<'_>, on: bool) {
        self.profiling.store(on, Ordering::Relaxed);
        self.locked(py).set_profiling(on);
    }

    /// The measurements since profiling was started: op, label, runs, seconds, bytes and multiply-accumulates by node.
    fn profile<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let nodes = self.locked(py).profile();
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
    fn arena_bytes(&self, py: Python<'_>) -> usize {
        self.locked(py).arena_bytes()
    }
}

impl InferenceSession {
    /// The session, when no other thread runs it. The interpreter's lock is not held while this waits, because a traced run takes it.
    fn locked(&self, py: Python<'_>) -> MutexGuard<'_, kvark::InferenceSession> {
        let locked = self.session.lock_py_attached(py);
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// The inputs of a run, with elements of their declared types.
    fn feed<'py>(&self, feed: &Bound<'py, PyDict>) -> Result<Vec<(String, InputArray<'py>)>> {
        arrays_of(feed, |name| {
            let found = self.inputs.iter().find(|info| info.name == name);
            found.map(|info| info.declared)
        })
    }

    /// The wanted outputs as arrays of their declared types.
    fn select<'py>(
        &self,
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
            let value = value.expect("an output is taken once");
            arrays.push(declared_array(py, value, self.outputs[*index].declared)?);
        }
        Ok(arrays)
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
        py.detach(|| {
            let mut session = match self.session.try_lock() {
                Ok(session) => session,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
                Err(TryLockError::WouldBlock) => match self.copy() {
                    Some(mut copy) => {
                        let result = copy.run_borrowed(views, output);
                        let idle = self.idle.lock();
                        idle.unwrap_or_else(PoisonError::into_inner).push(copy);
                        return Ok(result?);
                    }
                    None => self.session.lock().unwrap_or_else(PoisonError::into_inner),
                },
            };
            Ok(session.run_borrowed(views, output)?)
        })
    }

    /// A copy of the session for a run beside others; `None` if the run has to wait.
    fn copy(&self) -> Option<kvark::InferenceSession> {
        let copies = self.copies.as_ref()?;
        if self.profiling.load(Ordering::Relaxed) {
            return None;
        }
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        idle.or_else(|| {
            // More runs than cores gain nothing.
            let most = std::thread::available_parallelism().map_or(1, usize::from);
            let one_more = |made: usize| (made < most).then_some(made + 1);
            let relaxed = Ordering::Relaxed;
            self.made.fetch_update(relaxed, relaxed, one_more).ok()?;
            copies.make(&self.inputs, &self.outputs).ok()
        })
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

/// A model: a file, or its bytes.
#[derive(FromPyObject)]
enum ModelSource {
    Bytes(PyBackedBytes),
    Path(PathBuf),
}

/// The arrays of a dictionary by name, with elements of the types that `declared` has for their names.
fn arrays_of<'py>(
    feed: &Bound<'py, PyDict>,
    declared: impl Fn(&str) -> Option<StoredType>,
) -> Result<Vec<(String, InputArray<'py>)>> {
    let pair = |(name, object): (Bound<'py, PyAny>, Bound<'py, PyAny>)| {
        let name: String = name.extract()?;
        let array = match declared(&name) {
            Some(declared) => InputArray::declared(&name, &object, declared)?,
            None => InputArray::new(&name, &object)?,
        };
        Ok((name, array))
    };
    feed.iter().map(pair).collect()
}
