//! Pooling: the largest value or the sum of each window.

use crate::compute::Compute;
use crate::kernel::elementwise::{larger, plus};

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

/// Pools a plane, whose axes are given outermost first: the sums of windows if `SUM`, else the
/// largest values.
///
/// For each axis but the last, `rows` has room for the inner axes of one input position.
/// A maximum ignores NaN. A window without any value gives the least number, or the sum zero.
#[inline(always)]
pub(crate) fn pool<T: Compute, const SUM: bool>(axes: &[PoolAxis], from: &[T], to: &mut [T], rows: &mut [&mut [T]]) {
    match (axes, rows) {
        ([x], _) => pool_row::<T, SUM>(x, from, to),
        ([y, x], [row]) => pool_plane::<T, SUM>([y, x], from, to, row),
        ([axis, inner @ ..], [row, rows @ ..]) => {
            let (read, written) = (from.len() / axis.input.max(1), to.len() / axis.output.max(1));
            let row = &mut row[..read];
            for (o, to) in to.chunks_mut(written.max(1)).enumerate() {
                row.fill(nothing::<T, SUM>());
                for k in 0..axis.kernel {
                    let at = (o * axis.stride + k * axis.dilation).checked_sub(axis.pad);
                    if let Some(at) = at.filter(|at| *at < axis.input) {
                        joined::<T, SUM>(&from[at * read..][..read], 1, row);
                    }
                }
                match inner {
                    [y, x] => pool_plane::<T, SUM>([y, x], row, to, rows[0]),
                    _ => pool_of::<T, SUM>(inner, row, to, rows),
                }
            }
        }
        _ => {}
    }
}

/// Pools more axes than are inlined.
fn pool_of<T: Compute, const SUM: bool>(axes: &[PoolAxis], from: &[T], to: &mut [T], rows: &mut [&mut [T]]) {
    pool::<T, SUM>(axes, from, to, rows)
}

#[inline(always)]
fn pool_plane<T: Compute, const SUM: bool>([y, x]: [&PoolAxis; 2], from: &[T], to: &mut [T], row: &mut [T]) {
    let row = &mut row[..x.input];
    for (o, to) in to.chunks_exact_mut(x.output.max(1)).enumerate() {
        row.fill(nothing::<T, SUM>());
        for k in 0..y.kernel {
            let at = (o * y.stride + k * y.dilation).checked_sub(y.pad);
            if let Some(at) = at.filter(|at| *at < y.input) {
                joined::<T, SUM>(&from[at * x.input..][..x.input], 1, row);
            }
        }
        pool_row::<T, SUM>(x, row, to);
    }
}

#[inline(always)]
fn pool_row<T: Compute, const SUM: bool>(axis: &PoolAxis, from: &[T], to: &mut [T]) {
    to.fill(nothing::<T, SUM>());
    for k in 0..axis.kernel {
        let (met, first) = axis.met(k);
        if !met.is_empty() {
            joined::<T, SUM>(&from[first..], axis.stride, &mut to[met]);
        }
    }
}

/// The result of a window without any value.
#[inline(always)]
fn nothing<T: Compute, const SUM: bool>() -> T {
    if SUM { T::ZERO } else { T::LEAST }
}

/// Joins `from[i·stride]` to `to[i]`.
#[inline(always)]
fn joined<T: Compute, const SUM: bool>(from: &[T], stride: usize, to: &mut [T]) {
    if SUM { plus(from, stride, to) } else { larger(from, stride, to) }
}
