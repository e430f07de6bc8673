//! `--device`: the one place where the command makes its backend.

use anyhow::Result;
use clap::{Args, ValueEnum};
use kvark::Cpu;
use kvark::backend::{Backend, Cuda, Devices};
use kvark::catalogue::ModelStore;
use std::path::PathBuf;
use std::sync::Arc;

/// Selects the device.
#[derive(Args, Clone)]
pub(crate) struct DeviceArgs {
    /// The device to compute on
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Device,
}

/// Selects the weights that stay in the host's memory.
#[derive(Args)]
pub(crate) struct HostExpertArgs {
    /// Keep the routed experts of all layers in the host's memory, from which the GPU reads them; on the CPU they are there anyway
    #[arg(long, conflicts_with = "n_cpu_moe")]
    cpu_moe: bool,
    /// Keep the routed experts of the first N layers in the host's memory
    #[arg(long, value_name = "N", default_value_t = 0)]
    n_cpu_moe: usize,
}

impl HostExpertArgs {
    /// The number of layers whose routed experts stay in the host's memory.
    pub(crate) fn layers(&self) -> usize {
        match self.cpu_moe {
            true => usize::MAX,
            false => self.n_cpu_moe,
        }
    }
}

/// A device that this build has a backend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// The CPU, with its best instruction set (KVARK_ISA forces another)
    Cpu,
    /// The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs
    Cuda,
}

impl DeviceArgs {
    /// The backend of the chosen device.
    pub(crate) fn backend(&self) -> Result<Box<dyn Backend>> {
        match self.device {
            Device::Cpu => Ok(Box::new(Cpu::new()?)),
            Device::Cuda => Ok(Box::new(self.devices()?)),
        }
    }

    /// The device of this name.
    ///
    /// # Errors
    /// If there is none; the message lists those that there are.
    pub(crate) fn named(name: &str) -> Result<DeviceArgs> {
        let device = Device::from_str(name, false);
        let device = device.map_err(|_| {
            let all = Device::value_variants().iter();
            let names =
                all.filter_map(|device| Some(device.to_possible_value()?.get_name().to_owned()));
            let names = names.collect::<Vec<_>>().join(" or ");
            anyhow::anyhow!("there is no device {name:?}, it must be {names}")
        })?;
        Ok(DeviceArgs { device })
    }

    /// The devices that nodes are tried on in turn: the CPU runs what a GPU has no kernels for.
    pub(crate) fn devices(&self) -> Result<Devices> {
        let mut devices: Vec<Arc<dyn Backend>> = vec![];
        if self.device == Device::Cuda {
            devices.push(Arc::new(Cuda::new(cubin_folder())?));
        }
        devices.push(Arc::new(Cpu::new()?));
        Ok(Devices::new(devices))
    }

    /// The name of the GPU, if one is chosen and can be opened.
    pub(crate) fn gpu(&self) -> Option<String> {
        match self.device {
            Device::Cpu => None,
            Device::Cuda => {
                let facts = Cuda::new(cubin_folder()).ok()?.facts().clone();
                Some(format!(
                    "{} ({}), driver for CUDA {}",
                    facts.name, facts.arch, facts.driver
                ))
            }
        }
    }
}

/// The folder of compiled kernels; `None` if there is no folder for kvark's files.
fn cubin_folder() -> Option<PathBuf> {
    Some(ModelStore::from_env().ok()?.cubin_folder())
}
