//! Element-wise kernels: safe loops over slices that the compiler vectorises.
//!
//! They are instantiated once per instruction set.

use crate::compute::Compute;
use crate::kernel::bounds::Bounds;

/// `run[i] = factor·run[i] + term`.
#[inline(always)]
pub(crate) fn affine<T: Compute>(factor: T, term: T, run: &mut [T]) {
    run.iter_mut().for_each(|x| *x = term.mul_add(*x, factor));
}

/// `run[i]` if it is not negative, else `slope·run[i]`.
#[inline(always)]
pub(crate) fn leak<T: Compute>(slope: T, run: &mut [T]) {
    run.iter_mut().for_each(|x| *x = x.leak(slope));
}

/// Sets `to[i]` to the larger of `to[i]` and `from[i·stride]`. NaN in `from` is ignored.
#[inline(always)]
pub(crate) fn larger<T: Compute>(from: &[T], stride: usize, to: &mut [T]) {
    joined(from, stride, to, T::larger)
}

/// `to[i] += from[i·stride]`.
#[inline(always)]
pub(crate) fn plus<T: Compute>(from: &[T], stride: usize, to: &mut [T]) {
    joined(from, stride, to, T::plus)
}

/// `to[i] = join(to[i], from[i·stride])`.
#[inline(always)]
fn joined<T: Compute>(from: &[T], stride: usize, to: &mut [T], join: impl Fn(T, T) -> T) {
    // The usual strides are constants, so that the compiler vectorises their loops.
    match stride {
        1 => joined_by::<T, 1>(from, to, join),
        2 => joined_by::<T, 2>(from, to, join),
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, from)| *to = join(*to, *from)),
    }
}

#[inline(always)]
fn joined_by<T: Compute, const STRIDE: usize>(from: &[T], to: &mut [T], join: impl Fn(T, T) -> T) {
    let Some((last, to)) = to.split_last_mut() else { return };
    let (from, from_last) = from.split_at(to.len() * STRIDE);
    // Whole chunks, whose size the compiler knows. A value is always stored, as a conditional store
    // would become a masked one.
    to.iter_mut().zip(from.chunks_exact(STRIDE)).for_each(|(to, from)| *to = join(*to, from[0]));
    *last = join(*last, from_last[0]);
}

/// Adds `count` pixels of `size` elements, `step` apart in both slices, and applies bounds to the sums.
#[inline(always)]
pub(crate) fn add_pixels<T: Compute>(
    from: &[T],
    (count, size): (usize, usize),
    step: usize,
    bounds: Option<Bounds<T>>,
    to: &mut [T],
) {
    let pixels = to.chunks_mut(step).zip(from.chunks(step)).take(count);
    let pixels = pixels.map(|(to, from)| to[..size].iter_mut().zip(&from[..size]));
    match bounds {
        Some(bounds) => pixels.for_each(|pixel| pixel.for_each(|(to, from)| *to = bounds.clamp(to.plus(*from)))),
        None => pixels.for_each(|pixel| pixel.for_each(|(to, from)| *to = to.plus(*from))),
    }
}

/// Applies bounds to `count` pixels of `size` elements, `step` apart.
#[inline(always)]
pub(crate) fn clamp_pixels<T: Compute>(bounds: Bounds<T>, (count, size): (usize, usize), step: usize, run: &mut [T]) {
    for pixel in run.chunks_mut(step).take(count) {
        pixel[..size].iter_mut().for_each(|x| *x = bounds.clamp(*x));
    }
}
