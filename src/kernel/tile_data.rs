//! What the transforms of all kinds of tiles read and write.

use crate::compute::Compute;
use crate::simd::vector::{MOST_LANES, Vector};

/// The data that tiles read: pixels of channels.
#[derive(Clone, Copy)]
pub(crate) struct TileData<'a, T> {
    pub pixels: &'a [T],
    /// Per tile, the index of its first pixel's first channel.
    pub starts: &'a [usize],
    /// Elements from a pixel to the next along the rows and the columns of a tile.
    pub steps: (usize, usize),
    /// Channels, a multiple of the lanes.
    pub channels: usize,
}

/// The layout of transformed data and of products: `[point][tile][channel]`.
#[derive(Clone, Copy)]
pub(crate) struct PointStrides {
    /// Elements between points.
    pub point: usize,
    /// Elements between tiles.
    pub tile: usize,
}

/// Whether all lanes are zero.
///
/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
pub(super) unsafe fn is_zero<V: Vector>(vector: V) -> bool {
    const { assert!(V::LANES <= MOST_LANES) }
    let mut lanes = [V::Lane::ZERO; MOST_LANES];
    // SAFETY: this function's contract, and the array has room for all lanes.
    unsafe { vector.store(lanes.as_mut_ptr()) };
    lanes == [V::Lane::ZERO; MOST_LANES]
}
