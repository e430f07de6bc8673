//! Kernels that move elements without computing: strided copies, gathers, triangles.

pub(crate) mod copy;
pub(crate) mod gather;
pub(crate) mod gather_rows;
pub(crate) mod scatter;
pub(crate) mod triangle;
pub(crate) mod windows;
