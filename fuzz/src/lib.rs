//! What is fuzzed: plain functions of bytes that panic on a find.
//!
//! `cargo fuzz` drives them guided by coverage, `drive` with seeded random bytes on any toolchain, and the crate's own
//! tests run a few of each.

mod definition;
mod models;
// the numbers of the crate's own tests
#[allow(dead_code)]
#[path = "../../tests/common/random.rs"]
mod random;
mod specs;

pub use models::{models, mutated, seeds};
pub use random::Random;
pub use specs::{legal, nearly_legal};

/// What became of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not what the target is for: not a model, or none of this crate's operators in it.
    Skipped,
    /// Refused with an error.
    Refused,
    /// Accepted, and too large to be run here.
    Accepted,
    /// Run, and compared with the definition where the target does so.
    Ran,
}
