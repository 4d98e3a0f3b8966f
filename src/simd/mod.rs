//! Instruction sets, and vectors of each.

pub(crate) mod isa;
pub(crate) mod tile_registers;
pub(crate) mod vector;
