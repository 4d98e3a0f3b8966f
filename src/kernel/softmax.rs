//! Softmax of several columns at once.

use crate::compute::Compute;

/// Columns that are computed together. Their rows stay in L1 for the usual numbers of rows.
const COLUMNS: usize = 128;

/// Writes the softmax of each column, or its logarithm if `log`.
///
/// Value `r` of column `c` is `from[r·stride + c]`. Its result is written to `to[r][c]`. The
/// rows of `to` have the same length.
#[inline(always)]
pub(crate) fn softmax<T: Compute, const FUSED: bool>(log: bool, from: &[T], stride: usize, to: &mut [&mut [T]]) {
    let columns = to.first().map_or(0, |row| row.len());
    for first in (0..columns).step_by(COLUMNS) {
        let count = COLUMNS.min(columns - first);
        let (mut largest, mut sum) = ([T::ZERO; COLUMNS], [T::ZERO; COLUMNS]);
        let (largest, sum) = (&mut largest[..count], &mut sum[..count]);
        let row = |r: usize| &from[r * stride + first..][..count];
        largest.copy_from_slice(row(0));
        for r in 1..to.len() {
            largest.iter_mut().zip(row(r)).for_each(|(largest, x)| *largest = largest.larger(*x));
        }
        // The row before its exponential, which only the logarithm still needs.
        let mut powers = [T::ZERO; COLUMNS];
        let powers = &mut powers[..count];
        for (r, to) in to.iter_mut().enumerate() {
            let to = &mut to[first..][..count];
            for ((to, x), largest) in to.iter_mut().zip(row(r)).zip(&*largest) {
                *to = x.minus(*largest);
            }
            let powers: &mut [T] = if log {
                powers.copy_from_slice(to);
                powers
            } else {
                to
            };
            T::exponentials::<FUSED>(powers);
            sum.iter_mut().zip(&*powers).for_each(|(sum, power)| *sum = sum.plus(*power));
        }
        if log {
            sum.iter_mut().for_each(|sum| *sum = sum.logarithm());
        } else {
            sum.iter_mut().for_each(|sum| *sum = sum.reciprocal());
        }
        for to in to.iter_mut() {
            let to = to[first..][..count].iter_mut().zip(&*sum);
            if log {
                to.for_each(|(to, sum)| *to = to.minus(*sum));
            } else {
                to.for_each(|(to, sum)| *to = T::ZERO.mul_add(*to, *sum));
            }
        }
    }
}
