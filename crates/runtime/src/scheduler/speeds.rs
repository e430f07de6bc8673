//! `Speeds`: what it takes to bring a prefix back, as it was measured.

use crate::BatchRunner;
use kv::Side;
use std::time::Duration;

/// How a prefix outside the pool comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From host memory.
    Host,
    /// From a file.
    Disk,
}

/// Seconds per token of each way back, and of computing it.
pub(super) struct Speeds {
    host: f64,
    disk: f64,
    /// Seconds per prompt token; 0 before the first step.
    pub(super) compute: f64,
}

/// Bytes a second that are assumed before the first measurement: of a copy in memory and of a file.
const ASSUMED: [f64; 2] = [1e9, 2e8];

impl Speeds {
    pub(super) fn new(runner: &BatchRunner) -> Speeds {
        let bytes = runner.cache_config().map_or(0, |config| {
            let layers = 0..config.layers.len();
            let sides = layers.flat_map(|layer| [(layer, Side::Key), (layer, Side::Value)]);
            let row = |(layer, side): (usize, Side)| {
                config.layers[layer].kv_heads * config.row_bytes(layer, side)
            };
            sides.map(row).sum::<usize>()
        });
        let [host, disk] = ASSUMED.map(|rate| bytes as f64 / rate);
        Speeds {
            host,
            disk,
            compute: 0.0,
        }
    }

    /// Records that so many tokens came back in this time.
    pub(super) fn record(&mut self, way: Way, tokens: usize, time: Duration) {
        let each = time.as_secs_f64() / tokens.max(1) as f64;
        let known = match way {
            Way::Host => &mut self.host,
            Way::Disk => &mut self.disk,
        };
        *known = 0.7 * *known + 0.3 * each;
    }

    /// The seconds that so many tokens take to come back, or to be computed. Computing takes the longest as long as it was not measured.
    pub(super) fn seconds(&self, way: Option<Way>, tokens: usize) -> f64 {
        let each = match way {
            Some(Way::Host) => self.host,
            Some(Way::Disk) => self.disk,
            None if self.compute > 0.0 => self.compute,
            None => f64::from(f32::MAX),
        };
        each * tokens as f64
    }
}
