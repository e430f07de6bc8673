//! Packed files are written, found again, and verified.

use super::super::format::PackedFormat;
use super::super::packed_weight::PackedWeight;
use super::*;
use crate::isa::Isa;
use crate::kernels::Context;
use crate::thread_pool::ThreadPool;
use backend::{BackendErrorKind, CompileOptions, ProgressCallback};
use base::DType;
use conformance::TestRng;
use std::sync::Mutex;

/// Two weights of five million bytes, in a file with something before them.
const SHAPES: [(DType, usize, usize); 2] = [(DType::Q4_1, 4096, 1024), (DType::Q6_K, 2000, 1024)];
const BEFORE: usize = 96;

/// A temporary folder with a model file.
struct ModelFolder(PathBuf);

impl ModelFolder {
    fn new(name: &str) -> ModelFolder {
        let folder = format!("kvark-kept-{name}-{}", std::process::id());
        let dir = ModelFolder(std::env::temp_dir().join(folder));
        fs::create_dir_all(&dir.0).unwrap();
        dir.write(1);
        dir
    }

    fn model(&self) -> PathBuf {
        self.0.join("model.gguf")
    }

    fn folder(&self) -> PathBuf {
        self.0.join("packed")
    }

    /// Writes the model file again.
    fn write(&self, seed: u64) {
        let mut noise = TestRng::new(seed);
        let mut file = vec![7; BEFORE];
        for (dtype, n, k) in SHAPES {
            file.extend_from_slice(&noise.weights(dtype, n * k));
        }
        fs::write(self.model(), file).unwrap();
    }

    /// The names of the packed files.
    fn names(&self) -> Vec<String> {
        let files = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let mut names: Vec<String> = files
            .map(|file| file.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn packed_file(&self) -> PathBuf {
        let names = self.names();
        let [name] = &names[..] else {
            panic!("expected one packed file, not {names:?}");
        };
        self.folder().join(name)
    }

    fn options(&self) -> CompileOptions {
        CompileOptions {
            packed_folder: Some(self.folder()),
            ..CompileOptions::default()
        }
    }

    /// The packed weights as a new process would load them, and whether they were found.
    fn load(&self) -> (Vec<Vec<u8>>, bool) {
        let packed = self.load_with(&self.options()).unwrap();
        let bytes = packed.iter().map(|packed| packed.bytes());
        let found = bytes.clone().all(|bytes| bytes.is_mapped());
        (bytes.map(|bytes| bytes.to_vec()).collect(), found)
    }

    fn load_with(
        &self,
        options: &CompileOptions,
    ) -> Result<Vec<Arc<PackedWeight>>, backend::BackendError> {
        self.load_as(options, false)
    }

    fn load_as(
        &self,
        options: &CompileOptions,
        on_demand: bool,
    ) -> Result<Vec<Arc<PackedWeight>>, backend::BackendError> {
        self.load_some(options, on_demand, 0..SHAPES.len())
    }

    /// Loads some of the weights, as one of several graphs of the file does.
    fn load_some(
        &self,
        options: &CompileOptions,
        on_demand: bool,
        some: Range<usize>,
    ) -> Result<Vec<Arc<PackedWeight>>, backend::BackendError> {
        let threads = ThreadPool::new(2);
        let ctx = Context {
            isa: *Isa::available().last().unwrap(),
            threads: &threads,
        };
        let model = Bytes::map(&self.model()).unwrap();
        let mut at = BEFORE;
        let rows = SHAPES.map(|(dtype, n, k)| {
            let start = at;
            at += n * dtype.row_bytes(k).unwrap();
            model.slice(start..at).unwrap()
        });
        let weights = SHAPES
            .iter()
            .zip(&rows)
            .map(|(&(dtype, n, k), rows)| WeightSource {
                dtype,
                format: PackedFormat::of(dtype).unwrap(),
                rows,
                n,
                k,
                on_demand,
            });
        PackedWeight::load_all(&weights.collect::<Vec<_>>()[some], &ctx, options)
    }
}

impl Drop for ModelFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_second_start_maps_the_packed_file() {
    let dir = ModelFolder::new("second");
    let (made, found) = dir.load();
    assert!(!found, "nothing was there");
    assert_eq!(dir.load(), (made.clone(), true));
    assert!(dir.names()[0].starts_with("model-"));

    // After another model replaces the file, the packed file is neither used nor left in the folder.
    dir.write(2);
    let old = dir.packed_file();
    let (others, found) = dir.load();
    assert!(!found && others != made);
    assert_ne!(dir.packed_file(), old);
    assert_eq!(dir.load(), (others, true));

    fs::remove_file(dir.model()).unwrap();
    remove_stale_packed_files(&dir.folder());
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn a_graph_that_writes_the_file_keeps_the_weights_of_others() {
    let dir = ModelFolder::new("share");
    let (whole, _) = dir.load();
    let load = |weight: usize| {
        let packed = dir.load_some(&dir.options(), false, weight..weight + 1);
        let packed = packed.unwrap();
        assert!(
            packed[0].bytes()[..] == whole[weight][..],
            "weight {weight}"
        );
        packed[0].bytes().is_mapped()
    };
    let damage = |weights: &[usize]| {
        let mut bytes = fs::read(dir.packed_file()).unwrap();
        let ranges = parse(&bytes).unwrap().ranges.into_values();
        let ranges: Vec<_> = ranges.map(|(range, _)| range).collect();
        for weight in weights {
            let len = whole[*weight].len();
            let range = ranges.iter().find(|range| range.len() == len).unwrap();
            bytes[range.start] ^= 1;
        }
        fs::write(dir.packed_file(), &bytes).unwrap();
    };
    damage(&[0]);
    assert!(!load(0), "packed again");
    assert!(load(1) && load(0), "both are in the file");

    // A damaged weight of another graph is not taken over.
    damage(&[0, 1]);
    assert!(!load(0) && !load(1));
}

#[test]
fn damaged_or_partial_weights_are_packed_again() {
    let dir = ModelFolder::new("damaged");
    let (made, _) = dir.load();
    let whole = fs::read(dir.packed_file()).unwrap();
    let version = |bytes: &mut Vec<u8>| bytes[8] ^= 1;
    let record = |bytes: &mut Vec<u8>| bytes[HEADER_BYTES + 8] ^= 64;
    let partition = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1);
    let empty = |bytes: &mut Vec<u8>| bytes.clear();
    for damage in [version, record, partition, empty] {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        fs::write(dir.packed_file(), bytes).unwrap();
        assert_eq!(dir.load(), (made.clone(), false));
        assert_eq!(fs::read(dir.packed_file()).unwrap(), whole);
    }
    // One bit, in the first and the last byte of every weight's chunks, in the middle of them, and in their checksums.
    let mapped = Bytes::map(&dir.packed_file()).unwrap();
    let ranges = parse(&mapped).unwrap().ranges;
    drop(mapped);
    let mut damaged: Vec<usize> = Vec::new();
    for (weight, sums_at) in ranges.values() {
        let middle = weight.start + CHUNK + CHUNK / 2;
        let boundary = weight.start + CHUNK;
        damaged.extend([weight.start, boundary - 1, boundary, middle, weight.end - 1]);
        damaged.push(*sums_at);
    }
    for at in damaged {
        let mut bytes = whole.clone();
        bytes[at] ^= 16;
        fs::write(dir.packed_file(), bytes).unwrap();
        assert_eq!(dir.load(), (made.clone(), false), "byte {at}");
        assert_eq!(fs::read(dir.packed_file()).unwrap(), whole, "byte {at}");
    }
    // A partial file of a killed process, for another model.
    fs::write(dir.folder().join(".gone-0.packed.partial"), "half").unwrap();
    remove_stale_packed_files(&dir.folder());
    assert_eq!(fs::read(dir.packed_file()).unwrap(), whole);
}

#[test]
fn a_file_that_was_written_to_loses_its_seal() {
    let dir = ModelFolder::new("sealed");
    let (made, _) = dir.load();
    let modified = || fs::metadata(dir.packed_file()).unwrap().modified().unwrap();
    let whole = fs::read(dir.packed_file()).unwrap();
    let seal = parse(&whole).unwrap().seal;
    assert!(seal.is_on(modified()));
    // The date is that of the writing.
    let apart = SystemTime::now().duration_since(modified());
    let apart = apart.unwrap_or_else(|later| later.duration());
    assert!(apart < Duration::from_secs(24 * 3600), "{apart:?}");

    // A copy has no seal: it is verified, and sealed afterwards.
    fs::write(dir.packed_file(), &whole).unwrap();
    let unsealed = seal.put_on(modified()) + Duration::from_nanos(Seal::UNIT);
    let file = File::options().write(true).open(dir.packed_file());
    file.unwrap().set_modified(unsealed).unwrap();
    assert_eq!(dir.load(), (made.clone(), true));
    assert!(seal.is_on(modified()));

    // A damaged copy is not sealed, and is replaced.
    let mut bytes = whole.clone();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(dir.packed_file(), &bytes).unwrap();
    assert_eq!(dir.load(), (made, false));
    assert_eq!(fs::read(dir.packed_file()).unwrap(), whole);
}

/// Damage without a write, as by a bad disk: the seal is intact.
#[cfg(target_os = "linux")]
#[test]
fn chunks_read_from_disk_are_verified_despite_a_seal() {
    use std::os::fd::AsRawFd;
    let dir = ModelFolder::new("disk");
    let (made, _) = dir.load();
    let seal = fs::metadata(dir.packed_file()).unwrap().modified().unwrap();
    let mut bytes = fs::read(dir.packed_file()).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(dir.packed_file(), &bytes).unwrap();
    let file = File::open(dir.packed_file()).unwrap();
    file.set_modified(seal).unwrap();
    file.sync_all().unwrap();
    // SAFETY: the call takes numbers only.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if is_resident(&Bytes::map(&dir.packed_file()).unwrap()) {
        // Bypasses the test harness' capture, so that a run reports what it skipped.
        let why = "this file system keeps its files in memory";
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("skipped: {why}\n"));
        return;
    }
    assert_eq!(dir.load(), (made, false));
}

#[test]
fn no_header_gives_a_range_outside_the_file() {
    let weights = [
        (1, Bytes::from(&[5; 64][..])),
        (2, Bytes::from(&[6; 128][..])),
    ];
    let path = "models/some.gguf";
    let sizes = weights.each_ref().map(|(key, bytes)| (*key, bytes.len()));
    let sums = weights.iter().flat_map(|(_, bytes)| checksums(bytes));
    let (mut whole, _) = head(path, &sizes, &sums.collect::<Vec<_>>());
    weights
        .iter()
        .for_each(|(_, bytes)| whole.extend(&bytes[..]));
    let Contents { ranges, model, .. } = parse(&whole).unwrap();
    assert_eq!(model, path.as_bytes());
    for (key, bytes) in &weights {
        let (range, sums_at) = ranges[key].clone();
        assert_eq!(whole[range], bytes[..]);
        assert_eq!(whole[sums_at..][..8], xxh64(bytes, 0).to_le_bytes());
    }
    let end = HEADER_BYTES + weights.len() * (RECORD_BYTES + 8) + path.len();
    let mut noise = TestRng::new(3);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        if noise.bits().is_multiple_of(4) {
            bytes.truncate((noise.bits() as usize % whole.len()).max(end + 8));
            let stated = bytes.len() as u64;
            bytes[16..24].copy_from_slice(&stated.to_le_bytes());
        }
        for _ in 0..noise.bits() % 3 {
            let at = noise.bits() as usize % end;
            bytes[at] = match noise.bits() % 3 {
                0 => 0xff,
                1 => 0,
                _ => noise.bits() as u8,
            };
        }
        // With a valid checksum, as if the damage were intended.
        let sum = xxh64(&bytes[..end], 0);
        bytes[end..end + 8].copy_from_slice(&sum.to_le_bytes());
        match parse(&bytes) {
            Some(Contents { ranges, .. }) => {
                accepted += 1;
                assert!(ranges.values().all(|(range, sums_at)| {
                    range.end <= bytes.len() && sums_at + 8 * range.len().div_ceil(CHUNK) <= end
                }));
            }
            None => refused += 1,
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} {refused}");
}

#[test]
fn the_progress_callback_gets_every_byte_and_can_cancel() {
    let dir = ModelFolder::new("watched");
    let told = Arc::new(Mutex::new(Vec::new()));
    let watch = |most: usize| {
        let told = told.clone();
        CompileOptions {
            progress: Some(ProgressCallback::new(move |done, total| {
                told.lock().unwrap().push((done, total));
                done < most
            })),
            ..dir.options()
        }
    };
    let error = dir
        .load_with(&watch(0))
        .err()
        .expect("loading was cancelled");
    assert!(matches!(error.kind(), BackendErrorKind::Interrupted));
    assert_eq!(dir.names(), [""; 0], "no file is written of half a model");

    // Once packed, once mapped.
    for _ in 0..2 {
        told.lock().unwrap().clear();
        let packed = dir.load_with(&watch(usize::MAX)).unwrap();
        let size: usize = packed.iter().map(|packed| packed.len()).sum();
        let told = told.lock().unwrap();
        assert!(
            told.iter()
                .all(|(done, total)| done <= total && *total == size)
        );
        assert!(told.contains(&(size, size)) && told.len() > 1);
    }
    assert!(dir.load().1);
}

/// A model of which parts are read on demand is packed piece by piece, into the same file.
#[test]
fn weights_that_are_read_on_demand_are_packed_into_the_same_file() {
    let dir = ModelFolder::new("demand");
    let (made, _) = dir.load();
    let whole = fs::read(dir.packed_file()).unwrap();
    fs::remove_file(dir.packed_file()).unwrap();
    let load = || {
        let packed = dir.load_as(&dir.options(), true).unwrap();
        assert!(packed.iter().all(|packed| packed.bytes().is_mapped()));
        let bytes = packed.iter().map(|packed| packed.bytes().to_vec());
        bytes.collect::<Vec<_>>()
    };
    assert_eq!(load(), made);
    assert_eq!(fs::read(dir.packed_file()).unwrap(), whole);
    let sealed = fs::metadata(dir.packed_file()).unwrap().modified().unwrap();
    assert!(parse(&whole).unwrap().seal.is_on(sealed));
    assert_eq!(load(), made);

    // A file that lost its seal is verified, and packed again if it is damaged.
    let mut bytes = whole.clone();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(dir.packed_file(), &bytes).unwrap();
    assert_eq!(load(), made);
    assert_eq!(fs::read(dir.packed_file()).unwrap(), whole);

    // It needs the file.
    let error = dir.load_as(&CompileOptions::default(), true).err().unwrap();
    assert!(
        matches!(error.kind(), BackendErrorKind::Options(_)),
        "{error}"
    );
    fs::remove_dir_all(dir.folder()).unwrap();
    fs::write(dir.folder(), "no folder").unwrap();
    let error = dir.load_as(&dir.options(), true).err().unwrap();
    assert!(
        matches!(error.kind(), BackendErrorKind::Options(_)),
        "{error}"
    );
}

/// Packed files are read by later builds: when a layout changes, [`VERSION`] must change, and then the numbers here.
/// Versions 1 and 2 have the same layouts.
#[test]
fn layouts_are_those_of_the_version() {
    let threads = ThreadPool::new(1);
    let ctx = Context {
        isa: Isa::available()[0],
        threads: &threads,
    };
    let mut noise = TestRng::new(11);
    let mut sums = Vec::new();
    for dtype in DType::ALL {
        let (Some(format), n, k) = (PackedFormat::of(dtype), 17, 512) else {
            continue;
        };
        let rows = &noise.weights(dtype, n * k);
        let weight = WeightSource {
            dtype,
            format,
            rows,
            n,
            k,
            on_demand: false,
        };
        let packed = PackedWeight::load_all(&[weight], &ctx, &CompileOptions::default()).unwrap();
        sums.push((dtype.name(), xxh64(packed[0].bytes(), 1)));
    }
    let layouts = [
        ("q4_0", 0x2499_c9f7_7710_633f),
        ("q4_1", 0x56e8_a27b_eb33_65b6),
        ("q5_0", 0x784f_c582_8a87_2231),
        ("q5_1", 0xd579_cb39_99dc_33a9),
        ("q8_0", 0x9f1e_9577_896d_93a4),
        ("q2_k", 0xd109_f580_5a82_2aa5),
        ("q3_k", 0x1728_655b_dbf3_3c63),
        ("q4_k", 0x9feb_f438_43c0_cd39),
        ("q5_k", 0x925e_35b0_207e_2df8),
        ("q6_k", 0x0295_c962_2594_2717),
        ("iq4_nl", 0xc091_d299_e59a_a008),
        ("iq4_xs", 0xa65a_f2dc_abda_7fb0),
        ("mxfp4", 0x7948_c164_9567_91f3),
        ("iq2_xxs", 0xa7de_2323_450c_6dc4),
    ];
    assert_eq!(VERSION, 4);
    assert_eq!(sums, layouts);
}
