//! Instruction sets and their vectors.

pub(crate) mod bf16;
pub(crate) mod isa;
pub(crate) mod tile_registers;
pub(crate) mod vector;
