//! How weights come to be packed: once in a process, and once for all where a folder keeps them.

use super::kept::{Chunk, Kept, Writing};
use super::weights::{self, Form, Rows, STRIP};
use crate::isa::IntegerKernel;
use crate::kernels::Context;
use crate::simd::Whole;
use backend::{BackendError, BackendErrorKind, CompileOptions, ProgressCallback};
use base::{Bytes, DType};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// A packed weight. Packing is done once per process and source, however many executables use it.
pub(crate) struct Packed {
    bytes: Bytes,
    /// Keeps the source's address from being given to another weight.
    source: Bytes,
    /// The last of the weights to go waits for the file they are written to.
    _writing: Option<Arc<Writing>>,
}

/// What is packed now, by address, type and depth of the source.
type Cache = HashMap<(usize, DType, usize), Weak<Packed>>;
static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

/// A weight to be packed: rows `[n, k]` of a type that has a packed form.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) dtype: DType,
    pub(crate) form: Form,
    pub(crate) rows: &'a Bytes,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Source<'_> {
    fn key(&self) -> (usize, DType, usize) {
        (self.rows.as_ptr() as usize, self.dtype, self.k)
    }

    pub(super) fn packed_bytes(&self) -> usize {
        self.form.packed_bytes(self.n, self.k)
    }

    /// Packs a strip; rows past the last are zeros.
    #[inline(always)]
    fn pack<S: Whole>(&self, s: S, strip: usize, out: &mut [u8]) {
        let row_bytes = self.dtype.row_bytes(self.k).unwrap_or(0);
        let first = strip * STRIP;
        let count = STRIP.min(self.n - first);
        let rows = Rows {
            dtype: self.dtype,
            form: self.form,
            k: self.k,
            bytes: &self.rows[first * row_bytes..][..count * row_bytes],
            row_bytes,
        };
        if self.form.whole() {
            super::whole::pack_strip(s, rows, out);
        } else {
            weights::pack_strip(rows, out);
        }
    }
}

/// Packs a strip with a tier's instructions; the bytes are the same on all of them.
struct Pack<'a> {
    weight: &'a Source<'a>,
    strip: usize,
    out: &'a mut [u8],
}

impl IntegerKernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Whole>(self, s: S) {
        self.weight.pack(s, self.strip, self.out);
    }
}

impl Packed {
    /// The packed forms of some weights. Those that this process does not have yet are mapped from the options' folder, and
    /// those that are not there either are packed and kept in it.
    pub(crate) fn all(
        weights: &[Source<'_>],
        ctx: &Context<'_>,
        options: &CompileOptions,
    ) -> Result<Vec<Arc<Packed>>, BackendError> {
        let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |cache: &Cache, weight: &Source<'_>| {
            let found = cache.get(&weight.key()).and_then(Weak::upgrade);
            found.filter(|packed| packed.source.len() == weight.rows.len())
        };
        let mut missing: Vec<Source<'_>> = Vec::new();
        for weight in weights {
            let listed = missing.iter().any(|other| other.key() == weight.key());
            if !listed && find(&cache, weight).is_none() {
                missing.push(*weight);
            }
        }
        let (bytes, writing) = load(&missing, ctx, options)?;
        cache.retain(|_, packed| packed.strong_count() > 0);
        // Kept alive until the list below holds them.
        let mut made = Vec::new();
        for (weight, bytes) in missing.iter().zip(bytes) {
            let packed = Arc::new(Packed {
                bytes,
                source: weight.rows.clone(),
                _writing: writing.clone(),
            });
            cache.insert(weight.key(), Arc::downgrade(&packed));
            made.push(packed);
        }
        let all = weights.iter().map(|weight| find(&cache, weight));
        let all = all.map(|packed| packed.expect("found or made above"));
        Ok(all.collect())
    }

    /// Bytes it takes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(crate) fn address(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
}

/// The packed bytes of every weight, mapped or made, and the file that is being written of them.
fn load(
    weights: &[Source<'_>],
    ctx: &Context<'_>,
    options: &CompileOptions,
) -> Result<(Vec<Bytes>, Option<Arc<Writing>>), BackendError> {
    let progress = Progress::new(weights, options.progress.as_ref());
    let folder = options.packed_folder.as_deref();
    let kept = folder.and_then(|folder| Kept::open(folder, weights));
    let found = |weight: &Source<'_>| kept.as_ref()?.find(weight);
    let found: Vec<_> = weights.iter().map(found).collect();
    let mut bytes = verify(found, ctx, &progress);
    if let Some(kept) = &kept
        && !progress.stopped()
    {
        kept.reseal(bytes.iter().flatten().count());
    }
    let missing: Vec<usize> = (0..weights.len()).filter(|i| bytes[*i].is_none()).collect();
    let sources: Vec<_> = missing.iter().map(|i| &weights[*i]).collect();
    for (i, packed) in missing.iter().zip(pack(&sources, ctx, &progress)) {
        bytes[*i] = Some(packed);
    }
    if progress.stopped() {
        return Err(BackendErrorKind::Interrupted.into());
    }
    let bytes: Vec<Bytes> = bytes.into_iter().flatten().collect();
    let writing = match folder {
        Some(folder) if !missing.is_empty() => Writing::start(folder, weights, &bytes),
        _ => None,
    };
    Ok((bytes, writing.map(Arc::new)))
}

/// Reads mapped weights from their file and verifies their chunks, shared among threads. A damaged weight becomes `None`.
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

/// Packs weights side by side in one piece of memory, their strips shared among threads.
fn pack(weights: &[&Source<'_>], ctx: &Context<'_>, progress: &Progress<'_>) -> Vec<Bytes> {
    let sizes = weights.iter().map(|weight| weight.packed_bytes());
    let all = Bytes::filled(sizes.clone().sum(), |mut rest| {
        let mut strips = Vec::new();
        for weight in weights {
            let (own, behind) = rest.split_at_mut(weight.packed_bytes());
            rest = behind;
            let (_, _, strip_bytes) = weight.form.offsets(weight.k);
            let own = own.chunks_mut(strip_bytes.max(1)).map(Mutex::new);
            strips.extend(own.enumerate().map(|(i, out)| (*weight, i, out)));
        }
        ctx.threads.run(strips.len(), &|task, _| {
            let (weight, strip, out) = &strips[task];
            if progress.stopped() {
                return;
            }
            let mut out = out.lock().expect("each strip is packed once");
            ctx.isa.run_integers(Pack {
                weight,
                strip: *strip,
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

/// How far the weights are, and who is told.
struct Progress<'a> {
    loading: Option<&'a ProgressCallback>,
    done: AtomicUsize,
    total: usize,
    stopped: AtomicBool,
}

impl<'a> Progress<'a> {
    /// Bytes after which it is told again.
    const STEP: usize = 1 << 20;

    fn new(weights: &[Source<'_>], loading: Option<&'a ProgressCallback>) -> Progress<'a> {
        Progress {
            loading,
            done: AtomicUsize::new(0),
            total: weights.iter().map(Source::packed_bytes).sum(),
            stopped: AtomicBool::new(false),
        }
    }

    fn add(&self, bytes: usize) {
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        let done = before + bytes;
        let tells = before / Progress::STEP != done / Progress::STEP || done == self.total;
        if let Some(loading) = self.loading.filter(|_| tells)
            && !loading.report(done, self.total)
        {
            self.stopped.store(true, Ordering::Relaxed);
        }
    }

    /// Bytes that count as done turn out to be still to do.
    fn take_back(&self, bytes: usize) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
