//! The kernels' sources and their compilation by NVRTC.

use crate::arguments::layout_checks;
use crate::error::{CudaError, CudaErrorKind, NVRTC_VARIABLE};
use crate::format::{DeviceFormat, quant_functions};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The environment variable with a folder of kernel sources to use instead of the built-in ones, to try changes.
pub const KERNELS_VARIABLE: &str = "KVARK_CUDA_KERNELS";

/// The texts of kernels' files, one behind another.
macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("kernels/", $name)))),*].map(text).concat()
    };
}

/// Kernels that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Packing, norms, elementwise functions, attention, KV rows, states, routing and the top-k of rows.
    General,
    /// Products with weights of one format.
    Linear(DeviceFormat),
    /// Steps of one token with weights of one format, for devices of compute capability 9.0 and later.
    Persistent(DeviceFormat),
}

impl Unit {
    /// Every unit.
    pub fn all() -> impl Iterator<Item = Unit> {
        let formats = DeviceFormat::ALL.into_iter();
        let of_format = |format| [Unit::Linear(format), Unit::Persistent(format)];
        std::iter::once(Unit::General).chain(formats.flat_map(of_format))
    }

    /// The name used in file names and messages.
    pub fn name(self) -> String {
        match self {
            Unit::General => "general".to_owned(),
            Unit::Linear(format) => format!("linear_{}", format.name()),
            Unit::Persistent(format) => format!("persistent_{}", format.name()),
        }
    }

    /// The CUDA C++ source.
    pub fn source(self) -> String {
        let shared = sources!("common.cuh", "formats.cuh");
        let of_format = |format: DeviceFormat, own: String| {
            format!("#define LINEAR_FORMAT {}\n{shared}{own}", format as u32)
        };
        match self {
            Unit::General => {
                let own = sources!(
                    "pack.cu",
                    "elementwise.cu",
                    "kv_rows.cu",
                    "recurrent.cu",
                    "experts.cuh",
                    "routing.cu",
                    "attention_common.cuh",
                    "attention.cuh",
                    "attention.cu",
                    "copy_rows.cu",
                    "topk.cu",
                    "uncached.cu",
                    "windows.cu",
                );
                shared + &quant_functions() + &own
            }
            Unit::Linear(format) => {
                let own = sources!(
                    "linear.cuh",
                    "linear_few.cu",
                    "experts.cuh",
                    "experts.cu",
                    "bulk_copy.cuh",
                    "linear_many.cu"
                );
                of_format(format, own)
            }
            Unit::Persistent(format) => {
                let own = sources!(
                    "kv_rows.cu",
                    "attention_common.cuh",
                    "attention.cuh",
                    "linear.cuh",
                    "flagged.cuh",
                    "attention_lone.cuh",
                    "persistent.cu",
                );
                of_format(format, own)
            }
        }
    }
}

/// A kernel source: the built-in one, or the file of that name in the folder that [`KERNELS_VARIABLE`] names.
fn text((name, built_in): (&str, &'static str)) -> String {
    let folder = std::env::var_os(KERNELS_VARIABLE).map(PathBuf::from);
    let file = folder.and_then(|folder| std::fs::read_to_string(folder.join(name)).ok());
    file.unwrap_or_else(|| built_in.to_owned())
}

/// A checksum of all kernel sources, without their comments.
pub fn sources_checksum() -> u64 {
    let all: String = Unit::all().map(Unit::source).collect();
    let code = all
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line).trim_end());
    let code: Vec<&str> = code.filter(|line| !line.is_empty()).collect();
    base::xxh64(code.join("\n").as_bytes(), 0)
}

/// The machine code of a unit and the compiler's report of registers and spills.
pub struct Compiled {
    /// The cubin.
    pub cubin: Vec<u8>,
    /// The assembler's report: registers, shared memory and spills of each kernel.
    pub report: String,
}

/// The options that kernels are compiled with. Nothing is contracted: a row's bits are the same in every variant.
const OPTIONS: [&str; 4] = [
    "--std=c++17",
    "--fmad=false",
    "-default-device",
    "--ptxas-options=-v",
];

/// Compiles a unit for an architecture such as `sm_90`, and has the compiler check that structures have the layouts of those in Rust.
///
/// # Errors
/// `NoCompiler` without NVRTC, and `Compile` with the compiler's first error.
pub fn compile(unit: Unit, arch: &str) -> Result<Compiled, CudaError> {
    let source = unit.source();
    let mut checks = layout_checks(&source);
    if let Unit::Persistent(_) = unit {
        // Earlier architectures compile nothing of it.
        checks = format!("#if __CUDA_ARCH__ >= 900\n{checks}#endif\n");
    }
    compile_source(unit, arch, source + &checks)
}

fn compile_source(unit: Unit, arch: &str, source: String) -> Result<Compiled, CudaError> {
    load_library()?;
    let failed = |log: String| CudaErrorKind::Compile {
        unit: unit.name(),
        arch: arch.to_owned(),
        log,
    };
    let driver = |error: result::NvrtcError| failed(format!("{error}"));
    let source = CString::new(source).expect("sources hold no zero byte");
    let program = Program(result::create_program(&source, None).map_err(driver)?);
    let mut options = OPTIONS.map(str::to_owned).to_vec();
    // Hopper's own instructions are in code for this architecture alone, as a cubin is anyway.
    let target = if arch == "sm_90" { "sm_90a" } else { arch };
    options.push(format!("--gpu-architecture={target}"));
    // SAFETY: the program was created above and is destroyed after its last use.
    let compiled = unsafe { result::compile_program(program.0, &options) };
    let log = program.log();
    if compiled.is_err() {
        let error = log.lines().find(|line| line.contains("error"));
        return Err(failed(error.or(log.lines().next()).unwrap_or("no log").to_owned()).into());
    }
    let mut len = 0;
    // SAFETY: the program is compiled, and `len` is written before it is read.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &mut len) }
        .result()
        .map_err(driver)?;
    let mut cubin = vec![0u8; len];
    // SAFETY: the buffer has the size that NVRTC asked for.
    unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast::<c_char>()) }
        .result()
        .map_err(driver)?;
    Ok(Compiled { cubin, report: log })
}

/// The unit's cubin from the folder, or compiled and stored there.
pub(crate) fn cached(unit: Unit, arch: &str, folder: Option<&Path>) -> Result<Vec<u8>, CudaError> {
    let source = unit.source();
    let sum = base::xxh64(source.as_bytes(), 0);
    let path = folder.map(|f| f.join(format!("{}-{arch}-{sum:016x}.cubin", unit.name())));
    if let Some(cubin) = path.as_ref().and_then(|path| std::fs::read(path).ok()) {
        return Ok(cubin);
    }
    let cubin = compile_source(unit, arch, source)?.cubin;
    if let (Some(folder), Some(path)) = (folder, &path) {
        // A folder that cannot be written only costs the next process the compilation.
        let _ = std::fs::create_dir_all(folder);
        let _ = base::atomic_write(path, |file| std::io::Write::write_all(file, &cubin));
    }
    Ok(cubin)
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program was created by NVRTC.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|c| *c as u8).collect();
        let text = String::from_utf8_lossy(&bytes);
        text.trim_end_matches('\0').to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created by NVRTC and is not used afterwards.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Loads NVRTC from [`NVRTC_VARIABLE`], the library path, or where toolkits are installed.
fn load_library() -> Result<(), CudaError> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        let load = |path: &Path| {
            // SAFETY: NVRTC's initialisers have no preconditions.
            let library = unsafe { libloading::Library::new(path) };
            // Kept open, so that it is found by its name.
            library.map(std::mem::forget).is_ok()
        };
        // NVRTC looks for its built-in declarations by name: they are loaded from its own folder first.
        let open = |path: &Path| {
            let folder = path.parent().and_then(|folder| folder.read_dir().ok());
            for file in folder.into_iter().flatten().flatten() {
                let name = file.file_name();
                if name.to_string_lossy().starts_with("libnvrtc-builtins.so") {
                    load(&file.path());
                }
            }
            load(path)
        };
        let named = std::env::var_os(NVRTC_VARIABLE).map(PathBuf::from);
        if named.is_some_and(|path| open(&path)) {
            return true;
        }
        // SAFETY: as above.
        if unsafe { sys::is_culib_present() } {
            return true;
        }
        let home = std::env::var_os("CUDA_HOME").or_else(|| std::env::var_os("CUDA_PATH"));
        let roots = home.map(PathBuf::from).into_iter();
        let mut roots = roots.chain([PathBuf::from("/usr/local/cuda")]);
        roots.any(|root| {
            let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
            names
                .iter()
                .any(|name| open(&root.join("lib64").join(name)))
        })
    });
    match found {
        // SAFETY: as above; the library found by path is found by its name now.
        true if unsafe { sys::is_culib_present() } => Ok(()),
        _ => Err(CudaErrorKind::NoCompiler.into()),
    }
}
