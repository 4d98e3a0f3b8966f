//! Limbs of pixels, planes and weights, made in vectors of AVX-512.

use super::*;
use std::arch::x86_64::*;

/// Elements from the pixel being split to the pixel being prefetched, which may be beyond the
/// last. This is about a page, as the CPU's own prefetching stops at page ends.
const AHEAD: usize = 1024;

/// # Safety
/// The assertions of [`MatrixKernels::split`] hold. The CPU has AVX-512 with words.
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn split(
    from: &[f32],
    from_step: usize,
    size: (usize, usize),
    to: &mut [u16],
    limb_stride: usize,
    limbs: Limbs,
) -> u32 {
    // SAFETY: this function's contract. No more limbs are written than the source has.
    unsafe {
        match (limbs.precision, limbs.source) {
            (Precision::Bf16, _) => split_as::<BF16, 1>(from, from_step, size, to, limb_stride),
            (Precision::F16, _) => split_as::<F16, 2>(from, from_step, size, to, limb_stride),
            (Precision::Exact, 2) => split_as::<EXACT, 2>(from, from_step, size, to, limb_stride),
            (Precision::Exact, _) => split_as::<EXACT, LIMBS>(from, from_step, size, to, limb_stride),
        }
    }
}

// What numbers are rounded to.
const EXACT: u8 = 0;
const BF16: u8 = 1;
const F16: u8 = 2;

/// # Safety
/// As [`split()`], for `COUNT` limbs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split_as<const PRECISION: u8, const COUNT: usize>(
    from: &[f32],
    from_step: usize,
    (count, channels): (usize, usize),
    to: &mut [u16],
    limb_stride: usize,
) -> u32 {
    let some = |lanes: usize| if lanes >= SIDE { u16::MAX } else { (1u16 << lanes) - 1 };
    let masks = [some(channels), some(channels.saturating_sub(SIDE))];
    let magnitude = _mm512_set1_epi32(i32::MAX);
    let odd: [u16; depth::<f32>()] = std::array::from_fn(|i| 2 * i as u16 + 1);
    // SAFETY: the array is a whole vector.
    let upper_halves = unsafe { _mm512_loadu_si512(odd.as_ptr().cast()) };
    let mut most = _mm512_setzero_si512();
    let ahead = from_step.max(AHEAD / from_step.max(1) * from_step);
    for i in 0..count {
        let from = from.as_ptr().wrapping_add(i * from_step);
        let mut to = to.as_mut_ptr().wrapping_add(i * depth::<f32>());
        for side in [0, SIDE] {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ahead).wrapping_add(side).cast());
        }
        // SAFETY: the masks exclude the channels that a pixel does not have. `to` has room for
        // each limb of each pixel.
        unsafe {
            let mut rest =
                [_mm512_maskz_loadu_ps(masks[0], from), _mm512_maskz_loadu_ps(masks[1], from.wrapping_add(SIDE))];
            for x in &mut rest {
                *x = rounded::<PRECISION>(*x);
            }
            for x in rest {
                most = _mm512_max_epu32(most, _mm512_and_si512(magnitude, _mm512_castps_si512(x)));
            }
            for [low, high] in halves_of::<COUNT>(rest) {
                // The upper half of every lane, first of one vector, then of the other.
                _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(low, upper_halves, high));
                to = to.wrapping_add(limb_stride);
            }
        }
    }
    _mm512_reduce_max_epu32(most)
}

/// # Safety
/// The assertions of [`PlaneKernels::split`] hold. The CPU has AVX-512 with words.
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn split_planes(
    from: [&[f32]; 2],
    next: [&[f32]; 2],
    to: &mut [u16],
    limb_stride: usize,
    limbs: Limbs,
) -> u32 {
    // SAFETY: this function's contract. No more limbs are written than the source has.
    unsafe {
        match (limbs.precision, limbs.source) {
            (Precision::Bf16, _) => split_planes_as::<BF16, 1>(from, next, to, limb_stride),
            (Precision::F16, _) => split_planes_as::<F16, 2>(from, next, to, limb_stride),
            (Precision::Exact, 2) => split_planes_as::<EXACT, 2>(from, next, to, limb_stride),
            (Precision::Exact, _) => split_planes_as::<EXACT, LIMBS>(from, next, to, limb_stride),
        }
    }
}

/// # Safety
/// As [`split_planes`], for `COUNT` limbs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split_planes_as<const PRECISION: u8, const COUNT: usize>(
    [even, odd]: [&[f32]; 2],
    next: [&[f32]; 2],
    to: &mut [u16],
    limb_stride: usize,
) -> u32 {
    let magnitude = _mm512_set1_epi32(i32::MAX);
    let upper = _mm512_set1_epi32(0xffff_0000u32 as i32);
    let mut most = _mm512_setzero_si512();
    for i in (0..even.len()).step_by(SIDE) {
        let left = even.len() - i;
        let some = if left >= SIDE { u16::MAX } else { (1u16 << left) - 1 };
        let some_odd = if odd.is_empty() { 0 } else { some };
        for plane in next {
            _mm_prefetch::<_MM_HINT_T0>(plane.as_ptr().wrapping_add(i).cast());
        }
        // SAFETY: the masks exclude what the planes do not have. `to` has room for each limb of each position.
        unsafe {
            let mut rest = [
                _mm512_maskz_loadu_ps(some, even.as_ptr().add(i)),
                _mm512_maskz_loadu_ps(some_odd, odd.as_ptr().wrapping_add(i)),
            ];
            for x in &mut rest {
                *x = rounded::<PRECISION>(*x);
            }
            for x in rest {
                most = _mm512_max_epu32(most, _mm512_and_si512(magnitude, _mm512_castps_si512(x)));
            }
            for (limb, [low, high]) in halves_of::<COUNT>(rest).into_iter().enumerate() {
                // The lower half belongs to the even plane.
                let both = _mm512_or_si512(_mm512_srli_epi32::<16>(low), _mm512_and_si512(high, upper));
                let to = to.as_mut_ptr().add(limb * limb_stride + 2 * i);
                _mm512_mask_storeu_epi32(to.cast(), some, both);
            }
        }
    }
    _mm512_reduce_max_epu32(most)
}

/// # Safety
/// The assertions of [`MatrixKernels::split_weights`] hold. The CPU has AVX-512 with words.
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn split_weights(from: &[f32], sides: usize, limbs: usize, to: &mut [u16]) {
    // SAFETY: this function's contract.
    unsafe {
        match limbs {
            1 => split_weights_as::<1>(from, sides, to),
            2 => split_weights_as::<2>(from, sides, to),
            _ => split_weights_as::<LIMBS>(from, sides, to),
        }
    }
}

/// # Safety
/// As [`split_weights`], for `COUNT` limbs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split_weights_as<const COUNT: usize>(from: &[f32], sides: usize, to: &mut [u16]) {
    let (width, channels) = (sides * SIDE, from.len() / (sides * SIDE));
    let upper = _mm512_set1_epi32(0xffff_0000u32 as i32);
    let load = |c: usize, m: usize| match c < channels {
        // SAFETY: a vector of an existing channel.
        true => unsafe { _mm512_loadu_ps(from.as_ptr().add(c * width + m)) },
        false => _mm512_setzero_ps(),
    };
    for pair in 0..depth::<f32>() / 2 {
        for side in 0..sides {
            let rest = [load(2 * pair, side * SIDE), load(2 * pair + 1, side * SIDE)];
            for (limb, [low, high]) in halves_of::<COUNT>(rest).into_iter().enumerate() {
                // Clear the lower half, as it belongs to the pair's other channel. It is not
                // zero in the last limb of numbers below 2^-110.
                let high = _mm512_and_si512(high, upper);
                let both = _mm512_or_si512(_mm512_srli_epi32::<16>(low), high);
                let at = (limb * sides + side) * weights_of_side::<f32>() + pair * 2 * SIDE;
                // SAFETY: a pair of channels of one limb and side, which `to` holds.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().add(at).cast(), both) };
            }
        }
    }
}

/// Rounds numbers, as [`Precision::rounded`] does. After rounding to bf16, only the upper halves of
/// lanes count.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounded<const PRECISION: u8>(numbers: __m512) -> __m512 {
    match PRECISION {
        BF16 => {
            let bits = _mm512_castps_si512(numbers);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let nearest = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            // The most significant bit of a NaN's fraction keeps it from becoming infinity.
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers);
            _mm512_castsi512_ps(_mm512_mask_or_epi32(nearest, is_nan, bits, _mm512_set1_epi32(0x0040_0000)))
        }
        F16 => _mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(numbers)),
        _ => numbers,
    }
}

/// The limbs of two vectors of numbers, in the upper half of each lane.
///
/// The numbers have no more bits than `COUNT` limbs.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves_of<const COUNT: usize>(numbers: [__m512; 2]) -> [[__m512i; 2]; COUNT] {
    let (half, upper) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(0xffff_0000u32 as i32));
    // No closures, as the compiler does not always inline them.
    let mut limbs = [[_mm512_setzero_si512(); 2]; COUNT];
    for (i, number) in numbers.into_iter().enumerate() {
        let mut rest = number;
        for limb in limbs.iter_mut().take(COUNT - 1) {
            limb[i] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(rest), half), upper);
            rest = _mm512_sub_ps(rest, _mm512_castsi512_ps(limb[i]));
        }
        // The remainder has no more bits than a limb, up to an error below 2^-133.
        limbs[COUNT - 1][i] = _mm512_castps_si512(rest);
    }
    limbs
}
