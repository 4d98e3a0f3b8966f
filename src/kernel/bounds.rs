//! Bounds of results, applied while these are in registers.

use crate::compute::Compute;
use crate::simd::vector::Vector;

/// The least and the largest result. Others become the nearest of the two, except that NaN stays NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds<T> {
    pub low: T,
    pub high: T,
}

impl<T: Compute> Bounds<T> {
    /// Applies them to a value.
    #[inline(always)]
    pub fn clamp(self, value: T) -> T {
        value.clamped(self.low, self.high)
    }
}

/// Applies bounds, if there are any, to vectors of results.
///
/// # Safety
/// As [`Vector`]'s methods.
#[inline(always)]
pub(super) unsafe fn clamp_all<V: Vector, const N: usize>(
    mut vectors: [V; N],
    bounds: Option<Bounds<V::Lane>>,
) -> [V; N] {
    if let Some(Bounds { low, high }) = bounds {
        // SAFETY: this function's contract.
        unsafe {
            let (low, high) = (V::splat(low), V::splat(high));
            // A loop, as the compiler does not inline a closure here.
            for vector in &mut vectors {
                *vector = vector.clamp(low, high);
            }
        }
    }
    vectors
}
