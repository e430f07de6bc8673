//! A parallel loop for large copies and checksums.

/// Work on fewer bytes than this runs on one thread.
const MIN_PARALLEL_BYTES: usize = 1 << 20;

/// Calls `work` once for each job, on all cores if the jobs process at least 1 MiB (`bytes`) in total.
pub fn for_each<J: Send>(bytes: usize, jobs: &mut [J], work: impl Fn(&mut J) + Sync) {
    let threads = match bytes < MIN_PARALLEL_BYTES {
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
