//! What is fuzzed: plain functions of bytes that panic on a find.
//!
//! `cargo fuzz` drives them guided by coverage, `drive` with seeded random bytes on any toolchain, and the crate's own
//! tests run a few of each.

mod definition;
mod models;
mod specs;

pub use models::{models, mutated, seeds};
pub use specs::{legal, nearly_legal};

/// SplitMix64, for the bytes of a run that no fuzzer makes.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Within `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// As many bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes()).take(len.div_ceil(8)).flatten().take(len).collect()
    }
}

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
