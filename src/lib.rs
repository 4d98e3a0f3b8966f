//! Transposed convolution for ONNX models in tract.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod element;
pub mod filter;
pub mod geometry;
pub mod kernel;
mod machine;
pub mod plan;
pub mod spec;
mod strategy;
