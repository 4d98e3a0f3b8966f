//! From real numbers to quantised ones.
//!
//! Safe loops over slices that the compiler vectorises, instantiated for each instruction set. All
//! give the same values.

use super::rescale::{Narrowed, Narrowing};
use crate::simd::isa::Isa;

/// How real numbers are divided by a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Division {
    /// By the scale, in f64.
    Scale(f32),
    /// By the scale, in f32.
    ScaleInF32(f32),
    /// By multiplying with the reciprocal of the scale, in f32.
    Reciprocal(f32),
}

/// Values that are divided again together, if one quotient is not certain in f32.
const PART: usize = 128;

/// Quantises values: `saturated(round(x / scale)) + zero point`, with ties rounded to even and NaN
/// taken as zero. The limits are integers of at most 9 bits.
///
/// # Panics
/// `from` is shorter than `to`.
pub(crate) fn quantise<T: Narrowed>(division: Division, narrowing: Narrowing, from: &[f32], to: &mut [T]) {
    match Isa::best() {
        // SAFETY: the CPU has the instruction set. The code inside is safe.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => unsafe { avx512::quantised(division, narrowing, from, to) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::quantised(division, narrowing, from, to) },
        _ => quantised(division, narrowing, from, to),
    }
}

/// Returns the least and the largest of zero and some values. NaN is ignored.
pub(crate) fn extremes(values: &[f32]) -> (f32, f32) {
    match Isa::best() {
        // SAFETY: the CPU has the instruction set. The code inside is safe.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => unsafe { avx512::extremes(values) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::extremes(values) },
        _ => extremes_of(values),
    }
}

#[inline(always)]
fn extremes_of(values: &[f32]) -> (f32, f32) {
    const LANES: usize = 64;
    let smaller = |a: f32, b: f32| if b < a { b } else { a };
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (mut least, mut most) = ([0f32; LANES], [0f32; LANES]);
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            least[lane] = smaller(least[lane], chunk[lane]);
            most[lane] = larger(most[lane], chunk[lane]);
        }
    }
    let least = least.iter().chain(rest).copied().fold(0.0, smaller);
    (least, most.iter().chain(rest).copied().fold(0.0, larger))
}

#[inline(always)]
fn quantised<T: Narrowed>(division: Division, narrowing: Narrowing, from: &[f32], to: &mut [T]) {
    /// The reciprocal and the product are rounded, by 2⁻²⁴ of a number below 256 each.
    const CERTAIN: f32 = 0.5 - 260.0 / (1 << 22) as f32;
    let from = &from[..to.len()];
    match division {
        Division::Reciprocal(factor) => {
            in_f32(|value| value * factor, narrowing, from, to);
        }
        Division::ScaleInF32(scale) => {
            in_f32(|value| value / scale, narrowing, from, to);
        }
        Division::Scale(scale) => {
            let reciprocal = scale.recip();
            for (from, to) in from.chunks(PART).zip(to.chunks_mut(PART)) {
                // A comparison with NaN fails.
                let certain = in_f32(|value| value * reciprocal, narrowing, from, to) <= CERTAIN;
                if !(reciprocal.is_normal() && certain) {
                    divided(scale, narrowing, from, to);
                }
            }
        }
    }
}

/// Quantises in f32, and returns the largest distance of a quotient from an integer: infinity if one
/// is NaN.
#[inline(always)]
fn in_f32<T: Narrowed>(
    divide: impl Fn(f32) -> f32,
    Narrowing { limits: (low, high), zero_point }: Narrowing,
    from: &[f32],
    to: &mut [T],
) -> f32 {
    /// Sums with it have no bits below one. Their lowest bits are those of the integer.
    const ONE_AND_A_HALF: f32 = (3 << 22) as f32;
    let (low, high) = (low as f32, high as f32);
    let mut furthest = [0f32; 16];
    let each = |from: f32, to: &mut T, furthest: &mut f32| {
        let value = divide(from);
        let value = if value < low { low } else { value };
        let value = if value > high { high } else { value };
        let is_nan = value.is_nan();
        let value = if is_nan { 0.0 } else { value };
        let shifted = value + ONE_AND_A_HALF;
        let distance = if is_nan { f32::INFINITY } else { (value - (shifted - ONE_AND_A_HALF)).abs() };
        *furthest = if distance > *furthest { distance } else { *furthest };
        *to = T::of_bits(shifted.to_bits().wrapping_add(zero_point as u32));
    };
    let (from, from_rest) = from.as_chunks::<16>();
    let (to, to_rest) = to.as_chunks_mut::<16>();
    for (from, to) in from.iter().zip(to) {
        for lane in 0..16 {
            each(from[lane], &mut to[lane], &mut furthest[lane]);
        }
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        each(*from, to, &mut furthest[0]);
    }
    furthest.into_iter().fold(0.0, f32::max)
}

/// Quantises in f64.
#[inline(always)]
fn divided<T: Narrowed>(
    scale: f32,
    Narrowing { limits: (low, high), zero_point }: Narrowing,
    from: &[f32],
    to: &mut [T],
) {
    for (from, to) in from.iter().zip(to) {
        let value = f64::from(*from) / f64::from(scale);
        let value = if value < low { low } else { value };
        let value = if value > high { high } else { value };
        *to = T::of(if value.is_nan() { 0.0 } else { value }, zero_point);
    }
}

/// Instantiates the loops for an instruction set.
#[cfg(target_arch = "x86_64")]
macro_rules! instances {
    ($name:ident, $features:literal) => {
        mod $name {
            use super::*;

            /// # Safety
            /// The CPU has the instruction set.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn quantised<T: Narrowed>(
                division: Division,
                narrowing: Narrowing,
                from: &[f32],
                to: &mut [T],
            ) {
                super::quantised(division, narrowing, from, to)
            }

            /// # Safety
            /// The CPU has the instruction set.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn extremes(values: &[f32]) -> (f32, f32) {
                super::extremes_of(values)
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
instances!(avx2, "avx2");
#[cfg(target_arch = "x86_64")]
instances!(avx512, "avx512f");

#[cfg(test)]
mod tests {
    use super::*;

    /// Ties and their neighbours, NaN, infinities, large and tiny numbers.
    fn values(scale: f32) -> Vec<f32> {
        let ties = (-600..600).map(|half| half as f32 * 0.5 * scale);
        let around = ties.flat_map(|tie| [tie.next_down(), tie, tie.next_up()]);
        let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-40, 3e9, -3e9];
        around.chain(special).chain((0..1000).map(|i| (i as f32 * 0.37).sin() * 140.0 * scale)).collect()
    }

    fn check<T: Narrowed + Into<i32> + Default>(least: i32, most: i32) {
        for scale in [1.0f32, 0.5, 0.017_770_858, 0.1, 3.7e-9, 41.3, 1e-39, 1e-45, 1e38, f32::MAX] {
            let values = values(scale);
            for zero_point in [least, least + 1, 3, most] {
                let narrowing =
                    Narrowing { limits: ((least - zero_point).into(), (most - zero_point).into()), zero_point };
                let divisions =
                    [Division::Scale(scale), Division::ScaleInF32(scale), Division::Reciprocal(scale.recip())];
                for division in divisions {
                    for len in [0, 1, 15, 16, 200, values.len()] {
                        let mut got = vec![T::default(); len];
                        quantise(division, narrowing, &values, &mut got);
                        for (value, got) in values.iter().zip(got) {
                            let rounded = match division {
                                Division::Scale(scale) => {
                                    (f64::from(*value) / f64::from(scale)).round_ties_even() as i32
                                }
                                Division::ScaleInF32(scale) => (value / scale).round_ties_even() as i32,
                                Division::Reciprocal(factor) => (value * factor).round_ties_even() as i32,
                            };
                            let want = rounded.saturating_add(zero_point).clamp(least, most);
                            assert_eq!(got.into(), want, "{value} by {division:?}, zero point {zero_point}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_are_those_of_the_definition() {
        check::<u8>(0, 255);
        check::<i8>(-128, 127);
    }

    #[test]
    fn extremes_are_those_of_numbers() {
        let mut values = vec![f32::NAN; 201];
        assert_eq!(extremes(&values), (0.0, 0.0));
        for at in [0, 63, 64, 127, 128, 191, 192, 200] {
            values[at] = 1.0 + at as f32;
            assert_eq!(extremes(&values), (0.0, 1.0 + at as f32));
        }
        for at in [200, 64, 3] {
            values[at] = at as f32 - 1000.0;
        }
        assert_eq!(extremes(&values), (-997.0, 193.0));
        values[5] = f32::NEG_INFINITY;
        assert_eq!(extremes(&values), (f32::NEG_INFINITY, 193.0));
    }
}
