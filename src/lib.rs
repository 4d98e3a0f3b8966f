//! Transposed convolution for ONNX models in tract.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod cache;
mod describe;
mod element;
pub mod explain;
pub mod filter;
mod frontend;
pub mod geometry;
pub mod kernel;
mod knobs;
pub mod load;
mod machine;
pub mod op;
pub mod plan;
pub mod rewrite;
pub mod spec;
mod strategy;
#[cfg(test)]
mod testing;

pub use explain::{Explanation, explain};
pub use frontend::WithDeconv;
pub use op::GroupedDeconv;
pub use plan::{Plan, Strategy};
pub use spec::DeconvSpec;
