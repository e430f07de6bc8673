//! kvark
