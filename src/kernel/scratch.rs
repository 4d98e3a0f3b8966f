//! Memory that is kept between runs.

use super::alloc::reserve;
use tract_core::internal::*;

/// Memory that a thread keeps between runs, so that steady state allocates outputs only.
#[derive(Default)]
pub(crate) struct Scratch<T> {
    /// A block of input.
    pub block: Aligned<T>,
    /// Results of register tiles.
    pub tile: Aligned<T>,
    /// A copy of a tile's input that reaches past its end.
    pub ragged: Aligned<T>,
    /// Parts of a block of input, for tile registers.
    pub parts: Aligned<u16>,
    /// Parts of weights.
    pub weights: Aligned<u16>,
    /// A row on its way to the output.
    pub row: Aligned<T>,
    /// A block of input, weights and products between transforms.
    pub transformed: [Aligned<T>; 3],
}

/// A buffer whose slices begin on a cache line: vectors that straddle lines cost twice.
#[derive(Default)]
pub(crate) struct Aligned<T>(Vec<T>);

impl<T: Copy + Default> Aligned<T> {
    /// `len` elements with whatever they held before.
    ///
    /// # Errors
    /// When the memory can't be had.
    pub fn of(&mut self, len: usize) -> TractResult<&mut [T]> {
        let slack = 64 / size_of::<T>();
        let whole = len.saturating_add(slack);
        if self.0.len() < whole {
            reserve("working memory", &mut self.0, whole)?;
            self.0.resize(whole, T::default());
        }
        let begin = self.0.as_ptr().align_offset(64).min(slack);
        Ok(&mut self.0[begin..begin + len])
    }
}
