//! Shared by the integration tests: model builders, the float64 definition, cases, and runs.
#![allow(dead_code)] // each program of tests uses a part

pub mod beside;
pub mod case;
pub mod decoder;
pub mod nnef;
pub mod oracle;
pub mod probe;
pub mod proto;
pub mod quantised;
pub mod random;
pub mod run;
pub mod spec;

use tract_deconv::Strategy;

/// The strategies whose products are those of tile registers, or of vectors if numbers do not suit these.
pub const ON_TILE_REGISTERS: [Strategy; 2] = [Strategy::MatrixPixels, Strategy::MatrixPlanes];
