//! Runs an exported model on tensors of zeros and prints its inputs and outputs.
//!
//! ```sh
//! cargo run --release -p kvark --example session -- path/to/model.pt2
//! ```
#![allow(clippy::print_stdout, reason = "an example writes to its terminal")]

use kvark::backend::CompileOptions;
use kvark::inference::{DType, Data, InferenceOptions, TensorDim, TensorInfo, Value};
use kvark::{Cpu, InferenceSession};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: session MODEL.pt2")?;
    let options = InferenceOptions {
        compile: CompileOptions {
            threads: Some(1),
            ..Default::default()
        },
        ..Default::default()
    };
    let mut session = InferenceSession::load(path.as_ref(), &Cpu::new()?, &options)?;
    let inputs: Vec<(String, Value)> = session
        .inputs()
        .iter()
        .map(|info| (info.name.clone(), zeros(info)))
        .collect();
    for (info, (_, value)) in session.inputs().iter().zip(&inputs) {
        println!("input {info}, shape {:?}", value.shape);
    }
    for (name, value) in session.run(inputs)? {
        println!("output {name}: {}{:?}", value.dtype(), value.shape);
    }
    Ok(())
}

/// A tensor of zeros; dynamic sizes are 2.
fn zeros(info: &TensorInfo) -> Value {
    let size = |size: &TensorDim| match size {
        TensorDim::Fixed(n) => *n,
        TensorDim::Dynamic(_) => 2,
    };
    let shape: Vec<usize> = info.shape.iter().map(size).collect();
    let len = shape.iter().product();
    let data = match info.dtype {
        DType::I32 => Data::I32(vec![0; len]),
        DType::I64 => Data::I64(vec![0; len]),
        DType::Bool => Data::Bool(vec![true; len]),
        _ => Data::F32(vec![0.0; len]),
    };
    Value { shape, data }
}
