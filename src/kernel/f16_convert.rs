//! Conversions between half and single precision, with the widest instructions that the CPU has.
//!
//! All variants give the same values.

use tract_core::internal::f16;
use tract_core::tract_data::half::slice::HalfFloatSliceExt;

/// `to[i] = from[i]`.
///
/// # Panics
/// The lengths differ.
pub(crate) fn widen(from: &[f16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    if x86::has(from.len()) {
        // SAFETY: the CPU has the instructions. The slices have equal lengths of at least one
        // vector.
        return unsafe { x86::widen(from, to) };
    }
    from.convert_to_f32_slice(to)
}

/// `to[i] = from[i]`, rounded to nearest, ties to even.
///
/// # Panics
/// The lengths differ.
pub(crate) fn narrow(from: &[f32], to: &mut [f16]) {
    assert_eq!(from.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    if x86::has(from.len()) {
        // SAFETY: as in `widen`.
        return unsafe { x86::narrow(from, to) };
    }
    to.convert_from_f32_slice(from)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::f16;
    use crate::simd::vector::covering;
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::*;

    const LANES: usize = 16;

    /// Whether the CPU has the instructions and `len` is at least one vector.
    pub(crate) fn has(len: usize) -> bool {
        len >= LANES && is_x86_feature_detected!("avx512f")
    }

    /// # Safety
    /// The CPU has AVX-512. The slices have equal lengths of at least one vector.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn widen(from: &[f16], to: &mut [f32]) {
        for at in covering(from.len(), LANES) {
            // SAFETY: a vector at `at` is within both slices. A half has sixteen bits. The loads
            // and stores need no alignment.
            unsafe {
                let halves = _mm256_loadu_si256(from.as_ptr().add(at).cast());
                _mm512_storeu_ps(to.as_mut_ptr().add(at), _mm512_cvtph_ps(halves));
            }
        }
    }

    /// # Safety
    /// As [`widen`].
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn narrow(from: &[f32], to: &mut [f16]) {
        for at in covering(from.len(), LANES) {
            // SAFETY: as above.
            unsafe {
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(from.as_ptr().add(at)));
                _mm256_storeu_si256(to.as_mut_ptr().add(at).cast(), halves);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{narrow, widen};
    use tract_core::internal::f16;

    #[test]
    fn every_half_is_itself_again() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for len in [0, 1, 15, 16, 17, halves.len()] {
            let halves = &halves[halves.len() - len..];
            let (mut wide, mut again) = (vec![0.0; len], vec![f16::ZERO; len]);
            widen(halves, &mut wide);
            narrow(&wide, &mut again);
            for ((half, wide), again) in halves.iter().zip(&wide).zip(&again) {
                let same = wide.to_bits() == half.to_f32().to_bits() && again == half;
                assert!(same || (half.is_nan() && wide.is_nan() && again.is_nan()), "{half:?}, {wide}, {again:?}");
            }
        }
    }

    #[test]
    fn singles_round_as_scalars_do() {
        // Values between halves, halfway values, and values next to those, of all magnitudes.
        let singles: Vec<f32> =
            (0..1u32 << 20).map(|i| f32::from_bits((i << 12).wrapping_add(i % 3).wrapping_sub(1))).collect();
        let mut halves = vec![f16::ZERO; singles.len()];
        narrow(&singles, &mut halves);
        for (single, half) in singles.iter().zip(&halves) {
            let want = f16::from_f32(*single);
            assert!(half.to_bits() == want.to_bits() || (half.is_nan() && want.is_nan()), "{single}: {half}, {want}");
        }
    }
}
