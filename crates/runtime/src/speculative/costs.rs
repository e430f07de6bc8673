//! `VerifyCosts`: how long forwards take by their rows, measured once and kept beside the packed weights.

use super::tree_proposal::TreeProposal;
use crate::batch_runner::BatchRunner;
use crate::options::RunnerOptions;
use crate::{Model, RuntimeError};
use backend::Backend;
use base::atomic_write;
use kv::MAX_SEQUENCES;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A file with more rows than this is damaged.
const MAX_ROWS: usize = 1 << 16;

/// How long a forward of the target takes, by its rows. Speculators of one runner share it.
#[derive(Clone, Debug, Default)]
pub struct VerifyCosts(Arc<Mutex<Vec<Option<f64>>>>);

/// The weight of a new measurement in the running mean.
const NEW_WEIGHT: f64 = 0.1;

impl VerifyCosts {
    /// Records that a forward of this many rows took `time`.
    pub fn record(&self, rows: usize, time: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() <= rows {
            all.resize(rows + 1, None);
        }
        let time = time.as_secs_f64();
        let Some(mean) = all[rows] else {
            all[rows] = Some(time);
            return;
        };
        // One slow forward of a busy machine must not rule a size out.
        let time = time.min(3.0 * mean);
        // Most of a difference is the machine's speed now, which changes the time of every size.
        let speed = 1.0 + NEW_WEIGHT * (time / mean - 1.0);
        all.iter_mut().flatten().for_each(|mean| *mean *= speed);
        all[rows] = Some(mean * speed + NEW_WEIGHT * (time - mean * speed));
    }

    /// The sizes that were measured, with their seconds.
    pub fn measured(&self) -> Vec<(usize, f64)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().enumerate();
        known
            .filter_map(|(rows, time)| Some((rows, (*time)?)))
            .collect()
    }

    /// The expected seconds of forwards of 1 to `rows` rows: measured, or between the measured neighbours. Costs never fall
    /// with more rows.
    pub(super) fn curve(&self, rows: usize) -> Vec<f64> {
        let known = self.measured();
        let at = |n: usize| {
            let below = known.iter().rev().find(|(rows, _)| *rows <= n);
            let above = known.iter().find(|(rows, _)| *rows >= n);
            match (below, above) {
                (Some((r0, t0)), Some((r1, t1))) if r1 > r0 => {
                    t0 + (t1 - t0) * (n - r0) as f64 / (r1 - r0) as f64
                }
                (Some((_, t)), Some(_)) => *t,
                // Beyond the largest size: a row costs as much as one of that size.
                (Some((r0, t0)), None) => t0 * n as f64 / *r0 as f64,
                (None, Some((_, t))) => *t,
                (None, None) => 1.0 + 0.1 * n as f64,
            }
        };
        let mut highest = 0.0f64;
        let mut curve = Vec::with_capacity(rows);
        for n in 1..=rows {
            highest = highest.max(at(n));
            curve.push(highest);
        }
        curve
    }

    /// The costs that [`save`](VerifyCosts::save) wrote; `None` if the file is missing or damaged.
    pub(crate) fn load(path: &Path) -> Option<VerifyCosts> {
        let text = std::fs::read_to_string(path).ok()?;
        let costs = VerifyCosts::default();
        for line in text.lines() {
            let (rows, seconds) = line.split_once(' ')?;
            let rows = rows
                .parse()
                .ok()
                .filter(|rows| (1..=MAX_ROWS).contains(rows))?;
            costs.record(
                rows,
                Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?,
            );
        }
        (!text.is_empty()).then_some(costs)
    }

    /// Writes a line for each measured size: its rows and seconds.
    pub(crate) fn save(&self, path: &Path) -> std::io::Result<()> {
        let lines = self.measured().into_iter();
        let text: String = lines.map(|(rows, s)| format!("{rows} {s:e}\n")).collect();
        atomic_write(path, |file| file.write_all(text.as_bytes()))
    }

    /// The file that keeps the costs of a model with these kernels, threads and storage types, beside its packed weights;
    /// `None` if packed weights are not kept.
    pub fn file(model: &Model, backend: &dyn Backend, options: &RunnerOptions) -> Option<PathBuf> {
        let folder = options.compile.packed_folder.as_ref()?;
        let policy = match &*options.kv_policy.to_string() {
            "" => String::new(),
            text => format!("-{:x}", base::xxh64(text.as_bytes(), 0)),
        };
        let name = format!(
            "{:016x}-{}-{}-{}-{}{policy}.costs",
            model.fingerprint(),
            backend.kernels(),
            options.compile.threads.unwrap_or(0),
            options.key_storage.name(),
            options.value_storage.name(),
        );
        Some(folder.join(name))
    }
}

impl BatchRunner {
    /// The costs of forwards of 1 to `1 + candidates` rows: those that an earlier run kept in `file`, or measured now and
    /// kept there.
    pub fn verify_costs(
        &mut self,
        file: Option<&Path>,
        candidates: usize,
    ) -> Result<VerifyCosts, RuntimeError> {
        let covers = |costs: &VerifyCosts| {
            let largest = costs.measured().last().map(|(rows, _)| *rows);
            largest > Some(candidates)
        };
        let kept = file.and_then(VerifyCosts::load).filter(covers);
        if let Some(costs) = kept {
            return Ok(costs);
        }
        let costs = VerifyCosts::default();
        self.measure_verify_costs(&costs, candidates)?;
        if let Some(file) = file.filter(|_| !costs.measured().is_empty()) {
            // Without the file, the next start measures again.
            let _ = costs.save(file);
        }
        Ok(costs)
    }

    /// Measures forwards of 1 to `1 + candidates` rows, on a sequence that nobody uses.
    fn measure_verify_costs(
        &mut self,
        costs: &VerifyCosts,
        candidates: usize,
    ) -> Result<(), RuntimeError> {
        let seq = MAX_SEQUENCES - 1;
        let most = (1 + candidates).min(self.max_step_tokens());
        if !self.tokens(seq).is_empty() || !self.can_extend(most)? {
            return Ok(());
        }
        let mut sizes: Vec<usize> = (0..)
            .map(|i| (1 << i) + usize::from(i > 1))
            .take_while(|n| *n < most)
            .collect();
        sizes.push(most);
        for rows in sizes {
            let mut chain = TreeProposal::new(0);
            (1..rows as u32).for_each(|node| _ = chain.push(node - 1, 0, 1.0));
            // The first forward of a size records its tape.
            let mut least = None;
            for run in 0..3 {
                let start = Instant::now();
                self.step_trees(&[], &[(seq, &chain)])?;
                let time = start.elapsed();
                self.commit_path(seq, &[])?;
                if run > 0 {
                    least = Some(least.map_or(time, |least: Duration| least.min(time)));
                }
            }
            costs.record(rows, least.unwrap_or_default());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_machine_is_slower_for_all_sizes() {
        let costs = VerifyCosts::default();
        costs.record(1, Duration::from_millis(4));
        costs.record(9, Duration::from_millis(8));
        for _ in 0..100 {
            costs.record(1, Duration::from_millis(6));
        }
        let curve = costs.curve(9);
        assert!((curve[0] - 6e-3).abs() < 1e-4, "{curve:?}");
        // The sizes' own means follow as well, so that the other size moves most of the way.
        assert!(curve[8] > 9e-3 && curve[8] < 12.1e-3, "{curve:?}");
    }

    #[test]
    fn costs_are_kept_and_damaged_files_are_ignored() {
        let folder = std::env::temp_dir().join(format!("kvark-costs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("model.costs");
        assert!(VerifyCosts::load(&file).is_none());
        let costs = VerifyCosts::default();
        costs.record(1, Duration::from_micros(700));
        costs.record(9, Duration::from_micros(1900));
        costs.save(&file).unwrap();
        let kept = VerifyCosts::load(&file).unwrap();
        assert_eq!(kept.measured(), costs.measured());
        for damaged in [
            "",
            "1",
            "1 x\n",
            "0 0.1\n",
            "1 -0.1\n",
            "99999999 0.1\n",
            "1 1e300\n",
        ] {
            std::fs::write(&file, damaged).unwrap();
            assert!(VerifyCosts::load(&file).is_none(), "{damaged:?}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
