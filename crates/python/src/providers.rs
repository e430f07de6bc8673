//! Devices by ONNX Runtime's names of them, tried in their order.

use crate::error::{Error, Result};
use pyo3::prelude::*;

/// ONNX Runtime's names of devices.
pub(crate) const PROVIDERS: [(&str, &str); 2] = [
    ("CUDAExecutionProvider", "cuda"),
    ("CPUExecutionProvider", "cpu"),
];

/// Calls `make` with each device until one succeeds, and returns that device and its result. A warning gives the error of each device that
/// failed before.
pub(crate) fn first<T>(
    py: Python<'_>,
    devices: &[&str],
    make: impl Fn(&str) -> Result<T>,
) -> Result<(String, T)> {
    let (last, others) = devices
        .split_last()
        .ok_or_else(|| Error::argument("no device is named"))?;
    for device in others {
        match make(device) {
            Ok(made) => return Ok(((*device).to_owned(), made)),
            Err(error) => {
                let error = PyErr::from(error);
                warn(
                    py,
                    &format!("the device {device:?} is not available: {error}"),
                )?;
            }
        }
    }
    Ok(((*last).to_owned(), make(last)?))
}

fn warn(py: Python<'_>, message: &str) -> PyResult<()> {
    let warnings = py.import("warnings")?;
    warnings.call_method1("warn", (message,))?;
    Ok(())
}

/// The devices of providers in their order, with the CPU at the end. A provider is a name, or a pair of a name and options. A warning
/// names each one that kvark does not know.
pub(crate) fn devices_of(providers: &[Bound<'_, PyAny>]) -> Result<Vec<&'static str>> {
    let mut devices = vec![];
    for provider in providers {
        let name: String = match provider.extract() {
            Ok(name) => name,
            Err(_) => provider.get_item(0)?.extract()?,
        };
        match PROVIDERS.iter().find(|(known, _)| *known == name) {
            Some((_, device)) => devices.push(*device),
            None => {
                let known: Vec<&str> = PROVIDERS.iter().map(|(name, _)| *name).collect();
                let known = known.join(" and ");
                let message = format!("there is no provider {name:?}, only {known}");
                warn(provider.py(), &message)?;
            }
        }
    }
    if !devices.contains(&"cpu") {
        devices.push("cpu");
    }
    Ok(devices)
}
