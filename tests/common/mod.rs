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

/// The strategies of matrix products: in tile registers, or of operands rounded to bf16 in vectors.
pub const MATRIX_PRODUCTS: [Strategy; 2] = [Strategy::MatrixPixels, Strategy::MatrixPlanes];
