//! The vectors of `src/simd/vector.rs` from their own source, with little else to build.
//!
//! `vectors.mjs` calls the functions.

#![allow(dead_code, reason = "the vectors of kernels that are not here")]

/// As much of the crate's module as the vectors use.
mod compute {
    pub trait Compute: Copy + 'static {
        const ZERO: Self;
        fn mul_add(self, a: Self, b: Self) -> Self;
        fn plus(self, other: Self) -> Self;
        fn minus(self, other: Self) -> Self;
    }

    macro_rules! compute {
        ($($t:ty),*) => {$(
            impl Compute for $t {
                const ZERO: Self = 0 as $t;

                #[inline(always)]
                fn mul_add(self, a: Self, b: Self) -> Self {
                    self + a * b
                }

                #[inline(always)]
                fn plus(self, other: Self) -> Self {
                    self + other
                }

                #[inline(always)]
                fn minus(self, other: Self) -> Self {
                    self - other
                }
            }
        )*};
    }
    compute!(f32, f64);
}

#[path = "../../../src/simd/vector.rs"]
mod vector;

use vector::{F32x4, F64x2, Lanes, Vector};

/// Memory for operands and results.
#[repr(align(64))]
struct Memory([f32; 1 << 16]);

static mut MEMORY: Memory = Memory([0.0; 1 << 16]);

#[unsafe(no_mangle)]
extern "C" fn memory_for_operands() -> *mut f32 {
    (&raw mut MEMORY).cast()
}

macro_rules! lanes {
    ($vector:ty, $lane:ty, $zipped:ident, $permuted:ident) => {
        /// Writes the zipped and the unzipped registers of `a` and `b`.
        ///
        /// # Safety
        /// A vector is readable at `a` and `b`, and four are writable at `to`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $zipped(a: *const $lane, b: *const $lane, to: *mut $lane) {
            // SAFETY: this function's contract.
            unsafe {
                let (a, b) = (<$vector>::load(a), <$vector>::load(b));
                for (i, vector) in a.zip(b).into_iter().chain(a.unzip(b)).enumerate() {
                    vector.store(to.add(i * <$vector>::LANES));
                }
            }
        }

        /// # Safety
        /// A vector is readable at `a` and writable at `to`, and as many indices at `lanes`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $permuted(a: *const $lane, lanes: *const u32, to: *mut $lane) {
            // SAFETY: this function's contract.
            unsafe { <$vector>::load(a).permute_lanes(lanes).store(to) }
        }
    };
}
lanes!(F32x4, f32, zipped_f32, permuted_f32);
lanes!(F64x2, f64, zipped_f64, permuted_f64);

/// `to[m][n] = Σ a[k][m]·b[k][n]`, as the kernels of `src/kernel/gemm_tile.rs` sum: `MR` scalars by `NV`
/// vectors.
///
/// # Safety
/// The operands and results lie in the memory.
#[inline(always)]
unsafe fn tile<V: Vector<Lane = f32>, const MR: usize, const NV: usize>(
    mut a: *const f32,
    mut b: *const f32,
    count: usize,
    to: *mut f32,
) {
    // SAFETY: this function's contract.
    unsafe {
        let mut sums = [[V::splat(0.0); NV]; MR];
        for _ in 0..count {
            let vectors: [V; NV] = std::array::from_fn(|n| V::load(b.add(n * V::LANES)));
            for (m, sums) in sums.iter_mut().enumerate() {
                let scalar = V::splat(*a.add(m));
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = sum.mul_add(scalar, vector);
                }
            }
            (a, b) = (a.add(MR), b.add(NV * V::LANES));
        }
        for (i, sum) in sums.into_iter().flatten().enumerate() {
            sum.store(to.add(i * V::LANES));
        }
    }
}

macro_rules! tiles {
    ($($name:ident $vector:ty, $mr:literal by $nv:literal;)*) => {$(
        /// # Safety
        /// As [`tile`].
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(a: *const f32, b: *const f32, count: usize, to: *mut f32) {
            // SAFETY: this function's contract.
            unsafe { tile::<$vector, $mr, $nv>(a, b, count, to) }
        }
    )*};
}
tiles! {
    tile_1x4 F32x4, 1 by 4; tile_1x6 F32x4, 1 by 6; tile_2x3 F32x4, 2 by 3; tile_2x4 F32x4, 2 by 4; tile_2x5 F32x4, 2 by 5;
    tile_3x2 F32x4, 3 by 2; tile_3x3 F32x4, 3 by 3; tile_4x2 F32x4, 4 by 2; tile_4x3 F32x4, 4 by 3; tile_5x2 F32x4, 5 by 2;
    tile_6x1 F32x4, 6 by 1; tile_6x2 F32x4, 6 by 2; tile_8x1 F32x4, 8 by 1; tile_8x2 F32x4, 8 by 2; tile_12x1 F32x4, 12 by 1;
    portable_3x3 Lanes<f32, 4>, 3 by 3; portable_4x2 Lanes<f32, 4>, 4 by 2;
}
