//! The conformance suites, which compare a backend with the reference backend case by case.
//!
//! [`decoder`] tests what decoding needs: the ops of decoders, cached attention with random sequences of cache
//! operations on every kind of cache, and steps in every run mode. [`experts`] tests routed experts and attention sinks, [`states`] recurrent
//! layers, [`primitives`] the other ops, which exported graphs use. A backend's test calls those that it runs for each of its variants (instruction-set tiers, executors).

#![forbid(unsafe_code)]

mod cache_case;
mod decoder_ops;
mod expert_ops;
mod histories;
mod op_case;
mod primitive_ops;
mod rows;
mod shared;
mod states;
mod steps;

pub use rows::RowsCopy;

use backend::reference::Reference;
use backend::{Backend, CompileOptions};
use base::{Bytes, DType};
use graph::{Data, Value};
use op_case::OpCase;

/// Runs all suites and returns the number of cases.
///
/// Results must agree with the reference within `tolerance`, relative to the largest magnitude of the expected tensor;
/// products with quantised weights within [`QUANTISED_TOLERANCE`].
///
/// # Errors
/// The first case that fails, and how.
pub fn run(
    backend: &dyn Backend,
    options: &CompileOptions,
    tolerance: f32,
) -> Result<usize, String> {
    let decoder = decoder(backend, options, tolerance)?;
    let primitives = primitives(backend, options, tolerance)?;
    let experts = experts(backend, options, tolerance)?;
    Ok(decoder + primitives + experts + states(backend, options, STATE_HISTORIES)?)
}

/// Runs the decoder suite.
pub fn decoder(
    backend: &dyn Backend,
    options: &CompileOptions,
    tolerance: f32,
) -> Result<usize, String> {
    let mut cases = op_cases(decoder_ops::cases(), backend, options, tolerance)?;
    for case in cache_case::cases(backend) {
        case.check(backend, options, tolerance)
            .map_err(|e| format!("{case:?}: {e}"))?;
        cases += 1;
    }
    shared::check(backend, options)?;
    cases += 1 + steps::run(backend, options, tolerance)?;
    random_histories(backend, options, tolerance, HISTORIES)?;
    Ok(cases + HISTORIES as usize)
}

/// Runs the suite of ops of exported graphs.
pub fn primitives(
    backend: &dyn Backend,
    options: &CompileOptions,
    tolerance: f32,
) -> Result<usize, String> {
    op_cases(primitive_ops::cases(), backend, options, tolerance)
}

/// Runs the suite of routed experts and attention sinks.
pub fn experts(
    backend: &dyn Backend,
    options: &CompileOptions,
    tolerance: f32,
) -> Result<usize, String> {
    expert_ops::run(backend, options, tolerance)
}

/// Runs this number of random histories of a model with recurrent layers.
pub fn states(
    backend: &dyn Backend,
    options: &CompileOptions,
    histories: u64,
) -> Result<usize, String> {
    states::run(backend, options, histories)
}

/// The number of random histories with states in [`run`].
const STATE_HISTORIES: u64 = 12;

/// The number of random histories in the decoder suite.
const HISTORIES: u64 = 60;

/// Runs `histories` random sequences of cache operations and steps on every kind of cache.
pub fn random_histories(
    backend: &dyn Backend,
    options: &CompileOptions,
    tolerance: f32,
    histories: u64,
) -> Result<(), String> {
    // Sums over few random rows are small, so their relative error is larger.
    histories::run(backend, options, tolerance.max(1e-5), histories)
}

fn op_cases(
    cases: Vec<OpCase>,
    backend: &dyn Backend,
    options: &CompileOptions,
    tolerance: f32,
) -> Result<usize, String> {
    let reference = |case: &OpCase| case.evaluate(&Reference::new(), &CompileOptions::default());
    let compare = |case: &OpCase| -> Result<(), String> {
        let expect = reference(case)?;
        // An activation may shrink sums without changing their absolute error, so the tolerance grows with the ratio.
        let sums = case
            .without_activation
            .as_deref()
            .map(reference)
            .transpose()?;
        let growth = sums.map_or(1.0, |sums| largest(&sums) / largest(&expect));
        let tolerance = if case.has_quantised_weight() {
            tolerance.max(QUANTISED_TOLERANCE)
        } else {
            tolerance
        } * growth.max(1.0);
        check_close(&case.evaluate(backend, options)?, &expect, tolerance)
    };
    for case in &cases {
        compare(case).map_err(|e| format!("{}: {e}", case.name))?;
    }
    Ok(cases.len())
}

/// The relative tolerance of products with quantised weights. Backends multiply integers, with activations of twelve
/// bits or more. Random operands cancel, so the tolerance is loose; a backend's own tests have tighter bounds.
pub const QUANTISED_TOLERANCE: f32 = 1e-2;

/// A deterministic xorshift generator of test operands.
pub struct TestRng(u64);

impl TestRng {
    /// The generator with this seed.
    pub fn new(seed: u64) -> TestRng {
        TestRng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next 64 bits (xorshift).
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// `n` numbers from -1 to 1.
    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Random blocks of a real type for `elements` elements of moderate magnitude.
    pub fn weights(&mut self, dtype: DType, elements: usize) -> Bytes {
        let mut bytes = Vec::new();
        let mut values = vec![0.0; dtype.block_len()];
        while bytes.len() < elements / dtype.block_len() * dtype.block_bytes() {
            let block: Vec<u8> = (0..dtype.block_bytes())
                .map(|_| (self.bits() >> 32) as u8)
                .collect();
            base::quant::dequantise(dtype, &block, &mut values).expect("one block");
            if values.iter().all(|v| v.abs() < 4.0) {
                bytes.extend(block);
            }
        }
        Bytes::from(&bytes[..])
    }
}

/// The largest finite magnitude of a result.
fn largest(value: &Value) -> f32 {
    value.as_f32().map_or(1.0, largest_of)
}

fn largest_of(elements: &[f32]) -> f32 {
    let finite = elements.iter().filter(|x| x.is_finite());
    finite.fold(1e-6, |a, b| a.max(b.abs()))
}

/// Returns an error that names the first element that differs by more than the tolerance. Integers, booleans and
/// non-finite values must be equal.
fn check_close(found: &Value, expect: &Value, tolerance: f32) -> Result<(), String> {
    if found.shape != expect.shape {
        return Err(format!(
            "shape {:?}, expected {:?}",
            found.shape, expect.shape
        ));
    }
    let (Data::F32(found), Data::F32(expect)) = (&found.data, &expect.data) else {
        return match found.data == expect.data {
            true => Ok(()),
            false => Err(format!("{:?}, expected {:?}", found.data, expect.data)),
        };
    };
    let size = largest_of(expect);
    for (i, (f, e)) in found.iter().zip(expect).enumerate() {
        let error = match e.is_finite() {
            true => (f - e).abs() / size,
            false if f == e || (f.is_nan() && e.is_nan()) => 0.0,
            false => f32::NAN,
        };
        if error > tolerance || error.is_nan() {
            return Err(format!(
                "element {i} is {f}, expected {e}: {error:e} of {size}"
            ));
        }
    }
    Ok(())
}
