//! `Generation`: a running generation as an iterator over pieces of text.

use crate::error::{Error, Result};
use kvark::generate::{GenerateOutput, Timings};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often a waiting iterator looks for signals, such as Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(20);

/// What the thread that generates tells the iterator.
pub(crate) enum Event {
    /// Prompt tokens that are in the cache.
    Progress(usize),
    /// The text that a token completes; it may be empty.
    Text(String),
    /// The end.
    Finished(Result<GenerateOutput>),
}

/// The side of the thread that generates.
pub(crate) struct EventSender {
    events: Sender<Event>,
    cancelled: Arc<AtomicBool>,
}

impl EventSender {
    /// Sends an event. Returns false if the generation was cancelled.
    pub(crate) fn send(&self, event: Event) -> bool {
        self.events.send(event).is_ok() && !self.cancelled.load(Ordering::Relaxed)
    }
}

/// The pieces of text of a generation, as they come.
#[pyclass(frozen, module = "kvark")]
pub struct Generation {
    events: Mutex<Receiver<Event>>,
    cancelled: Arc<AtomicBool>,
    result: Mutex<Option<Py<GenerationResult>>>,
    progress: Option<Py<PyAny>>,
}

impl Generation {
    /// Starts `work` on a thread of its own. `progress` is called with the number of prompt tokens done.
    pub(crate) fn start(
        progress: Option<Py<PyAny>>,
        work: impl FnOnce(&EventSender) -> Result<GenerateOutput> + Send + 'static,
    ) -> Generation {
        let (events, receiver) = channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let sender = EventSender {
            events,
            cancelled: cancelled.clone(),
        };
        std::thread::spawn(move || {
            let end = work(&sender);
            _ = sender.events.send(Event::Finished(end));
        });
        Generation {
            events: Mutex::new(receiver),
            cancelled,
            result: Mutex::new(None),
            progress,
        }
    }

    /// The next event. Raises what a signal handler raises; the generation is cancelled then.
    fn receive(&self, py: Python<'_>) -> Result<Event> {
        loop {
            let event = py.detach(|| {
                let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
                events.recv_timeout(SIGNAL_INTERVAL)
            });
            match event {
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = py.check_signals() {
                        self.cancel();
                        return Err(error.into());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::argument("the generation has ended"));
                }
            }
        }
    }

    /// The next piece of text that is not empty; `None` at the end.
    fn advance(&self, py: Python<'_>) -> Result<Option<String>> {
        if self.finished(py).is_some() {
            return Ok(None);
        }
        loop {
            match self.receive(py)? {
                Event::Progress(done) => {
                    if let Some(progress) = &self.progress {
                        progress.call1(py, (done,))?;
                    }
                }
                Event::Text(text) if text.is_empty() => {}
                Event::Text(text) => return Ok(Some(text)),
                Event::Finished(end) => {
                    let result = Py::new(py, GenerationResult::from(end?))?;
                    let mut place = self.result.lock().unwrap_or_else(PoisonError::into_inner);
                    *place = Some(result);
                    return Ok(None);
                }
            }
        }
    }

    fn finished(&self, py: Python<'_>) -> Option<Py<GenerationResult>> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        result.as_ref().map(|result| result.clone_ref(py))
    }
}

#[pymethods]
impl Generation {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> Result<String> {
        match self.advance(py)? {
            Some(text) => Ok(text),
            None => Err(PyStopIteration::new_err(()).into()),
        }
    }

    /// Ends the generation after its current step.
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Waits for the end and returns the whole result.
    fn result(&self, py: Python<'_>) -> Result<Py<GenerationResult>> {
        while self.advance(py)?.is_some() {}
        Ok(self.finished(py).expect("advance stored it"))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// A finished generation.
#[pyclass(frozen, module = "kvark")]
pub struct GenerationResult {
    /// The text, without stop string and end-of-generation token.
    #[pyo3(get)]
    text: String,
    /// The generated tokens.
    #[pyo3(get)]
    tokens: Vec<u32>,
    /// `stop`, `length`, `context`, `interrupted` or `deadline`.
    #[pyo3(get)]
    finish_reason: &'static str,
    timings: Timings,
}

impl From<GenerateOutput> for GenerationResult {
    fn from(output: GenerateOutput) -> GenerationResult {
        GenerationResult {
            text: output.text,
            tokens: output.tokens,
            finish_reason: output.finish.name(),
            timings: output.timings,
        }
    }
}

#[pymethods]
impl GenerationResult {
    /// Tokens and seconds of prompt and generation, with llama.cpp's names.
    #[getter]
    fn timings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let t = &self.timings;
        let dict = PyDict::new(py);
        dict.set_item("prompt_n", t.prompt_tokens)?;
        dict.set_item("prompt_ms", t.prompt_time.as_secs_f64() * 1e3)?;
        dict.set_item("prompt_per_second", t.prompt_rate())?;
        dict.set_item("predicted_n", t.generated_tokens)?;
        dict.set_item("predicted_ms", t.decode_time.as_secs_f64() * 1e3)?;
        dict.set_item("predicted_per_second", t.decode_rate())?;
        Ok(dict)
    }

    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!(
            "GenerationResult({:?}, {} tokens, {})",
            self.text,
            self.tokens.len(),
            self.finish_reason
        )
    }
}
