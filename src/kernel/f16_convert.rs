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
    if let Some(lanes) = x86::best() {
        // SAFETY: the CPU has the instructions. The slices have equal lengths.
        return unsafe {
            match lanes {
                x86::Lanes::Sixteen => x86::widen_sixteen(from, to),
                x86::Lanes::Eight => x86::widen_eight(from, to),
            }
        };
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
    if let Some(lanes) = x86::best() {
        // SAFETY: as in `widen`.
        return unsafe {
            match lanes {
                x86::Lanes::Sixteen => x86::narrow_sixteen(from, to),
                x86::Lanes::Eight => x86::narrow_eight(from, to),
            }
        };
    }
    to.convert_from_f32_slice(from)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::f16;
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::*;

    /// The numbers that an instruction converts.
    pub(crate) enum Lanes {
        Eight,
        Sixteen,
    }

    /// The widest instructions that the CPU has. Those of sixteen lanes come with masks.
    pub(crate) fn best() -> Option<Lanes> {
        let masks = || is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl");
        if is_x86_feature_detected!("avx512f") && masks() {
            return Some(Lanes::Sixteen);
        }
        (is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c")).then_some(Lanes::Eight)
    }

    /// The lanes of the numbers that are left after whole vectors.
    fn mask(left: usize) -> u16 {
        (1u16 << left) - 1
    }

    /// # Safety
    /// The CPU has AVX-512 with words and vectors of 256 bits. The slices have equal lengths.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(crate) unsafe fn widen_sixteen(from: &[f16], to: &mut [f32]) {
        let ((from, last), (to, to_last)) = (from.as_chunks::<16>(), to.as_chunks_mut::<16>());
        // SAFETY: chunks are whole vectors, and the mask excludes what the rest does not have. The loads and stores
        // need no alignment.
        unsafe {
            for (from, to) in from.iter().zip(to) {
                let halves = _mm256_loadu_si256(from.as_ptr().cast());
                _mm512_storeu_ps(to.as_mut_ptr(), _mm512_cvtph_ps(halves));
            }
            if !last.is_empty() {
                let lanes = mask(last.len());
                let halves = _mm256_maskz_loadu_epi16(lanes, last.as_ptr().cast());
                _mm512_mask_storeu_ps(to_last.as_mut_ptr(), lanes, _mm512_cvtph_ps(halves));
            }
        }
    }

    /// # Safety
    /// As [`widen_sixteen`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(crate) unsafe fn narrow_sixteen(from: &[f32], to: &mut [f16]) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        let ((from, last), (to, to_last)) = (from.as_chunks::<16>(), to.as_chunks_mut::<16>());
        // SAFETY: as in `widen_sixteen`.
        unsafe {
            for (from, to) in from.iter().zip(to) {
                let halves = _mm512_cvtps_ph::<NEAREST>(_mm512_loadu_ps(from.as_ptr()));
                _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
            }
            if !last.is_empty() {
                let lanes = mask(last.len());
                let halves = _mm512_cvtps_ph::<NEAREST>(_mm512_maskz_loadu_ps(lanes, last.as_ptr()));
                _mm256_mask_storeu_epi16(to_last.as_mut_ptr().cast(), lanes, halves);
            }
        }
    }

    /// # Safety
    /// The CPU has AVX and F16C. The slices have equal lengths.
    #[target_feature(enable = "avx,f16c")]
    pub(crate) unsafe fn widen_eight(from: &[f16], to: &mut [f32]) {
        let eight = |from: &[f16; 8], to: &mut [f32; 8]| {
            // SAFETY: both arrays are whole vectors. The load and the store need no alignment.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast()))) }
        };
        let ((from, last), (to, to_last)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
        from.iter().zip(to).for_each(|(from, to)| eight(from, to));
        if !last.is_empty() {
            let (mut some, mut wide) = ([f16::ZERO; 8], [0.0; 8]);
            some[..last.len()].copy_from_slice(last);
            eight(&some, &mut wide);
            to_last.copy_from_slice(&wide[..last.len()]);
        }
    }

    /// # Safety
    /// As [`widen_eight`].
    #[target_feature(enable = "avx,f16c")]
    pub(crate) unsafe fn narrow_eight(from: &[f32], to: &mut [f16]) {
        let eight = |from: &[f32; 8], to: &mut [f16; 8]| {
            // SAFETY: as in `widen_eight`.
            unsafe {
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(from.as_ptr()));
                _mm_storeu_si128(to.as_mut_ptr().cast(), halves)
            }
        };
        let ((from, last), (to, to_last)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
        from.iter().zip(to).for_each(|(from, to)| eight(from, to));
        if !last.is_empty() {
            let (mut some, mut halves) = ([0.0; 8], [f16::ZERO; 8]);
            some[..last.len()].copy_from_slice(last);
            eight(&some, &mut halves);
            to_last.copy_from_slice(&halves[..last.len()]);
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
        for len in (0..=33).chain([halves.len()]) {
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

    /// CPUs with sixteen lanes do not use those of eight.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn eight_lanes_convert_as_sixteen() {
        use super::x86;
        if x86::best().is_none() {
            return;
        }
        let singles: Vec<f32> = (0..1u32 << 16).map(|i| f32::from_bits((i << 16).wrapping_add(0x3001 * i))).collect();
        for len in (0..=17).chain([singles.len()]) {
            let singles = &singles[singles.len() - len..];
            let [mut halves, mut expected] = [0, 1].map(|_| vec![f16::ZERO; len]);
            narrow(singles, &mut expected);
            // SAFETY: the CPU has AVX and F16C, as there are kernels. Lengths are equal.
            unsafe { x86::narrow_eight(singles, &mut halves) };
            let bits = |halves: &[f16]| halves.iter().map(|half| half.to_bits()).collect::<Vec<u16>>();
            assert_eq!(bits(&halves), bits(&expected));
            let [mut wide, mut expected] = [0, 1].map(|_| vec![0f32; len]);
            widen(&halves, &mut expected);
            // SAFETY: as above.
            unsafe { x86::widen_eight(&halves, &mut wide) };
            assert!(wide.iter().zip(&expected).all(|(wide, expected)| wide.to_bits() == expected.to_bits()));
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
