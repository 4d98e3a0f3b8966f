//! Resampling of an axis by two taps per result.

use crate::compute::Compute;

/// The two positions of a result, and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TwoTaps<T> {
    pub positions: [usize; 2],
    pub weights: [T; 2],
}

/// `to[i] = weights[0]·from[0][i] + weights[1]·from[1][i]`. All slices have the same length.
#[inline(always)]
pub(crate) fn blend<T: Compute>(from: [&[T]; 2], weights: [T; 2], to: &mut [T]) {
    let [first, second] = from.map(|from| &from[..to.len()]);
    for ((to, a), b) in to.iter_mut().zip(first).zip(second) {
        *to = T::ZERO.mul_add(*a, weights[0]).mul_add(*b, weights[1]);
    }
}

/// Resamples a row: `to[i]` is the sum of two values of `from`.
#[inline(always)]
pub(crate) fn resample_row<T: Compute>(from: &[T], taps: &[TwoTaps<T>], to: &mut [T]) {
    let count = to.len();
    for (to, tap) in to.iter_mut().zip(&taps[..count]) {
        let [a, b] = tap.positions.map(|at| from[at]);
        *to = T::ZERO.mul_add(a, tap.weights[0]).mul_add(b, tap.weights[1]);
    }
}
