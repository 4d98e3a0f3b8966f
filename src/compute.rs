//! The types in which sums are computed.

use crate::activation::{Activation, activate, exponentials};
use realfft::num_complex::Complex;

/// The byte with which floats are filled: all bytes `0xff` are NaN in any size.
pub(crate) const NAN: u8 = 0xff;

/// The byte with which integers are filled.
pub(crate) const NOISE: u8 = 0xa5;

/// The element types of working memory.
pub(crate) trait Working: Copy + Default + 'static {
    /// A value that stands out in results: NaN for floats, noise for integers.
    const POISON: Self;
}

impl Working for f32 {
    const POISON: f32 = f32::from_bits(u32::from_ne_bytes([NAN; 4]));
}

impl Working for Complex<f32> {
    const POISON: Complex<f32> = Complex::new(f32::POISON, f32::POISON);
}

impl Working for f64 {
    const POISON: f64 = f64::from_bits(u64::from_ne_bytes([NAN; 8]));
}

impl Working for i64 {
    const POISON: i64 = i64::from_ne_bytes([NOISE; 8]);
}

/// bf16: the upper halves of floats.
impl Working for u16 {
    const POISON: u16 = u16::from_ne_bytes([NAN; 2]);
}

/// A type in which sums and products are computed.
pub(crate) trait Compute: Working + Send + Sync + PartialEq + std::fmt::Debug {
    /// The additive identity.
    const ZERO: Self;

    /// The maximum of an empty window, as in onnxruntime's max pooling.
    const LEAST: Self;

    /// One half. It does not exist for integers, so kernels that use it must not run on them.
    const HALF: Self;

    /// `self + a·b`. Integers wrap modulo their width.
    fn mul_add(self, a: Self, b: Self) -> Self;

    /// `self + other`. Integers wrap modulo their width.
    fn plus(self, other: Self) -> Self;

    /// `self - other`. Integers wrap modulo their width.
    fn minus(self, other: Self) -> Self;

    /// The larger value. If one is NaN, the other.
    fn larger(self, other: Self) -> Self;

    /// Applies an element-wise function to a run.
    ///
    /// It is compiled for the caller's instruction set. `FUSED` tells whether that has a fused
    /// multiply-add.
    /// Does nothing to integers: activations on integers are not folded.
    fn activate<const FUSED: bool>(activation: Activation, run: &mut [Self]);

    /// `self` if it is not negative, else `self·slope`.
    fn leak(self, slope: Self) -> Self;

    /// Replaces each value by its exponential. As [`Compute::activate`].
    fn exponentials<const FUSED: bool>(run: &mut [Self]);

    /// Converts a number of elements.
    fn of_count(count: usize) -> Self;

    /// Rounds a constant to this type. Zero for integers, so kernels that use it must not run on
    /// them.
    fn of_constant(value: f64) -> Self;

    /// The natural logarithm. Zero for integers.
    fn logarithm(self) -> Self;

    /// `1 / self`. Zero for integers.
    fn reciprocal(self) -> Self;
}

macro_rules! float_compute {
    ($($t:ty, $least:expr);*) => {$(
        impl Compute for $t {
            const ZERO: Self = 0.0;
            const LEAST: Self = $least;
            const HALF: Self = 0.5;

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

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn activate<const FUSED: bool>(activation: Activation, run: &mut [Self]) {
                activate::<$t, FUSED>(activation, run)
            }

            #[inline(always)]
            fn leak(self, slope: Self) -> Self {
                // A choice between factors: for a choice between results, compilers emit masked
                // stores, which are slower.
                self * if self < 0.0 { slope } else { 1.0 }
            }

            #[inline(always)]
            fn exponentials<const FUSED: bool>(run: &mut [Self]) {
                exponentials::<$t, FUSED>(run)
            }

            fn of_count(count: usize) -> Self {
                count as Self
            }

            #[inline(always)]
            fn of_constant(value: f64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn logarithm(self) -> Self {
                self.ln()
            }

            #[inline(always)]
            fn reciprocal(self) -> Self {
                self.recip()
            }
        }
    )*};
}
float_compute!(f32, f32::MIN; f64, f64::NEG_INFINITY);

impl Compute for i64 {
    const ZERO: Self = 0;
    const LEAST: Self = i64::MIN;
    const HALF: Self = 0;

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        self.max(other)
    }

    #[inline(always)]
    fn activate<const FUSED: bool>(_activation: Activation, _run: &mut [Self]) {}

    fn leak(self, _slope: Self) -> Self {
        self
    }

    fn exponentials<const FUSED: bool>(_run: &mut [Self]) {}

    fn of_constant(_value: f64) -> Self {
        0
    }

    fn of_count(count: usize) -> Self {
        count as i64
    }

    fn logarithm(self) -> Self {
        0
    }

    fn reciprocal(self) -> Self {
        0
    }
}
