//! Max pooling: the largest value of each window.

use crate::compute::Compute;
use crate::kernel::elementwise::larger;

/// The windows along an axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolAxis {
    /// Sizes of the input and of the output.
    pub input: usize,
    pub output: usize,
    pub kernel: usize,
    /// At least one.
    pub stride: usize,
    pub dilation: usize,
    /// Positions before the input at which the first window begins.
    pub pad: usize,
}

impl PoolAxis {
    /// The output positions whose tap `k` is inside the input, and the input position that tap `k`
    /// of the first of them reads.
    fn met(&self, k: usize) -> (std::ops::Range<usize>, usize) {
        let tap = k * self.dilation;
        // 0 <= o·stride + tap - pad < input
        let begin = self.pad.saturating_sub(tap).div_ceil(self.stride);
        let end = (self.input + self.pad).saturating_sub(tap).div_ceil(self.stride).min(self.output);
        (begin..end, (begin * self.stride + tap).saturating_sub(self.pad))
    }
}

/// Pools a plane, whose axes are given outermost first.
///
/// For each axis but the last, `rows` has room for the inner axes of one input position.
/// NaN is ignored. A window without any value gives the least number.
#[inline(always)]
pub(crate) fn pool<T: Compute>(axes: &[PoolAxis], from: &[T], to: &mut [T], rows: &mut [&mut [T]]) {
    match (axes, rows) {
        ([x], _) => pool_row(x, from, to),
        ([y, x], [row]) => pool_plane([y, x], from, to, row),
        ([axis, inner @ ..], [row, rows @ ..]) => {
            let (read, written) = (from.len() / axis.input.max(1), to.len() / axis.output.max(1));
            let row = &mut row[..read];
            for (o, to) in to.chunks_mut(written.max(1)).enumerate() {
                row.fill(T::LEAST);
                for k in 0..axis.kernel {
                    let at = (o * axis.stride + k * axis.dilation).checked_sub(axis.pad);
                    if let Some(at) = at.filter(|at| *at < axis.input) {
                        larger(&from[at * read..][..read], 1, row);
                    }
                }
                match inner {
                    [y, x] => pool_plane([y, x], row, to, rows[0]),
                    _ => pool_of(inner, row, to, rows),
                }
            }
        }
        _ => {}
    }
}

/// Pools more axes than are inlined.
fn pool_of<T: Compute>(axes: &[PoolAxis], from: &[T], to: &mut [T], rows: &mut [&mut [T]]) {
    pool(axes, from, to, rows)
}

#[inline(always)]
fn pool_plane<T: Compute>([y, x]: [&PoolAxis; 2], from: &[T], to: &mut [T], row: &mut [T]) {
    let row = &mut row[..x.input];
    for (o, to) in to.chunks_exact_mut(x.output.max(1)).enumerate() {
        row.fill(T::LEAST);
        for k in 0..y.kernel {
            let at = (o * y.stride + k * y.dilation).checked_sub(y.pad);
            if let Some(at) = at.filter(|at| *at < y.input) {
                larger(&from[at * x.input..][..x.input], 1, row);
            }
        }
        pool_row(x, row, to);
    }
}

#[inline(always)]
fn pool_row<T: Compute>(axis: &PoolAxis, from: &[T], to: &mut [T]) {
    to.fill(T::LEAST);
    for k in 0..axis.kernel {
        let (met, first) = axis.met(k);
        if !met.is_empty() {
            larger(&from[first..], axis.stride, &mut to[met]);
        }
    }
}
