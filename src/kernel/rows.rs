//! Row kernels: plain loops over slices, safe code that the compiler vectorises. They are instantiated once per instruction set.

use crate::element::Compute;

/// `to[i·S + r] = from[r][i]`, `S` rows of equal length.
#[inline(always)]
pub(super) fn interleave<T: Compute, const S: usize>(from: [&[T]; S], to: &mut [T]) {
    let (cells, _) = to.as_chunks_mut::<S>();
    let from: [&[T]; S] = from.map(|row| &row[..cells.len()]);
    for (i, cell) in cells.iter_mut().enumerate() {
        for r in 0..S {
            cell[r] = from[r][i];
        }
    }
}

/// `to[i] = from[i·STEP]`; `from` holds what that reads, and may end there.
#[inline(always)]
pub(super) fn strided<T: Compute, const STEP: usize>(from: &[T], to: &mut [T]) {
    let Some((last, most)) = to.split_last_mut() else { return };
    // the last element's cell may not be whole
    *last = from[most.len() * STEP];
    let (cells, _) = from.as_chunks::<STEP>();
    for (to, cell) in most.iter_mut().zip(cells) {
        *to = cell[0];
    }
}

/// `to[i] += from[i]`.
#[inline(always)]
pub(super) fn add<T: Compute>(from: &[T], to: &mut [T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to.plus(*from);
    }
}
