//! The algorithms, one a file. None knows of ONNX, and none holds unsafe code.

pub mod cells;
pub mod channels;
pub mod col2im;
mod cost;
pub mod depthwise;
pub mod matrix;
pub mod matvec;
pub mod overlap;
mod panels;
mod passes;
pub mod phases;
mod pieces;
pub(crate) mod reference;
mod sheets;
mod strips;
mod taps;
mod window;
pub mod winograd;

use crate::element::{Compute, Element};
use crate::kernel::Kernels;
pub(crate) use crate::memory::{Aligned, Scratch};

pub(crate) use crate::parallel::{parallel, threads};
use crate::spec::{DataFormat, Problem};
use crate::tail::Tail;
pub(crate) use passes::{ElementWise, max_pool};
use std::ops::Range;
use tract_core::internal::*;

/// What every strategy reads besides the filter.
pub(crate) struct Operands<'a, E: Element> {
    /// In the problem's input shape.
    pub input: &'a [E],
    /// One value per output channel, over all groups.
    pub bias: Option<&'a [E]>,
    /// What is applied to the sums before they are stored.
    pub tail: Tail<'a, E>,
}

/// Bytes of an element of the type that sums are made in.
pub(crate) fn compute_bytes(datum_type: DatumType) -> usize {
    if matches!(datum_type, DatumType::F32 | DatumType::F16) { 4 } else { 8 }
}

/// Groups in as many parts as the threads want; all in one for a single thread, and in NXC, where a cell has them all.
pub(crate) fn group_parts(problem: &Problem, threads: usize) -> Vec<Range<usize>> {
    let parts = match (problem.data_format, threads) {
        (DataFormat::Nxc, _) | (_, 1) => 1,
        _ => (4 * threads).div_ceil(problem.batch.max(1)).min(problem.group),
    };
    blocks_of(problem.group, problem.group.div_ceil(parts))
}

/// `0..len` in blocks of `size`, the last one ragged.
pub(crate) fn blocks_of(len: usize, size: usize) -> Vec<Range<usize>> {
    (0..len).step_by(size.max(1)).map(|begin| begin..(begin + size).min(len)).collect()
}

/// `0..len` in so many blocks whose sizes differ by at most one.
pub(crate) fn even_blocks(len: usize, count: usize) -> Vec<Range<usize>> {
    let count = count.clamp(1, len.max(1));
    // as u128: a length times a count may not fit
    let at = |i: usize| (len as u128 * i as u128 / count as u128) as usize;
    (0..count).map(|i| at(i)..at(i + 1)).collect()
}

/// Element strides of a contiguous shape.
pub(crate) fn strides_of(shape: &[usize]) -> TVec<usize> {
    let mut strides = tvec!(1; shape.len());
    for axis in (0..shape.len() - 1).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1];
    }
    strides
}

/// The bias of each group, padded with zeros to `padded` values, in the type of sums.
pub(crate) fn padded_bias<E: Element>(problem: &Problem, bias: Option<&[E]>, padded: usize) -> Vec<E::Compute> {
    let mut to = vec![E::Compute::ZERO; problem.group * padded];
    if let Some(values) = bias {
        for (to, from) in to.chunks_mut(padded).zip(values.chunks(problem.group_out)) {
            E::widen_slice(from, &mut to[..from.len()]);
        }
    }
    to
}

/// `to[r·stride + c] = from[c·step + r]` for `rows` of `columns`. Rows of `to` have room for whole vectors.
pub(crate) fn transposed<T: Compute>(
    kernels: &Kernels<T>,
    from: &[T],
    step: usize,
    (rows, columns): (usize, usize),
    to: &mut [T],
    stride: usize,
) {
    // of columns with fewer elements than a vector, the last ones may end where `from` does
    let read = rows.max(kernels.lanes);
    let whole = if read <= from.len() { columns.min((from.len() - read) / step.max(1) + 1) } else { 0 };
    kernels.rows_to_cells(from, step, (rows, whole), to, stride);
    for c in whole..columns {
        for r in 0..rows {
            to[r * stride + c] = from[c * step + r];
        }
    }
}

/// Strides of the input: image, channel, and `rank` spatial axes; those that the problem does not have come first and have none.
pub(crate) fn input_strides(problem: &Problem, rank: usize) -> (usize, usize, Vec<usize>) {
    let strides = strides_of(&problem.input_shape());
    let (c_axis, x_axis) = (problem.data_format.c_axis(strides.len()), problem.data_format.x_axis());
    let missing = std::iter::repeat_n(0, rank - problem.axes.len());
    let spatial = missing.chain(strides[x_axis..x_axis + problem.axes.len()].iter().copied()).collect();
    (strides[0], strides[c_axis], spatial)
}
