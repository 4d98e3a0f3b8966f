//! The fuzz targets: plain functions of bytes that panic on a find.
//!
//! `cargo fuzz` runs them guided by coverage. `drive` runs them with seeded random bytes on any
//! toolchain. The crate's own tests run each of them a few times.

mod definition;
mod models;
// The random numbers of the crate's own tests.
#[allow(dead_code)]
#[path = "../../tests/common/random.rs"]
mod random;
mod specs;

pub use models::{models, mutated, seeds};
pub use random::Random;
pub use specs::{legal, nearly_legal};

/// The outcome of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The input is not for this target: it is not a model, or it has none of this crate's
    /// operators.
    Skipped,
    /// The input was refused with an error.
    Refused,
    /// The input was accepted, but is too large to run here.
    Accepted,
    /// The input was run, and compared with the definition if the target does so.
    Ran,
}
