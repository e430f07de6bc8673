//! The operands of linear layers.

use super::Epilogue;

/// Addresses of a linear layer's operands, result and scratch.
#[derive(Clone, Copy)]
pub(crate) struct LinearOperands {
    pub(crate) x: *const f32,
    pub(crate) weight: *const u8,
    pub(crate) epilogue: Epilogue,
    pub(crate) out: *mut f32,
    /// Scratch; the call's `scratch` method returns its size in bytes.
    pub(crate) scratch: *mut f32,
}
