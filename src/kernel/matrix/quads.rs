//! Operands of bytes: quads are copied into rows of tile registers as they are.

use super::{Limbs, SIDE, depth, weights_of_side};
use crate::compute::{Compute, Quad};

/// See [`MatrixKernels::split`](super::MatrixKernels::split).
pub(super) fn split(
    from: &[Quad],
    from_step: usize,
    (count, channels): (usize, usize),
    to: &mut [Quad],
    _limb_stride: usize,
    _limbs: Limbs,
) -> u32 {
    const DEPTH: usize = depth::<Quad>();
    for (pixel, to) in to.chunks_exact_mut(DEPTH).take(count).enumerate() {
        let from = &from[pixel * from_step..][..channels];
        match from.first_chunk::<DEPTH>() {
            // A whole vector, which needs no call.
            Some(whole) => to.copy_from_slice(whole),
            None => {
                to[..channels].copy_from_slice(from);
                to[channels..].fill(Quad::ZERO);
            }
        }
    }
    0
}

/// See [`MatrixKernels::split_weights`](super::MatrixKernels::split_weights).
pub(super) fn split_weights(from: &[Quad], sides: usize, _limbs: usize, to: &mut [Quad]) {
    const OF_SIDE: usize = weights_of_side::<Quad>();
    for (side, to) in to.chunks_exact_mut(OF_SIDE).take(sides).enumerate() {
        let mut rows = to.chunks_exact_mut(SIDE);
        for (row, to) in from.chunks_exact(sides * SIDE).zip(&mut rows) {
            to.copy_from_slice(&row[side * SIDE..][..SIDE]);
        }
        rows.for_each(|missing| missing.fill(Quad::ZERO));
    }
}

/// See [`MatrixKernels::join`](super::MatrixKernels::join).
pub(super) fn join(weights: &[Quad], sides: usize, _limbs: usize, to: &mut [Quad]) {
    let (width, of_side) = (sides * SIDE, weights_of_side::<Quad>());
    for (block, to) in weights.chunks(sides * of_side).zip(to.chunks_mut(depth::<Quad>() * width)) {
        for (c, row) in to.chunks_mut(width).enumerate() {
            for (side, to) in row.chunks_mut(SIDE).enumerate() {
                to.copy_from_slice(&block[side * of_side + c * SIDE..][..SIDE]);
            }
        }
    }
}
