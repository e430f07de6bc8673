//! Packed weights: cached per process, mapped from a packed file, or packed on all threads.

use super::packed_file::{Chunk, PackedFile, PackedFileWriter, write_in_pieces};
use super::weight_source::{PackPanel, WeightSource};
use crate::kernels::Context;
use backend::{BackendError, BackendErrorKind, CompileOptions, ProgressCallback};
use base::{Bytes, DType};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Instant;

/// A packed weight. A source is packed once per process, however many executables use it.
pub(crate) struct PackedWeight {
    bytes: Bytes,
    /// Keeps the source alive, so that its address is not reused for another weight.
    source: Bytes,
    /// Whether its parts are read when they are needed.
    on_demand: bool,
    /// Shared by all weights of a file that is being written; dropping the last of them waits for the writer.
    _writing: Option<Arc<PackedFileWriter>>,
}

/// The packed weights of this process, by address, type and depth of the source.
type Cache = HashMap<(usize, DType, usize), Weak<PackedWeight>>;
static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

impl PackedWeight {
    /// Returns the packed weights. Weights that this process has not packed yet are mapped from the options' folder;
    /// weights missing there are packed and written to it.
    ///
    /// # Errors
    /// `Interrupted` if the progress callback cancels loading.
    pub(crate) fn load_all(
        weights: &[WeightSource<'_>],
        ctx: &Context<'_>,
        options: &CompileOptions,
    ) -> Result<Vec<Arc<PackedWeight>>, BackendError> {
        let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |cache: &Cache, weight: &WeightSource<'_>| {
            let found = cache.get(&weight.key()).and_then(Weak::upgrade);
            found.filter(|packed| packed.source.len() == weight.rows.len())
        };
        let mut missing: Vec<WeightSource<'_>> = Vec::new();
        for weight in weights {
            let listed = missing.iter().any(|other| other.key() == weight.key());
            if !listed && find(&cache, weight).is_none() {
                missing.push(*weight);
            }
        }
        let (bytes, writing) = load(&missing, ctx, options)?;
        cache.retain(|_, packed| packed.strong_count() > 0);
        // Kept alive until `all` holds them.
        let mut made = Vec::new();
        for (weight, bytes) in missing.iter().zip(bytes) {
            let packed = Arc::new(PackedWeight {
                bytes,
                source: weight.rows.clone(),
                on_demand: weight.on_demand,
                _writing: writing.clone(),
            });
            cache.insert(weight.key(), Arc::downgrade(&packed));
            made.push(packed);
        }
        let all = weights.iter().map(|weight| find(&cache, weight));
        let all = all.map(|packed| packed.expect("found or made above"));
        Ok(all.collect())
    }

    /// The size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether its parts are read from the file of packed weights when they are needed.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.on_demand
    }

    /// The packed bytes.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(crate) fn address(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
}

/// The packed bytes of every weight, mapped or packed, and the writer of the file that will hold them.
fn load(
    weights: &[WeightSource<'_>],
    ctx: &Context<'_>,
    options: &CompileOptions,
) -> Result<(Vec<Bytes>, Option<Arc<PackedFileWriter>>), BackendError> {
    let progress = Progress::new(weights, options.progress.as_ref());
    let folder = options.packed_folder.as_deref();
    if weights.iter().any(|weight| weight.on_demand) {
        let bytes = load_on_demand(weights, folder, ctx, &progress)?;
        return Ok((bytes, None));
    }
    let packed_file = folder.and_then(|folder| PackedFile::open(folder, weights));
    let found = |weight: &WeightSource<'_>| packed_file.as_ref()?.find(weight);
    let found: Vec<_> = weights.iter().map(found).collect();
    let mut bytes = verify(found, ctx, &progress);
    if let Some(packed_file) = &packed_file
        && !progress.stopped()
    {
        packed_file.reseal(bytes.iter().flatten().count());
    }
    let missing: Vec<usize> = (0..weights.len()).filter(|i| bytes[*i].is_none()).collect();
    let sources: Vec<_> = missing.iter().map(|i| &weights[*i]).collect();
    let begun = Instant::now();
    for (i, packed) in missing.iter().zip(pack(&sources, ctx, &progress)) {
        bytes[*i] = Some(packed);
    }
    if progress.stopped() {
        return Err(BackendErrorKind::Interrupted.into());
    }
    let bytes: Vec<Bytes> = bytes.into_iter().flatten().collect();
    let writing = match folder {
        Some(folder) if !missing.is_empty() => {
            let others = packed_file.as_ref().map(|file| file.others(weights));
            let others = others.unwrap_or_default();
            PackedFileWriter::start(folder, weights, &bytes, others, begun.elapsed())
        }
        _ => None,
    };
    Ok((bytes, writing.map(Arc::new)))
}

/// The packed bytes of weights of which parts are read when they are needed, and of the others of their model: all mapped. What the file
/// of packed weights lacks is packed into a new one, piece by piece.
fn load_on_demand(
    weights: &[WeightSource<'_>],
    folder: Option<&Path>,
    ctx: &Context<'_>,
    progress: &Progress<'_>,
) -> Result<Vec<Bytes>, BackendError> {
    let folder = folder.ok_or_else(|| {
        let reason = "a budget for experts needs the file of packed weights";
        BackendErrorKind::Options(reason.to_owned())
    })?;
    if let Some(packed_file) = PackedFile::open(folder, weights) {
        let found = weights.iter().map(|weight| packed_file.find(weight));
        let bytes = verify(found.collect(), ctx, progress);
        if progress.stopped() {
            return Err(BackendErrorKind::Interrupted.into());
        }
        let intact = bytes.iter().flatten().count();
        packed_file.reseal(intact);
        if intact == weights.len() {
            let bytes = bytes.into_iter().flatten().collect();
            return Ok(released(&packed_file, weights, bytes));
        }
    }
    let failed = |error: io::Error| match progress.stopped() {
        true => BackendErrorKind::Interrupted,
        false => BackendErrorKind::Options(format!(
            "a budget for experts needs the file of packed weights, which cannot be written to {}: {error}",
            folder.display()
        )),
    };
    progress.restart();
    let written = write_in_pieces(folder, weights, &mut |weight, first, out| {
        pack_panels(weight, first, out, ctx, progress);
        match progress.stopped() {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    });
    written.map_err(failed)?;
    let found = || {
        let packed_file = PackedFile::open(folder, weights)?;
        // They were packed just now: their checksums need no proof.
        let bytes = weights
            .iter()
            .map(|weight| Some(packed_file.find(weight)?.0));
        Some(released(
            &packed_file,
            weights,
            bytes.collect::<Option<_>>()?,
        ))
    };
    Ok(found().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?)
}

/// The weights, of which those that are read on demand have no resident page: the system maps pages around those that are read.
fn released(
    packed_file: &PackedFile,
    weights: &[WeightSource<'_>],
    bytes: Vec<Bytes>,
) -> Vec<Bytes> {
    packed_file.release_header();
    let all = weights.iter().zip(&bytes);
    for (_, bytes) in all.filter(|(weight, _)| weight.on_demand) {
        bytes.release();
    }
    bytes
}

/// Packs some panels of a weight, from panel `first` on, on all threads.
fn pack_panels(
    weight: &WeightSource<'_>,
    first: usize,
    out: &mut [u8],
    ctx: &Context<'_>,
    progress: &Progress<'_>,
) {
    let panel_bytes = weight.format.panel_bytes(weight.k).max(1);
    let panels: Vec<_> = out.chunks_mut(panel_bytes).map(Mutex::new).collect();
    ctx.threads.run(panels.len(), &|task, _| {
        if progress.stopped() {
            return;
        }
        let mut out = panels[task].lock().expect("each panel is packed once");
        ctx.isa.run_integers(PackPanel {
            weight,
            panel: first + task,
            out: &mut out,
        });
        progress.add(out.len());
    });
}

/// Reads mapped weights from their file and verifies their chunks on all threads. A damaged weight becomes `None`.
fn verify(
    mapped: Vec<Option<(Bytes, Vec<Chunk>)>>,
    ctx: &Context<'_>,
    progress: &Progress<'_>,
) -> Vec<Option<Bytes>> {
    let damaged: Vec<AtomicBool> = mapped.iter().map(|_| AtomicBool::new(false)).collect();
    let mut chunks: Vec<(usize, &Chunk)> = Vec::new();
    for (weight, found) in mapped.iter().enumerate() {
        let own = found.iter().flat_map(|(_, chunks)| chunks);
        chunks.extend(own.map(|chunk| (weight, chunk)));
    }
    ctx.threads.run(chunks.len(), &|task, _| {
        let (weight, chunk) = chunks[task];
        if !progress.stopped() {
            if !chunk.load() {
                damaged[weight].store(true, Ordering::Relaxed);
            }
            progress.add(chunk.len());
        }
    });
    let intact = |(found, damaged): (Option<(Bytes, Vec<Chunk>)>, AtomicBool)| {
        let (bytes, _) = found?;
        if damaged.into_inner() {
            progress.take_back(bytes.len());
            return None;
        }
        Some(bytes)
    };
    mapped.into_iter().zip(damaged).map(intact).collect()
}

/// Packs weights one after the other in one allocation, their panels on all threads.
fn pack(weights: &[&WeightSource<'_>], ctx: &Context<'_>, progress: &Progress<'_>) -> Vec<Bytes> {
    let sizes = weights.iter().map(|weight| weight.packed_bytes());
    let all = Bytes::filled(sizes.clone().sum(), |mut rest| {
        let mut panels = Vec::new();
        for weight in weights {
            let (own, others) = rest.split_at_mut(weight.packed_bytes());
            rest = others;
            let panel_bytes = weight.format.panel_bytes(weight.k);
            let own = own.chunks_mut(panel_bytes.max(1)).map(Mutex::new);
            panels.extend(own.enumerate().map(|(i, out)| (*weight, i, out)));
        }
        ctx.threads.run(panels.len(), &|task, _| {
            let (weight, panel, out) = &panels[task];
            if progress.stopped() {
                return;
            }
            let mut out = out.lock().expect("each panel is packed once");
            ctx.isa.run_integers(PackPanel {
                weight,
                panel: *panel,
                out: &mut out,
            });
            progress.add(out.len());
        });
    });
    let mut start = 0;
    let each = sizes.map(|size| {
        start += size;
        let range = start - size..start;
        all.slice(range).expect("a part of the whole")
    });
    each.collect()
}

/// ProgressCallback progress, reported to the progress callback.
struct Progress<'a> {
    loading: Option<&'a ProgressCallback>,
    done: AtomicUsize,
    total: usize,
    stopped: AtomicBool,
}

impl<'a> Progress<'a> {
    /// Bytes between two reports.
    const STEP: usize = 1 << 20;

    fn new(weights: &[WeightSource<'_>], loading: Option<&'a ProgressCallback>) -> Progress<'a> {
        Progress {
            loading,
            done: AtomicUsize::new(0),
            total: weights.iter().map(WeightSource::packed_bytes).sum(),
            stopped: AtomicBool::new(false),
        }
    }

    fn add(&self, bytes: usize) {
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        let done = before + bytes;
        let reports = before / Progress::STEP != done / Progress::STEP || done == self.total;
        if let Some(loading) = self.loading.filter(|_| reports)
            && !loading.report(done, self.total)
        {
            self.stopped.store(true, Ordering::Relaxed);
        }
    }

    /// Subtracts bytes that were counted but must be loaded again.
    fn take_back(&self, bytes: usize) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts from the beginning.
    fn restart(&self) {
        self.done.store(0, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
