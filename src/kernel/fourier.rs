//! Fourier tiles: adjacent results along one axis, by a Fourier transform of 16 or 32 values.
//!
//! The cyclic correlation of `N` values with `t` taps, filled up with zeros, has `N - t + 1` results
//! that do not wrap around. It is a product of Fourier transforms, that of the taps conjugated and
//! divided by `N`. The transform of real values has two real values, the first and the last, and
//! `N / 2 - 1` complex ones. A complex product is three real ones (see `cyclic.rs`), which makes
//! `2 + 3 · (N / 2 - 1)` products: 23 of 16 values, and 47 of 32.
//!
//! A transform is made of those of its even and its odd values, `E` and `O`. With
//! `w = cos a - i sin a` and `a = 2πk/N`, value `k` is `E[k] + wk·O[k]`, and value `N/2 - k` the
//! conjugate of `E[k] - wk·O[k]`. The product by `w` is that by `1 - i tan a`, times the cosine:
//! six multiply-adds for both values.
//!
//! Every result depends on all values of its tile. Its error scales with the largest of them, and
//! non-finite values spread over the tile.

// The compiler unrolls index loops over constant ranges into registers.
#![expect(clippy::needless_range_loop)]

use crate::compute::Compute;
use crate::kernel::cyclic::{complex_data, complex_filter, complex_product};
use crate::kernel::gemm_tile::Start;
use crate::kernel::tile_data::{PointStrides, TileData, is_zero};
use crate::simd::vector::Vector;

/// The numbers of values of a tile.
pub(crate) const FOURIER_VALUES: [usize; 2] = [16, 32];

/// Products of a tile.
pub(super) const fn fourier_points(values: usize) -> usize {
    2 + 3 * (values / 2 - 1)
}

/// The cosines of the multiples of π/16 up to π/2.
const COSINES: [f64; 9] = [
    1.0,
    0.980_785_280_403_230_4,
    0.923_879_532_511_286_7,
    0.831_469_612_302_545_2,
    std::f64::consts::FRAC_1_SQRT_2,
    0.555_570_233_019_602_2,
    0.382_683_432_365_089_8,
    0.195_090_322_016_128_27,
    0.0,
];

/// The cosine and the sine of `2πk/n`, for `k` up to `n / 4` and `n` up to 32.
const fn cosine_and_sine(k: usize, n: usize) -> (f64, f64) {
    let at = k * (32 / n);
    (COSINES[at], COSINES[8 - at])
}

/// The Fourier transform of real values: the real and imaginary parts of the first half. The first
/// and the last are real.
#[derive(Clone, Copy)]
pub(super) struct Spectrum<V, const BINS: usize> {
    re: [V; BINS],
    im: [V; BINS],
}

/// Values that have a Fourier transform, of so many different bins.
pub(super) trait Fourier<V, const BINS: usize>: Sized {
    /// # Safety
    /// The CPU has `V`'s instruction set.
    unsafe fn spectrum(self) -> Spectrum<V, BINS>;

    /// The values of a spectrum, times their number.
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set.
    unsafe fn of_spectrum(spectrum: Spectrum<V, BINS>) -> Self;
}

impl<V: Vector> Fourier<V, 2> for [V; 2] {
    #[inline(always)]
    unsafe fn spectrum(self) -> Spectrum<V, 2> {
        // SAFETY: this function's contract.
        unsafe {
            let zero = V::splat(V::Lane::ZERO);
            Spectrum { re: [self[0].plus(self[1]), self[0].minus(self[1])], im: [zero; 2] }
        }
    }

    #[inline(always)]
    unsafe fn of_spectrum(of: Spectrum<V, 2>) -> Self {
        // SAFETY: this function's contract.
        unsafe { [of.re[0].plus(of.re[1]), of.re[0].minus(of.re[1])] }
    }
}

macro_rules! of_halves {
    ($($values:literal of $half:literal, $bins:literal of $half_bins:literal;)*) => {$(
        impl<V: Vector> Fourier<V, $bins> for [V; $values] {
            #[inline(always)]
            unsafe fn spectrum(self) -> Spectrum<V, $bins> {
                let (mut even, mut odd) = ([self[0]; $half], [self[1]; $half]);
                for i in 1..$half {
                    (even[i], odd[i]) = (self[2 * i], self[2 * i + 1]);
                }
                // SAFETY: this function's contract.
                unsafe { joined(even.spectrum(), odd.spectrum()) }
            }

            #[inline(always)]
            unsafe fn of_spectrum(of: Spectrum<V, $bins>) -> Self {
                // SAFETY: this function's contract.
                let (even, odd) = unsafe {
                    let [even, odd] = split::<V, $bins, $half_bins>(of);
                    (<[V; $half]>::of_spectrum(even), <[V; $half]>::of_spectrum(odd))
                };
                let mut values = [even[0]; $values];
                for i in 0..$half {
                    (values[2 * i], values[2 * i + 1]) = (even[i], odd[i]);
                }
                values
            }
        }
    )*};
}
of_halves!(4 of 2, 3 of 2; 8 of 4, 5 of 3; 16 of 8, 9 of 5; 32 of 16, 17 of 9;);

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn constant<V: Vector>(value: f64) -> V {
    // SAFETY: this function's contract.
    unsafe { V::splat(V::Lane::of_constant(value)) }
}

/// The transform of values, from those of the even and the odd ones.
///
/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn joined<V: Vector, const HALF: usize, const BINS: usize>(
    even: Spectrum<V, HALF>,
    odd: Spectrum<V, HALF>,
) -> Spectrum<V, BINS> {
    const { assert!(BINS == 2 * HALF - 1) }
    let (last, middle) = (BINS - 1, HALF - 1);
    // SAFETY: this function's contract.
    unsafe {
        let zero = V::splat(V::Lane::ZERO);
        let (mut re, mut im) = ([zero; BINS], [zero; BINS]);
        re[0] = even.re[0].plus(odd.re[0]);
        re[last] = even.re[0].minus(odd.re[0]);
        // -i times the last value of the odd ones, which is real
        re[middle] = even.re[middle];
        im[middle] = zero.minus(odd.re[middle]);
        for k in 1..middle {
            let (cosine, sine) = cosine_and_sine(k, 2 * last);
            let (tangent, less) = (constant::<V>(sine / cosine), constant::<V>(-sine / cosine));
            let (factor, minus) = (constant::<V>(cosine), constant::<V>(-cosine));
            let turned = [odd.re[k].mul_add(odd.im[k], tangent), odd.im[k].mul_add(odd.re[k], less)];
            re[k] = even.re[k].mul_add(turned[0], factor);
            im[k] = even.im[k].mul_add(turned[1], factor);
            re[last - k] = even.re[k].mul_add(turned[0], minus);
            im[last - k] = zero.minus(even.im[k]).mul_add(turned[1], factor);
        }
        Spectrum { re, im }
    }
}

/// The transforms of the even and the odd values, times two, from that of all.
///
/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn split<V: Vector, const BINS: usize, const HALF: usize>(of: Spectrum<V, BINS>) -> [Spectrum<V, HALF>; 2] {
    const { assert!(BINS == 2 * HALF - 1) }
    let (last, middle) = (BINS - 1, HALF - 1);
    // SAFETY: this function's contract.
    unsafe {
        let zero = V::splat(V::Lane::ZERO);
        let mut even = Spectrum { re: [zero; HALF], im: [zero; HALF] };
        let mut odd = even;
        even.re[0] = of.re[0].plus(of.re[last]);
        odd.re[0] = of.re[0].minus(of.re[last]);
        even.re[middle] = of.re[middle].plus(of.re[middle]);
        odd.re[middle] = zero.minus(of.im[middle].plus(of.im[middle]));
        for k in 1..middle {
            let (cosine, sine) = cosine_and_sine(k, 2 * last);
            let (tangent, less) = (constant::<V>(sine / cosine), constant::<V>(-sine / cosine));
            let factor = constant::<V>(cosine);
            even.re[k] = of.re[k].plus(of.re[last - k]);
            even.im[k] = of.im[k].minus(of.im[last - k]);
            let (re, im) = (of.re[k].minus(of.re[last - k]), of.im[k].plus(of.im[last - k]));
            odd.re[k] = zero.mul_add(re.mul_add(im, less), factor);
            odd.im[k] = zero.mul_add(im.mul_add(re, tangent), factor);
        }
        [even, odd]
    }
}

/// # Safety
/// As [`transform_data`](crate::kernel::winograd::transform_data).
#[inline(always)]
pub(crate) unsafe fn transform_fourier_data<V: Vector, const VALUES: usize, const BINS: usize>(
    data: &TileData<V::Lane>,
    to: &mut [V::Lane],
    strides: PointStrides,
) where
    [V; VALUES]: Fourier<V, BINS>,
{
    for (tile, start) in data.starts.iter().enumerate() {
        for c in (0..data.channels).step_by(V::LANES) {
            let from = data.pixels.as_ptr().wrapping_add(start + c);
            let to = to.as_mut_ptr().wrapping_add(tile * strides.tile + c);
            // SAFETY: this function's contract.
            unsafe {
                let mut values = [V::splat(V::Lane::ZERO); VALUES];
                for i in 0..VALUES {
                    values[i] = V::load(from.wrapping_add(i * data.steps.1));
                }
                let spectrum = values.spectrum();
                let point = |p: usize| to.wrapping_add(p * strides.point);
                spectrum.re[0].store(point(0));
                spectrum.re[BINS - 1].store(point(1));
                for k in 1..BINS - 1 {
                    let three = complex_data(spectrum.re[k], spectrum.im[k]);
                    for p in 0..3 {
                        three[p].store(point(3 * k - 1 + p));
                    }
                }
            }
        }
    }
}

/// # Safety
/// As [`transform_filter`](crate::kernel::winograd::transform_filter).
#[inline(always)]
pub(crate) unsafe fn transform_fourier_filter<V: Vector, const VALUES: usize, const BINS: usize>(
    taps: &[&[V::Lane]],
    to: &mut [V::Lane],
    point: usize,
) where
    [V; VALUES]: Fourier<V, BINS>,
{
    let len = taps.first().map_or(0, |tap| tap.len());
    for at in (0..len).step_by(V::LANES) {
        let to = to.as_mut_ptr().wrapping_add(at);
        // SAFETY: this function's contract.
        unsafe {
            let zero = V::splat(V::Lane::ZERO);
            let scale = constant::<V>(1.0 / VALUES as f64);
            let mut values = [zero; VALUES];
            for (value, tap) in values.iter_mut().zip(taps) {
                *value = zero.mul_add(V::load(tap.as_ptr().wrapping_add(at)), scale);
            }
            let spectrum = values.spectrum();
            let point = |p: usize| to.wrapping_add(p * point);
            spectrum.re[0].store(point(0));
            spectrum.re[BINS - 1].store(point(1));
            for k in 1..BINS - 1 {
                // conjugated
                let three = complex_filter(spectrum.re[k], zero.minus(spectrum.im[k]));
                for p in 0..3 {
                    three[p].store(point(3 * k - 1 + p));
                }
            }
        }
    }
}

/// # Safety
/// As [`transform_products`](crate::kernel::winograd::transform_products). A tile has at most
/// `VALUES` results.
#[inline(always)]
pub(crate) unsafe fn transform_fourier_products<V: Vector, const VALUES: usize, const BINS: usize>(
    products: &[V::Lane],
    strides: PointStrides,
    start: Start<V::Lane>,
    channels: usize,
    (offsets, results): (&[usize], usize),
    to: &mut [V::Lane],
) -> bool
where
    [V; VALUES]: Fourier<V, BINS>,
{
    let mut finite = true;
    for c in (0..channels).step_by(V::LANES) {
        // SAFETY: this function's contract.
        unsafe {
            let zero = V::splat(V::Lane::ZERO);
            let bias = match start {
                Start::Bias(bias) => V::load(bias.as_ptr().wrapping_add(c)),
                Start::Add => zero,
            };
            // A finite result times zero is zero. Any other is NaN.
            let mut zeros = zero;
            for (tile, offsets) in offsets.chunks_exact(results).enumerate() {
                let from = products.as_ptr().wrapping_add(tile * strides.tile + c);
                let point = |p: usize| from.wrapping_add(p * strides.point);
                let mut spectrum = Spectrum { re: [zero; BINS], im: [zero; BINS] };
                spectrum.re[0] = V::load(point(0));
                spectrum.re[BINS - 1] = V::load(point(1));
                for k in 1..BINS - 1 {
                    let at = 3 * k - 1;
                    let three = [V::load(point(at)), V::load(point(at + 1)), V::load(point(at + 2))];
                    [spectrum.re[k], spectrum.im[k]] = complex_product(three);
                }
                let values = <[V; VALUES]>::of_spectrum(spectrum);
                for (value, offset) in values.iter().zip(offsets) {
                    let to = to.as_mut_ptr().wrapping_add(offset + c);
                    let result = match start {
                        Start::Bias(_) => bias.plus(*value),
                        Start::Add => V::load(to).plus(*value),
                    };
                    zeros = zeros.mul_add(result, zero);
                    result.store(to);
                }
            }
            finite &= is_zero(zeros);
        }
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_are_those_of_their_angles() {
        for n in [4, 8, 16, 32] {
            for k in 0..=n / 4 {
                let angle = std::f64::consts::TAU * k as f64 / n as f64;
                let (cosine, sine) = cosine_and_sine(k, n);
                assert!((cosine - angle.cos()).abs() < 1e-15 && (sine - angle.sin()).abs() < 1e-15, "{k} of {n}");
            }
        }
    }
}
