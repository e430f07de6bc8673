//! Large copies and checksums on all cores.

/// Bytes from which on such work is worth a second thread.
const LARGE: usize = 1 << 20;

/// Does each job once, on all cores where the bytes that they move in all are worth it.
pub fn for_each<J: Send>(bytes: usize, jobs: &mut [J], work: impl Fn(&mut J) + Sync) {
    let threads = match bytes < LARGE {
        true => 1,
        false => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let (work, share) = (&work, jobs.len().div_ceil(threads).max(1));
    std::thread::scope(|scope| {
        let mut shares = jobs.chunks_mut(share);
        let own = shares.next();
        for jobs in shares {
            scope.spawn(move || jobs.iter_mut().for_each(work));
        }
        own.into_iter().flatten().for_each(work);
    });
}
