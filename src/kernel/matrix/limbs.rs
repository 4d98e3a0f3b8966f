//! Numbers as sums of limbs: bf16, which tile registers multiply, and some CPUs' vectors.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::{SIDE, depth, weights_of_side};
use crate::precision::Precision;
use tract_core::internal::DatumType;

/// The most limbs of a number.
pub(crate) const LIMBS: usize = 3;

/// Significant bits of each number of a quad, which is one limb.
const BYTE_BITS: u32 = 8;

/// Significant bits of an f16.
const F16_BITS: u32 = 11;

/// The limbs that numbers are split into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limbs {
    /// What the numbers of the source are rounded to first. Weights are rounded before they come here.
    pub precision: Precision,
    /// Limbs of the source's numbers: see [`Limbs::of_bits`].
    pub source: usize,
    /// Limbs of the weights: as many as those of the source, or fewer if the others are zero.
    pub weights: usize,
}

impl Limbs {
    /// The limbs of numbers of a type, or of its bytes if it is an integer, after rounding.
    pub fn of_type(precision: Precision, datum_type: DatumType) -> usize {
        let bits = match datum_type {
            DatumType::F16 => F16_BITS,
            DatumType::F32 => f32::MANTISSA_DIGITS,
            _ => BYTE_BITS,
        };
        Limbs::of_bits(precision, bits)
    }

    /// The limbs of numbers with `bits` significant bits, or fewer after rounding.
    const fn of_bits(precision: Precision, bits: u32) -> usize {
        match precision {
            Precision::Bf16 => 1,
            Precision::F16 => 2,
            Precision::Exact if bits <= BYTE_BITS => 1,
            Precision::Exact if bits <= F16_BITS => 2,
            Precision::Exact => LIMBS,
        }
    }

    /// How floats are split, in words that `explain` prints.
    pub fn explained(precision: Precision) -> &'static str {
        match precision {
            Precision::Exact => "each number in three limbs of 8 bits",
            Precision::F16 => "each number rounded to f16, in two limbs of 8 bits",
            Precision::Bf16 => "each number rounded to bf16",
        }
    }

    /// The largest sum of the indices of two limbs that are multiplied.
    const fn order(self) -> usize {
        match self.precision {
            Precision::Exact => LIMBS - 1,
            Precision::F16 => 1,
            Precision::Bf16 => 0,
        }
    }

    /// The number of products per product of two numbers.
    pub fn products(self) -> usize {
        (0..self.source.min(self.order() + 1)).map(|i| self.weights.min(self.order() + 1 - i)).sum()
    }

    /// Whether there are kernels for such limbs of f32.
    #[cfg(any(test, target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn are_legal(self) -> bool {
        let most = self.order() + 1;
        (most.min(2)..=most).contains(&self.source) && (1..=self.source).contains(&self.weights)
    }

    /// Whether they are single limbs of numbers rounded to bf16.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn are_rounded(self) -> bool {
        self.precision == Precision::Bf16 && self.are_legal()
    }

    /// Whether they are those of quads.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub(super) fn are_of_bytes(self) -> bool {
        self.precision == Precision::Exact && (self.source, self.weights) == (1, 1)
    }
}

/// The limbs of a [regular](is_regular) number, high to low.
///
/// Each limb is the remainder rounded to nearest, except that the last one is truncated. Their sum
/// is the number, up to an error below `2^-133`.
#[cfg(test)]
pub(super) fn limbs_of(number: f32) -> [u16; LIMBS] {
    let mut rest = number;
    std::array::from_fn(|i| {
        let limb = if i < LIMBS - 1 { high_limb(rest) } else { (rest.to_bits() >> 16) as u16 };
        rest -= from_limb(limb);
        limb
    })
}

/// Returns how many limbs hold numbers, high ones first, so that the others are zero. The numbers are
/// rounded to a precision. None if tile registers can't multiply them.
pub(crate) fn limbs_needed(precision: Precision, numbers: &[f32]) -> Option<usize> {
    if precision == Precision::Bf16 {
        return Some(1);
    }
    let most = numbers.iter().fold(0, |most, number| most.max(number.abs().to_bits()));
    if !is_regular(most) {
        return None;
    }
    let is_limb = |number: f32| number.to_bits() & 0xffff == 0;
    let remainder = |number: f32| number - from_limb(high_limb(number));
    // Most filters have three, which the first numbers tell.
    Some(match numbers {
        _ if numbers.iter().all(|number| is_limb(*number)) => 1,
        _ if numbers.iter().all(|number| is_limb(remainder(*number))) => 2,
        _ => LIMBS,
    })
}

/// A number rounded to the nearest limb, with ties away from zero.
fn high_limb(number: f32) -> u16 {
    ((number.to_bits() + 0x8000) >> 16) as u16
}

/// The value of a limb.
pub(super) fn from_limb(limb: u16) -> f32 {
    f32::from_bits((limb as u32) << 16)
}

/// Whether products of numbers up to a magnitude have at most f32's rounding error of the largest.
/// `bits` are those of the largest magnitude. Zero is regular.
///
/// For regular magnitudes, neither the products nor their sums reach infinity, and the loss to
/// subnormals is below `2^-40` of them.
pub(crate) fn is_regular(bits: u32) -> bool {
    const LEAST: u32 = (127 - 40) << 23;
    const MOST: u32 = (127 + 50) << 23;
    bits == 0 || (LEAST..=MOST).contains(&bits)
}

/// Rounds numbers, as [`Precision::rounded`] does.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn round(precision: Precision, numbers: &mut [f32]) {
    if precision == Precision::Exact {
        return;
    }
    numbers.iter_mut().for_each(|number| *number = precision.rounded(*number));
}

/// Joins limbs of weights: see [`MatrixKernels::join`](super::MatrixKernels::join).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn join(weights: &[u16], sides: usize, limbs: usize, to: &mut [f32]) {
    let (width, of_side) = (sides * SIDE, weights_of_side::<f32>());
    let limb_len = sides * of_side;
    for (block, to) in weights.chunks(limbs * limb_len).zip(to.chunks_mut(depth::<f32>() * width)) {
        for (c, row) in to.chunks_mut(width).enumerate() {
            for (m, to) in row.iter_mut().enumerate() {
                let at = m / SIDE * of_side + (c / 2 * SIDE + m % SIDE) * 2 + c % 2;
                // Small limbs first, so that the sum is exact.
                *to = (0..limbs).rev().map(|p| from_limb(block[p * limb_len + at])).sum::<f32>();
            }
        }
    }
}
