//! The most likely tokens of rows of logits, found on the device: only they are copied to the host.

use crate::arguments::TopKArgs;
use crate::compile::Unit;
use crate::device::Buffer;
use crate::exec_state::ExecState;
use crate::launch::Launch;
use backend::{BackendError, LogitsMode, ScoredToken};

/// Keys that a block ranks at a time, as in `kernels/topk.cu`.
const RANKED_KEYS: usize = 2048;
/// The most tokens of a row that the device ranks. The host ranks more of them faster, from a copy of all logits.
const MAX_TOPK: usize = 128;
/// Threads of a block.
const THREADS: u32 = 256;

/// The number of tokens that the device finds in each row of `width` logits; `None` if all logits are copied.
pub(crate) fn ranked_tokens(wanted: LogitsMode, width: usize) -> Option<usize> {
    let count = wanted.count()?.min(width);
    (1..=MAX_TOPK).contains(&count).then_some(count)
}

/// The token of a key.
pub(crate) fn token_of(key: u64) -> ScoredToken {
    let (order, id) = ((key >> 32) as u32, u32::MAX - key as u32);
    let bits = match order >> 31 {
        1 => order ^ 1 << 31,
        _ => !order,
    };
    ScoredToken {
        id,
        logit: f32::from_bits(bits),
    }
}

impl ExecState {
    /// The keys of the `k` most likely tokens of each of these rows of logits, after the work that computes them.
    pub(crate) fn topk_keys(
        &mut self,
        logits: u64,
        rows: usize,
        width: usize,
        k: usize,
    ) -> Result<&[u64], BackendError> {
        if rows == 0 {
            self.stream.wait()?;
            return Ok(&[]);
        }
        let parts = width.div_ceil(RANKED_KEYS);
        let key_bytes = size_of::<u64>();
        let result = rows * k * key_bytes;
        if rows * parts * k * key_bytes > self.topk.len() {
            self.stream.wait()?;
            let bytes = rows * parts * k * key_bytes;
            self.topk = Buffer::new(&self.device, bytes.next_power_of_two())?;
        }
        if rows * size_of::<u32>() > self.arrived.len() {
            self.stream.wait()?;
            let bytes = rows * size_of::<u32>();
            self.arrived = Buffer::new(&self.device, bytes.next_power_of_two())?;
        }
        self.grow_results(result)?;
        let arguments = TopKArgs {
            logits,
            parts: self.topk.address(),
            // The kernel writes the keys to the host's memory: a copy would start after its end.
            out: self.results.bytes().as_ptr() as u64,
            arrived: self.arrived.address(),
            width: width as u32,
            k: k as u32,
            part_count: parts as u32,
            unused: 0,
        };
        let shared = (RANKED_KEYS * key_bytes) as u32;
        let function = self.device.function(Unit::General, "topk_tokens")?;
        let grid = [parts as u32, rows as u32];
        let launch = Launch::new(function, grid, THREADS, shared, &arguments);
        // SAFETY: the logits have these rows, the buffers have room for the keys of all parts and rows and for a counter of each
        // row, and all of them live until the kernel is waited for.
        unsafe { launch.start(&self.stream)? };
        self.stream.wait()?;
        Ok(bytemuck::cast_slice(&self.results.bytes()[..result]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `token_key` of `kernels/topk.cu`.
    fn token_key(logit: f32, id: u32) -> u64 {
        let bits = match logit {
            x if x.is_nan() => f32::NEG_INFINITY.to_bits(),
            0.0 => 0,
            x => x.to_bits(),
        };
        let order = match bits >> 31 {
            1 => !bits,
            _ => bits | 1 << 31,
        };
        u64::from(order) << 32 | u64::from(u32::MAX - id)
    }

    #[test]
    fn keys_have_the_order_of_tokens_and_give_them_back() {
        let logits = [
            f32::INFINITY,
            f32::MAX,
            1.5,
            1e-40,
            0.0,
            -0.0,
            -1e-40,
            -2.0,
            f32::MIN,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        let number = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x };
        for a in logits {
            for b in logits {
                for [i, j] in [[3, 4], [4, 3], [0, 300_000]] {
                    let [one, other] = [(a, i), (b, j)].map(|(logit, id)| ScoredToken {
                        id,
                        logit: number(logit),
                    });
                    let (first, second) = (token_key(a, i), token_key(b, j));
                    let expect = ScoredToken::best_first(&one, &other);
                    assert_eq!(second.cmp(&first), expect, "{one:?} {other:?}");
                    assert_eq!(token_of(first), one);
                    assert!(first > 0);
                }
            }
        }
    }

    #[test]
    fn few_tokens_are_ranked_on_the_device() {
        assert_eq!(ranked_tokens(LogitsMode::Logits, 100), None);
        assert_eq!(ranked_tokens(LogitsMode::Argmax, 100), Some(1));
        assert_eq!(ranked_tokens(LogitsMode::TopK(40), 100), Some(40));
        assert_eq!(ranked_tokens(LogitsMode::TopK(400), 100), Some(100));
        assert_eq!(ranked_tokens(LogitsMode::TopK(400), 1000), None);
        assert_eq!(ranked_tokens(LogitsMode::TopK(0), 1000), None);
    }
}
