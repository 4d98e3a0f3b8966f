//! Pooling: the largest value or the sum of each window.

use crate::compute::Compute;
use crate::kernel::elementwise::{larger, plus};
use std::ops::Range;

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
    fn met(&self, k: usize) -> (Range<usize>, usize) {
        let tap = k * self.dilation;
        // 0 <= o·stride + tap - pad < input
        let begin = self.pad.saturating_sub(tap).div_ceil(self.stride);
        let end = (self.input + self.pad).saturating_sub(tap).div_ceil(self.stride).min(self.output);
        (begin..end, (begin * self.stride + tap).saturating_sub(self.pad))
    }

    /// The output positions of windows that are inside the input as a whole.
    fn whole(&self) -> Range<usize> {
        let begin = self.pad.div_ceil(self.stride).min(self.output);
        let reach = (self.kernel - 1) * self.dilation;
        let end = (self.input + self.pad).saturating_sub(reach).div_ceil(self.stride).min(self.output);
        begin..end.max(begin)
    }

    /// An axis whose windows are its positions.
    const fn identity(positions: usize) -> PoolAxis {
        PoolAxis { input: positions, output: positions, kernel: 1, stride: 1, dilation: 1, pad: 0 }
    }

    /// Whether windows are the positions of the input.
    fn is_identity(&self) -> bool {
        (self.kernel, self.stride, self.pad) == (1, 1, 0) && self.input == self.output
    }

    /// The axis that has window `o` alone, and the number of input positions before it.
    fn one_window(&self, o: usize) -> (usize, PoolAxis) {
        let skipped = (o * self.stride).saturating_sub(self.pad);
        let pad = self.pad.saturating_sub(o * self.stride);
        (skipped, PoolAxis { input: self.input.saturating_sub(skipped), output: 1, pad, ..*self })
    }

    /// Whether windows are pairs of adjacent values that begin with the first one.
    fn has_pairs(&self) -> bool {
        (self.kernel, self.stride, self.dilation, self.pad) == (2, 2, 1, 0) && 2 * self.output <= self.input
    }
}

/// The axis of a plane that has none, and the one position of its rows.
const NO_AXIS: PoolAxis = PoolAxis::identity(1);

/// The pooling of a plane: see [`pool_plane`].
pub(crate) type PoolPlane<'a, T> = &'a dyn Fn([&PoolAxis; 2], &[T], &mut [T], &mut [T]);

/// Pools any number of axes, given outermost first, by `plane`, which pools two.
///
/// For each axis but the last, `rows` has room for the inner axes of one input position.
pub(crate) fn pool<T>(plane: PoolPlane<T>, axes: &[PoolAxis], from: &[T], to: &mut [T], rows: &mut [&mut [T]]) {
    match (axes, rows) {
        ([x], _) => plane([&NO_AXIS, x], from, to, &mut []),
        ([y, x], [row]) => plane([y, x], from, to, row),
        ([axis, inner @ ..], [row, rows @ ..]) => {
            let (read, written) = (from.len() / axis.input.max(1), to.len() / axis.output.max(1));
            let row = &mut row[..read];
            for (o, to) in to.chunks_mut(written.max(1)).enumerate() {
                let (skipped, one) = axis.one_window(o);
                plane([&one, &PoolAxis::identity(read)], &from[(skipped * read).min(from.len())..], row, &mut []);
                pool(plane, inner, row, to, rows);
            }
        }
        _ => {}
    }
}

/// Pools a plane of rows: the sums of windows if `SUM`, else the largest values.
///
/// `row` has room for a row of the input, unless each window has one row or one column.
/// A maximum ignores NaN. A window without any value gives the least number, or the sum zero.
#[inline(always)]
pub(crate) fn pool_plane<T: Compute, const SUM: bool>([y, x]: [&PoolAxis; 2], from: &[T], to: &mut [T], row: &mut [T]) {
    let rows = to.chunks_exact_mut(x.output.max(1));
    if y.has_pairs() && x.has_pairs() {
        for (o, to) in rows.enumerate() {
            let [above, below] = [2 * o, 2 * o + 1].map(|at| from[at * x.input..][..2 * x.output].as_chunks::<2>().0);
            for ((to, a), b) in to.iter_mut().zip(above).zip(below) {
                *to = whole::<T, SUM>([join::<T, SUM>(a[0], b[0]), join::<T, SUM>(a[1], b[1])]);
            }
        }
        return;
    }
    for (o, to) in rows.enumerate() {
        let inside = (0..y.kernel).filter_map(|k| (o * y.stride + k * y.dilation).checked_sub(y.pad));
        let mut inside = inside.filter(|at| *at < y.input).map(|at| &from[at * x.input..][..x.input]);
        if x.is_identity() {
            to.fill(nothing::<T, SUM>());
            inside.for_each(|from| joined::<T, SUM>(from, 1, to));
            continue;
        }
        let Some(first) = inside.next() else {
            to.fill(nothing::<T, SUM>());
            continue;
        };
        let values = match inside.next() {
            None => first,
            Some(second) => {
                let row = &mut row[..x.input];
                row.copy_from_slice(first);
                joined::<T, SUM>(second, 1, row);
                inside.for_each(|from| joined::<T, SUM>(from, 1, row));
                row
            }
        };
        pool_row::<T, SUM>(x, values, to);
    }
}

#[inline(always)]
fn pool_row<T: Compute, const SUM: bool>(axis: &PoolAxis, from: &[T], to: &mut [T]) {
    // The usual windows are constants, so that the compiler vectorises their loops.
    match (axis.kernel, axis.stride, axis.dilation) {
        (2, 2, 1) => {
            let (from, to) = inner_row::<T, SUM>(axis, from, to);
            let windows = to.iter_mut().zip(from.as_chunks::<2>().0);
            windows.for_each(|(to, window)| *to = whole::<T, SUM>(*window));
        }
        (3, 1, 1) => {
            let (from, to) = inner_row::<T, SUM>(axis, from, to);
            let windows = from.iter().zip(from.iter().skip(1)).zip(from.iter().skip(2));
            to.iter_mut().zip(windows).for_each(|(to, ((a, b), c))| *to = whole::<T, SUM>([*a, *b, *c]));
        }
        (3, 2, 1) => {
            let (from, to) = inner_row::<T, SUM>(axis, from, to);
            // The last window's last value may have no pair.
            let windows = from.as_chunks::<2>().0.iter().zip(from.iter().skip(2).step_by(2));
            to.iter_mut().zip(windows).for_each(|(to, ([a, b], c))| *to = whole::<T, SUM>([*a, *b, *c]));
        }
        _ => {
            to.fill(nothing::<T, SUM>());
            for k in 0..axis.kernel {
                let (met, first) = axis.met(k);
                if !met.is_empty() {
                    joined::<T, SUM>(&from[first..], axis.stride, &mut to[met]);
                }
            }
        }
    }
}

/// Computes the windows of a row that are partly outside of the input. Returns the others' results, and
/// their input.
#[inline(always)]
fn inner_row<'a, T: Compute, const SUM: bool>(
    axis: &PoolAxis,
    from: &'a [T],
    to: &'a mut [T],
) -> (&'a [T], &'a mut [T]) {
    let inner = axis.whole();
    let (before, rest) = to.split_at_mut(inner.start);
    let (to, after) = rest.split_at_mut(inner.len());
    for (o, to) in (0..).zip(before).chain((inner.end..).zip(after)) {
        let taps = (0..axis.kernel).filter_map(|k| (o * axis.stride + k * axis.dilation).checked_sub(axis.pad));
        let taps = taps.filter(|at| *at < axis.input);
        *to = taps.fold(nothing::<T, SUM>(), |value, at| join::<T, SUM>(value, from[at]));
    }
    let first = (inner.start * axis.stride).saturating_sub(axis.pad);
    (from.get(first..).unwrap_or(&[]), to)
}

/// The result of a window of at least one value.
#[inline(always)]
fn whole<T: Compute, const SUM: bool>(window: impl IntoIterator<Item = T>) -> T {
    window.into_iter().fold(nothing::<T, SUM>(), join::<T, SUM>)
}

/// The result of a window without any value.
#[inline(always)]
fn nothing<T: Compute, const SUM: bool>() -> T {
    if SUM { T::ZERO } else { T::LEAST }
}

/// The larger of two values, or their sum.
#[inline(always)]
fn join<T: Compute, const SUM: bool>(a: T, b: T) -> T {
    if SUM { a.plus(b) } else { a.larger(b) }
}

/// Joins `from[i·stride]` to `to[i]`.
#[inline(always)]
fn joined<T: Compute, const SUM: bool>(from: &[T], stride: usize, to: &mut [T]) {
    if SUM { plus(from, stride, to) } else { larger(from, stride, to) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tract_core::internal::tract_itertools::iproduct;

    /// The axes of all small windows, with as many outputs as have a value.
    fn axes() -> impl Iterator<Item = PoolAxis> + Clone {
        iproduct!(1..5, 1..4, 1..3, 0..3, [1, 2, 3, 4, 7, 33]).map(|(kernel, stride, dilation, pad, input)| PoolAxis {
            input,
            output: (input + pad).div_ceil(stride),
            kernel,
            stride,
            dilation,
            pad,
        })
    }

    fn taps(axis: &PoolAxis, o: usize) -> impl Iterator<Item = usize> + Clone + use<'_> {
        let at = (0..axis.kernel).filter_map(move |k| (o * axis.stride + k * axis.dilation).checked_sub(axis.pad));
        at.filter(|at| *at < axis.input)
    }

    /// Compares both kinds of pools of a plane with their definition. One value in five is NaN.
    fn check(y: PoolAxis, x: PoolAxis) {
        let values = |nan: bool| {
            let value =
                move |i: usize| if nan && i % 5 == 3 { f32::NAN } else { ((i * 7919 + 13) % 101) as f32 - 50.0 };
            (0..y.input * x.input).map(value).collect::<Vec<f32>>()
        };
        let mut row = vec![f32::NAN; x.input];
        let mut found = vec![f32::NAN; y.output * x.output];
        for nan in [false, true] {
            let from = values(nan);
            pool_plane::<f32, false>([&y, &x], &from, &mut found, &mut row);
            for (o, found) in found.iter().enumerate() {
                let window = taps(&y, o / x.output).flat_map(|r| taps(&x, o % x.output).map(move |c| r * x.input + c));
                assert_eq!(window.fold(f32::MIN, |most, at| most.max(from[at])), *found, "{y:?} {x:?} at {o}");
            }
        }
        let from = values(false);
        pool_plane::<f32, true>([&y, &x], &from, &mut found, &mut row);
        for (o, found) in found.iter().enumerate() {
            let window = taps(&y, o / x.output).flat_map(|r| taps(&x, o % x.output).map(move |c| r * x.input + c));
            // Sums of small integers are exact.
            assert_eq!(window.map(|at| from[at]).sum::<f32>(), *found, "{y:?} {x:?} at {o}");
        }
    }

    /// The windows along each of three axes, inside and across the padding.
    #[test]
    fn planes_of_three_axes() {
        let axis =
            |input, kernel, stride, dilation, pad, output| PoolAxis { input, output, kernel, stride, dilation, pad };
        let axes = [axis(5, 3, 2, 1, 1, 3), axis(4, 2, 1, 2, 1, 4), axis(7, 3, 2, 1, 1, 4)];
        let [planes, rows, columns] = axes.map(|axis| axis.input);
        let from: Vec<f32> = (0..planes * rows * columns).map(|i| ((i * 7919 + 13) % 101) as f32 - 50.0).collect();
        let expected = |sum: bool| {
            let outputs = iproduct!(0..axes[0].output, 0..axes[1].output, 0..axes[2].output);
            let of_window = |(a, b, c): (usize, usize, usize)| {
                let window = iproduct!(taps(&axes[0], a), taps(&axes[1], b), taps(&axes[2], c));
                let values = window.map(|(a, b, c)| from[(a * rows + b) * columns + c]);
                if sum { values.sum::<f32>() } else { values.fold(f32::MIN, f32::max) }
            };
            outputs.map(of_window).collect::<Vec<f32>>()
        };
        let mut found = vec![f32::NAN; axes.iter().map(|axis| axis.output).product()];
        let (mut plane, mut row) = (vec![f32::NAN; rows * columns], vec![f32::NAN; columns]);
        let most = |axes: [&PoolAxis; 2], from: &[f32], to: &mut [f32], row: &mut [f32]| {
            pool_plane::<f32, false>(axes, from, to, row);
        };
        pool(&most, &axes, &from, &mut found, &mut [&mut plane, &mut row]);
        assert_eq!(found, expected(false));
        let sums = |axes: [&PoolAxis; 2], from: &[f32], to: &mut [f32], row: &mut [f32]| {
            pool_plane::<f32, true>(axes, from, to, row);
        };
        pool(&sums, &axes, &from, &mut found, &mut [&mut plane, &mut row]);
        assert_eq!(found, expected(true));
    }

    #[test]
    fn windows_of_any_kind() {
        for (i, x) in axes().enumerate() {
            // Rows of the same kind, and of another.
            check(x, x);
            let y = axes().nth(i * 37 % axes().count()).unwrap();
            check(y, x);
        }
    }
}
