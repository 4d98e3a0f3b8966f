//! The memory layouts that kernels read: packed filters, input tiles, tap tables.

pub mod filter;
pub(crate) mod grouped;
pub(crate) mod input;
pub(crate) mod input_tile;
pub(crate) mod panels;
pub(crate) mod taps;
pub mod tile_weights;
pub(crate) mod window;

use crate::compute::Compute;
use crate::element::Element;
use crate::kernel::Kernels;
use crate::memory::Aligned;
use crate::spec::Problem;
use tract_core::internal::*;

/// Element strides of a contiguous shape.
pub(crate) fn strides_of(shape: &[usize]) -> TVec<usize> {
    let mut strides = tvec!(1; shape.len());
    for axis in (0..shape.len() - 1).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1];
    }
    strides
}

/// The input's strides: image, channel, and `rank` spatial axes.
/// If the problem has fewer spatial axes, the missing ones come first, with stride zero.
pub(crate) fn input_strides(problem: &Problem, rank: usize) -> (usize, usize, Vec<usize>) {
    let strides = strides_of(&problem.input_shape());
    let (c_axis, x_axis) = (problem.data_format.c_axis(strides.len()), problem.data_format.x_axis());
    let missing = std::iter::repeat_n(0, rank - problem.axes.len());
    let spatial = missing.chain(strides[x_axis..x_axis + problem.axes.len()].iter().copied()).collect();
    (strides[0], strides[c_axis], spatial)
}

/// The bias per group, padded with zeros to `padded` values, in the compute type.
pub(crate) fn padded_bias<E: Element>(problem: &Problem, bias: Option<&[E]>, padded: usize) -> Vec<E::Compute> {
    let mut to = vec![E::Compute::ZERO; problem.group * padded];
    if let Some(values) = bias {
        for (to, from) in to.chunks_mut(padded).zip(values.chunks(problem.group_out)) {
            E::widen_slice(from, &mut to[..from.len()]);
        }
    }
    to
}

/// Copies a run of positions to register tiles of `tile` positions, whose places are `step` elements apart. The last tile is
/// filled up with zeros.
pub(crate) fn to_tiles<T: Compute>(kernels: &Kernels<T>, from: &[T], tile: usize, to: &mut [T], step: usize) {
    let whole = from.len() / tile;
    let (from, rest) = from.split_at(whole * tile);
    kernels.copy_pixels(from, tile, (whole, tile), (to, step), None, false);
    if !rest.is_empty() {
        let to = &mut to[whole * step..][..tile];
        to[..rest.len()].copy_from_slice(rest);
        to[rest.len()..].fill(T::ZERO);
    }
}

/// `to[r·stride + c] = from[c·step + r]` for `rows` × `columns` elements.
/// The kernel writes whole vectors, so each row of `to` must have room for them.
pub(crate) fn transposed<T: Compute>(
    kernels: &Kernels<T>,
    from: &[T],
    step: usize,
    (rows, columns): (usize, usize),
    to: &mut [T],
    stride: usize,
) {
    // The kernel reads at least one vector per column.
    // If a column is shorter than a vector, the read of one of the last columns could run past the
    // end of `from`.
    // Those columns are copied element by element.
    let read = rows.max(kernels.lanes);
    let whole = if read <= from.len() { columns.min((from.len() - read) / step.max(1) + 1) } else { 0 };
    kernels.rows_to_pixels(from, step, (rows, whole), to, stride);
    for c in whole..columns {
        for r in 0..rows {
            to[r * stride + c] = from[c * step + r];
        }
    }
}

/// Transposes positions of planes, which are `plane` elements apart, into pixels of `size` elements:
/// `to[p·size + c] = from[c / repeats·plane + p]` for `positions` × `channels` elements.
///
/// Whole vectors are written, so each pixel must have room for them.
///
/// # Errors
/// Failure to allocate `copies`, into which repeated planes and planes of another type than that of sums are copied.
pub(crate) fn planes_to_pixels<E: Element>(
    kernels: &Kernels<E::Compute>,
    (from, plane, repeats): (&[E], usize, usize),
    (positions, channels): (usize, usize),
    (to, size): (&mut [E::Compute], usize),
    copies: &mut Aligned<E::Compute>,
) -> TractResult<()> {
    if let (Some(from), 1) = (E::as_compute(from), repeats) {
        transposed(kernels, from, plane, (positions, channels), to, size);
        return Ok(());
    }
    let copies = copies.of(channels * positions)?;
    for (c, to) in copies.chunks_mut(positions.max(1)).enumerate() {
        E::widen_slice(&from[c / repeats * plane..][..positions], to);
    }
    transposed(kernels, copies, positions, (positions, channels), to, size);
    Ok(())
}
