//! Normalisation of rows and of lines along an axis.

pub(crate) mod norm;
pub(crate) mod softmax;
