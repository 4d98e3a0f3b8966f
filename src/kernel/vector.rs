//! The small vector trait that kernels are generic over, and its implementations.

use crate::element::Compute;

/// A register of lanes. Every method is always inlined, so that it takes the instruction set of the
/// `#[target_feature]` function that it ends in.
///
/// # Safety
/// The methods may execute instructions that the CPU must have: call them only inside a function that is entered
/// after a check (see [`Isa::is_available`](super::Isa::is_available)). Pointers must be valid for `LANES` elements; no alignment is needed.
pub(super) trait Vector: Copy {
    /// A lane.
    type Lane: Compute;
    /// Number of lanes.
    const LANES: usize;

    /// All lanes the same.
    unsafe fn splat(value: Self::Lane) -> Self;
    /// Reads `LANES` elements.
    unsafe fn load(from: *const Self::Lane) -> Self;
    /// Writes `LANES` elements.
    unsafe fn store(self, to: *mut Self::Lane);
    /// `self + a·b`.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// `self + other`.
    unsafe fn plus(self, other: Self) -> Self;
}

/// `N` lanes in an array: the compiler uses whatever registers the target has.
#[derive(Clone, Copy)]
pub(super) struct Lanes<T, const N: usize>([T; N]);

impl<T: Compute, const N: usize> Vector for Lanes<T, N> {
    type Lane = T;
    const LANES: usize = N;

    #[inline(always)]
    unsafe fn splat(value: T) -> Self {
        Lanes([value; N])
    }

    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: the caller gives a pointer to `N` readable elements; an array of T is aligned as T is.
        Lanes(unsafe { from.cast::<[T; N]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: the caller gives a pointer to `N` writable elements.
        unsafe { to.cast::<[T; N]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        Lanes(std::array::from_fn(|i| self.0[i].mul_add(a.0[i], b.0[i])))
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        Lanes(std::array::from_fn(|i| self.0[i].plus(other.0[i])))
    }
}

/// Implements [`Vector`] for a register type out of its six intrinsics.
macro_rules! register {
    ($(#[$attr:meta])* $name:ident($register:ty) of $lanes:literal $lane:ty:
        $splat:path, $load:path, $store:path, |$acc:ident, $a:ident, $b:ident| $fma:expr, $add:path) => {
        $(#[$attr])*
        #[derive(Clone, Copy)]
        pub(in crate::kernel) struct $name($register);

        impl Vector for $name {
            type Lane = $lane;
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn splat(value: $lane) -> Self {
                // SAFETY: the trait's contract, the CPU has this instruction.
                Self(unsafe { $splat(value) })
            }

            #[inline(always)]
            unsafe fn load(from: *const $lane) -> Self {
                // SAFETY: the trait's contract, `LANES` elements are readable; the unaligned form is used.
                Self(unsafe { $load(from) })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $lane) {
                // SAFETY: the trait's contract, `LANES` elements are writable; the unaligned form is used.
                unsafe { $store(to, self.0) }
            }

            #[inline(always)]
            unsafe fn mul_add(self, a: Self, b: Self) -> Self {
                let ($acc, $a, $b) = (self.0, a.0, b.0);
                // SAFETY: the trait's contract, the CPU has this instruction.
                Self(unsafe { $fma })
            }

            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                // SAFETY: the trait's contract, the CPU has this instruction.
                Self(unsafe { $add(self.0, other.0) })
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    register!(
        /// Sixteen f32 of AVX-512.
        F32x16(__m512) of 16 f32:
        _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, |acc, a, b| _mm512_fmadd_ps(a, b, acc), _mm512_add_ps
    );
    register!(
        /// Eight f64 of AVX-512.
        F64x8(__m512d) of 8 f64:
        _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, |acc, a, b| _mm512_fmadd_pd(a, b, acc), _mm512_add_pd
    );
    register!(
        /// Eight f32 of AVX.
        F32x8(__m256) of 8 f32:
        _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, |acc, a, b| _mm256_fmadd_ps(a, b, acc), _mm256_add_ps
    );
    register!(
        /// Four f64 of AVX.
        F64x4(__m256d) of 4 f64:
        _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, |acc, a, b| _mm256_fmadd_pd(a, b, acc), _mm256_add_pd
    );
}
#[cfg(target_arch = "x86_64")]
pub(super) use x86::*;

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::Vector;
    use std::arch::aarch64::*;

    register!(
        /// Four f32 of NEON.
        F32x4(float32x4_t) of 4 f32:
        vdupq_n_f32, vld1q_f32, vst1q_f32, |acc, a, b| vfmaq_f32(acc, a, b), vaddq_f32
    );
    register!(
        /// Two f64 of NEON.
        F64x2(float64x2_t) of 2 f64:
        vdupq_n_f64, vld1q_f64, vst1q_f64, |acc, a, b| vfmaq_f64(acc, a, b), vaddq_f64
    );
}
#[cfg(target_arch = "aarch64")]
pub(super) use aarch64::*;
