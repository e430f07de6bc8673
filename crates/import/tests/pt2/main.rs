//! Exported programs against PyTorch's outputs, on the reference backend.

mod bad;
mod decoders;
mod golden;
mod plain;
mod pte;
mod states;
mod toy;
