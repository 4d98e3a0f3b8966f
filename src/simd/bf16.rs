//! Products of pairs of bf16 in vectors: whether this CPU has them, and their instructions.

use crate::simd::isa::Isa;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::simd::vector::Vector;

/// Whether the vectors of an instruction set may have such products, on some CPUs.
pub(crate) fn is_possible(isa: Isa) -> bool {
    matches!(isa, Isa::Avx512 | Isa::Neon)
}

/// Whether this CPU has such products in the vectors of an instruction set.
pub(crate) fn is_available(isa: Isa) -> bool {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => {
            isa.is_available() && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512bf16")
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => isa.is_available() && std::arch::is_aarch64_feature_detected!("bf16"),
        _ => false,
    }
}

/// A vector of sums of products of bf16.
///
/// # Safety
/// As [`Vector`]. A CPU has the instructions if [`is_available`] says so for their instruction set.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) unsafe trait Bf16Dots: Vector<Lane = f32> {
    /// As many pairs of bf16 as lanes.
    type Pairs: Copy;

    /// Reads `LANES` pairs.
    unsafe fn load_pairs(from: *const u16) -> Self::Pairs;
    /// Reads a pair into all lanes.
    unsafe fn splat_pair(from: *const u16) -> Self::Pairs;
    /// Adds the products of both numbers of each pair. Subnormal numbers count as zero.
    unsafe fn dot(self, a: Self::Pairs, b: Self::Pairs) -> Self;
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::Bf16Dots;
    use crate::simd::vector::F32x16;
    use std::arch::x86_64::*;
    use std::mem::transmute;

    // SAFETY: the register has 16 lanes of 32 bits, and the intrinsics are those of the methods.
    unsafe impl Bf16Dots for F32x16 {
        type Pairs = __m512bh;

        #[inline(always)]
        unsafe fn load_pairs(from: *const u16) -> __m512bh {
            // SAFETY: by the trait's contract, the CPU has this instruction, and 16 pairs are readable. Both
            // types are registers of the same size, any bits of which are legal.
            unsafe { transmute::<__m512i, __m512bh>(_mm512_loadu_si512(from.cast())) }
        }

        #[inline(always)]
        unsafe fn splat_pair(from: *const u16) -> __m512bh {
            // SAFETY: as in `load_pairs`, for a single pair.
            unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi32(from.cast::<i32>().read_unaligned())) }
        }

        #[inline(always)]
        unsafe fn dot(self, a: __m512bh, b: __m512bh) -> Self {
            // SAFETY: by the trait's contract, the CPU has this instruction.
            F32x16(unsafe { _mm512_dpbf16_ps(self.0, a, b) })
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::Bf16Dots;
    use crate::simd::vector::F32x4;
    use std::arch::aarch64::*;
    use std::arch::asm;

    // SAFETY: the register has 4 lanes of 32 bits, and the instructions are those of the methods.
    unsafe impl Bf16Dots for F32x4 {
        type Pairs = uint16x8_t;

        #[inline(always)]
        unsafe fn load_pairs(from: *const u16) -> uint16x8_t {
            // SAFETY: by the trait's contract, 4 pairs are readable.
            unsafe { vld1q_u16(from) }
        }

        #[inline(always)]
        unsafe fn splat_pair(from: *const u16) -> uint16x8_t {
            // SAFETY: by the trait's contract, a pair is readable.
            unsafe { vreinterpretq_u16_u32(vdupq_n_u32(from.cast::<u32>().read_unaligned())) }
        }

        #[inline(always)]
        unsafe fn dot(self, a: uint16x8_t, b: uint16x8_t) -> Self {
            let mut sum = self.0;
            // SAFETY: by the trait's contract, the CPU has this instruction. It changes nothing but the sum.
            unsafe {
                asm!(
                    "bfdot {sum:v}.4s, {a:v}.8h, {b:v}.8h",
                    sum = inout(vreg) sum,
                    a = in(vreg) a,
                    b = in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            F32x4(sum)
        }
    }
}
