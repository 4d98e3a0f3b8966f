//! Row kernels: plain loops over slices, safe code that the compiler vectorises. They are instantiated once per instruction set.

use crate::element::Compute;

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
