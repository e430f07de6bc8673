//! `--device`: the one place where the command makes its backend.

use anyhow::Result;
use clap::{Args, ValueEnum};
use kvark::Cpu;
use kvark::backend::Backend;

/// Selects the device.
#[derive(Args)]
pub(crate) struct DeviceArgs {
    /// The device to compute on
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Device,
}

/// A device that this build has a backend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// The CPU, with its best instruction set (KVARK_ISA forces another)
    Cpu,
}

impl DeviceArgs {
    /// The backend of the chosen device.
    pub(crate) fn backend(&self) -> Result<Box<dyn Backend>> {
        match self.device {
            Device::Cpu => Ok(Box::new(Cpu::new()?)),
        }
    }
}
