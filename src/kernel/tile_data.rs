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
    /// Whether the tiles are short along rows and columns: see [`SHORT_RESULTS`].
    pub short: (bool, bool),
}

/// The results of a short tile along an axis.
///
/// A short tile is the last one along an axis, where only so many results of the layer are left. It reads some values twice,
/// so that values of its points are zero and are not multiplied. The modules of the kinds of tiles that can be short say
/// which.
pub(crate) const SHORT_RESULTS: usize = 2;

/// The result that a short tile has as its result `at` of `results` along an axis: its first one and its last one.
pub(crate) const fn short_result(at: usize, results: usize) -> Option<usize> {
    match at {
        0 => Some(0),
        _ if at + 1 == results => Some(SHORT_RESULTS - 1),
        _ => None,
    }
}

/// The distances of a tile's values along an axis from its first one. Those of a short tile are `of_short` steps.
#[inline(always)]
pub(super) fn distances<const N: usize>(step: usize, short: bool, of_short: [usize; N]) -> [usize; N] {
    let mut distances = [0; N];
    for (i, distance) in distances.iter_mut().enumerate() {
        *distance = step * if short { of_short[i] } else { i };
    }
    distances
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
