//! The only unsafe code of the crate: SIMD micro-kernels and the allocation of outputs.

mod alloc;
mod isa;

pub(crate) use alloc::uninitialized_output;
pub use isa::Isa;
